//! In-process: the library in three modes, and the kernel's ext4 beside it where it can be mounted.
//!
//! All four filesystems stay mounted for the whole of a row, on equal images, and take turns of a fraction of a millisecond.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use ivers_vfs::{ChangeMode, MountOptions};
use serde_json::{Value, json};

use super::figures::{Samples, median, places, rate, spread};
use super::make_image;
use super::volume::{Counts, InProcess, Kernel, Volume};
use crate::args;
use crate::image::{self, How};
use crate::progress::Progress;

/// In the order of a round.
const MODES: [(&str, ChangeMode); 3] =
    [("old", ChangeMode::Eager), ("new", ChangeMode::Lazy), ("none", ChangeMode::Off)];

/// So many that a round is a fraction of a time slice: whoever else runs disturbs few of them, and not the median.
const ROUNDS: u32 = 400;

const KERNEL: &str = "kernel_ext4";

const IMAGE_BYTES: u64 = 2 << 30;
/// One-byte overwrites go round in a file of this size.
const OVERWRITTEN_BYTES: u64 = 1 << 20;
/// Jobs on one file, as in the seeds' fio job.
const JOBS: u64 = 8;
const BLOCK: u64 = 4096;
/// Small enough that memory which was used before is used again: its first use is the machine's cost, not ours.
const GROWN_BYTES: u64 = 8 << 20;

/// How a workload writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Over what is there, byte behind byte.
    Overwrite,
    /// At the end of a file that grows from round to round, and is made anew when it has become large.
    Append,
    /// Several jobs at once, each from the start to the end of one fresh file with blocks.
    Jobs,
    /// As `Overwrite`, while so many threads ask for the change attribute as fast as they can.
    Hammered(usize),
}

/// A workload.
#[derive(Debug, Clone, Copy)]
struct Workload {
    name: &'static str,
    pattern: Pattern,
    bytes: usize,
    /// Of `--ops`, this many are made into one: blocks are dearer than bytes.
    ops_divisor: u64,
    /// Of `--rounds`, this many are made into one: threads take turns that a short round would not see.
    rounds_divisor: u64,
}

const fn hammered(name: &'static str, queriers: usize) -> Workload {
    Workload { name, pattern: Pattern::Hammered(queriers), bytes: 1, ops_divisor: 1, rounds_divisor: 16 }
}

const WORKLOADS: [Workload; 7] = [
    Workload {
        name: "overwrite_1_byte",
        pattern: Pattern::Overwrite,
        bytes: 1,
        ops_divisor: 1,
        rounds_divisor: 1,
    },
    Workload { name: "append_1_byte", pattern: Pattern::Append, bytes: 1, ops_divisor: 1, rounds_divisor: 1 },
    Workload {
        name: "append_4k",
        pattern: Pattern::Append,
        bytes: BLOCK as usize,
        ops_divisor: 16,
        rounds_divisor: 2,
    },
    Workload {
        name: "sequential_4k_8_jobs",
        pattern: Pattern::Jobs,
        bytes: BLOCK as usize,
        ops_divisor: 1,
        rounds_divisor: 8,
    },
    hammered("query_hammer_1", 1),
    hammered("query_hammer_2", 2),
    hammered("query_hammer_8", 8),
];

impl Workload {
    fn overwrites(&self) -> bool {
        matches!(self.pattern, Pattern::Overwrite | Pattern::Hammered(_))
    }

    fn is_hammered(&self) -> bool {
        matches!(self.pattern, Pattern::Hammered(_))
    }
}

/// One filesystem in the course of a workload.
struct Course<V: Volume> {
    /// Closed before the volume is unmounted.
    file: Option<V::File>,
    volume: V,
    at: u64,
    ns_per_op: Samples,
    before: Counts,
    counted: Counts,
}

impl<V: Volume> Course<V> {
    fn begin(volume: V, workload: &Workload) -> Result<Self> {
        let mut course = Self {
            volume,
            file: None,
            at: 0,
            ns_per_op: Samples::new(),
            before: Counts::default(),
            counted: Counts::default(),
        };
        let file = course.volume.create("bench")?;
        if workload.overwrites() {
            course.volume.write(&file, 0, &vec![b'o'; OVERWRITTEN_BYTES as usize])?;
        }
        course.file = Some(file);
        Ok(course)
    }

    /// A round that warms caches up and is neither timed nor counted.
    fn warm_up(&mut self, workload: &Workload, ops: u64) -> Result<()> {
        self.round(workload, ops)?;
        self.ns_per_op.clear();
        if let Some(file) = &self.file {
            self.volume.sync(file)?;
        }
        self.before = self.volume.counts();
        Ok(())
    }

    /// Measure nanoseconds an operation, as the clock on the wall sees them.
    fn round(&mut self, workload: &Workload, ops: u64) -> Result<()> {
        let ns = match workload.pattern {
            Pattern::Jobs => self.jobs_round(ops)?,
            Pattern::Hammered(queriers) => self.hammered_round(workload, ops, queriers)?,
            Pattern::Overwrite | Pattern::Append => self.plain_round(workload, ops)?,
        };
        self.ns_per_op.push(ns);
        Ok(())
    }

    fn plain_round(&mut self, workload: &Workload, ops: u64) -> Result<f64> {
        if workload.pattern == Pattern::Append && self.at >= GROWN_BYTES {
            let file = self.file.take().context("the workload has begun")?;
            self.volume.sync(&file)?;
            self.volume.remove("bench", file)?;
            self.file = Some(self.volume.create("bench")?);
            self.at = 0;
        }
        let file = self.file.as_ref().context("the workload has begun")?;
        let data = vec![b'x'; workload.bytes];
        let step = workload.bytes as u64;
        let wraps = workload.overwrites();
        // Whoever had the turn before leaves his data in the processor's caches: the first operations are not timed.
        let lead_in = ops / 8;
        let mut begin = Instant::now();
        for op in 0..ops {
            if op == lead_in {
                begin = Instant::now();
            }
            let offset = if wraps { self.at % OVERWRITTEN_BYTES } else { self.at };
            self.volume.write(file, offset, &data)?;
            self.at += step;
        }
        Ok(begin.elapsed().as_nanos() as f64 / (ops - lead_in) as f64)
    }

    /// The writer's time: starting and stopping the others is not in it.
    fn hammered_round(&mut self, workload: &Workload, ops: u64, queriers: usize) -> Result<f64> {
        let file = self.file.as_ref().context("the workload has begun")?;
        let (volume, at) = (&self.volume, self.at);
        let (start, done) = (Barrier::new(queriers + 1), AtomicBool::new(false));
        let data = vec![b'x'; workload.bytes];
        let (outcome, elapsed) = std::thread::scope(|scope| {
            for _ in 0..queriers {
                scope.spawn(|| {
                    start.wait();
                    volume.query(file);
                    while !done.load(Ordering::Relaxed) {
                        volume.query(file);
                    }
                });
            }
            start.wait();
            let begin = Instant::now();
            let outcome =
                (at..at + ops).try_for_each(|offset| volume.write(file, offset % OVERWRITTEN_BYTES, &data));
            let elapsed = begin.elapsed();
            done.store(true, Ordering::Relaxed);
            (outcome, elapsed)
        });
        outcome?;
        self.at += ops;
        Ok(elapsed.as_nanos() as f64 / ops as f64)
    }

    /// The file is laid out first, as fio does; making, syncing and removing it are not timed.
    fn jobs_round(&mut self, ops: u64) -> Result<f64> {
        let blocks = ops / JOBS;
        let volume = &self.volume;
        let file = volume.create("jobs")?;
        volume.allocate(&file, blocks * BLOCK)?;
        let start = Barrier::new(JOBS as usize);
        let outcome: Result<Vec<_>> = std::thread::scope(|scope| {
            let (start, file) = (&start, &file);
            let jobs: Vec<_> = (0..JOBS)
                .map(|_| {
                    scope.spawn(move || -> Result<(Instant, Instant)> {
                        let data = vec![b'x'; BLOCK as usize];
                        start.wait();
                        let begin = Instant::now();
                        for block in 0..blocks {
                            volume.write(file, block * BLOCK, &data)?;
                        }
                        Ok((begin, Instant::now()))
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join().expect("a job does not panic")).collect()
        });
        let times = outcome?;
        let begin = times.iter().map(|(begin, _)| *begin).min().context("there are jobs")?;
        let end = times.iter().map(|(_, end)| *end).max().unwrap_or(begin);
        volume.sync(&file)?;
        volume.remove("jobs", file)?;
        Ok((end - begin).as_nanos() as f64 / ops as f64)
    }

    fn end(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            self.volume.sync(&file)?;
            let after = self.volume.counts();
            self.counted = Counts {
                inode_updates: after.inode_updates - self.before.inode_updates,
                journal_blocks: after.journal_blocks - self.before.journal_blocks,
                queries: after.queries - self.before.queries,
            };
        }
        Ok(())
    }
}

fn row(fs: &str, workload: &Workload, args: &args::Bench, scratch: &Path, bar: &Progress) -> Result<Value> {
    let (rounds, ops) = plan(workload, args);
    let mut ours = Vec::new();
    for (label, mode) in MODES {
        let path = scratch.join(format!("{fs}-{}-{label}", workload.name));
        if fs != "mem" {
            make_image(&path, IMAGE_BYTES)?;
        }
        let how = How { read_only: false, cache_bytes: 1 << 30, ..How::default() };
        let vfs = image::open(fs, &path, &how, MountOptions { mode, ..MountOptions::default() })?;
        ours.push(Course::begin(InProcess::new(vfs), workload)?);
    }
    let mut missing = serde_json::Map::new();
    let mut kernel = None;
    if fs == "ext4" {
        if workload.is_hammered() {
            missing.insert(
                KERNEL.into(),
                "programs cannot ask it for the change attribute (query_hammer)".into(),
            );
        } else if let Some(why) = Kernel::missing() {
            missing.insert(KERNEL.into(), why.into());
        } else {
            let path = scratch.join(format!("{fs}-{}-kernel", workload.name));
            make_image(&path, IMAGE_BYTES)?;
            match Kernel::mount(&path, &scratch.join("kernel")) {
                Ok(volume) => kernel = Some(Course::begin(volume, workload)?),
                Err(why) => _ = missing.insert(KERNEL.into(), format!("{why:#}").into()),
            }
        }
    }
    ours.iter_mut().try_for_each(|course| course.warm_up(workload, ops))?;
    kernel.iter_mut().try_for_each(|course| course.warm_up(workload, ops))?;
    for round in 0..rounds {
        // There and back: nobody comes behind the same one each time.
        if round % 2 == 0 {
            ours.iter_mut().try_for_each(|course| course.round(workload, ops))?;
        } else {
            ours.iter_mut().rev().try_for_each(|course| course.round(workload, ops))?;
        }
        kernel.iter_mut().try_for_each(|course| course.round(workload, ops))?;
        bar.step(1, |_| format!("{fs} {}", workload.name));
    }
    for course in &mut ours {
        course.end()?;
        course.volume.vfs.unmount()?;
    }
    let kernel_ns = kernel.as_ref().map(|course| course.ns_per_op.as_slice());
    let row = report(fs, workload, (rounds, ops), &ours, kernel_ns, missing);
    drop((ours, kernel));
    for entry in std::fs::read_dir(scratch)?.flatten().filter(|entry| entry.path().is_file()) {
        std::fs::remove_file(entry.path())?;
    }
    Ok(row)
}

/// Rounds, and operations of each: enough of them that a round is worth its start.
fn plan(workload: &Workload, args: &args::Bench) -> (u64, u64) {
    let rounds = (u64::from(args.rounds.unwrap_or(ROUNDS)) / workload.rounds_divisor).max(1);
    let ops = (args.ops / workload.ops_divisor / rounds).max(JOBS);
    (rounds, if workload.pattern == Pattern::Jobs { ops / JOBS * JOBS } else { ops })
}

fn report(
    fs: &str,
    workload: &Workload,
    (rounds, ops): (u64, u64),
    ours: &[Course<InProcess>],
    kernel: Option<&[f64]>,
    missing: serde_json::Map<String, Value>,
) -> Value {
    let each = |of: &dyn Fn(&Course<InProcess>) -> Value| -> Value {
        let figures = MODES.iter().zip(ours).map(|((label, _), course)| ((*label).to_owned(), of(course)));
        Value::Object(figures.collect())
    };
    let [old, new, none] = [0, 1, 2].map(|mode| ours[mode].ns_per_op.as_slice());
    let mut row = json!({
        "name": workload.name,
        "fs": fs,
        "unit": "ops/s",
        "ops": ops * rounds,
        "rounds": rounds,
        "old": rate(median(old)),
        "new": rate(median(new)),
        "none": rate(median(none)),
        "new_over_old": places(median(old) / median(new), 3),
        "new_over_none": places(median(none) / median(new), 3),
        "spread": { "new_over_old": spread(old, new), "new_over_none": spread(none, new) },
        "ns_per_op": each(&|course| json!(places(median(&course.ns_per_op), 1))),
        "inode_updates": each(&|course| json!(course.counted.inode_updates)),
        "journal_blocks": each(&|course| json!(course.counted.journal_blocks)),
        "queries": each(&|course| json!(course.counted.queries)),
        "peers": {},
        "new_over_peer": {},
    });
    if let Some(kernel) = kernel {
        let ns = median(kernel);
        row["peers"][KERNEL] = json!({ "value": rate(ns), "ns_per_op": places(ns, 1) });
        row["new_over_peer"][KERNEL] = json!(places(ns / median(new), 3));
    }
    if !missing.is_empty() {
        row["peers_missing"] = missing.into();
    }
    row
}

/// All rows.
pub(super) fn rows(args: &args::Bench) -> Result<Vec<Value>> {
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    std::fs::create_dir(scratch.path().join("kernel"))?;
    // The log is what the queries may cost, so they hammer what has one.
    let workloads = |fs: &str| {
        let logs = fs == "ext4";
        WORKLOADS.iter().filter(move |workload| logs || !workload.is_hammered())
    };
    let rounds = args.fs.iter().flat_map(|fs| workloads(fs)).map(|workload| plan(workload, args).0).sum();
    let bar = Progress::of(rounds);
    let mut rows = Vec::new();
    for fs in &args.fs {
        for workload in workloads(fs) {
            let what = || format!("{fs} {}", workload.name);
            rows.push(row(fs, workload, args, scratch.path(), &bar).with_context(what)?);
        }
    }
    Ok(rows)
}
