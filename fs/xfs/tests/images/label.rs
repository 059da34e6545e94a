//! The label of a filesystem that is not mounted: what is refused, and what a failing device leaves.

use crate::common::*;
use ivers_block::{ByteOffset, Device, Fault, FaultDevice, FileDevice, MemDevice, OpenMode};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{can_loop_mount, kernel_knows};
use ivers_xfs::mkfs::{MkfsOptions, mkfs as make};
use ivers_xfs::set_label;
use std::sync::Arc;

fn options() -> MkfsOptions {
    MkfsOptions { uuid: [7; 16], label: "old".into(), small: true, zeroed: true, ..MkfsOptions::default() }
}

fn label_of(device: Arc<dyn Device>) -> String {
    let vfs = mount_device(device).unwrap();
    let label = vfs.info().label.clone();
    vfs.unmount().unwrap();
    label
}

/// A small filesystem in memory, and a record of what is written after it.
fn recorded() -> FaultDevice {
    let base = MemDevice::new(80 << 20);
    make(&base, &options()).unwrap();
    FaultDevice::new(Arc::new(base))
}

#[test]
fn a_failed_write_leaves_the_old_label() {
    // One write for each of the four superblocks, the first one last.
    for nth in 0..4 {
        let device = recorded();
        device.inject(nth, Fault::Fail);
        assert!(set_label(&device, "new", "image").is_err(), "{nth}");
        assert_eq!(label_of(Arc::new(device)), "old", "{nth}");
    }
}

#[test]
fn a_crash_leaves_the_old_label_or_the_new_one() {
    let device = recorded();
    set_label(&device, "new", "image").unwrap();
    for prefix in 0..=device.len() {
        for kept in 0..16 {
            let image = device.image_where(prefix, |index| kept >> (index % 4) & 1 == 1).unwrap();
            let label = label_of(Arc::new(image));
            assert!(label == "new" || (label == "old" && prefix < device.len()), "{prefix} {kept}: {label}");
        }
    }
}

#[test]
fn a_damaged_copy_is_not_made_valid() {
    let device = MemDevice::new(80 << 20);
    make(&device, &options()).unwrap();
    let copy = ByteOffset(20 << 20);
    let sector = || {
        let mut sector = [0; 512];
        device.read_at(copy, &mut sector).unwrap();
        sector
    };
    assert!(sector().starts_with(b"XFSB"));
    device.write_at(copy + 300, &[1]).unwrap();
    let before = sector();
    set_label(&device, "new", "image").unwrap();
    assert_eq!(sector(), before);
    assert_eq!(label_of(Arc::new(device)), "new");
}

#[test]
fn a_dirty_log_is_refused() {
    if !can_loop_mount() || !ivers_oracle::have_programs(&["xfs_io"]) {
        return;
    }
    if !kernel_knows("xfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(80 << 20).unwrap();
    let open = || FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
    make(&open(), &options()).unwrap();
    let mount = LoopMount::new(&image, "").unwrap();
    std::fs::write(mount.path().join("file"), "text").unwrap();
    ivers_oracle::run(
        "xfs_io",
        ["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), mount.path().as_os_str()],
    )
    .unwrap();
    mount.unmount().unwrap();
    let error = set_label(&open(), "new", "disk.img").unwrap_err().to_string();
    assert!(error.contains("the log is dirty") && error.contains("unmount"), "{error}");
    LoopMount::new(&image, "").unwrap().unmount().unwrap();
    set_label(&open(), "new", "disk.img").unwrap();
    assert_eq!(label_of(device(&image)), "new");
}
