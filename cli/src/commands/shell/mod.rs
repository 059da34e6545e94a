//! `shell`: many commands on one image, which is opened once.
//!
//! This process reads the lines and works with files of the host. One image process has the image open, and
//! runs what the lines mean: the jobs of [`edit`], and copies as `cp` sends them.
//!
//! | module | contents |
//! |---|---|
//! | [`input`] | where the lines come from |
//! | [`line`] | the words of a line, and what they mean |

pub mod input;
pub mod line;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Result;

use super::cp;
use super::edit::bytes::Bytes;
use super::edit::job::{Edit, Job};
use super::edit::session::Targets;
use super::edit::show::Show;
use super::edit::{self, Interrupts, Options, Shape};
use crate::arguments::image_path;
use crate::image::mount_options::ImageArgs;
use crate::image::open::{parse_image_path, start_process};
use crate::image::open_options::Owners;
use crate::output::failure::{
    FAILED, Problems, Reported, StdoutError, USAGE, code, is_broken_pipe, print_usage, reported,
    say_error_in_line,
};
use crate::output::{format, print};
use input::{Input, Next};
use line::{Direction, LineCommand};

const HELP: &str = "\
Commands: ls, cat, stat, tree, cd, pwd, rm, mkdir, mv, ln, chmod, chown, touch, attr, cp, get, put, sync, \
help, quit. `help rm` explains rm. get copies from the image to the host, put from the host into the image. \
What a line creates belongs to the owner and group of its directory.

On a terminal, lines can be edited. Otherwise the first line that fails ends the shell, with its exit code \
and its number on standard error; a line that begins with - may fail. Lines before it are done.

A line that changes one name or file is one transaction of the journal (ext3, ext4, XFS): after a crash, all \
of it is there or nothing, and if it is there, so are the lines before. That holds for mkdir, mv, ln, chmod, \
chown, touch, attr and rm of one file. It does not hold for rm -r, chmod -R, chown -R, mkdir -p, ln -f, \
several operands (one transaction each), changes of permissions that an ACL stores too, and copies of \
contents. `sync` makes all earlier lines durable; closing the image does so too.

If SOURCE_DATE_EPOCH is set (seconds since 1970), it is the time of all changes, and nothing is written in \
the background: a line that is not followed by `sync` is lost in a crash.

JSON: each line prints what its command prints.

Examples:
  ivers shell disk.img
  echo 'mv /etc/motd /etc/motd.old' | ivers shell disk.img
  ivers shell -f changes.txt disk.img
  ivers shell --read-only disk.img";

/// Options of `shell`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image; IMAGE:/path starts in a directory of it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Read the lines from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// Run this line; may be repeated
    #[arg(short, long, value_name = "LINE")]
    command: Vec<OsString>,
    /// Refuse lines that change the image
    #[arg(short, long)]
    read_only: bool,
    #[command(flatten)]
    options: ImageArgs,
}

/// An open image and the state of the shell.
struct Shell {
    image: PathBuf,
    /// The image process, for copies too.
    processes: cp::Processes,
    cwd: Vec<u8>,
    json: bool,
    umask: u32,
}

/// What follows a line.
enum Then {
    Continue,
    Quit,
}

/// Runs `ivers shell`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let (image, cwd) = parse_image_path(&args.image)?;
    let options = args.options.options()?;
    let options = if args.read_only { options } else { options.for_editing()? };
    edit::check_replay(&options, args.read_only)?;
    let mut input = if let Some(file) = &args.file {
        Input::file(file)?
    } else if !args.command.is_empty() {
        Input::Words(VecDeque::from(args.command.clone()))
    } else if std::io::stdin().is_terminal() {
        Input::terminal()?
    } else {
        Input::standard()?
    };
    let umask = Owners::default().dmask;
    let process = start_process(&image, &cwd, &options, Stdio::inherit())?;
    let interrupts = if input.is_terminal() { Interrupts::ignore()? } else { Interrupts::watch(&process)? };
    let processes = cp::Processes(vec![(image.clone(), process)]);
    let mut shell = Shell { image, processes, cwd: b"/".to_vec(), json, umask };
    let done = shell.start(cwd).and_then(|()| shell.run(&mut input, &interrupts));
    match (done, shell.processes.finish()) {
        (Ok(()), closed) => closed,
        (Err(error), Err(closed)) if error.is::<Reported>() => {
            let _ = Problems::default().report(Err(closed));
            Err(error)
        }
        (done, _) => done,
    }
}

impl Shell {
    /// Enters the first directory.
    fn start(&mut self, cwd: Vec<u8>) -> Result<()> {
        if cwd == b"/" { Ok(()) } else { self.cd(cwd) }
    }

    fn run(&mut self, input: &mut Input, interrupts: &Interrupts) -> Result<()> {
        let mut number = 0u64;
        loop {
            let prompt = format!("{}> ", image_path(&self.image, &self.cwd));
            let line = match input.next(&prompt)? {
                Next::Line(line) if !interrupts.seen() => line,
                Next::Abandoned => continue,
                Next::End if !interrupts.seen() => return Ok(()),
                _ => {
                    let why = format!("{}: interrupted after line {number}", input.name());
                    say_error_in_line(FAILED, number, &why);
                    return Err(reported(FAILED));
                }
            };
            number += 1;
            let line = line.trim_ascii();
            let (line, may_fail) = line.strip_prefix(b"-").map_or((line, false), |rest| (rest, true));
            let error = match self.line(line) {
                Ok(Then::Continue) => continue,
                Ok(Then::Quit) => return Ok(()),
                Err(error) => error,
            };
            if error.is::<StdoutError>() || self.has_ended() && !interrupts.seen() {
                return Err(error);
            }
            let exit_code = code(&error);
            // Prints it, unless the image process has.
            let _ = Problems::default().report(Err(error));
            if input.is_terminal() || may_fail && !interrupts.seen() {
                continue;
            }
            let (name, line) = (input.name(), format::name(line));
            let why =
                if interrupts.seen() { "interrupted" } else { "this line failed, those before are done" };
            say_error_in_line(exit_code, number, &format!("{name}, line {number}: {line}: {why}"));
            return Err(reported(exit_code));
        }
    }

    fn has_ended(&mut self) -> bool {
        self.processes.0.iter_mut().any(|(_, process)| process.has_ended())
    }

    fn line(&mut self, line: &[u8]) -> Result<Then> {
        let words: Vec<OsString> = line::split(line)?;
        if words.is_empty() {
            return Ok(Then::Continue);
        }
        let command = match line::parse(&words) {
            Ok(command) => command,
            Err(error) if !error.use_stderr() => {
                print::line(error.render().to_string().trim_end())?;
                return Ok(Then::Continue);
            }
            Err(error) => {
                print_usage("ivers", &error, USAGE);
                return Err(reported(USAGE));
            }
        };
        match command {
            LineCommand::Quit => return Ok(Then::Quit),
            LineCommand::Pwd => print::line(format::name(&self.cwd))?,
            LineCommand::Cd { dir } => self.cd(line::without_dots(&line::absolute(&self.cwd, &dir)))?,
            LineCommand::Sync => self.job(Edit::Show(Show::Sync), Targets::default())?,
            LineCommand::Ls(args) => {
                let paths =
                    if args.paths().is_empty() { vec![PathBuf::new()] } else { args.paths().to_vec() };
                self.show(Show::Ls(args), &paths)?;
            }
            LineCommand::Cat(args) => self.show(Show::Cat(args.clone()), args.paths())?,
            LineCommand::Stat(args) => self.show(Show::Stat(args.clone()), args.paths())?,
            LineCommand::Tree(args) => self.show(Show::Tree(args.clone()), args.paths())?,
            LineCommand::Rm(args) => self.edit(args)?,
            LineCommand::Mkdir(args) => self.edit(args)?,
            LineCommand::Mv(args) => self.edit(args)?,
            LineCommand::Ln(args) => self.edit(args)?,
            LineCommand::Chmod(args) => self.edit(args)?,
            LineCommand::Chown(args) => self.edit(args)?,
            LineCommand::Touch(args) => self.edit(args)?,
            LineCommand::Attr(args) => {
                let request = args.request()?;
                self.request(request)?;
            }
            LineCommand::Subvolume(args) => {
                let request = args.request()?;
                self.request(request)?;
            }
            LineCommand::Cp(args) => self.copy(args, Direction::Within)?,
            LineCommand::Get(args) => self.copy(args, Direction::Get)?,
            LineCommand::Put(args) => self.copy(args, Direction::Put)?,
        }
        Ok(Then::Continue)
    }

    fn cd(&mut self, dir: Vec<u8>) -> Result<()> {
        let targets = Targets { operands: vec![Bytes(dir.clone())], ..Targets::default() };
        self.job(Edit::Show(Show::IsDirectory), targets)?;
        self.cwd = dir;
        Ok(())
    }

    fn show(&mut self, show: Show, paths: &[PathBuf]) -> Result<()> {
        let operands = paths.iter().map(|path| Bytes(line::absolute(&self.cwd, path))).collect();
        self.job(Edit::Show(show), Targets { operands, ..Targets::default() })
    }

    fn edit<O: Options>(&mut self, args: edit::Args<O>) -> Result<()> {
        let request = args.request()?;
        self.request(request)
    }

    fn request(&mut self, (edit, words, shape): (Edit, Vec<PathBuf>, Shape)) -> Result<()> {
        let last = words.len().saturating_sub(1);
        let path = |(at, word): (usize, &PathBuf)| match shape {
            // The target of a symbolic link is not a path of this directory.
            Shape::TextsTo if at < last => Bytes(word.as_os_str().as_bytes().to_vec()),
            _ => Bytes(line::absolute(&self.cwd, word)),
        };
        let operands = words.iter().enumerate().map(path).collect();
        self.job(edit, edit::targets(shape, operands)?)
    }

    /// Runs a job. Its errors are printed by the image process.
    fn job(&mut self, edit: Edit, targets: Targets) -> Result<()> {
        let job = Job { edit, targets, json: self.json, umask: self.umask };
        let mut problems = Problems::default();
        for part in job.split() {
            for (_, process) in self.processes.0.iter_mut().take(1) {
                edit::add(process.edit(&part)?, &mut problems)?;
            }
        }
        problems.into_result()
    }

    fn copy(&mut self, args: line::CopyArgs, direction: Direction) -> Result<()> {
        let args = line::copy(args, direction, &self.image, &self.cwd)?;
        let outcome = cp::copy(&args, &mut self.processes, self.json);
        // Other images that the copy has opened are closed after it.
        let others = self.processes.0.split_off(1);
        let closed = cp::Processes(others).finish();
        let outcome = outcome.map_err(|error| {
            // The process that wrote has ended the copy, and has said why.
            let is_end = is_broken_pipe(&error) && !error.is::<StdoutError>();
            if is_end { reported(FAILED) } else { error }
        })?;
        closed?;
        cp::finish(&args, outcome, self.json)
    }
}
