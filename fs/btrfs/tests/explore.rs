//! Every crash point of many workloads (see `ivers_crash`). The environment is that of
//! `fs/ext4/tests/explore.rs`: `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED`, `IVERS_CRASH_WORKLOAD`,
//! `IVERS_CRASH_KIND`, `IVERS_CRASH_CHECK_EVERY`.

mod common;

use ivers_block::{Device, MemDevice};
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_crash::{Explorer, Promises, Repaired, Target, Workload, env};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::may_loop_mount;
use ivers_vfs::{DriverOptions, FileSystem};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// A kind of image.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    mib: usize,
    mkfs: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind { name: "btrfs, mixed groups", mib: 24, mkfs: &["-M", "-n", "4096"] },
    Kind { name: "btrfs", mib: 48, mkfs: &["-n", "4096", "-m", "single", "-d", "single"] },
    Kind {
        name: "btrfs, old features",
        mib: 48,
        mkfs: &["-m", "single", "-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"],
    },
];

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        // Blocks that mkfs does not write keep these bytes, and no workload writes such bytes.
        std::fs::write(&image, vec![0xa6; self.mib << 20])?;
        let path = image.to_str().expect("a path of this test");
        let args = ["-q", "-f", "-K"].into_iter().chain(self.mkfs.iter().copied()).chain([path]);
        ivers_oracle::run("mkfs.btrfs", args)?;
        Ok(MemDevice::from_bytes(&std::fs::read(&image)?))
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let common = DriverOptions { place: "test image".into(), ..DriverOptions::default() };
        let options =
            OpenOptions { common, writable: true, trust_foreign: trusting, ..OpenOptions::default() };
        Ok(Btrfs::open(vec![device], options)?)
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: true,
            lasting_numbers: true,
            crash_safe_values: true,
            generations: true,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        let args = ["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()];
        ivers_oracle::run("btrfs", args).map(drop)
    }

    /// Every state is whole: a commit is there or not.
    fn raw_check(&self, image: &Path) -> anyhow::Result<()> {
        self.check(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        LoopMount::new(image, "")?.unmount()?;
        self.check(image)?;
        Ok(Repaired::Whole)
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        may_loop_mount().then(|| LoopMount::new(image, "")?.unmount())
    }

    fn kernel_shows(
        &self,
        image: &Path,
        look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        may_loop_mount().then(|| {
            let mount = LoopMount::new(image, "ro")?;
            look(mount.path())?;
            mount.unmount()
        })
    }
}

/// Sequences of one to three operations and long mixes, in an order that the seed determines.
fn workloads(seed: u64) -> Vec<Workload> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mixed: Vec<Workload> = (1..=2)
        .flat_map(|len| (0..Workload::sequences(len)).map(move |nth| Workload::sequence(len, nth)))
        .collect();
    let threes = Workload::sequences(3);
    mixed.extend((0..1000).map(|_| Workload::sequence(3, rng.random_range(0..threes))));
    mixed.extend((0..200).map(|nth| Workload::long(rng.random_range(0..1 << 32), [1, 1, 3][nth % 3], 60)));
    mixed.shuffle(&mut rng);
    mixed
}

#[test]
fn no_crash_point_breaks_the_contract() {
    explore(workloads);
}

#[test]
fn no_crash_point_breaks_files_that_share_blocks() {
    explore(|seed| {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..500).map(|_| Workload::sharing(rng.random_range(0..1 << 32), 40)).collect()
    });
}

/// Explores workloads that a seed determines.
fn explore(workloads: impl Fn(u64) -> Vec<Workload>) {
    if !common::can_fill() || !may_loop_mount() {
        return;
    }
    let states = env("IVERS_CRASH_STATES").unwrap_or(60);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    // Recovery by the kernel first, and checks in between, are as many times rarer.
    let check_every = env("IVERS_CRASH_CHECK_EVERY").unwrap_or(4);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    let only_kind = std::env::var("IVERS_CRASH_KIND").ok();
    for (nth, kind) in (0..).zip(KINDS) {
        if only_kind.as_ref().is_some_and(|only| kind.name != only) {
            continue;
        }
        let (workloads, whole) = match &only {
            Some(name) => {
                (vec![Workload::by_name(name).expect("a workload's name, as a report gives it")], 1)
            }
            None => (workloads(seed + nth), 0),
        };
        let explorer = Explorer {
            workloads,
            whole,
            most_states: states,
            kernel_first_every: check_every * 5,
            fsck_first_every: check_every * 10,
            fresh_every: check_every * 2,
            check_every,
            ..Explorer::new(*kind, seed)
        };
        let summary = explorer.run().expect("the explorer itself works");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "the contract was broken: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}
