//! How often a session waits for the medium.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_vfs::*;
use ivers_xfs::mkfs::{MkfsOptions, mkfs};
use ivers_xfs::{OpenOptions, Xfs};
use std::sync::Arc;

/// A command such as `ivers chmod` waits for the medium this often.
///
/// Returns the flushes with something to flush, and the durable writes.
fn waits(change: impl Fn(&Vfs, &InodeRef)) -> (u32, u32) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    mkfs(&*device, &MkfsOptions { small: true, uuid: [1; 16], zeroed: true, ..MkfsOptions::default() })
        .unwrap();
    let device = Arc::new(FaultDevice::new(device));
    let fs = Xfs::open(device.clone(), OpenOptions::default()).unwrap();
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    change(&vfs, &vfs.root().unwrap());
    vfs.unmount().unwrap();
    device.waits()
}

#[test]
fn a_session_with_one_change_waits_for_few_writes() {
    let chmod = |vfs: &Vfs, root: &InodeRef| {
        vfs.set_attr(&Cred::root(), root, &SetAttr { perm: Some(0o711), ..SetAttr::default() }).unwrap();
    };
    // Durable writes: OPEN, the change, CLOSED, the unmount. A flush: the blocks in place.
    assert_eq!(waits(chmod), (1, 4));
    // The same for a new name. With data there is a flush of it more.
    let directory = |vfs: &Vfs, root: &InodeRef| {
        vfs.create(&Cred::root(), root, b"d", &CreateSpec::of(FileType::Directory, 0o755), false).unwrap();
    };
    assert_eq!(waits(directory), (1, 4));
    let write = |vfs: &Vfs, root: &InodeRef| {
        let (file, _) = vfs.create(&Cred::root(), root, b"f", &CreateSpec::file(0o644), false).unwrap();
        vfs.write(&Cred::root(), &file, 0, b"data", WriteFlags::empty()).unwrap();
    };
    assert_eq!(waits(write), (2, 4));
}
