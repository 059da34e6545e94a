//! Concurrent threads: no deadlock, no lost data, and promises C1 and C2.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

fn mount(cache_bytes: u64) -> Arc<Vfs> {
    let options = MountOptions {
        cache_bytes,
        writeback_interval: Duration::from_millis(1),
        dirty_expire: Duration::ZERO,
        ..Default::default()
    };
    Vfs::mount(Arc::new(Mem::default()), options).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn a_query_after_a_completed_write_differs() {
    let vfs = mount(1 << 20);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    let file = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
    vfs.write(&cred, &file, 0, &0u64.to_le_bytes(), WriteFlags::empty()).unwrap();
    let (started, completed) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + Duration::from_millis(700);
            let mut nth = 0u64;
            while Instant::now() < end {
                nth += 1;
                started.store(nth, SeqCst);
                vfs.write(&Cred::root(), &file, 0, &nth.to_le_bytes(), WriteFlags::empty()).unwrap();
                completed.store(nth, SeqCst);
            }
            stop.store(true, SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut last, mut started_at_last) = (0, u64::MAX);
                while !stop.load(SeqCst) {
                    let completed_before = completed.load(SeqCst);
                    let value = vfs.change(&file).unwrap();
                    let mut bytes = [0; 8];
                    assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut bytes).unwrap(), 8);
                    let data = u64::from_le_bytes(bytes);
                    assert!(data >= completed_before);
                    assert!(value >= last, "C2: {value} after {last}");
                    if completed_before > started_at_last {
                        assert!(value > last, "C1: write {completed_before} completed, {value} stayed");
                    }
                    (last, started_at_last) = (value, started.load(SeqCst));
                }
            });
        }
    });
}

#[test]
fn pages_rewritten_during_write_back_are_not_lost() {
    let vfs = mount(256 << 10);
    let root = vfs.root().unwrap();
    thread::scope(|scope| {
        for nth in 0..4u64 {
            let (vfs, root) = (&vfs, &root);
            scope.spawn(move || {
                let cred = Cred::root();
                let name = format!("f{nth}");
                let file =
                    vfs.create(&cred, root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
                let mut random = Random(nth + 99);
                let mut model = vec![0u8; 100_000];
                vfs.write(&cred, &file, 0, &model, WriteFlags::empty()).unwrap();
                for turn in 0..5000u64 {
                    let (mut at, mut len) = (random.below(90_000) as usize, random.below(9_000) as usize + 1);
                    if turn % 50 == 20 {
                        (at, len) = (at & !4095, 8192);
                    }
                    let value = turn as u8;
                    model[at..at + len].fill(value);
                    let flags = match turn % 50 {
                        0 => WriteFlags::DIRECT,
                        20 => WriteFlags::CACHED_BY_CALLER,
                        _ => WriteFlags::empty(),
                    };
                    vfs.write(&cred, &file, at as u64, &vec![value; len], flags).unwrap();
                    match turn % 16 {
                        3 => vfs.fsync(&file, true).unwrap(),
                        9 => {
                            let mut back = vec![0; 100_000];
                            assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut back).unwrap(), 100_000);
                            assert!(back == model, "turn {turn}");
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    vfs.unmount().unwrap();
}

#[test]
fn concurrent_renames_keep_one_tree() {
    let vfs = mount(1 << 20);
    let root = vfs.root().unwrap();
    let cred = Cred::root();
    for nth in 0..6 {
        vfs.create(&cred, &root, format!("d{nth}").as_bytes(), &CreateSpec::directory(0o755), false).unwrap();
    }
    let walk = |vfs: &Vfs| {
        let mut found = Vec::new();
        let mut todo = vec![vfs.root().unwrap()];
        while let Some(dir) = todo.pop() {
            let mut children = Vec::new();
            vfs.readdir(&Cred::root(), &dir, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    children.push(entry.name.to_vec());
                }
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
            for name in children {
                let child = vfs.lookup(&Cred::root(), &dir, &name).unwrap();
                if child.kind == FileType::Directory {
                    assert_eq!(vfs.lookup(&Cred::root(), &child, b"..").unwrap().ino, dir.ino);
                    found.push(child.ino);
                    todo.push(child);
                }
            }
        }
        found
    };
    let all = walk(&vfs);
    thread::scope(|scope| {
        for seed in 1..5 {
            let (vfs, all) = (&vfs, &all);
            scope.spawn(move || {
                let cred = Cred::root();
                let mut random = Random(seed * 7919);
                let pick = |random: &mut Random| {
                    let nth = random.below(all.len() as u64 + 1) as usize;
                    if nth == all.len() { vfs.root().unwrap() } else { vfs.get(all[nth]).unwrap() }
                };
                for _ in 0..4000 {
                    let (from, to) = (pick(&mut random), pick(&mut random));
                    let (old, new) = (format!("d{}", random.below(6)), format!("d{}", random.below(6)));
                    let flags = [RenameFlags::NOREPLACE, RenameFlags::EXCHANGE][random.below(2) as usize];
                    let _ = vfs.rename(
                        &cred,
                        &from,
                        old.as_bytes(),
                        &to,
                        new.as_bytes(),
                        flags,
                        random.below(2) == 0,
                    );
                    let name = format!("t{}", random.below(3));
                    match random.below(4) {
                        0 => drop(vfs.create(&cred, &from, name.as_bytes(), &CreateSpec::file(0o600), false)),
                        1 => drop(vfs.unlink(&cred, &to, name.as_bytes(), true)),
                        2 => drop(vfs.lookup(&cred, &to, name.as_bytes())),
                        _ => drop(vfs.rename(
                            &cred,
                            &from,
                            name.as_bytes(),
                            &to,
                            b"t1",
                            RenameFlags::empty(),
                            true,
                        )),
                    }
                }
            });
        }
    });
    let mut after = walk(&vfs);
    let mut all = all;
    after.sort();
    all.sort();
    assert_eq!(after, all, "no directory is lost in a loop");
}

#[test]
fn open_files_keep_their_data_while_names_change() {
    let vfs = mount(64 << 10);
    let root = vfs.root().unwrap();
    thread::scope(|scope| {
        for seed in 1..5u64 {
            let (vfs, root) = (&vfs, &root);
            scope.spawn(move || {
                let cred = Cred::root();
                let mut random = Random(seed * 104_729);
                for turn in 0..5000u64 {
                    let name = format!("n{}", random.below(8));
                    let name = name.as_bytes();
                    match random.below(3) {
                        0 => {
                            if let Ok((file, _)) =
                                vfs.create(&cred, root, name, &CreateSpec::file(0o644), false)
                            {
                                vfs.write(&cred, &file, 0, &turn.to_le_bytes(), WriteFlags::empty()).unwrap();
                                let _ = vfs.unlink(&cred, root, name, false);
                                let mut back = [0; 8];
                                assert_eq!(
                                    vfs.read(&Cred::root(), &file, 0, &mut back).unwrap(),
                                    8,
                                    "open files keep their data"
                                );
                            }
                        }
                        1 => match vfs.lookup(&cred, root, name) {
                            Ok(file) => {
                                vfs.write(&cred, &file, 0, &turn.to_le_bytes(), WriteFlags::empty()).unwrap();
                            }
                            Err(Error::Name(NameError::NotFound)) => {}
                            Err(error) => panic!("{error}"),
                        },
                        _ => match vfs.unlink(&cred, root, name, true) {
                            Ok(Some(info)) => assert!(info.after > info.before),
                            Ok(None) => panic!("change info was requested"),
                            Err(Error::Name(NameError::NotFound)) => {}
                            Err(error) => panic!("{error}"),
                        },
                    }
                }
            });
        }
    });
    for nth in 0..8 {
        let _ = vfs.unlink(&Cred::root(), &root, format!("n{nth}").as_bytes(), false);
    }
    // The write-back thread may hold the last reference for a moment.
    let patience = Instant::now() + Duration::from_secs(5);
    while vfs.stat_fs().unwrap().blocks_free != vfs.stat_fs().unwrap().blocks {
        assert!(Instant::now() < patience, "blocks of deleted files are not free");
        thread::sleep(Duration::from_millis(1));
    }
    vfs.unmount().unwrap();
}

/// A search for data may run while write-back makes pages clean and maps their blocks. It must not miss
/// those pages in between.
#[test]
fn data_under_write_back_is_no_hole() {
    let options = MountOptions { background: false, ..Default::default() };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let (root, cred) = (vfs.root().unwrap(), Cred::root());
    let file = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
    let stop = AtomicBool::new(false);
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                vfs.fsync(&file, false).unwrap();
            }
        });
        let end = Instant::now() + Duration::from_millis(700);
        let mut found = Vec::new();
        while Instant::now() < end {
            vfs.write(&cred, &file, 0, &[7; 8192], WriteFlags::empty()).unwrap();
            found.push((vfs.seek_data(&file, 0).ok(), vfs.seek_hole(&file, 4096).ok()));
            vfs.fallocate(&cred, &file, punch, 0, 8192).unwrap();
        }
        stop.store(true, SeqCst);
        let wrong = found.iter().filter(|&&seen| seen != (Some(0), Some(8192))).count();
        assert_eq!(wrong, 0, "of {} searches", found.len());
    });
}
