//! Every crash point of many workloads (see `ivers_crash`): a crash loses space and nothing else, whether
//! this driver or fsck.fat opens the volume first.
//!
//! `IVERS_CRASH_STATES` bounds the number of states for each kind of image. `IVERS_CRASH_SEED` seeds the
//! choice of workloads and states. `IVERS_CRASH_WORKLOAD` runs one workload, by the name in a report.

use ivers_block::{Device, MemDevice};
use ivers_crash::{Explorer, Op, Promises, Repaired, Target, Workload, env};
use ivers_fat::Fat;
use ivers_oracle::{FAT_PROGRAMS, fsck_fat_after_crash, fsck_fat_repair, have_programs};
use ivers_vfs::check::Memory;
use ivers_vfs::{DriverOptions, FileSystem};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    options: &'static [&'static str],
}

/// Small clusters, so that chains have several.
const KINDS: &[Kind] = &[
    Kind { name: "FAT12", options: &["-F", "12", "-s", "4"] },
    Kind { name: "FAT16", options: &["-F", "16", "-s", "1"] },
    Kind { name: "FAT32", options: &["-F", "32", "-s", "1"] },
    Kind {
        name: "FAT32, sectors of 2 KiB, one FAT",
        options: &["-F", "32", "-S", "2048", "-s", "1", "-f", "1"],
    },
];

/// Findings of our checker that a crash may leave. They waste space, or the first copy of the table counts.
const AFTER_CRASH: [&str; 5] =
    ["volume-not-clean", "cluster-lost", "chain-too-long", "free-clusters-count-wrong", "fat-copies-differ"];

/// Checks an image with our checker.
fn our_check(image: &Path) -> anyhow::Result<()> {
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(image)?));
    let found = ivers_fat::check::check(device, Memory::unlimited(), "test image")?;
    let other = found.kept().iter().find(|finding| !AFTER_CRASH.contains(&finding.code));
    anyhow::ensure!(other.is_none(), "ivers check: {other:?}");
    Ok(())
}

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("image");
        // Bytes that mkfs.fat does not write keep this value, which no workload writes.
        std::fs::write(&path, vec![0xa6; 4 << 20])?;
        let text = path.display().to_string();
        ivers_oracle::run("mkfs.fat", self.options.iter().copied().chain([text.as_str()]))?;
        Ok(MemDevice::from_bytes(&std::fs::read(&path)?))
    }

    fn open(&self, device: Arc<dyn Device>, _trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let options = DriverOptions {
            place: "test image".into(),
            // Without timed writes, a workload writes the same every time.
            commit_interval: Duration::from_secs(3600),
            ..DriverOptions::default()
        };
        Ok(Fat::open(device, options.into())?)
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: false,
            lasting_numbers: false,
            crash_safe_values: false,
            generations: false,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        fsck_fat_after_crash(image)?;
        our_check(image)
    }

    fn raw_check(&self, image: &Path) -> anyhow::Result<()> {
        fsck_fat_after_crash(image)?;
        our_check(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        fsck_fat_repair(image).map(|_| Repaired::Whole)
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

#[test]
fn a_crash_loses_space_and_nothing_else() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let states = env("IVERS_CRASH_STATES").unwrap_or(400);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    for (nth, kind) in (0..).zip(KINDS) {
        let workloads = match &only {
            Some(name) => {
                vec![Workload::by_name(name).expect("IVERS_CRASH_WORKLOAD is the name of a workload")]
            }
            None => Workload::mixed(seed + nth, 2000),
        };
        let summary = Explorer {
            workloads,
            whole: if only.is_some() { 1 } else { 0 },
            most_states: states,
            fsck_first_every: 6,
            ..Explorer::new(*kind, seed)
        }
        .run()
        .unwrap();
        println!("{summary}");
        assert!(summary.violations.is_empty(), "{summary}");
        assert!(only.is_some() || summary.states >= states, "{summary}");
    }
}

/// A rename within one sector is one write: it removes the old name and adds the new one. If the file is
/// renamed into another sector before that write, no crash state has both the first and the third name.
#[test]
fn a_file_renamed_twice_has_at_most_one_name_after_a_crash() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let long = "a name of several parts";
    let scripts = [
        ("replaces", vec![Op::Create("b"), Op::Sync, Op::Rename("a", "b"), Op::Rename("b", "d/b")]),
        ("gets another name", vec![Op::Rename("a", long), Op::Rename(long, "d/a")]),
    ];
    let workloads =
        scripts.map(|(name, ops)| Workload { name: name.to_owned(), workers: vec![ops], small_cache: false });
    for kind in KINDS {
        let explorer = Explorer {
            workloads: workloads.to_vec(),
            whole: workloads.len() as u64,
            ..Explorer::new(*kind, 1)
        };
        let summary = explorer.run().unwrap();
        println!("{summary}");
        assert!(summary.violations.is_empty(), "{summary}");
    }
}
