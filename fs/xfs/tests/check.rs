//! The checker: clean images of many kinds give no finding, and one planted defect gives exactly its own.

mod common;

use common::fill::fill;
use common::*;
use ivers_block::FileDevice;
use ivers_block::OpenMode;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::check::{Findings, Memory};
use ivers_xfs::check::check;
use std::path::Path;
use std::sync::Arc;

fn check_file(path: &Path) -> Findings {
    let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
    check(Arc::new(device), Memory::unlimited(), "image").unwrap()
}

fn assert_clean(path: &Path, what: &str) {
    let found = check_file(path);
    let lines: Vec<_> = found.kept().iter().take(20).map(|found| format!("{found:?}")).collect();
    assert!(found.is_clean(), "{what}: {}\n{:?}", lines.join("\n"), found.notes());
}

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
