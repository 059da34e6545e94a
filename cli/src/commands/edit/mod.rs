//! The commands that change files of an image that is not mounted: `rm`, `mkdir`, `mv`, `ln`, `chmod`,
//! `chown`, `touch`, `attr`, `subvolume`.
//!
//! The command parses its words, starts an [image process](crate::image::process) for each image, and sends
//! it a [`job::Job`]. The shell sends the same jobs, many to one process. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`bytes`], [`mode`], [`owner`] | values of requests: paths, MODE, OWNER |
//! | [`session`] | what all operations share: names, reports, walks, interruption |
//! | [`rm`], [`mkdir`], [`mv`], [`ln`], [`chmod`], [`chown`], [`touch`], [`attr`] | one operation each |
//! | [`subvolume`], [`mounted_subvolume`] | operations on subvolumes: of images, and on mounts |
//! | [`show`] | what the shell shows |
//! | [`job`] | a request with its operation and targets |
//!
//! To add a command: a module with its options and an [`Operation`](session::Operation), a variant of
//! [`job::Edit`], an implementation of [`Options`] below, a line in `command_line` and one in the shell.

pub mod attr;
pub mod bytes;
pub mod chmod;
pub mod chown;
pub mod hexadecimal;
pub mod job;
pub mod ln;
pub mod mkdir;
pub mod mode;
pub mod mounted_subvolume;
pub mod mv;
pub mod owner;
pub mod rm;
pub mod session;
pub mod show;
pub mod subvolume;
pub mod touch;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arguments::{Operand, with_missing_slash};
use crate::image::foreign_formats::contains_filesystem;
use crate::image::mount_options::ImageArgs;
use crate::image::open::start_process;
use crate::image::open_options::{ImageOptions, Owners};
use crate::image::process::{BROKEN_PIPE, EditOutcome, ImageProcess, is_same};
use crate::output::failure::{FAILED, Problems, StdoutError, failure, reported, usage};
use crate::output::format;
use crate::output::format::Shown;
use bytes::Bytes;
use job::{Edit, Job};
use session::Targets;

/// The command line of a command: its options, its operands, and how to open images.
#[derive(Debug, Clone, clap::Args)]
pub struct Args<O: Options> {
    #[command(flatten)]
    options: O,
    // Only the long help has room for patterns.
    #[arg(required = true, value_name = "IMAGE:/path", help = O::OPERANDS, long_help = long_help::<O>())]
    operands: Vec<PathBuf>,
    #[command(flatten)]
    image: ImageArgs,
}

/// `attr`
#[derive(Debug, Clone, clap::Args)]
pub struct AttrArgs {
    #[command(subcommand)]
    action: AttrAction,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum AttrAction {
    /// Print the value of an attribute
    Get(Args<attr::Get>),
    /// Set an attribute
    Set(Args<attr::Set>),
    /// Remove an attribute
    Remove(Args<attr::Remove>),
    /// Print the names of all attributes
    List(Args<attr::List>),
}

/// `subvolume`
#[derive(Debug, Clone, clap::Args)]
pub struct SubvolumeArgs {
    #[command(subcommand)]
    action: SubvolumeAction,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum SubvolumeAction {
    /// List all subvolumes, with their paths from the top level
    List(Args<subvolume::List>),
    /// Create empty subvolumes
    Create(Args<subvolume::Create>),
    /// Make a snapshot of a subvolume
    Snapshot(Args<subvolume::Snapshot>),
    /// Delete subvolumes, with all files in them
    Delete(Args<subvolume::Delete>),
}

/// The shape of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each operand is a file of an image.
    Files,
    /// The last one is a destination in the same image.
    To,
    /// The last one is a destination, and the others are texts.
    TextsTo,
}

/// The options of a command, which become a request.
pub trait Options: clap::Args + Clone {
    /// What the operands are, for the help.
    const OPERANDS: &'static str;
    /// The operands are names of new files, and so no patterns.
    const OPERANDS_ARE_NEW: bool = false;
    /// The shape of the operands.
    const SHAPE: Shape = Shape::Files;

    /// Returns the shape of the operands with these options.
    fn shape(&self) -> Shape {
        Self::SHAPE
    }

    /// Returns the request.
    fn edit(self) -> Result<Edit>;
}

fn long_help<O: Options>() -> String {
    let patterns = "Patterns such as 'IMAGE:/etc/*.conf' are expanded where files must exist.";
    if O::OPERANDS_ARE_NEW { O::OPERANDS.to_owned() } else { format!("{}\n\n{patterns}", O::OPERANDS) }
}

macro_rules! options {
    ($($options:ty => $variant:ident: $operands:literal),* $(,)?) => {
        $(impl Options for $options {
            const OPERANDS: &'static str = $operands;

            fn edit(self) -> Result<Edit> {
                Ok(Edit::$variant(self))
            }
        })*
    };
}

options! {
    rm::Rm => Rm: "The files to remove",
    chmod::Chmod => Chmod: "The files whose permissions change",
    chown::Chown => Chown: "The files whose owner changes",
    touch::Touch => Touch: "The files whose times are set; created if they do not exist",
    attr::Get => GetAttr: "The files that have the attribute",
    attr::Remove => RemoveAttr: "The files whose attribute is removed",
    attr::List => ListAttr: "The files whose attributes are listed",
    subvolume::List => ListSubvolumes: "A file of the image, such as IMAGE:/, or a directory on a mount",
    subvolume::Delete => DeleteSubvolume: "The subvolumes to delete",
}

impl Options for mkdir::Mkdir {
    const OPERANDS: &'static str = "The directories to create";
    const OPERANDS_ARE_NEW: bool = true;

    fn edit(self) -> Result<Edit> {
        Ok(Edit::Mkdir(self))
    }
}

impl Options for subvolume::Create {
    const OPERANDS: &'static str = "The subvolumes to create";
    const OPERANDS_ARE_NEW: bool = true;

    fn edit(self) -> Result<Edit> {
        Ok(Edit::CreateSubvolume(self))
    }
}

impl Options for subvolume::Snapshot {
    const OPERANDS: &'static str =
        "The root of the subvolume, then the snapshot: a new name, or a directory to make it in";
    const SHAPE: Shape = Shape::To;

    fn edit(self) -> Result<Edit> {
        Ok(Edit::Snapshot(self))
    }
}

impl Options for mv::Mv {
    const OPERANDS: &'static str = "The files, then the destination: a new name, or a directory";
    const SHAPE: Shape = Shape::To;

    fn edit(self) -> Result<Edit> {
        Ok(Edit::Mv(self))
    }
}

impl Options for ln::Ln {
    const OPERANDS: &'static str = "The targets, then LINK: a new name, or a directory";

    fn shape(&self) -> Shape {
        if self.symbolic { Shape::TextsTo } else { Shape::To }
    }

    fn edit(self) -> Result<Edit> {
        Ok(Edit::Ln(self))
    }
}

impl Options for attr::Set {
    const OPERANDS: &'static str = "The files that get the attribute";

    fn edit(self) -> Result<Edit> {
        Ok(Edit::SetAttr(self.decoded().map_err(usage)?))
    }
}

/// Operands of the shell, or those of one image in a command line.
pub fn targets(shape: Shape, mut operands: Vec<Bytes>) -> Result<Targets> {
    let to = if shape == Shape::Files {
        None
    } else {
        let to = operands.pop().filter(|_| !operands.is_empty());
        Some(to.ok_or_else(|| usage("the destination is missing: name at least two files"))?)
    };
    Ok(Targets { many: to.is_some() && operands.len() > 1, operands, to })
}

/// Runs `ivers attr`.
pub fn run_attr(args: &AttrArgs, json: bool) -> Result<()> {
    match &args.action {
        AttrAction::Get(args) => run(args, json),
        AttrAction::Set(args) => run(args, json),
        AttrAction::Remove(args) => run(args, json),
        AttrAction::List(args) => run(args, json),
    }
}

/// Runs `ivers subvolume`.
pub fn run_subvolume(args: &SubvolumeArgs, json: bool) -> Result<()> {
    match &args.action {
        SubvolumeAction::List(args) => run_subvolume_action(args, json),
        SubvolumeAction::Create(args) => run_subvolume_action(args, json),
        SubvolumeAction::Snapshot(args) => run_subvolume_action(args, json),
        SubvolumeAction::Delete(args) => run_subvolume_action(args, json),
    }
}

/// Runs a command of subvolumes on an image or, if no operand is one, on a mount.
fn run_subvolume_action<O: Options + mounted_subvolume::OnMount>(args: &Args<O>, json: bool) -> Result<()> {
    match mounted_subvolume::paths_on_mounts(&args.operands)? {
        Some(_) if args.image.is_given() => Err(usage("-o: a mount has its own options")),
        Some(paths) => mounted_subvolume::run(&args.options, &paths, json),
        None => run(args, json),
    }
}

impl SubvolumeArgs {
    /// Returns the request, its operands and their shape.
    pub fn request(self) -> Result<(Edit, Vec<PathBuf>, Shape)> {
        match self.action {
            SubvolumeAction::List(args) => args.request(),
            SubvolumeAction::Create(args) => args.request(),
            SubvolumeAction::Snapshot(args) => args.request(),
            SubvolumeAction::Delete(args) => args.request(),
        }
    }
}

impl AttrArgs {
    /// Returns the request, its operands and their shape.
    pub fn request(self) -> Result<(Edit, Vec<PathBuf>, Shape)> {
        match self.action {
            AttrAction::Get(args) => args.request(),
            AttrAction::Set(args) => args.request(),
            AttrAction::Remove(args) => args.request(),
            AttrAction::List(args) => args.request(),
        }
    }
}

impl<O: Options> Args<O> {
    /// Returns the request, its operands and their shape.
    pub fn request(self) -> Result<(Edit, Vec<PathBuf>, Shape)> {
        let shape = self.options.shape();
        Ok((self.options.edit()?, self.operands, shape))
    }
}

/// Runs a command on its operands. Each image is opened once.
pub fn run<O: Options>(args: &Args<O>, json: bool) -> Result<()> {
    let options = args.image.options()?;
    let (edit, operands, shape) = args.clone().request()?;
    let read_only = !edit.writes();
    check_replay(&options, read_only)?;
    let options = if read_only { options } else { options.for_editing()? };
    let images = by_image(shape, &operands)?;
    let umask = Owners::default().dmask;
    let mut problems = Problems::default();
    for (image, operands) in images {
        let targets = targets(shape, operands)?;
        let job = Job { edit: edit.clone(), targets, json, umask };
        let done = edit_image(&image, &options, job, &mut problems);
        problems.report(done)?;
    }
    problems.into_result()
}

/// Refuses to write to an image whose journal is not replayed.
pub fn check_replay(options: &ImageOptions, read_only: bool) -> Result<()> {
    if options.no_replay && !read_only {
        let why = "not allowed when the image is written, since the journal would be lost";
        return Err(usage(format!("-o norecovery: {why}")));
    }
    Ok(())
}

/// Opens an image, runs a job, and closes the image.
fn edit_image(image: &Path, options: &ImageOptions, job: Job, problems: &mut Problems) -> Result<()> {
    let path = job.targets.operands.first().map_or(&b"/"[..], |path| &path.0);
    let mut process = start_process(image, path, options, Stdio::inherit())?;
    let interrupts = Interrupts::watch(&process)?;
    let mut done = Ok(());
    for part in job.split() {
        done = match process.edit(&part) {
            Ok(outcome) => add(outcome, problems),
            // The image process was told to end before it got the request.
            Err(_) if interrupts.seen() => return Err(interrupted(image)),
            Err(error) => return Err(error),
        };
        if done.is_err() || interrupts.seen() {
            break;
        }
    }
    process.finish()?;
    done
}

/// Returns the error for an operation that was interrupted before it started.
fn interrupted(image: &Path) -> anyhow::Error {
    failure(FAILED, format!("{}: interrupted; the image is closed", image.shown()))
}

/// Counts what the image process printed. Fails if the command must end.
pub fn add(outcome: EditOutcome, problems: &mut Problems) -> Result<()> {
    for _ in 0..outcome.problems.min(1) {
        problems.add(outcome.code);
    }
    match outcome.output_error {
        Some(why) if why == BROKEN_PIPE => {
            Err(StdoutError(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).into())
        }
        Some(why) => Err(StdoutError(std::io::Error::other(format::one_line(&why))).into()),
        None if outcome.interrupted => Err(reported(FAILED)),
        None => Ok(()),
    }
}

/// Groups operands by image, in the order of the command line. Refuses files of the host.
fn by_image(shape: Shape, words: &[PathBuf]) -> Result<Vec<(PathBuf, Vec<Bytes>)>> {
    let mut images: Vec<(PathBuf, Vec<Bytes>)> = Vec::new();
    let Some(last) = words.last() else { return Ok(images) };
    let destination = image_operand(shape, last)?;
    for (at, word) in words.iter().enumerate() {
        let is_text = shape == Shape::TextsTo && at + 1 < words.len();
        let (image, path) = match Operand::parse(word) {
            // In a symbolic link, IMAGE:/path of the same image means /path.
            Operand::Image { image, path } if is_text && is_same(&image, &destination.0) => (image, path),
            _ if is_text => (destination.0.clone(), word.as_os_str().as_bytes().to_vec()),
            _ => image_operand(shape, word)?,
        };
        match images.iter_mut().find(|(open, _)| is_same(open, &image)) {
            Some((_, paths)) => paths.push(Bytes(path)),
            None => images.push((image, vec![Bytes(path)])),
        }
    }
    if shape != Shape::Files && images.len() > 1 {
        return Err(usage("the operands are in several images: use ivers cp, then ivers rm"));
    }
    Ok(images)
}

/// Returns the image and the path of an operand.
fn image_operand(shape: Shape, word: &Path) -> Result<(PathBuf, Vec<u8>)> {
    match Operand::parse(word) {
        Operand::Image { image, path } => Ok((image, path)),
        Operand::Host(path) => {
            if let Some(meant) = with_missing_slash(word) {
                let why = "a path in an image starts with a slash";
                return Err(usage(format!("{}: {why}; did you mean {meant}?", word.shown())));
            }
            let hint = match shape {
                _ if contains_filesystem(&path) => {
                    return Err(usage(format!("{0}: an image; its root directory is {0}:/", path.shown())));
                }
                Shape::Files => "on the host and on mounts, use the command of the system",
                _ => "between the host and an image, use ivers cp",
            };
            Err(usage(format!("{}: not a file of an image (IMAGE:/path); {hint}", path.shown())))
        }
    }
}

/// Signals that end a command. The image process ends its operation between two files, and closes the image.
pub struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// From now on, SIGINT, SIGTERM and SIGHUP tell the image process to end instead of killing this one.
    pub fn watch(process: &ImageProcess) -> Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (shared, requests) = (seen.clone(), process.requests()?);
        let thread = std::thread::Builder::new().name("ivers-signals".into());
        thread
            .spawn(move || {
                for signal in signals.forever() {
                    if shared.swap(true, Ordering::AcqRel) {
                        // The second signal does not wait. The image process closes the image nevertheless.
                        std::process::exit(128 + signal);
                    }
                    let _ = rustix::net::shutdown(&requests, rustix::net::Shutdown::Write);
                }
            })
            .context("cannot start the thread for signals")?;
        Ok(Self(seen))
    }

    /// From now on, SIGINT does not end this process. The image process ends its operation, and the user
    /// types the next one.
    pub fn ignore() -> Result<Self> {
        signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
        Ok(Self(Arc::new(AtomicBool::new(false))))
    }

    /// Returns whether a signal arrived.
    pub fn seen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
