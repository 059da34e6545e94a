//! `changed`: compares change attributes with saved ones.
//!
//! | module | contents |
//! |---|---|
//! | [`saved_state`] | opening a saved state |
//! | [`walk`] | walking a tree in the order of a state |
//! | [`renames`] | joining removed and new paths of one file |
//! | [`compare`] | comparing a walk with a state, and saving it |

pub mod compare;
pub mod renames;
pub mod saved_state;
pub mod walk;

use std::ffi::OsStr;
use std::io::{BufReader, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Result;
use ivers::state_format::{Header, LEN_MAX, ReadError, Reader};
use ivers_fuse::MOUNT;
use ivers_vfs::epoch::EPOCH_SHIFT;
use ivers_vfs::raises::{Cause, Raises};

use crate::arguments::Operand;
use crate::file_info;
use crate::image::mount_options::ImageArgs;
use crate::image::open::start_process;
use crate::image::open_options::ImageOptions;
use crate::image::process::{Request, protocol_error};
use crate::output::failure::{
    self, FAILED, Problems, REFUSED, code, failure, recoded, reported, usage, warn,
};
use crate::output::format::Shown;
use crate::output::save;
use compare::{Compared, Comparison, Form, Report};
use renames::Status;
use saved_state::Saved;
use walk::{Found, Mounted};

const HELP: &str = "\
Each line is a letter and a path relative to TREE: N new, C changed, R removed; M moved, with the path \
before: `M old -> new`. A moved file (one removed and one new path with the same inode number and \
generation) can have changed too. Removed and new paths of many files (64 MiB of them) are not joined; a \
warning says so. TREE itself is `.`. With -0 only paths are printed, each with `./` in front (so that no \
name looks like an option or a comment) and a NUL at its end, moved files by their new path, and removed \
ones only with --only. A path is unchanged if filesystem, inode number, generation and change attribute \
are all as saved. Without a change attribute every file counts as changed. What this user may not read is \
named on standard error (except lost+found), counts as unchanged, and makes the exit code 1 (8 with \
--exit-code).

TREE may be a directory that is not on a mount of ivers. The kernel shows no change attribute there, so \
ctime, mtime, size, inode number and time of birth are compared, and without -q a warning says so. That \
finds every change while the clock does not go back: a file that changed in the same moment in which it was \
saved counts as changed in the next run. It does not find a change after the clock was set back, or one by a \
program that writes to the device below the filesystem.

If another system wrote to the image since the state was saved, or a session of ivers did not end cleanly, \
every change attribute differs. Then every file is listed, and a warning says which of the two it was, if \
that is certain.

JSON, one object per line: path, status (new, changed, removed, renamed), from (the path before a renaming), \
ino, generation, change (decimal strings; null outside mounts of ivers), epoch_raised (true if every change \
attribute differs, as above), raised_by (then: unclean_end, other_program, both; null if it is not certain).

Examples: save the state, show what changed since, and copy it (for removed files see docs/recipes.md):
  ivers changed mnt --save state
  ivers changed mnt --since state
  ivers changed mnt --since state --save state.new -0 > list &&
    rsync -a0 --files-from=list mnt/ copy/ && mv state.new state";

/// Options of `changed`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group(clap::ArgGroup::new("state").args(["since", "save"]).required(true).multiple(true)))]
pub struct Args {
    /// A directory on a mount, any other directory, or IMAGE:/path; IMAGE alone is its root
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
    /// Exit with 1 if something is printed, and with 8 instead of 1 if the operation failed
    #[arg(long, requires = "since")]
    exit_code: bool,
    /// Show moved files as removed and new
    #[arg(long)]
    no_renames: bool,
    /// Omit directories
    #[arg(long)]
    files_only: bool,
    /// Report only these
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    only: Vec<Status>,
    #[command(flatten)]
    image: ImageArgs,
}

/// Adds a hint to the error if TREE is a file on a mount.
fn with_hint(error: anyhow::Error, tree: &Path) -> anyhow::Error {
    if failure::code(&error) == REFUSED && matches!(file_info::served(tree, MOUNT, true), Ok(Some(_))) {
        return failure(REFUSED, format!("{}; name a directory of the mount", failure::line(&error)));
    }
    error
}

/// Returns why all change attributes differ from the saved ones, if they do, and the cause if it is certain.
/// The upper bits of a value that is valid across mounts are the epoch. It rises when another system may have
/// written to the image. For values that no epoch protects, the instance differs then.
fn why_all_differ(old: &Header, new: &Header, raises: Raises) -> Option<(&'static str, Option<Cause>)> {
    if old.instance != new.instance {
        let other = "since the state was saved, another system wrote to the image";
        let ivers = "another system had written to the image when the state was saved, and ivers wrote since";
        return Some(if file_info::has_epoch(&new.instance) {
            (ivers, None)
        } else {
            (other, Some(Cause::OtherProgram))
        });
    }
    let epoch = |header: &Header| header.root.change.map(|change| change >> EPOCH_SHIFT);
    let (before, now) = (epoch(old).filter(|_| file_info::has_epoch(&new.instance))?, epoch(new)?);
    if before == now {
        return None;
    }
    if before == 0 {
        return Some(("the state was saved before ivers wrote to the image for the first time", None));
    }
    let cause = now.checked_sub(before).and_then(|steps| raises.of_last(steps));
    let why = match cause {
        Some(Cause::UncleanEnd) => "since the state was saved, ivers could not close the image",
        Some(Cause::OtherProgram) => "since the state was saved, another system wrote to the image",
        Some(Cause::Both) => {
            "since the state was saved, ivers could not close the image, and another system wrote to it"
        }
        None => "since the state was saved, another system wrote to the image, or ivers could not close it",
    };
    Some((why, cause))
}

/// What is compared with a walk.
struct Job<'a> {
    tree: &'a Path,
    old: Option<Saved>,
    to_save: bool,
    report: Report,
}

impl Job<'_> {
    /// Begins with a tree that has this header. `raises` says why the epoch of its filesystem rose. Fails if
    /// the saved state is not one of the same directory.
    fn begin(mut self, header: &Header, raises: Raises) -> Result<Comparison> {
        if let Some(Saved { header: old, .. }) = &self.old {
            let uuid = file_info::lasting_uuid;
            let is_same = old.instance == header.instance
                || uuid(&old.instance).is_some_and(|old| uuid(&header.instance) == Some(old));
            let elsewhere = if !is_same {
                Some("on another filesystem, or on a mount that has ended and stored nothing")
            } else if !old.root.is_same_file(&header.root) {
                Some("of another directory")
            } else {
                None
            };
            if let Some(elsewhere) = elsewhere {
                let tree = self.tree.shown();
                let why = format!("{tree}: the state was saved {elsewhere}; save a new one with --save");
                return Err(failure(FAILED, why));
            }
            if let Some((why, cause)) = why_all_differ(old, header, raises) {
                let tree = self.tree.shown();
                warn(format_args!(
                    "{tree}: {why}, so every change attribute differs, and files that did not change are \
                     listed too; save a new state with --save"
                ));
                self.report.epoch_raised = true;
                self.report.raised_by = cause;
            }
        }
        Comparison::begin(self.old, self.to_save, self.report, header)
    }

    /// Compares with what an image process sends.
    fn receive(self, from: PipeReader, raises: Raises) -> Result<Comparison> {
        // This closes the pipe at the limit: a hostile image process must not write forever.
        let (mut records, header) = Reader::new(BufReader::with_capacity(64 << 10, from.take(LEN_MAX)))?;
        let mut comparison = self.begin(&header, raises)?;
        while let Some((path, record)) = records.next_record()? {
            comparison.file(path, &record)?;
        }
        Ok(comparison)
    }

    /// Compares with a tree of an image, which an image process walks.
    fn walk_image(self, image: &Path, path: Vec<u8>, options: &ImageOptions) -> Result<Comparison> {
        let mut process = start_process(image, &path, options, Stdio::null())?;
        let raises = process.raises()?;
        let (from, into) = std::io::pipe()?;
        let (walked, compared) = std::thread::scope(|scope| {
            let walk = scope.spawn(|| {
                // Dropped after the reply: the reader below waits for the end of the pipe.
                let into = into;
                process.request(&Request::Walk { path }, into.as_fd())
            });
            let compared = self.receive(from, raises);
            (walk.join(), compared)
        });
        let walked = walked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match compared {
            Ok(comparison) => {
                walked?;
                process.finish()?;
                Ok(comparison)
            }
            // If the process failed, its own error says more.
            Err(error) if error.is::<ReadError>() => {
                walked?;
                Err(protocol_error(format_args!("a state that cannot be read: {error}")))
            }
            Err(error) => Err(error),
        }
    }

    /// Compares with a tree of a mount.
    fn walk_mount(self, dir: &Path, problems: &mut Problems, quiet: bool) -> Result<Comparison> {
        let tree = self.tree;
        let (mounted, header) = Mounted::open(dir)?;
        if !mounted.has_change_attributes() && !quiet {
            warn(format_args!(
                "{}: not on a mount of ivers: compared by ctime, mtime, size, inode number and time of \
                 birth; a change after the clock was set back can be missed",
                tree.shown()
            ));
        }
        let mut comparison = self.begin(&header, mounted.raises())?;
        mounted.walk(&mut |path, found| match found {
            Found::File(record) => comparison.file(path, &record),
            Found::Unreadable(error) => {
                // Nearly every ext4 filesystem has a lost+found that only root may read.
                if path != b"lost+found" {
                    let name = tree.join(OsStr::from_bytes(path)).shown();
                    problems.report(Err(error.context(name)))?;
                }
                comparison.unreadable(path)
            }
        })?;
        Ok(comparison)
    }
}

/// Exit code with --exit-code: something changed.
const CHANGED: u8 = 1;
/// Exit code with --exit-code: the operation failed. It is [`FAILED`] elsewhere, which means "changed" here.
const TROUBLE: u8 = 8;

/// Runs `ivers changed`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    match run_comparison(args, json, quiet) {
        Ok(true) if args.exit_code => Err(reported(CHANGED)),
        Ok(_) => Ok(()),
        Err(error) if args.exit_code && code(&error) == FAILED => Err(recoded(error, TROUBLE)),
        Err(error) => Err(error),
    }
}

/// Compares and saves. Returns whether something changed.
fn run_comparison(args: &Args, json: bool, quiet: bool) -> Result<bool> {
    if args.null && json {
        return Err(usage("-0 and --json exclude each other: they are two forms of the output"));
    }
    let options = args.image.options()?;
    let wanted: &[Status] = match args.only.as_slice() {
        [] if args.null => &[Status::New, Status::Changed],
        [] if args.no_renames => &[Status::New, Status::Changed, Status::Removed],
        [] => &[Status::New, Status::Changed, Status::Removed, Status::Renamed],
        only => only,
    };
    let form = match (args.null, json) {
        (true, _) => Form::Null,
        (_, true) => Form::Json,
        _ => Form::Text,
    };
    let job = Job {
        tree: &args.tree,
        // Checked before the walk, which can take long.
        old: args.since.as_deref().map(saved_state::open).transpose()?,
        to_save: args.save.is_some(),
        report: Report {
            form,
            files_only: args.files_only,
            wanted: wanted.to_vec(),
            shows_change: true,
            epoch_raised: false,
            raised_by: None,
        },
    };
    args.save.as_deref().map(|path| save::target(path, SAVED)).transpose()?;
    let mut problems = Problems::default();
    let comparison = match Operand::parse_image(&args.tree) {
        Operand::Host(dir) => job.walk_mount(&dir, &mut problems, quiet)?,
        Operand::Image { image, path } => {
            job.walk_image(&image, path, &options).map_err(|error| with_hint(error, &args.tree))?
        }
    };
    let Compared { state, has_changes } = comparison.finish()?;
    if let (Some(path), Some(mut state)) = (&args.save, state) {
        save::save_from(path, &mut state, SAVED)?;
    }
    problems.into_result()?;
    Ok(has_changes)
}

/// The name of the file of --save in errors.
const SAVED: &str = "the state";
