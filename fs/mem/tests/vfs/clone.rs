//! Files that share blocks, and copies that the driver makes.

use ivers_mem::{Mem, MemWithBlocks};
use ivers_vfs::*;
use std::sync::Arc;

const BLOCK: usize = 4096;

fn mounted(fs: Arc<dyn FileSystem>) -> Arc<Vfs> {
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn root() -> Cred {
    Cred::root()
}

fn file(vfs: &Vfs, name: &str, data: &[u8]) -> InodeRef {
    let root_dir = vfs.root().unwrap();
    let made = vfs.create(&root(), &root_dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
    assert_eq!(vfs.write(&root(), &made, 0, data, WriteFlags::empty()).unwrap(), data.len());
    made
}

fn bytes(vfs: &Vfs, file: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; vfs.stat(file).size as usize];
    assert_eq!(vfs.read(&root(), file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn a_clone_has_the_bytes_and_each_file_changes_alone() {
    let vfs = mounted(Arc::new(Mem::default()));
    let data = pattern(2 * BLOCK + 100, 1);
    // Dirty in the cache: the clone has the newest bytes.
    let source = file(&vfs, "source", &data);
    let target = file(&vfs, "target", &pattern(BLOCK + 7, 2));
    bytes(&vfs, &target);
    let (before, rests) = (vfs.change(&target).unwrap(), vfs.change(&source).unwrap());
    vfs.clone_range(&root(), &source, 0, &target, 0, 0).unwrap();
    assert_eq!(bytes(&vfs, &target), data);
    assert!(vfs.change(&target).unwrap() > before);
    assert_eq!(vfs.change(&source), Some(rests));
    vfs.sync().unwrap();

    vfs.write(&root(), &target, 10, b"target", WriteFlags::empty()).unwrap();
    vfs.write(&root(), &source, BLOCK as u64, b"source", WriteFlags::DIRECT).unwrap();
    vfs.sync().unwrap();
    let (mut ours, mut theirs) = (data.clone(), data);
    ours[10..16].copy_from_slice(b"target");
    theirs[BLOCK..BLOCK + 6].copy_from_slice(b"source");
    assert_eq!((bytes(&vfs, &target), bytes(&vfs, &source)), (ours, theirs));
}

#[test]
fn a_clone_into_the_middle_keeps_the_rest() {
    let vfs = mounted(Arc::new(MemWithBlocks::<1024>::default()));
    let (old, new) = (pattern(5 * 1024 + 9, 3), pattern(4 * 1024, 4));
    let (source, target) = (file(&vfs, "source", &new), file(&vfs, "target", &old));
    vfs.clone_range(&root(), &source, 1024, &target, 2048, 1024).unwrap();
    let mut want = old;
    want[2048..3072].copy_from_slice(&new[1024..2048]);
    assert_eq!(bytes(&vfs, &target), want);
    // Within one file, and past its end: the gap is a hole.
    vfs.clone_range(&root(), &target, 0, &target, 8192, 1024).unwrap();
    want.resize(8192, 0);
    want.extend_from_within(..1024);
    assert_eq!(bytes(&vfs, &target), want);
}

#[test]
fn what_cannot_be_shared_is_refused_and_changes_nothing() {
    let vfs = mounted(Arc::new(Mem::default()));
    let data = pattern(3 * BLOCK + 5, 5);
    let (source, target) = (file(&vfs, "source", &data), file(&vfs, "target", &data));
    let change = vfs.change(&target).unwrap();
    let block = BLOCK as u64;
    let refused = |from: &InodeRef, at: u64, to: u64, len: u64, why: NameError| {
        let clone = vfs.clone_range(&root(), from, at, &target, to, len);
        assert!(matches!(clone, Err(Error::Name(found)) if found == why), "{at} {to} {len}: {clone:?}");
    };
    refused(&source, 1, 0, block, NameError::Invalid);
    refused(&source, 0, 1, block, NameError::Invalid);
    refused(&source, 0, 0, block + 1, NameError::Invalid);
    refused(&source, 3 * block, 0, 5, NameError::Invalid);
    refused(&source, 0, 0, 4 * block, NameError::Invalid);
    refused(&source, 5 * block, 0, 0, NameError::Invalid);
    refused(&target, 0, block, 2 * block, NameError::Invalid);
    refused(&source, 0, i64::MAX as u64 / block * block, block, NameError::TooLarge);
    refused(&vfs.root().unwrap(), 0, 0, block, NameError::IsDirectory);
    assert_eq!(vfs.change(&target), Some(change));
    assert_eq!(bytes(&vfs, &target), data);
    let fixed = SetAttr { flags: Some(InodeFlags::IMMUTABLE), ..SetAttr::default() };
    vfs.set_attr(&root(), &target, &fixed).unwrap();
    refused(&source, 0, 0, block, NameError::NotPermitted);
}

#[test]
fn a_clone_removes_privileges_and_needs_space() {
    let vfs = mounted(Arc::new(Mem::new(8 * BLOCK as u64)));
    let source = file(&vfs, "source", &pattern(5 * BLOCK, 6));
    let target = file(&vfs, "target", b"");
    let set_id = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
    vfs.set_attr(&root(), &target, &set_id).unwrap();
    let full = vfs.clone_range(&root(), &source, 0, &target, 0, 0);
    assert!(matches!(full, Err(Error::Name(NameError::NoSpace))), "every file counts its blocks");
    assert_eq!(vfs.stat(&target).size, 0);
    assert_eq!(vfs.stat(&target).perm, 0o4755);
    vfs.clone_range(&Cred::user(1, 1), &source, 0, &target, 0, BLOCK as u64).unwrap();
    assert_eq!(vfs.stat(&target).perm, 0o755);
    let free = vfs.stat_fs().unwrap().blocks_free;
    // Replaced blocks make room for others, also on a full filesystem.
    file(&vfs, "rest", &pattern(free as usize * BLOCK, 7));
    vfs.clone_range(&root(), &source, BLOCK as u64, &target, 0, BLOCK as u64).unwrap();
    assert_eq!(vfs.stat_fs().unwrap().blocks_free, 0);
}
