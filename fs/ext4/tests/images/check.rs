//! The checker: clean images of many kinds give no finding, and one planted defect gives exactly its own.

use ivers_block::MemDevice;
use ivers_ext4::check::check;
use ivers_oracle::{Image as Ext4Image, each_defect_is_found};
use ivers_vfs::check::Memory;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    let found = check(Arc::new(MemDevice::from_bytes(image)), Memory::unlimited(), "image").unwrap();
    found.counts().keys().copied().collect()
}

/// A tree of a file of each kind that a host without privileges can make.
fn fill(image: &Ext4Image) {
    let requests = "mkdir /d\nmkdir /d/e\nwrite SOURCE /a\nwrite SOURCE /b\nwrite SOURCE /d/x\nln /a /hard\n\
                    symlink /fast b\nsymlink /slow LONG\nmknod pipe p\nea_set /a user.k value\n\
                    ea_set /d/x user.long LONG\nsif /hard links_count 2\n";
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, vec![7; 10_000]).unwrap();
    let requests =
        requests.replace("SOURCE", &source.display().to_string()).replace("LONG", &"long/".repeat(16));
    let script = dir.path().join("script");
    std::fs::write(&script, requests).unwrap();
    let done = Command::new("debugfs").arg("-w").arg("-f").arg(&script).arg(image.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    // Counts of links and directories that debugfs leaves.
    let _ = Command::new("e2fsck").arg("-fy").arg(image.path()).output().unwrap();
    image.check().unwrap();
}

#[test]
fn clean_images_have_no_findings() {
    let kinds: [(&str, &[&str]); 18] = [
        ("ext2", &[]),
        ("ext3", &[]),
        ("ext4", &[]),
        ("ext4", &["-b", "1024"]),
        ("ext4", &["-b", "2048", "-I", "128"]),
        ("ext4", &["-O", "^metadata_csum,uninit_bg"]),
        ("ext4", &["-O", "^metadata_csum,^uninit_bg"]),
        ("ext4", &["-O", "^64bit"]),
        ("ext4", &["-O", "inline_data"]),
        ("ext4", &["-O", "bigalloc"]),
        ("ext4", &["-O", "meta_bg,^resize_inode"]),
        ("ext4", &["-O", "^flex_bg"]),
        ("ext4", &["-O", "sparse_super2"]),
        ("ext4", &["-O", "^has_journal"]),
        ("ext4", &["-O", "orphan_file"]),
        ("ext4", &["-O", "ea_inode,large_dir"]),
        ("ext4", &["-O", "mmp", "-b", "1024"]),
        ("ext4", &["-O", "^extent,^64bit,quota", "-g", "1024", "-b", "1024"]),
    ];
    for (kind, options) in kinds {
        let image = Ext4Image::new(kind, 24 << 20, options).unwrap();
        let found = codes(&std::fs::read(image.path()).unwrap());
        assert!(found.is_empty(), "empty {kind} {options:?}: {found:?}");
        fill(&image);
        let found = codes(&std::fs::read(image.path()).unwrap());
        assert!(found.is_empty(), "{kind} {options:?}: {found:?}");
    }
}

/// An image without checksums, so that a defect has no second one.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
}

/// 1 KiB blocks.
const BLOCK: usize = 1024;

impl Image {
    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn get32(&self, at: usize) -> u32 {
        u32::from(self.get16(at)) | u32::from(self.get16(at + 2)) << 16
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// The offset of a field of the superblock.
    fn sb(&self, field: usize) -> usize {
        1024 + field
    }

    /// The offset of a field of the first group's descriptor.
    fn desc(&self, field: usize) -> usize {
        2 * BLOCK + field
    }

    /// The offset of an inode of the first group.
    fn inode(&self, ino: u32) -> usize {
        let size = usize::from(self.get16(self.sb(0x58)));
        self.get32(self.desc(8)) as usize * BLOCK + (ino as usize - 1) * size
    }

    /// The first block of an inode with one extent.
    fn first_block(&self, ino: u32) -> usize {
        self.get32(self.inode(ino) + 0x28 + 20) as usize
    }

    /// The offset of the entry of a name, and its inode.
    fn entry(&self, dir: u32, name: &str) -> (usize, u32) {
        let start = self.first_block(dir) * BLOCK;
        let mut at = start;
        while at < start + BLOCK {
            let len = usize::from(self.bytes[at + 6]);
            if self.get32(at) != 0 && &self.bytes[at + 8..at + 8 + len] == name.as_bytes() {
                return (at, self.get32(at));
            }
            at += usize::from(self.get16(at + 4));
        }
        panic!("no {name}")
    }

    fn ino(&self, name: &str) -> u32 {
        self.entry(2, name).1
    }
}

type Plant = fn(&mut Image);

/// The findings on blocks that lose their owner if a map is unreadable.
const LOST: [&str; 4] =
    ["block-lost", "free-blocks-count-wrong", "group-free-blocks-wrong", "inode-block-count-wrong"];

fn planted() -> Vec<(&'static str, Vec<&'static str>, Plant)> {
    let lost = |code: &'static str| [&[code][..], &LOST].concat();
    vec![
        ("reserved blocks", vec!["superblock-field-wrong"], |i| i.put32(i.sb(8), u32::MAX / 2)),
        ("extra size wanted", vec!["superblock-field-wrong"], |i| i.put16(i.sb(0x15E), 7)),
        ("geometry", vec!["superblock-invalid"], |i| i.put32(i.sb(0x28), 0)),
        ("free blocks of the filesystem", vec!["free-blocks-count-wrong"], |i| i.put32(i.sb(0xC), 5)),
        ("free inodes of the filesystem", vec!["free-inodes-count-wrong"], |i| i.put32(i.sb(0x10), 5)),
        ("free blocks of a group", vec!["group-free-blocks-wrong"], |i| i.put16(i.desc(0xC), 5)),
        ("free inodes of a group", vec!["group-free-inodes-wrong"], |i| i.put16(i.desc(0xE), 5)),
        ("directories of a group", vec!["group-directories-wrong"], |i| i.put16(i.desc(0x10), 5)),
        ("a block marked as used", vec!["block-lost"], |i| {
            let at = i.get32(i.desc(0)) as usize * BLOCK + 1023;
            assert_eq!(i.bytes[at], 0);
            i.bytes[at] = 1;
        }),
        ("a block marked as free", vec!["block-in-use-marked-free"], |i| {
            let at = i.get32(i.desc(0)) as usize * BLOCK;
            let block = i.first_block(i.ino("a"));
            i.bytes[at + (block - 1) / 8] &= !(1 << ((block - 1) % 8));
        }),
        ("an inode marked as used", vec!["inode-lost"], |i| {
            let at = i.get32(i.desc(4)) as usize * BLOCK + 30;
            i.bytes[at] |= 1;
        }),
        ("an inode marked as free", vec!["inode-in-use-marked-free"], |i| {
            let (at, ino) = (i.get32(i.desc(4)) as usize * BLOCK, i.ino("a") as usize - 1);
            i.bytes[at + ino / 8] &= !(1 << (ino % 8));
        }),
        ("padding", vec!["bitmap-padding-wrong"], |i| {
            let at = i.get32(i.desc(4)) as usize * BLOCK + 1023;
            i.bytes[at] = 0;
        }),
        ("link count", vec!["link-count-wrong"], |i| i.put16(i.inode(i.ino("a")) + 0x1A, 7)),
        ("mode", vec!["inode-mode-invalid"], |i| i.put16(i.inode(i.ino("a")), 0x7000)),
        ("time of deletion", vec!["inode-dtime-set"], |i| i.put32(i.inode(i.ino("a")) + 0x14, 77)),
        ("block count", vec!["inode-block-count-wrong"], |i| i.put32(i.inode(i.ino("a")) + 0x1C, 2)),
        ("size", vec!["file-size-wrong"], |i| i.put32(i.inode(i.ino("a")) + 4, 1)),
        ("size of a directory", vec!["directory-size-wrong"], |i| i.put32(i.inode(i.ino("d")) + 4, 1025)),
        ("fragment address", vec!["inode-field-not-zero"], |i| i.put32(i.inode(i.ino("a")) + 0x70, 9)),
        ("extra size", vec!["inode-extra-isize-invalid"], |i| i.put16(i.inode(i.ino("b")) + 0x80, 3)),
        ("index of a file", vec!["inode-index-flag-invalid"], |i| {
            let at = i.inode(i.ino("b")) + 0x20;
            i.put32(at, i.get32(at) | 0x1000);
        }),
        ("encryption", vec!["inode-flag-without-feature"], |i| {
            let at = i.inode(i.ino("b")) + 0x20;
            i.put32(at, i.get32(at) | 0x800);
        }),
        ("an immutable pipe", vec!["special-file-flags"], |i| i.put32(i.inode(i.ino("pipe")) + 0x20, 0x10)),
        ("size of a pipe", vec!["special-file-size"], |i| i.put32(i.inode(i.ino("pipe")) + 4, 1)),
        ("blocks of attributes", vec!["inode-field-not-zero"], |i| {
            let at = i.sb(0x5C);
            i.put32(at, i.get32(at) & !8);
        }),
        ("a short symbolic link", vec!["symlink-invalid"], |i| i.put32(i.inode(i.ino("fast")) + 4, 5)),
        ("a long symbolic link", vec!["symlink-invalid"], |i| i.put32(i.inode(i.ino("slow")) + 4, 79)),
        ("magic number of extents", lost("extent-header-invalid"), |i| {
            i.put16(i.inode(i.ino("b")) + 0x28, 1)
        }),
        ("depth of extents", lost("extent-depth-wrong"), |i| i.put16(i.inode(i.ino("b")) + 0x2E, 9)),
        ("capacity of extents", lost("extent-header-invalid"), |i| i.put16(i.inode(i.ino("b")) + 0x2C, 40)),
        ("an extent without length", lost("extent-length-invalid"), |i| {
            i.put16(i.inode(i.ino("b")) + 0x38, 0)
        }),
        ("an extent outside", lost("block-out-of-range"), |i| {
            i.put32(i.inode(i.ino("b")) + 0x3C, 0x00FF_FFFF);
        }),
        ("a shared block", [&["block-claimed-twice"][..], &LOST[..3]].concat(), |i| {
            let other = i.first_block(i.ino("a")) as u32;
            i.put32(i.inode(i.ino("b")) + 0x3C, other);
        }),
        ("a block of metadata", [&["block-in-metadata"][..], &LOST[..3]].concat(), |i| {
            let table = i.get32(i.desc(8));
            i.put32(i.inode(i.ino("b")) + 0x3C, table);
        }),
        ("file type", vec!["filetype-wrong"], |i| {
            let (at, _) = i.entry(2, "a");
            i.bytes[at + 7] = 2;
        }),
        ("a slash", vec!["name-invalid"], |i| {
            let (at, _) = i.entry(2, "a");
            i.bytes[at + 8] = b'/';
        }),
        ("a name twice", vec!["name-twice"], |i| {
            let (at, _) = i.entry(2, "b");
            i.bytes[at + 8] = b'a';
        }),
        ("an entry's length", vec!["directory-entry-invalid", "inode-unattached"], |i| {
            let (at, _) = i.entry(i.ino("d"), "x");
            i.put16(at + 4, 13);
        }),
        ("an unused inode", vec!["link-count-wrong", "name-of-unused-inode"], |i| {
            let (at, _) = i.entry(2, "hard");
            i.put32(at, 200);
        }),
        ("an inode out of range", vec!["entry-inode-out-of-range", "link-count-wrong"], |i| {
            let (at, _) = i.entry(2, "hard");
            i.put32(at, u32::MAX);
        }),
        (".. elsewhere", vec!["dotdot-wrong", "link-count-wrong"], |i| {
            let e = i.entry(i.ino("d"), "e").1;
            let (at, _) = i.entry(e, "..");
            i.put32(at, 2);
        }),
        (". elsewhere", vec!["directory-dots-wrong", "link-count-wrong"], |i| {
            let d = i.ino("d");
            let (at, _) = i.entry(d, ".");
            i.put32(at, 2);
        }),
        ("a second name of a directory", vec!["directory-linked-twice", "link-count-wrong"], |i| {
            let (d, (at, _)) = (i.ino("d"), i.entry(2, "hard"));
            i.put32(at, d);
            i.bytes[at + 7] = 2;
        }),
        ("a lost file", vec!["inode-unattached"], |i| {
            let (at, _) = i.entry(2, "pipe");
            i.put32(at, 0);
        }),
        ("a lost directory", vec!["directory-unconnected"], |i| {
            let (at, _) = i.entry(i.ino("d"), "e");
            i.put32(at, 0);
        }),
        ("the list of orphans", vec!["orphan-list-invalid"], |i| i.put32(i.sb(0xE8), 3)),
        ("a journal without its feature", vec!["journal-without-feature"], |i| i.put32(i.sb(0xE0), 8)),
        ("the map of the resize inode", vec!["resize-inode-invalid"], |i| {
            let map = i.get32(i.inode(7) + 0x28 + 13 * 4) as usize * BLOCK;
            let at = (map..map + BLOCK).step_by(4).find(|&at| i.get32(at) != 0).unwrap();
            i.put32(at, 9);
        }),
        ("a copy of the superblock", vec!["backup-superblock-wrong"], |i| {
            i.put16(8193 * BLOCK + 0x38, 0);
        }),
    ]
}

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    let options = ["-b", "1024", "-O", "^metadata_csum,^uninit_bg,^has_journal,^64bit,^flex_bg"];
    let image = Ext4Image::new("ext4", 24 << 20, &options).unwrap();
    fill(&image);
    let bytes = std::fs::read(image.path()).unwrap();
    assert!(codes(&bytes).is_empty());
    let all = planted();
    assert!(all.len() >= 40);
    each_defect_is_found(&Image { bytes }, all, |image| codes(&image.bytes));
}

#[test]
fn mutated_images_end_in_findings() {
    let image = Ext4Image::new("ext4", 8 << 20, &["-b", "1024"]).unwrap();
    fill(&image);
    let bytes = std::fs::read(image.path()).unwrap();
    let used: Vec<usize> = (0..bytes.len() / BLOCK)
        .filter(|&nth| bytes[nth * BLOCK..][..BLOCK].iter().any(|&b| b != 0))
        .collect();
    let mut state = 1u64;
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = used[(state >> 33) as usize % used.len()];
            damaged[block * BLOCK + (state >> 20) as usize % BLOCK] = (state >> 56) as u8;
        }
        let _ = check(Arc::new(MemDevice::from_bytes(&damaged)), Memory::unlimited(), "image");
    }
}
