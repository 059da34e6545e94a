//! A directory with many names: measured in blocks and memory, so that the result is the same on any machine.
//! `IVERS_NAMES` sets their number; `cargo xtask soak` takes a million.

mod common;

use common::recorder::mount;
use common::{debugfs, fsck, mkfs};
use ivers_vfs::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

const CACHE: u64 = 64 << 20;
const BLOCK: u64 = 4096;

fn name(number: u32) -> String {
    format!("a name of some length {number}")
}

fn create(vfs: &Arc<Vfs>, dir: &InodeRef, number: u32) {
    let made = vfs.create(&Cred::root(), dir, name(number).as_bytes(), &CreateSpec::file(0o600), false);
    made.unwrap_or_else(|error| panic!("name {number}: {error}"));
}

/// Mounts with an empty cache, runs `work` on `/d`, unmounts. Returns the blocks that it read and the blocks
/// by which the directory grew.
fn cold(path: &Path, work: impl FnOnce(&Arc<Vfs>, &InodeRef)) -> (BTreeSet<u64>, u64) {
    let (device, vfs) = mount(path, CACHE);
    let dir = vfs.resolve(&Cred::root(), "/d", false).unwrap();
    let size = dir.size();
    device.reads.lock().unwrap().clear();
    work(&vfs, &dir);
    let reads = std::mem::take(&mut *device.reads.lock().unwrap());
    let grown = (dir.size() - size) / BLOCK;
    drop(dir);
    vfs.unmount().unwrap();
    (reads.into_iter().flatten().collect(), grown)
}

/// The blocks of the directory, as debugfs prints them.
fn directory_blocks(path: &Path) -> BTreeSet<u64> {
    debugfs(path, "blocks /d").split_whitespace().filter_map(|block| block.parse().ok()).collect()
}

/// The maximum of directory blocks that one of several creates touched: those read, and those added.
fn touched_by_creates(path: &Path, first: u32) -> u64 {
    let one = |number| {
        let (reads, grown) = cold(path, |vfs, dir| create(vfs, dir, number));
        reads.intersection(&directory_blocks(path)).count() as u64 + grown
    };
    (first..first + 20).map(one).max().unwrap()
}

/// Peak memory of this process since the last call, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Resets the peak (proc(5), clear_refs).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    kib << 10
}

#[test]
fn many_names_cost_as_much_as_a_thousand() {
    let names = ivers_crash::env("IVERS_NAMES").map_or(200_000, |names| names as u32);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(
        &path,
        &["-t", "ext4", "-b", "4096", "-N", &(names + 100_000).to_string(), "-E", "lazy_itable_init=1"],
        3 << 30,
    );
    let grow = |from: u32, to: u32| {
        let (_, vfs) = mount(&path, CACHE);
        if from == 0 {
            let root = vfs.root().unwrap();
            vfs.create(&Cred::root(), &root, b"d", &CreateSpec::directory(0o755), false).unwrap();
        }
        let dir = vfs.resolve(&Cred::root(), "/d", false).unwrap();
        (from..to).for_each(|number| create(&vfs, &dir, number));
        drop(dir);
        vfs.unmount().unwrap();
    };
    grow(0, 1000);
    let small = touched_by_creates(&path, 1000);
    grow(1020, names);
    let large = touched_by_creates(&path, names);
    assert!(
        large <= small + 3,
        "a create touches {small} blocks among a thousand names, {large} among {names}"
    );

    let blocks = directory_blocks(&path);
    for number in (0..names).step_by(names as usize / 20) {
        let (reads, _) = cold(&path, |vfs, dir| {
            vfs.lookup(&Cred::root(), dir, name(number).as_bytes()).unwrap();
        });
        let read = reads.intersection(&blocks).count();
        assert!((1..=4).contains(&read), "a lookup of name {number} reads {read} blocks of the directory");
    }

    let (_, vfs) = mount(&path, CACHE);
    let dir = vfs.resolve(&Cred::root(), "/d", false).unwrap();
    peak_memory();
    let mut seen = 0;
    vfs.readdir(&Cred::root(), &dir, 0, &mut |entry: &DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            let inode = vfs.lookup(&Cred::root(), &dir, entry.name).unwrap();
            assert_eq!(vfs.stat(&inode).perm, 0o600);
            seen += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, names + 20);
    let peak = peak_memory();
    assert!(peak <= CACHE + (64 << 20), "{} MiB for a walk with a cache of {} MiB", peak >> 20, CACHE >> 20);
    println!("creates touch {small} and {large} blocks; the walk's peak is {} MiB", peak >> 20);
    drop(dir);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "many names");
}

#[test]
fn the_bitmaps_of_many_groups_stay_within_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    // 4096 groups of 1 MiB: 16 MiB of block bitmaps.
    mkfs(&path, &["-t", "ext4", "-b", "4096", "-g", "256", "-N", "65536", "-O", "^resize_inode"], 4 << 30);
    let cache = 8 << 20;
    let (_, vfs) = mount(&path, cache);
    let root = vfs.root().unwrap();
    let mut most = 0;
    for number in 0..4000 {
        let spec = CreateSpec::directory(0o755);
        let (dir, _) = vfs.create(&Cred::root(), &root, name(number).as_bytes(), &spec, false).unwrap();
        let (file, _) = vfs.create(&Cred::root(), &dir, b"f", &CreateSpec::file(0o600), false).unwrap();
        vfs.write(&Cred::root(), &file, 0, &[1; 5000], WriteFlags::empty()).unwrap();
        if number % 100 == 99 {
            vfs.sync().unwrap();
            most = most.max(vfs.memory_used());
        }
    }
    assert!(most < cache + (4 << 20), "{most} bytes in memory with a bound of {cache}");
    drop(root);
    vfs.unmount().unwrap();
    fsck(&path, "many groups");
}
