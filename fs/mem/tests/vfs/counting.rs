//! Contract C5: every inode update has a counted cause.

use ivers_mem::Mem;
use ivers_vfs::*;
use std::sync::Arc;

fn mount(mode: ChangeMode, lazytime: bool) -> (Arc<Vfs>, Arc<ManualClock>, InodeRef) {
    mount_with(MountOptions { mode, lazytime, ..Default::default() })
}

fn mount_with(options: MountOptions) -> (Arc<Vfs>, Arc<ManualClock>, InodeRef) {
    let clock = Arc::new(ManualClock::default());
    clock.set(Timestamp { sec: 1000, nsec: 0 });
    let options = MountOptions { clock: Some(Box::new(clock.clone())), background: false, ..options };
    let vfs = Vfs::mount(Arc::new(Mem::default()), options).unwrap();
    let root = vfs.root().unwrap();
    let file = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
    vfs.write(&Cred::root(), &file, 0, b"x", WriteFlags::empty()).unwrap();
    vfs.sync().unwrap();
    (vfs, clock, file)
}

fn overwrite(vfs: &Vfs, file: &InodeRef, count: u64, mut each: impl FnMut(u64)) -> u64 {
    let before = vfs.stats().inode_updates;
    let cred = Cred::root();
    for nth in 0..count {
        each(nth);
        vfs.write(&cred, file, 0, b"y", WriteFlags::empty()).unwrap();
    }
    vfs.stats().inode_updates - before
}

#[test]
fn a_million_overwrites_without_queries_cost_one_update_a_tick() {
    let (vfs, clock, file) = mount(ChangeMode::Lazy, false);
    let updates = overwrite(&vfs, &file, 1_000_000, |nth| {
        if nth % 50_000 == 0 {
            clock.set(Timestamp { sec: 2000, nsec: nth as u32 });
        }
    });
    assert_eq!(updates, 20);
    let stats = vfs.stats();
    assert_eq!(stats.data_bytes, 1_000_001);
    assert_eq!(
        stats.inode_updates,
        stats.inode_updates_times
            + stats.inode_updates_version
            + stats.inode_updates_allocation
            + stats.inode_updates_metadata
    );
}

#[test]
fn eager_costs_one_update_a_write() {
    let (vfs, _clock, file) = mount(ChangeMode::Eager, false);
    assert_eq!(overwrite(&vfs, &file, 10_000, |_| ()), 10_000);
}

#[test]
fn a_query_costs_one_update_and_lazytime_adds_none() {
    for lazytime in [false, true] {
        let (vfs, clock, file) = mount(ChangeMode::Lazy, lazytime);
        vfs.change(&file).unwrap();
        assert_eq!(overwrite(&vfs, &file, 1000, |_| ()), 1);
        let ticks = overwrite(&vfs, &file, 1000, |nth| clock.set(Timestamp { sec: 3000, nsec: nth as u32 }));
        assert_eq!(ticks, if lazytime { 0 } else { 1000 });
        let before = vfs.stats().inode_updates;
        vfs.sync().unwrap();
        assert_eq!(
            vfs.stats().inode_updates - before,
            u64::from(lazytime),
            "deferred times are written once"
        );
    }
}

#[test]
fn under_lazyversion_a_query_costs_one_update_at_write_back() {
    let (vfs, _clock, file) = mount_with(MountOptions { lazyversion: Some(true), ..Default::default() });
    for round in 1..=3 {
        let (seen, before) = (vfs.change(&file).unwrap(), vfs.stats());
        assert_eq!(overwrite(&vfs, &file, 1000, |_| ()), 0);
        let after = vfs.stats();
        assert_eq!((after.bumps - before.bumps, after.bumps_deferred), (1, round));
        assert!(vfs.change(&file).unwrap() > seen);
        // The second sync finds no deferred update.
        vfs.sync().unwrap();
        vfs.sync().unwrap();
        assert_eq!(vfs.stats().inode_updates - after.inode_updates, 1);
        assert_eq!(vfs.stats().inode_updates_version, round);
    }
}

#[test]
fn appends_log_with_write_back_only() {
    let (vfs, _clock, file) = mount(ChangeMode::Lazy, false);
    let before = vfs.stats().inode_updates;
    for _ in 0..100_000 {
        vfs.write(&Cred::root(), &file, 0, b"z", WriteFlags::APPEND).unwrap();
    }
    assert_eq!(vfs.stats().inode_updates - before, 0);
    vfs.sync().unwrap();
    assert_eq!(vfs.stats().inode_updates - before, 1);
    assert_eq!(file.size(), 100_001);
}

#[test]
fn reading_moves_the_access_time_and_nothing_else() {
    let (vfs, clock, file) = mount(ChangeMode::Lazy, false);
    clock.set(Timestamp { sec: 9000, nsec: 0 });
    let (value, before) = (vfs.change(&file), vfs.stats().inode_updates);
    for _ in 0..100 {
        vfs.read(&Cred::root(), &file, 0, &mut [0; 1]).unwrap();
    }
    assert_eq!(vfs.stat(&file).atime.sec, 9000);
    vfs.sync().unwrap();
    assert_eq!(vfs.change(&file), value);
    assert_eq!(vfs.stats().inode_updates - before, 1);
}

#[test]
fn repeated_times_are_no_change_and_other_times_are() {
    let (vfs, _clock, file) = mount(ChangeMode::Lazy, false);
    let attr = vfs.stat(&file);
    let value = vfs.change(&file).unwrap();
    let same = SetAttr {
        mtime: Some(TimeSet::At(attr.mtime)),
        atime: Some(TimeSet::At(attr.atime)),
        ..SetAttr::default()
    };
    vfs.set_attr(&Cred::root(), &file, &same).unwrap();
    assert_eq!(vfs.change(&file), Some(value));
    let other = SetAttr { mtime: Some(TimeSet::At(Timestamp { sec: 5, nsec: 5 })), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), &file, &other).unwrap();
    assert!(vfs.change(&file).unwrap() > value);
    let forced = vfs.change(&file).unwrap();
    assert!(vfs.force_change(&file, Touch::Nothing).unwrap() > forced);
}

#[test]
fn off_serves_no_change_attribute() {
    let (vfs, _clock, file) = mount(ChangeMode::Off, false);
    assert_eq!(vfs.change(&file), None);
    let root = vfs.root().unwrap();
    let (_, info) = vfs.create(&Cred::root(), &root, b"g", &CreateSpec::file(0o644), true).unwrap();
    assert_eq!(info, None);
}

/// Prints how long the cheapest write takes (`--nocapture`). Nothing is asserted, because machines differ.
#[test]
fn one_byte_overwrites_are_cheap() {
    let vfs = Vfs::mount(Arc::new(Mem::default()), MountOptions::default()).unwrap();
    let root = vfs.root().unwrap();
    let file = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
    let start = std::time::Instant::now();
    overwrite(&vfs, &file, 1_000_000, |_| ());
    println!("{} ns a write", start.elapsed().as_nanos() / 1_000_000);
    let other = vfs.create(&Cred::root(), &root, b"g", &CreateSpec::file(0o644), false).unwrap().0;
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for file in [&file, &other] {
            scope.spawn(|| overwrite(&vfs, file, 1_000_000, |_| ()));
        }
    });
    println!("{} ns a write with two threads on two files", start.elapsed().as_nanos() / 1_000_000);
}

/// A kernel that sets times uses a finer clock, so a ctime from it may be a little ahead of the coarse clock.
#[test]
fn time_does_not_go_back_within_a_tick() {
    let (vfs, clock, file) = mount(ChangeMode::Lazy, false);
    let cred = Cred::root();
    let now = Timestamp { sec: 3000, nsec: 4_000_000 };
    clock.set(now);
    let given = Timestamp { nsec: 4_900_000, ..now };
    let set = |time| SetAttr { mtime: Some(TimeSet::At(time)), ctime: Some(time), ..SetAttr::default() };
    vfs.set_attr(&cred, &file, &set(given)).unwrap();
    vfs.set_attr(&cred, &file, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    let attr = vfs.stat(&file);
    assert_eq!((attr.mtime, attr.ctime), (given, given));
    // If the clock was set back, its time is used.
    let far = Timestamp { sec: 3001, ..given };
    vfs.set_attr(&cred, &file, &set(far)).unwrap();
    vfs.write(&cred, &file, 0, b"z", WriteFlags::empty()).unwrap();
    assert_eq!(vfs.stat(&file).ctime, now);
}
