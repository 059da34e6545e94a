//! Orphans, a full filesystem, read-only mounts.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_examplefs::BLOCK_ON_DEVICE;
use ivers_examplefs::layout::*;
use ivers_vfs::*;
use std::collections::HashSet;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

fn create(vfs: &Arc<Vfs>, name: &str, spec: CreateSpec) -> Result<InodeRef> {
    Ok(vfs.create(&Cred::root(), &vfs.root()?, name.as_bytes(), &spec, false)?.0)
}

fn fill(vfs: &Arc<Vfs>, inode: &InodeRef, len: usize) -> Result<usize> {
    vfs.write(&Cred::root(), inode, 0, &vec![5; len], WriteFlags::empty())
}

#[test]
fn orphans_are_freed_by_the_next_mount() {
    let device = Arc::new(fresh(800));
    let vfs = mount(device.clone()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let before = vfs.stat_fs().unwrap();
    let (file, dir) =
        (create(&vfs, "f", CreateSpec::file(0o644)), create(&vfs, "d", CreateSpec::directory(0o755)));
    let (file, dir) = (file.unwrap(), dir.unwrap());
    for nth in 0..70 {
        vfs.create(&cred, &dir, format!("{nth}").as_bytes(), &CreateSpec::file(0o600), false).unwrap();
    }
    fill(&vfs, &file, 100_000).unwrap();
    vfs.sync().unwrap();
    for nth in 0..70 {
        vfs.unlink(&cred, &dir, format!("{nth}").as_bytes(), false).unwrap();
    }
    vfs.unlink(&cred, &root, b"f", false).unwrap();
    vfs.rmdir(&cred, &root, b"d", false).unwrap();
    vfs.sync().unwrap();
    let mut found = vec![0; 100_000];
    assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut found).unwrap(), found.len());
    assert!(found.iter().all(|byte| *byte == 5), "it is still there");

    let crashed = MemDevice::from_bytes(&device.to_bytes());
    let vfs = mount(Arc::new(crashed)).unwrap();
    let after = vfs.stat_fs().unwrap();
    // The root has grown by one block.
    assert_eq!((after.files_free, after.blocks_free), (before.files_free, before.blocks_free - 1));
}

#[test]
fn a_full_filesystem_refuses_writes_and_keeps_its_data() {
    let device = Arc::new(fresh(1024));
    let vfs = mount(device.clone()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    for round in 0..3 {
        let mut files = Vec::new();
        let full = loop {
            let file = create(&vfs, &format!("{}", files.len()), CreateSpec::file(0o644)).unwrap();
            files.push(file.clone());
            let page = |nth: u64| vfs.write(&cred, &file, nth * 4096, &[5; 4096], WriteFlags::empty());
            if let Err(error) = (0..50).try_for_each(|nth| page(nth).map(drop)) {
                break error;
            }
        };
        assert!(matches!(full, Error::Name(NameError::NoSpace)), "{full}");
        assert_eq!(vfs.stat_fs().unwrap().blocks_free, 0, "round {round}");
        // What was accepted can be overwritten and written back.
        fill(&vfs, &files[0], 200_000).unwrap();
        vfs.sync().unwrap();
        assert_eq!(vfs.health().read_only, None);
        for nth in 0..files.len() {
            vfs.unlink(&cred, &root, format!("{nth}").as_bytes(), false).unwrap();
        }
    }
    drop(root);
    vfs.unmount().unwrap();
    check(&device.to_bytes()).unwrap();
}

#[test]
fn creating_more_files_than_inodes_fails() {
    let vfs = mount(Arc::new(fresh(800))).unwrap();
    let made =
        (1..).take_while(|nth| create(&vfs, &format!("{nth}"), CreateSpec::file(0o644)).is_ok()).count();
    assert_eq!(made as u32, INODES - 1);
    vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"3", false).unwrap();
    create(&vfs, "again", CreateSpec::file(0o644)).unwrap();
}

#[test]
fn a_read_only_mount_replays_in_memory_and_writes_nothing() {
    let device = Arc::new(fresh(800));
    let vfs = mount(device.clone()).unwrap();
    let file = create(&vfs, "f", CreateSpec::file(0o644)).unwrap();
    vfs.sync().unwrap();
    let value = vfs.change(&file).unwrap();
    let before = device.to_bytes();

    let image = Arc::new(MemDevice::from_bytes(&before));
    let read_only = Vfs::mount(open(image.clone(), true).unwrap(), MountOptions::default()).unwrap();
    let file = read_only.resolve(&Cred::root(), "/f", false).unwrap();
    assert!(read_only.change(&file).unwrap() > value, "the session did not end cleanly");
    let made = create(&read_only, "g", CreateSpec::file(0o644));
    assert!(matches!(made, Err(Error::Name(NameError::ReadOnly))));
    drop(file);
    read_only.unmount().unwrap();
    assert!(image.to_bytes() == before);
}

#[test]
fn exceeding_the_limits_of_the_format_fails() {
    let vfs = mount(Arc::new(fresh(800))).unwrap();
    let cred = Cred::root();
    let file = create(&vfs, &"n".repeat(NAME_MAX), CreateSpec::file(0o644)).unwrap();
    let long = create(&vfs, &"n".repeat(NAME_MAX + 1), CreateSpec::file(0o644));
    assert!(matches!(long, Err(Error::Name(NameError::NameTooLong))));
    let past = vfs.write(&cred, &file, (MAX_BLOCKS * BLOCK) as u64, b"x", WriteFlags::empty());
    assert!(matches!(past, Err(Error::Name(NameError::TooLarge))));
    vfs.write(&cred, &file, (MAX_BLOCKS * BLOCK) as u64 - 1, b"x", WriteFlags::empty()).unwrap();
    let link = create(&vfs, "l", CreateSpec::symlink("t".repeat(MAX_BLOCKS * 4))).unwrap();
    vfs.sync().unwrap();
    assert_eq!(vfs.read_link(&Cred::root(), &link).unwrap(), "t".repeat(MAX_BLOCKS * 4).as_bytes());
    let longer = create(&vfs, "m", CreateSpec::symlink("t".repeat(MAX_BLOCKS * 4 + 1)));
    assert!(matches!(longer, Err(Error::Name(NameError::NameTooLong))));
}

/// The log finds torn copies of a block by its CRC-32C.
#[test]
fn versions_of_an_inode_differ_for_the_checksums_of_the_log() {
    let version = |counter: u64| RawInode { counter: counter.into(), ..RawInode::new_zeroed() }.sealed(ROOT);
    let sums: HashSet<u32> = (0..1000).map(|counter| crc32c::crc32c(version(counter).as_bytes())).collect();
    assert_eq!(sums.len(), 1000);
}

#[test]
fn a_reused_inode_starts_above_all_values_of_the_earlier_ones() {
    let vfs = mount(Arc::new(fresh(800))).unwrap();
    let (mut last, mut generations) = ((Ino(0), 0), HashSet::new());
    for round in 0..20 {
        let file = create(&vfs, "f", CreateSpec::file(0o644)).unwrap();
        assert!(last.0 == Ino(0) || last.0 == file.ino, "it is reused");
        assert!(generations.insert(file.generation));
        for _ in 0..=round {
            let value = vfs.change(&file).unwrap();
            assert!(value > last.1, "{value} is not above {}", last.1);
            last = (file.ino, value);
            fill(&vfs, &file, 10).unwrap();
        }
        vfs.unlink(&Cred::root(), &vfs.root().unwrap(), b"f", false).unwrap();
    }
}

/// The log still holds the blocks of a removed directory when a file has them.
#[test]
fn replay_does_not_restore_a_freed_directory_over_data() {
    let device = Arc::new(fresh(800));
    let vfs = mount(device.clone()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let dir = create(&vfs, "d", CreateSpec::directory(0o755)).unwrap();
    vfs.create(&cred, &dir, b"f", &CreateSpec::file(0o600), false).unwrap();
    vfs.sync().unwrap();
    vfs.unlink(&cred, &dir, b"f", false).unwrap();
    vfs.rmdir(&cred, &root, b"d", false).unwrap();
    drop(dir);
    vfs.sync().unwrap();
    let file = create(&vfs, "all", CreateSpec::file(0o644)).unwrap();
    let len = vfs.stat_fs().unwrap().blocks_free as usize * BLOCK;
    assert_eq!(fill(&vfs, &file, len).unwrap(), len);
    vfs.fsync(&file, false).unwrap();

    let crashed = device.to_bytes();
    let log = log(Arc::new(MemDevice::from_bytes(&crashed)), &superblock(&crashed)).unwrap();
    assert!(log.needs_recovery(), "the log is not empty, or this tests nothing");
    let vfs = mount(Arc::new(MemDevice::from_bytes(&crashed))).unwrap();
    let mut found = vec![0; len];
    let file = vfs.resolve(&cred, "/all", false).unwrap();
    assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut found).unwrap(), len);
    assert!(found.iter().all(|byte| *byte == 5));
}

#[test]
fn an_ioctl_gets_its_argument_and_returns_an_answer() {
    let vfs = mount(Arc::new(fresh(800))).unwrap();
    let file = create(&vfs, "f", CreateSpec::file(0o644)).unwrap();
    // Dirty bytes have no block before they are written back: the VFS does that first.
    vfs.write(&Cred::root(), &file, 4096, &[7; 4096], WriteFlags::empty()).unwrap();
    let ask = |cred: &Cred, input: &[u8]| vfs.ioctl(cred, &file, BLOCK_ON_DEVICE, input);
    let block =
        |at: u32| u32::from_ne_bytes(ask(&Cred::root(), &at.to_ne_bytes()).unwrap().try_into().unwrap());
    assert_eq!(block(0), 0, "a hole");
    assert_ne!(block(1), 0);
    assert_eq!(block(u32::MAX), 0);
    let refused =
        |result: Result<Vec<u8>>, why| assert!(matches!(result, Err(Error::Name(found)) if found == why));
    refused(ask(&Cred::root(), b"odd"), NameError::Invalid);
    refused(ask(&Cred::user(1, 1), &[0; 4]), NameError::NotPermitted);
    refused(vfs.ioctl(&Cred::root(), &file, BLOCK_ON_DEVICE + 1, &[0; 4]), NameError::NotSupported);
}
