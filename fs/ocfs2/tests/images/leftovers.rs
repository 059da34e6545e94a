//! The next mount for writing frees what other mounts left, also if it crashes at any of its writes.

use crate::common::*;
use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_ocfs2::check::check;
use ivers_ocfs2::layout::dinode::ID2_AT;
use ivers_oracle::{OCFS2_PROGRAMS, have_programs};
use ivers_vfs::FileSystem;
use ivers_vfs::check::Memory;
use std::sync::Arc;

/// Clusters that wait in the truncate log: more than one transaction frees.
const WAITING: u64 = 60;

/// Marks every second one of the last clusters as used, and puts them into the truncate log of slot 0.
fn with_truncate_log(mut image: Vec<u8>) -> Vec<u8> {
    let clusters = u64::from(superblock(&image).clusters);
    let log = slot(&image, "//truncate_log:0000");
    set(&mut image, log + ID2_AT + 2, 2, WAITING);
    for nth in 0..WAITING {
        let cluster = clusters - 2 * (nth + 1);
        flip(&mut image, "//global_bitmap", cluster, 1);
        set(&mut image, log + ID2_AT + 8 + nth as usize * 8, 4, cluster);
        set(&mut image, log + ID2_AT + 12 + nth as usize * 8, 4, 1);
    }
    image
}

/// Mounts a device for writing, and unmounts it.
fn mount_and_unmount(device: Arc<dyn Device>) {
    let fs = open(device).unwrap();
    assert_eq!(fs.health().read_only, None);
    fs.unmount().unwrap();
}

#[test]
fn a_mount_frees_leftovers_also_after_a_crash() {
    // The second image was not unmounted. Its journal has a window of clusters, and an orphan that stays,
    // because its attributes are in buckets.
    for (name, image, stays) in [("log", with_truncate_log(unpack(PLAIN)), 0), ("dirty", unpack(DIRTY), 1)] {
        let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::from_bytes(&image))));
        mount_and_unmount(device.clone());
        let mut states = 0;
        for prefix in 0..=device.len() {
            let crashed: Arc<dyn Device> = Arc::new(device.image(prefix).unwrap());
            mount_and_unmount(crashed.clone());
            let found = check(crashed, Memory::unlimited(), "image").unwrap();
            assert!(
                found.is_clean() && found.notes().len() == stays,
                "{name}, after {prefix} writes: {found:#?}"
            );
            states += 1;
        }
        assert!(states > 10, "{name}: {states} states");
        if stays == 0 && have_programs(OCFS2_PROGRAMS) {
            let whole = Arc::new(MemDevice::from_bytes(&image));
            mount_and_unmount(whole.clone());
            assert_clean(&whole, name);
        }
    }
}
