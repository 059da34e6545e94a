//! A device that records what is read from it.

use ivers_block::{Budget, ByteOffset, Device, FileDevice, OpenMode, Result};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{AtimeMode, DriverOptions, MountOptions, Vfs};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

const BLOCK: u64 = 4096;

/// Forwards to the device of an image with blocks of 4 KiB, and records the blocks of each read.
pub struct ReadRecorder {
    inner: FileDevice,
    pub reads: Mutex<Vec<Range<u64>>>,
}

impl ReadRecorder {
    pub fn open(path: &Path) -> Self {
        Self { inner: FileDevice::open(path, OpenMode::ReadWrite).unwrap(), reads: Mutex::default() }
    }
}

impl Device for ReadRecorder {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        let blocks = offset.0 / BLOCK..(offset.0 + buf.len() as u64).div_ceil(BLOCK);
        self.reads.lock().unwrap().push(blocks);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// Mounts an image with this much cache and without a background thread. Returns also its device.
pub fn mount(path: &Path, cache: u64) -> (Arc<ReadRecorder>, Arc<Vfs>) {
    let device = Arc::new(ReadRecorder::open(path));
    let budget = Arc::new(Budget::new(cache));
    let options = OpenOptions::from(DriverOptions { budget: budget.clone(), ..DriverOptions::default() });
    let fs = Ext4::open(device.clone(), options).unwrap();
    let options = MountOptions {
        background: false,
        atime: AtimeMode::Never,
        budget: Some(budget),
        ..MountOptions::default()
    };
    (device, Vfs::mount(fs, options).unwrap())
}
