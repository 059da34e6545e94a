//! The contract on `mem`, examplefs, ext4, XFS, btrfs, AFFS, FAT, UFS and OCFS2 in this process. `IVERS_SEED`
//! replays a run, `IVERS_STEPS` sets its length.

mod common;

use common::*;
use ivers_contract::{InProcess, Promise, Subject, Tallies, Together, observe};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn mem_keeps_the_contract() {
    println!("{}", Tallies::header());
    for (nth, how) in [LAZY, EAGER, LAZYTIME, TIGHT, LAZYVERSION].into_iter().enumerate() {
        for hold_inodes in [true, false] {
            let report = hold(&mut || mem(how, hold_inodes), seed() + nth as u64, steps(4000));
            let rests = report.tallies.of(Promise::Rests).checked;
            assert!(report.tallies.of(Promise::Data).checked > 200 && (!hold_inodes || rests > 200));
            assert!(report.succeeded > 1500, "{report:?}");
        }
    }
}

#[test]
fn ext4_keeps_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    for (name, kind, args) in KINDS {
        let base = Arc::new(image(kind, args));
        for (nth, hows) in
            [&[LAZY] as &[How], &[EAGER], &[TIGHT, LAZYTIME, LAZYVERSION]].into_iter().enumerate()
        {
            let report = hold(&mut || ext4(name, &base, hows), seed() + nth as u64, steps(2500));
            let checked = |promise| report.tallies.of(promise).checked;
            assert!(checked(Promise::Data) > 100 && checked(Promise::Rests) > 100, "{report:?}");
            assert!(checked(Promise::Persistent) > 0, "{report:?}");
        }
    }
}

#[test]
fn xfs_keeps_the_contract() {
    for (name, block_size, features) in XFSES {
        let base = Arc::new(new_xfs(block_size, features));
        for (nth, hows) in
            [&[LAZY] as &[How], &[EAGER], &[TIGHT, LAZYTIME, LAZYVERSION]].into_iter().enumerate()
        {
            let report = hold(&mut || xfs(name, &base, hows), seed() + nth as u64, steps(2500));
            let checked = |promise| report.tallies.of(promise).checked;
            assert!(checked(Promise::Data) > 100 && checked(Promise::Rests) > 100, "{report:?}");
            assert!(report.claims.persistent && checked(Promise::Persistent) > 0, "{report:?}");
        }
    }
}

#[test]
fn btrfs_keeps_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.btrfs"]) {
        return;
    }
    for (name, args) in BTRFSES {
        let base = Arc::new(new_btrfs(args));
        for (nth, hows) in
            [&[LAZY] as &[How], &[EAGER], &[TIGHT, LAZYTIME, LAZYVERSION]].into_iter().enumerate()
        {
            let report = hold(&mut || btrfs(name, &base, hows), seed() + nth as u64, steps(2500));
            let checked = |promise| report.tallies.of(promise).checked;
            assert!(checked(Promise::Data) > 100 && checked(Promise::Rests) > 100, "{report:?}");
            assert!(report.claims.persistent && checked(Promise::Persistent) > 0, "{report:?}");
        }
    }
}

#[test]
fn the_example_with_a_journal_keeps_the_contract() {
    let base = Arc::new(example());
    for (nth, hows) in [&[LAZY] as &[How], &[EAGER], &[TIGHT, LAZYTIME, LAZYVERSION], &[LAZY, OFF, EAGER]]
        .into_iter()
        .enumerate()
    {
        let report = hold(&mut || examplefs(&base, hows), seed() + nth as u64, steps(2500));
        let checked = |promise| report.tallies.of(promise).checked;
        assert!(checked(Promise::Data) > 100 && checked(Promise::Rests) > 100, "{report:?}");
        assert!(report.claims.persistent && checked(Promise::Persistent) > 0, "{report:?}");
    }
}

#[test]
fn ofs_and_ffs_keep_the_contract() {
    for (low, name) in AMIGAS {
        let base = Arc::new(amiga(low));
        for (nth, how) in [LAZY, EAGER, LAZYTIME, TIGHT, LAZYVERSION].into_iter().enumerate() {
            for hold_inodes in [true, false] {
                let seed = seed() + nth as u64;
                let report = hold(&mut || affs(name, &base, how, hold_inodes), seed, steps(2500));
                let checked = |promise| report.tallies.of(promise).checked;
                assert!(checked(Promise::Data) > 100, "{report:?}");
                assert!(!hold_inodes || checked(Promise::Rests) > 100, "{report:?}");
                assert!(!report.claims.persistent && checked(Promise::Model) > 100, "{report:?}");
            }
        }
    }
}

#[test]
fn fat_keeps_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.fat"]) {
        return;
    }
    for (name, args) in FATS {
        let base = Arc::new(vfat(args));
        for (nth, how) in [LAZY, EAGER, LAZYTIME, TIGHT, LAZYVERSION].into_iter().enumerate() {
            for hold_inodes in [true, false] {
                let report =
                    hold(&mut || fat(name, &base, how, hold_inodes), seed() + nth as u64, steps(2500));
                let checked = |promise| report.tallies.of(promise).checked;
                assert!(checked(Promise::Data) > 100, "{report:?}");
                assert!(!hold_inodes || checked(Promise::Rests) > 100, "{report:?}");
                assert!(!report.claims.persistent && checked(Promise::Model) > 100, "{report:?}");
            }
        }
    }
}

#[test]
fn ocfs2_keeps_the_contract() {
    if !ivers_oracle::have_programs(ivers_oracle::OCFS2_PROGRAMS) {
        return;
    }
    for (name, args) in OCFS2S {
        let base = Arc::new(new_ocfs2(args));
        for (nth, how) in [LAZY, EAGER, LAZYTIME, TIGHT, LAZYVERSION].into_iter().enumerate() {
            for hold_inodes in [true, false] {
                let report =
                    hold(&mut || ocfs2(name, &base, how, hold_inodes), seed() + nth as u64, steps(2500));
                let checked = |promise| report.tallies.of(promise).checked;
                assert!(checked(Promise::Data) > 100, "{report:?}");
                assert!(!hold_inodes || checked(Promise::Rests) > 100, "{report:?}");
                assert!(!report.claims.persistent && checked(Promise::Model) > 100, "{report:?}");
            }
        }
    }
}

#[test]
fn ufs_keeps_the_contract() {
    if !ivers_oracle::have_programs(&["makefs"]) {
        return;
    }
    for (name, args) in UFSES {
        let base = Arc::new(new_ufs(args));
        for (nth, how) in [LAZY, EAGER, LAZYTIME, TIGHT, LAZYVERSION].into_iter().enumerate() {
            for hold_inodes in [true, false] {
                let report =
                    hold(&mut || ufs(name, &base, how, hold_inodes), seed() + nth as u64, steps(2500));
                let checked = |promise| report.tallies.of(promise).checked;
                assert!(checked(Promise::Data) > 100, "{report:?}");
                assert!(!hold_inodes || checked(Promise::Rests) > 100, "{report:?}");
                assert!(!report.claims.persistent && checked(Promise::Model) > 100, "{report:?}");
            }
        }
    }
}

/// A mount without values says so, and no older value stands for a state that it changed.
#[test]
fn iversion_off_serves_no_value_and_later_values_differ() {
    hold(&mut || mem(OFF, true), seed(), steps(2000));
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &[]));
    let report = hold(&mut || ext4("ext4", &base, &[OFF]), seed(), steps(2000));
    assert!(!report.claims.change_attribute && report.tallies.of(Promise::Data).checked == 0);
    let report = hold(&mut || ext4("ext4", &base, &[LAZY, OFF, EAGER]), seed(), steps(6000));
    assert!(report.tallies.of(Promise::Persistent).checked > 20, "{report:?}");
}

#[test]
fn reads_between_equal_values_are_current() {
    let mut subjects = vec![mem(LAZY, true), mem(LAZYTIME, true), mem(EAGER, true)];
    if ivers_oracle::have_programs(&["mkfs.ext4"]) {
        let base = Arc::new(image("ext4", &[]));
        subjects.extend([ext4("ext4", &base, &[LAZY]), ext4("ext4", &base, &[LAZYTIME])]);
    }
    for mut subject in subjects {
        for pages in [1, 5, 300] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            let found = observe(&*file, 2, pages, Duration::from_millis(400));
            hold_threads(&format!("{}, {pages} pages", subject.name()), &found);
            assert!(found.of(Promise::Monotonic).checked > 20);
        }
    }
}

/// Checks that enough was tried, and enough of it concurrently.
#[track_caller]
fn was_crowded(together: &Together) {
    let tallies = &together.tallies;
    let checked = |promise| tallies.of(promise).checked;
    assert!(checked(Promise::Data) > 50 && checked(Promise::Monotonic) > 1000, "{together:?}");
    assert!(checked(Promise::Current) > 50 && checked(Promise::Model) > 50, "{together:?}");
    assert!(together.figures.overlapping > 50, "{together:?}");
}

/// Formats without persistent inode numbers use one kind of mount per run.
#[track_caller]
fn hold_each_way(make: impl Fn(How) -> Box<InProcess>) {
    for (nth, how) in [SLOW, SLOW_EAGER, SLOW_TIGHT].into_iter().enumerate() {
        was_crowded(&hold_together(&mut || make(how), seed() + nth as u64, phases(100)));
    }
}

#[test]
fn concurrent_actors_on_mem_keep_the_contract() {
    for (nth, how) in [SLOW, SLOW_EAGER, SLOW_LAZYTIME, SLOW_TIGHT, SLOW_LAZYVERSION].into_iter().enumerate()
    {
        for hold_inodes in [true, false] {
            was_crowded(&hold_together(&mut || mem(how, hold_inodes), seed() + nth as u64, phases(200)));
        }
    }
}

#[test]
fn concurrent_actors_on_ext4_keep_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    for (name, kind, args) in KINDS {
        let base = Arc::new(image(kind, args));
        for (nth, hows) in [&[SLOW] as &[How], &[SLOW_EAGER], &[SLOW_TIGHT, SLOW_LAZYTIME, SLOW_LAZYVERSION]]
            .into_iter()
            .enumerate()
        {
            let together = hold_together(&mut || ext4(name, &base, hows), seed() + nth as u64, phases(100));
            was_crowded(&together);
            assert!(together.tallies.of(Promise::Persistent).checked > 0, "{together:?}");
        }
    }
}

#[test]
fn concurrent_actors_on_xfs_keep_the_contract() {
    for (name, block_size, features) in XFSES {
        let base = Arc::new(new_xfs(block_size, features));
        for (nth, hows) in [&[SLOW] as &[How], &[SLOW_EAGER], &[SLOW_TIGHT, SLOW_LAZYTIME, SLOW_LAZYVERSION]]
            .into_iter()
            .enumerate()
        {
            let together = hold_together(&mut || xfs(name, &base, hows), seed() + nth as u64, phases(100));
            was_crowded(&together);
            assert!(together.tallies.of(Promise::Persistent).checked > 0, "{together:?}");
        }
    }
}

#[test]
fn concurrent_actors_on_btrfs_keep_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.btrfs"]) {
        return;
    }
    for (name, args) in BTRFSES {
        let base = Arc::new(new_btrfs(args));
        for (nth, hows) in [&[SLOW] as &[How], &[SLOW_EAGER], &[SLOW_TIGHT, SLOW_LAZYTIME, SLOW_LAZYVERSION]]
            .into_iter()
            .enumerate()
        {
            let together = hold_together(&mut || btrfs(name, &base, hows), seed() + nth as u64, phases(100));
            was_crowded(&together);
            assert!(together.tallies.of(Promise::Persistent).checked > 0, "{together:?}");
        }
    }
}

#[test]
fn concurrent_actors_on_the_example_with_a_journal_keep_the_contract() {
    let base = Arc::new(example());
    for (nth, hows) in [&[SLOW] as &[How], &[SLOW_EAGER], &[SLOW_TIGHT, SLOW_LAZYTIME, SLOW_LAZYVERSION]]
        .into_iter()
        .enumerate()
    {
        let together = hold_together(&mut || examplefs(&base, hows), seed() + nth as u64, phases(100));
        was_crowded(&together);
        assert!(together.tallies.of(Promise::Persistent).checked > 0, "{together:?}");
    }
}

#[test]
fn concurrent_actors_on_ofs_and_ffs_keep_the_contract() {
    for (low, name) in AMIGAS {
        let base = Arc::new(amiga(low));
        hold_each_way(|how| affs(name, &base, how, true));
    }
}

#[test]
fn concurrent_actors_on_fat_keep_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.fat"]) {
        return;
    }
    for (name, args) in FATS {
        let base = Arc::new(vfat(args));
        hold_each_way(|how| fat(name, &base, how, true));
    }
}

#[test]
fn concurrent_actors_on_ocfs2_keep_the_contract() {
    if !ivers_oracle::have_programs(ivers_oracle::OCFS2_PROGRAMS) {
        return;
    }
    for (name, args) in OCFS2S {
        let base = Arc::new(new_ocfs2(args));
        hold_each_way(|how| ocfs2(name, &base, how, true));
    }
}

#[test]
fn concurrent_actors_on_ufs_keep_the_contract() {
    if !ivers_oracle::have_programs(&["makefs"]) {
        return;
    }
    for (name, args) in UFSES {
        let base = Arc::new(new_ufs(args));
        hold_each_way(|how| ufs(name, &base, how, true));
    }
}

/// A mount without values returns none, and an older value does not stand for its changes in the next mount.
#[test]
fn concurrent_actors_with_iversion_off_see_no_value() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &[]));
    hold_together(&mut || ext4("ext4", &base, &[SLOW, SLOW_OFF, SLOW_EAGER]), seed(), phases(200));
}
