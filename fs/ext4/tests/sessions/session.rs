//! Whole sessions through the VFS: change, unmount, e2fsck, mount again and compare.

use crate::common::{VARIANTS, debugfs, fsck, mkfs, mount, open};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        })
        .collect()
}

fn make(vfs: &Vfs, dir: &InodeRef, name: &str, content: &[u8]) -> InodeRef {
    let root = Cred::root();
    let (file, _) = vfs.create(&root, dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    if !content.is_empty() {
        assert_eq!(vfs.write(&root, &file, 0, content, WriteFlags::empty()).unwrap(), content.len());
    }
    file
}

fn read(vfs: &Vfs, file: &InodeRef) -> Vec<u8> {
    let mut out = vec![0; vfs.stat(file).size as usize + 10];
    let got = vfs.read(&Cred::root(), file, 0, &mut out).unwrap();
    out.truncate(got);
    out
}

fn names(vfs: &Vfs, dir: &InodeRef) -> Vec<String> {
    let mut out = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        out.push(String::from_utf8_lossy(entry.name).into_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    out.sort();
    out
}

fn work(vfs: &Arc<Vfs>) {
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    let (dir, _) = vfs.create(&cred, &root, b"dir", &CreateSpec::directory(0o755), false).unwrap();
    for i in 0..200 {
        make(vfs, &dir, &format!("file-{i:04}"), &bytes(i, (i as usize * 97) % 9000));
    }
    let big = make(vfs, &root, "big", &bytes(1, 3 << 20));
    vfs.write(&cred, &big, 8 << 20, &bytes(2, 100_000), WriteFlags::empty()).unwrap();
    vfs.create(&cred, &root, b"short", &CreateSpec::symlink("dir/file-0001"), false).unwrap();
    vfs.create(&cred, &root, b"long", &CreateSpec::symlink("x/".repeat(300)), false).unwrap();
    for i in (0..200).step_by(3) {
        vfs.unlink(&cred, &dir, format!("file-{i:04}").as_bytes(), false).unwrap();
    }
    let (sub, _) = vfs.create(&cred, &dir, b"sub", &CreateSpec::directory(0o700), false).unwrap();
    vfs.rename(&cred, &dir, b"file-0001", &sub, b"moved", RenameFlags::empty(), false).unwrap();
    vfs.rename(&cred, &dir, b"file-0002", &dir, b"file-0004", RenameFlags::empty(), false).unwrap();
    vfs.rename(&cred, &dir, b"sub", &root, b"sub", RenameFlags::empty(), false).unwrap();
    let file = vfs.lookup(&cred, &dir, b"file-0005").unwrap();
    vfs.link(&cred, &file, &root, b"hard", false).unwrap();
    vfs.set_xattr(&cred, &file, b"user.small", b"value", XattrMode::Any).unwrap();
    vfs.set_xattr(&cred, &file, b"user.larger", &bytes(5, 600), XattrMode::Any).unwrap();
    vfs.set_attr(&cred, &big, &SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
    let (gone, _) = vfs.create(&cred, &root, b"gone", &CreateSpec::directory(0o700), false).unwrap();
    drop(gone);
    vfs.rmdir(&cred, &root, b"gone", false).unwrap();
    let open = make(vfs, &root, "open-unlinked", &bytes(9, 50_000));
    vfs.unlink(&cred, &root, b"open-unlinked", false).unwrap();
    assert_eq!(read(vfs, &open), bytes(9, 50_000));
}

fn look(vfs: &Arc<Vfs>, what: &str) {
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    assert_eq!(
        names(vfs, &root),
        [".", "..", "big", "dir", "hard", "long", "lost+found", "short", "sub"],
        "{what}"
    );
    let dir = vfs.lookup(&cred, &root, b"dir").unwrap();
    for i in 0..200u64 {
        let name = format!("file-{i:04}");
        let found = vfs.lookup(&cred, &dir, name.as_bytes());
        if i % 3 == 0 || i == 1 || i == 2 {
            assert!(found.is_err(), "{what}: {name}");
        } else {
            let from = if i == 4 { 2 } else { i };
            let content = bytes(from, (from as usize * 97) % 9000);
            assert!(read(vfs, &found.unwrap()) == content, "{what}: {name}");
        }
    }
    let big = vfs.lookup(&cred, &root, b"big").unwrap();
    assert!(read(vfs, &big) == bytes(1, 3 << 20)[..1 << 20], "{what}");
    assert_eq!(
        vfs.read_link(&Cred::root(), &vfs.lookup(&cred, &root, b"short").unwrap()).unwrap(),
        b"dir/file-0001"
    );
    assert_eq!(
        vfs.read_link(&Cred::root(), &vfs.lookup(&cred, &root, b"long").unwrap()).unwrap(),
        "x/".repeat(300).as_bytes()
    );
    let hard = vfs.lookup(&cred, &root, b"hard").unwrap();
    assert_eq!(vfs.stat(&hard).nlink, 2);
    assert_eq!(vfs.get_xattr(&cred, &hard, b"user.small").unwrap(), b"value");
    assert_eq!(vfs.get_xattr(&cred, &hard, b"user.larger").unwrap(), bytes(5, 600));
    let moved = vfs.resolve(&cred, b"/sub/moved", true).unwrap();
    assert_eq!(read(vfs, &moved), bytes(1, 97));
}

#[test]
fn a_session_leaves_a_clean_image_of_every_shape() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in VARIANTS {
        let path = dir.path().join("image");
        mkfs(&path, args, 64 << 20);
        let vfs = mount(&path);
        work(&vfs);
        look(&vfs, name);
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&path, name);
        let vfs = mount(&path);
        look(&vfs, name);
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&path, name);
    }
}

#[test]
fn the_change_attribute_survives_a_clean_remount_and_equals_debugfs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4"], 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let file = make(&vfs, &vfs.root().unwrap(), "file", b"one");
    let first = vfs.change(&file).unwrap();
    assert_eq!(vfs.change(&file), Some(first));
    vfs.write(&cred, &file, 0, b"two", WriteFlags::empty()).unwrap();
    let second = vfs.change(&file).unwrap();
    assert!(second > first);
    vfs.sync().unwrap();
    let stored = vfs.stored_counter(&file);
    let ino = file.ino;
    drop(file);
    vfs.unmount().unwrap();
    drop(vfs);
    let printed = debugfs(&path, &format!("stat <{ino}>"));
    let expected = format!("Version: {:#010x}:{:08x}", stored >> 32, stored & 0xFFFF_FFFF);
    assert!(printed.contains(&expected), "{expected} is not in {printed}");
    let vfs = mount(&path);
    let file = vfs.resolve(&cred, b"/file", true).unwrap();
    assert_eq!(vfs.change(&file), Some(second));
    assert!(vfs.list_xattr(&cred, &vfs.root().unwrap()).unwrap().is_empty(), "the epoch record is hidden");
    drop(file);
    vfs.unmount().unwrap();
    drop(vfs);
    // A foreign writer: values served before are no longer valid.
    debugfs_write(&path);
    let vfs = mount(&path);
    let file = vfs.resolve(&cred, b"/file", true).unwrap();
    assert!(vfs.change(&file).unwrap() > second + (1 << 39));
    drop(file);
    vfs.unmount().unwrap();
    fsck(&path, "after all");
}

fn debugfs_write(path: &std::path::Path) {
    let out = std::process::Command::new("debugfs")
        .args(["-w", "-R", "ssv mnt_count 77"])
        .arg(path)
        .output()
        .unwrap();
    assert!(out.status.success());
}

#[test]
fn an_unclean_session_raises_the_epoch_and_keeps_synced_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let copy = dir.path().join("copy");
    mkfs(&path, &["-t", "ext4"], 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    work(&vfs);
    let file = make(&vfs, &vfs.root().unwrap(), "synced", &bytes(3, 70_000));
    vfs.fsync(&file, false).unwrap();
    let seen = vfs.change(&file).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    // The reader replays in memory and serves the values that the writer will serve.
    let fs = open(&copy, true);
    let base = fs.epochs().unwrap().base();
    assert_eq!(fs.health().no_change_attribute, None);
    drop(fs);
    let again = mount(&copy);
    assert_eq!(again.fs().epochs().unwrap().base(), base);
    let found = again.resolve(&cred, b"/synced", true).unwrap();
    assert!(read(&again, &found) == bytes(3, 70_000));
    assert!(again.change(&found).unwrap() > seen);
    drop(found);
    again.unmount().unwrap();
    drop(again);
    fsck(&copy, "recovered by ivers");
    drop(file);
    vfs.unmount().unwrap();
}

#[test]
fn orphans_of_a_crash_are_processed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for (name, args) in
        [("default", &["-t", "ext4"][..]), ("ext3", &["-t", "ext3"]), ("128", &["-t", "ext4", "-I", "128"])]
    {
        mkfs(&path, args, 64 << 20);
        let cred = Cred::root();
        let vfs = mount(&path);
        let free = vfs.stat_fs().unwrap();
        let root = vfs.root().unwrap();
        let held: Vec<InodeRef> = (0..5)
            .map(|i| {
                let name = format!("open-{i}");
                let file = make(&vfs, &root, &name, &bytes(i, 300_000));
                vfs.fsync(&file, false).unwrap();
                vfs.set_xattr(&cred, &file, b"user.x", &bytes(i, 700), XattrMode::Any).unwrap();
                vfs.unlink(&cred, &root, name.as_bytes(), false).unwrap();
                file
            })
            .collect();
        let unnamed = vfs.create_unnamed(&cred, &root, &CreateSpec::file(0o600)).unwrap();
        vfs.write(&cred, &unnamed, 0, b"nobody's", WriteFlags::empty()).unwrap();
        vfs.sync().unwrap();
        std::fs::copy(&path, &copy).unwrap();
        drop((held, unnamed, root));
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&path, name);
        let again = mount(&copy);
        assert_eq!(again.stat_fs().unwrap().files_free, free.files_free, "{name}");
        again.sync().unwrap();
        assert_eq!(again.stat_fs().unwrap().blocks_free, free.blocks_free, "{name}");
        again.unmount().unwrap();
        drop(again);
        fsck(&copy, name);
    }
}

#[test]
fn a_full_filesystem_stays_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (name, args) in
        [("default", &["-t", "ext4"][..]), ("1k", &["-t", "ext4", "-b", "1024"]), ("ext2", &["-t", "ext2"])]
    {
        mkfs(&path, args, 24 << 20);
        let cred = Cred::root();
        let vfs = mount(&path);
        let root = vfs.root().unwrap();
        let mut made = 0;
        let full = loop {
            let file = match vfs.create(
                &cred,
                &root,
                format!("f{made}").as_bytes(),
                &CreateSpec::file(0o644),
                false,
            ) {
                Ok((file, _)) => file,
                Err(error) => break error,
            };
            made += 1;
            if let Err(error) = vfs.write(&cred, &file, 0, &bytes(made, 700_000), WriteFlags::empty()) {
                break error;
            }
            assert!(made < 1000);
        };
        assert!(matches!(full, Error::Name(NameError::NoSpace)), "{name}: {full}");
        for i in 0..3000 {
            if vfs
                .create(&cred, &root, format!("small{i}").as_bytes(), &CreateSpec::file(0o644), false)
                .is_err()
            {
                break;
            }
        }
        vfs.sync().unwrap();
        for i in 0..made / 2 {
            vfs.unlink(&cred, &root, format!("f{i}").as_bytes(), false).unwrap();
        }
        vfs.sync().unwrap();
        let after = make(&vfs, &root, "after", &bytes(4, 2 << 20));
        vfs.fsync(&after, false).unwrap();
        assert!(read(&vfs, &after) == bytes(4, 2 << 20), "{name}");
        drop((root, after));
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&path, name);
    }
}

#[test]
fn a_32_bit_counter_that_overflows_still_increases() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4", "-I", "128"], 64 << 20);
    let cred = Cred::root();
    let vfs = mount(&path);
    let file = make(&vfs, &vfs.root().unwrap(), "file", b"one");
    file.counter.set(u64::from(u32::MAX) - 1);
    let mut last = vfs.change(&file).unwrap();
    for i in 0..5u8 {
        vfs.write(&cred, &file, 0, &[i], WriteFlags::empty()).unwrap();
        vfs.fsync(&file, false).unwrap();
        let now = vfs.change(&file).unwrap();
        assert!(now > last, "{i}: {now} after {last}");
        last = now;
    }
    vfs.set_attr(&cred, &file, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    let now = vfs.change(&file).unwrap();
    assert!(now > last);
    last = now;
    drop(file);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "wrapped");
    let vfs = mount(&path);
    let file = vfs.resolve(&cred, b"/file", true).unwrap();
    assert!(vfs.change(&file).unwrap() > last);
    assert!(vfs.stored_counter(&file) < 100);
    drop(file);
    vfs.unmount().unwrap();
}

/// The epoch record that rises is stored on the root itself.
#[test]
fn the_counter_of_the_root_overflows_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4", "-I", "128"], 64 << 20);
    let vfs = mount(&path);
    let root = vfs.root().unwrap();
    root.counter.set(u64::from(u32::MAX) - 1);
    let mut last = vfs.change(&root).unwrap();
    for i in 0..4 {
        make(&vfs, &root, &format!("f{i}"), b"");
        let now = vfs.change(&root).unwrap();
        assert!(now > last, "{i}: {now} after {last}");
        last = now;
    }
    drop(root);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&path, "wrapped");
    let vfs = mount(&path);
    assert!(vfs.change(&vfs.root().unwrap()).unwrap() > last);
    vfs.unmount().unwrap();
}

#[test]
fn an_aborted_journal_serves_no_change_attribute() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4"], 16 << 20);
    let base = Arc::new(ivers_block::MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
    let device = Arc::new(ivers_block::FaultDevice::new(base));
    let fs = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, &vfs.root().unwrap(), b"f", &CreateSpec::file(0o600), false).unwrap();
    vfs.fsync(&file, false).unwrap();
    let before = vfs.change(&file).expect("a change attribute");
    assert_eq!(vfs.no_change_attribute(), None);
    device.fail_writes_from(Some(device.writes()));
    vfs.write(&cred, &file, 0, b"lost", WriteFlags::empty()).unwrap();
    assert!(vfs.fsync(&file, false).is_err());
    assert!(
        vfs.set_attr(&cred, &file, &SetAttr { perm: Some(0o644), ..SetAttr::default() }).is_err()
            || vfs.sync().is_err()
    );
    assert_eq!(vfs.change(&file), None);
    assert!(vfs.no_change_attribute().unwrap().contains("journal"), "{:?}", vfs.no_change_attribute());
    drop(file);
    assert!(vfs.unmount().is_err());
    drop(vfs);
    device.fail_writes_from(None);
    let fs = Ext4::open(device, OpenOptions::default()).unwrap();
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let file = vfs.resolve(&cred, "/f", false).unwrap();
    assert!(vfs.change(&file).unwrap() > before + (1 << 39), "an epoch later");
    drop(file);
    vfs.unmount().unwrap();
}

#[test]
fn an_fsync_without_changes_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for args in [&["-t", "ext4"][..], &["-t", "ext2"]] {
        mkfs(&path, args, 16 << 20);
        let base = Arc::new(ivers_block::MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        let device = Arc::new(ivers_block::FaultDevice::new(base));
        let ext4 = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let vfs = Vfs::mount(ext4.clone(), options).unwrap();
        let cred = Cred::root();
        let root = vfs.root().unwrap();
        let (quiet, busy) = (make(&vfs, &root, "quiet", &bytes(1, 9000)), make(&vfs, &root, "busy", b"one"));
        vfs.fsync(&quiet, false).unwrap();
        let done = device.len();
        vfs.fsync(&quiet, false).unwrap();
        vfs.fsync(&root, false).unwrap();
        assert_eq!(device.len(), done, "{args:?}: nothing was left to do");

        // Changes of other files do not affect it.
        vfs.write(&cred, &busy, 0, b"two", WriteFlags::empty()).unwrap();
        vfs.fsync(&quiet, false).unwrap();
        assert_eq!(device.len(), done, "{args:?}: only another file changed");

        // Each of these needs a flush: an overwrite that bypasses every cache as much as a change of
        // metadata.
        let mut done = done;
        let mut costs = |what: &str, file: &InodeRef| {
            vfs.fsync(file, false).unwrap();
            let log = device.record();
            assert!(log.len() > done, "{args:?}: {what} was not made durable");
            assert!(
                log[done..].iter().any(|op| matches!(op, ivers_block::Recorded::Flush)
                    || matches!(op, ivers_block::Recorded::Write { fua: true, .. })),
                "{args:?}: {what} was not flushed"
            );
            done = log.len();
            vfs.fsync(file, false).unwrap();
            assert_eq!(device.len(), done, "{args:?}: {what} was durable");
        };
        costs("a write", &busy);
        vfs.write(&cred, &quiet, 0, &bytes(2, 4096), WriteFlags::DIRECT).unwrap();
        costs("a direct overwrite", &quiet);
        vfs.set_attr(&cred, &quiet, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        costs("a mode", &quiet);
        vfs.set_xattr(&cred, &quiet, b"user.a", b"b", XattrMode::Any).unwrap();
        costs("an attribute", &quiet);
        vfs.rename(&cred, &root, b"quiet", &root, b"still", RenameFlags::empty(), false).unwrap();
        costs("a rename", &quiet);
        vfs.unlink(&cred, &root, b"busy", false).unwrap();
        costs("a lost name", &root);

        // Written back, not yet durable, evicted and loaded again: the next fsync must still flush.
        vfs.write(&cred, &quiet, 0, &bytes(3, 4096), WriteFlags::DIRECT).unwrap();
        let again = Inode::detached(ext4.load_inode(quiet.ino).unwrap());
        let before = device.len();
        ext4.fsync(&again, false).unwrap();
        assert!(device.len() > before, "{args:?}: it may have changed before it was loaded");
        drop((again, quiet, busy, root));
        vfs.unmount().unwrap();
    }
}

/// Ordinary users cannot use reserved blocks (`mkfs -m`), neither for data nor for fallocate.
#[test]
fn ordinary_users_cannot_use_reserved_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-t", "ext4", "-m", "25", "-b", "4096"], 64 << 20);
    let out =
        std::process::Command::new("tune2fs").args(["-u", "7", "-g", "70"]).arg(&image).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let vfs = mount(&image);
    let file = make(&vfs, &vfs.root().unwrap(), "f", b"");
    let user = Cred::user(1000, 1000);
    let open_room = WriteFlags::empty();
    let is_full = |result: Result<usize>| matches!(result, Err(Error::Name(NameError::NoSpace)));
    let piece = [5; 65536];
    let mut end = 0;
    while !is_full(vfs.write(&user, &file, end, &piece, open_room)) {
        end += piece.len() as u64;
        assert!(end < 64 << 20);
    }
    let left = vfs.stat_fs().unwrap();
    assert!(left.blocks_free >= 4096 && left.blocks_available < 64, "{left:?}");
    // The user who opened the file counts, not the caller.
    assert!(is_full(vfs.write(&Cred::root(), &file, end, &piece, WriteFlags::UNRESERVED_POOL)));
    let refused = vfs.fallocate(&user, &file, FallocateMode::KEEP_SIZE, end, 1 << 20);
    assert!(matches!(refused, Err(Error::Name(NameError::NoSpace))), "{refused:?}");
    // Overwriting allocated blocks needs no space.
    assert_eq!(vfs.write(&user, &file, 0, &piece, open_room).unwrap(), piece.len());
    for other in [Cred::root(), Cred::user(7, 1), Cred { groups: vec![70], ..Cred::user(8, 8) }] {
        assert_eq!(vfs.write(&other, &file, end, &piece, open_room).unwrap(), piece.len(), "{other:?}");
        end += piece.len() as u64;
    }
    vfs.fallocate(&Cred::root(), &file, FallocateMode::KEEP_SIZE, end, 1 << 20).unwrap();
    drop(file);
    vfs.unmount().unwrap();
    drop(vfs);
    fsck(&image, "the reserve in use");
}

/// A kernel that aborts its journal records the error there first.
#[test]
fn an_error_recorded_only_in_the_journal_forbids_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4", "-b", "4096"], 32 << 20);
    let mut image = std::fs::read(&path).unwrap();
    // `h_magic` and `h_blocktype` of the journal's superblock; `s_errno` is -EIO.
    let header = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = image.chunks(4096).position(|block| block.starts_with(&header)).unwrap();
    image[block * 4096 + 0x20..][..4].copy_from_slice(&(-5_i32).to_be_bytes());
    std::fs::write(&path, image).unwrap();
    let fs = open(&path, false);
    assert!(fs.read_only.as_ref().is_some_and(|why| why.contains("journal")), "{:?}", fs.read_only);
}

#[test]
fn files_stay_small_without_large_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext2", "-O", "^large_file"], 16 << 20);
    let vfs = mount(&path);
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, &vfs.root().unwrap(), b"f", &CreateSpec::file(0o600), false).unwrap();
    let largest = (1 << 31) - 1;
    vfs.set_attr(&cred, &file, &SetAttr { size: Some(largest), ..SetAttr::default() }).unwrap();
    let beyond = SetAttr { size: Some(largest + 1), ..SetAttr::default() };
    assert!(matches!(vfs.set_attr(&cred, &file, &beyond), Err(Error::Name(NameError::TooLarge))));
    drop(file);
    vfs.unmount().unwrap();
    fsck(&path, "a file of 2 GiB less one byte");
}

/// An observer that asks for paths and refuses nothing.
struct PathObserver;

impl FileObserver for PathObserver {
    fn on_open(&self, _: &Vfs, _: &Cred, _: &InodeRef, _: OpenMode) -> Result<()> {
        Ok(())
    }
    fn on_close(&self, _: &Vfs, _: &InodeRef, _: OpenMode) {}
    fn on_create(&self, _: &Inode) {}
    fn on_delete(&self, _: Ino) {}
    fn report(&self) -> String {
        "{}".into()
    }
}

#[test]
fn a_path_hint_is_valid_while_the_file_has_its_inode_number() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &[], 32 << 20);
    let budget = Arc::new(ivers_block::Budget::new(8 << 20));
    let options = MountOptions {
        observer: Some(Arc::new(PathObserver)),
        budget: Some(budget.clone()),
        background: false,
        ..MountOptions::default()
    };
    let vfs = Vfs::mount(open(&image, false), options).unwrap();
    let (root, cred) = (vfs.root().unwrap(), Cred::root());
    let (sub, _) = vfs.create(&cred, &root, b"sub", &CreateSpec::directory(0o755), false).unwrap();
    let numbers: Vec<Ino> = (0..500).map(|nth| make(&vfs, &sub, &format!("f{nth}"), b"x").ino).collect();
    drop(sub);
    let leave_memory = || {
        vfs.sync().unwrap();
        let others = budget.limit() * 2;
        budget.charge(others);
        // Any change of attributes triggers eviction first; this one sets nothing.
        for _ in 0..200 {
            vfs.set_attr(&cred, &root, &SetAttr::default()).unwrap();
        }
        budget.uncharge(others);
    };
    leave_memory();
    for (nth, ino) in numbers.iter().enumerate() {
        let inode = vfs.get(*ino).unwrap();
        assert_eq!(vfs.path_of(&inode), Some(format!("/sub/f{nth}").into_bytes()));
    }
    // After its removal, another file without a name here has its inode number.
    let sub = vfs.lookup(&cred, &root, b"sub").unwrap();
    leave_memory();
    vfs.unlink(&cred, &sub, b"f7", false).unwrap();
    vfs.sync().unwrap();
    let nameless = vfs.create_unnamed(&cred, &sub, &CreateSpec::file(0o644)).unwrap();
    assert_eq!(nameless.ino, numbers[7]);
    assert_eq!(vfs.path_of(&nameless), None);
    drop(nameless);
    vfs.unmount().unwrap();
    fsck(&image, "a path is known");
}
