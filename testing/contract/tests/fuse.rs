//! The contract through FUSE, with write-back cache: `mem`, ext4, XFS, FAT, OFS, FFS, UFS and OCFS2 as
//! programs see them. The claims are read from the mount.

mod common;

use common::*;
use ivers_contract::{Promise, Subject, Tallies, observe};
use ivers_mem::Mem;
use std::sync::Arc;
use std::time::Duration;

fn mem_mounted(how: How) -> Box<dyn Subject> {
    let name = format!("mem through FUSE, {}", how.label());
    fuse(&name, false, move || how.mount(Arc::new(Mem::default()), how.budget()))
}

fn ext4_mounted(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<dyn Subject> {
    image_through_fuse(name, base, hows, open_ext4)
}

/// Returns a mount without the attributes that FAT does not store.
fn fat_mounted(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<dyn Subject> {
    Box::new(image_through_fuse(name, base, hows, open_fat).without_modes())
}

fn affs_mounted(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<dyn Subject> {
    image_through_fuse(name, base, hows, open_affs)
}

#[test]
fn mem_keeps_the_contract() {
    if !can_mount() {
        return;
    }
    println!("{}", Tallies::header());
    for how in [LAZY, EAGER, TIGHT] {
        let report = hold(&mut || mem_mounted(how), seed(), steps(1500));
        assert!(report.tallies.of(Promise::Data).checked > 60, "{report:?}");
        assert!(report.tallies.of(Promise::Rests).checked > 60, "{report:?}");
    }
}

#[test]
fn ext4_keeps_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    for (name, kind, args) in KINDS {
        let base = Arc::new(image(kind, args));
        let report = hold(
            &mut || ext4_mounted(name, &base, &[LAZY, EAGER, LAZYTIME, LAZYVERSION]),
            seed(),
            steps(1000),
        );
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
    }
}

#[test]
fn xfs_keeps_the_contract() {
    if !can_mount() {
        return;
    }
    for (name, block_size, features) in XFSES {
        let base = Arc::new(new_xfs(block_size, features));
        let make = || image_through_fuse(name, &base, &[LAZY, EAGER, LAZYTIME, LAZYVERSION], open_xfs);
        let report = hold(&mut || make() as Box<dyn Subject>, seed(), steps(1000));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
        assert!(report.claims.persistent, "{report:?}");
    }
}

/// Checks formats that store no value.
fn keeps_what_a_mount_can(make: impl Fn(&'static [How]) -> Box<dyn Subject>) {
    for hows in [&[LAZY] as &[How], &[EAGER, LAZYTIME], &[TIGHT, LAZYVERSION]] {
        let report = hold(&mut || make(hows), seed(), steps(1000));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
        assert!(report.tallies.of(Promise::Rests).checked > 40, "{report:?}");
        assert!(report.claims.change_attribute && !report.claims.persistent, "{report:?}");
    }
}

#[test]
fn fat_keeps_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.fat"]) {
        return;
    }
    for (name, args) in FATS {
        let base = Arc::new(vfat(args));
        keeps_what_a_mount_can(|hows| fat_mounted(name, &base, hows));
    }
}

#[test]
fn ofs_and_ffs_keep_the_contract() {
    if !can_mount() {
        return;
    }
    for (low, name) in AMIGAS {
        let base = Arc::new(amiga(low));
        keeps_what_a_mount_can(|hows| affs_mounted(name, &base, hows));
    }
}

#[test]
fn ocfs2_keeps_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(ivers_oracle::OCFS2_PROGRAMS) {
        return;
    }
    for (name, args) in OCFS2S {
        let base = Arc::new(new_ocfs2(args));
        let make = |hows| image_through_fuse(name, &base, hows, open_ocfs2);
        keeps_what_a_mount_can(|hows| make(hows) as Box<dyn Subject>);
    }
}

#[test]
fn ufs_keeps_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(&["makefs"]) {
        return;
    }
    for (name, args) in UFSES {
        let base = Arc::new(new_ufs(args));
        let make = |hows| image_through_fuse(name, &base, hows, open_ufs);
        keeps_what_a_mount_can(|hows| make(hows) as Box<dyn Subject>);
    }
}

#[test]
fn iversion_off_serves_no_value_and_later_values_differ() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let report = hold(&mut || mem_mounted(OFF), seed(), steps(600));
    assert!(!report.claims.change_attribute && report.tallies.of(Promise::ChangeAttribute).checked > 20);
    let base = Arc::new(image("ext4", &[]));
    hold(&mut || ext4_mounted("ext4", &base, &[LAZY, OFF]), seed(), steps(1500));
}

#[test]
fn reads_between_equal_values_are_current() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let mut subjects = vec![mem_mounted(LAZY), ext4_mounted("ext4", &Arc::new(image("ext4", &[])), &[LAZY])];
    if ivers_oracle::have_programs(&["mkfs.fat"]) {
        subjects.push(fat_mounted("FAT32", &Arc::new(vfat(FATS[1].1)), &[LAZY]));
    }
    for mut subject in subjects {
        for pages in [1, 5, 300] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            let found = observe(&*file, 2, pages, Duration::from_millis(800));
            hold_threads(&format!("{}, {pages} pages", subject.name()), &found);
            assert!(found.of(Promise::Monotonic).checked > 5);
        }
    }
}

/// Several actors, each with separate descriptors and mappings.
#[test]
fn concurrent_actors_keep_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4", "mkfs.fat"]) {
        return;
    }
    for how in [LAZY, SLOW, TIGHT] {
        hold_together(&mut || mem_mounted(how), seed(), phases(60));
    }
    for (name, kind, args) in [KINDS[0], KINDS[1], KINDS[3]] {
        let base = Arc::new(image(kind, args));
        hold_together(
            &mut || ext4_mounted(name, &base, &[LAZY, EAGER, LAZYTIME, LAZYVERSION]),
            seed(),
            phases(60),
        );
    }
    let (fat32, ffs) = (Arc::new(vfat(FATS[1].1)), Arc::new(amiga(AMIGAS[1].0)));
    hold_together(&mut || fat_mounted(FATS[1].0, &fat32, &[LAZY]), seed(), phases(60));
    hold_together(&mut || affs_mounted(AMIGAS[1].1, &ffs, &[LAZY]), seed(), phases(60));
}
