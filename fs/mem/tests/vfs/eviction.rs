//! Memory stays within its budget. Eviction loses no data, and change attributes never decrease.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::sync::Arc;

fn mount(cache_bytes: u64) -> Arc<Vfs> {
    Vfs::mount(Arc::new(Mem::default()), MountOptions { cache_bytes, ..Default::default() }).unwrap()
}

#[test]
fn a_small_budget_holds_and_no_change_attribute_decreases() {
    let limit = 2 << 20;
    let vfs = mount(limit);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let mut shown = Vec::new();
    for nth in 0..5000u32 {
        let name = format!("file{nth}");
        let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
        vfs.write(&cred, &file, 0, &nth.to_le_bytes().repeat(300), WriteFlags::empty()).unwrap();
        let before = vfs.change(&file).unwrap();
        vfs.write(&cred, &file, 1200, b"end", WriteFlags::empty()).unwrap();
        let after = vfs.change(&file).unwrap();
        assert!(after > before);
        shown.push((file.ino, after));
        assert!(vfs.memory_used() < limit + (256 << 10), "{} bytes used", vfs.memory_used());
    }
    assert!(vfs.cached_inodes() < 2500, "{} inodes", vfs.cached_inodes());
    for (nth, (ino, value)) in shown.iter().enumerate() {
        let name = format!("file{nth}");
        let file = vfs.lookup(&cred, &root, name.as_bytes()).unwrap();
        assert_eq!(file.ino, *ino);
        assert!(vfs.change(&file).unwrap() >= *value, "the attribute of {name} went back");
        let mut buf = [0; 1300];
        assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut buf).unwrap(), 1203);
        assert_eq!(&buf[..1200], (nth as u32).to_le_bytes().repeat(300));
        assert_eq!(&buf[1200..1203], b"end");
        assert!(vfs.memory_used() < limit + (256 << 10));
    }
}

#[test]
fn a_file_larger_than_the_cache_stays_within_the_budget() {
    let limit = 4 << 20;
    let vfs = mount(limit);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let file = vfs.create(&cred, &root, b"big", &CreateSpec::file(0o644), false).unwrap().0;
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    for nth in 0..32u64 {
        vfs.write(&cred, &file, nth << 20, &piece, WriteFlags::empty()).unwrap();
        assert!(vfs.dirty_bytes() <= limit / 2, "{} dirty", vfs.dirty_bytes());
        assert!(vfs.memory_used() <= limit + (2 << 20), "{} used", vfs.memory_used());
    }
    let mut buf = vec![0; 1 << 20];
    for nth in 0..32u64 {
        assert_eq!(vfs.read(&Cred::root(), &file, nth << 20, &mut buf).unwrap(), buf.len());
        assert_eq!(buf, piece);
        assert!(vfs.memory_used() <= limit + (2 << 20), "{} used", vfs.memory_used());
    }
    vfs.unlink(&cred, &root, b"big", false).unwrap();
    drop(file);
    // The write-back thread may hold the last reference to the file.
    let begun = std::time::Instant::now();
    while vfs.dirty_bytes() > 0 {
        assert!(begun.elapsed().as_secs() < 10, "{} bytes of a deleted file stay dirty", vfs.dirty_bytes());
        std::thread::yield_now();
    }
}

#[test]
fn unmounting_releases_all_memory() {
    let budget = Arc::new(ivers_block::Budget::new(64 << 20));
    let options = MountOptions { budget: Some(budget.clone()), ..Default::default() };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    for nth in 0..100 {
        let name = format!("f{nth}");
        let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
        vfs.write(&cred, &file, 0, &[1; 10000], WriteFlags::empty()).unwrap();
    }
    vfs.unmount().unwrap();
    drop(root);
    drop(vfs);
    assert_eq!(budget.used(), 0);
}

/// Creates and drops files until `inode` has left memory.
fn crowd_out(vfs: &Arc<Vfs>, dir: &InodeRef, ino: Ino) {
    for nth in 0..20_000 {
        let name = format!("other{ino}-{nth}");
        vfs.create(&Cred::root(), dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        if !vfs.is_in_memory(ino) {
            return;
        }
    }
    panic!("inode {ino} stays in memory");
}

#[test]
fn a_remembered_inode_leaves_memory_and_comes_back_unchanged() {
    let vfs = mount(1 << 20);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let make = |name: &[u8]| vfs.create(&cred, &root, name, &CreateSpec::file(0o644), false).unwrap().0;
    let (known, unknown) = (make(b"known"), make(b"unknown"));
    let (ino, other) = (known.ino, unknown.ino);
    let values = [vfs.change(&known), vfs.change(&unknown)];
    assert!(vfs.remember(&known, root.ino));
    drop((known, unknown));
    crowd_out(&vfs, &root, ino);
    crowd_out(&vfs, &root, other);
    // The format stores no counter: only the remembered inode keeps its value.
    let known = vfs.recall(ino).unwrap();
    assert_eq!(vfs.change(&known), values[0], "nothing changed");
    assert!(vfs.change(&vfs.get(other).unwrap()) > values[1]);
    assert_eq!(vfs.seen_in(ino), Some(root.ino));
    // A change still bumps it.
    vfs.write(&cred, &known, 0, b"new", WriteFlags::empty()).unwrap();
    assert!(vfs.change(&known) > values[0]);
    assert!(vfs.forget(ino, 1));
    vfs.release_forgotten(ino);
    assert!(vfs.recall(ino).is_err(), "a forgotten number is stale");
}

#[test]
fn an_orphan_lives_until_the_front_end_forgets_it() {
    let vfs = mount(64 << 20);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let file = vfs.create(&cred, &root, b"file", &CreateSpec::file(0o644), false).unwrap().0;
    let ino = file.ino;
    for _ in 0..3 {
        vfs.remember(&file, root.ino);
    }
    drop(file);
    vfs.unlink(&cred, &root, b"file", false).unwrap();
    assert!(!vfs.forget(ino, 2));
    assert_eq!(vfs.recall(ino).unwrap().attr().nlink, 0);
    assert!(vfs.forget(ino, 1));
    vfs.release_forgotten(ino);
    assert!(vfs.get(ino).is_err(), "deleted");
    assert_eq!(vfs.remembered_inodes(), 0);
}

#[test]
fn remembered_inodes_count_in_the_budget_and_leave_with_the_front_end() {
    let vfs = mount(64 << 20);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let mut open = Vec::new();
    for nth in 0..1000 {
        let name = format!("file{nth}");
        let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
        open.push(file);
    }
    let before = vfs.memory_used();
    open.iter().for_each(|file| assert!(vfs.remember(file, root.ino)));
    let bytes = vfs.memory_used() - before;
    assert_eq!((bytes, vfs.remembered_inodes()), (vfs.remembered_bytes(), 1000));
    assert!(bytes <= 16 * 1000, "the numbers are neighbours: {bytes} bytes");
    let alone = open[500].ino;
    let others = open.iter().filter(|file| file.ino != alone).map(|file| file.ino);
    others.for_each(|ino| assert!(vfs.forget(ino, 1)));
    assert!(vfs.remembered_bytes() <= 64, "{} bytes", vfs.remembered_bytes());
    open.iter().filter(|file| file.ino != alone).for_each(|file| assert!(vfs.remember(file, root.ino)));
    assert_eq!(vfs.remembered_bytes(), bytes);
    let orphan = open[0].ino;
    drop(open);
    vfs.unlink(&cred, &root, b"file0", false).unwrap();
    vfs.forget_all();
    assert_eq!((vfs.memory_used() <= before, vfs.remembered_inodes()), (true, 0));
    assert!(vfs.get(orphan).is_err(), "the orphan is deleted");
}
