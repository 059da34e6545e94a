//! The positions of the structures of a valid btrfs image. The images are our own, so nothing is validated.

use crate::place::{Place, le32};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The position of the superblock.
pub(super) const SUPER: usize = 64 << 10;
pub(super) const SUPER_BYTES: usize = 4096;

/// Sizes of the header of a tree block, and of an item, a pointer and a key in it.
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const POINTER_BYTES: usize = 33;
const KEY_BYTES: usize = 17;

const FILE_EXTENT: u8 = 108;
const CHECKSUMS: u8 = 128;
const ROOT_ITEM: u8 = 132;
const CHUNK_ITEM: u8 = 228;

/// A kind of structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The superblock.
    Superblock,
    /// The system chunk array in the superblock.
    ChunkArray,
    /// The header of a block of a tree.
    Header,
    /// The pointers of an inner block.
    Pointers,
    /// The keys, offsets and sizes of the items in a leaf.
    ItemTable,
    /// An inode item.
    Inode,
    /// A name of an inode, or an entry of a directory.
    Name,
    /// Extended attributes.
    Attribute,
    /// An extent of a file.
    FileExtent,
    /// Checksums of data.
    Checksums,
    /// The root item of a tree, or a reference to or from a subvolume.
    Root,
    /// An extent item, or references to an extent.
    Extent,
    /// A block group.
    Group,
    /// Free space.
    FreeSpace,
    /// A chunk, or an extent of a device.
    Chunk,
    /// The compressed bytes of an extent outside the trees.
    Compressed,
    /// The header, pointers or item table of a block of a log tree.
    LogBlock,
    /// An item of a log tree.
    LogItem,
}

impl Class {
    /// The classes of log trees.
    pub const OF_LOGS: &[Self] = &[Class::LogBlock, Class::LogItem];

    /// Every other class.
    pub const ALL: &[Self] = &[
        Class::Superblock,
        Class::ChunkArray,
        Class::Header,
        Class::Pointers,
        Class::ItemTable,
        Class::Inode,
        Class::Name,
        Class::Attribute,
        Class::FileExtent,
        Class::Checksums,
        Class::Root,
        Class::Extent,
        Class::Group,
        Class::FreeSpace,
        Class::Chunk,
        Class::Compressed,
    ];

    /// Returns the class of an item's data, by the type in its key.
    fn of_item(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Class::Inode,
            12 | 13 | 72 | 84 | 96 => Class::Name,
            24 => Class::Attribute,
            FILE_EXTENT => Class::FileExtent,
            CHECKSUMS => Class::Checksums,
            ROOT_ITEM | 144 | 156 => Class::Root,
            168..=184 => Class::Extent,
            192 => Class::Group,
            198..=200 => Class::FreeSpace,
            204..=CHUNK_ITEM => Class::Chunk,
            _ => return None,
        })
    }
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// The bytes that a checksum of data covers, and the bytes of the checksum.
pub(super) const SECTOR_BYTES: usize = 4096;
const SUM_BYTES: usize = 4;

/// Where the checksum of a sector is: its position, and the position of its leaf.
pub(super) type Sums = HashMap<u64, (u64, u64)>;

struct Finder<'a> {
    image: &'a [u8],
    node_size: usize,
    /// The address, length and position on the device of each chunk.
    chunks: Vec<(u64, u64, usize)>,
    seen: HashSet<u64>,
    /// The tree is a log tree.
    in_log: bool,
    found: HashMap<Class, Vec<Place>>,
    /// By the position of the sector.
    sums: Sums,
    /// The address and length of each compressed extent outside the trees.
    compressed: BTreeSet<(u64, usize)>,
}

/// Returns the structures of an image with one device and one copy of everything, by class, and the checksums
/// of its data.
pub(super) fn places(image: &[u8]) -> (HashMap<Class, Vec<Place>>, Sums) {
    let superblock = &image[SUPER..SUPER + SUPER_BYTES];
    let node_size = le32(superblock, 0x94) as usize;
    let (chunks, seen) = (Vec::new(), HashSet::new());
    let mut finder = Finder {
        image,
        node_size,
        chunks,
        seen,
        in_log: false,
        found: HashMap::new(),
        sums: Sums::new(),
        compressed: BTreeSet::new(),
    };
    finder.add(Class::Superblock, SUPER, 0x32b, SUPER);
    let (array, len) = (SUPER + 0x32b, le32(superblock, 0xa0) as usize);
    finder.add(Class::ChunkArray, array, len, SUPER);
    let mut at = array;
    while at < array + len {
        let stripes = finder.add_chunk(le64(image, at + 9), at + KEY_BYTES);
        at += KEY_BYTES + 48 + stripes * 32;
    }
    finder.tree(le64(superblock, 0x58));
    finder.tree(le64(superblock, 0x50));
    let log = le64(superblock, 0x60);
    if log != 0 {
        finder.in_log = true;
        finder.tree(log);
    }
    for (address, len) in std::mem::take(&mut finder.compressed) {
        let at = finder.position(address);
        // Data of a log tree has its checksums there.
        let Some(&(_, leaf)) = finder.sums.get(&(at as u64)) else { continue };
        let place = Place { at: at as u64, len, owner: 0, slot: leaf };
        finder.found.entry(Class::Compressed).or_default().push(place);
    }
    (finder.found, finder.sums)
}

impl Finder<'_> {
    fn add(&mut self, class: Class, at: usize, len: usize, block: usize) {
        let class = match class {
            other if !self.in_log => other,
            Class::Header | Class::Pointers | Class::ItemTable => Class::LogBlock,
            _ => Class::LogItem,
        };
        if len > 0 {
            let place = Place { at: at as u64, len, owner: 0, slot: block as u64 };
            self.found.entry(class).or_default().push(place);
        }
    }

    /// Adds a chunk from its item. Returns the number of its stripes.
    fn add_chunk(&mut self, start: u64, item: usize) -> usize {
        let (len, stripes) = (le64(self.image, item), self.image[item + 44]);
        self.chunks.push((start, len, le64(self.image, item + 48 + 8) as usize));
        stripes.into()
    }

    /// Returns where on the device an address is.
    fn position(&self, address: u64) -> usize {
        let is_in = |(start, len, _): &&(u64, u64, usize)| (*start..start + len).contains(&address);
        let (start, _, place) = *self.chunks.iter().find(is_in).expect("an address is in a chunk");
        place + (address - start) as usize
    }

    /// Adds the block at an address and all blocks below it.
    fn tree(&mut self, address: u64) {
        if !self.seen.insert(address) {
            return;
        }
        let block = self.position(address);
        let image = self.image;
        let bytes = &image[block..block + self.node_size];
        let (count, level) = (le32(bytes, 0x60) as usize, bytes[0x64]);
        self.add(Class::Header, block, HEADER_BYTES, block);
        if level > 0 {
            self.add(Class::Pointers, block + HEADER_BYTES, count * POINTER_BYTES, block);
            for index in 0..count {
                self.tree(le64(bytes, HEADER_BYTES + index * POINTER_BYTES + KEY_BYTES));
            }
            return;
        }
        self.add(Class::ItemTable, block + HEADER_BYTES, count * ITEM_BYTES, block);
        for index in 0..count {
            let item = HEADER_BYTES + index * ITEM_BYTES;
            let at = HEADER_BYTES + le32(bytes, item + KEY_BYTES) as usize;
            let len = le32(bytes, item + KEY_BYTES + 4) as usize;
            let kind = bytes[item + 8];
            if let Some(class) = Class::of_item(kind) {
                self.add(class, block + at, len, block);
            }
            match kind {
                CHUNK_ITEM => {
                    self.add_chunk(le64(bytes, item + 9), block + at);
                }
                ROOT_ITEM => self.tree(le64(bytes, at + 176)),
                CHECKSUMS => {
                    let first = self.position(le64(bytes, item + 9));
                    for number in 0..len / SUM_BYTES {
                        let sum = (block + at + number * SUM_BYTES) as u64;
                        self.sums.insert((first + number * SECTOR_BYTES) as u64, (sum, block as u64));
                    }
                }
                // Neither inline nor uncompressed.
                FILE_EXTENT if bytes[at + 16] != 0 && bytes[at + 20] != 0 => {
                    let (address, on_disk) = (le64(bytes, at + 21), le64(bytes, at + 29));
                    self.compressed.insert((address, on_disk as usize));
                }
                _ => {}
            }
        }
    }
}
