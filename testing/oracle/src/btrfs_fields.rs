//! The fields of a btrfs image, found without the driver. A test damages one, and makes the checksum right
//! again.
//!
//! It reads one device, with CRC-32C, and with chunks that are single, DUP or RAID1.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where the first superblock is.
pub const SUPER: usize = 64 << 10;
/// The bytes of a superblock.
pub const SUPER_BYTES: usize = 4096;
/// The second superblock.
const SECOND_SUPER: usize = 64 << 20;
/// Where a block has what its checksum covers.
const COVERED: usize = 32;
const HEADER: usize = 101;
const ITEM: usize = 25;
const POINTER: usize = 33;
const SECTOR: u64 = 4096;

/// An item of a leaf that the filesystem uses.
#[derive(Debug, Clone)]
pub struct Item {
    /// The tree.
    pub tree: u64,
    /// Object, type and offset.
    pub key: (u64, u8, u64),
    /// The logical address of the leaf.
    pub leaf: u64,
    /// The place of its entry in the table of the leaf.
    pub entry: usize,
    /// The place of its data in the leaf.
    pub data: Range<usize>,
}

/// A block of a tree that the filesystem uses.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// The tree.
    pub tree: u64,
    /// Its logical address.
    pub address: u64,
    /// Its level. 0: it is a leaf.
    pub level: u8,
}

/// Something that can be damaged.
#[derive(Debug, Clone)]
pub struct Field {
    /// The structure that it is in.
    pub structure: String,
    /// Its name there.
    pub name: &'static str,
    /// The logical address of the block; `None`: it is in the superblock.
    pub block: Option<u64>,
    /// Its bytes in the block.
    pub bytes: Range<usize>,
}

/// A block of a tree, or a sector of data, that can be damaged as a whole.
#[derive(Debug, Clone)]
pub struct WholeBlock {
    /// What it is.
    pub structure: String,
    /// Its logical address.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
    /// Another one of its kind.
    pub other: Option<u64>,
}

/// A name and the bytes of a field: offset and length.
type Part = (&'static str, usize, usize);

const HEADER_FIELDS: &[Part] = &[
    ("fsid", 0x20, 16),
    ("bytenr", 0x30, 8),
    ("flags", 0x38, 7),
    ("backref_rev", 0x3f, 1),
    ("chunk_tree_uuid", 0x40, 16),
    ("generation", 0x50, 8),
    ("owner", 0x58, 8),
    ("nritems", 0x60, 4),
    ("level", 0x64, 1),
];

const KEY_FIELDS: &[Part] = &[("key.objectid", 0, 8), ("key.type", 8, 1), ("key.offset", 9, 8)];
const ITEM_FIELDS: &[Part] = &[("item.offset", 17, 4), ("item.size", 21, 4)];
const POINTER_FIELDS: &[Part] = &[("blockptr", 17, 8), ("generation", 25, 8)];

const SUPER_FIELDS: &[Part] = &[
    ("fsid", 0x20, 16),
    ("bytenr", 0x30, 8),
    ("flags", 0x38, 8),
    ("magic", 0x40, 8),
    ("generation", 0x48, 8),
    ("root", 0x50, 8),
    ("chunk_root", 0x58, 8),
    ("log_root", 0x60, 8),
    ("total_bytes", 0x70, 8),
    ("bytes_used", 0x78, 8),
    ("root_dir_objectid", 0x80, 8),
    ("num_devices", 0x88, 8),
    ("sectorsize", 0x90, 4),
    ("nodesize", 0x94, 4),
    ("leafsize", 0x98, 4),
    ("stripesize", 0x9c, 4),
    ("sys_chunk_array_size", 0xa0, 4),
    ("chunk_root_generation", 0xa4, 8),
    ("compat_flags", 0xac, 8),
    ("compat_ro_flags", 0xb4, 8),
    ("incompat_flags", 0xbc, 8),
    ("csum_type", 0xc4, 2),
    ("root_level", 0xc6, 1),
    ("chunk_root_level", 0xc7, 1),
    ("log_root_level", 0xc8, 1),
    ("dev_item.devid", 0xc9, 8),
    ("dev_item.total_bytes", 0xd1, 8),
    ("dev_item.bytes_used", 0xd9, 8),
    ("dev_item.io_align", 0xe1, 4),
    ("dev_item.io_width", 0xe5, 4),
    ("dev_item.sector_size", 0xe9, 4),
    ("dev_item.type", 0xed, 8),
    ("dev_item.generation", 0xf5, 8),
    ("dev_item.uuid", 0x10b, 16),
    ("dev_item.fsid", 0x11b, 16),
    ("cache_generation", 0x22b, 8),
    ("uuid_tree_generation", 0x233, 8),
    ("sys_chunk.key.offset", 0x334, 8),
    ("sys_chunk.length", 0x33c, 8),
    ("sys_chunk.type", 0x354, 8),
    ("sys_chunk.stripe.devid", 0x36c, 8),
    ("sys_chunk.stripe.offset", 0x374, 8),
];

const INODE: &[Part] = &[
    ("generation", 0, 8),
    ("transid", 8, 8),
    ("size", 16, 8),
    ("nbytes", 24, 8),
    ("block_group", 32, 8),
    ("nlink", 40, 4),
    ("uid", 44, 4),
    ("mode", 52, 4),
    ("rdev", 56, 8),
    ("flags", 64, 8),
    ("sequence", 72, 8),
    ("mtime.nsec", 144, 4),
];

const ROOT: &[Part] = &[
    ("generation", 160, 8),
    ("root_dirid", 168, 8),
    ("bytenr", 176, 8),
    ("byte_limit", 184, 8),
    ("bytes_used", 192, 8),
    ("last_snapshot", 200, 8),
    ("flags", 208, 8),
    ("refs", 216, 4),
    ("drop_progress.objectid", 220, 8),
    ("drop_level", 237, 1),
    ("level", 238, 1),
    ("generation_v2", 239, 8),
    ("uuid", 247, 16),
];

/// The name and the fields of the data of an item, by its type.
fn parts_of(kind: u8) -> Option<(&'static str, &'static [Part])> {
    Some(match kind {
        1 => ("INODE_ITEM", INODE),
        12 => ("INODE_REF", &[("index", 0, 8), ("name_len", 8, 2), ("name", 10, 1)]),
        13 => ("INODE_EXTREF", &[("parent", 0, 8), ("index", 8, 8), ("name_len", 16, 2), ("name", 18, 1)]),
        24 => (
            "XATTR_ITEM",
            &[
                ("location.objectid", 0, 8),
                ("data_len", 25, 2),
                ("name_len", 27, 2),
                ("type", 29, 1),
                ("name", 30, 1),
            ],
        ),
        48 => ("ORPHAN_ITEM", &[]),
        84 | 96 => (
            if kind == 84 { "DIR_ITEM" } else { "DIR_INDEX" },
            &[
                ("location.objectid", 0, 8),
                ("location.type", 8, 1),
                ("location.offset", 9, 8),
                ("transid", 17, 8),
                ("data_len", 25, 2),
                ("name_len", 27, 2),
                ("type", 29, 1),
                ("name", 30, 1),
            ],
        ),
        108 => (
            "EXTENT_DATA",
            &[
                ("generation", 0, 8),
                ("ram_bytes", 8, 8),
                ("compression", 16, 1),
                ("encryption", 17, 1),
                ("other_encoding", 18, 2),
                ("type", 20, 1),
                ("disk_bytenr", 21, 8),
                ("disk_num_bytes", 29, 8),
                ("offset", 37, 8),
                ("num_bytes", 45, 8),
            ],
        ),
        128 => ("EXTENT_CSUM", &[("sum", 0, 4)]),
        132 => ("ROOT_ITEM", ROOT),
        144 | 156 => (
            if kind == 144 { "ROOT_BACKREF" } else { "ROOT_REF" },
            &[("dirid", 0, 8), ("sequence", 8, 8), ("name_len", 16, 2), ("name", 18, 1)],
        ),
        168 | 169 => (
            if kind == 168 { "EXTENT_ITEM" } else { "METADATA_ITEM" },
            &[
                ("refs", 0, 8),
                ("generation", 8, 8),
                ("flags", 16, 8),
                ("reference.type", 24, 1),
                ("reference.root", 25, 8),
                ("reference.objectid", 33, 8),
                ("reference.offset", 41, 8),
                ("reference.count", 49, 4),
            ],
        ),
        176 => ("TREE_BLOCK_REF", &[]),
        178 => {
            ("EXTENT_DATA_REF", &[("root", 0, 8), ("objectid", 8, 8), ("offset", 16, 8), ("count", 24, 4)])
        }
        182 => ("SHARED_BLOCK_REF", &[]),
        184 => ("SHARED_DATA_REF", &[("count", 0, 4)]),
        192 => ("BLOCK_GROUP_ITEM", &[("used", 0, 8), ("chunk_objectid", 8, 8), ("flags", 16, 8)]),
        198 => ("FREE_SPACE_INFO", &[("extent_count", 0, 4), ("flags", 4, 4)]),
        199 => ("FREE_SPACE_EXTENT", &[]),
        200 => ("FREE_SPACE_BITMAP", &[("bits", 0, 1), ("bits in the middle", 100, 1)]),
        204 => (
            "DEV_EXTENT",
            &[
                ("chunk_tree", 0, 8),
                ("chunk_objectid", 8, 8),
                ("chunk_offset", 16, 8),
                ("length", 24, 8),
                ("chunk_tree_uuid", 32, 16),
            ],
        ),
        216 => (
            "DEV_ITEM",
            &[
                ("devid", 0, 8),
                ("total_bytes", 8, 8),
                ("bytes_used", 16, 8),
                ("io_align", 24, 4),
                ("sector_size", 32, 4),
                ("type", 36, 8),
                ("generation", 44, 8),
                ("uuid", 66, 16),
                ("fsid", 82, 16),
            ],
        ),
        228 => (
            "CHUNK_ITEM",
            &[
                ("length", 0, 8),
                ("owner", 8, 8),
                ("stripe_len", 16, 8),
                ("type", 24, 8),
                ("io_align", 32, 4),
                ("sector_size", 40, 4),
                ("num_stripes", 44, 2),
                ("sub_stripes", 46, 2),
                ("stripe.devid", 48, 8),
                ("stripe.offset", 56, 8),
                ("stripe.dev_uuid", 64, 16),
            ],
        ),
        _ => return None,
    })
}

/// An image, and what is in it.
#[derive(Clone)]
pub struct BtrfsImage {
    /// The bytes of the image.
    pub bytes: Vec<u8>,
    /// The bytes of a block of a tree.
    pub node_size: usize,
    /// The number of the device.
    devid: u64,
    /// Start, length, and the copies of each chunk: device and place on it.
    chunks: BTreeMap<u64, (u64, Vec<(u64, u64)>)>,
    /// The items of all trees, in the order of their keys.
    pub items: Vec<Item>,
    /// The blocks of all trees. A block that trees share is there several times.
    pub blocks: Vec<Block>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn key_at(bytes: &[u8], at: usize) -> (u64, u8, u64) {
    (number(bytes, at, 8), bytes[at + 8], number(bytes, at + 9, 8))
}

fn seal(block: &mut [u8]) {
    let sum = crc32c::crc32c(&block[COVERED..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

impl BtrfsImage {
    /// Finds all blocks and items of a whole image.
    pub fn parse(bytes: Vec<u8>) -> Self {
        let node_size = number(&bytes, SUPER + 0x94, 4) as usize;
        let devid = number(&bytes, SUPER + 0xc9, 8);
        let chunks = BTreeMap::new();
        let mut image = Self { bytes, node_size, devid, chunks, items: Vec::new(), blocks: Vec::new() };
        let (mut at, end) = (SUPER + 0x32b, SUPER + 0x32b + number(&image.bytes, SUPER + 0xa0, 4) as usize);
        while at < end {
            let start = key_at(&image.bytes, at).2;
            at += 17 + image.add_chunk(start, at + 17);
        }
        let (root, chunk_root) =
            (number(&image.bytes, SUPER + 0x50, 8), number(&image.bytes, SUPER + 0x58, 8));
        image.walk(3, chunk_root);
        for item in image.items.clone() {
            if item.key.1 == 228 {
                let at = image.places(item.leaf)[0] + item.data.start;
                image.add_chunk(item.key.2, at);
            }
        }
        image.walk(1, root);
        for item in image.items.clone() {
            if item.key.1 == 132 {
                let at = image.places(item.leaf)[0] + item.data.start;
                let (bytenr, refs) = (number(&image.bytes, at + 176, 8), number(&image.bytes, at + 216, 4));
                if refs > 0 {
                    image.walk(item.key.0, bytenr);
                }
            }
        }
        image
    }

    fn add_chunk(&mut self, start: u64, at: usize) -> usize {
        let stripes = number(&self.bytes, at + 44, 2) as usize;
        let stripe = |at: usize| (number(&self.bytes, at, 8), number(&self.bytes, at + 8, 8));
        let places = (0..stripes).map(|index| stripe(at + 48 + index * 32)).collect();
        self.chunks.insert(start, (number(&self.bytes, at, 8), places));
        48 + stripes * 32
    }

    /// Returns the places of the copies of a logical address: the number of the device, from 0, and the byte
    /// on it.
    pub fn places_on(&self, address: u64) -> Vec<(usize, usize)> {
        let (start, (length, places)) = self.chunks.range(..=address).next_back().expect("a chunk");
        assert!(address < start + length, "{address} is in no chunk");
        places.iter().map(|(devid, at)| (*devid as usize - 1, (at + address - start) as usize)).collect()
    }

    /// Returns the places of the copies of a logical address on this device.
    pub fn places(&self, address: u64) -> Vec<usize> {
        let mut places = self.places_on(address);
        places.retain(|(device, _)| *device as u64 + 1 == self.devid);
        places.into_iter().map(|(_, at)| at).collect()
    }

    /// A block of a tree, in its first copy.
    pub fn block(&self, address: u64) -> &[u8] {
        let at = self.places(address)[0];
        &self.bytes[at..at + self.node_size]
    }

    fn walk(&mut self, tree: u64, address: u64) {
        let at = self.places(address)[0];
        let block = self.bytes[at..at + self.node_size].to_vec();
        let (count, level) = (number(&block, 0x60, 4) as usize, block[0x64]);
        self.blocks.push(Block { tree, address, level });
        for index in 0..count {
            if level > 0 {
                let below = number(&block, HEADER + index * POINTER + 17, 8);
                self.walk(tree, below);
                continue;
            }
            let entry = HEADER + index * ITEM;
            let start = HEADER + number(&block, entry + 17, 4) as usize;
            let data = start..start + number(&block, entry + 21, 4) as usize;
            self.items.push(Item { tree, key: key_at(&block, entry), leaf: address, entry, data });
        }
    }

    /// Changes the bytes at a logical address, in all copies. Their checksums stay as they are.
    pub fn change_bytes(&mut self, address: u64, len: usize, change: impl Fn(&mut [u8])) {
        for at in self.places(address) {
            change(&mut self.bytes[at..at + len]);
        }
    }

    /// Damages a block of a tree, or a sector of data.
    pub fn damage_block(&mut self, block: &WholeBlock, how: &str) {
        let &WholeBlock { address, bytes, other, .. } = block;
        match (how, other) {
            ("one bit", _) => self.change_bytes(address, bytes, |all| all[bytes / 2] ^= 0x10),
            ("zeroes", _) => self.change_bytes(address, bytes, |all| all.fill(0)),
            (_, Some(other)) => {
                let is_moved = how == "exchanged, and moved there";
                let [one, two] =
                    [address, other].map(|from| self.bytes[self.places(from)[0]..][..bytes].to_vec());
                for (to, new) in [(address, two), (other, one)] {
                    self.change_bytes(to, bytes, |all| {
                        all.copy_from_slice(&new);
                        if is_moved {
                            all[0x30..0x38].copy_from_slice(&to.to_le_bytes());
                            seal(all);
                        }
                    });
                }
            }
            _ => {}
        }
    }

    /// Returns blocks of all trees, and sectors of data: of each kind the first, the last, and some between
    /// them.
    pub fn whole_blocks(&self, samples: usize) -> Vec<WholeBlock> {
        let mut kinds: BTreeMap<(u64, u8), Vec<u64>> = BTreeMap::new();
        for block in &self.blocks {
            kinds.entry((block.tree, block.level)).or_default().push(block.address);
        }
        let mut found = Vec::new();
        for ((tree, level), addresses) in &kinds {
            let same_level = kinds.iter().filter(|((_, other), _)| other == level);
            let others: Vec<u64> =
                addresses.iter().chain(same_level.flat_map(|(_, all)| all)).copied().collect();
            for address in sample(addresses, samples) {
                found.push(WholeBlock {
                    structure: format!("whole block of tree {}, level {level}", *tree as i64),
                    address,
                    bytes: self.node_size,
                    other: others.iter().copied().find(|other| *other != address),
                });
            }
        }
        const DATA: u64 = 1;
        let is_data = |item: &&Item| {
            item.key.1 == 168 && self.block(item.leaf)[item.data.start + 16] as u64 & DATA != 0
        };
        let extents: Vec<(u64, u64)> =
            self.items.iter().filter(is_data).map(|item| (item.key.0, item.key.2)).collect();
        for (start, len) in sample(&extents, 4 * samples) {
            let other = extents.iter().map(|(other, _)| *other).find(|other| *other != start);
            let structure = String::from("sector of data");
            found.push(WholeBlock {
                structure,
                address: start + len - SECTOR,
                bytes: SECTOR as usize,
                other,
            });
        }
        found
    }

    /// Changes all copies of a block, or the superblock and its copy, and makes their checksums right again.
    pub fn change(&mut self, block: Option<u64>, change: impl Fn(&mut [u8])) {
        let (places, size) = match block {
            Some(address) => (self.places(address), self.node_size),
            None if self.bytes.len() > SECOND_SUPER + SUPER_BYTES => (vec![SUPER, SECOND_SUPER], SUPER_BYTES),
            None => (vec![SUPER], SUPER_BYTES),
        };
        for at in places {
            let own: Vec<u8> = self.bytes[at + 0x30..at + 0x38].to_vec();
            let block_bytes = &mut self.bytes[at..at + size];
            change(block_bytes);
            if block.is_none() && at == SECOND_SUPER {
                block_bytes[0x30..0x38].copy_from_slice(&own);
            }
            seal(block_bytes);
        }
    }

    /// Returns fields of all structures. Of each type of item in each tree, these are the fields of the first
    /// item, the last one, and some between them.
    pub fn fields(&self, samples: usize) -> Vec<Field> {
        let mut found: Vec<Field> = Vec::new();
        let mut add =
            |structure: &str, block: Option<u64>, start: usize, end: usize, parts: &'static [Part]| {
                for (name, at, len) in parts {
                    if start + at + len <= end {
                        let bytes = start + at..start + at + len;
                        found.push(Field { structure: structure.into(), name, block, bytes });
                    }
                }
            };
        add("superblock", None, 0, SUPER_BYTES, SUPER_FIELDS);
        let mut headers: BTreeMap<(u64, bool), Vec<Block>> = BTreeMap::new();
        for block in &self.blocks {
            headers.entry((block.tree, block.level > 0)).or_default().push(*block);
        }
        for ((tree, is_node), blocks) in headers {
            let what = if is_node { "node" } else { "leaf" };
            for block in sample(&blocks, samples) {
                let name = format!("{what} of tree {}", tree as i64);
                add(&name, Some(block.address), 0, self.node_size, HEADER_FIELDS);
                if is_node {
                    let count = number(self.block(block.address), 0x60, 4) as usize;
                    let start = HEADER + count / 2 * POINTER;
                    let name = format!("pointer of tree {}", tree as i64);
                    add(&name, Some(block.address), start, self.node_size, KEY_FIELDS);
                    add(&name, Some(block.address), start, self.node_size, POINTER_FIELDS);
                }
            }
        }
        let mut kinds: BTreeMap<(u64, u8), Vec<&Item>> = BTreeMap::new();
        for item in &self.items {
            let tree = if item.tree >= 256 && item.tree < 1 << 48 { 256 } else { item.tree };
            kinds.entry((tree, item.key.1)).or_default().push(item);
        }
        for ((tree, kind), items) in kinds {
            let (name, parts) = parts_of(kind).unwrap_or(("other item", &[]));
            let name = format!("{name} of tree {}", tree as i64);
            for item in sample(&items, samples) {
                add(&name, Some(item.leaf), item.entry, self.node_size, KEY_FIELDS);
                add(&name, Some(item.leaf), item.entry, self.node_size, ITEM_FIELDS);
                add(&name, Some(item.leaf), item.data.start, item.data.end, parts);
            }
        }
        found
    }
}

/// Returns some of many, among them the first and the last.
fn sample<T: Clone>(all: &[T], count: usize) -> Vec<T> {
    let last = all.len() - 1;
    let mut at: Vec<usize> = (0..count).map(|number| number * last / (count - 1).max(1)).collect();
    at.dedup();
    at.into_iter().map(|at| all[at].clone()).collect()
}

/// Ways to damage a field.
pub const DAMAGES: &[&str] = &["add 1", "bit", "zeroes", "ones"];

/// Ways to damage a block. A block that is moved names its new place, and has a right checksum.
pub const BLOCK_DAMAGES: &[&str] = &["one bit", "zeroes", "exchanged", "exchanged, and moved there"];

/// Damages bytes of a field. Returns whether something changed.
pub fn damage(bytes: &mut [u8], how: &str) -> bool {
    let before = bytes.to_vec();
    match how {
        "add 1" => {
            for byte in bytes.iter_mut() {
                *byte = byte.wrapping_add(1);
                if *byte != 0 {
                    break;
                }
            }
        }
        "bit" => bytes[bytes.len() / 2] ^= 0x10,
        "zeroes" => bytes.fill(0),
        _ => bytes.fill(0xFF),
    }
    bytes != before
}
