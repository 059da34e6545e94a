//! Device reads of a cold walk, counted.

mod common;

use common::mkfs;
use ivers_block::{Budget, ByteOffset, Device, FileDevice, OpenMode, Result as DeviceResult};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CACHE: u64 = 64 << 20;

/// Forwards to a device and counts reads.
struct ReadCounter {
    inner: FileDevice,
    calls: AtomicU64,
}

impl Device for ReadCounter {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> DeviceResult<()> {
        self.calls.fetch_add(1, Relaxed);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> DeviceResult<()> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: ByteOffset, len: u64) -> DeviceResult<()> {
        self.inner.discard(offset, len)
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

fn mount(path: &Path) -> (Arc<ReadCounter>, Arc<Vfs>) {
    let inner = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    let device = Arc::new(ReadCounter { inner, calls: AtomicU64::new(0) });
    let budget = Arc::new(Budget::new(CACHE));
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

#[test]
fn a_cold_walk_reads_inode_tables_and_directories_in_runs() {
    const DIRS: u64 = 8;
    const FILES: u32 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4", "-b", "4096", "-N", "20000"], 256 << 20);
    let cred = Cred::root();
    {
        let (_, vfs) = mount(&path);
        for nth in 0..DIRS {
            let name = format!("d{nth}");
            let spec = CreateSpec::directory(0o755);
            let dir = vfs.create(&cred, &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0;
            for number in 0..FILES {
                let name = format!("a name of some length {number}");
                vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap();
            }
        }
        vfs.unmount().unwrap();
    }
    let (device, vfs) = mount(&path);
    let walk = || {
        device.calls.store(0, Relaxed);
        let mut seen = 0;
        for nth in 0..DIRS {
            let dir = vfs.resolve(&cred, format!("/d{nth}"), false).unwrap();
            let mut cursor = 0;
            loop {
                // As many entries as a READDIRPLUS of one page.
                let listed = vfs.list(&cred, &dir, cursor, 25).unwrap();
                let Some(last) = listed.last() else { break };
                cursor = last.next;
                for entry in &listed {
                    vfs.stat(entry.inode.as_ref().unwrap());
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, DIRS * u64::from(FILES));
        device.calls.load(Relaxed)
    };
    let cold = walk();
    println!("{cold} device reads for {} inodes", DIRS * u64::from(FILES));
    assert!(cold <= DIRS * u64::from(FILES) / 64, "{cold} device reads");
    assert_eq!(walk(), 0, "a warm walk reads nothing");
    vfs.unmount().unwrap();
}
