//! Images by mkfs.ext4 in many shapes: opened, walked, closed, and checked by e2fsck.

use crate::common::{VARIANTS, fsck, mkfs, open};
use ivers_block::{ByteOffset, Device, FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{FileSystem, FileType, Ino, InodeOps};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn images_of_every_shape_open_and_close() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in VARIANTS {
        let path = dir.path().join("image");
        mkfs(&path, args, 64 << 20);
        for read_only in [true, false, false] {
            let fs = open(&path, read_only);
            let (info, health) = (fs.info(), fs.health());
            assert_eq!(health.read_only.is_some(), read_only, "{name}: {:?}", health.read_only);
            assert_eq!(health.no_change_attribute, None, "{name}");
            let root = fs.load_inode(info.root).unwrap();
            assert_eq!(root.attr.kind, FileType::Directory, "{name}");
            assert_eq!(fs.load_inode(Ino(11)).unwrap().attr.kind, FileType::Directory, "{name}: lost+found");
            assert!(fs.load_inode(Ino(13)).is_err() && fs.load_inode(Ino(0)).is_err(), "{name}");
            let stat = fs.stat_fs().unwrap();
            assert!(stat.blocks_free > 0 && stat.blocks_free < stat.blocks, "{name}: {stat:?}");
            fs.unmount().unwrap();
            drop(fs);
            fsck(&path, name);
        }
    }
}

/// Forwards to a device and counts the reads.
struct Counting(FileDevice, AtomicU64);

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.0.write_at(offset, buf)
    }
    fn flush(&self) -> ivers_block::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.0.discard(offset, len)
    }
    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn mounting_reads_no_more_of_a_large_image_than_of_a_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let reads = [64 << 20, 1 << 40].map(|bytes| {
        mkfs(&path, &["-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=1", "-J", "size=4"], bytes);
        let device =
            Arc::new(Counting(FileDevice::open(&path, OpenMode::ReadWrite).unwrap(), AtomicU64::new(0)));
        let fs = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
        assert_eq!(fs.load_inode(fs.info().root).unwrap().attr.kind, FileType::Directory);
        assert!(fs.stat_fs().unwrap().blocks_free > 0);
        let reads = device.1.load(Ordering::Relaxed);
        fs.unmount().unwrap();
        reads
    });
    assert!(reads[1] <= reads[0] + 2, "{reads:?}");
}
