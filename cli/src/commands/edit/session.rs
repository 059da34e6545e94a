//! The state of an operation on an open image: its names in errors, what it reports, how it is interrupted.

use std::path::Path;

use anyhow::{Context, Result};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bytes::Bytes;
use crate::arguments::{image_path, image_path_bytes, join, last_name};
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::entries;
use crate::image::process::{BROKEN_PIPE, EditOutcome};
use crate::image::{formats, glob};
use crate::output::failure::{
    FAILED, NOT_FOUND, Problems, StdoutError, code, is_broken_pipe, reported, say_error, short_line, usage,
};
use crate::output::format;
use crate::output::format::Shown;
use crate::output::print;
use crate::output::progress::Progress;

/// A signal, or the end of the command, stops an operation between two files.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// What a pattern that matches nothing means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmatched {
    /// An error.
    Error,
    /// Nothing.
    Nothing,
    /// The name of a new file.
    Name,
}

/// How an operation reports.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The name of the command.
    pub operation: &'static str,
    /// What happened to a file, and what would happen: `("removed", "would remove")`.
    pub verbs: (&'static str, &'static str),
    /// Name each file.
    pub verbose: bool,
    /// Change nothing, and name each file that would change.
    pub dry_run: bool,
}

/// What a command does with the files of an open image. Runs in the image process.
pub trait Operation {
    /// Returns how the operation reports.
    fn report(&self) -> Report;
    /// Works on the targets. An error that concerns one of them is reported, and the rest is done.
    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()>;
}

/// The files that an operation works on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Targets {
    /// The operands.
    pub operands: Vec<Bytes>,
    /// The destination, of operations that have one.
    pub to: Option<Bytes>,
    /// The command has several operands, though this message may have one of them.
    pub many: bool,
}

impl Targets {
    /// Returns the destination.
    pub fn to(&self) -> Result<&[u8]> {
        self.to.as_ref().map(|to| to.0.as_slice()).context("no destination")
    }
}

/// An open image, and an operation on it.
pub struct Session<'a> {
    /// The filesystem.
    pub vfs: &'a Vfs,
    /// The image, for errors.
    pub image: &'a Path,
    /// Print JSON.
    pub json: bool,
    /// Permission bits that new files lack.
    pub umask: u32,
    /// The errors that were printed.
    pub problems: Problems,
    report: Report,
    stop: &'a dyn Fn() -> bool,
    was_writable: bool,
    progress: Progress,
    /// Files changed by the current operand, and by all.
    changed: u64,
    changed_in_all: u64,
}

impl<'a> Session<'a> {
    /// Starts an operation. `stop` returns whether it must end.
    pub fn new(
        vfs: &'a Vfs,
        image: &'a Path,
        json: bool,
        umask: u32,
        report: Report,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        let (problems, progress) = (Problems::default(), Progress::unbounded());
        let was_writable = vfs.health().read_only.is_none();
        Self {
            vfs,
            image,
            json,
            umask,
            problems,
            report,
            stop,
            was_writable,
            progress,
            changed: 0,
            changed_in_all: 0,
        }
    }

    /// Ends the operation with what it returned.
    pub fn finish(mut self, done: Result<()>) -> EditOutcome {
        let mut outcome = EditOutcome::default();
        match done {
            Err(error) if error.is::<Interrupted>() => {
                let (name, done) = (self.image.shown(), self.report.verbs.0);
                self.problems.add(FAILED);
                outcome.interrupted = true;
                self.progress.suspend(|| {
                    say_error(FAILED, &format!("{name}: interrupted; files {done}: {}", self.changed_in_all));
                });
            }
            Err(error) if is_broken_pipe(&error) => outcome.output_error = Some(BROKEN_PIPE.into()),
            Err(error) if error.is::<StdoutError>() => outcome.output_error = Some(short_line(&error)),
            Err(error) => {
                // A `Reported` error is counted already.
                if self.problems.count == 0 {
                    let _ = self.problems.report(Err(error));
                }
            }
            Ok(()) => {}
        }
        EditOutcome { problems: self.problems.count, code: self.problems.code, ..outcome }
    }

    /// Returns the name of a file in errors.
    pub fn name(&self, path: &[u8]) -> String {
        image_path(self.image, path)
    }

    /// Adds the name of a file to an error.
    pub fn at<T, E>(&self, path: &[u8], result: std::result::Result<T, E>) -> Result<T>
    where
        std::result::Result<T, E>: Context<T, E>,
    {
        result.with_context(|| self.name(path))
    }

    /// Adds the name of a file to an error, and what the format lacks if that explains it: `what` is stored
    /// by formats with owners only.
    pub fn stored<T>(&self, path: &[u8], what: &str, result: ivers_vfs::Result<T>) -> Result<T> {
        self.at(path, formats::explain_lack(self.vfs, Some(what), result))
    }

    /// Looks up a file. `follow`: follows a symbolic link at the end of the path.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<InodeRef> {
        self.at(path, self.vfs.resolve(&Cred::root(), path, follow))
    }

    /// Looks up a file that may be missing.
    pub fn find(&self, path: &[u8], follow: bool) -> Result<Option<InodeRef>> {
        match self.vfs.resolve(&Cred::root(), path, follow) {
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            found => self.at(path, found).map(Some),
        }
    }

    /// Looks up a name that may be missing in a directory; `path` is for errors.
    pub fn find_in(&self, dir: &InodeRef, name: &[u8], path: &[u8]) -> Result<Option<InodeRef>> {
        match self.vfs.lookup(&Cred::root(), dir, name) {
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            found => self.at(path, found).map(Some),
        }
    }

    /// Returns the directory of a path and the name in it.
    pub fn parent(&self, path: &[u8]) -> Result<(InodeRef, Vec<u8>)> {
        let Some(name) = last_name(path) else {
            let why = "the root directory, `.` and `..` cannot be created, removed or renamed";
            return Err(usage(format!("{}: {why}", self.name(path))));
        };
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let dir = self.vfs.resolve(&Cred::root(), &path[..end - name.len()], true);
        Ok((self.at(path, dir)?, name.to_vec()))
    }

    /// Fails if a path ends in a slash and does not name a directory.
    pub fn check_slash(&self, path: &[u8], kind: FileType) -> Result<()> {
        if path.ends_with(b"/") && kind != FileType::Directory {
            return self.at(path, Err(Error::from(NameError::NotDirectory)));
        }
        Ok(())
    }

    /// Expands a pattern, and reports why that fails.
    pub fn expand(&mut self, operand: &Bytes, unmatched: Unmatched) -> Result<Vec<Vec<u8>>> {
        match glob::expand(self.vfs, self.image, &operand.0) {
            Ok(paths) => Ok(paths),
            Err(error) if code(&error) == NOT_FOUND && unmatched != Unmatched::Error => {
                Ok(if unmatched == Unmatched::Name { vec![operand.0.clone()] } else { Vec::new() })
            }
            Err(error) => self.report(Err(error)).map(|()| Vec::new()),
        }
    }

    /// Calls `act` for each file that the operands match. Reports errors and continues.
    pub fn each(
        &mut self,
        operands: &[Bytes],
        unmatched: Unmatched,
        mut act: impl FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for operand in operands {
            for path in self.expand(operand, unmatched)? {
                self.one(&path, |session| act(session, &path))?;
            }
        }
        Ok(())
    }

    /// [`Session::each`] for an operation that prints what it read, and changes nothing.
    pub fn each_read(
        &mut self,
        operands: &[Bytes],
        mut act: impl FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for operand in operands {
            for path in self.expand(operand, Unmatched::Error)? {
                self.check()?;
                let done = act(self, &path);
                self.report(done)?;
            }
        }
        Ok(())
    }

    /// Calls `act` for the file `path`. Reports its error.
    pub fn one(&mut self, path: &[u8], act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.check()?;
        self.changed = 0;
        let done = act(self);
        if self.json && !done.as_ref().is_err_and(|error| error.is::<StdoutError>()) {
            let mut object = self.object(path);
            object.insert("changed".into(), self.changed.into());
            print::json_line(&Value::Object(object))?;
        }
        self.report(done)
    }

    /// Prints an error. Returns an error that ends the operation.
    pub fn report(&mut self, result: Result<()>) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        if error.is::<Interrupted>() {
            return Err(error);
        }
        let problems = &mut self.problems;
        self.progress.suspend(|| problems.report(Err(error)))?;
        match self.vfs.health().read_only {
            // Each further change would fail.
            Some(why) if self.was_writable => {
                say_error(FAILED, &format!("{}: no further change is possible: {why}", self.image.shown()));
                Err(reported(self.problems.code))
            }
            _ => Ok(()),
        }
    }

    /// Fails if the operation was interrupted.
    pub fn check(&self) -> Result<()> {
        if (self.stop)() { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Counts a file that was changed, and names it if that is asked for. Fails if the operation was
    /// interrupted: call it when the file is done.
    pub fn changed(&mut self, path: &[u8]) -> Result<()> {
        self.changed_as(path, "")
    }

    /// [`Session::changed`], with more about the file, which ends the line.
    pub fn changed_as(&mut self, path: &[u8], more: &str) -> Result<()> {
        self.changed += 1;
        self.changed_in_all += 1;
        let Report { verbs, verbose, dry_run, .. } = self.report;
        self.progress.step(1, |files| format!("{files} files {}", verbs.0));
        if verbose || dry_run {
            let verb = if dry_run { verbs.1 } else { verbs.0 };
            let (json, image) = (self.json, self.image);
            let object = self.object(path);
            self.progress.suspend(|| {
                if json {
                    return print::json_line(&Value::Object(object));
                }
                print::line(format_args!("{verb} {}{}", image_path(image, path), format::one_line(more)))
            })?;
        }
        self.check()
    }

    fn object(&self, path: &[u8]) -> Map<String, Value> {
        let object = json!({ "operation": self.report.operation, "dry_run": self.report.dry_run });
        let path = image_path_bytes(self.image, path);
        let object = format::with_names(object, [("path", Some(&path[..]))]);
        if let Value::Object(object) = object { object } else { Map::new() }
    }

    /// Calls `act` for a file and, if it is a directory, for everything below it. Reports errors of files
    /// below and continues.
    pub fn walk(&mut self, path: &[u8], inode: &InodeRef, act: &mut Act<'_, 'a>) -> Result<()> {
        self.walk_below(path, inode, act, &mut CycleGuard::default(), 0)
    }

    fn walk_below(
        &mut self,
        path: &[u8],
        inode: &InodeRef,
        act: &mut Act<'_, 'a>,
        entered: &mut CycleGuard<u64>,
        depth: usize,
    ) -> Result<()> {
        act(self, path, inode)?;
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        entered.enter(inode.ino.0, depth, path.len(), || self.name(path))?;
        let vfs = self.vfs;
        for (name, child) in self.at(path, entries(vfs, inode))? {
            let path = join(path, &name);
            let done = self
                .at(&path, child)
                .and_then(|child| self.walk_below(&path, &child, act, entered, depth + 1));
            self.report(done)?;
        }
        Ok(())
    }
}

/// What [`Session::walk`] calls for each file.
pub type Act<'f, 'a> = dyn FnMut(&mut Session<'a>, &[u8], &InodeRef) -> Result<()> + 'f;
