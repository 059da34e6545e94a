//! Orphans after a crash: on the list, in the orphan file, and more than the orphan file holds.

use crate::common::{fsck, mkfs, mount, open};
use ivers_block::BlockNo;
use ivers_oracle::e2fsck_repair;
use ivers_vfs::*;
use std::path::Path;

/// The orphans that the superblock records after replay: `s_last_orphan`, and whether `orphan_present` is
/// set.
fn recorded(path: &Path) -> (u32, bool) {
    let fs = open(path, true);
    let buffer = fs.cache.get(BlockNo(1024 / u64::from(fs.sb.block_size))).unwrap();
    let bytes = buffer.snapshot();
    let at = 1024 % fs.sb.block_size as usize;
    let word = |field: usize| u32::from_le_bytes(bytes[at + field..at + field + 4].try_into().unwrap());
    (word(0xE8), word(0x64) & 0x1_0000 != 0)
}

fn crash_with(count: u32, args: &[&str], in_file: bool, on_list: bool) {
    let dir = tempfile::tempdir().unwrap();
    let [path, ours, theirs] = ["image", "ours", "theirs"].map(|name| dir.path().join(name));
    mkfs(&path, args, 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let before = vfs.stat_fs().unwrap();
    let root = vfs.root().unwrap();
    let held: Vec<InodeRef> = (0..count)
        .map(|i| {
            let file = vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o600)).unwrap();
            if i % 64 == 0 {
                vfs.write(&cred, &file, 0, &[7; 5000], WriteFlags::empty()).unwrap();
            }
            file
        })
        .collect();
    vfs.sync().unwrap();
    // The journal may be writing in place now, and a copy made meanwhile is not one that a crash could leave.
    loop {
        std::fs::copy(&path, &ours).unwrap();
        std::fs::copy(&path, &theirs).unwrap();
        if std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap() {
            break;
        }
    }
    let (head, present) = recorded(&ours);
    assert_eq!((present, head != 0), (in_file, on_list), "{args:?}");

    // They are deleted in another order than they were created.
    let (even, odd): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    drop(odd);
    drop(even);
    drop(root);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "closed cleanly");
    assert_eq!(recorded(&path), (0, false));

    let again = mount(&ours);
    assert_eq!(again.stat_fs().unwrap().files_free, before.files_free);
    again.sync().unwrap();
    assert_eq!(again.stat_fs().unwrap().blocks_free, before.blocks_free);
    again.unmount().unwrap();
    drop(again);
    fsck(&ours, "recovered by ivers");

    e2fsck_repair(&theirs).unwrap();
    fsck(&theirs, "recovered by e2fsck");
    let after = mount(&theirs);
    assert_eq!(after.stat_fs().unwrap().files_free, before.files_free);
    after.unmount().unwrap();
}

#[test]
fn orphans_without_an_orphan_file_are_on_the_list() {
    crash_with(300, &["-t", "ext4", "-O", "^orphan_file"], false, true);
    crash_with(40, &["-t", "ext3"], false, true);
}

#[test]
fn orphans_are_recorded_in_the_orphan_file() {
    crash_with(1200, &["-t", "ext4", "-O", "orphan_file"], true, false);
    crash_with(40, &["-t", "ext4", "-b", "1024", "-O", "orphan_file,^metadata_csum"], true, false);
}

#[test]
fn orphans_beyond_the_orphan_file_are_on_the_list() {
    // 32 blocks of 254 inode numbers.
    crash_with(
        8200,
        &["-t", "ext4", "-b", "1024", "-N", "16000", "-O", "orphan_file", "-E", "orphan_file_size=32k"],
        true,
        true,
    );
}

#[test]
fn the_kernel_processes_our_orphans() {
    if !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [path, copy] = ["image", "copy"].map(|name| dir.path().join(name));
    mkfs(&path, &["-t", "ext4", "-O", "orphan_file"], 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let before = vfs.stat_fs().unwrap();
    let root = vfs.root().unwrap();
    let held: Vec<InodeRef> =
        (0..50).map(|_| vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o600)).unwrap()).collect();
    vfs.sync().unwrap();
    std::fs::copy(&path, &copy).unwrap();
    drop((held, root));
    vfs.unmount().unwrap();
    // A kernel without the feature refuses to write: skip it.
    let Ok(kernel) = ivers_oracle::LoopMount::new(&copy, "rw") else { return };
    kernel.unmount().unwrap();
    fsck(&copy, "recovered by the kernel");
    let after = mount(&copy);
    assert_eq!(after.stat_fs().unwrap().files_free, before.files_free);
    after.unmount().unwrap();
}

/// e2fsck 1.47.0 without a full check frees the orphans of the orphan file and leaves their entries there.
#[test]
fn orphans_that_e2fsck_freed_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let [path, copy] = ["image", "copy"].map(|name| dir.path().join(name));
    mkfs(&path, &["-t", "ext4", "-b", "1024", "-O", "orphan_file", "-N", "128"], 4 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let root = vfs.root().unwrap();
    let held: Vec<InodeRef> = (0..3)
        .map(|_| {
            let file = vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o600)).unwrap();
            vfs.write(&cred, &file, 0, &[7; 5000], WriteFlags::empty()).unwrap();
            file
        })
        .collect();
    vfs.sync().unwrap();
    std::fs::copy(&path, &copy).unwrap();
    drop((held, root));
    vfs.unmount().unwrap();

    e2fsck_repair(&copy).unwrap();
    let after = mount(&copy);
    // The inode numbers are free again.
    let root = after.root().unwrap();
    for nth in 0..5 {
        after.create(&cred, &root, format!("f{nth}").as_bytes(), &CreateSpec::file(0o600), false).unwrap();
    }
    drop(root);
    after.unmount().unwrap();
    drop(after);
    assert_eq!(recorded(&copy), (0, false));
    fsck(&copy, "after e2fsck and us");
}

/// One thread drops the last reference to an unnamed file while another closes the filesystem. The deferred
/// bump must be stored with the deletion; otherwise the next file with that inode number repeats values.
#[test]
fn close_waits_for_a_running_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let cred = Cred::root();
    for round in 0..8 {
        let _ = std::fs::remove_file(&path);
        mkfs(&path, &["-t", "ext4", "-N", "64"], 256 << 20);
        let clock = ManualClock::default();
        clock.set(Timestamp { sec: 1_700_000_000, nsec: 0 });
        let options = MountOptions {
            background: false,
            lazyversion: Some(true),
            clock: Some(Box::new(clock)),
            cache_bytes: 512 << 20,
            dirty_bytes: 256 << 20,
            ..MountOptions::default()
        };
        let vfs = Vfs::mount(open(&path, false), options).unwrap();
        let root = vfs.root().unwrap();
        let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o600), false).unwrap();
        let ino = file.ino;
        vfs.write(&cred, &file, 0, &[1; 4000], WriteFlags::empty()).unwrap();
        vfs.unlink(&cred, &root, b"f", false).unwrap();
        vfs.sync().unwrap();
        let mut shown = 0;
        for byte in 0..50 {
            vfs.write(&cred, &file, 0, &[byte; 4000], WriteFlags::empty()).unwrap();
            shown = vfs.change(&file).unwrap();
        }
        // Freed first, and slowly.
        for at in 1..100 {
            vfs.write(&cred, &file, at << 20, &vec![7; 1 << 20], WriteFlags::empty()).unwrap();
        }
        drop(root);
        let (begin, begun) = std::sync::mpsc::channel();
        let last_user = std::thread::spawn(move || {
            begin.send(()).unwrap();
            drop(file);
        });
        begun.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 100));
        vfs.unmount().unwrap();
        last_user.join().unwrap();
        drop(vfs);
        let vfs = mount(&path);
        let root = vfs.root().unwrap();
        let (file, _) = vfs.create(&cred, &root, b"g", &CreateSpec::file(0o600), false).unwrap();
        assert_eq!(file.ino, ino, "round {round}");
        let value = vfs.change(&file).unwrap();
        assert!(value > shown, "round {round}: {value}, and the file before showed {shown}");
        drop((file, root));
        vfs.unmount().unwrap();
    }
    fsck(&path, "closed during a deletion");
}
