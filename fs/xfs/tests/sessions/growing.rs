//! Files that grow: how many extents they have, and what is free beside them.

use crate::common::*;
use ivers_block::{FileDevice, OpenMode};
use ivers_oracle::kernel::can_loop_mount;
use ivers_oracle::{LoopMount, have_programs};
use ivers_vfs::*;
use ivers_xfs::{OpenOptions, Xfs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A sparse image, which goes with the first value. `None` without the programs that the tests need.
fn new_image(bytes: u64, args: &[&str]) -> Option<(TempDir, PathBuf)> {
    if !have_xfsprogs() || !can_loop_mount() || !have_programs(&["xfs_io"]) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    let options = ["-q", "-f"].iter().chain(args).map(std::ffi::OsStr::new);
    ivers_oracle::run("mkfs.xfs", options.chain([image.as_os_str()])).unwrap();
    Some((dir, image))
}

fn create(vfs: &Arc<Vfs>, name: &str) -> InodeRef {
    let spec = CreateSpec::of(FileType::Regular, 0o644);
    vfs.create(&Cred::root(), &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0
}

fn append(vfs: &Arc<Vfs>, file: &InodeRef, data: &[u8]) -> Result<()> {
    let written = vfs.write(&Cred::root(), file, 0, data, WriteFlags::APPEND)?;
    assert_eq!(written, data.len());
    Ok(())
}

fn free(vfs: &Arc<Vfs>) -> u64 {
    vfs.stat_fs().unwrap().blocks_free
}

/// Unmounts, and checks that nothing of what files reserved is on the device. Returns the extents of files.
fn close(vfs: Arc<Vfs>, image: &Path, names: &[String]) -> Vec<usize> {
    vfs.sync().unwrap();
    let before = free(&vfs);
    vfs.unmount().unwrap();
    drop(vfs);
    repair_finds_nothing(image, "files that grew");
    let vfs = mount_writable(image);
    assert_eq!(free(&vfs), before);
    vfs.unmount().unwrap();
    drop(vfs);
    let vfs = mount(image);
    let tree = our_tree(&vfs, true).unwrap();
    drop(vfs);
    let mounted = LoopMount::new(image, "ro").unwrap();
    assert_same(&tree, &kernel_tree(mounted.path()), "files that grew");
    mounted.unmount().unwrap();
    names.iter().map(|name| extents(image, name)).collect()
}

fn make_files(vfs: &Arc<Vfs>, count: usize) -> (Vec<String>, Vec<InodeRef>) {
    let names: Vec<_> = (0..count).map(|nth| format!("file{nth}")).collect();
    let files = names.iter().map(|name| create(vfs, name)).collect();
    (names, files)
}

#[test]
fn files_that_are_synced_by_turns_do_not_interleave() {
    let kinds: [&[&str]; 2] = [&[], &["-b", "size=1024", "-m", "rmapbt=1"]];
    for (count, args) in [(2, kinds[0]), (8, kinds[0]), (8, kinds[1])] {
        let Some((_dir, image)) = new_image(IMAGE_BYTES, args) else { return };
        let vfs = mount_writable(&image);
        let (names, files) = make_files(&vfs, count);
        for round in 0..400 {
            for file in &files {
                append(&vfs, file, &[round as u8; 4096]).unwrap();
                vfs.fsync(file, true).unwrap();
            }
        }
        drop(files);
        let found = close(vfs, &image, &names);
        eprintln!("{count} files, {args:?}: {found:?}");
        assert!(found.iter().all(|extents| *extents <= 8), "{count} files, {args:?}: {found:?}");
    }
}

#[test]
fn files_that_are_written_back_by_turns_do_not_interleave() {
    let Some((_dir, image)) = new_image(1 << 30, &[]) else { return };
    let device = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
    // Little memory, so that write-back runs often.
    let options = MountOptions { cache_bytes: 4 << 20, background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(Xfs::open(device, OpenOptions::default()).unwrap(), options).unwrap();
    let (names, files) = make_files(&vfs, 8);
    for round in 0..512 {
        for file in &files {
            append(&vfs, file, &[round as u8; 64 << 10]).unwrap();
        }
    }
    drop(files);
    let found = close(vfs, &image, &names);
    eprintln!("written back: {found:?}");
    assert!(found.iter().all(|extents| *extents <= 10), "{found:?}");
}

/// Programs truncate a file to the size that it has, as the last step of a copy.
#[test]
fn a_file_can_be_truncated_to_its_size() {
    for args in [&[][..], &["-b", "size=1024"]] {
        let Some((_dir, image)) = new_image(IMAGE_BYTES, args) else { return };
        let vfs = mount_writable(&image);
        let (names, files) = make_files(&vfs, 5);
        for (file, len) in files.iter().zip([20, 1000, 3000, 4096, 5000]) {
            let data = vec![7; len];
            append(&vfs, file, &data).unwrap();
            vfs.fsync(file, false).unwrap();
            let size = SetAttr { size: Some(len as u64), ..SetAttr::default() };
            vfs.set_attr(&Cred::root(), file, &size)
                .unwrap_or_else(|error| panic!("{args:?}, {len}: {error}"));
            let mut found = vec![0; len + 1];
            assert_eq!(vfs.read(&Cred::root(), file, 0, &mut found).unwrap(), len);
            assert!(found[..len] == data);
        }
        drop(files);
        close(vfs, &image, &names);
    }
}

#[test]
fn a_long_file_has_few_extents() {
    // The second one has groups of 350 MiB, and the log is in one of them.
    for (bytes, most) in [(8 << 30, 4), (1400 << 20, 6)] {
        let Some((_dir, image)) = new_image(bytes, &[]) else { return };
        let device = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
        // The number would depend on when a thread writes back.
        let options = MountOptions { background: false, ..MountOptions::default() };
        let vfs = Vfs::mount(Xfs::open(device, OpenOptions::default()).unwrap(), options).unwrap();
        let (file, other) = (create(&vfs, "long"), create(&vfs, "other"));
        let piece = vec![7u8; 1 << 20];
        for nth in 0..1024u64 {
            append(&vfs, &file, &piece).unwrap();
            if nth % 16 == 0 {
                append(&vfs, &other, &piece[..4096]).unwrap();
            }
        }
        drop((file, other));
        vfs.unmount().unwrap();
        drop(vfs);
        let found = extents(&image, "long");
        eprintln!("{bytes} bytes: {found}");
        assert!(found <= most, "{bytes} bytes: {found} extents");
        repair_finds_nothing(&image, "a long file");
    }
}

#[test]
fn what_a_file_reserves_is_given_up_before_space_is_refused() {
    let Some((_dir, image)) = new_image(IMAGE_BYTES, &[]) else { return };
    let vfs = mount_writable(&image);
    let growing = create(&vfs, "growing");
    let piece = vec![1u8; 1 << 20];
    for _ in 0..8 {
        append(&vfs, &growing, &piece).unwrap();
        vfs.fsync(&growing, true).unwrap();
    }
    let other = create(&vfs, "other");
    let available = vfs.stat_fs().unwrap().blocks_available;
    let mut written = 0;
    let refused = loop {
        match append(&vfs, &other, &piece[..256 << 10]) {
            Ok(()) => written += 64,
            Err(error) => break error,
        }
        vfs.fsync(&other, true).unwrap();
        assert!(written <= available, "more than there was");
    };
    assert!(matches!(refused, Error::Name(NameError::NoSpace)), "{refused}");
    assert!(written + 128 > available, "{written} of {available} blocks");
    drop((growing, other));
    close(vfs, &image, &[]);
    assert_clean(&image, "a full filesystem");
}
