//! Every crash point of many workloads (see `ivers_crash`).
//!
//! `IVERS_CRASH_STATES` limits the number of states, `IVERS_CRASH_SEED` decides what is sampled, and
//! `IVERS_CRASH_WORKLOAD` runs the workload that a report names.

mod common;

use common::{check, fresh, log, open, superblock};
use ivers_block::{Device, MemDevice};
use ivers_crash::ops::MOST_WIDE;
use ivers_crash::{Explorer, Promises, Repaired, Target, Workload, env};
use ivers_vfs::FileSystem;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

struct Example;

impl Target for Example {
    fn name(&self) -> &str {
        "examplefs"
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        Ok(fresh(1024))
    }

    fn open(&self, device: Arc<dyn Device>, _trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        Ok(open(device, false)?)
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

    /// Whether a record is a commit block with checksums.
    fn seals(&self, record: &[u8]) -> bool {
        record.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2])
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        check(&std::fs::read(image)?)
    }

    /// Replays the log, as another program would, and leaves orphans and the epoch to the driver.
    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        let device = Arc::new(MemDevice::from_bytes(&std::fs::read(image)?));
        log(device.clone(), &superblock(&device.to_bytes()))?.recover()?;
        std::fs::write(image, device.to_bytes())?;
        Ok(Repaired::Whole)
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

/// All sequences of one operation, a sample of two and three, long mixes, and one with large transactions.
fn workloads(seed: u64, states: u64) -> Vec<Workload> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mixed = vec![Workload::wide(MOST_WIDE)];
    for nth in 0..100 + states / 20 {
        let len = 2 + nth as u32 % 2;
        mixed.push(Workload::sequence(len, rng.random_range(0..Workload::sequences(len))));
        if nth % 20 == 0 {
            mixed.push(Workload::long(rng.random_range(0..1 << 32), [1, 1, 3][nth as usize / 20 % 3], 60));
        }
    }
    mixed.shuffle(&mut rng);
    let mut all: Vec<Workload> = (0..Workload::sequences(1)).map(|nth| Workload::sequence(1, nth)).collect();
    all.extend(mixed);
    all
}

#[test]
fn no_crash_point_breaks_the_contract() {
    let states = env("IVERS_CRASH_STATES").unwrap_or(1500);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    let workloads = match &only {
        Some(name) => vec![Workload::by_name(name).expect("a workload's name, as a report gives it")],
        None => workloads(seed, states),
    };
    let explorer = Explorer {
        workloads,
        whole: u64::from(only.is_some()),
        most_states: states,
        ..Explorer::new(Example, seed)
    };
    let summary = explorer.run().expect("the explorer itself works");
    println!("{summary}");
    assert!(summary.violations.is_empty(), "the contract was broken: see above");
    assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
}
