//! The rows of the library: what is measured, how often, and what the seeds measured of it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::curves::Curve;
use super::field::{Field, Kind, Length, MODES};
use super::only::Only;
use super::rows::{self, Seeds};
use super::workloads::crowd::Crowd;
use super::workloads::fio::{SharedFile, Stage, Tiobench};
use super::workloads::pages::Pages;
use super::workloads::plain::{Pattern, Plain};
use super::workloads::{BLOCK, Workload};
use super::{FILESYSTEMS, memory};
use crate::args;
use crate::failure::usage;
use crate::progress::Progress;

/// So many that a round is a fraction of a time slice: whoever else runs disturbs few of them, and not the median.
const ROUNDS: u32 = 400;

/// What is done.
#[derive(Debug, Clone, Copy)]
enum Work {
    Plain(Plain),
    Crowd(Crowd),
    SharedFile(SharedFile),
    Tiobench(Tiobench),
    Pages(Pages),
    Curve(Curve),
    InodeMemory,
}

/// When it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Always,
    /// Only on what has a log and a device.
    OnExt4,
    /// The same, and only by name or with `--all`.
    ByName,
}

/// A row.
#[derive(Debug, Clone, Copy)]
struct Spec {
    name: &'static str,
    asked: Asked,
    work: Work,
    /// Of `--ops`, this many are made into one: blocks are dearer than bytes.
    ops_divisor: u64,
    /// Of `--rounds`, this many are made into one.
    rounds_divisor: u64,
    /// A round is not shorter.
    at_least: Duration,
    /// Rounds, and operations of each, whatever is asked for.
    fixed: Option<(u64, u64)>,
    seeds: Option<Seeds>,
    /// Mounted with that option.
    lazyversion: bool,
}

const fn spec(name: &'static str, asked: Asked, work: Work, ops_divisor: u64, rounds_divisor: u64) -> Spec {
    Spec {
        name,
        asked,
        work,
        ops_divisor,
        rounds_divisor,
        at_least: Duration::ZERO,
        fixed: None,
        seeds: None,
        lazyversion: false,
    }
}

/// A row of a size of its own, which takes long.
const fn full(name: &'static str, work: Work, ops: u64, rounds: u64) -> Spec {
    Spec { fixed: Some((rounds, ops)), ..spec(name, Asked::ByName, work, 1, 1) }
}

impl Spec {
    const fn at_least_ms(mut self, milliseconds: u64) -> Self {
        self.at_least = Duration::from_millis(milliseconds);
        self
    }

    /// The same work on mounts with that option.
    const fn lazyversion(self, name: &'static str) -> Self {
        Self { name, lazyversion: true, ..self }
    }

    const fn seeds(mut self, new_over_old: f64, new_over_none: Option<f64>, source: &'static str) -> Self {
        self.seeds = Some(Seeds { new_over_old: Some(new_over_old), new_over_none, source });
        self
    }
}

const fn plain(pattern: Pattern, bytes: u64) -> Work {
    Work::Plain(Plain::new(pattern, bytes))
}

const fn shared_file(queriers: u64, laps: bool) -> Work {
    Work::SharedFile(SharedFile { queriers, laps })
}

const fn overwrites(bytes: u64, synced: bool) -> Work {
    Work::Plain(Plain { synced, laps: true, ..Plain::new(Pattern::Overwrite, bytes) })
}

const fn hammer(name: &'static str, queriers: u64) -> Spec {
    let work = Work::Crowd(Crowd { writers: 1, one_file: true, queriers });
    spec(name, Asked::OnExt4, work, 1, 32).at_least_ms(40)
}

const fn tiobench(name: &'static str, stage: Stage) -> Spec {
    let work = Tiobench { stage, blocks: TIOBENCH_BLOCKS };
    match stage {
        // What a pass reads comes from memory: it is over soon.
        Stage::Read | Stage::RandomRead => {
            spec(name, Asked::OnExt4, Work::Tiobench(work), 16, 10).at_least_ms(20)
        }
        Stage::Write | Stage::RandomWrite => spec(name, Asked::OnExt4, Work::Tiobench(work), 16, 20),
    }
}

const fn full_tiobench(name: &'static str, stage: Stage) -> Spec {
    full(name, Work::Tiobench(Tiobench { stage, blocks: FULL_TIOBENCH_BLOCKS }), 1, 3)
}

const DD: &str = "dd bs=1, ten million one-byte writes, xfs";
const FIO: &str = "fio, 8 jobs write 4 KiB blocks of one 10 GiB file for 600 s, ext4";
const FIO_QUERIED: &str = "the same fio job while a process queries in a loop, xfs";

/// A file of 1 GiB.
const FULL_JOBS_BLOCKS: u64 = 8 << 18;
/// Of a job: 8 MiB, and fio's own 512 MiB.
const TIOBENCH_BLOCKS: u64 = 1 << 11;
const FULL_TIOBENCH_BLOCKS: u64 = 1 << 17;

const EIGHT_JOBS_QUERIED: Spec =
    spec("sequential_4k_8_jobs_queried", Asked::OnExt4, shared_file(1, false), 1, 8).at_least_ms(40).seeds(
        1.27,
        None,
        FIO_QUERIED,
    );
const QUERY_CURVE: Spec =
    spec("query_curve", Asked::OnExt4, Work::Curve(Curve::Queries), 1, 4).at_least_ms(1);

const ROWS: [Spec; 31] = [
    spec("inode_memory", Asked::OnExt4, Work::InodeMemory, 10, u64::MAX),
    spec("overwrite_1_byte", Asked::Always, plain(Pattern::Overwrite, 1), 1, 1),
    spec("append_1_byte", Asked::Always, plain(Pattern::Append, 1), 1, 1).seeds(2.05, None, DD),
    spec("append_4k", Asked::Always, plain(Pattern::Append, BLOCK), 16, 2),
    spec("sequential_4k_8_jobs", Asked::Always, shared_file(0, false), 1, 8).seeds(1.29, Some(0.94), FIO),
    EIGHT_JOBS_QUERIED,
    hammer("query_hammer_1", 1),
    hammer("query_hammer_2", 2),
    hammer("query_hammer_8", 8),
    QUERY_CURVE,
    EIGHT_JOBS_QUERIED.lazyversion("lazyversion_8_jobs_queried"),
    QUERY_CURVE.lazyversion("lazyversion_query_curve"),
    spec("write_sizes", Asked::OnExt4, Work::Curve(Curve::Sizes), 4, 4).at_least_ms(1),
    spec("scaling_own_files", Asked::OnExt4, Work::Curve(Curve::Threads { one_file: false }), 1, 20)
        .at_least_ms(10),
    spec("scaling_one_file", Asked::OnExt4, Work::Curve(Curve::Threads { one_file: true }), 1, 20)
        .at_least_ms(10),
    // In one piece: the turns of others would be ticks too.
    spec("updates_by_tick", Asked::OnExt4, Work::Curve(Curve::Ticks), 1, u64::MAX),
    tiobench("tiobench_write", Stage::Write),
    tiobench("tiobench_randwrite", Stage::RandomWrite),
    tiobench("tiobench_read", Stage::Read),
    tiobench("tiobench_randread", Stage::RandomRead),
    spec("msync_pages", Asked::OnExt4, Work::Pages(Pages { threads: 2 }), 16, 8).at_least_ms(40).seeds(
        1.435,
        None,
        "vm-scalability case-msync-mt: threads write a shared sparse mapping of half the memory, then msync",
    ),
    spec("latency_1_byte", Asked::OnExt4, overwrites(1, false), 1, 10),
    spec("latency_4k_8_jobs", Asked::OnExt4, shared_file(0, true), 1, 8),
    spec("latency_4k_fsync", Asked::OnExt4, overwrites(BLOCK, true), 500, 40),
    full("full_append_1_byte", plain(Pattern::Append, 1), 1_000_000, 10).seeds(2.05, None, DD),
    full("full_sequential_4k_8_jobs", shared_file(0, true), FULL_JOBS_BLOCKS, 3).seeds(1.29, Some(0.94), FIO),
    full("full_sequential_4k_8_jobs_queried", shared_file(1, true), FULL_JOBS_BLOCKS, 3).seeds(
        1.27,
        None,
        FIO_QUERIED,
    ),
    full_tiobench("full_tiobench_write", Stage::Write),
    full_tiobench("full_tiobench_randwrite", Stage::RandomWrite),
    full_tiobench("full_tiobench_read", Stage::Read),
    full_tiobench("full_tiobench_randread", Stage::RandomRead),
];

impl Spec {
    /// Rounds, and operations of each: enough of them that a round is worth its start.
    fn length(&self, args: &args::Bench) -> Length {
        let rounds = (u64::from(args.rounds.unwrap_or(ROUNDS)) / self.rounds_divisor).max(1);
        let (rounds, ops) = self.fixed.unwrap_or((rounds, (args.ops / self.ops_divisor / rounds).max(1)));
        Length { rounds, ops, at_least: self.at_least }
    }

    /// Steps of the bar.
    fn steps(&self, args: &args::Bench) -> u64 {
        match self.work {
            Work::Curve(curve) => curve.points() * self.length(args).rounds,
            Work::InodeMemory => MODES.len() as u64,
            _ => self.length(args).rounds,
        }
    }

    fn row(&self, fs: &'static str, args: &args::Bench, bar: &Progress) -> Result<Value> {
        let length = self.length(args);
        let kind = Kind { fs, lazyversion: self.lazyversion };
        let (unit, figures) = match self.work {
            Work::Plain(work) => ("ops/s", self.alone(kind, &work, length, bar)?),
            Work::Crowd(work) => ("ops/s", self.alone(kind, &work, length, bar)?),
            Work::SharedFile(work) => ("ops/s", self.alone(kind, &work, length, bar)?),
            Work::Tiobench(work) => ("ops/s", self.alone(kind, &work, length, bar)?),
            Work::Pages(work) => ("ops/s", self.alone(kind, &work, length, bar)?),
            Work::Curve(curve) => (curve.unit(), curve.measure(kind, length, bar, self.name)?),
            Work::InodeMemory => ("bytes/inode", memory::measure(length.ops, bar, self.name)?),
        };
        Ok(rows::row(self.name, fs, unit, figures, self.seeds))
    }

    fn alone<W: Workload>(
        &self,
        kind: Kind,
        work: &W,
        length: Length,
        bar: &Progress,
    ) -> Result<Map<String, Value>> {
        let field = Field::open(kind)?;
        let measured = field.measure(work, length, bar, self.name)?;
        field.close()?;
        Ok(rows::figures(&measured))
    }

    fn on(&self, fs: &str) -> bool {
        fs == "ext4" || self.asked == Asked::Always
    }
}

/// What rows are called.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|spec| spec.name)
}

/// The rows that are wanted.
fn chosen(args: &args::Bench, only: &Only<'_>) -> Result<Vec<&'static Spec>> {
    for word in only.words() {
        let mut named = ROWS.iter().filter(|spec| only.is_meant_by(word, spec.name)).peekable();
        if named.peek().is_some() && !named.any(|spec| args.fs.iter().any(|fs| spec.on(fs))) {
            return Err(usage(format!("--only {word}: measured on ext4 alone")));
        }
    }
    let is_chosen = |spec: &&Spec| match only.words() {
        [] => args.all || spec.asked != Asked::ByName,
        _ => only.is_meant(spec.name),
    };
    Ok(ROWS.iter().filter(is_chosen).collect())
}

/// All rows.
pub(super) fn rows(args: &args::Bench, only: &Only<'_>) -> Result<Vec<Value>> {
    let chosen = chosen(args, only)?;
    let mut plan = Vec::new();
    for fs in FILESYSTEMS.into_iter().filter(|fs| args.fs.iter().any(|asked| asked == fs)) {
        plan.extend(chosen.iter().filter(|spec| spec.on(fs)).map(|spec| (fs, *spec)));
    }
    let bar = Progress::of(plan.iter().map(|(_, spec)| spec.steps(args)).sum());
    let row = |(fs, spec): (&'static str, &Spec)| {
        spec.row(fs, args, &bar).with_context(|| format!("{fs} {}", spec.name))
    };
    plan.into_iter().map(row).collect()
}
