//! Images are changed, and have the tree of a model; fsck.ocfs2 and the checker find nothing. `IVERS_SEED`
//! and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind, `IVERS_CHECK_EACH` compares the
//! model after each so many steps.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_oracle::{OCFS2_PROGRAMS, have_programs};
use ivers_vfs::*;
use std::sync::Arc;

fn storm(name: &str, image: &[u8], steps: u64) -> usize {
    let device = Arc::new(MemDevice::from_bytes(image));
    let in_use = |vfs: &Arc<Vfs>, what: &str| assert_clean_copy(vfs, &device, what);
    let closed = |what: &str| assert_clean(&device, what);
    storm_rounds(name, steps, || mount_writable(device.clone()), in_use, closed)
}

fn kinds() -> impl Iterator<Item = &'static Kind> {
    let only = std::env::var("IVERS_KIND").ok();
    KINDS.iter().filter(move |kind| only.as_deref().is_none_or(|only| only == kind.name))
}

/// Changes an image of each kind, of this many bytes.
fn storm_of_all_kinds(bytes: impl Fn(&Kind) -> u64) {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    for kind in kinds() {
        let full = storm(kind.name, &kind.image(bytes(kind)), number("IVERS_STEPS", 200));
        println!("{}: {full} steps without space", kind.name);
    }
}

#[test]
fn random_changes_of_all_kinds() {
    storm_of_all_kinds(|kind| kind.bytes);
}

#[test]
fn random_changes_of_full_images() {
    storm_of_all_kinds(|kind| kind.small);
}

#[test]
fn directories_get_large_and_small_again() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    for kind in kinds() {
        let device = Arc::new(MemDevice::from_bytes(&kind.image(kind.bytes)));
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        let dir = vfs.create(&cred, &root, b"many", &CreateSpec::directory(0o755), false).unwrap().0;
        let name = |nth: u32| format!("{nth} {}", "n".repeat(nth as usize * 7 % 60));
        for nth in 0..1500 {
            vfs.create(&cred, &dir, name(nth).as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        }
        assert_eq!(names(&vfs, &dir).unwrap().len(), 1500);
        for nth in (0..1500).filter(|nth| nth % 3 != 0) {
            vfs.unlink(&cred, &dir, name(nth).as_bytes(), false).unwrap();
        }
        drop((root, dir));
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&device, kind.name);
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        let dir = vfs.lookup(&cred, &root, b"many").unwrap();
        for nth in (0..1500).filter(|nth| nth % 3 == 0) {
            vfs.unlink(&cred, &dir, name(nth).as_bytes(), false).unwrap();
        }
        drop(dir);
        vfs.rmdir(&cred, &root, b"many", false).unwrap();
        drop(root);
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&device, kind.name);
    }
}

#[test]
fn files_of_many_extents_lose_them() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    for kind in kinds().filter(|kind| !kind.name.contains("1M")) {
        let device = Arc::new(MemDevice::from_bytes(&kind.image(kind.bytes)));
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        let cluster = u64::from(superblock(&device.to_bytes()).cluster_size());
        let file = vfs.create(&cred, &root, b"holes", &CreateSpec::file(0o644), false).unwrap().0;
        let count = 900.min((16 << 20) / cluster);
        // No two clusters are neighbours, and the order is not that of the positions.
        for nth in 0..count {
            let at = nth * 389 % count * 2;
            vfs.write(&cred, &file, at * cluster, &at.to_le_bytes(), WriteFlags::default()).unwrap();
            if nth % 7 == 0 {
                vfs.fsync(&file, false).unwrap();
            }
        }
        vfs.sync().unwrap();
        assert_clean_copy(&vfs, &device, kind.name);
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        for nth in (0..count).filter(|nth| nth % 5 < 2) {
            vfs.fallocate(&cred, &file, mode, nth * 2 * cluster, cluster).unwrap();
        }
        for nth in 0..count {
            let mut got = [0; 8];
            vfs.read(&cred, &file, nth * 2 * cluster, &mut got).unwrap();
            let expected = if nth % 5 < 2 { 0 } else { nth * 2 };
            assert_eq!(u64::from_le_bytes(got), expected, "{}: {nth}", kind.name);
        }
        vfs.fallocate(&cred, &file, FallocateMode::empty(), 0, count * 2 * cluster).unwrap();
        vfs.sync().unwrap();
        let set = SetAttr { size: Some(cluster * 100 + 1), ..SetAttr::default() };
        vfs.set_attr(&cred, &file, &set).unwrap();
        drop((root, file));
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&device, kind.name);
    }
}

/// Checks a copy of a device whose filesystem is in use, as a crash would leave it.
fn assert_clean_copy(vfs: &Arc<Vfs>, device: &Arc<MemDevice>, what: &str) {
    vfs.sync().unwrap();
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    mount_writable(copy.clone()).unmount().unwrap();
    assert_clean(&copy, what);
    assert_replayed(&device.to_bytes(), what);
}

#[test]
fn orphans_of_a_crash_are_deleted() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    for kind in kinds() {
        let device = Arc::new(MemDevice::from_bytes(&kind.image(kind.bytes)));
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        let free = vfs.stat_fs().unwrap().blocks_free;
        let mut kept = Vec::new();
        for nth in 0..30 {
            let name = format!("file {nth}");
            let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
            vfs.write(&cred, &file, 0, &vec![7; 100_000], WriteFlags::default()).unwrap();
            vfs.set_xattr(&cred, &file, "user.long", &[5; 300], XattrMode::Any).unwrap();
            kept.push(file);
        }
        let dir = vfs.create(&cred, &root, b"dir", &CreateSpec::directory(0o755), false).unwrap().0;
        vfs.sync().unwrap();
        for nth in 0..30 {
            vfs.unlink(&cred, &root, format!("file {nth}").as_bytes(), false).unwrap();
        }
        vfs.rmdir(&cred, &root, b"dir", false).unwrap();
        vfs.sync().unwrap();
        let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
        let again = mount_writable(copy.clone());
        let groups = free - again.stat_fs().unwrap().blocks_free;
        assert!(groups <= 3 * 8192, "{}: {groups} blocks are missing", kind.name);
        assert_eq!(names(&again, &again.root().unwrap()).unwrap(), [b"lost+found".to_vec()]);
        again.unmount().unwrap();
        drop(again);
        assert_clean(&copy, kind.name);
        drop((kept, dir, root));
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&device, kind.name);
    }
}

#[test]
fn unnamed_files_get_a_name_or_vanish() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    // With clusters of 1 MiB the files need more than the image has.
    for kind in kinds().filter(|kind| kind.name != "1M") {
        let device = Arc::new(MemDevice::from_bytes(&kind.image(kind.bytes)));
        let vfs = mount_writable(device.clone());
        let root = vfs.root().unwrap();
        let files: Vec<InodeRef> = (0..300)
            .map(|nth: u32| {
                let file = vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o640)).unwrap();
                vfs.write(&cred, &file, 0, &nth.to_le_bytes(), WriteFlags::default()).unwrap();
                assert_eq!(vfs.stat(&file).nlink, 0);
                file
            })
            .collect();
        let name = |nth: usize| format!("file {nth}");
        for (nth, file) in files.iter().enumerate().filter(|(nth, _)| nth % 3 == 0) {
            vfs.link(&cred, file, &root, name(nth).as_bytes(), false).unwrap();
            assert_eq!(vfs.stat(file).nlink, 1);
        }
        let check_names = |vfs: &Arc<Vfs>, what: &str| {
            let mut found = names(vfs, &vfs.root().unwrap()).unwrap();
            found.retain(|name| name != b"lost+found");
            assert_eq!(found.len(), 100, "{}: {what}", kind.name);
            for nth in (0..300).step_by(3) {
                let file = find(vfs, &format!("/{}", name(nth))).unwrap();
                assert_eq!(read_all(vfs, &file).unwrap(), (nth as u32).to_le_bytes());
            }
        };
        // fsck.ocfs2 would delete the orphans, and leave their names in the index of their directory.
        vfs.sync().unwrap();
        let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
        let again = mount_writable(copy.clone());
        check_names(&again, "after a crash");
        again.unmount().unwrap();
        drop(again);
        assert_clean(&copy, kind.name);
        drop((files, root));
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&device, kind.name);
        let vfs = mount_writable(device.clone());
        check_names(&vfs, "mounted again");
        vfs.unmount().unwrap();
    }
}
