//! The end of a copy that writes, and that says what could not be copied.

mod host;
mod image;

use std::collections::HashMap;
use std::io::Read;

use anyhow::{Result, anyhow, bail};
use ivers_vfs::FileType;
use serde::{Deserialize, Serialize};

pub use host::{HOST_ORIGIN, Host};
pub use image::Image;

use super::source::shown_path;
use super::stream::{Item, Message, Number, Receiver};
use crate::failure::{Tally, code, line, say};
use crate::progress::{self, Progress};

/// What a directory holds is a name, and nothing that leads elsewhere.
fn check_name(name: &[u8]) -> Result<()> {
    let is_name =
        !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0);
    if !is_name {
        bail!("the process that reads talks nonsense: {:?} is no name", String::from_utf8_lossy(name));
    }
    Ok(())
}

/// What can be written to.
pub trait Target {
    /// Where something is to be.
    type Spot;
    /// What was made there.
    type Made;

    /// Where a word of the command line goes.
    fn place(&self, name: Option<&[u8]>) -> Result<Self::Spot>;
    /// Where a name in a directory is.
    fn below(&self, dir: &Self::Made, name: &[u8]) -> Self::Spot;
    /// Make what is not there, empty what is: a directory stays as it is. `origin` says what the item's number means.
    fn make(&self, spot: Self::Spot, item: &Item, origin: u32) -> Result<Self::Made>;
    /// Write contents.
    fn write(&self, file: &Self::Made, offset: u64, bytes: &[u8]) -> Result<()>;
    /// All is in it: its size if it is a regular file, and its attributes.
    fn finish(&self, made: &Self::Made, item: &Item, size: u64, xattrs: &Xattrs) -> Result<()>;
    /// Another name for what was made.
    fn link(&self, spot: Self::Spot, made: &Self::Made) -> Result<()>;
    /// To be linked to later.
    fn remember(&self, made: &Self::Made) -> Self::Made;
}

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The ACLs that a copy must not have: those that its directory handed down, and that what is copied has not.
fn acls_missing_in(xattrs: &Xattrs) -> impl Iterator<Item = &'static str> {
    let all = ["system.posix_acl_access", "system.posix_acl_default"].into_iter();
    all.filter(|acl| !xattrs.iter().any(|(name, _)| name == acl.as_bytes()))
}

/// How a copy went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Files, directories and links that are there now.
    pub files: u64,
    /// What was said on standard error.
    pub problems: u64,
    /// The exit code of the problems: theirs if they agree.
    pub code: u8,
}

/// Attributes of all directories that are being copied, together.
const XATTRS_MAX: usize = 64 << 20;

/// Something begun. Nothing was made where that failed, or where that of its directory did.
struct Open<M> {
    made: Option<M>,
    item: Item,
    xattrs: Xattrs,
}

struct Absorber<'a, T: Target> {
    target: &'a T,
    tally: Tally,
    files: u64,
    progress: Progress,
    bytes: u64,
    origin: u32,
    shown: String,
    spot: Option<T::Spot>,
    open: Vec<Open<T::Made>>,
    twins: HashMap<(u32, Number), T::Made>,
    xattr_bytes: usize,
}

/// Write what comes in. An error means that the rest cannot be had; everything else is said and counted.
pub fn absorb<T: Target>(target: &T, from: impl Read) -> Result<Outcome> {
    let mut absorber = Absorber {
        target,
        tally: Tally::default(),
        files: 0,
        progress: Progress::unbounded(),
        bytes: 0,
        origin: 0,
        shown: String::new(),
        spot: None,
        open: Vec::new(),
        twins: HashMap::new(),
        xattr_bytes: 0,
    };
    let mut from = Receiver::new(from);
    loop {
        match from.next()? {
            Message::Finish => return Ok(absorber.outcome()),
            Message::Data { offset, len } => absorber.data(offset, from.bytes(len)?)?,
            message => absorber.take(message)?,
        }
    }
}

impl<T: Target> Absorber<'_, T> {
    fn path(&self, name: Option<&[u8]>) -> String {
        // The first is the word of the command line itself.
        let names = self.open.iter().skip(1).map(|open| open.item.name.clone());
        let names: Vec<_> = names.chain(name.filter(|_| !self.open.is_empty()).map(<[u8]>::to_vec)).collect();
        shown_path(&self.shown, &names)
    }

    fn outcome(&self) -> Outcome {
        Outcome { files: self.files, problems: self.tally.problems, code: self.tally.code }
    }

    fn say(&mut self, code: u8, line: &str) {
        self.tally.count(code);
        // It may come from a process that a hostile image has taken over.
        let line = crate::show::one_line(line);
        self.progress.suspend(|| say(format_args!("ivers: {line}")));
    }

    fn complain(&mut self, name: Option<&[u8]>, error: &anyhow::Error) {
        let text = format!("{}: {}", self.path(name), line(error));
        self.say(code(error), &text);
    }

    fn done(&mut self) {
        self.files += 1;
        let (files, bytes) = (self.files, self.bytes);
        self.progress.step(1, |_| format!("{files} files, {}", progress::bytes(bytes)));
    }

    /// Where the next thing goes. `None`: nowhere, and that was said already.
    fn next_spot(&mut self, name: &[u8]) -> Result<Option<T::Spot>> {
        let Some(open) = self.open.last() else { return Ok(self.spot.take()) };
        // What is below a symbolic link would be where that leads.
        if open.item.kind()? != FileType::Directory {
            bail!("the process that reads talks nonsense: something in what is no directory");
        }
        check_name(name)?;
        Ok(open.made.as_ref().map(|dir| self.target.below(dir, name)))
    }

    fn take(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Source { origin, shown, name } => {
                if !self.open.is_empty() {
                    bail!("the process that reads talks nonsense: two things at once");
                }
                name.as_deref().map_or(Ok(()), check_name)?;
                self.origin = origin;
                self.shown = shown;
                self.spot = match self.target.place(name.as_deref()) {
                    Ok(spot) => Some(spot),
                    Err(error) => {
                        self.complain(None, &error);
                        None
                    }
                };
            }
            Message::Item(item) => {
                let spot = self.next_spot(&item.name)?;
                let made = match spot.map(|spot| self.target.make(spot, &item, self.origin)) {
                    Some(Err(error)) => {
                        self.complain(Some(&item.name), &error);
                        None
                    }
                    made => made.and_then(Result::ok),
                };
                if let Some(made) = made.as_ref().filter(|_| item.has_twins) {
                    self.twins.insert((self.origin, item.number), self.target.remember(made));
                }
                self.open.push(Open { made, item, xattrs: Vec::new() });
            }
            Message::Link { name, number } => {
                if let Some(spot) = self.next_spot(&name)? {
                    let linked = match self.twins.get(&(self.origin, number)) {
                        Some(made) => self.target.link(spot, made),
                        None => Err(anyhow!("another name of a file that was not copied")),
                    };
                    match linked {
                        Ok(()) => self.done(),
                        Err(error) => self.complain(Some(&name), &error),
                    }
                }
            }
            Message::Xattr(name, value) => {
                self.xattr_bytes += name.len() + value.len();
                match self.open.last_mut() {
                    Some(open) if self.xattr_bytes <= XATTRS_MAX => open.xattrs.push((name, value)),
                    _ => bail!("the process that reads talks nonsense: attributes without end"),
                }
            }
            Message::End { size } => {
                let Some(open) = self.open.last_mut() else {
                    bail!("the process that reads talks nonsense: an end of nothing");
                };
                let (made, xattrs) = (open.made.take(), std::mem::take(&mut open.xattrs));
                let item = open.item.clone();
                self.xattr_bytes -=
                    xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
                if let Some(made) = made {
                    match self.target.finish(&made, &item, size, &xattrs) {
                        Ok(()) => self.done(),
                        Err(error) => self.complain(None, &error),
                    }
                }
                self.open.pop();
            }
            Message::Problem { path, code, line } => {
                let join = if self.shown.ends_with('/') || path.is_empty() { "" } else { "/" };
                let text = format!("{}{join}{path}: {line}", self.shown);
                self.say(code, &text);
            }
            Message::Data { .. } | Message::Finish => bail!("a message of the copy went astray"),
        }
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(open) = self.open.last_mut() else {
            bail!("the process that reads talks nonsense: contents of nothing");
        };
        self.bytes += bytes.len() as u64;
        let (files, all) = (self.files, self.bytes);
        self.progress.step(0, |_| format!("{files} files, {}", progress::bytes(all)));
        let written = open.made.as_ref().map(|made| self.target.write(made, offset, bytes));
        if let Some(Err(error)) = written {
            // Said once; what is there stays, as far as it came.
            open.made = None;
            self.twins.remove(&(self.origin, open.item.number));
            self.complain(None, &error.context(format!("incomplete from byte {offset} on")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::stream::Sender;
    use crate::failure::FAILED;
    use std::fs;
    use std::path::Path;

    fn item(name: &str, mode: u32, target: &Path) -> Message {
        let target = target.as_os_str().as_encoded_bytes().to_vec();
        let (number, time) = ((0, 1), (0, 0));
        let item = Item {
            name: name.into(),
            number,
            has_twins: false,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            target,
        };
        Message::Item(item)
    }

    fn absorbed(out: &Path, messages: &[Message]) -> Result<Outcome> {
        absorbed_as(None, out, messages)
    }

    /// The word of the command line has no name, and the reader says that it has this one.
    fn absorbed_as(name: Option<&[u8]>, out: &Path, messages: &[Message]) -> Result<Outcome> {
        let mut wire = Vec::new();
        let mut sender = Sender::new(&mut wire);
        let name = name.map(<[u8]>::to_vec);
        sender.send(&Message::Source { origin: 1, shown: "image".into(), name }).unwrap();
        messages.iter().for_each(|message| sender.send(message).unwrap());
        drop(sender);
        absorb(&Host::new(out, &[None], false).unwrap(), &wire[..])
    }

    /// A reader that somebody has taken over sends what no directory holds.
    #[test]
    fn a_hostile_reader_writes_nowhere_else() {
        let place = tempfile::tempdir().unwrap();
        let (out, outside) = (place.path().join("out"), place.path().join("outside"));
        for dir in [&out, &outside] {
            fs::create_dir(dir).unwrap();
        }
        let (dir, file, link, end) = (0o040755, 0o100644, 0o120777, Message::End { size: 0 });
        let nothing = Path::new("");
        let through_a_link = [
            item("", dir, nothing),
            item("a", link, &outside),
            end.clone(),
            item("a", dir, nothing),
            item("inner", file, nothing),
            end.clone(),
            end.clone(),
            item("b", link, &outside.join("victim")),
            end.clone(),
            item("b", file, nothing),
            end.clone(),
            end.clone(),
            Message::Finish,
        ];
        let outcome = absorbed(&out, &through_a_link).unwrap();
        assert_eq!((outcome.problems, outcome.code), (1, FAILED));
        assert!(fs::symlink_metadata(out.join("b")).unwrap().is_file());
        for name in ["..", ".", "", "../outside/x", "/x", "x\0"] {
            let messages = [item("", dir, nothing), item(name, file, nothing)];
            assert!(absorbed(&out, &messages).unwrap_err().to_string().contains("is no name"), "{name:?}");
        }
        let names = ["..", "../outside/x", "/x", "x/y"].map(str::as_bytes);
        for name in names.into_iter().chain([outside.join("x").as_os_str().as_encoded_bytes()]) {
            let error = absorbed_as(Some(name), &out, &[item("", file, nothing)]).unwrap_err();
            assert!(error.to_string().contains("is no name"), "{error}");
        }
        // One name, but not that of the word: it could be any of a home directory.
        let messages = [item("", file, nothing), end.clone(), Message::Finish];
        assert_eq!(absorbed_as(Some(b".profile"), &out, &messages).unwrap().problems, 1);
        assert!(!out.join(".profile").exists());
        let below_a_link = [item("", dir, nothing), item("c", link, &outside), item("inner", file, nothing)];
        assert!(absorbed(&out, &below_a_link).unwrap_err().to_string().contains("no directory"));
        for astray in [end, Message::Xattr(vec![], vec![]), Message::Data { offset: 0, len: 0 }] {
            assert!(absorbed(&out, &[astray]).unwrap_err().to_string().contains("nonsense"));
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
