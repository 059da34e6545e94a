//! What is refused, and what is replayed.

use crate::common::*;
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The byte of the `struct ocfs2_super_block` in images with blocks of 1 KiB.
const SUPER: usize = 2048 + 0xC0;

fn refusal(image: &[u8]) -> Error {
    open(memory(image)).err().expect("it is refused")
}

#[test]
fn features_are_refused_by_name() {
    let image = unpack(PLAIN);
    for (bit, name) in [
        (0x2u64, "heartbeats of a cluster"),
        (0x4, "resize-in-progress"),
        (0x20, "tunefs-in-progress"),
        (0x10000, "0x10000 (incompatible)"),
    ] {
        let mut wrong = image.clone();
        let bits = get(&wrong, SUPER + 0x20, 4);
        set(&mut wrong, SUPER + 0x20, 4, bits | bit);
        let error = refusal(&wrong);
        assert!(matches!(error, Error::Incompatible(_)) && error.to_string().contains(name), "{error}");
    }
    let mut newer = image.clone();
    set(&mut newer, SUPER + 0x24, 4, 0x9);
    let fs = open(memory(&newer)).unwrap();
    let why = fs.health().read_only.unwrap();
    assert!(why.contains("0x8 (read-only compatible)"), "{why}");
    set(&mut newer, SUPER + 2, 2, 91);
    assert!(refusal(&newer).to_string().contains("revision 0.91"));
}

#[test]
fn a_wrong_superblock_is_refused_by_its_field() {
    let image = unpack(PLAIN);
    for (at, len, value, name) in [
        (SUPER + 0x3C, 4, 11, "s_clustersize_bits"),
        (SUPER + 0x3C, 4, 21, "s_clustersize_bits"),
        (SUPER + 0x40, 2, 0, "s_max_slots"),
        (SUPER + 0x40, 2, 256, "s_max_slots"),
        (SUPER + 0x28, 8, 1 << 40, "s_root_blkno"),
        (SUPER + 0x30, 8, 2, "s_system_dir_blkno"),
        (SUPER + 0x48, 8, 1 << 63, "s_first_cluster_group"),
        (2048 + 0x14, 4, 0xFFFF_FFFF, "cut off"),
        (2048 + 0x50, 8, 3, "i_blkno"),
    ] {
        let mut wrong = image.clone();
        set(&mut wrong, at, len, value);
        let error = refusal(&wrong);
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{name}: {text}");
        assert!(text.contains(name) && text.contains("superblock"), "{name}: {text}");
    }
    let text = refusal(&image[..4 << 20]).to_string();
    assert!(text.contains("it is cut off"), "{text}");
    assert!(refusal(&[0; 1 << 16]).to_string().contains("no OCFS2 superblock"));
}

#[test]
fn one_wrong_bit_is_corrected_and_more_are_refused() {
    let image = unpack(SUMS);
    for path in ["/few", "//global_bitmap", "/"] {
        let mut wrong = image.clone();
        let at = slot(&image, path) + 0x40;
        wrong[at] ^= 0x10;
        let vfs = mount(&wrong);
        assert!(vfs.stat_fs().is_ok() && find(&vfs, "/few/file").is_ok(), "{path}");
        wrong[at + 1] ^= 1;
        let result = mount_device(memory(&wrong)).and_then(|vfs| {
            vfs.stat_fs()?;
            find(&vfs, "/few/file").map(drop)
        });
        let text = result.unwrap_err().to_string();
        assert!(text.contains("bad checksum") && text.contains("block "), "{path}: {text}");
    }
    // The superblock, whose bit is in the label; blocks have 512 bytes.
    let mut wrong = image.clone();
    wrong[1024 + 0xC0 + 0x50] ^= 1;
    let fs = open(memory(&wrong)).unwrap();
    assert!(fs.describe().iter().any(|(name, value)| name == "bits corrected in memory" && value == "1"));
    wrong[1024 + 0xC0 + 0x52] ^= 1;
    assert!(refusal(&wrong).to_string().contains("bad checksum"));
}

#[test]
fn a_journal_is_replayed_in_memory_or_on_the_device() {
    let image = unpack(DIRTY);
    let state = |fs: &Ocfs2| fs.describe().into_iter().find(|(name, _)| name == "state").unwrap().1;
    let device = Arc::new(ivers_block::MemDevice::from_bytes(&image));
    let common = ivers_vfs::DriverOptions { read_only: true, ..Default::default() };
    let fs = Ocfs2::open(device.clone(), OpenOptions { common, ..OpenOptions::default() }).unwrap();
    assert_eq!(state(&fs), "not unmounted cleanly; the journal was replayed in memory");
    assert_eq!(fs.health().read_only.as_deref(), Some("opened read-only"));
    assert!(device.to_bytes() == image, "the image was written to");
    let fs = open(device.clone()).unwrap();
    assert_eq!(state(&fs), "not unmounted cleanly; the journal was replayed");
    assert_eq!(fs.health().read_only, None);
    fs.unmount().unwrap();
    assert_eq!(state(&open(device).unwrap()), "unmounted cleanly");
    let vfs = mount(&image);
    assert!(find(&vfs, "/after").is_ok() && find(&vfs, "/few/file").is_err() && find(&vfs, "/small").is_ok());
    let options = OpenOptions { no_replay: true, ..OpenOptions::default() };
    let before = Ocfs2::open(memory(&image), options).unwrap();
    assert_eq!(state(&before), "not unmounted cleanly; the journal was not replayed");
    let clean = open(memory(&unpack(PLAIN))).unwrap();
    assert_eq!(state(&clean), "unmounted cleanly");
    // A log that leads outside is damage.
    let mut wrong = image.clone();
    let log = first_extent(&image, slot(&image, "//journal:0000"));
    set(&mut wrong, log, 4, 0);
    let text = refusal(&wrong).to_string();
    assert!(text.contains("journal"), "{text}");
}

#[test]
fn what_cannot_be_written_is_read_only_by_name() {
    let plain = unpack(PLAIN);
    for (at, bit, word) in [
        (0x24, 0x2, "usrquota"),
        (0x24, 0x4, "grpquota"),
        (0x24, 0x100, "0x100"),
        (8, 1, "errors are recorded"),
    ] {
        let mut image = plain.clone();
        image[SUPER + at + bit / 0x100] |= (bit % 0x100 + bit / 0x100) as u8;
        let device = Arc::new(ivers_block::MemDevice::from_bytes(&image));
        let why = open(device.clone()).unwrap().health().read_only.unwrap();
        assert!(why.contains(word), "{why}");
        assert!(device.to_bytes() == image, "{word}: the image was written to");
    }
    let mut image = plain.clone();
    image[SUPER + 0x20] &= !0x10;
    assert!(open(memory(&image)).unwrap().health().read_only.unwrap().contains("sparse"));
    // Blocks of 512 bytes.
    assert!(open(memory(&unpack(SUMS))).unwrap().health().read_only.unwrap().contains("512 bytes"));
}

/// An image as that of a cluster.
fn of_cluster() -> Vec<u8> {
    let mut image = unpack(PLAIN);
    let bits = get(&image, SUPER + 0x20, 4);
    set(&mut image, SUPER + 0x20, 4, bits & !0x8);
    image
}

#[test]
fn a_filesystem_of_a_cluster_is_opened_if_no_node_is_alive() {
    let mut image = of_cluster();
    let opened = open(memory(&image)).unwrap();
    assert!(opened.health().read_only.unwrap().contains("of a cluster"));
    // A node that no longer writes.
    let beat = first_extent(&image, slot(&image, "//heartbeat")) + 5 * 1024;
    set(&mut image, beat, 8, 1_700_000_000);
    set(&mut image, beat + 16, 8, 0x1234);
    let device = Arc::new(MemDevice::from_bytes(&image));
    assert!(open(device.clone()).is_ok());
    // One that writes all the time: ivers sees two numbers, however slow it is.
    let over = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1_700_000_001u64.. {
                device.write_at(ByteOffset(beat as u64), &number.to_le_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(10));
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let opened = open(device.clone());
        over.store(true, Ordering::Relaxed);
        opened.err().unwrap().to_string()
    });
    assert!(error.contains("node 5 of the cluster is alive"), "{error}");
}

#[test]
fn another_cluster_stack_is_asked_for_its_slots() {
    let mut image = of_cluster();
    let bits = get(&image, SUPER + 0x20, 4);
    set(&mut image, SUPER + 0x20, 4, bits | 0x80);
    image[SUPER + 0xA0..SUPER + 0xA4].copy_from_slice(b"pcmk");
    assert!(open(memory(&image)).is_ok());
    let map = first_extent(&image, slot(&image, "//slot_map"));
    image[map] = 1;
    image[map + 4] = 9;
    let error = refusal(&image).to_string();
    assert!(error.contains("node 9 of the cluster (pcmk)") && error.contains("slot 0"), "{error}");
}
