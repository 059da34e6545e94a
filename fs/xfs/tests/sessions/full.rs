//! A full filesystem whose reserved space comes back.

use crate::common::*;
use ivers_block::{FileDevice, OpenMode};
use ivers_vfs::*;
use ivers_xfs::{OpenOptions, Xfs};
use std::sync::Arc;

/// A file of one block reserves a block for its map as well, which it never uses.
#[test]
fn space_is_not_lost_to_reservations_of_many_small_files() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &[], None);
    let device = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
    // Nothing is written back by age or for memory.
    let options = MountOptions { background: false, cache_bytes: 1 << 30, ..MountOptions::default() };
    let vfs = Vfs::mount(Xfs::open(device, OpenOptions::default()).unwrap(), options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let create = |name: String| {
        Ok::<_, Error>(vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false)?.0)
    };
    let available = || vfs.stat_fs().unwrap().blocks_available;
    let large = create("large".into()).unwrap();
    let bytes = (available() - 8000) * 4096;
    vfs.fallocate(&cred, &large, FallocateMode::empty(), 0, bytes).unwrap();
    vfs.sync().unwrap();
    let mut files = 0;
    let refused = loop {
        let file = match create(format!("small{files}")) {
            Ok(file) => file,
            Err(error) => break error,
        };
        if let Err(error) = vfs.write(&cred, &file, 0, &[7; 4096], WriteFlags::empty()) {
            break error;
        }
        files += 1;
        assert!(files < 8000, "more files than blocks");
    };
    assert!(matches!(refused, Error::Name(NameError::NoSpace)), "{refused}");
    vfs.sync().unwrap();
    assert!(available() < 200, "{} blocks are left beside {files} files", available());
    drop(large);
    vfs.unlink(&cred, &root, b"large", false).unwrap();
    vfs.unmount().unwrap();
    drop((root, vfs));
    repair_finds_nothing(&image, "once full");
    assert_clean(&image, "once full");
}
