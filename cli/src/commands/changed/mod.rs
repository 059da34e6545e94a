//! `changed`: compares change attributes with saved ones.

pub mod saved_state;
pub mod walk;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use ivers::state_format::{LEN_MAX, Record, State};
use ivers_fuse::MOUNT;
use serde_json::json;

use crate::arguments::Operand;
use crate::file_info;
use crate::image::mount_options::ImageArgs;
use crate::image::open::open_image;
use crate::image::open_options::ImageOptions;
use crate::image::process::{ImageProcess, Request, protocol_error};
use crate::output::failure::{self, FAILED, Problems, REFUSED, failure, usage};
use crate::output::{format, save};
use walk::{Walked, walk_mount};

const HELP: &str = "\
Each line is a letter and a path relative to TREE: N new, C changed, R removed. TREE itself is `.`. With -0 \
only paths are printed, each with `./` in front (so that no name looks like an option or a comment) and a \
NUL at its end, and removed ones only with --only. A path is unchanged if filesystem, inode number, \
generation and change attribute are all as saved. Without a change attribute every file counts as changed. \
What this user may not read is named on standard error (except lost+found), counts as unchanged, and makes \
the exit code 1.

JSON, one object per line: path, status (new, changed, removed), ino, generation, change (decimal strings).

Examples: save the state, show what changed since, and copy what changed (for removed files see the README):
  ivers changed mnt --save state
  ivers changed mnt --since state
  ivers changed mnt --since state --save state.new -0 > list &&
    rsync -a0 --files-from=list mnt/ copy/ && mv state.new state";

/// Options of `changed`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group(clap::ArgGroup::new("state").args(["since", "save"]).required(true).multiple(true)))]
pub struct Args {
    /// A directory on a mount, or IMAGE:/path
    tree: PathBuf,
    /// Compare with this saved state
    #[arg(long, value_name = "STATE")]
    since: Option<PathBuf>,
    /// Save the current state: replaces a regular file, writes to a device or FIFO
    #[arg(long, value_name = "STATE")]
    save: Option<PathBuf>,
    /// Print only paths, with ./ in front and a NUL at the end of each
    #[arg(short = '0', long)]
    null: bool,
    /// Omit directories
    #[arg(long)]
    files_only: bool,
    /// Report only these
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    only: Vec<Status>,
    #[command(flatten)]
    image: ImageArgs,
}

/// The path of the tree itself, which can only change: a state of another directory is refused.
const ROOT: &[u8] = b".";

/// The change of a path since the saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Status {
    /// The path did not exist.
    New,
    /// The path names another file, or the file has another change attribute.
    Changed,
    /// The path no longer exists.
    Removed,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::New => "new",
            Status::Changed => "changed",
            Status::Removed => "removed",
        }
    }
}

/// Walks a tree of an image in an image process.
fn walk_image(image: &Path, path: Vec<u8>, to_save: bool, options: &ImageOptions) -> Result<State> {
    let device = open_image(image, options)?;
    let mut process = ImageProcess::start(&device, image, options)?;
    drop(device);
    let (from, into) = std::io::pipe()?;
    let (walked, bytes) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| {
            // Dropped after the reply: the reader below waits for the end of the pipe.
            let into = into;
            process.request(&Request::Walk { path, to_save }, into.as_fd())
        });
        let mut bytes = Vec::new();
        // This closes the pipe at the limit: a hostile image process must not write forever.
        let read = from.take(LEN_MAX).read_to_end(&mut bytes);
        (walk.join(), read.map(|_| bytes))
    });
    walked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    process.finish()?;
    State::decode(&bytes?).ok_or_else(|| protocol_error("an invalid state"))
}

/// Adds a hint to the error if TREE is a file on a mount.
fn with_hint(error: anyhow::Error, tree: &Path) -> anyhow::Error {
    if failure::code(&error) == REFUSED && matches!(file_info::served(tree, MOUNT, true), Ok(Some(_))) {
        return failure(REFUSED, format!("{}; name a directory of the mount", failure::line(&error)));
    }
    error
}

/// Copies the old records of paths that this user may not read, so that none is reported as new or removed.
fn keep_old_records(path: &[u8], old: &State, new: &mut State) {
    let below =
        |other: &[u8]| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let from = old.files.range(path.to_vec()..).take_while(|(other, _)| other.starts_with(path));
    for (other, record) in from.filter(|(other, _)| below(other)) {
        new.files.entry(other.clone()).or_insert(*record);
    }
}

/// Returns the differences between two states of one tree, sorted by path.
fn compare(old: &State, new: &State) -> Vec<(Vec<u8>, Status, Record)> {
    let mut found = Vec::new();
    if new.root.change.is_none() || old.root != new.root {
        found.push((ROOT.to_vec(), Status::Changed, Record { identity: new.root, is_dir: true }));
    }
    for (path, record) in &new.files {
        match old.files.get(path) {
            None => found.push((path.clone(), Status::New, *record)),
            Some(before) if record.identity.change.is_none() || before != record => {
                found.push((path.clone(), Status::Changed, *record));
            }
            Some(_) => {}
        }
    }
    let removed = old.files.iter().filter(|(path, _)| !new.files.contains_key(*path));
    found.extend(removed.map(|(path, record)| (path.clone(), Status::Removed, *record)));
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Fails if `old` is not a state of the same directory as `new`.
fn check_same_tree(tree: &Path, old: &State, new: &State) -> Result<()> {
    let elsewhere = if old.instance != new.instance {
        "on another filesystem, or on a mount that has ended and stored nothing"
    } else if !old.root.is_same_file(&new.root) {
        "of another directory"
    } else {
        return Ok(());
    };
    let tree = tree.display();
    Err(failure(FAILED, format!("{tree}: the state was saved {elsewhere}; save a new one with --save")))
}

/// Prints the differences that `args` asks for.
fn print_changes(args: &Args, old: &State, new: &State, json: bool) -> Result<()> {
    let wanted: &[Status] = match args.only.as_slice() {
        [] if args.null => &[Status::New, Status::Changed],
        [] => &[Status::New, Status::Changed, Status::Removed],
        only => only,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (path, status, record) in compare(old, new) {
        if !wanted.contains(&status) || (args.files_only && record.is_dir) {
            continue;
        }
        if args.null {
            // As find(1) prints them: no name looks like an option, or like a comment of rsync's
            // --files-from.
            if path != ROOT {
                out.write_all(b"./")?;
            }
            out.write_all(&path)?;
            out.write_all(b"\0")?;
        } else if json {
            let change = record.identity.change.filter(|_| status != Status::Removed);
            let line = json!({
                "path": format::json_name(&path),
                "status": status.word(),
                "ino": record.identity.ino,
                "generation": record.identity.generation,
                "change": change.map(|v| v.to_string()),
            });
            writeln!(out, "{line}")?;
        } else {
            let letter = status.word().as_bytes()[0].to_ascii_uppercase() as char;
            writeln!(out, "{letter} {}", format::name(&path))?;
        }
    }
    Ok(out.flush()?)
}

/// Runs `ivers changed`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    if args.null && json {
        return Err(usage("-0 and --json exclude each other: they are two forms of the output"));
    }
    let options = args.image.options()?;
    // Checked before the walk, which can take long.
    let old = args.since.as_deref().map(saved_state::load).transpose()?;
    args.save.as_deref().map(|path| save::target(path, SAVED)).transpose()?;
    let Walked { state: mut new, unreadable } = match Operand::parse_image(&args.tree) {
        Operand::Host(dir) => walk_mount(&dir)?,
        Operand::Image { image, path } => {
            let walked = walk_image(&image, path, args.save.is_some(), &options);
            let state = walked.map_err(|error| with_hint(error, &args.tree))?;
            Walked { state, unreadable: Vec::new() }
        }
    };
    let mut problems = Problems::default();
    for (path, error) in unreadable {
        // Nearly every ext4 filesystem has a lost+found that only root may read.
        if path != Path::new("lost+found") {
            problems.report(Err(error.context(args.tree.join(&path).display().to_string())))?;
        }
        if let Some(old) = &old {
            keep_old_records(path.as_os_str().as_bytes(), old, &mut new);
        }
    }
    if let Some(old) = old {
        check_same_tree(&args.tree, &old, &new)?;
        print_changes(args, &old, &new, json)?;
    }
    if let Some(path) = &args.save {
        save::save(path, &saved_state::encode(&new)?, SAVED)?;
    }
    problems.into_result()
}

/// The name of the file of --save in errors.
const SAVED: &str = "the state";

#[cfg(test)]
mod tests {
    use super::*;
    use ivers::state_format::Identity;

    #[test]
    fn a_path_is_unchanged_only_if_all_of_its_identity_is() {
        let record = |ino, generation, change| Record {
            identity: Identity { ino, generation, change },
            is_dir: false,
        };
        let state = |root: u64, files: &[(&str, Record)]| State {
            instance: String::new(),
            root: record(2, 0, Some(root)).identity,
            files: files.iter().map(|(path, r)| (path.as_bytes().to_vec(), *r)).collect(),
        };
        let old = state(
            8,
            &[
                ("changed", record(1, 0, Some(5))),
                ("gone", record(2, 0, Some(5))),
                ("reused", record(3, 0, Some(5))),
                ("same", record(4, 0, Some(5))),
                ("unknown", record(5, 0, None)),
            ],
        );
        let new = state(
            9,
            &[
                ("changed", record(1, 0, Some(6))),
                ("new", record(6, 0, Some(1))),
                ("reused", record(3, 1, Some(5))),
                ("same", record(4, 0, Some(5))),
                ("unknown", record(5, 0, None)),
            ],
        );
        let found: Vec<_> = compare(&old, &new)
            .into_iter()
            .map(|(p, s, _)| format!("{} {}", s.word(), format::name(&p)))
            .collect();
        assert_eq!(
            found,
            ["changed .", "changed changed", "removed gone", "new new", "changed reused", "changed unknown"]
        );
    }
}
