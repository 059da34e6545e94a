//! Every crash point of many workloads (see `ivers_crash`).
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of image, `IVERS_CRASH_SEED` decides what is sampled, and
//! `IVERS_CRASH_WORKLOAD` runs the one workload that a report names. `IVERS_CRASH_VIOLATIONS` says after how many violations to stop.

use anyhow::Context;
use ivers_block::{Device, MemDevice};
use ivers_crash::ops::MOST_WIDE;
use ivers_crash::{Explorer, Promises, Target, Workload};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_oracle::kernel::may_loop_mount;
use ivers_oracle::{LoopMount, e2fs};
use ivers_vfs::FileSystem;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// ext4 with some features.
struct Ext {
    name: &'static str,
    log_checksums: bool,
    options: &'static [&'static str],
}

const KINDS: &[Ext] = &[
    Ext { name: "ext4, 1 KiB blocks", log_checksums: true, options: &["-b", "1024"] },
    Ext { name: "ext4, 4 KiB blocks", log_checksums: true, options: &["-b", "4096"] },
    Ext {
        name: "ext4, journal without checksums",
        log_checksums: false,
        options: &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    },
    Ext { name: "ext3", log_checksums: false, options: &["-b", "1024", "-t", "ext3"] },
    Ext { name: "ext4, orphan file", log_checksums: true, options: &["-b", "1024", "-O", "orphan_file"] },
    Ext { name: "ext4, small inodes", log_checksums: true, options: &["-b", "1024", "-I", "128"] },
];

impl Target for Ext {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("image");
        // What mkfs leaves alone stays like this, and no workload writes it.
        let bytes = if self.options.contains(&"4096") { 12 << 20 } else { 4 << 20 };
        std::fs::write(&path, vec![0xa6; bytes])?;
        let mut args = vec!["-q", "-F", "-E", "nodiscard,lazy_itable_init=0", "-N", "128"];
        args.extend(self.options);
        let text = path.to_str().context("a path that is no text")?.to_owned();
        args.push(&text);
        ivers_oracle::run("mkfs.ext4", args)?;
        Ok(MemDevice::from_bytes(&std::fs::read(&path)?))
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let place = "test image".into();
        Ok(Ext4::open(device, OpenOptions { place, trust_foreign: trusting, ..OpenOptions::default() })?)
    }

    fn promises(&self) -> Promises {
        Promises { ordered_names: true, lasting_numbers: true, crash_safe_values: true, generations: true }
    }

    /// A commit block of a log with checksums of version 3.
    fn seals(&self, record: &[u8]) -> bool {
        self.log_checksums && record.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2])
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        e2fs::e2fsck(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<()> {
        e2fs::e2fsck_repair(image)
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        may_loop_mount().then(|| LoopMount::new(image, "")?.unmount())
    }
}

const WIDE_AT: usize = 20;
/// Runs of more states of each kind take every workload that there is.
const MANY_STATES: u64 = 10_000;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A sequence of one operation is in every longer one; here alone they make the shortest reports.
fn ones() -> Vec<Workload> {
    (0..Workload::sequences(1)).map(|nth| Workload::sequence(1, nth)).collect()
}

/// Sequences of one to three operations and long mixes in an order that the seed decides. A run of few states takes few of
/// them, of all sorts; one of many begins with the shortest.
fn workloads(seed: u64, all: bool) -> Vec<Workload> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mixed: Vec<Workload> =
        (0..Workload::sequences(2)).map(|nth| Workload::sequence(2, nth)).collect();
    let threes = Workload::sequences(3);
    if all {
        mixed.extend((0..threes).map(|nth| Workload::sequence(3, nth)));
    } else {
        mixed.extend((0..1000).map(|_| Workload::sequence(3, rng.random_range(0..threes))));
        mixed.extend(ones());
    }
    mixed.extend((0..mixed.len() as u64 / 20).map(|nth| {
        let workers = [1, 1, 3][nth as usize % 3];
        Workload::long(rng.random_range(0..1 << 32), workers, 60)
    }));
    mixed.shuffle(&mut rng);
    // Where runs of some thousand states come to it.
    mixed.insert(WIDE_AT, Workload::wide(MOST_WIDE));
    if all {
        mixed.splice(0..0, ones());
    }
    mixed
}

#[test]
fn no_crash_point_breaks_a_promise() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let states = env("IVERS_CRASH_STATES").unwrap_or(600);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    for (nth, kind) in (0..).zip(KINDS) {
        let all = states > MANY_STATES;
        let (workloads, whole) = match &only {
            Some(name) => {
                (vec![Workload::by_name(name).expect("a workload's name, as a report gives it")], 1)
            }
            // A run of few states tries other workloads on each kind: what none of them notices is more than one kind's bad luck.
            None => (workloads(seed + nth, all), if all { Workload::sequences(1) as u64 } else { 0 }),
        };
        let explorer = Explorer {
            target: Box::new(Ext { ..*kind }),
            workloads,
            whole,
            unmount_one_in: if all { 4 } else { 8 },
            most_states: states,
            most_violations: env("IVERS_CRASH_VIOLATIONS").unwrap_or(5) as usize,
            seed,
            fsck_first_every: 8,
            kernel_first_every: 150,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            progress: std::io::stderr().is_terminal(),
        };
        let summary = explorer.run().expect("the explorer itself works");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "promises were broken: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}
