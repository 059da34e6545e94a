//! The in-process rows: workload, size, and the figures of the patch series.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::contenders::{Contenders, Kind, Length, MODES, Storing};
use super::curves::Curve;
use super::image::Format;
use super::row_filter::RowFilter;
use super::rows::{self, Reference};
use super::workloads::crowd::Crowd;
use super::workloads::fio::{SharedFile, Stage, Tiobench};
use super::workloads::pages::Pages;
use super::workloads::plain::{Pattern, Plain};
use super::workloads::{BLOCK, Workload};
use super::{FORMATS, memory};
use crate::args::{Args, UsageError};
use indicatif::ProgressBar;

/// Enough rounds that one is a fraction of a time slice: other processes then disturb few rounds and not the
/// median.
const ROUNDS: u32 = 400;

/// A workload.
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

/// When a row runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// Only on a filesystem with a log and a device.
    Logged,
    /// Only on ext4.
    OnExt4,
    /// Only on btrfs.
    OnBtrfs,
    /// Only on a filesystem with a log and a device, and only by name or with `--all`.
    ByName,
}

/// A row.
#[derive(Debug, Clone, Copy)]
struct Spec {
    name: &'static str,
    when: When,
    work: Work,
    /// Divisor of `--ops`: blocks cost more than bytes.
    ops_divisor: u64,
    /// Divisor of `--rounds`.
    rounds_divisor: u64,
    /// The shortest time of a round.
    at_least: Duration,
    /// Fixed numbers of rounds and of operations per round.
    fixed: Option<(u64, u64)>,
    reference: Option<Reference>,
    storing: Storing,
}

const fn spec(name: &'static str, when: When, work: Work, ops_divisor: u64, rounds_divisor: u64) -> Spec {
    Spec {
        name,
        when,
        work,
        ops_divisor,
        rounds_divisor,
        at_least: Duration::ZERO,
        fixed: None,
        reference: None,
        storing: Storing::Deferred,
    }
}

/// Returns a row with a fixed size, which takes long.
const fn full(name: &'static str, work: Work, ops: u64, rounds: u64) -> Spec {
    Spec { fixed: Some((rounds, ops)), ..spec(name, When::ByName, work, 1, 1) }
}

impl Spec {
    const fn at_least_ms(mut self, milliseconds: u64) -> Self {
        self.at_least = Duration::from_millis(milliseconds);
        self
    }

    /// Returns the same row, mounted with `nolazyversion`.
    const fn nolazyversion(self, name: &'static str) -> Self {
        Self { name, storing: Storing::AtOnce, ..self }
    }

    /// Returns the same row on btrfs, with a mode `new` that stores as the patch series did.
    const fn stored_by_query(self, name: &'static str) -> Self {
        Self { name, when: When::OnBtrfs, storing: Storing::ByQuery, reference: None, ..self }
    }

    const fn reference(
        mut self,
        new_over_old: f64,
        new_over_none: Option<f64>,
        source: &'static str,
    ) -> Self {
        self.reference = Some(Reference { new_over_old: Some(new_over_old), new_over_none, source });
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
    spec(name, When::Logged, work, 1, 32).at_least_ms(40)
}

const fn tiobench(name: &'static str, stage: Stage) -> Spec {
    let work = Tiobench { stage, blocks: TIOBENCH_BLOCKS };
    match stage {
        // Reads come from memory and take little time.
        Stage::Read | Stage::RandomRead => {
            spec(name, When::Logged, Work::Tiobench(work), 16, 10).at_least_ms(20)
        }
        Stage::Write | Stage::RandomWrite => spec(name, When::Logged, Work::Tiobench(work), 16, 20),
    }
}

const fn full_tiobench(name: &'static str, stage: Stage) -> Spec {
    full(name, Work::Tiobench(Tiobench { stage, blocks: FULL_TIOBENCH_BLOCKS }), 1, 3)
}

const DD: &str = "dd bs=1, ten million one-byte writes, xfs";
const FIO: &str = "fio, 8 jobs write 4 KiB blocks of one 10 GiB file for 600 s, ext4";
const FIO_QUERIED: &str = "the same fio job while a process queries in a loop, xfs";

/// Blocks of a file of 1 GiB.
const FULL_JOBS_BLOCKS: u64 = 8 << 18;
/// Blocks of each job's file: 8 MiB, and fio's own 512 MiB.
const TIOBENCH_BLOCKS: u64 = 1 << 11;
const FULL_TIOBENCH_BLOCKS: u64 = 1 << 17;

const EIGHT_JOBS_QUERIED: Spec =
    spec("sequential_4k_8_jobs_queried", When::Logged, shared_file(1, false), 1, 8)
        .at_least_ms(40)
        .reference(1.27, None, FIO_QUERIED);
const QUERY_CURVE: Spec = spec("query_curve", When::Logged, Work::Curve(Curve::Queries), 1, 4).at_least_ms(1);

const OVERWRITE_1_BYTE: Spec = spec("overwrite_1_byte", When::Always, plain(Pattern::Overwrite, 1), 1, 1);
const APPEND_1_BYTE: Spec =
    spec("append_1_byte", When::Always, plain(Pattern::Append, 1), 1, 1).reference(2.05, None, DD);
const EIGHT_JOBS: Spec =
    spec("sequential_4k_8_jobs", When::Always, shared_file(0, false), 1, 8).reference(1.29, Some(0.94), FIO);

const ROWS: [Spec; 34] = [
    spec("inode_memory", When::OnExt4, Work::InodeMemory, 10, u64::MAX),
    OVERWRITE_1_BYTE,
    APPEND_1_BYTE,
    spec("append_4k", When::Always, plain(Pattern::Append, BLOCK), 16, 2),
    EIGHT_JOBS,
    OVERWRITE_1_BYTE.stored_by_query("by_query_overwrite_1_byte"),
    APPEND_1_BYTE.stored_by_query("by_query_append_1_byte"),
    EIGHT_JOBS.stored_by_query("by_query_4k_8_jobs"),
    EIGHT_JOBS_QUERIED,
    hammer("query_hammer_1", 1),
    hammer("query_hammer_2", 2),
    hammer("query_hammer_8", 8),
    QUERY_CURVE,
    EIGHT_JOBS_QUERIED.nolazyversion("nolazyversion_8_jobs_queried"),
    QUERY_CURVE.nolazyversion("nolazyversion_query_curve"),
    spec("write_sizes", When::Logged, Work::Curve(Curve::Sizes), 4, 4).at_least_ms(1),
    spec("scaling_own_files", When::Logged, Work::Curve(Curve::Threads { one_file: false }), 1, 20)
        .at_least_ms(10),
    spec("scaling_one_file", When::Logged, Work::Curve(Curve::Threads { one_file: true }), 1, 20)
        .at_least_ms(10),
    // In one round: the turns of other contenders would look like ticks.
    spec("updates_by_tick", When::Logged, Work::Curve(Curve::Ticks), 1, u64::MAX),
    tiobench("tiobench_write", Stage::Write),
    tiobench("tiobench_randwrite", Stage::RandomWrite),
    tiobench("tiobench_read", Stage::Read),
    tiobench("tiobench_randread", Stage::RandomRead),
    spec("msync_pages", When::Logged, Work::Pages(Pages { threads: 2 }), 16, 8).at_least_ms(40).reference(
        1.435,
        None,
        "vm-scalability case-msync-mt: threads write a shared sparse mapping of half the memory, then msync",
    ),
    spec("latency_1_byte", When::Logged, overwrites(1, false), 1, 10),
    spec("latency_4k_8_jobs", When::Logged, shared_file(0, true), 1, 8),
    spec("latency_4k_fsync", When::Logged, overwrites(BLOCK, true), 500, 40),
    full("full_append_1_byte", plain(Pattern::Append, 1), 1_000_000, 10).reference(2.05, None, DD),
    full("full_sequential_4k_8_jobs", shared_file(0, true), FULL_JOBS_BLOCKS, 3).reference(
        1.29,
        Some(0.94),
        FIO,
    ),
    full("full_sequential_4k_8_jobs_queried", shared_file(1, true), FULL_JOBS_BLOCKS, 3).reference(
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
    /// Returns the rounds and the operations per round.
    fn length(&self, args: &Args) -> Length {
        let rounds = (u64::from(args.rounds.unwrap_or(ROUNDS)) / self.rounds_divisor).max(1);
        let (rounds, ops) = self.fixed.unwrap_or((rounds, (args.ops / self.ops_divisor / rounds).max(1)));
        Length { rounds, ops, at_least: self.at_least }
    }

    /// Returns the steps of the progress bar.
    fn steps(&self, args: &Args) -> u64 {
        match self.work {
            Work::Curve(curve) => curve.points() * self.length(args).rounds,
            Work::InodeMemory => MODES.len() as u64,
            _ => self.length(args).rounds,
        }
    }

    fn row(&self, format: Format, args: &Args, bar: &ProgressBar) -> Result<Value> {
        let length = self.length(args);
        let kind = Kind { format, storing: self.storing };
        let (unit, figures) = match self.work {
            Work::Plain(work) => ("ops/s", self.measure(kind, &work, length, bar)?),
            Work::Crowd(work) => ("ops/s", self.measure(kind, &work, length, bar)?),
            Work::SharedFile(work) => ("ops/s", self.measure(kind, &work, length, bar)?),
            Work::Tiobench(work) => ("ops/s", self.measure(kind, &work, length, bar)?),
            Work::Pages(work) => ("ops/s", self.measure(kind, &work, length, bar)?),
            Work::Curve(curve) => (curve.unit(), curve.measure(kind, length, bar, self.name)?),
            Work::InodeMemory => ("bytes/inode", memory::measure(length.ops, bar, self.name)?),
        };
        Ok(rows::row(self.name, format.name(), unit, figures, self.reference))
    }

    fn measure<W: Workload>(
        &self,
        kind: Kind,
        work: &W,
        length: Length,
        bar: &ProgressBar,
    ) -> Result<Map<String, Value>> {
        let field = Contenders::open(kind)?;
        let measured = field.measure(work, length, bar, self.name)?;
        field.close()?;
        Ok(rows::figures(&measured))
    }

    fn on(&self, format: Format) -> bool {
        match self.when {
            When::Always => true,
            When::Logged | When::ByName => format != Format::Mem,
            When::OnExt4 => format == Format::Ext4,
            When::OnBtrfs => format == Format::Btrfs,
        }
    }
}

/// Returns the names of all rows.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|spec| spec.name)
}

/// Returns the formats of `--fs`.
fn selected(args: &Args) -> impl Iterator<Item = Format> {
    FORMATS.into_iter().filter(|format| args.fs.iter().any(|name| name == format.name()))
}

/// Returns the selected rows.
fn chosen(args: &Args, filter: &RowFilter<'_>) -> Result<Vec<&'static Spec>> {
    for word in filter.words() {
        let mut named = ROWS.iter().filter(|spec| filter.word_selects(word, spec.name)).peekable();
        if named.peek().is_some() && !named.any(|spec| selected(args).any(|format| spec.on(format))) {
            return Err(UsageError(format!("--only {word}: not measured on {}", args.fs.join(","))).into());
        }
    }
    let is_chosen = |spec: &&Spec| match filter.words() {
        [] => args.all || spec.when != When::ByName,
        _ => filter.selects(spec.name),
    };
    Ok(ROWS.iter().filter(is_chosen).collect())
}

/// Measures all selected rows.
pub(crate) fn rows(args: &Args, filter: &RowFilter<'_>) -> Result<Vec<Value>> {
    let chosen = chosen(args, filter)?;
    let mut plan = Vec::new();
    for format in selected(args) {
        plan.extend(chosen.iter().filter(|spec| spec.on(format)).map(|spec| (format, *spec)));
    }
    let bar = crate::progress_bar(args, plan.iter().map(|(_, spec)| spec.steps(args)).sum())?;
    let row = |(format, spec): (Format, &Spec)| {
        spec.row(format, args, &bar).with_context(|| format!("{} {}", format.name(), spec.name))
    };
    plan.into_iter().map(row).collect()
}
