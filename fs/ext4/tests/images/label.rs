//! Setting the label: a crash at any write leaves the old label or the new one.

use crate::common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;

/// The copies of the superblock have the label too, as after tune2fs.
#[test]
fn the_copies_have_the_label() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in ["ext2", "ext4"] {
        mkfs(&image, &["-t", kind, "-b", "1024", "-L", "old"], 40 << 20);
        let vfs = mount(&image);
        vfs.set_label("new").unwrap();
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&image, kind);
        for block in ["1", "8193", "24577"] {
            let at = format!("superblock={block}");
            let words = ["-h", "-o", &at, "-o", "blocksize=1024", image.to_str().unwrap()];
            let said = ivers_oracle::said(&ivers_oracle::run("dumpe2fs", words).unwrap());
            let label = said.lines().find_map(|line| line.strip_prefix("Filesystem volume name:")).unwrap();
            assert_eq!(label.trim(), "new", "{kind}, block {block}");
        }
    }
}

#[test]
fn a_crash_leaves_the_old_label_or_the_new_one() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for kind in ["ext2", "ext3", "ext4"] {
        mkfs(&image, &["-t", kind, "-L", "old"], 8 << 20);
        let base = Arc::new(MemDevice::from_bytes(&std::fs::read(&image).unwrap()));
        let device = Arc::new(FaultDevice::new(base));
        let open = |device: Arc<dyn Device>, read_only| {
            let common = DriverOptions { read_only, ..DriverOptions::default() };
            let fs = Ext4::open(device, OpenOptions::from(common)).unwrap();
            Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
        };
        let vfs = open(device.clone(), false);
        vfs.set_label("new").unwrap();
        let set = device.len();
        vfs.unmount().unwrap();
        for crash in 0..=device.len() {
            let state = device.image(crash).unwrap();
            let mut bytes = vec![0; 8 << 20];
            state.read_at(ByteOffset(0), &mut bytes).unwrap();
            let label = open(Arc::new(state), true).info().label.clone();
            assert!(label == "new" || (label == "old" && crash < set), "{kind}, {crash}: {label:?}");
            std::fs::write(&image, &bytes).unwrap();
            ivers_oracle::e2fsck_repair(&image).unwrap();
            fsck(&image, kind);
        }
    }
}
