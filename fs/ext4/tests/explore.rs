//! Every crash point of many workloads (see `ivers_crash`).
//!
//! Variables of the environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `IVERS_CRASH_STATES` | limit of the crash states of each kind of image |
//! | `IVERS_CRASH_SEED` | seed of the sample |
//! | `IVERS_CRASH_WORKLOAD` | runs only the workload that a report names |
//! | `IVERS_CRASH_KIND` | runs only this kind of image |
//! | `IVERS_CRASH_VIOLATIONS` | number of violations after which to stop |
//! | `IVERS_CRASH_CHECK_EVERY` | e2fsck checks one in this many states |
//! | `IVERS_CRASH_SEQUENCES` | explores all sequences of up to this many operations |

use anyhow::Context;
use ivers_block::{Device, MemDevice};
use ivers_crash::ops::MOST_WIDE;
use ivers_crash::{Explorer, Promises, Repaired, Target, Workload, env};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_oracle::{e2fs, kernel};
use ivers_vfs::check::Memory;
use ivers_vfs::{DriverOptions, FileSystem};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// ext4 with a set of features.
#[derive(Clone, Copy)]
struct Ext {
    name: &'static str,
    log_checksums: bool,
    journal: bool,
    /// The kind explores one in this many of the requested states, because other kinds cover most of it, or
    /// each state takes several runs of e2fsck.
    one_in: u64,
    /// Whether mkfs makes the files of the workloads, of sorts that the driver reads and changes and does not
    /// make.
    prefilled: bool,
    /// Sessions whose OPEN record is not durable at once.
    short_sessions: bool,
    options: &'static [&'static str],
}

const KIND: Ext = Ext {
    name: "ext4, 1 KiB blocks",
    log_checksums: true,
    journal: true,
    one_in: 1,
    prefilled: false,
    short_sessions: false,
    options: &["-b", "1024"],
};

const UNLOGGED: Ext = Ext { journal: false, one_in: 6, ..KIND };

const KINDS: &[Ext] = &[
    KIND,
    Ext { name: "ext4, 4 KiB blocks", options: &["-b", "4096"], ..KIND },
    Ext { name: "ext4, short sessions", short_sessions: true, ..KIND },
    Ext {
        name: "ext4, journal without checksums",
        log_checksums: false,
        options: &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        ..KIND
    },
    Ext { name: "ext3", log_checksums: false, options: &["-b", "1024", "-t", "ext3"], ..KIND },
    Ext { name: "ext4, orphan file", options: &["-b", "1024", "-O", "orphan_file"], ..KIND },
    Ext { name: "ext4, small inodes", options: &["-b", "1024", "-I", "128"], ..KIND },
    Ext {
        name: "ext4, inline data",
        one_in: 3,
        prefilled: true,
        options: &["-b", "1024", "-I", "1024", "-O", "inline_data"],
        ..KIND
    },
    Ext {
        name: "ext4, wide journal without checksums",
        one_in: 3,
        log_checksums: false,
        options: &["-b", "1024", "-O", "^metadata_csum,64bit"],
        ..KIND
    },
    Ext { name: "ext2", options: &["-b", "1024", "-t", "ext2"], ..UNLOGGED },
    Ext { name: "ext2, small inodes", options: &["-b", "1024", "-t", "ext2", "-I", "128"], ..UNLOGGED },
    Ext { name: "ext4, no journal", options: &["-b", "1024", "-O", "^has_journal"], ..UNLOGGED },
];

/// Checks an image with our checker.
fn our_check(image: &Path) -> anyhow::Result<()> {
    let device = Arc::new(MemDevice::from_bytes(&ivers_oracle::read_image(image)?));
    let found = ivers_ext4::check::check(device, Memory::unlimited(), "test image")?;
    anyhow::ensure!(found.is_clean(), "ivers check: {:?}", found.kept());
    Ok(())
}

impl Target for Ext {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("image");
        // Blocks that mkfs does not write keep these bytes, and no workload writes such bytes.
        let bytes = if self.options.contains(&"4096") { 12 << 20 } else { 4 << 20 };
        std::fs::write(&path, vec![0xa6; bytes])?;
        let mut args = vec!["-q", "-F", "-E", "nodiscard,lazy_itable_init=0", "-N", "128"];
        args.extend(self.options);
        let text = path.to_str().context("a path that is not UTF-8")?.to_owned();
        let files = dir.path().join("files");
        let files_text = files.to_str().context("a path that is not UTF-8")?.to_owned();
        if self.prefilled {
            ivers_crash::history::prepare_on_host(&files)?;
            args.extend(["-d", &files_text]);
        }
        args.push(&text);
        ivers_oracle::run("mkfs.ext4", args)?;
        Ok(MemDevice::from_bytes(&ivers_oracle::read_image(&path)?))
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let place = "test image".into();
        Ok(Ext4::open(
            device,
            OpenOptions {
                common: DriverOptions { place, ..DriverOptions::default() },
                trust_foreign: trusting,
                short_session: self.short_sessions,
                ..OpenOptions::default()
            },
        )?)
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: self.journal,
            lasting_numbers: true,
            crash_safe_values: true,
            generations: true,
            only_values: !self.journal,
        }
    }

    /// Whether a record is a commit block of a log with checksums of version 3.
    fn seals(&self, record: &[u8]) -> bool {
        self.journal && self.log_checksums && record.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2])
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        e2fs::e2fsck(image)?;
        our_check(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        if !self.journal {
            return e2fs::e2fsck_repair_all(image).map(|_| Repaired::Whole);
        }
        // Our checker replays the journal in memory, so it must find as little as e2fsck does.
        let before = our_check(image);
        let said = e2fs::e2fsck_repair(image)?;
        before?;
        our_check(image)?;
        Ok(if e2fs::drops_attributes(image, &said)? { Repaired::Spoiled } else { Repaired::Whole })
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        kernel::recovers(image, "")
    }

    fn kernel_shows(
        &self,
        image: &Path,
        look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        kernel::shows(image, "ro", look)
    }
}

const WIDE_AT: usize = 20;
/// Sequences between two progress reports of a run over all sequences.
const PART: usize = 500;
/// Runs with at least this many states of each kind take every workload.
const MANY_STATES: u64 = 10_000;

/// Sequences of one operation. Every longer sequence contains one; alone they make the shortest reports.
fn ones() -> Vec<Workload> {
    (0..Workload::sequences(1)).map(|nth| Workload::sequence(1, nth)).collect()
}

/// Sequences of one to three operations and long mixes, in an order that the seed determines. A run of few
/// states takes a sample of all sorts; a run of many states starts with the shortest.
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
    // Runs of some thousand states reach it.
    mixed.insert(WIDE_AT, Workload::wide(MOST_WIDE));
    if all {
        mixed.splice(0..0, ones());
    }
    mixed
}

/// The explorer of a kind, configured for a run of few states.
fn explorer(kind: &Ext, seed: u64) -> Explorer {
    Explorer {
        kernel_first_every: 150,
        check_every: env("IVERS_CRASH_CHECK_EVERY").unwrap_or(1),
        ..Explorer::new(*kind, seed)
    }
}

#[test]
fn no_crash_point_breaks_the_contract() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let states = env("IVERS_CRASH_STATES").unwrap_or(600);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    let only_kind = std::env::var("IVERS_CRASH_KIND").ok();
    for (nth, kind) in (0..).zip(KINDS) {
        if only_kind.as_ref().is_some_and(|only| kind.name != only) {
            continue;
        }
        let states = states / kind.one_in;
        let all = states > MANY_STATES;
        let (workloads, whole) = match &only {
            Some(name) => {
                (vec![Workload::by_name(name).expect("a workload's name, as a report gives it")], 1)
            }
            // A run of few states tries other workloads on each kind, so that one seed does not hide a defect
            // from all.
            None => (workloads(seed + nth, all), if all { Workload::sequences(1) as u64 } else { 0 }),
        };
        let explorer = Explorer {
            workloads,
            whole,
            unmount_one_in: if all { 4 } else { 8 },
            most_states: states,
            ..explorer(kind, seed)
        };
        let summary = explorer.run().expect("the explorer itself works");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "the contract was broken: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}

/// Explores every crash point of every sequence of up to `IVERS_CRASH_SEQUENCES` operations, on one kind of
/// image. Reports its progress after each part, because three operations take hours.
#[test]
fn every_short_sequence_holds_at_every_crash_point() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let longest = env("IVERS_CRASH_SEQUENCES").unwrap_or(1);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let mut sequences: Vec<Workload> = (1..=longest as u32)
        .flat_map(|len| (0..Workload::sequences(len)).map(move |nth| Workload::sequence(len, nth)))
        .collect();
    // A run that is stopped early has explored some sequences of every sort.
    sequences.shuffle(&mut StdRng::seed_from_u64(seed));
    let (all, begun) = (sequences.len(), Instant::now());
    let (mut done, mut states) = (0, 0);
    for part in sequences.chunks(PART) {
        let explorer = Explorer {
            workloads: part.to_vec(),
            whole: u64::MAX,
            fsck_first_every: 64,
            kernel_first_every: 20_000,
            fresh_every: 64,
            check_every: env("IVERS_CRASH_CHECK_EVERY").unwrap_or(16),
            ..explorer(&KINDS[0], seed)
        };
        let summary = explorer.run().expect("the explorer itself works");
        (done, states) = (done + part.len(), states + summary.states);
        println!("{summary}\n{done} of {all} sequences, {states} states in {} s", begun.elapsed().as_secs());
        assert!(summary.violations.is_empty(), "the contract was broken: see above");
    }
}

/// The sample of a workload does not depend on the other workloads of the run.
#[test]
fn a_workload_has_the_same_sample_in_every_run() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let names = ["sequence 2:400", "sequence 3:7777", "sequence 2:95"];
    let run = |names: &[&str], seed: u64| {
        let explorer = Explorer {
            workloads: names.iter().filter_map(|name| Workload::by_name(name)).collect(),
            check_every: 0,
            kernel_first_every: 0,
            ..explorer(&KINDS[0], seed)
        };
        explorer.run().expect("the explorer itself works").explored
    };
    let all = run(&names, 5);
    assert_eq!(all.len(), names.len());
    for name in names {
        assert_eq!(run(&[name], 5)[name], all[name], "{name}");
    }
    assert!(names.iter().any(|name| run(&[name], 6)[*name] != all[*name]), "the seed has no effect");
}
