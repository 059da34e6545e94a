//! Writing what is copied, and reporting what could not be copied.

mod host;
mod image;
mod stream;

use std::collections::HashMap;
use std::io::Read;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use ivers_vfs::{Error, FileType};
use serde_json::json;

pub use host::{HOST_ORIGIN, Host};
pub use image::Image;
pub use stream::Stream;

use super::interrupt;
use super::reader::display_path;
use super::stream::{FileHeader, FileId, Message, Receiver};
use crate::arguments::join;
use crate::image::process::CopyOutcome;
use crate::output::failure::{Problems, StdoutError, code, line, say_error, warn};
use crate::output::progress::{self, Progress};
use crate::output::{format, print};

/// Returns an error for a message that the process that reads must not send: a hostile image can take
/// it over.
fn protocol_error(what: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("protocol error from the process that reads: {what}")
}

/// Checks that a name stays in its directory.
fn check_name(name: &[u8]) -> Result<()> {
    let is_name =
        !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0);
    if !is_name {
        return Err(protocol_error(format!("{:?} is not a file name", String::from_utf8_lossy(name))));
    }
    Ok(())
}

/// A tree to write to.
pub trait Target {
    /// The destination of a file.
    type Destination: Clone;
    /// A file that was created or opened.
    type File;
    /// What finds a file again for a hard link. There can be millions.
    type Linked;
    /// What fitted of a file stays if the rest of it cannot be written.
    const KEEPS_PARTIAL: bool;

    /// Returns the destination of an operand with this name.
    fn destination(&self, name: Option<&[u8]>) -> Result<Self::Destination>;
    /// Returns the destination of a name in a directory.
    fn child_destination(&self, dir: &Self::File, name: &[u8]) -> Self::Destination;
    /// Creates a file, or truncates an existing one. An existing directory stays as it is. `origin` is the
    /// scope of `header.id`.
    fn create(&self, destination: Self::Destination, header: &FileHeader, origin: u32) -> Result<Self::File>;
    /// Writes contents.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Sets the size of a regular file, and the attributes. All contents are written.
    fn finish(&self, file: &Self::File, header: &FileHeader, size: u64, xattrs: &Xattrs) -> Result<()>;
    /// Creates a hard link to `file`.
    fn link(&self, destination: Self::Destination, file: &Self::Linked) -> Result<()>;
    /// Returns what later calls of [`Target::link`] need.
    fn remember(&self, file: &Self::File) -> Self::Linked;
    /// Returns the type of the file that exists at the destination of an operand with this name, or at a path
    /// below it. Follows no symbolic link.
    fn existing(&self, name: Option<&[u8]>, below: &[Vec<u8>]) -> Option<FileType>;
    /// Returns the path of the destination of an operand with this name.
    fn destination_path(&self, name: Option<&[u8]>) -> Vec<u8>;
    /// Removes a file that is incomplete, if it did not exist before the copy. Returns whether it is removed.
    fn abandon(&self, destination: &Self::Destination, file: &Self::File) -> bool;
}

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the ACLs to remove from a copy: those that the original lacks. The directory can have passed them
/// down.
fn acls_missing_in(xattrs: &Xattrs) -> impl Iterator<Item = &'static str> {
    let all = ["system.posix_acl_access", "system.posix_acl_default"].into_iter();
    all.filter(|acl| !xattrs.iter().any(|(name, _)| name == acl.as_bytes()))
}

/// Most bytes of extended attributes of all open directories together.
const XATTRS_MAX: usize = 64 << 20;

/// How to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Leave existing files as they are.
    pub no_clobber: bool,
    /// Write nothing, and print what would be written.
    pub dry_run: bool,
    /// Print each file.
    pub verbose: bool,
    /// Print as JSON.
    pub json: bool,
}

/// A file or directory between its messages [`Message::File`] and [`Message::End`].
struct Open<F, D> {
    /// `None` if it, or its directory, could not be created.
    file: Option<F>,
    /// Where it is, if it is a regular file.
    destination: Option<D>,
    /// What is printed about it when it is complete.
    action: &'static str,
    /// A dry run found that it cannot be created.
    is_refused: bool,
    header: FileHeader,
    xattrs: Xattrs,
    /// Bytes of contents written.
    bytes: u64,
    begun: Instant,
}

struct Writer<'a, T: Target> {
    target: &'a T,
    options: WriteOptions,
    problems: Problems,
    files: u64,
    progress: Progress,
    bytes: u64,
    origin: u32,
    operand: Vec<u8>,
    name: Option<Vec<u8>>,
    destination: Option<T::Destination>,
    open: Vec<Open<T::File, T::Destination>>,
    linked: HashMap<(u32, FileId), T::Linked>,
    xattr_bytes: usize,
}

/// Writes a stream. An error means that the rest of the stream is lost, and what was copied is printed; other
/// errors are printed and counted.
pub fn write_copy<T: Target>(target: &T, options: WriteOptions, from: impl Read) -> Result<CopyOutcome> {
    let mut writer = Writer {
        target,
        options,
        problems: Problems::default(),
        files: 0,
        progress: Progress::unbounded(),
        bytes: 0,
        origin: 0,
        operand: Vec::new(),
        name: None,
        destination: None,
        open: Vec::new(),
        linked: HashMap::new(),
        xattr_bytes: 0,
    };
    let mut from = Receiver::new(from);
    let mut write = || -> Result<()> {
        loop {
            interrupt::check()?;
            match from.next()? {
                Message::Finish => return Ok(()),
                Message::Data { offset, len } => writer.data(offset, from.bytes(len)?)?,
                message => writer.handle(message)?,
            }
        }
    };
    let written = write();
    if let Err(error) = &written
        && !error.is::<StdoutError>()
    {
        writer.stop();
    }
    written.map(|()| writer.outcome())
}

impl<T: Target> Writer<'_, T> {
    /// Returns the names below the operand that lead to the file that is open, or to `name` in it.
    fn names(&self, name: Option<&[u8]>) -> Vec<Vec<u8>> {
        // The first is the operand itself.
        let names = self.open.iter().skip(1).map(|open| open.header.name.clone());
        names.chain(name.filter(|_| !self.open.is_empty()).map(<[u8]>::to_vec)).collect()
    }

    fn path(&self, name: Option<&[u8]>) -> String {
        display_path(&self.operand, &self.names(name))
    }

    fn outcome(&self) -> CopyOutcome {
        CopyOutcome { files: self.files, problems: self.problems.count, code: self.problems.code }
    }

    fn print_problem(&mut self, code: u8, line: &str) {
        self.problems.add(code);
        // The line can come from a process that a hostile image has taken over.
        let line = format::one_line(line);
        self.progress.suspend(|| say_error(code, &line));
    }

    fn report(&mut self, name: Option<&[u8]>, error: &anyhow::Error) {
        let text = format!("{}: {}", self.path(name), line(error));
        self.print_problem(code(error), &text);
    }

    /// Counts a file that is complete, and prints it if that is wanted.
    fn count_file(&mut self, name: Option<&[u8]>, action: &'static str) -> Result<()> {
        self.files += 1;
        self.show_progress(1);
        self.print(name, action)
    }

    fn show_progress(&self, steps: u64) {
        let text = |_| {
            let all = format!("{}, {}", format::count(self.files, "file"), progress::bytes(self.bytes));
            match self.open.last().filter(|open| open.header.size > 0) {
                Some(open) => {
                    let part = progress::describe(open.bytes, open.header.size, open.begun.elapsed());
                    format!("{all}; {}: {part}", self.path(None))
                }
                None => all,
            }
        };
        self.progress.step(steps, text);
    }

    /// Prints what is done with a file, if that is wanted.
    fn print(&self, name: Option<&[u8]>, action: &str) -> Result<()> {
        if !self.options.verbose && !self.options.dry_run {
            return Ok(());
        }
        let print = || {
            if self.options.json {
                let names = self.names(name);
                let below = |path| names.iter().fold(path, |path: Vec<u8>, name| join(&path, name));
                let from = below(self.operand.clone());
                let to = below(self.target.destination_path(self.name.as_deref()));
                let names = [("from", Some(&from[..])), ("to", Some(&to[..]))];
                return print::json_line(&format::with_names(json!({ "action": action }), names));
            }
            let (from, to) = (self.path(name), self.destination_path(name));
            match action {
                "create" => print::line(format_args!("{from} -> {to}")),
                "replace" => print::line(format_args!("{from} -> {to} (replaced)")),
                _ => print::line(format_args!("{from}: skipped, {to} exists")),
            }
        };
        self.progress.suspend(print)
    }

    fn destination_path(&self, name: Option<&[u8]>) -> String {
        let operand = self.target.destination_path(self.name.as_deref());
        display_path(&operand, &self.names(name))
    }

    /// Plans what to do with the next file: `create`, `replace` or `skip`. Returns an error if a dry run
    /// finds that something else has its name.
    fn plan(&self, name: &[u8], kind: FileType) -> Result<&'static str> {
        let WriteOptions { no_clobber, dry_run, verbose, .. } = self.options;
        if !(no_clobber || dry_run || verbose) {
            return Ok("create");
        }
        let Some(found) = self.target.existing(self.name.as_deref(), &self.names(Some(name))) else {
            return Ok("create");
        };
        match (found == FileType::Directory, kind == FileType::Directory) {
            (true, true) => Ok("create"),
            _ if no_clobber => Ok("skip"),
            (found_dir, is_dir) if dry_run && found_dir != is_dir => {
                Err(anyhow!("exists and is a {}", format::kind_in_words(found)))
            }
            _ => Ok("replace"),
        }
    }

    /// Ends the copy early: says what was copied, and what is incomplete.
    fn stop(&mut self) {
        let incomplete = self.destination_path(None);
        let open = self.open.last_mut();
        let file = open.and_then(|open| Some((open.file.take()?, open.destination.take()?)));
        let incomplete = file.map_or_else(String::new, |(file, destination)| {
            let removed = self.target.abandon(&destination, &file);
            let what = if removed { "was incomplete and is removed" } else { "is incomplete" };
            format!("; {incomplete} {what}")
        });
        let (files, bytes) = (format::count(self.files, "file"), progress::bytes(self.bytes));
        self.progress.suspend(|| warn(format_args!("ended early: {files} copied, {bytes}{incomplete}")));
    }

    /// Returns the destination of the next file. `None`: its directory was not created, which was reported.
    fn next_destination(&mut self, name: &[u8]) -> Result<Option<T::Destination>> {
        let Some(open) = self.open.last() else { return Ok(self.destination.take()) };
        // A symbolic link must not be followed.
        if open.header.kind()? != FileType::Directory {
            return Err(protocol_error("a file in what is not a directory"));
        }
        check_name(name)?;
        Ok(open.file.as_ref().map(|dir| self.target.child_destination(dir, name)))
    }

    fn open_file(&mut self, header: FileHeader) -> Result<()> {
        let kind = header.kind()?;
        let mut destination = self.next_destination(&header.name)?;
        let mut action = "create";
        let mut is_refused = self.open.last().is_some_and(|dir| dir.is_refused);
        if is_refused {
            destination = None;
        } else {
            match self.plan(&header.name, kind) {
                Ok(planned) => action = planned,
                Err(why) => {
                    (is_refused, destination) = (true, None);
                    self.report(Some(&header.name), &why);
                }
            }
        }
        if !is_refused && action == "skip" {
            destination = None;
            self.print(Some(&header.name), action)?;
        } else if !is_refused && self.options.dry_run {
            destination = None;
            self.count_file(Some(&header.name), action)?;
        }
        let kept = destination.clone().filter(|_| kind == FileType::Regular);
        let file = match destination.map(|to| self.target.create(to, &header, self.origin)) {
            Some(Err(error)) => {
                self.report(Some(&header.name), &error);
                None
            }
            file => file.and_then(Result::ok),
        };
        if let Some(file) = file.as_ref().filter(|_| header.has_links) {
            self.linked.insert((self.origin, header.id), self.target.remember(file));
        }
        let (xattrs, begun) = (Vec::new(), Instant::now());
        self.open.push(Open { file, destination: kept, action, is_refused, header, xattrs, bytes: 0, begun });
        Ok(())
    }

    fn link_file(&mut self, name: &[u8], id: FileId) -> Result<()> {
        let destination = self.next_destination(name)?;
        if self.open.last().is_some_and(|dir| dir.is_refused) {
            return Ok(());
        }
        let action = match self.plan(name, FileType::Regular) {
            Err(why) => {
                self.report(Some(name), &why);
                return Ok(());
            }
            Ok("skip") => return self.print(Some(name), "skip"),
            Ok(action) => action,
        };
        if self.options.dry_run {
            return self.count_file(Some(name), action);
        }
        let Some(destination) = destination else { return Ok(()) };
        let linked = match self.linked.get(&(self.origin, id)) {
            Some(file) => self.target.link(destination, file),
            None => Err(anyhow!("a hard link to a file that was not copied")),
        };
        match linked {
            Ok(()) => self.count_file(Some(name), action)?,
            Err(error) => self.report(Some(name), &error),
        }
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Operand { origin, operand, name } => {
                if !self.open.is_empty() {
                    return Err(protocol_error("an operand inside another"));
                }
                name.as_deref().map_or(Ok(()), check_name)?;
                self.origin = origin;
                self.operand = operand;
                self.name.clone_from(&name);
                self.destination = match self.target.destination(name.as_deref()) {
                    Ok(destination) => Some(destination),
                    Err(error) => {
                        self.report(None, &error);
                        None
                    }
                };
            }
            Message::File(header) => self.open_file(header)?,
            Message::Link { name, id } => self.link_file(&name, id)?,
            Message::Xattr(name, value) => {
                self.xattr_bytes += name.len() + value.len();
                match self.open.last_mut() {
                    Some(open) if self.xattr_bytes <= XATTRS_MAX => open.xattrs.push((name, value)),
                    _ => return Err(protocol_error("too many extended attributes")),
                }
            }
            Message::End { size } => {
                let Some(open) = self.open.last_mut() else {
                    return Err(protocol_error("an end without a start"));
                };
                let (file, xattrs) = (open.file.take(), std::mem::take(&mut open.xattrs));
                let (header, action) = (open.header.clone(), open.action);
                self.xattr_bytes -=
                    xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
                if let Some(file) = file {
                    match self.target.finish(&file, &header, size, &xattrs) {
                        Ok(()) => self.count_file(None, action)?,
                        Err(error) if error.is::<StdoutError>() => return Err(error),
                        Err(error) => self.report(None, &error),
                    }
                }
                self.open.pop();
            }
            Message::Problem { path, code, line } => {
                let join = if self.operand.ends_with(b"/") || path.is_empty() { "" } else { "/" };
                let text = format!("{}{join}{path}: {line}", format::name(&self.operand));
                self.print_problem(code, &text);
            }
            Message::Data { .. } | Message::Finish => bail!("the caller handles this message"),
        }
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(open) = self.open.last_mut() else {
            return Err(protocol_error("contents without a file"));
        };
        let Some(file) = &open.file else { return Ok(()) };
        match self.target.write(file, offset, bytes) {
            Ok(()) => {
                open.bytes += bytes.len() as u64;
                self.bytes += bytes.len() as u64;
                self.show_progress(0);
            }
            Err(error) if error.is::<StdoutError>() => return Err(error),
            Err(error) => {
                // The error is reported once.
                let file = open.file.take().zip(open.destination.take());
                self.linked.remove(&(self.origin, open.header.id));
                let abandon = |(file, to)| !T::KEEPS_PARTIAL && self.target.abandon(&to, &file);
                let removed = if file.is_some_and(abandon) { ", removed" } else { "" };
                let to = self.destination_path(None);
                // An image can lose data that it had in memory, from any offset.
                let is_lost = matches!(error.downcast_ref(), Some(Error::FileData(_) | Error::Io(_)));
                let end = if is_lost { String::new() } else { format!(" after byte {offset}") };
                self.report(None, &error.context(format!("{to}: incomplete{end}{removed}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cp::stream::Sender;
    use crate::output::failure::FAILED;
    use std::fs;
    use std::path::Path;

    fn file_header(name: &str, mode: u32, target: &Path) -> Message {
        let target = target.as_os_str().as_encoded_bytes().to_vec();
        let (id, time) = ((0, 1), (0, 0));
        let header = FileHeader {
            name: name.into(),
            id,
            has_links: false,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            size: 0,
            target,
        };
        Message::File(header)
    }

    fn copy_to(out: &Path, messages: &[Message]) -> Result<CopyOutcome> {
        copy_as(None, out, messages)
    }

    /// Writes an operand that has no name in the command line, and `name` in the stream.
    fn copy_as(name: Option<&[u8]>, out: &Path, messages: &[Message]) -> Result<CopyOutcome> {
        let mut wire = Vec::new();
        let mut sender = Sender::new(&mut wire);
        let name = name.map(<[u8]>::to_vec);
        sender.send(&Message::Operand { origin: 1, operand: b"image".to_vec(), name }).unwrap();
        messages.iter().for_each(|message| sender.send(message).unwrap());
        drop(sender);
        write_copy(&Host::new(out, &[None], false).unwrap(), WriteOptions::default(), &wire[..])
    }

    #[test]
    fn a_stream_that_ends_early_leaves_no_partial_file() {
        let dir = tempfile::tempdir().unwrap();
        let (out, old) = (dir.path().join("out"), dir.path().join("old"));
        fs::write(&old, "before").unwrap();
        let mut wire = Vec::new();
        let mut sender = Sender::new(&mut wire);
        let operand = Message::Operand { origin: 1, operand: b"image".to_vec(), name: None };
        sender.send(&operand).unwrap();
        sender.send(&file_header("", 0o100644, Path::new(""))).unwrap();
        sender.data(0, b"half").unwrap();
        drop(sender);
        for (path, is_left) in [(&out, false), (&old, true)] {
            let target = Host::new(path, &[None], false).unwrap();
            let error = write_copy(&target, WriteOptions::default(), &wire[..]).unwrap_err();
            assert!(error.is::<crate::commands::cp::stream::Truncated>(), "{error}");
            assert_eq!(path.exists(), is_left, "{}", path.display());
        }
        assert_eq!(fs::read(&old).unwrap(), b"half", "it existed before: named, not removed");
    }

    /// A reader that a hostile image has taken over sends names that leave the directory.
    #[test]
    fn a_hostile_reader_cannot_write_elsewhere() {
        let destination = tempfile::tempdir().unwrap();
        let (out, outside) = (destination.path().join("out"), destination.path().join("outside"));
        for dir in [&out, &outside] {
            fs::create_dir(dir).unwrap();
        }
        let (dir, file, link, end) = (0o040755, 0o100644, 0o120777, Message::End { size: 0 });
        let nothing = Path::new("");
        let through_a_link = [
            file_header("", dir, nothing),
            file_header("a", link, &outside),
            end.clone(),
            file_header("a", dir, nothing),
            file_header("inner", file, nothing),
            end.clone(),
            end.clone(),
            file_header("b", link, &outside.join("victim")),
            end.clone(),
            file_header("b", file, nothing),
            end.clone(),
            end.clone(),
            Message::Finish,
        ];
        let outcome = copy_to(&out, &through_a_link).unwrap();
        assert_eq!((outcome.problems, outcome.code), (1, FAILED));
        assert!(fs::symlink_metadata(out.join("b")).unwrap().is_file());
        for name in ["..", ".", "", "../outside/x", "/x", "x\0"] {
            let messages = [file_header("", dir, nothing), file_header(name, file, nothing)];
            assert!(
                copy_to(&out, &messages).unwrap_err().to_string().contains("is not a file name"),
                "{name:?}"
            );
        }
        let names = ["..", "../outside/x", "/x", "x/y"].map(str::as_bytes);
        for name in names.into_iter().chain([outside.join("x").as_os_str().as_encoded_bytes()]) {
            let error = copy_as(Some(name), &out, &[file_header("", file, nothing)]).unwrap_err();
            assert!(error.to_string().contains("is not a file name"), "{error}");
        }
        // A file name, but not that of the operand: it could be any in a home directory.
        let messages = [file_header("", file, nothing), end.clone(), Message::Finish];
        assert_eq!(copy_as(Some(b".profile"), &out, &messages).unwrap().problems, 1);
        assert!(!out.join(".profile").exists());
        let below_a_link = [
            file_header("", dir, nothing),
            file_header("c", link, &outside),
            file_header("inner", file, nothing),
        ];
        assert!(copy_to(&out, &below_a_link).unwrap_err().to_string().contains("not a directory"));
        for unexpected in [end, Message::Xattr(vec![], vec![]), Message::Data { offset: 0, len: 0 }] {
            assert!(copy_to(&out, &[unexpected]).unwrap_err().to_string().contains("protocol error"));
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
