//! `ivers-bench` measures what the change attribute costs, and compares mounts with other filesystems.
//! `cargo xtask bench` builds and runs it.
//!
//! | module | contents |
//! |---|---|
//! | [`args`] | the command line |
//! | [`modes`] | in-process rows, and which of them to run |
//! | [`contenders`] | the three modes eager (old), lazy (new) and off (none), and the kernel |
//! | [`image`], [`volume`], [`device`] | images, the filesystems on them, and a device that counts writes |
//! | [`workloads`] | operations on a filesystem |
//! | [`curves`] | rows with several points |
//! | [`memory`] | memory per cached inode |
//! | [`rows`] | results as JSON |
//! | [`mounts`] | through FUSE: `ivers mount`, a null passthrough, fuse2fs and the kernel |
//! | [`query_load`] | a process that queries a file while another process writes to it |
//! | [`row_filter`] | the meaning of `--only` |
//! | [mod@report] | an HTML page of the results |
//! | [`interrupt`] | signals |
//! | [`statistics`], [`tables`] | medians and spreads, tables as text |
//!
//! Contenders are interleaved: one round of each, again and again. Other load on the machine affects all of
//! them alike.

#![forbid(unsafe_code)]

mod args;
mod contenders;
mod curves;
mod device;
mod image;
mod interrupt;
mod memory;
mod modes;
mod mounts;
mod processes;
mod query_load;
mod report;
mod row_filter;
mod rows;
mod statistics;
mod tables;
mod volume;
mod workloads;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::args::{Args, UsageError};
use self::image::Format;
use self::row_filter::RowFilter;

/// The allocator of the `ivers` program, so that in-process rows measure what a mount would do.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The formats of the in-process rows.
const FORMATS: [Format; 4] = [Format::Mem, Format::Ext4, Format::Xfs, Format::Btrfs];

fn main() -> ExitCode {
    let Err(error) = bench(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("bench: {error:#}");
    ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
}

fn bench(args: &Args) -> Result<()> {
    if args.load_inodes {
        return memory::load_inodes();
    }
    if let Some(file) = &args.ask {
        return query_load::run(file, args.ask_change);
    }
    if let Some(other) = args.fs.iter().find(|fs| FORMATS.iter().all(|format| format.name() != *fs)) {
        return Err(UsageError(format!("--fs {other}: unknown; use mem, ext4, xfs or btrfs")).into());
    }
    if args.ops == 0 {
        return Err(UsageError("--ops 0: must be at least 1".into()).into());
    }
    interrupt::watch()?;
    if let Some(dir) = &args.report {
        return report(args, dir);
    }
    let measured = Measured::new(args)?;
    if args.json {
        print(json!({ "rows": measured.rows }))?;
    } else {
        measured.lines.iter().try_for_each(print)?;
    }
    mounts::scale::judge(&measured.rows)
}

/// Writes a line to standard output.
fn print(text: impl Display) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Returns a progress bar on standard error; it is hidden where that is no terminal.
fn progress_bar(args: &Args, steps: u64) -> Result<ProgressBar> {
    if args.quiet || args.json {
        return Ok(ProgressBar::hidden());
    }
    Ok(ProgressBar::new(steps).with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?))
}

/// The results of a run.
#[derive(Default)]
struct Measured {
    rows: Vec<Value>,
    /// The rows that could not be measured, with the reason.
    missing: Vec<String>,
    /// The tables as text.
    lines: Vec<String>,
}

impl Measured {
    /// Measures the requested rows.
    ///
    /// Rows through FUSE run by name, for a report and with `--fuse`, which leaves the in-process rows out.
    /// Rows with many files take long and run only by name.
    fn new(args: &Args) -> Result<Self> {
        let in_process = modes::names().filter(|_| !args.fuse);
        let names = in_process.chain(mounts::names()).chain(mounts::scale::names());
        let filter = RowFilter::new(&args.only, names.collect())?;
        let mut measured = Self::default();
        if !args.fuse && (args.only.is_empty() || modes::names().any(|name| filter.selects(name))) {
            measured.rows = modes::rows(args, &filter)?;
            measured.lines = tables::mode_table(&measured.rows);
        }
        let by_name = mounts::names().any(|name| filter.selects(name));
        let through_fuse = by_name || (args.only.is_empty() && (args.fuse || args.report.is_some()));
        let many_files = mounts::scale::names().any(|name| filter.selects(name));
        if through_fuse || many_files {
            match mounts::missing() {
                Some(why) if args.report.is_some() => {
                    measured.missing.push(format!("all rows through FUSE: {why}"));
                }
                _ => {
                    if through_fuse {
                        let rows = mounts::rows(args, &filter)?;
                        measured.lines.extend(mounts::table(&rows));
                        measured.rows.extend(rows);
                    }
                    if many_files {
                        let rows = mounts::scale::rows(args, &filter)?;
                        measured.lines.extend(mounts::scale::table(&rows));
                        measured.rows.extend(rows);
                    }
                }
            }
        }
        measured.lines.extend(measured.missing.iter().cloned());
        Ok(measured)
    }
}

/// Writes the page for `--report`, from a new run or from the files of `--from`.
fn report(args: &Args, dir: &Path) -> Result<()> {
    report::make_dir(dir)?;
    let mut lines = Vec::new();
    let runs = if args.from.is_empty() {
        let measured = Measured::new(args)?;
        lines.extend(measured.lines);
        let mut runs = report::Runs::default();
        runs.add(&json!({
            "rows": measured.rows, "machine": report::machine(), "commands": [report::command_line()],
            "missing": measured.missing,
        }));
        runs
    } else {
        report::Runs::read(&args.from)?
    };
    let page = report::write(dir, &runs)?;
    if args.json {
        return print(json!({ "report": page.to_string_lossy(), "rows": runs.rows }));
    }
    lines.push(page.display().to_string());
    lines.iter().try_for_each(print)
}

/// Finds a program in PATH and in the directories of system programs, which a user's PATH can lack.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs a program and waits for it. If it fails, the error is its output.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())
}
