//! `bench`: what the change attribute costs, in-process: eager (old), lazy (new) and off (none), interleaved.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use ivers_vfs::{ChangeMode, CreateSpec, Cred, MountOptions, Vfs, WriteFlags};
use serde_json::{Value, json};

use crate::failure::{FAILED, failure, usage};
use crate::image::How;
use crate::{args, image, show};

/// In the order of a round.
const MODES: [(&str, ChangeMode); 3] =
    [("old", ChangeMode::Eager), ("new", ChangeMode::Lazy), ("none", ChangeMode::Off)];

/// The workloads: name, bytes a write, whether the file grows.
const WORKLOADS: [(&str, usize, bool); 3] =
    [("overwrite_1_byte", 1, false), ("append_1_byte", 1, true), ("sequential_4k", 4096, true)];

/// Room for what one round writes, four times over.
const IMAGE_BYTES: u64 = 4 << 30;

/// One round of one mode.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    ns_per_op: f64,
    inode_updates: u64,
    journal_blocks: u64,
}

fn round(vfs: &Arc<Vfs>, bytes: usize, grows: bool, ops: u64) -> Result<Sample> {
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, &vfs.root()?, b"bench", &CreateSpec::file(0o644), false)?;
    let data = vec![b'x'; bytes];
    vfs.write(&cred, &file, 0, &data, WriteFlags::empty())?;
    vfs.sync()?;
    let (before, (blocks_before, _)) = (vfs.stats(), vfs.fs().journal_stats());
    let start = Instant::now();
    for op in 0..ops {
        let offset = if grows { op * bytes as u64 } else { 0 };
        vfs.write(&cred, &file, offset, &data, WriteFlags::empty())?;
    }
    let elapsed = start.elapsed();
    vfs.sync()?;
    let (after, (blocks_after, _)) = (vfs.stats(), vfs.fs().journal_stats());
    drop(file);
    vfs.unlink(&cred, &vfs.root()?, b"bench", false)?;
    Ok(Sample {
        ns_per_op: elapsed.as_nanos() as f64 / ops as f64,
        inode_updates: after.inode_updates - before.inode_updates,
        journal_blocks: blocks_after - blocks_before,
    })
}

fn median<T: Copy + PartialOrd>(samples: &[Sample], of: impl Fn(&Sample) -> T) -> Option<T> {
    let mut values: Vec<T> = samples.iter().map(of).collect();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

fn make_image(path: &Path) -> Result<()> {
    std::fs::File::create(path)?.set_len(IMAGE_BYTES)?;
    let program = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].into_iter().find(|p| Path::new(p).exists());
    let output = std::process::Command::new(program.unwrap_or("mkfs.ext4"))
        .args(["-q", "-F"])
        .arg(path)
        .output()
        .map_err(|e| {
            failure(
                FAILED,
                format!("mkfs.ext4: {e}: the ext4 rows need it (package e2fsprogs), or use --fs mem"),
            )
        })?;
    if !output.status.success() {
        return Err(failure(
            FAILED,
            format!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr).trim()),
        ));
    }
    Ok(())
}

fn row(
    fs: &str,
    name: &str,
    bytes: usize,
    grows: bool,
    args: &args::Bench,
    bar: &ProgressBar,
) -> Result<Value> {
    // The file of a growing workload stays small enough for the cache and the image.
    let ops = if bytes > 1 { args.ops.min(50_000) } else { args.ops };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    if fs != "mem" {
        make_image(&path)?;
    }
    let mut samples: [Vec<Sample>; 3] = Default::default();
    for _ in 0..args.rounds {
        for (mode, (label, change_mode)) in MODES.iter().enumerate() {
            bar.set_message(format!("{fs} {name} {label}"));
            let how = How { read_only: false, cache_bytes: 1 << 30, ..How::default() };
            let options = MountOptions { mode: *change_mode, ..MountOptions::default() };
            let vfs = image::open(fs, &path, &how, options)?;
            let sample = round(&vfs, bytes, grows, ops).with_context(|| format!("{fs} {name} {label}"));
            vfs.unmount()?;
            samples[mode].push(sample?);
            bar.inc(1);
        }
    }
    let each = |of: &dyn Fn(&Sample) -> Value| -> Value {
        MODES
            .iter()
            .zip(&samples)
            .map(|((label, _), s)| ((*label).to_owned(), median_value(s, of)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let rate = |mode: usize| median(&samples[mode], |s| 1e9 / s.ns_per_op.max(1e-3)).unwrap_or(0.0);
    let (old, new, none) = (rate(0), rate(1), rate(2));
    Ok(json!({
        "name": name,
        "fs": fs,
        "unit": "ops/s",
        "ops": ops,
        "rounds": args.rounds,
        "old": old.round(),
        "new": new.round(),
        "none": none.round(),
        "new_over_old": (new / old * 1000.0).round() / 1000.0,
        "new_over_none": (new / none * 1000.0).round() / 1000.0,
        "ns_per_op": each(&|s| json!((s.ns_per_op * 10.0).round() / 10.0)),
        "inode_updates": each(&|s| json!(s.inode_updates)),
        "journal_blocks": each(&|s| json!(s.journal_blocks)),
    }))
}

fn median_value(samples: &[Sample], of: &dyn Fn(&Sample) -> Value) -> Value {
    let mut values: Vec<Value> = samples.iter().map(of).collect();
    values.sort_by(|a, b| a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).cloned().unwrap_or(Value::Null)
}

/// `ivers bench`.
pub fn bench(args: &args::Bench, json: bool) -> Result<()> {
    if let Some(other) = args.fs.iter().find(|fs| !["mem", "ext4"].contains(&fs.as_str())) {
        return Err(usage(format!("--fs {other}: there are mem and ext4")));
    }
    if args.ops == 0 {
        return Err(usage("--ops 0: nothing to measure"));
    }
    let steps = args.fs.len() as u64 * WORKLOADS.len() as u64 * u64::from(args.rounds) * 3;
    let bar = ProgressBar::new(steps);
    bar.set_style(indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let mut rows = Vec::new();
    for fs in &args.fs {
        for (name, bytes, grows) in WORKLOADS {
            rows.push(row(fs, name, bytes, grows, args, &bar)?);
        }
    }
    bar.finish_and_clear();
    if json {
        return show::json_line(&json!({ "rows": rows }));
    }
    show::line(
        "ns an operation, medians; old = eager, new = lazy, none = off; updates = inode updates, blocks = journal blocks",
    )?;
    show::line(format_args!(
        "{:<6}{:<18}{:>9}{:>9}{:>9}{:>9}{:>10}  {:<28}{}",
        "fs",
        "workload",
        "old",
        "new",
        "none",
        "new/old",
        "new/none",
        "updates old/new/none",
        "blocks old/new/none"
    ))?;
    for row in &rows {
        let three = |key: &str| format!("{} / {} / {}", row[key]["old"], row[key]["new"], row[key]["none"]);
        let ns = |mode: &str| row["ns_per_op"][mode].as_f64().unwrap_or(0.0);
        show::line(format_args!(
            "{:<6}{:<18}{:>9.1}{:>9.1}{:>9.1}{:>8.2}x{:>9.2}x  {:<28}{}",
            row["fs"].as_str().unwrap_or(""),
            row["name"].as_str().unwrap_or(""),
            ns("old"),
            ns("new"),
            ns("none"),
            row["new_over_old"].as_f64().unwrap_or(0.0),
            row["new_over_none"].as_f64().unwrap_or(0.0),
            three("inode_updates"),
            three("journal_blocks"),
        ))?;
    }
    Ok(())
}
