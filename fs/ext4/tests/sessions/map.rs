//! One file under random writes, truncates and range operations, compared with bytes in memory, e2fsck and
//! debugfs.

use crate::common;
use crate::common::{fsck, mkfs, mount};
use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Mode, and whether block maps refuse it.
const RANGES: &[(FallocateMode, bool)] = &[
    (FallocateMode::empty(), true),
    (FallocateMode::KEEP_SIZE, true),
    (FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE), false),
    (FallocateMode::ZERO_RANGE, true),
    (FallocateMode::ZERO_RANGE.union(FallocateMode::KEEP_SIZE), true),
    (FallocateMode::COLLAPSE_RANGE, true),
    (FallocateMode::INSERT_RANGE, true),
];
const LARGEST: usize = 3 << 20;

struct Work {
    vfs: Arc<Vfs>,
    file: InodeRef,
    model: Vec<u8>,
    rng: StdRng,
    extents: bool,
    block: usize,
}

impl Work {
    fn step(&mut self) {
        let cred = Cred::root();
        let at = self.rng.random_range(0..LARGEST / 2);
        let len: usize = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..100),
            1 => self.rng.random_range(1..200_000),
            _ => self.rng.random_range(1..9000),
        };
        let before = self.vfs.change(&self.file).unwrap();
        match self.rng.random_range(0..14) {
            0..=5 => {
                let flags = match self.rng.random_range(0..6) {
                    0 => WriteFlags::DIRECT,
                    1 => WriteFlags::CACHED_BY_CALLER,
                    _ => WriteFlags::empty(),
                };
                let at = if flags.is_empty() { at } else { at & !4095 };
                let len =
                    if flags == WriteFlags::CACHED_BY_CALLER { len.next_multiple_of(4096) } else { len };
                let data: Vec<u8> = (0..len).map(|_| self.rng.random_range(1..=255)).collect();
                assert_eq!(self.vfs.write(&cred, &self.file, at as u64, &data, flags).unwrap(), len);
                if self.model.len() < at + len {
                    self.model.resize(at + len, 0);
                }
                self.model[at..at + len].copy_from_slice(&data);
            }
            6 => {
                let set = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                self.vfs.set_attr(&cred, &self.file, &set).unwrap();
                self.model.resize(at, 0);
            }
            7 => {
                self.vfs.fsync(&self.file, at % 2 == 0).unwrap();
                assert_eq!(self.vfs.change(&self.file).unwrap(), before, "write-back is not a change");
                return;
            }
            _ => {
                if !self.range(at, len) {
                    return;
                }
            }
        }
        assert_ne!(self.vfs.change(&self.file).unwrap(), before, "every change shows");
    }

    fn range(&mut self, at: usize, len: usize) -> bool {
        let (mode, extents_only) = RANGES[self.rng.random_range(0..RANGES.len())];
        let shifts = mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE);
        let (at, len) =
            if shifts { (at / self.block * self.block, len.next_multiple_of(self.block)) } else { (at, len) };
        let collapses = mode.contains(FallocateMode::COLLAPSE_RANGE);
        let size = self.model.len();
        let fits =
            !shifts || (collapses && at + len < size) || (!collapses && at < size && size + len < LARGEST);
        let result = self.vfs.fallocate(&Cred::root(), &self.file, mode, at as u64, len as u64);
        if !fits && self.model.len() + len >= LARGEST && result.is_ok() {
            // Larger than the test allows, but correct.
            self.model.splice(at..at, std::iter::repeat_n(0, len));
            return true;
        }
        if !fits || (extents_only && !self.extents) {
            assert!(result.is_err(), "{mode:?} at {at} len {len} of {size}");
            return false;
        }
        result.unwrap_or_else(|error| panic!("{mode:?} at {at} len {len} of {size}: {error}"));
        if collapses {
            self.model.drain(at..at + len);
        } else if shifts {
            self.model.splice(at..at, std::iter::repeat_n(0, len));
        } else {
            if !mode.contains(FallocateMode::KEEP_SIZE) && size < at + len {
                self.model.resize(at + len, 0);
            }
            if mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE) {
                let end = (at + len).min(self.model.len());
                if at < end {
                    self.model[at..end].fill(0);
                }
            }
        }
        true
    }

    fn check(&self, what: &str) {
        assert_eq!(self.vfs.stat(&self.file).size, self.model.len() as u64, "{what}");
        let mut content = vec![1; self.model.len()];
        assert_eq!(self.vfs.read(&Cred::root(), &self.file, 0, &mut content).unwrap(), content.len());
        same(&content, &self.model, what);
    }
}

fn same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: size");
    if let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} is {} and should be {}", found[at], wanted[at]);
    }
}

fn dumped(image: &Path, name: &str) -> Vec<u8> {
    let out = tempfile::NamedTempFile::new().unwrap();
    let command = format!("dump {name} {}", out.path().display());
    assert!(Command::new("debugfs").args(["-R", &command]).arg(image).output().unwrap().status.success());
    std::fs::read(out.path()).unwrap()
}

fn run(kind: &str, args: &[&str], extents: bool, block: usize) {
    let seed = std::env::var("IVERS_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(11);
    let steps: u32 = std::env::var("IVERS_STEPS").ok().and_then(|v| v.parse().ok()).unwrap_or(150);
    println!("{kind}: IVERS_SEED={seed} IVERS_STEPS={steps}");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, args, 64 << 20);
    let vfs = mount(&image);
    let root = vfs.root().unwrap();
    let (file, _) = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap();
    drop(root);
    let mut work = Work { vfs, file, model: Vec::new(), rng: StdRng::seed_from_u64(seed), extents, block };
    for round in 0..4 {
        for step in 0..steps {
            work.step();
            if step % 16 == 0 {
                work.check(kind);
            }
        }
        work.check(kind);
        let Work { vfs, file, model, rng, .. } = work;
        drop(file);
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&image, &format!("{kind}, round {round}"));
        same(&dumped(&image, "/f"), &model, &format!("{kind}, debugfs"));
        let vfs = mount(&image);
        let root = vfs.root().unwrap();
        let file = vfs.lookup(&Cred::root(), &root, b"f").unwrap();
        work = Work { vfs, file, model, rng, extents, block };
        work.check(kind);
    }
}

#[test]
fn extents_of_4k() {
    run("4k", &["-t", "ext4", "-b", "4096"], true, 4096);
}

#[test]
fn extents_of_2k_without_checksums() {
    run("2k", &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum"], true, 2048);
}

#[test]
fn extents_of_1k() {
    run("1k", &["-t", "ext4", "-b", "1024"], true, 1024);
}

#[test]
fn extents_without_journal() {
    run("no journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"], true, 1024);
}

#[test]
fn block_maps_of_4k() {
    run("map 4k", &["-t", "ext3", "-b", "4096"], false, 4096);
}

#[test]
fn block_maps_of_1k() {
    run("map 1k", &["-t", "ext2", "-b", "1024"], false, 1024);
}

/// A file with every other block freed: a tree of three levels below the root is built, read, shifted and
/// removed.
#[test]
fn deep_extent_trees_are_read_and_freed() {
    const BLOCKS: u64 = 60_000;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-t", "ext4", "-b", "1024"], 128 << 20);
    let cred = Cred::root();
    let vfs = mount(&image);
    let root = vfs.root().unwrap();
    let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap();
    let fallocate = |mode, at: u64, len: u64| vfs.fallocate(&cred, &file, mode, at << 10, len << 10).unwrap();
    fallocate(FallocateMode::empty(), 0, BLOCKS);
    for block in (0..BLOCKS).step_by(2) {
        fallocate(FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, block, 1);
    }
    let marks: Vec<u64> = (1..BLOCKS).step_by(997).collect();
    for &block in &marks {
        vfs.write(&cred, &file, block << 10, &block.to_le_bytes(), WriteFlags::empty()).unwrap();
    }
    vfs.sync().unwrap();
    fallocate(FallocateMode::INSERT_RANGE, 101, 7);
    fallocate(FallocateMode::COLLAPSE_RANGE, 50, 4);
    let place = |block: u64| {
        if block < 50 {
            block
        } else if block < 101 {
            block - 4
        } else {
            block + 3
        }
    };
    let look = |vfs: &Vfs, file: &InodeRef| {
        for &block in &marks {
            let mut bytes = [0; 8];
            vfs.read(&Cred::root(), file, place(block) << 10, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), block);
        }
    };
    look(&vfs, &file);
    vfs.unmount().unwrap();
    fsck(&image, "deep");
    let tree = common::debugfs(&image, "ex -n /f");
    assert!(
        tree.lines()
            .any(|line| line.trim_start().starts_with("3/ 3") || line.trim_start().starts_with("2/ 3")),
        "three levels"
    );
    drop((root, file, vfs));
    let vfs = mount(&image);
    let root = vfs.root().unwrap();
    let file = vfs.lookup(&cred, &root, b"f").unwrap();
    look(&vfs, &file);
    vfs.set_attr(&cred, &file, &SetAttr { size: Some(400 << 10), ..SetAttr::default() }).unwrap();
    vfs.sync().unwrap();
    assert!(vfs.stat(&file).blocks_512 < 1000);
    vfs.unlink(&cred, &root, b"f", false).unwrap();
    drop((root, file));
    vfs.unmount().unwrap();
    fsck(&image, "deep, taken down");
}

fn number(text: &str) -> u64 {
    let digits: String = text.chars().take_while(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).unwrap()
}

/// Reading damaged maps returns an error or some file's bytes, nothing worse.
fn damage(args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, args, 16 << 20);
    let cred = Cred::root();
    let vfs = mount(&image);
    let root = vfs.root().unwrap();
    let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap();
    for nth in 0..500 {
        vfs.write(&cred, &file, nth * 8192, b"x", WriteFlags::empty()).unwrap();
    }
    drop((root, file));
    vfs.unmount().unwrap();
    drop(vfs);
    let place = common::debugfs(&image, "imap f");
    let block: usize =
        place.split("located at block ").nth(1).unwrap().split(',').next().unwrap().trim().parse().unwrap();
    let slot = block * 1024 + number(place.split("0x").nth(1).unwrap()) as usize;
    let good = std::fs::read(&image).unwrap();
    let mut nodes = Vec::new();
    nodes.push(slot + 40..slot + 100);
    for at in (0..good.len()).step_by(1024) {
        if good[at..at + 2] == [0x0A, 0xF3] {
            nodes.push(at..at + 1024);
        }
    }
    for pointer in 12..14 {
        let at = slot + 40 + pointer * 4;
        let block = u32::from_le_bytes(good[at..at + 4].try_into().unwrap()) as usize;
        if block > 0 && block < good.len() / 1024 {
            nodes.push(block * 1024..block * 1024 + 1024);
        }
    }
    let mut rng = StdRng::seed_from_u64(5);
    for round in 0..300 {
        let mut bad = good.clone();
        for _ in 0..rng.random_range(1..6) {
            let node = nodes[rng.random_range(0..nodes.len())].clone();
            let reach = if rng.random() { 24 } else { node.len() };
            let at = node.start + rng.random_range(0..reach.min(node.len()));
            bad[at] =
                if rng.random() { rng.random() } else { [0, 1, 0x7F, 0x80, 0xFF][rng.random_range(0..5)] };
        }
        std::fs::write(&image, &bad).unwrap();
        let vfs = mount(&image);
        let root = vfs.root().unwrap();
        if let Ok(file) = vfs.lookup(&cred, &root, b"f") {
            let mut buf = vec![0; 4 << 20];
            let _ = vfs.read(&Cred::root(), &file, 0, &mut buf);
            let _ = vfs.seek_hole(&file, 0);
            for _ in 0..8 {
                let at = rng.random_range(0..4 << 20) as u64;
                let (mode, _) = RANGES[rng.random_range(0..RANGES.len())];
                let _ = vfs.fallocate(&cred, &file, mode, at & !1023, 4096);
                let _ = vfs.write(&cred, &file, at, b"y", WriteFlags::empty());
            }
            let _ = vfs.fsync(&file, false);
            let size = if round % 2 == 0 { 0 } else { 1 << 20 };
            let _ = vfs.set_attr(&cred, &file, &SetAttr { size: Some(size), ..SetAttr::default() });
        }
        let _ = vfs.unlink(&cred, &root, b"f", false);
        drop(root);
        let _ = vfs.unmount();
    }
}

#[test]
fn damaged_extent_trees_are_errors() {
    damage(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"]);
}

#[test]
fn damaged_block_maps_are_errors() {
    damage(&["-t", "ext2", "-b", "1024"]);
}

/// A full filesystem refuses to reserve, loses no data, and accepts data again once space is free.
#[test]
fn a_full_filesystem_refuses_and_recovers() {
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024"], &["-t", "ext4"]] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        mkfs(&image, args, 12 << 20);
        let cred = Cred::root();
        let vfs = mount(&image);
        let root = vfs.root().unwrap();
        let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap();
        let (other, _) = vfs.create(&cred, &root, b"g", &CreateSpec::file(0o644), false).unwrap();
        for _ in 0..3 {
            let mut written = Vec::new();
            let mut at = 0_u64;
            let full = loop {
                match vfs.write(&cred, &file, at, &at.to_le_bytes(), WriteFlags::empty()) {
                    Ok(_) => written.push(at),
                    Err(error) => break error,
                }
                at += 8192;
                assert!(at < 1 << 32, "{args:?}: never full");
            };
            assert!(matches!(full, Error::Name(NameError::NoSpace)), "{args:?}: {full}");
            let result = vfs.fallocate(&cred, &other, FallocateMode::empty(), 0, 8 << 20);
            assert!(result.is_err(), "{args:?}: room that was promised is given away");
            vfs.sync().unwrap();
            for &at in written.iter().step_by(3) {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                vfs.fallocate(&cred, &file, mode, at + 1024, 1024).unwrap();
            }
            for at in written {
                let mut bytes = [0; 8];
                vfs.read(&Cred::root(), &file, at, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), at);
            }
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            vfs.set_attr(&cred, &file, &cut).unwrap();
            vfs.set_attr(&cred, &other, &cut).unwrap();
            vfs.sync().unwrap();
        }
        drop((root, file, other));
        vfs.unmount().unwrap();
        fsck(&image, &format!("{args:?}"));
    }
}

/// The number of fragments of a file, from the blocks that debugfs prints.
fn pieces(image: &Path, name: &str) -> usize {
    let blocks: Vec<u64> = common::debugfs(image, &format!("blocks {name}"))
        .split_whitespace()
        .filter_map(|b| b.parse().ok())
        .collect();
    1 + blocks.windows(2).filter(|pair| pair[1] != pair[0] + 1).count()
}

#[test]
fn files_that_grow_concurrently_stay_in_few_fragments() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in ["ext4", "ext3"] {
        mkfs(&image, &["-t", kind, "-b", "4096"], 64 << 20);
        let vfs = mount(&image);
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let free = vfs.stat_fs().unwrap().blocks_free;
        let names: Vec<String> = (0..8).map(|nth| format!("f{nth}")).collect();
        let files: Vec<InodeRef> = names
            .iter()
            .map(|name| vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap().0)
            .collect();
        let rounds = 200;
        for round in 0..rounds {
            for file in &files {
                vfs.write(&cred, file, 0, &[round as u8; 4096], WriteFlags::APPEND).unwrap();
                vfs.fsync(file, true).unwrap();
            }
        }
        // Blocks in reservation windows count as free.
        let taken = free - vfs.stat_fs().unwrap().blocks_free;
        assert!((8 * rounds..8 * rounds + 40).contains(&taken), "{kind}: {taken} blocks taken");
        drop((root, files));
        vfs.unmount().unwrap();
        fsck(&image, kind);
        for name in &names {
            let pieces = pieces(&image, name);
            assert!(pieces <= 12, "{kind}: {name} lies in {pieces} pieces");
        }
    }
}

#[test]
fn reservation_windows_are_released_when_space_runs_out() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-t", "ext4", "-b", "1024"], 8 << 20);
    let vfs = mount(&image);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let make =
        |name: &str| vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap().0;
    let growing = make("growing");
    for _ in 0..40 {
        vfs.write(&cred, &growing, 0, &[1; 16 << 10], WriteFlags::APPEND).unwrap();
        vfs.fsync(&growing, true).unwrap();
    }
    let other = make("other");
    let free = vfs.stat_fs().unwrap().blocks_free << 10;
    let mut written = 0;
    while vfs.write(&cred, &other, 0, &[2; 4096], WriteFlags::APPEND).is_ok() {
        written += 4096;
        vfs.fsync(&other, true).unwrap();
    }
    assert!(written + (256 << 10) > free, "{written} bytes written of {free} that were free");
    drop((growing, other, root));
    vfs.unmount().unwrap();
    fsck(&image, "full");
}
