//! The checker: clean images of many kinds give no finding, and one planted defect gives exactly its own.

use crate::common::fill::fill;
use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::{CreateSpec, Cred};

#[test]
fn clean_images_have_no_findings() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in V5.iter().chain(V4) {
        mkfs(&image, args, None);
        assert_clean(&image, &format!("empty, {name}"));
    }
}

#[test]
fn images_that_the_kernel_filled_have_no_findings() {
    if !have_xfsprogs() || !ivers_oracle::have_programs(&["xfs_io"]) || !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (name, args) in V5 {
        mkfs(&image, args, None);
        let mounted = LoopMount::new(&image, "").unwrap();
        fill(mounted.path());
        mounted.unmount().unwrap();
        assert_clean(&image, name);
    }
}

/// The system stops while a removed directory is in use: its `..` no longer counts.
#[test]
fn a_removed_directory_in_use_is_no_finding() {
    if !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for (name, args) in V5 {
        mkfs(&image, args, None);
        let vfs = mount_writable(&image);
        let root = vfs.root().unwrap();
        let spec = CreateSpec::directory(0o755);
        let used = vfs.create(&Cred::root(), &root, b"used", &spec, false).unwrap().0;
        vfs.rmdir(&Cred::root(), &root, b"used", false).unwrap();
        vfs.sync().unwrap();
        copy_image(&image, &copy);
        assert_clean(&copy, name);
        drop((used, root));
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&image, name);
    }
}
