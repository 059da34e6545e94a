//! `bench`: what the change attribute costs, and what the mount costs beside others.
//!
//! | module | what it holds |
//! |---|---|
//! | [`modes`] | in-process: the rows, and which of them are wanted |
//! | [`field`] | who is compared: eager (old), lazy (new) and off (none), and the kernel's ext4 beside them |
//! | [`volume`], [`device`] | the two kinds of filesystem that is worked on, and what reaches their images |
//! | [`workloads`] | what is done to them |
//! | [`curves`] | rows with several points |
//! | [`memory`] | what a cached inode costs |
//! | [`rows`] | what was measured, as JSON |
//! | [`mounts`] | through FUSE: `ivers mount`, a null passthrough, fuse2fs and the kernel's ext4 on equal images |
//! | [`ask`] | the process that asks about a file while another one writes to it |
//! | [`only`] | what `--only` means |
//! | [`report`] | a page of it all |
//! | [`interrupt`] | an end before the end |
//! | [`figures`], [`tables`] | medians and spreads, the tables for people |
//!
//! All that is compared is interleaved: a round of each, again and again, so that whatever else the machine does falls on all alike.

mod ask;
mod curves;
mod device;
mod field;
mod figures;
mod interrupt;
mod memory;
mod modes;
mod mounts;
mod only;
mod report;
mod rows;
mod tables;
mod volume;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::only::Only;
use crate::failure::{FAILED, failure, usage};
use crate::{args, show};

/// What the library is measured on.
const FILESYSTEMS: [&str; 2] = ["mem", "ext4"];

/// `ivers bench`.
pub fn bench(args: &args::Bench, json: bool) -> Result<()> {
    if args.load_inodes {
        return memory::load_inodes();
    }
    if let Some(other) = args.fs.iter().find(|fs| !FILESYSTEMS.contains(&fs.as_str())) {
        return Err(usage(format!("--fs {other}: there are mem and ext4")));
    }
    if let Some(file) = &args.ask {
        return ask::ask(file, args.ask_change);
    }
    if args.ops == 0 {
        return Err(usage("--ops 0: nothing to measure"));
    }
    interrupt::watch()?;
    if let Some(dir) = &args.report {
        return report(args, dir, json);
    }
    let measured = Measured::new(args)?;
    if json {
        return show::json_line(&json!({ "rows": measured.rows }));
    }
    measured.lines.iter().try_for_each(show::line)
}

/// What a run has measured.
#[derive(Default)]
struct Measured {
    rows: Vec<Value>,
    /// What could not be measured at all.
    missing: Vec<String>,
    /// The tables.
    lines: Vec<String>,
}

impl Measured {
    /// Each half as far as it is asked for: through FUSE by name, for a report, or with `--fuse`, which leaves the other one out.
    fn new(args: &args::Bench) -> Result<Self> {
        let in_process = modes::names().filter(|_| !args.fuse);
        let only = Only::new(&args.only, in_process.chain(mounts::names()).collect())?;
        let mut measured = Self::default();
        if !args.fuse && (args.only.is_empty() || modes::names().any(|name| only.is_meant(name))) {
            measured.rows = modes::rows(args, &only)?;
            measured.lines = tables::mode_table(&measured.rows);
        }
        let by_name = mounts::names().any(|name| only.is_meant(name));
        if by_name || (args.only.is_empty() && (args.fuse || args.report.is_some())) {
            match mounts::missing() {
                Some(why) if args.report.is_some() => {
                    measured.missing.push(format!("all rows through FUSE: {why}"));
                }
                _ => {
                    let rows = mounts::rows(args, &only)?;
                    measured.lines.extend(mounts::table(&rows));
                    measured.rows.extend(rows);
                }
            }
        }
        measured.lines.extend(measured.missing.iter().cloned());
        Ok(measured)
    }
}

/// `ivers bench --report`: both halves, or what was kept of runs.
fn report(args: &args::Bench, dir: &Path, json: bool) -> Result<()> {
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
    if json {
        return show::json_line(
            &json!({ "report": show::json_name(page.as_os_str().as_encoded_bytes()), "rows": runs.rows }),
        );
    }
    lines.push(page.display().to_string());
    lines.iter().try_for_each(show::line)
}

/// Where a program is. An ordinary user's PATH lacks the directories of system programs.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Run a program to its end; what it said is the error.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failure(FAILED, format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Make an ext4 image as others would make it. All that one run makes are equal, byte for byte but for the times in them.
fn make_image(path: &Path, bytes: u64) -> Result<()> {
    let mkfs = find_program("mkfs.ext4").ok_or_else(|| {
        failure(
            FAILED,
            "mkfs.ext4 is not installed: the ext4 rows need it (package e2fsprogs), or use --fs mem",
        )
    })?;
    std::fs::File::create(path)?.set_len(bytes)?;
    const UUID: &str = "1ac8e3ee-7e0e-4d3c-8f4a-0f2017121315";
    // Nothing is left for the kernel to initialize while it is being measured.
    let extended = format!("hash_seed={UUID},lazy_itable_init=0,lazy_journal_init=0");
    run(Command::new(mkfs).args(["-q", "-F", "-U", UUID, "-E", &extended]).arg(path))
}
