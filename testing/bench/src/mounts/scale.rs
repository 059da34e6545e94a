//! Rows with many files: what one file costs in a small and in a large tree, through `ivers mount` and beside
//! it in the kernel's ext4 on an equal image.
//!
//! A row runs all [`STEPS`] on empty files in directories of 1,000. All rows use images of the same size, so
//! that only the number of files differs.

use std::fs::{DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use ivers_vfs::MountOptions;
use serde_json::{Map, Value, json};

use super::IVERS;
use super::peer::{self, Kind, Peer};
use crate::args::Args;
use crate::contenders::order;
use crate::interrupt;
use crate::row_filter::RowFilter;
use crate::statistics::{Samples, median, notes, number, places, rate, spread, text};
use indicatif::ProgressBar;

const KERNEL: &str = "kernel_ext4";
const CONTENDERS: [(&str, Kind); 2] = [(IVERS, Kind::Ivers("lazy")), (KERNEL, Kind::Kernel)];

/// mkfs.ext4 makes an inode for each 16 KiB: enough for the largest row.
const IMAGE_BYTES: u64 = 20 << 30;
const FILES_PER_DIRECTORY: u64 = 1000;
const RANDOM_STATS: u64 = 100_000;
/// Without `--fuse-rounds`, small rows are repeated until all rounds together have this many files.
const FILES_OF_ALL_ROUNDS: u64 = 50_000;
/// What the server may use beside its cache.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

/// Rows, and the files of each; `--ops` can limit them.
const ROWS: [(&str, u64); 4] =
    [("scale_10k", 10_000), ("scale_100k", 100_000), ("scale_300k", 300_000), ("long_scale_1m", 1_000_000)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    /// Reads all directories and stats each file after a new mount.
    ColdWalk,
    /// The same walk again.
    WarmWalk,
    RandomStats,
    /// Reads all directories without stat.
    Readdir,
    /// Unlinks files in the order of their creation, then removes the directories.
    Remove,
}

/// In the order of a round, with the end of the row's name.
const STEPS: [(&str, Step); 6] = [
    ("create", Step::Create),
    ("cold_walk", Step::ColdWalk),
    ("warm_walk", Step::WarmWalk),
    ("random_stats", Step::RandomStats),
    ("readdir", Step::Readdir),
    ("remove", Step::Remove),
];

/// A tree of empty files.
struct Tree {
    root: PathBuf,
    files: u64,
    stats: u64,
}

impl Tree {
    fn directories(&self) -> u64 {
        self.files.div_ceil(FILES_PER_DIRECTORY)
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.root.join(format!("d{number}"))
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory(number / FILES_PER_DIRECTORY).join(format!("f{number}"))
    }

    fn each_directory(&self, mut work: impl FnMut(u64, std::ops::Range<u64>) -> Result<()>) -> Result<()> {
        (0..self.directories()).try_for_each(|number| {
            interrupt::check()?;
            let first = number * FILES_PER_DIRECTORY;
            work(number, first..self.files.min(first + FILES_PER_DIRECTORY))
        })
    }

    fn create(&self) -> Result<()> {
        std::fs::create_dir(&self.root)?;
        self.each_directory(|directory, mut files| {
            std::fs::create_dir(self.directory(directory))?;
            files.try_for_each(|file| Ok(File::create_new(self.file(file)).map(drop)?))
        })
    }

    /// Reads all directories; `is_file` judges each entry in them.
    fn walk(&self, is_file: impl Fn(&DirEntry) -> std::io::Result<bool>) -> Result<()> {
        let mut found = 0;
        for directory in std::fs::read_dir(&self.root)? {
            interrupt::check()?;
            for entry in std::fs::read_dir(directory?.path())? {
                found += u64::from(is_file(&entry?)?);
            }
        }
        ensure!(found == self.files, "the walk found {found} of {} files", self.files);
        Ok(())
    }

    /// Stats files in the same random order for each contender.
    fn random_stats(&self) -> Result<()> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for number in 0..self.stats {
            if number % 1000 == 0 {
                interrupt::check()?;
            }
            // Marsaglia's xorshift64.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            std::fs::symlink_metadata(self.file(state % self.files))?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.each_directory(|directory, mut files| {
            files.try_for_each(|file| std::fs::remove_file(self.file(file)))?;
            Ok(std::fs::remove_dir(self.directory(directory))?)
        })?;
        Ok(std::fs::remove_dir(&self.root)?)
    }

    fn run(&self, step: Step) -> Result<()> {
        match step {
            Step::Create => self.create(),
            Step::ColdWalk | Step::WarmWalk => self.walk(|entry| Ok(entry.metadata()?.is_file())),
            Step::RandomStats => self.random_stats(),
            Step::Readdir => self.walk(|entry| Ok(entry.file_type()?.is_file())),
            Step::Remove => self.remove(),
        }
    }

    fn ops(&self, step: Step) -> u64 {
        if step == Step::RandomStats { self.stats } else { self.files }
    }
}

/// The results of a step of one contender.
#[derive(Default)]
struct Measured {
    ns_per_op: Samples,
    /// The largest resident memory of the server since its mount, at the end of the step.
    peak_bytes: Option<u64>,
}

struct Contender {
    peer: Peer,
    tree: Tree,
    measured: [Measured; STEPS.len()],
}

impl Contender {
    fn new(name: &'static str, kind: Kind, files: u64, args: &Args, scratch: &Path) -> Result<Self> {
        let program = peer::program(kind, args).map_err(anyhow::Error::msg)?;
        let peer = Peer::new(name, kind, program, scratch, IMAGE_BYTES)?;
        let tree = Tree { root: peer.dir.join("many"), files, stats: RANDOM_STATS.min(args.ops) };
        Ok(Self { peer, tree, measured: Default::default() })
    }

    fn run(&mut self, number: usize) -> Result<()> {
        let (_, step) = STEPS[number];
        if step == Step::ColdWalk {
            self.peer.unmount()?;
            self.peer.mount()?;
        }
        self.peer.sync()?;
        let begin = Instant::now();
        self.tree.run(step)?;
        let ns = begin.elapsed().as_nanos() as f64;
        let measured = &mut self.measured[number];
        measured.ns_per_op.push(ns / self.tree.ops(step) as f64);
        measured.peak_bytes = measured.peak_bytes.max(self.peer.peak_bytes()?);
        Ok(())
    }
}

/// The results of all steps with one number of files.
struct Results {
    name: &'static str,
    rounds: u32,
    contenders: Vec<Contender>,
    missing: Map<String, Value>,
}

fn measure(name: &'static str, files: u64, args: &Args, bar: &ProgressBar) -> Result<Results> {
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    let mut missing = Map::new();
    let mut contenders = Vec::new();
    for (contender, kind) in CONTENDERS {
        match Contender::new(contender, kind, files, args, scratch.path()) {
            Ok(contender) => contenders.push(contender),
            Err(why) if kind != Kind::Kernel => bail!(why),
            Err(why) => _ = missing.insert(contender.into(), format!("{why:#}").into()),
        }
    }
    let rounds = rounds(files, args);
    for round in 0..rounds {
        for (number, (step, _)) in STEPS.into_iter().enumerate() {
            bar.inc(1);
            bar.set_message(format!("{name} {step}"));
            for at in order(round.into(), contenders.len()) {
                interrupt::check()?;
                contenders[at].run(number)?;
            }
        }
    }
    for contender in &mut contenders {
        contender.peer.unmount()?;
    }
    Ok(Results { name, rounds, contenders, missing })
}

fn rounds(files: u64, args: &Args) -> u32 {
    args.fuse_rounds.unwrap_or((FILES_OF_ALL_ROUNDS / files).clamp(1, 5) as u32)
}

/// Returns the row of a step. `fewest` holds the results with the fewest files.
fn row(results: &Results, fewest: &Results, number: usize) -> Value {
    let (step, kind) = STEPS[number];
    let cache_bytes = MountOptions::default().cache_bytes;
    let mut row = json!({
        "name": format!("{}_{step}", results.name), "fs": "ext4", "unit": "ops/s", "rounds": results.rounds,
        "bound_bytes": cache_bytes + BESIDE_CACHE_BYTES, "peers": {}, "new_over_peer": {},
    });
    let ours = &results.contenders[0].measured[number].ns_per_op;
    for (contender, base) in results.contenders.iter().zip(&fewest.contenders) {
        let (name, measured) = (contender.peer.name, &contender.measured[number]);
        let ns = median(&measured.ns_per_op);
        row["options"][name] = contender.peer.kind.options().into();
        let base = median(&base.measured[number].ns_per_op);
        row["over_fewest_files"][name] = json!(places(ns / base.max(1e-3), 3));
        if name == IVERS {
            row["files"] = contender.tree.files.into();
            row["ops"] = contender.tree.ops(kind).into();
            row["new"] = json!(rate(ns));
            row["ns_per_op"]["new"] = json!(places(ns, 1));
            row["peak_bytes"] = json!(measured.peak_bytes);
        } else {
            row["peers"][name] = json!({ "value": rate(ns), "ns_per_op": places(ns, 1) });
            row["new_over_peer"][name] = json!(places(ns / median(ours).max(1e-3), 3));
            row["spread"]["new_over_peer"][name] = spread(&measured.ns_per_op, ours);
        }
    }
    if !results.missing.is_empty() {
        row["peers_missing"] = results.missing.clone().into();
    }
    row
}

/// Returns the names for `--only`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, _)| *name)
}

/// Measures the selected rows.
pub(crate) fn rows(args: &Args, filter: &RowFilter<'_>) -> Result<Vec<Value>> {
    if let Some(why) = super::missing() {
        bail!("bench --only scale: {why}");
    }
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|(name, _)| filter.selects(name))
        .map(|&(name, files)| (name, files.min(args.ops)))
        .collect();
    let steps = chosen.iter().map(|&(_, files)| u64::from(rounds(files, args)) * STEPS.len() as u64).sum();
    let bar = crate::progress_bar(args, steps)?;
    let results = chosen
        .into_iter()
        .map(|(name, files)| measure(name, files, args, &bar))
        .collect::<Result<Vec<_>>>()?;
    let step_rows = |one| (0..STEPS.len()).map(|number| row(one, &results[0], number)).collect::<Vec<_>>();
    Ok(results.iter().flat_map(step_rows).collect())
}

/// Fails if the memory of a row exceeds its bound.
pub(crate) fn judge(rows: &[Value]) -> Result<()> {
    let mib = |row: &Value, name| number(&row[name]) / f64::from(1 << 20);
    let exceeds = |row: &&Value| number(&row["peak_bytes"]) > number(&row["bound_bytes"]);
    let exceeding: Vec<_> = rows
        .iter()
        .filter(|row| row["peak_bytes"].is_number())
        .filter(exceeds)
        .map(|row| {
            let (peak, bound) = (mib(row, "peak_bytes"), mib(row, "bound_bytes"));
            format!("{}: {peak:.1} MiB of at most {bound:.0} MiB", text(row, "name"))
        })
        .collect();
    ensure!(exceeding.is_empty(), "memory exceeds its bound: {}", exceeding.join(", "));
    Ok(())
}

/// Formats the table.
pub(crate) fn table(rows: &[Value]) -> Vec<String> {
    let mut lines = vec![
        "us per file, medians of the rounds; times fewest: the cost over that of the same step in the first \
            row; over the kernel: above 1x, ivers is faster"
            .to_owned(),
        format!(
            "{:<27}{:>9}{:>10}{:>14}{:>10}{:>14}{:>17}{:>10}",
            "workload",
            "files",
            "ivers",
            "times fewest",
            "kernel",
            "times fewest",
            "over the kernel",
            "peak MiB"
        ),
    ];
    for row in rows {
        let us = |ns: &Value| ns.as_f64().map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1000.0));
        let times = |ratio: &Value| ratio.as_f64().map_or("-".to_owned(), |ratio| format!("{ratio:.2}x"));
        lines.push(format!(
            "{:<27}{:>9}{:>10}{:>14}{:>10}{:>14}{:>17}{:>10.0}",
            text(row, "name"),
            row["files"],
            us(&row["ns_per_op"]["new"]),
            times(&row["over_fewest_files"][IVERS]),
            us(&row["peers"][KERNEL]["ns_per_op"]),
            times(&row["over_fewest_files"][KERNEL]),
            times(&row["new_over_peer"][KERNEL]),
            number(&row["peak_bytes"]) / f64::from(1 << 20),
        ));
    }
    lines.extend(rows.first().map(|row| {
        let bound = number(&row["bound_bytes"]) / f64::from(1 << 20);
        format!(
            "peak: resident memory of ivers since its mount; its bound is {bound:.0} MiB, cache= and 64 MiB"
        )
    }));
    lines.extend(notes(rows));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_created_walked_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let tree = Tree { root: place.path().join("many"), files: 2001, stats: 50 };
        tree.run(Step::Create).unwrap();
        assert_eq!(std::fs::read_dir(&tree.root).unwrap().count(), 3);
        assert_eq!(std::fs::read_dir(tree.directory(2)).unwrap().count(), 1);
        for step in [Step::ColdWalk, Step::WarmWalk, Step::RandomStats, Step::Readdir] {
            tree.run(step).unwrap();
        }
        std::fs::remove_file(tree.file(7)).unwrap();
        for step in [Step::ColdWalk, Step::Readdir] {
            assert!(tree.run(step).unwrap_err().to_string().contains("2000 of 2001"));
        }
        File::create_new(tree.file(7)).unwrap();
        tree.run(Step::Remove).unwrap();
        assert!(!tree.root.exists());
    }

    #[test]
    fn a_peak_above_its_bound_is_an_error() {
        let row =
            |name, peak: Value| json!({ "name": name, "peak_bytes": peak, "bound_bytes": 320_u64 << 20 });
        let within = [row("a", json!(320_u64 << 20)), row("b", Value::Null), json!({ "name": "other" })];
        judge(&within).unwrap();
        let above = [row("c", json!((320_u64 << 20) + 1)), row("d", json!(372_u64 << 20))];
        let said = judge(&above).unwrap_err().to_string();
        assert!(said.contains("c: 320.0 MiB of at most 320 MiB, d: 372.0 MiB"), "{said}");
    }

    #[test]
    fn the_row_that_takes_long_needs_its_own_name() {
        let chosen = |word: &str| {
            let words = [word.to_owned()];
            let filter = RowFilter::new(&words, names().collect()).unwrap();
            names().filter(|name| filter.selects(name)).collect::<Vec<_>>()
        };
        assert_eq!(chosen("scale"), ["scale_10k", "scale_100k", "scale_300k"]);
        assert_eq!(chosen("long_scale_1m"), ["long_scale_1m"]);
    }
}
