//! The memory bound, compared with the bytes that are allocated: the result is the same on any machine.

mod common;

use common::mkfs;
use ivers_block::{Budget, FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Counts the bytes that are requested and not freed.
#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// Held by a test: the other one would count too.
static ALONE: Mutex<()> = Mutex::new(());

const FILES: u64 = 40_000;
const FILES_PER_DIRECTORY: u64 = 1000;

fn mount(path: &Path, read_only: bool, cache_bytes: u64) -> (Arc<Budget>, Arc<Vfs>) {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(path, mode).unwrap());
    let budget = Arc::new(Budget::new(cache_bytes));
    let options =
        OpenOptions::from(DriverOptions { read_only, budget: budget.clone(), ..DriverOptions::default() });
    let fs = Ext4::open(device, options).unwrap();
    let options = MountOptions {
        read_only,
        background: false,
        atime: AtimeMode::Never,
        budget: Some(budget.clone()),
        ..MountOptions::default()
    };
    (budget, Vfs::mount(fs, options).unwrap())
}

fn image(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("image");
    mkfs(&path, &["-t", "ext4", "-b", "4096", "-N", "60000"], 1 << 30);
    path
}

/// Creates the files, as a front end that remembers each. Calls `check` after each file.
fn create(vfs: &Arc<Vfs>, mut check: impl FnMut()) -> Vec<Ino> {
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    let mut made = Vec::new();
    for nth in 0..FILES / FILES_PER_DIRECTORY {
        let name = format!("d{nth}");
        let dir = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::directory(0o755), false).unwrap().0;
        for number in 0..FILES_PER_DIRECTORY {
            let name = format!("f{number}");
            let file = vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
            vfs.remember(&file, dir.ino);
            made.push(file.ino);
            drop(file);
            check();
        }
    }
    made
}

fn walk(vfs: &Arc<Vfs>, mut check: impl FnMut()) {
    let cred = Cred::root();
    let mut found = 0;
    for nth in 0..FILES / FILES_PER_DIRECTORY {
        let dir = vfs.resolve(&cred, format!("/d{nth}"), false).unwrap();
        let mut cursor = 0;
        loop {
            let listed = vfs.list(&cred, &dir, cursor, 25).unwrap();
            let Some(last) = listed.last() else { break };
            cursor = last.next;
            found += listed.len() as u64;
            check();
        }
    }
    assert_eq!(found, FILES);
}

fn remove(vfs: &Arc<Vfs>, made: &[Ino], mut check: impl FnMut()) {
    let cred = Cred::root();
    for (nth, ino) in (0..).zip(made) {
        let dir = vfs.resolve(&cred, format!("/d{}", nth / FILES_PER_DIRECTORY), false).unwrap();
        let name = format!("f{}", nth % FILES_PER_DIRECTORY);
        vfs.unlink(&cred, &dir, name.as_bytes(), false).unwrap();
        assert!(vfs.forget(*ino, 1));
        vfs.release_forgotten(*ino);
        check();
    }
}

#[test]
fn a_cached_inode_takes_what_the_budget_counts_for_it() {
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let mut made = {
        let (_, vfs) = mount(&path, false, 1 << 30);
        let made = create(&vfs, || {});
        vfs.unmount().unwrap();
        made
    };
    made.sort_unstable();
    let (budget, vfs) = mount(&path, true, 1 << 30);
    // Every second inode first: then the blocks of all are in memory, and the others add inodes alone.
    made.iter().step_by(2).for_each(|ino| drop(vfs.get(*ino).unwrap()));
    let (allocated, counted) = (ALLOCATOR.allocated() as u64, budget.used());
    let others: Vec<Ino> = made.iter().skip(1).step_by(2).copied().collect();
    let list = size_of_val(&others[..]) as u64;
    others.iter().for_each(|ino| drop(vfs.get(*ino).unwrap()));
    let each = (ALLOCATOR.allocated() as u64 - allocated - list) / others.len() as u64;
    let counted = (budget.used() - counted) / others.len() as u64;
    println!("an inode takes {each} bytes, and {counted} are counted");
    assert!(counted <= 600, "{counted} bytes are counted for an inode");
    // The rest of what is counted is what allocators add.
    assert!(each <= counted && each * 5 >= counted * 4, "{each} bytes are allocated, {counted} are counted");
}

#[test]
fn what_is_allocated_stays_within_the_bound() {
    const CACHE: u64 = 32 << 20;
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let before = ALLOCATOR.allocated() as u64;
    let (budget, vfs) = mount(&path, false, CACHE);
    // What is in memory whatever the size of the caches.
    let fixed = ALLOCATOR.allocated() as u64 - before - budget.used();
    let (mut peak, mut most_uncounted) = (0, 0);
    let mut check = || {
        let (allocated, counted) = (ALLOCATOR.allocated() as u64 - before - fixed, budget.used());
        peak = peak.max(allocated);
        most_uncounted = most_uncounted.max(allocated.saturating_sub(counted));
    };
    let made = create(&vfs, &mut check);
    walk(&vfs, &mut check);
    remove(&vfs, &made, &mut check);
    println!("at most {peak} bytes are allocated; at most {most_uncounted} are not counted");
    assert!(peak <= CACHE + CACHE / 8, "{peak} bytes are allocated");
    // A commit and a checkpoint join blocks for their writes, and a table that grows exists twice.
    assert!(most_uncounted <= CACHE / 8, "{most_uncounted} bytes are not counted");
    vfs.unmount().unwrap();
}
