//! Rows with many files: what one file costs in a small and in a large tree.
//!
//! | module | contents |
//! |---|---|
//! | [`tree`] | a tree of empty files on a mount |
//! | [`mounted`] | through `ivers mount`, and beside it through the kernel and fuse2fs on equal images |
//! | [`served`] | through `ivers serve`, by an NFSv4 client |
//! | [`commands`] | commands of `ivers` on an image that is not mounted |
//! | [mod@table] | the table as text |
//!
//! A row runs all steps of its [`Scene`] on empty files in directories of 1,000. The rows of one scene use
//! images of the same size up to a million files, so that only the number of files differs.

mod commands;
mod mounted;
mod served;
mod table;
mod tree;

use std::path::Path;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use ivers_vfs::MountOptions;
use serde_json::{Map, Value, json};

use super::IVERS;
use crate::args::Args;
use crate::contenders::order;
use crate::image::{Format, Image};
use crate::interrupt;
use crate::row_filter::RowFilter;
use crate::statistics::{Samples, median, places, rate, spread};

pub(crate) use self::table::{judge, table};

/// mkfs.ext4 makes an inode for each 16 KiB: enough for a million files.
const IMAGE_BYTES: u64 = 20 << 30;
/// Bytes of a larger image for each file.
const BYTES_PER_FILE: u64 = 20 << 10;
/// Without `--fuse-rounds`, small rows are repeated until all rounds together have this many files.
const FILES_OF_ALL_ROUNDS: u64 = 50_000;
/// What a process may use beside its cache.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

/// Where the files are, and how they are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Mounted(Format),
    Served,
    Commands,
}

impl Scene {
    /// The names of its steps, in the order of a round.
    fn steps(self) -> Vec<&'static str> {
        match self {
            Self::Mounted(format) => mounted::steps(format).iter().map(|(name, _)| *name).collect(),
            Self::Served => served::STEPS.iter().map(|(name, _)| *name).collect(),
            Self::Commands => commands::STEPS.iter().map(|(name, _)| *name).collect(),
        }
    }

    fn format(self) -> Format {
        match self {
            Self::Mounted(format) => format,
            Self::Served | Self::Commands => Format::Ext4,
        }
    }
}

const EXT4: Scene = Scene::Mounted(Format::Ext4);
const XFS: Scene = Scene::Mounted(Format::Xfs);
const FAT: Scene = Scene::Mounted(Format::Fat);
const MEM: Scene = Scene::Mounted(Format::Mem);

/// Rows, and the files of each; `--ops` can limit them.
const ROWS: [(&str, Scene, u64); 20] = [
    ("scale_10k", EXT4, 10_000),
    ("scale_100k", EXT4, 100_000),
    ("scale_300k", EXT4, 300_000),
    ("long_scale_1m", EXT4, 1_000_000),
    ("long_scale_3m", EXT4, 3_000_000),
    ("long_scale_10m", EXT4, 10_000_000),
    ("scale_xfs_10k", XFS, 10_000),
    ("scale_xfs_100k", XFS, 100_000),
    ("long_scale_xfs_1m", XFS, 1_000_000),
    ("scale_fat_10k", FAT, 10_000),
    ("scale_fat_100k", FAT, 100_000),
    ("scale_mem_10k", MEM, 10_000),
    ("scale_mem_100k", MEM, 100_000),
    ("scale_nfs_10k", Scene::Served, 10_000),
    ("scale_nfs_100k", Scene::Served, 100_000),
    ("long_scale_nfs_1m", Scene::Served, 1_000_000),
    ("scale_commands_10k", Scene::Commands, 10_000),
    ("scale_commands_100k", Scene::Commands, 100_000),
    ("long_scale_commands_1m", Scene::Commands, 1_000_000),
    ("long_scale_commands_3m", Scene::Commands, 3_000_000),
];

/// A contender of a row.
trait Contender {
    /// Its options, for the row.
    fn options(&self) -> String;

    /// Prepares a step, for example with a new mount. Is not measured.
    fn prepare(&mut self, step: usize) -> Result<()>;

    /// Runs a step. Returns the nanoseconds of each operation.
    fn run(&mut self, step: usize) -> Result<f64>;

    /// The operations of a step.
    fn ops(&self, step: usize) -> u64;

    /// The largest resident memory of the process that does the work, at the end of the step.
    fn peak_bytes(&self) -> Result<Option<u64>>;

    /// The processor time of this process and of the one that serves, so far; `None` where nobody counts.
    fn processor_ns(&self) -> Result<Option<u64>>;

    /// How often its image was read so far; `None` where nobody counts.
    fn device_reads(&self) -> Result<Option<u64>>;

    /// Ends the last round.
    fn end(&mut self) -> Result<()>;
}

/// The results of a step of one contender.
#[derive(Default)]
struct Measured {
    ns_per_op: Samples,
    processor_ns_per_op: Samples,
    peak_bytes: Option<u64>,
    /// Of the last round.
    device_reads: Option<u64>,
}

/// A contender and its results, by step.
struct Entry {
    name: &'static str,
    contender: Box<dyn Contender>,
    measured: Vec<Measured>,
}

impl Entry {
    fn run(&mut self, step: usize) -> Result<()> {
        self.contender.prepare(step)?;
        let reads_before = self.contender.device_reads()?;
        let processor_before = self.contender.processor_ns()?;
        let ns = self.contender.run(step)?;
        let processor = self.contender.processor_ns()?;
        let reads = self.contender.device_reads()?;
        let measured = &mut self.measured[step];
        measured.ns_per_op.push(ns);
        if let Some((after, before)) = processor.zip(processor_before) {
            let ops = self.contender.ops(step).max(1);
            measured.processor_ns_per_op.push(after.saturating_sub(before) as f64 / ops as f64);
        }
        measured.device_reads = reads.zip(reads_before).map(|(after, before)| after.saturating_sub(before));
        measured.peak_bytes = measured.peak_bytes.max(self.contender.peak_bytes()?);
        Ok(())
    }
}

/// The results of all steps with one number of files.
struct Results {
    name: &'static str,
    scene: Scene,
    files: u64,
    rounds: u32,
    entries: Vec<Entry>,
    missing: Map<String, Value>,
}

/// Returns the image for a row.
fn image(format: Format, files: u64) -> Image {
    Image { format, bytes: IMAGE_BYTES.max(files * BYTES_PER_FILE) }
}

/// Returns the contenders of a row, or why one is missing. The first is ivers, which cannot be missing.
fn contenders(
    scene: Scene,
    files: u64,
    args: &Args,
    scratch: &Path,
) -> Vec<(&'static str, Result<Box<dyn Contender>>)> {
    let image = image(scene.format(), files);
    let boxed = |contender: Result<_>| contender.map(|contender| Box::new(contender) as Box<dyn Contender>);
    match scene {
        Scene::Mounted(format) => mounted::kinds(format, files)
            .map(|(name, kind)| (name, boxed(mounted::Mounted::new(name, kind, image, files, args, scratch))))
            .collect(),
        Scene::Served => {
            let server = served::Served::new(image, files, args, scratch);
            vec![(IVERS, server.map(|server| Box::new(server) as Box<dyn Contender>))]
        }
        Scene::Commands => {
            let commands = commands::Commands::new(image, files, args, scratch);
            vec![(IVERS, commands.map(|commands| Box::new(commands) as Box<dyn Contender>))]
        }
    }
}

fn measure(name: &'static str, scene: Scene, files: u64, args: &Args, bar: &ProgressBar) -> Result<Results> {
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    let steps = scene.steps();
    let (mut missing, mut entries) = (Map::new(), Vec::new());
    for (contender, made) in contenders(scene, files, args, scratch.path()) {
        match made {
            Ok(made) => entries.push(Entry {
                name: contender,
                contender: made,
                measured: steps.iter().map(|_| Measured::default()).collect(),
            }),
            Err(why) if contender == IVERS => bail!(why),
            Err(why) => _ = missing.insert(contender.into(), format!("{why:#}").into()),
        }
    }
    let rounds = rounds(files, args);
    for round in 0..rounds {
        for (number, step) in steps.iter().enumerate() {
            bar.inc(1);
            bar.set_message(format!("{name} {step}"));
            let mut failed = None;
            for at in order(round.into(), entries.len()) {
                interrupt::check()?;
                match entries[at].run(number) {
                    Err(why) if entries[at].name != IVERS => failed = Some((at, format!("{step}: {why:#}"))),
                    other => other?,
                }
            }
            if let Some((at, why)) = failed {
                missing.insert(entries.remove(at).name.into(), why.into());
            }
        }
    }
    for entry in &mut entries {
        entry.contender.end()?;
    }
    Ok(Results { name, scene, files, rounds, entries, missing })
}

fn rounds(files: u64, args: &Args) -> u32 {
    args.fuse_rounds.unwrap_or((FILES_OF_ALL_ROUNDS / files).clamp(1, 5) as u32)
}

/// Returns the row of a step. `fewest` holds the results of the same scene with the fewest files.
fn row(results: &Results, fewest: &Results, number: usize, step: &str) -> Value {
    let cache_bytes = MountOptions::default().cache_bytes;
    let mut row = json!({
        "name": format!("{}_{step}", results.name), "fs": results.scene.format().name(), "unit": "ops/s",
        "files": results.files, "rounds": results.rounds, "bound_bytes": cache_bytes + BESIDE_CACHE_BYTES,
        "peers": {}, "new_over_peer": {},
    });
    let ours = &results.entries[0].measured[number].ns_per_op;
    for Entry { name, contender, measured } in &results.entries {
        let measured = &measured[number];
        let ns = median(&measured.ns_per_op);
        row["options"][name] = contender.options().into();
        row["device_reads"][name] = json!(measured.device_reads);
        if !measured.processor_ns_per_op.is_empty() {
            row["processor_ns_per_op"][name] = json!(places(median(&measured.processor_ns_per_op), 1));
        }
        if let Some(base) = fewest.entries.iter().find(|entry| entry.name == *name) {
            let base = median(&base.measured[number].ns_per_op);
            row["over_fewest_files"][name] = json!(places(ns / base.max(1e-3), 3));
        }
        if *name == IVERS {
            row["ops"] = contender.ops(number).into();
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
    ROWS.iter().map(|(name, ..)| *name)
}

/// Measures the selected rows.
pub(crate) fn rows(args: &Args, filter: &RowFilter<'_>) -> Result<Vec<Value>> {
    if let Some(why) = super::missing() {
        bail!("bench --only scale: {why}");
    }
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|(name, ..)| filter.selects(name))
        .map(|&(name, scene, files)| (name, scene, files.min(args.ops)))
        .collect();
    let steps = chosen
        .iter()
        .map(|&(_, scene, files)| u64::from(rounds(files, args)) * scene.steps().len() as u64)
        .sum();
    let bar = crate::progress_bar(args, steps)?;
    let results = chosen
        .into_iter()
        .map(|(name, scene, files)| measure(name, scene, files, args, &bar))
        .collect::<Result<Vec<_>>>()?;
    let step_rows = |one: &Results| {
        let fewest = results.iter().find(|other| other.scene == one.scene).unwrap_or(one);
        let steps = one.scene.steps();
        steps.iter().enumerate().map(|(number, step)| row(one, fewest, number, step)).collect::<Vec<_>>()
    };
    Ok(results.iter().flat_map(step_rows).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_long_need_their_own_names() {
        let chosen = |word: &str| {
            let words = [word.to_owned()];
            let filter = RowFilter::new(&words, names().collect()).unwrap();
            names().filter(|name| filter.selects(name)).collect::<Vec<_>>()
        };
        assert!(chosen("scale").iter().all(|name| !name.starts_with("long_")));
        assert_eq!(chosen("scale").len(), names().filter(|name| !name.starts_with("long_")).count());
        assert_eq!(chosen("long_scale_1m"), ["long_scale_1m"]);
        assert_eq!(chosen("scale_nfs"), ["scale_nfs_10k", "scale_nfs_100k"]);
    }
}
