//! The checker: one planted defect gives exactly its own finding, and mutated images end in findings.

use crate::common::small::{Damager, change_sealed, make_small};
use crate::common::*;
use ivers_block::MemDevice;
use ivers_oracle::each_defect_is_found;
use ivers_vfs::Cred;
use ivers_vfs::check::Memory;
use ivers_xfs::check::check;
use ivers_xfs::layout::checksum::SelfDescription;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const INODE: usize = 512;
/// Where the literal area of an inode starts.
const LITERAL: usize = 176;

/// An image, and what its superblock says.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
}

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    let found = check(Arc::new(MemDevice::from_bytes(image)), Memory::unlimited(), "image").unwrap();
    found.counts().keys().copied().collect()
}

/// Makes a small image with attributes of each form.
fn make(args: &[&str]) -> Image {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    make_small(&path, args);
    // xfs_db crashes where it sets attributes of version 4.
    if !args.contains(&"crc=0") {
        add_attributes(&path);
    }
    Image { bytes: std::fs::read(&path).unwrap() }
}

fn add_attributes(path: &Path) {
    let vfs = mount(path);
    let ino = |name: &str| vfs.resolve(&Cred::root(), name, false).unwrap().ino;
    let mut commands = vec![format!("inode {}", ino("/a")), "attr_set -v 9 short".into()];
    commands.push(format!("inode {}", ino("/attrs")));
    commands.extend((0..20).map(|number| format!("attr_set -v 90 name-{number}")));
    commands.push("attr_remove name-7".into());
    commands.push(format!("inode {}", ino("/remote")));
    commands.push("attr_set -v 5000 value".into());
    let mut args = vec!["-x".to_owned()];
    commands.into_iter().for_each(|command| args.extend(["-c".into(), command]));
    args.push(path.to_str().unwrap().to_owned());
    ivers_oracle::run("xfs_db", &args).unwrap();
}

impl Image {
    fn get(&self, at: usize, len: usize) -> u64 {
        self.bytes[at..at + len].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Changes the structure of `len` bytes at `at`, and makes its checksum right again.
    fn change(&mut self, at: usize, len: usize, change: impl FnOnce(&mut [u8])) {
        change_sealed(&mut self.bytes[at..at + len], change);
    }

    fn put(&mut self, (at, len): (usize, usize), field: usize, value: &[u8]) {
        self.change(at, len, |bytes| bytes[field..field + value.len()].copy_from_slice(value));
    }

    fn add(&mut self, (at, len): (usize, usize), field: usize, width: usize, more: i64) {
        let value = self.get(at + field, width).wrapping_add_signed(more);
        self.put((at, len), field, &value.to_be_bytes()[8 - width..]);
    }

    /// A sector at the start of a group.
    fn head(&self, group: usize, sector: usize) -> (usize, usize) {
        (group * self.get(84, 4) as usize * BLOCK + sector * SECTOR, SECTOR)
    }

    /// A block of the first group that a field of a head refers to.
    fn root(&self, sector: usize, field: usize) -> (usize, usize) {
        (self.get(sector * SECTOR + field, 4) as usize * BLOCK, BLOCK)
    }

    fn ino(&self, path: &str) -> u64 {
        let vfs = mount_device(memory(&self.bytes)).unwrap();
        vfs.resolve(&Cred::root(), path, false).unwrap().ino.0
    }

    fn device_block(&self, block: u64) -> usize {
        let bits = self.bytes[124];
        ((block >> bits) * self.get(84, 4) + (block & ((1 << bits) - 1))) as usize
    }

    fn inode(&self, path: &str) -> (usize, usize) {
        let ino = self.ino(path);
        (self.device_block(ino / 8) * BLOCK + (ino % 8) as usize * INODE, INODE)
    }

    /// The first block of an extent of a fork: of the attribute fork if `attributes`.
    fn extent(&self, path: &str, attributes: bool, nth: usize) -> (usize, usize) {
        let (at, _) = self.inode(path);
        let fork = if attributes { usize::from(self.bytes[at + 82]) * 8 } else { 0 };
        let record = at + LITERAL + fork + nth * 16;
        let start = (self.get(record, 8) & 0x1FF) << 43 | self.get(record + 8, 8) >> 21;
        (self.device_block(start) * BLOCK, BLOCK)
    }

    /// The first block that starts with a magic at an offset.
    fn block_with(&self, offset: usize, magic: &[u8]) -> (usize, usize) {
        let starts = |at: &usize| self.bytes[at + offset..].starts_with(magic);
        ((0..self.bytes.len()).step_by(BLOCK).find(starts).unwrap(), BLOCK)
    }
}

type Plant = fn(&mut Image);

fn planted() -> Vec<(&'static str, Vec<&'static str>, Plant)> {
    vec![
        ("geometry", vec!["superblock-invalid"], |i| i.put((0, SECTOR), 124, &[9])),
        ("checksum of the superblock", vec!["superblock-invalid"], |i| i.bytes[110] ^= 1),
        ("inodes of the superblock", vec!["inodes-count-wrong"], |i| i.add((0, SECTOR), 128, 8, 64)),
        ("free inodes of the superblock", vec!["free-inodes-count-wrong"], |i| i.add((0, SECTOR), 136, 8, 1)),
        ("free blocks of the superblock", vec!["free-blocks-count-wrong"], |i| i.add((0, SECTOR), 144, 8, 1)),
        ("parent pointers that are missing", vec!["parent-pointer-wrong"], |i| {
            for group in 0..2 {
                i.add(i.head(group, 0), 216, 4, 0x80);
            }
        }),
        ("share of inodes", vec!["superblock-field-wrong"], |i| i.put((0, SECTOR), 127, &[101])),
        ("a mark of damage", vec!["repair-required"], |i| i.add((0, SECTOR), 216, 4, 0x10)),
        ("a copy of the superblock", vec!["superblock-copy-wrong"], |i| i.add(i.head(1, 0), 88, 4, 1)),
        ("checksum of a copy", vec!["checksum-wrong"], |i| {
            let (at, _) = i.head(1, 0);
            i.bytes[at + 110] ^= 1;
        }),
        ("version of the AGF", vec!["agf-field-wrong"], |i| i.put(i.head(0, 1), 4, &[0, 0, 0, 2])),
        ("free blocks of a group", vec!["free-blocks-count-wrong", "group-count-wrong"], |i| {
            i.add(i.head(0, 1), 52, 4, 1);
        }),
        ("longest free extent", vec!["group-count-wrong"], |i| i.add(i.head(1, 1), 56, 4, 1)),
        ("end of the free list", vec!["agf-field-wrong"], |i| i.add(i.head(1, 1), 44, 4, 1)),
        ("inodes of a group", vec!["group-count-wrong", "inodes-count-wrong"], |i| {
            i.add(i.head(0, 2), 16, 4, 64)
        }),
        ("newest inode", vec!["agi-field-wrong"], |i| i.put(i.head(1, 2), 32, &[0x7F, 0, 0, 0])),
        ("an unlinked inode", vec!["unlinked-list-invalid"], |i| {
            let ino = i.ino("/a");
            let list = 40 + (ino % 64) as usize * 4;
            i.put(i.head(0, 2), list, &(ino as u32).to_be_bytes());
        }),
        ("a free list", vec!["block-lost", "block-out-of-range"], |i| {
            let first = i.get(i.head(1, 1).0 + 40, 4) as usize;
            i.put(i.head(1, 3), 36 + first * 4, &[0x7F, 0, 0, 0]);
        }),
        ("LSN", vec!["lsn-ahead-of-log"], |i| {
            let (at, len) = i.head(1, 1);
            SelfDescription::of(&i.bytes[at..at + len]).unwrap().seal(&mut i.bytes[at..at + len], 7 << 32);
        }),
        ("a neighbour in a B-tree", vec!["btree-sibling-wrong"], |i| i.put(i.root(1, 16), 8, &[0, 0, 0, 9])),
        ("owner of a B-tree block", vec!["identity-wrong"], |i| i.put(i.root(1, 16), 48, &[0, 0, 0, 9])),
        ("place of a B-tree block", vec!["identity-wrong"], |i| i.put(i.root(1, 20), 23, &[9])),
        ("level of a B-tree block", vec!["btree-block-invalid"], |i| i.put(i.root(1, 20), 5, &[3])),
        ("free space by size", vec!["free-space-trees-differ"], |i| i.add(i.root(1, 20), 56, 4, 1)),
        ("free space by block", vec!["block-lost", "free-space-trees-differ", "group-count-wrong"], |i| {
            i.add(i.root(1, 16), 56 + 4, 4, -1);
        }),
        ("levels of a B-tree", vec!["btree-levels-wrong"], |i| i.put(i.head(0, 2), 24, &[0, 0, 0, 99])),
        ("a mask of free inodes", vec!["free-inodes-tree-wrong"], |i| {
            i.add(i.root(2, 328), 56 + 8, 8, -1 << 63)
        }),
        ("a count of free inodes", vec!["inode-chunk-invalid"], |i| i.add(i.root(2, 20), 56 + 7, 1, 1)),
        ("link count", vec!["link-count-wrong"], |i| i.add(i.inode("/a"), 16, 4, 5)),
        ("mode", vec!["inode-mode-invalid"], |i| i.put(i.inode("/a"), 2, &[0x71])),
        ("a free inode in use", vec!["inode-lost", "name-of-unused-inode"], |i| {
            i.put(i.inode("/a"), 2, &[0, 0])
        }),
        ("number of an inode", vec!["identity-wrong"], |i| i.add(i.inode("/a"), 152, 8, 1)),
        ("checksum of an inode", vec!["checksum-wrong"], |i| {
            let (at, _) = i.inode("/a");
            i.bytes[at + 92] ^= 1;
        }),
        ("blocks of an inode", vec!["inode-block-count-wrong"], |i| i.add(i.inode("/a"), 64, 8, 1)),
        ("extents of an inode", vec!["extent-count-wrong"], |i| i.put(i.inode("/a"), 76, &[0, 0, 1, 0])),
        ("flags", vec!["inode-field-wrong"], |i| i.put(i.inode("/a"), 90, &[0x10, 0])),
        ("more flags", vec!["inode-field-wrong"], |i| i.put(i.inode("/a"), 120, &[0x80])),
        ("a list without a head", vec!["inode-field-wrong"], |i| i.put(i.inode("/a"), 96, &[0, 0, 0, 9])),
        ("format", vec!["inode-format-wrong"], |i| i.put(i.inode("/a"), 5, &[1])),
        ("format of attributes", vec!["inode-format-wrong"], |i| i.put(i.inode("/a"), 83, &[7])),
        ("border of the forks", vec!["fork-offset-wrong"], |i| i.put(i.inode("/a"), 82, &[0x7F])),
        ("size of a device", vec!["inode-size-wrong"], |i| i.put(i.inode("/null"), 63, &[1])),
        ("an extent outside", vec!["block-out-of-range"], |i| i.put(i.inode("/b"), LITERAL + 8, &[0x7F])),
        ("an extent without blocks", vec!["extent-invalid"], |i| {
            i.put(i.inode("/b"), LITERAL + 13, &[0, 0, 0])
        }),
        ("a shared block", vec!["block-claimed-twice"], |i| {
            let (other, _) = i.inode("/c");
            let record = i.bytes[other + LITERAL..][..16].to_vec();
            i.put(i.inode("/b"), LITERAL, &record);
        }),
        ("an unwritten directory", vec!["extent-invalid"], |i| i.add(i.inode("/block"), LITERAL, 8, 1 << 63)),
        ("size of a directory", vec!["directory-size-wrong"], |i| i.put(i.inode("/leaf"), 62, &[0x10])),
        ("size of a short directory", vec!["directory-size-wrong"], |i| i.add(i.inode("/few"), 56, 8, 1)),
        ("type in a short directory", vec!["filetype-wrong"], |i| {
            i.put(i.inode("/few"), LITERAL + 6 + 3 + 8, &[1]);
        }),
        ("a slash", vec!["name-invalid"], |i| i.put(i.inode("/few"), LITERAL + 6 + 3, b"/")),
        ("an offset in a short directory", vec!["directory-entry-invalid"], |i| {
            i.put(i.inode("/few"), LITERAL + 6 + 1, &[0, 0x10]);
        }),
        ("a large offset in a short directory", vec!["directory-entry-invalid"], |i| {
            let (at, _) = i.inode("/few");
            let last = (at + LITERAL..at + INODE).rfind(|at| i.bytes[*at..].starts_with(b"sub")).unwrap();
            i.put((at, INODE), last - at - 2, &[0x8F, 0xF8]);
        }),
        ("a parent", vec!["dotdot-wrong", "link-count-wrong"], |i| {
            let other = i.ino("/block") as u32;
            i.put(i.inode("/few/sub"), LITERAL + 2, &other.to_be_bytes());
        }),
        ("a free inode's name", vec!["inode-unattached", "name-of-unused-inode"], |i| {
            let (at, _) = i.inode("/few");
            i.put((at, INODE), LITERAL + 6 + 3 + 8 + 1, &[0, 0, 0x13, 0x88]);
        }),
        ("a hash", vec!["directory-hashes-wrong"], |i| {
            let at = i.extent("/block", false, 0);
            let count = i.get(at.0 + BLOCK - 8, 4) as usize;
            i.add(at, BLOCK - 8 - count * 8, 4, -1);
        }),
        ("the best free range", vec!["directory-best-free-wrong"], |i| {
            i.add(i.extent("/block", false, 0), 50, 2, 8)
        }),
        ("a tag", vec!["directory-entry-invalid"], |i| i.add(i.extent("/block", false, 0), 64 + 14, 2, 8)),
        (". elsewhere", vec!["directory-dots-wrong"], |i| i.add(i.extent("/block", false, 0), 64, 8, 1)),
        ("removed entries", vec!["hash-block-invalid"], |i| {
            i.put(i.extent("/block", false, 0), BLOCK - 1, &[9])
        }),
        ("magic of a data block", vec!["directory-block-invalid"], |i| {
            let (at, _) = i.extent("/block", false, 0);
            i.bytes[at + 3] = b'X';
        }),
        ("a leaf's free space", vec!["directory-free-index-wrong"], |i| {
            i.add(i.block_with(8, &[0x3d, 0xf1]), BLOCK - 6, 2, 8);
        }),
        ("order of a leaf", vec!["directory-hashes-wrong", "hash-order-wrong"], |i| {
            i.put(i.block_with(8, &[0x3d, 0xf1]), 64, &[0xFF; 4]);
        }),
        ("a hash of a node", vec!["hash-key-wrong"], |i| i.add(i.block_with(8, &[0x3e, 0xbe]), 64, 4, 1)),
        ("a neighbour of a leaf", vec!["hash-sibling-wrong"], |i| {
            i.add(i.block_with(8, &[0x3d, 0xff]), 0, 4, 1)
        }),
        ("the free index", vec!["directory-free-index-wrong"], |i| i.add(i.block_with(0, b"XDF3"), 64, 2, 8)),
        ("blocks of the free index", vec!["directory-free-index-wrong"], |i| {
            i.add(i.block_with(0, b"XDF3"), 56, 4, 1);
        }),
        ("a link target", vec!["link-target-invalid"], |i| i.put(i.inode("/short"), LITERAL, &[0])),
        ("a short attribute", vec!["xattr-invalid"], |i| {
            let (at, _) = i.inode("/a");
            let fork = usize::from(i.bytes[at + 82]) * 8;
            i.put((at, INODE), LITERAL + fork + 2, &[9]);
        }),
        ("flags of an attribute", vec!["xattr-invalid"], |i| {
            let (at, _) = i.inode("/a");
            let fork = usize::from(i.bytes[at + 82]) * 8;
            i.put((at, INODE), LITERAL + fork + 4 + 2, &[0x46]);
        }),
        ("hash of an attribute", vec!["xattr-hash-wrong"], |i| i.add(i.extent("/attrs", true, 0), 80, 4, -1)),
        ("a neighbour of the only leaf", vec!["hash-sibling-wrong"], |i| {
            i.put(i.extent("/attrs", true, 0), 0, &[0, 0, 0, 9]);
        }),
        ("an interrupted change", vec!["xattr-incomplete"], |i| {
            let at = i.extent("/attrs", true, 0);
            i.put(at, 80 + 6, &[0x81]);
        }),
        ("start of free bytes", vec!["xattr-block-invalid"], |i| {
            i.put(i.extent("/attrs", true, 0), 68, &[0xFF; 2])
        }),
        ("bytes of attributes", vec!["xattr-block-invalid"], |i| {
            i.add(i.extent("/attrs", true, 0), 58, 2, 4)
        }),
        ("gaps between attributes that are not marked", vec!["xattr-block-invalid"], |i| {
            i.put(i.extent("/attrs", true, 0), 62, &[0])
        }),
        ("free bytes of attributes", vec!["xattr-block-invalid"], |i| {
            i.add(i.extent("/attrs", true, 0), 66, 2, 64)
        }),
        ("a value's length", vec!["xattr-value-invalid"], |i| i.add(i.block_with(0, b"XARM"), 8, 4, 1)),
        ("a value's place", vec!["xattr-value-invalid"], |i| {
            let at = i.extent("/remote", true, 0);
            let entry = i.get(at.0 + 84, 2) as usize;
            i.put(at, entry, &[0, 0, 0, 99]);
        }),
    ]
}

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    if !have_xfsprogs() {
        return;
    }
    let image = make(&[]);
    assert!(codes(&image.bytes).is_empty());
    let all = planted();
    assert!(all.len() >= 60, "{}", all.len());
    each_defect_is_found(&image, all, |image| codes(&image.bytes));
}

#[test]
fn defects_of_the_reverse_map_are_found() {
    if !have_xfsprogs() {
        return;
    }
    let image = make(&["-m", "rmapbt=1"]);
    assert!(codes(&image.bytes).is_empty());
    let all: Vec<(&str, Vec<&str>, Plant)> = vec![
        ("an owner", vec!["reverse-map-missing", "reverse-map-wrong"], |i| {
            i.add(i.root(1, 24), 56 + 24 + 8, 8, 3)
        }),
        ("a length", vec!["reverse-map-missing", "reverse-map-wrong"], |i| {
            i.add(i.root(1, 24), 56 + 4, 4, 1)
        }),
        ("blocks of the reverse map", vec!["group-count-wrong"], |i| i.add(i.head(0, 1), 80, 4, 1)),
        ("blocks of reference counts", vec!["group-count-wrong"], |i| i.add(i.head(0, 1), 84, 4, 1)),
        ("a reference count", vec!["reference-count-wrong"], |i| {
            let record = [0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 3];
            i.change(i.root(1, 88).0, BLOCK, |bytes| {
                bytes[56..68].copy_from_slice(&record);
                bytes[7] = 1;
            });
        }),
    ];
    each_defect_is_found(&image, all, |image| codes(&image.bytes));
}

/// Images that are mutated at random. `IVERS_MUTATIONS` sets another number.
const MUTATIONS: u32 = 500;

#[test]
fn mutated_images_end_in_findings() {
    if !have_xfsprogs() {
        return;
    }
    let rounds = std::env::var("IVERS_MUTATIONS").map_or(MUTATIONS, |text| text.parse().unwrap());
    for (seed, args) in [(1, &["-m", "rmapbt=1"][..]), (2, &["-b", "size=1024"]), (3, &["-m", "crc=0"])] {
        let image = make(args);
        let mut damager = Damager::new(&image.bytes, 0..0, seed);
        for _ in 0..rounds / 3 {
            let device = damager.damage();
            let _ = check(device, Memory::unlimited(), "image");
        }
    }
}
