//! Damaged images: each structure is damaged once and must give one error that names it; then many images
//! are damaged at random, and nothing may panic, hang or take much memory.

use crate::common::small::{Damager, change_sealed, make_small};
use crate::common::*;
use ivers_vfs::*;
use ivers_xfs::{OpenOptions, Xfs};
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 4096;

fn image(args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    make_small(&path, args);
    ivers_oracle::read_image(&path).unwrap()
}

/// Offsets of all blocks that start with one of these magics at this offset.
fn blocks_with(bytes: &[u8], offset: usize, magics: &[&[u8]]) -> Vec<usize> {
    let starts = |at: &usize| magics.iter().any(|magic| bytes[at + offset..].starts_with(magic));
    (0..bytes.len()).step_by(BLOCK).filter(starts).collect()
}

/// Damages the structure at an offset, and makes its checksum right again.
fn damaged(bytes: &[u8], at: usize, len: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change_sealed(&mut bytes[at..at + len], change);
    bytes
}

fn open(bytes: &[u8]) -> ivers_vfs::Result<Arc<Vfs>> {
    mount_device(memory(bytes))
}

/// Expects an error of opening or of walking the image.
fn fails(what: &str, bytes: &[u8], word: &str) {
    let walked = open(bytes).and_then(|vfs| our_tree(&vfs, true));
    let error = walked.err().unwrap_or_else(|| panic!("{what}: no error"));
    let text = error.to_string();
    assert!(matches!(error, Error::Corrupt { .. }), "{what}: {text}");
    assert!(text.contains(word), "{what}: {text}");
}

fn put(at: usize, value: &[u8]) -> impl FnOnce(&mut [u8]) + '_ {
    move |bytes| bytes[at..at + value.len()].copy_from_slice(value)
}

#[test]
fn each_damaged_structure_is_named() {
    if !have_xfsprogs() {
        return;
    }
    let good = image(&[]);
    our_tree(&open(&good).unwrap(), true).unwrap();
    let sb = |at: usize, value: &'static [u8]| damaged(&good, 0, 512, put(at, value));
    fails("block size", &sb(4, &[0, 0, 0x30, 0]), "sb_blocksize");
    fails("blocks", &sb(8, &[0, 0, 0, 0, 0, 0, 0xFF, 0xFF]), "sb_dblocks");
    fails("log", &sb(48, &[0, 0, 0, 0, 0xFF, 0, 0, 0]), "the log has");
    fails("root", &sb(56, &[0xFF; 8]), "sb_rootino");
    fails("group size", &sb(84, &[0, 0, 0, 1]), "sb_agb");
    fails("logarithm", &sb(124, &[9]), "sb_agblklog");
    fails("directory blocks", &sb(192, &[9]), "sb_dirblklog");
    let mut flipped = good.clone();
    flipped[16] ^= 1;
    fails("superblock", &flipped, "bad checksum");
    fails("cut", &good[..36 << 20], "it is cut off");

    // The headers of the first group: sector 2 is the AGI.
    fails("AGI", &damaged(&good, 1024, 512, put(8, &[0, 0, 0, 1])), "AGI");
    fails("levels", &damaged(&good, 1024, 512, put(24, &[0, 0, 0, 99])), "99 levels");
    fails("root of the inode B-tree", &damaged(&good, 1024, 512, put(20, &[0, 0xFF, 0, 0])), "inode B-tree");
    let inode_tree = blocks_with(&good, 0, &[b"IAB3"])[0];
    fails("owner", &damaged(&good, inode_tree, BLOCK, put(48, &[0, 0, 0, 9])), "names 9 as its owner");
    fails("records", &damaged(&good, inode_tree, BLOCK, put(6, &[0xFF; 2])), "65535 records");
    fails(
        "place",
        &damaged(&good, inode_tree, BLOCK, put(16, &[0, 0, 0, 0, 0, 0, 0, 9])),
        "sector 9 as its place",
    );

    let vfs = open(&good).unwrap();
    let ag_blocks = u32::from_be_bytes(good[84..88].try_into().unwrap()) as usize;
    let ag_bits = good[124];
    let inode_at = |path: &str| {
        let ino = vfs.resolve(&Cred::root(), path, false).unwrap().ino.0 as usize;
        // There are 8 inodes in a block.
        let (fs_block, index) = (ino / 8, ino % 8);
        let block = (fs_block >> ag_bits) * ag_blocks + (fs_block & ((1 << ag_bits) - 1));
        block * BLOCK + index * 512
    };
    let inode =
        |path: &str, at: usize, value: &'static [u8]| damaged(&good, inode_at(path), 512, put(at, value));
    fails("magic of an inode", &inode("/a", 0, &[0, 0]), "magic");
    fails("its number", &inode("/a", 152, &[0, 0, 0, 0, 0, 0, 0, 7]), "names 7 as its number");
    fails("its mode", &inode("/a", 2, &[0xF0, 0]), "di_mode");
    fails("its format", &inode("/a", 5, &[9]), "format 9");
    fails("its extents", &inode("/a", 76, &[0, 0, 1, 0]), "256 extents");
    fails("its extent", &inode("/a", 176, &[0xFF; 16]), "extent");
    fails("its fork", &inode("/a", 82, &[0xFF]), "di_forkoff");
    fails("its size", &inode("/a", 56, &[0xFF; 8]), "di_size");
    fails("short form", &inode("/few", 176, &[200]), "past the directory");
    fails("a name", &inode("/few", 176 + 6 + 3, b"/"), "invalid name");
    fails("short link", &inode("/short", 176, &[0]), "target");
    fails("block directory", &inode("/block", 56, &[0, 0, 0, 0, 0, 0, 0x20, 0]), "another size");
    let mut flipped = good.clone();
    flipped[inode_at("/a") + 40] ^= 1;
    fails("inode", &flipped, "bad checksum of the inode");

    for (name, magic) in [("block", b"XDB3"), ("data", b"XDD3")] {
        // The first block of a directory: it starts with the entry `.`, whose length stays right.
        let is_first = |at: &usize| good[at + 64 + 8..].starts_with(b"\x01.");
        let at = blocks_with(&good, 0, &[magic]).into_iter().find(is_first).unwrap();
        fails(name, &damaged(&good, at, BLOCK, put(40, &[0, 0, 0, 0, 0, 0, 0, 9])), "names 9 as its owner");
        fails(name, &damaged(&good, at, BLOCK, put(64 + 8, &[255])), "wrong length or tag");
        fails(name, &damaged(&good, at, BLOCK, put(64 + 8, &[0])), "invalid name");
        let mut flipped = good.clone();
        flipped[at + 99] ^= 1;
        fails(name, &flipped, "bad checksum");
    }
    let leaf = blocks_with(&good, 8, &[&[0x3d, 0xf1]])[0];
    fails("leaf", &damaged(&good, leaf, BLOCK, put(56, &[0xFF; 2])), "65535 entries");
    let node = blocks_with(&good, 8, &[&[0x3e, 0xbe]])[0];
    fails("node", &damaged(&good, node, BLOCK, put(58, &[0, 7])), "where a node should be");
    fails("empty node", &damaged(&good, node, BLOCK, put(56, &[0, 0])), "0 entries");
    // A node that leads to itself.
    let own = damaged(&good, node, BLOCK, |bytes| {
        let root = (1u64 << 35) / BLOCK as u64;
        (68..BLOCK).step_by(8).for_each(|at| bytes[at..at + 4].copy_from_slice(&(root as u32).to_be_bytes()));
    });
    fails("a node that leads to itself", &own, "level 1");
}

#[test]
fn features_are_refused_by_name() {
    if !have_xfsprogs() {
        return;
    }
    let good = image(&[]);
    let refused = |at: usize, value: &'static [u8], words: &[&str]| {
        let bytes = damaged(&good, 0, 512, put(at, value));
        let error = open(&bytes).err().unwrap_or_else(|| panic!("{words:?}: it opens"));
        assert!(matches!(error, Error::Incompatible(_)), "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}: {words:?}");
    };
    refused(216, &[0, 0, 1, 0x0B], &["metadir"]);
    refused(216, &[0, 0, 2, 0x0B], &["zoned"]);
    refused(216, &[0x40, 0, 0, 0x0B], &["unknown-0x40000000"]);
    refused(216, &[0, 0, 0, 0x1B], &["needsrepair", "xfs_repair"]);
    refused(48, &[0; 8], &["the log is on another device"]);
    refused(100, &[0xB4, 0xA3], &["version 3"]);
    refused(126, &[1], &["mkfs.xfs did not finish"]);
    let bytes = damaged(&good, 0, 512, put(212, &[0, 0, 1, 0x0F]));
    let fs = Xfs::open(memory(&bytes), OpenOptions::default()).unwrap();
    assert_eq!(fs.health().read_only.unwrap(), "this driver cannot write the feature unknown-0x100");
    for alignment in [0, 3] {
        let bytes = damaged(&good, 0, 512, put(180, &[0, 0, 0, alignment]));
        let fs = Xfs::open(memory(&bytes), OpenOptions::default()).unwrap();
        let why = fs.health().read_only.unwrap();
        assert_eq!(why, "this driver cannot write a filesystem with unaligned inodes", "{alignment}");
    }
    let fs = Xfs::open(memory(&good), OpenOptions::default()).unwrap();
    assert_eq!(fs.health().read_only, None);
}

#[test]
fn a_damaged_log_is_refused() {
    if !have_xfsprogs() {
        return;
    }
    let good = image(&[]);
    let number = |at: usize| u64::from_be_bytes(good[at..at + 8].try_into().unwrap());
    let agblklog = good[124];
    let start = number(48);
    let group_blocks = u32::from_be_bytes(good[84..88].try_into().unwrap());
    let log =
        ((start >> agblklog) * u64::from(group_blocks) + (start & ((1 << agblklog) - 1))) as usize * BLOCK;
    for (what, at, value) in
        [("magic", 0, &[7; 4][..]), ("length", 12, &[0xFF; 4]), ("LSN", 16, &[7; 8]), ("UUID", 304, &[7; 16])]
    {
        let mut bytes = good.clone();
        bytes[log + at..log + at + value.len()].copy_from_slice(value);
        let error = open(&bytes).err().unwrap_or_else(|| panic!("{what}: it opens"));
        assert!(
            matches!(error, Error::Corrupt { .. }) && error.to_string().contains("log"),
            "{what}: {error}"
        );
        // The image can still be read as it is.
        let common = DriverOptions { read_only: true, ..DriverOptions::default() };
        Xfs::open(memory(&bytes), OpenOptions { common, no_replay: true, ..OpenOptions::default() }).unwrap();
    }
    let mut bytes = good.clone();
    bytes[log..log + (13 << 20)].fill(0);
    assert!(open(&bytes).is_ok(), "a log of zeros is empty");
}

/// Damages structures at random, data of the log less often, and walks what is left.
fn mutate(bytes: &[u8], seed: u64, log: std::ops::Range<usize>) {
    let count: u32 = std::env::var("IVERS_MUTATED_IMAGES").map_or(25, |text| text.parse().unwrap());
    let mut damager = Damager::new(bytes, log, seed);
    for number in 0..count {
        // The last line that a hang leaves.
        eprintln!("seed {seed}: image {number}");
        if let Ok(vfs) = mount_device(damager.damage()) {
            walk_all(&vfs);
            let _ = vfs.fs().describe();
            let _ = vfs.unmount();
        }
    }
}

/// An image that the kernel filled, with a dirty log; or none.
fn dirty_image(dir: &Path) -> Option<Vec<u8>> {
    if !ivers_oracle::have_programs(&["xfs_io"]) || !ivers_oracle::kernel::can_loop_mount() {
        return None;
    }
    let path = dir.join("dirty");
    std::fs::write(&path, image(&["-m", "rmapbt=1", "-i", "nrext64=1"])).unwrap();
    let mounted = ivers_oracle::LoopMount::new(&path, "").unwrap();
    let root = mounted.path();
    for number in 0..200 {
        xattr::set(root.join("a"), format!("user.{number}"), &vec![7; number * 3]).unwrap();
        std::fs::write(root.join(format!("few/{number}")), vec![1; number * 50]).unwrap();
    }
    xattr::set(root.join("a"), "user.large", &[8; 20_000]).unwrap();
    (0..60).for_each(|number| std::fs::remove_file(root.join(format!("few/{}", number * 3))).unwrap());
    ivers_oracle::run("xfs_io", ["-x", "-c", "shutdown -f", root.to_str().unwrap()]).unwrap();
    mounted.unmount().unwrap();
    Some(ivers_oracle::read_image(&path).unwrap())
}

#[test]
fn random_damage_never_panics() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log_of = |bytes: &[u8]| {
        let number =
            |at: usize, len: usize| bytes[at..at + len].iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
        let (start, bits) = (number(48, 8), bytes[124]);
        let at = ((start >> bits) * number(84, 4) + (start & ((1 << bits) - 1))) * number(4, 4);
        at..at + number(96, 4) * number(4, 4)
    };
    let mut images = vec![image(&[]), image(&["-b", "size=1024"]), image(&["-m", "crc=0"])];
    images.extend(dirty_image(dir.path()));
    for (number, bytes) in images.iter().enumerate() {
        mutate(bytes, 1 + number as u64, log_of(bytes));
    }
    // The log alone, which the kernel left dirty.
    if let Some(bytes) = images.get(3) {
        mutate(bytes, 99, 0..0);
    }
}
