//! `cp`: copies between the host and images, and between images.
//!
//! | module | contents |
//! |---|---|
//! | [`interrupt`] | ending on a signal |
//! | [`stream`] | the stream from the process that reads to the process that writes |
//! | [`reader`] | reading files of the host or an image |
//! | [`writer`] | writing files of the host or an image |
//!
//! This process works with files of the host. Of an image it reads only the marks that identify a filesystem:
//! each image has an [image process](crate::image::process). All readers write to one pipe, one after the
//! other.

pub mod interrupt;
pub mod reader;
pub mod stream;
pub mod writer;

use std::ffi::{OsStr, OsString};
use std::io::{PipeWriter, pipe};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::arguments::{
    Operand, STANDARD, image_path, image_path_bytes, is_stream, last_name, with_missing_slash,
};
use crate::image::foreign_formats::contains_filesystem;
use crate::image::glob;
use crate::image::mount_options::ImageArgs;
use crate::image::open::start_process;
use crate::image::open_options::ImageOptions;
use crate::image::process::{
    CopyOutcome, ImageProcess, ReadCopy, Request, WriteCopy, is_same, protocol_error,
};
use crate::output::failure::{reported, usage};
use crate::output::format::Shown;
use crate::output::print;
use crate::process::refuse_fakeroot;
use reader::{ReadOptions, Reader, open_stream};
use stream::{FileId, Message, Sender, Truncated};
use writer::{Stream, Target, WriteOptions};

const HELP: &str = "\
Copies directories with --recursive, hard links as hard links, and holes as holes. A symbolic link is copied \
as a link; without --recursive, one in an operand is followed. FIFOs, sockets and, if allowed, device nodes \
are created. SRC/. means the contents of SRC.

As FROM, `-` is standard input; as TO, it is standard output (a file of this name is ./-). Without \
--recursive, a FIFO or a character device in an operand is read or written to, as is /dev/stdin, /dev/fd/N \
and <(command).

With --preserve: owners (if this user may set them; else without set-id bits), permissions, times to the \
nanosecond, ACLs and extended attributes (except those that this user may not set). Without: permissions \
less the umask; in an image, a new file belongs to the owner and group of its directory.

In an image, SOURCE_DATE_EPOCH (seconds since 1970) replaces the current time, if it is set; --preserve \
keeps the times of the files.

What cannot be copied is named on standard error, the rest is copied, and the exit code is not 0. After a \
signal (Ctrl-C) standard error says what was copied, and the exit code is 130. A file that is incomplete \
is removed if the copy created it, and named otherwise; in a full image, what fitted stays. An existing \
file or symbolic link is replaced, a directory is not, and a file that contains a filesystem only with \
--force: IMAGE is the file itself, IMAGE:/ its root directory. -o applies to all images.

JSON: copied (number of operands read), files (number of files, directories and links written), problems; \
before that, with --verbose or --dry-run, one object per file: from, to, action (create, replace or skip).

Examples:
  ivers cp disk.img:/etc/fstab .
  ivers cp -a disk.img:/home backup
  ivers cp -a tree/. disk.img:/srv
  ivers cp -a old.img:/. new.img:/
  ivers cp --dry-run -a tree/. disk.img:/srv
  ivers cp - disk.img:/etc/motd < motd
  ivers cp disk.img:/backup.tar - | tar -t
  ivers cp -r nfs://server/export/src .";

/// Options of `cp`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files of the host, or IMAGE:/path; - is standard input
    #[arg(required = true)]
    from: Vec<PathBuf>,
    /// The destination: a path of the host, or IMAGE:/path; - is standard output
    to: PathBuf,
    /// Copy directories with their contents
    #[arg(short, long)]
    recursive: bool,
    /// Preserve modes, owners, times, ACLs and extended attributes where allowed
    #[arg(short, long)]
    preserve: bool,
    /// The same as --recursive --preserve
    #[arg(short, long)]
    archive: bool,
    /// Print each file that is copied
    #[arg(short, long)]
    verbose: bool,
    /// Leave existing files as they are
    #[arg(short, long)]
    no_clobber: bool,
    /// Copy nothing, and print what would be copied
    #[arg(long)]
    dry_run: bool,
    /// Overwrite a file of the host even if it contains a filesystem
    #[arg(short = 'F', long)]
    force: bool,
    #[command(flatten)]
    image: ImageArgs,
}

/// The images of a command line, each with its image process.
pub struct Processes(pub Vec<(PathBuf, ImageProcess)>);

impl Processes {
    /// Opens all images that are not open yet, before anything is copied.
    fn open(&mut self, args: &Args, to: &Operand, options: &ImageOptions) -> Result<()> {
        let mut wanted: Vec<(PathBuf, Vec<u8>, ImageOptions)> = Vec::new();
        if let Operand::Image { image, path } = to {
            let options = options.clone();
            let options = if args.dry_run { options } else { options.for_editing()? };
            wanted.push((image.clone(), path.clone(), options));
        }
        for word in &args.from {
            if let Operand::Image { image, path } = Operand::parse(word)
                && !wanted.iter().any(|(open, ..)| is_same(open, &image))
            {
                wanted.push((image, path, options.clone()));
            }
        }
        let prints = args.verbose || args.dry_run;
        let open = |(image, path, options): (PathBuf, Vec<u8>, ImageOptions)| -> Result<_> {
            // Only the process that writes prints.
            let writes = to.image().is_some_and(|to| is_same(to, &image));
            let output = if prints && writes { Stdio::inherit() } else { Stdio::null() };
            let process = start_process(&image, &path, &options, output)?;
            Ok((image, process))
        };
        wanted.retain(|(image, ..)| !self.0.iter().any(|(open, _)| is_same(open, image)));
        for image in wanted {
            self.0.push(open(image)?);
        }
        Ok(())
    }

    /// Closes the images.
    pub fn finish(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(_, process)| process.finish())
    }

    /// Returns the operands to copy, with patterns in images expanded.
    fn expand(&mut self, args: &Args) -> Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for word in &args.from {
            match Operand::parse(word) {
                Operand::Image { image, path } if glob::is_pattern(&path) => {
                    let (_, process) = self.find(&image)?;
                    for path in process.expand(&path)? {
                        if !path.starts_with(b"/") || path.contains(&0) {
                            return Err(protocol_error("a path that is none"));
                        }
                        all.push(OsString::from_vec(image_path_bytes(&image, &path)).into());
                    }
                }
                _ => all.push(word.clone()),
            }
        }
        Ok(all)
    }

    /// Waits until the copy is written. All processes forget what they read, for the next copy.
    fn end_copy(&mut self, image: &Path) -> Result<Option<CopyOutcome>> {
        let mut written = None;
        for (open, process) in &mut self.0 {
            let outcome = process.end_copy()?;
            if is_same(open, image) {
                written = outcome;
            }
        }
        Ok(written)
    }

    fn find(&mut self, image: &Path) -> Result<(u32, &mut ImageProcess)> {
        let at = self.0.iter().position(|(open, _)| is_same(open, image)).context("an image is not open")?;
        // The host has the origin before the first image.
        Ok((at as u32 + writer::HOST_ORIGIN + 1, &mut self.0[at].1))
    }
}

/// Runs `ivers cp`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    interrupt::catch_once()?;
    let mut processes = Processes(Vec::new());
    let copied = copy(args, &mut processes, json);
    let closed = processes.finish();
    // The process that wrote has said what was copied.
    if interrupt::is_set() {
        return Err(reported(interrupt::INTERRUPTED));
    }
    let outcome = copied?;
    closed?;
    finish(args, outcome, json)
}

/// Copies with image processes that are open already, and opens the others.
pub fn copy(args: &Args, processes: &mut Processes, json: bool) -> Result<CopyOutcome> {
    let args = &Args {
        recursive: args.recursive || args.archive,
        preserve: args.preserve || args.archive,
        ..args.clone()
    };
    let options = args.image.options()?;
    let to = Operand::parse(&args.to);
    check_operands(args, &to)?;
    if args.preserve {
        refuse_fakeroot("use fakeroot tar with ivers tar -x or -c")?;
    }
    if options.no_replay && to.image().is_some() {
        return Err(usage(
            "-o norecovery: not allowed when the image is written, since the journal would be lost",
        ));
    }
    processes.open(args, &to, &options)?;
    let args = &Args { from: processes.expand(args)?, ..args.clone() };
    let writing =
        WriteOptions { no_clobber: args.no_clobber, dry_run: args.dry_run, verbose: args.verbose, json };
    match &to {
        Operand::Image { image, path } => into_image(args, processes, image, path, writing),
        Operand::Host(path) if is_stream(path) => {
            if json {
                return Err(usage(
                    "--json: not possible, since standard output or a FIFO takes the contents",
                ));
            }
            // Lines about files would mix with contents.
            let writing = WriteOptions { verbose: false, ..writing };
            onto_host(args, processes, Stream::open(path)?, None, writing)
        }
        Operand::Host(path) => {
            // Patterns name other files now.
            check_operands(args, &to)?;
            let words: Vec<_> = args.from.iter().map(|word| name_of(word)).collect();
            let target = writer::Host::new(path, &words, args.preserve)?;
            let exclude = target.dir_id();
            onto_host(args, processes, target, exclude, writing)
        }
    }
}

/// Returns the name of a copy of an operand. `None` for standard input.
fn name_of(word: &Path) -> Option<Vec<u8>> {
    Operand::parse(word).name().filter(|_| word != Path::new(STANDARD))
}

/// Refuses operands that were probably meant as IMAGE:/path: they must not become files of the host, nor
/// overwrite an image.
fn check_operands(args: &Args, to: &Operand) -> Result<()> {
    for word in args.from.iter().chain([&args.to]) {
        if let Some(meant) = with_missing_slash(word) {
            return Err(usage(format!(
                "{}: a path in an image starts with a slash; did you mean {meant}?",
                word.shown()
            )));
        }
    }
    if to.image().is_none() && args.from.iter().all(|word| Operand::parse(word).image().is_none()) {
        // The most likely image, for an example.
        let images = || std::iter::once(&args.to).chain(&args.from);
        let image = images().find(|word| contains_filesystem(word));
        let root = image.map_or("IMAGE:/path".into(), |image| image_path(image, b"/"));
        return Err(usage(format!(
            "no operand names a file of an image, such as {root}; \
             to copy files of the host, use the cp of the system"
        )));
    }
    let Operand::Host(path) = to else { return Ok(()) };
    let named = |word: &PathBuf| {
        let name = name_of(word).filter(|_| path.is_dir());
        name.map_or_else(|| path.clone(), |name| path.join(OsStr::from_bytes(&name)))
    };
    match args.from.iter().map(named).find(|target| contains_filesystem(target)) {
        Some(target) if !args.force => {
            let (target, root) = (target.shown(), image_path(&target, b"/"));
            Err(usage(format!(
                "{target}: contains a filesystem, whose root is {root}; --force overwrites the whole file"
            )))
        }
        _ => Ok(()),
    }
}

fn into_image(
    args: &Args,
    processes: &mut Processes,
    image: &Path,
    path: &[u8],
    writing: WriteOptions,
) -> Result<CopyOutcome> {
    let (from, into) = pipe()?;
    let (origin, process) = processes.find(image)?;
    let (many, preserve) = (args.from.len() > 1, args.preserve);
    let WriteOptions { no_clobber, dry_run, verbose, json } = writing;
    let path = path.to_vec();
    let request = WriteCopy { path, many, preserve, origin, no_clobber, dry_run, verbose, json };
    process.request(&Request::WriteCopy(request), from.as_fd())?;
    drop(from);
    let fed = read_operands(args, processes, None, into);
    // An error of the writer explains an error of the readers.
    let outcome = processes.end_copy(image)?;
    fed?;
    outcome.context("the copy ended early")
}

fn onto_host<T: Target>(
    args: &Args,
    processes: &mut Processes,
    target: T,
    exclude: Option<FileId>,
    writing: WriteOptions,
) -> Result<CopyOutcome> {
    let (from, into) = pipe()?;
    let (fed, written) = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            let fed = read_operands(args, processes, exclude, into);
            // The processes forget what they read, for the next copy.
            fed.and(processes.0.iter_mut().try_for_each(|(_, process)| process.end_copy().map(drop)))
        });
        let written = writer::write_copy(&target, writing, from);
        (feeder.join(), written)
    });
    // If a reader failed, the stream is truncated: the error of the reader says more.
    if written.as_ref().is_err_and(|error| error.is::<Truncated>()) {
        fed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    written
}

/// Reads all operands into the pipe, in order.
fn read_operands(
    args: &Args,
    processes: &mut Processes,
    exclude: Option<FileId>,
    into: PipeWriter,
) -> Result<()> {
    let (recursive, preserve, contents) = (args.recursive, args.preserve, !args.dry_run);
    let mut host = Reader::new(writer::HOST_ORIGIN, ReadOptions { recursive, preserve, contents, exclude });
    let mut out = Sender::new(&into);
    for word in &args.from {
        let operand = word.as_os_str().as_bytes();
        match Operand::parse(word) {
            Operand::Host(path) => {
                let name = last_name(path.as_os_str().as_bytes());
                let is_standard = path == Path::new(STANDARD);
                let stream = if recursive && !is_standard { Ok(None) } else { open_stream(&path) };
                let file = match stream {
                    Ok(Some(stream)) => {
                        host.read_stream(&stream, operand, name.filter(|_| !is_standard), &mut out)?;
                        continue;
                    }
                    Ok(None) if recursive => Ok(path.clone()),
                    Ok(None) => path.canonicalize().map_err(Into::into),
                    Err(error) => Err(error),
                };
                host.read_operand(&reader::Host, file, operand, name, &mut out)?;
            }
            Operand::Image { image, path } => {
                let (origin, process) = processes.find(&image)?;
                let operand = operand.to_vec();
                let request = ReadCopy { origin, operand, path, recursive, preserve, contents };
                process.request(&Request::ReadCopy(request), into.as_fd())?;
            }
        }
    }
    out.send(&Message::Finish)?;
    out.flush()
}

/// Prints the outcome as JSON if asked, and returns the result of the command.
pub fn finish(args: &Args, outcome: CopyOutcome, json: bool) -> Result<()> {
    if json {
        print::json_line(&serde_json::json!({
            "copied": args.from.len(), "files": outcome.files, "problems": outcome.problems,
        }))?;
    }
    if outcome.problems == 0 { Ok(()) } else { Err(reported(outcome.code)) }
}
