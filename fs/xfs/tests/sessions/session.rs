//! Sessions: change values across mounts, foreign writers and crashes; long files; a full filesystem.

use crate::common::*;
use ivers_block::{ByteOffset, Device, FileDevice, OpenMode};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use ivers_xfs::layout::superblock::Superblock;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

fn create(vfs: &Arc<Vfs>, name: &str) -> InodeRef {
    let spec = CreateSpec::of(FileType::Regular, 0o644);
    vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0
}

fn write(vfs: &Arc<Vfs>, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
    vfs.write(&Cred::root(), inode, offset, data, WriteFlags::empty())
}

fn value(vfs: &Arc<Vfs>, path: &str) -> Option<u64> {
    vfs.change(&vfs.resolve(&Cred::root(), path, false).unwrap())
}

/// A new image in a temporary directory, which goes with the first value. `None` without the programs of XFS.
fn new_image() -> Option<(TempDir, PathBuf)> {
    if !have_xfsprogs() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &[], None);
    Some((dir, image))
}

fn mount_of(image: &Path) {
    LoopMount::new(image, "").unwrap().unmount().unwrap();
}

#[test]
fn values_last_over_remounts_and_rise_after_a_foreign_writer() {
    if !can_loop_mount() {
        return;
    }
    let Some((_dir, image)) = new_image() else { return };
    let vfs = mount_writable(&image);
    let file = create(&vfs, "file");
    write(&vfs, &file, 0, b"text").unwrap();
    let first = vfs.change(&file);
    assert!(first.is_some() && vfs.info().semantics.crash_safe);
    drop(file);
    vfs.unmount().unwrap();
    drop(vfs);
    // Nobody wrote since: a reader shows the same value.
    let vfs = mount(&image);
    assert!(vfs.info().semantics.persistent);
    assert_eq!(value(&vfs, "/file"), first);
    drop(vfs);
    let vfs = mount_writable(&image);
    assert_eq!(value(&vfs, "/file"), first);
    vfs.unmount().unwrap();
    drop(vfs);
    // A mount of Linux that changes nothing.
    mount_of(&image);
    let read = || {
        let vfs = mount(&image);
        assert!(!vfs.info().semantics.persistent, "a reader does not know what was shown before");
        (vfs.info().valid_until, vfs.info().instance("mount"), value(&vfs, "/file"))
    };
    let foreign = read();
    assert!(matches!(foreign.0, ValidUntil::Write(_)), "{foreign:?}");
    assert_eq!(read(), foreign, "until a program writes");
    mount_of(&image);
    assert!(read().0 != foreign.0 && read().1 != foreign.1);
    let vfs = mount_writable(&image);
    let second = value(&vfs, "/file");
    assert!(second > first, "{second:?} {first:?}");
    vfs.unmount().unwrap();
    repair_finds_nothing(&image, "sessions");
}

#[test]
fn a_file_with_many_blocks_of_attributes_is_deleted_in_parts() {
    let Some((_dir, image)) = new_image() else { return };
    let vfs = mount_writable(&image);
    let free = || vfs.stat_fs().unwrap().blocks_free;
    let before = free();
    let file = create(&vfs, "file");
    // More blocks than one transaction can log as free.
    for number in 0..300 {
        let name = format!("user.{number}");
        let value = [number as u8; 65_000];
        vfs.set_xattr(&Cred::root(), &file, name.as_bytes(), &value, XattrMode::Any).unwrap();
    }
    drop(file);
    vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"file", false).unwrap();
    vfs.sync().unwrap();
    assert!(before - free() < 100, "{before} {}", free());
    vfs.unmount().unwrap();
    repair_finds_nothing(&image, "attributes");
}

#[test]
fn linux_removes_attributes_one_by_one() {
    if !have_xfsprogs() || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let name = |nth: usize| format!("user.{nth}{}", "n".repeat(nth % 60));
    for args in [&[][..], &["-b", "size=1024"]] {
        mkfs(&image, args, None);
        let mut random = StdRng::seed_from_u64(3);
        let vfs = mount_writable(&image);
        let file = create(&vfs, "file");
        let mut model = BTreeMap::new();
        for round in 0..1500 {
            let nth = random.random_range(0..200);
            let name = name(nth);
            if model.contains_key(&nth) && random.random_bool(0.5) {
                vfs.remove_xattr(&Cred::root(), &file, name.as_bytes()).unwrap();
                model.remove(&nth);
            } else {
                let value = vec![round as u8; random.random_range(0..250)];
                vfs.set_xattr(&Cred::root(), &file, name.as_bytes(), &value, XattrMode::Any).unwrap();
                model.insert(nth, value);
            }
        }
        drop(file);
        vfs.unmount().unwrap();
        drop(vfs);
        // It joins blocks. That moves their attributes.
        let mounted = LoopMount::new(&image, "").unwrap();
        let path = mounted.path().join("file");
        let mut order: Vec<usize> = model.keys().copied().collect();
        order.shuffle(&mut random);
        for nth in order {
            let value = xattr::get(&path, name(nth)).unwrap();
            assert_eq!(value.as_ref(), model.get(&nth), "{args:?}: {}", name(nth));
            xattr::remove(&path, name(nth)).unwrap();
        }
        mounted.unmount().unwrap();
        repair_finds_nothing(&image, "attributes removed by Linux");
        assert_clean(&image, "attributes removed by Linux");
    }
}

#[test]
fn a_kernel_that_stops_before_its_first_record_is_noticed() {
    if !can_loop_mount() {
        return;
    }
    let Some((dir, image)) = new_image() else { return };
    let vfs = mount_writable(&image);
    drop(create(&vfs, "file"));
    let before = value(&vfs, "/file");
    vfs.unmount().unwrap();
    drop(vfs);
    let mounted = LoopMount::new(&image, "").unwrap();
    let copy = dir.path().join("copy");
    copy_image(&image, &copy);
    mounted.unmount().unwrap();
    let vfs = mount_writable(&copy);
    assert!(value(&vfs, "/file") > before);
    vfs.unmount().unwrap();
}

#[test]
fn a_session_that_does_not_end_raises_the_values() {
    let Some((dir, image)) = new_image() else { return };
    let copy = dir.path().join("copy");
    let vfs = mount_writable(&image);
    drop(create(&vfs, "file"));
    vfs.sync().unwrap();
    let before = value(&vfs, "/file");
    copy_image(&image, &copy);
    vfs.unmount().unwrap();
    let vfs = mount(&copy);
    assert!(!vfs.info().semantics.persistent);
    assert!(matches!(vfs.info().valid_until, ValidUntil::Unmount(Some(_))));
    drop(vfs);
    let vfs = mount_writable(&copy);
    assert!(value(&vfs, "/file") > before);
    vfs.unmount().unwrap();
    drop(vfs);
    repair_finds_nothing(&copy, "after a crash");
}

#[test]
fn a_failed_allocation_leaves_the_size() {
    let Some((_dir, image)) = new_image() else { return };
    let vfs = mount_writable(&image);
    let file = create(&vfs, "file");
    write(&vfs, &file, 0, b"text").unwrap();
    vfs.fallocate(&Cred::root(), &file, FallocateMode::KEEP_SIZE, 0, 1 << 16).unwrap();
    vfs.sync().unwrap();
    // There is space already. Only the record of the new size fails.
    vfs.fs().abort(&Error::io(std::io::Error::other("no more changes")));
    let allocation = vfs.fs().allocation().unwrap();
    let failed =
        allocation.fallocate(&Cred::root(), &file, FallocateMode::empty(), 0, 1 << 16, BlockPool::All);
    assert!(failed.is_err() && file.size() == 4, "{failed:?}, {} bytes", file.size());
}

#[test]
fn a_full_filesystem_refuses_and_recovers() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let kinds: [&dyn Fn(); 3] = [
        &|| mkfs(&image, &[], None),
        &|| mkfs(&image, &["-b", "size=1024", "-m", "rmapbt=1"], None),
        &|| parents::KINDS[0].make(&image),
    ];
    for make in kinds {
        make();
        let vfs = mount_writable(&image);
        let free = vfs.stat_fs().unwrap().blocks_available;
        let piece = vec![7u8; 1 << 20];
        let (mut files, mut full) = (0, false);
        while !full {
            let file = create(&vfs, &files.to_string());
            files += 1;
            for nth in 0..40 {
                match write(&vfs, &file, nth << 20, &piece) {
                    Err(Error::Name(NameError::NoSpace)) => full = true,
                    written => drop(written.unwrap()),
                }
            }
        }
        vfs.sync().unwrap();
        // Small files until nothing fits.
        let mut small = 0;
        loop {
            let spec = CreateSpec::of(FileType::Directory, 0o755);
            let name = format!("small-{small}");
            match vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &spec, false) {
                Err(Error::Name(NameError::NoSpace)) => break,
                made => drop(made.unwrap()),
            }
            small += 1;
            assert!(small < 200_000);
        }
        vfs.sync().unwrap();
        for nth in 0..files {
            let name = nth.to_string();
            vfs.unlink(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), false).unwrap();
        }
        for nth in 0..small {
            let name = format!("small-{nth}");
            vfs.rmdir(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), false).unwrap();
        }
        vfs.sync().unwrap();
        let again = vfs.stat_fs().unwrap().blocks_available;
        assert!(again + 20_000 > free && vfs.fs().health().read_only.is_none(), "{free} then {again}");
        vfs.unmount().unwrap();
        drop(vfs);
        repair_finds_nothing(&image, "once full");
        assert_clean(&image, "once full");
    }
}

#[test]
fn damage_stays_visible_when_an_inode_beside_it_is_written() {
    let Some((_dir, image)) = new_image() else { return };
    let vfs = mount_writable(&image);
    let inos = ["changed", "unlinked", "damaged"].map(|name| create(&vfs, name).ino.0);
    vfs.unmount().unwrap();
    drop(vfs);
    let disk = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
    let mut head = vec![0; 32 << 10];
    disk.read_at(ByteOffset(0), &mut head).unwrap();
    let sb = Superblock::parse(&head, disk.size_bytes(), "image").unwrap();
    let cluster = |ino: u64| ino / 32;
    assert!(inos.iter().all(|ino| cluster(*ino) == cluster(inos[0])), "{inos:?}");
    let (block, at) = sb.inode_place(inos[2]).unwrap();
    // A byte of the time of the last modification.
    let offset = block.offset(sb.block_size) + at as u64 + 43;
    let mut byte = [0];
    disk.read_at(offset, &mut byte).unwrap();
    disk.write_at(offset, &[byte[0] ^ 1]).unwrap();
    drop(disk);
    let vfs = mount_writable(&image);
    let open = |vfs: &Arc<Vfs>, path: &str| vfs.resolve(&Cred::root(), path, false);
    write(&vfs, &open(&vfs, "/changed").unwrap(), 0, b"text").unwrap();
    vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"unlinked", false).unwrap();
    drop(create(&vfs, "new"));
    vfs.unmount().unwrap();
    drop(vfs);
    let vfs = mount(&image);
    assert_eq!(read_all(&vfs, &open(&vfs, "/changed").unwrap()).unwrap(), b"text");
    open(&vfs, "/new").unwrap();
    let error = open(&vfs, "/damaged").expect_err("it is damaged");
    assert!(error.to_string().contains("bad checksum of the inode"), "{error}");
}
