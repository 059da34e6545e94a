//! Mounts and inodes whose flags (SYNC, DIRSYNC) make each change durable before its call returns.

use crate::common::mkfs;
use ivers_block::{FaultDevice, MemDevice, Recorded};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;

/// A filesystem whose every write and flush is recorded.
struct Recorder {
    vfs: Arc<Vfs>,
    device: Arc<FaultDevice>,
    seen: usize,
}

impl Recorder {
    fn new(at_once: InodeFlags) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        mkfs(&path, &["-t", "ext4"], 16 << 20);
        let base = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        let device = Arc::new(FaultDevice::new(base));
        let ext4 = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
        let options = MountOptions { background: false, sync_flags: at_once, ..MountOptions::default() };
        Self { vfs: Vfs::mount(ext4, options).unwrap(), device, seen: 0 }
    }

    /// Whether the device was flushed since the last call.
    fn flushed(&mut self) -> bool {
        let log = self.device.record();
        let new = &log[self.seen..];
        let flushed = new.iter().any(|op| matches!(op, Recorded::Flush | Recorded::Write { fua: true, .. }));
        self.seen = log.len();
        flushed
    }
}

#[test]
fn sync_flags_make_changes_durable_before_the_call_returns() {
    let (names, all) = (InodeFlags::DIRSYNC, InodeFlags::DIRSYNC | InodeFlags::SYNC);
    for at_once in [InodeFlags::empty(), names, InodeFlags::SYNC, all] {
        let mut it = Recorder::new(at_once);
        let (vfs, cred) = (it.vfs.clone(), Cred::root());
        let root = vfs.root().unwrap();
        vfs.sync().unwrap();
        it.flushed();
        let expected = [at_once.intersects(all), at_once.contains(InodeFlags::SYNC)];
        let mut check = |kind: usize, what: &str| {
            assert_eq!(it.flushed(), expected[kind], "{what} under {at_once:?}");
        };
        let spec = CreateSpec::file(0o600);
        let (file, _) = vfs.create(&cred, &root, b"f", &spec, false).unwrap();
        check(0, "create");
        vfs.link(&cred, &file, &root, b"g", false).unwrap();
        check(0, "link");
        vfs.rename(&cred, &root, b"g", &root, b"h", RenameFlags::empty(), false).unwrap();
        check(0, "rename");
        vfs.unlink(&cred, &root, b"h", false).unwrap();
        check(0, "unlink");
        vfs.write(&cred, &file, 0, b"text", WriteFlags::empty()).unwrap();
        check(1, "write");
        vfs.fallocate(&cred, &file, FallocateMode::empty(), 0, 8192).unwrap();
        check(1, "fallocate");
        vfs.set_attr(&cred, &file, &SetAttr { size: Some(1), ..SetAttr::default() }).unwrap();
        check(1, "truncate");
        vfs.set_attr(&cred, &file, &SetAttr { perm: Some(0o644), ..SetAttr::default() }).unwrap();
        check(1, "chmod");
        vfs.set_xattr(&cred, &file, b"user.a", b"b", XattrMode::Any).unwrap();
        check(1, "set_xattr");
        vfs.remove_xattr(&cred, &file, b"user.a").unwrap();
        check(1, "remove_xattr");
        drop((file, root));
        vfs.unmount().unwrap();
    }
}

/// chattr +S of one file and +D of one directory affect only those.
#[test]
fn an_inode_sync_flag_affects_only_that_inode() {
    let mut it = Recorder::new(InodeFlags::empty());
    let (vfs, cred) = (it.vfs.clone(), Cred::root());
    let root = vfs.root().unwrap();
    let mark = |inode: &InodeRef, flag: InodeFlags| {
        let flags = Some(vfs.stat(inode).flags | flag);
        vfs.set_attr(&cred, inode, &SetAttr { flags, ..SetAttr::default() }).unwrap();
    };
    let spec = CreateSpec::file(0o600);
    let (marked, _) = vfs.create(&cred, &root, b"marked", &spec, false).unwrap();
    let (plain, _) = vfs.create(&cred, &root, b"plain", &spec, false).unwrap();
    mark(&marked, InodeFlags::SYNC);
    vfs.sync().unwrap();
    it.flushed();
    vfs.set_xattr(&cred, &plain, b"user.a", b"b", XattrMode::Any).unwrap();
    assert!(!it.flushed());
    vfs.set_xattr(&cred, &marked, b"user.a", b"b", XattrMode::Any).unwrap();
    assert!(it.flushed());
    vfs.unlink(&cred, &root, b"plain", false).unwrap();
    assert!(!it.flushed());
    mark(&root, InodeFlags::DIRSYNC);
    vfs.unlink(&cred, &root, b"marked", false).unwrap();
    assert!(it.flushed());
    drop((marked, plain, root));
    vfs.unmount().unwrap();
}
