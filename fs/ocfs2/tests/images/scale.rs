//! A directory with many names, counted in bytes that are read, and timed. `IVERS_NAMES` sets their number.

use crate::common::*;
use ivers_block::{Budget, CountedDevice, Device, IoCounts, MemDevice};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_oracle::{OCFS2_PROGRAMS, have_programs};
use ivers_vfs::*;
use std::sync::Arc;
use std::time::Instant;

/// With and without an index on the device.
const DIRECTORIES: [(&str, &str); 2] = [("indexed", "indexed-dirs"), ("linear", "noindexed-dirs")];

struct Scale {
    memory: Arc<MemDevice>,
    device: Arc<dyn Device>,
    counts: Arc<IoCounts>,
    names: u64,
}

impl Scale {
    fn new(features: &str, names: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let features = format!("--fs-features={features}");
        let bytes = (names * 4096 + (96 << 20)).next_multiple_of(1 << 20);
        let options = ["-b", "4K", "-C", "4K", "-J", "size=32M", &features];
        ivers_oracle::mkfs_ocfs2(&path, bytes, &options).unwrap();
        let memory = Arc::new(MemDevice::from_bytes(&std::fs::read(path).unwrap()));
        let counts = Arc::new(IoCounts::default());
        Self { device: Arc::new(CountedDevice::new(memory.clone(), counts.clone())), memory, counts, names }
    }

    /// Bytes that were read so far.
    fn read_bytes(&self) -> u64 {
        self.counts.fields().into_iter().find(|(name, _)| *name == "device_read_bytes").unwrap().1
    }

    /// Mounts with an empty cache of this size.
    fn mount(&self, cache: u64) -> Arc<Vfs> {
        let budget = Arc::new(Budget::new(cache));
        let common = DriverOptions { budget: budget.clone(), ..DriverOptions::default() };
        let fs = Ocfs2::open(self.device.clone(), OpenOptions { common, no_replay: false }).unwrap();
        let options = MountOptions {
            background: false,
            atime: AtimeMode::Never,
            budget: Some(budget),
            ..MountOptions::default()
        };
        Vfs::mount(fs, options).unwrap()
    }

    /// Calls `each` for each name, in mixed order, in a new mount. Returns the blocks of 4 KiB that were
    /// read.
    fn step(&self, what: &str, cache: u64, each: &dyn Fn(&Arc<Vfs>, &InodeRef, u64)) -> u64 {
        let vfs = self.mount(cache);
        let root = vfs.root().unwrap();
        let (before, begin) = (self.read_bytes(), Instant::now());
        // A prime that divides no count in use.
        (0..self.names).for_each(|nth| each(&vfs, &root, nth * 7_368_787 % self.names));
        vfs.sync().unwrap();
        let (took, blocks) = (begin.elapsed(), (self.read_bytes() - before) / 4096);
        println!(
            "{} names, a cache of {} MiB: {what} in {:.2} s, {blocks} blocks read, {} KiB of directory",
            self.names,
            cache >> 20,
            took.as_secs_f64(),
            root.size() >> 10
        );
        drop(root);
        vfs.unmount().unwrap();
        blocks
    }

    fn create(&self, cache: u64) -> u64 {
        self.step("created", cache, &|vfs, root, number| {
            let spec = CreateSpec::file(0o600);
            vfs.create(&Cred::root(), root, name(number).as_bytes(), &spec, false).unwrap();
        })
    }

    fn find(&self, cache: u64) -> u64 {
        self.step("found, and as many others not found", cache, &|vfs, root, number| {
            vfs.lookup(&Cred::root(), root, name(number).as_bytes()).unwrap();
            assert!(vfs.lookup(&Cred::root(), root, name(self.names + number).as_bytes()).is_err());
        })
    }

    fn remove(&self, cache: u64) -> u64 {
        let blocks = self.step("removed", cache, &|vfs, root, number| {
            vfs.unlink(&Cred::root(), root, name(number).as_bytes(), false).unwrap();
        });
        assert_clean(&self.memory, "after all names were removed");
        blocks
    }
}

fn name(number: u64) -> String {
    format!("a name of some length {number}")
}

#[test]
fn a_name_that_is_not_there_takes_few_reads() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let names = 3000;
    let mut took = Vec::new();
    for (what, features) in DIRECTORIES {
        let scale = Scale::new(features, names);
        scale.create(64 << 20);
        let vfs = scale.mount(64 << 20);
        let root = vfs.root().unwrap();
        let reads = |lookup: u64, is_there: bool| {
            let before = scale.read_bytes();
            let found = vfs.lookup(&Cred::root(), &root, name(lookup).as_bytes());
            assert_eq!(found.is_ok(), is_there, "{what}: {lookup}");
            (scale.read_bytes() - before) / 4096
        };
        // The first lookup in a directory without an index reads all of it, for one in memory.
        took.push([reads(names, false), reads(names + 1, false), reads(0, true), reads(names + 2, false)]);
    }
    // With an index on the device, the first lookup reads its root and a leaf, a later one a leaf. For a name
    // that exists it also reads a block of the directory and the inode.
    let [indexed, linear] = took[..] else { panic!("{took:?}") };
    assert!(indexed[0] <= 2 && indexed[1] <= 1 && indexed[2] <= 3 && indexed[3] <= 1, "{indexed:?}");
    assert!(linear[0] >= 30 && linear[1..] == [0, 1, 0], "{linear:?}");
}

/// Without memory for an index, the names are searched one after the other.
#[test]
fn names_are_found_without_memory_for_an_index() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let scale = Scale::new(DIRECTORIES[1].1, 1500);
    scale.create(64 << 10);
    scale.find(64 << 10);
    scale.remove(64 << 10);
}

#[test]
fn many_names_are_made_found_and_removed() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let names = ivers_crash::env("IVERS_NAMES").unwrap_or(3000);
    for (what, features) in DIRECTORIES {
        println!("{what}:");
        let scale = Scale::new(features, names);
        scale.create(64 << 20);
        scale.find(64 << 20);
        scale.remove(64 << 20);
    }
}
