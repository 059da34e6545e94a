//! FreeBSD's own programs: fsck_ffs finds nothing in what ivers wrote, and ivers changes what newfs made.
//! They read only the byte order of the machine.

use crate::common::storm::Storm;
use crate::common::*;
use crate::mkfs::{made, of};
use crate::sleuthkit::changed;
use ivers_block::MemDevice;
use ivers_oracle::ufs::{fsck_ffs, have_fsck_ffs, have_newfs, newfs};
use ivers_ufs::layout::superblock::Version;
use std::sync::Arc;

fn assert_fsck_ffs_finds_nothing(image: &[u8], what: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    fsck_ffs(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn fsck_ffs_finds_nothing_in_new_filesystems() {
    if !have_fsck_ffs() {
        return;
    }
    for version in [Version::Ufs1, Version::Ufs2] {
        for (block_size, bytes) in
            [(4096, 4 << 20), (8192, 16 << 20), (32768, 64 << 20), (65536, 100 << 20), (4096, 77_777_777)]
        {
            let image = made(bytes, &of(version, block_size)).to_bytes();
            let what = format!("{version:?}, blocks of {block_size} bytes, {bytes} bytes");
            assert_fsck_ffs_finds_nothing(&image, &what);
        }
    }
}

#[test]
fn fsck_ffs_finds_nothing_after_random_changes() {
    if !have_fsck_ffs() || !have_makefs() {
        return;
    }
    for kind in KINDS.iter().filter(|kind| !kind.0.contains("big-endian")) {
        assert_fsck_ffs_finds_nothing(&changed(kind), kind.0);
    }
    for version in [Version::Ufs1, Version::Ufs2] {
        assert_fsck_ffs_finds_nothing(&crate::sleuthkit::made(version), &format!("{version:?} of ivers"));
    }
}

#[test]
fn fsck_ffs_finds_planted_defects() {
    if !have_fsck_ffs() || !have_makefs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let whole = small_image(KINDS[1].1);
    // A link count, and the count of free inodes of a group.
    for at in [slot(&whole, "/file") + 2, group(&whole) + 32] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(fsck_ffs(&path).is_err(), "byte {at}");
    }
}

#[test]
fn what_newfs_made_is_changed() {
    if !have_newfs() || !have_fsck_ffs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let kinds: &[&[&str]] = &[
        &["-O", "1"],
        &["-O", "2"],
        &["-O", "2", "-U"],
        &["-O", "1", "-b", "4096", "-f", "512"],
        &["-O", "2", "-b", "8192", "-f", "1024", "-n"],
        &["-O", "2", "-b", "16384", "-f", "16384"],
        &["-O", "2", "-b", "65536", "-f", "8192", "-i", "4096", "-m", "0"],
        &["-O", "2", "-L", "label", "-l", "-t"],
    ];
    for options in kinds {
        newfs(&path, 64 << 20, options).unwrap();
        let device = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        let what = format!("newfs {options:?}");
        assert_clean(device.clone(), &what);
        let mut storm = Storm::of(mount_writable(device.clone()), 7);
        (0..300).for_each(|_| storm.step());
        storm.check(&what);
        storm.unmount();
        assert_clean(device.clone(), &what);
        assert_fsck_ffs_finds_nothing(&device.to_bytes(), &what);
        storm.mount(mount_writable(device));
        storm.check(&what);
        storm.unmount();
    }
}
