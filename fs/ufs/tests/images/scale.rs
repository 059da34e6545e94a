//! A directory with many names, counted in blocks that are read, and timed. `IVERS_NAMES` sets their number.

use crate::common::*;
use ivers_block::{Budget, CountedDevice, Device, IoCounts, MemDevice};
use ivers_ufs::layout::superblock::Version;
use ivers_ufs::mkfs::{MkfsOptions, mkfs};
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::*;
use std::sync::Arc;
use std::time::Instant;

fn empty(bytes: u64) -> (Arc<dyn Device>, Arc<IoCounts>) {
    let (device, counts) = (MemDevice::new(bytes), Arc::new(IoCounts::default()));
    let options =
        MkfsOptions { version: Version::Ufs2, bytes_per_inode: Some(1024), ..MkfsOptions::default() };
    mkfs(&device, &options).unwrap();
    (Arc::new(CountedDevice::new(device, counts.clone())), counts)
}

/// Bytes that were read so far.
fn read_bytes(counts: &IoCounts) -> u64 {
    counts.fields().into_iter().find(|(name, _)| *name == "device_read_bytes").unwrap().1
}

/// Mounts with an empty cache of this size.
fn mount(device: &Arc<dyn Device>, cache: u64) -> Arc<Vfs> {
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
    let (device, counts) = empty((names * 1024 + (64 << 20)).next_multiple_of(1 << 20));
    let step = |what: &str, each: &dyn Fn(&Arc<Vfs>, &InodeRef, u64)| {
        let vfs = mount(&device, cache);
        let root = vfs.root().unwrap();
        let (before, begin) = (read_bytes(&counts), Instant::now());
        mixed(names).for_each(|number| each(&vfs, &root, number));
        vfs.sync().unwrap();
        let (took, blocks) = (begin.elapsed(), (read_bytes(&counts) - before) / 4096);
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
