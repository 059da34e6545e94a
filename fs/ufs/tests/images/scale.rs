//! A directory with many names, counted in blocks that are read, and timed. `IVERS_NAMES` sets their number.

use crate::common::*;
use ivers_block::{Budget, ByteOffset, Device, MemDevice, Result};
use ivers_ufs::layout::superblock::Version;
use ivers_ufs::mkfs::{MkfsOptions, mkfs};
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A device that counts the bytes that are read.
struct Counting {
    inner: MemDevice,
    read: AtomicU64,
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
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

fn empty(bytes: u64) -> Arc<Counting> {
    let inner = MemDevice::new(bytes);
    let options =
        MkfsOptions { version: Version::Ufs2, bytes_per_inode: Some(1024), ..MkfsOptions::default() };
    mkfs(&inner, &options).unwrap();
    Arc::new(Counting { inner, read: AtomicU64::new(0) })
}

/// Mounts with an empty cache of this size.
fn mount(device: &Arc<Counting>, cache: u64) -> Arc<Vfs> {
    let budget = Arc::new(Budget::new(cache));
    let common = DriverOptions { budget: budget.clone(), ..DriverOptions::default() };
    let fs = Ufs::open(device.clone(), OpenOptions { common }).unwrap();
    let options = MountOptions {
        background: false,
        atime: AtimeMode::Never,
        budget: Some(budget),
        ..MountOptions::default()
    };
    Vfs::mount(fs, options).unwrap()
}

fn name(number: u64) -> String {
    format!("a name of some length {number}")
}

/// The numbers up to `count` in another order.
fn mixed(count: u64) -> impl Iterator<Item = u64> {
    // A prime that divides no count in use.
    (0..count).map(move |nth| nth * 7_368_787 % count)
}

/// Makes, finds and removes names, each time in a new mount. Returns how many blocks of 4 KiB each step read.
fn work(names: u64, cache: u64) -> [u64; 3] {
    let cred = Cred::root();
    let device = empty((names * 1024 + (64 << 20)).next_multiple_of(1 << 20));
    let step = |what: &str, each: &dyn Fn(&Arc<Vfs>, &InodeRef, u64)| {
        let vfs = mount(&device, cache);
        let root = vfs.root().unwrap();
        device.read.store(0, Ordering::Relaxed);
        let begin = Instant::now();
        mixed(names).for_each(|number| each(&vfs, &root, number));
        vfs.sync().unwrap();
        let (took, blocks) = (begin.elapsed(), device.read.load(Ordering::Relaxed) / 4096);
        println!(
            "{names} names, a cache of {} MiB: {what} in {:.2} s, {blocks} blocks read, {} KiB of directory",
            cache >> 20,
            took.as_secs_f64(),
            root.size() >> 10
        );
        drop(root);
        vfs.unmount().unwrap();
        blocks
    };
    let read = [
        step("created", &|vfs, root, number| {
            vfs.create(&cred, root, name(number).as_bytes(), &CreateSpec::file(0o600), false).unwrap();
        }),
        step("found, and as many others not found", &|vfs, root, number| {
            vfs.lookup(&cred, root, name(number).as_bytes()).unwrap();
            assert!(vfs.lookup(&cred, root, name(names + number).as_bytes()).is_err());
        }),
        step("removed", &|vfs, root, number| {
            vfs.unlink(&cred, root, name(number).as_bytes(), false).unwrap();
        }),
    ];
    assert_clean(device, "after all names were removed");
    read
}

#[test]
fn many_names_are_made_found_and_removed() {
    let names = ivers_crash::env("IVERS_NAMES").unwrap_or(20_000);
    work(names, 64 << 20);
}

/// Without memory for an index, the names are searched one after the other.
#[test]
fn names_are_found_without_memory_for_an_index() {
    work(1500, 64 << 10);
}
