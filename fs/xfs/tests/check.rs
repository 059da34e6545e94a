//! The checker: clean images of many kinds give no finding, and one planted defect gives exactly its own.

mod common;

use common::fill::fill;
use common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;

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
