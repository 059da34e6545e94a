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
