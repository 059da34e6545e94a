//! Comparing the files of a walk with a saved state, and saving them, one after the other.
//!
//! Both are sorted by path, so a record of each is in memory. What is printed and saved waits in temporary
//! files (short ones in memory) until the walk has succeeded: a failed run prints nothing and saves nothing.
//! [`renames`](super::renames) joins a removed and a new path in between.

use std::collections::BTreeSet;
use std::io::{BufReader, BufWriter, Seek, Write};

use anyhow::{Context, Result};
use ivers::state_format::{Header, LEN_MAX, Record, Writer};
use ivers_vfs::raises::Cause;
use serde_json::json;
use tempfile::SpooledTempFile;

use super::renames::{self, Event, Renames, Status};
use super::saved_state::Saved;
use super::walk::INSTANCE_BY_TIMES;
use crate::output::failure::{FAILED, StdoutError, failure, warn};
use crate::output::format;

/// Bytes of output, and of a state, that wait in memory.
const SPOOL_BYTES: usize = 4 << 20;

/// The path of the tree itself, which can only change: a state of another directory is refused.
const ROOT: &[u8] = b".";

/// How changes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A letter and the path.
    Text,
    /// The path and a NUL.
    Null,
    /// JSON.
    Json,
}

/// What is printed, and how.
#[derive(Debug)]
pub struct Report {
    /// The form.
    pub form: Form,
    /// Directories are omitted.
    pub files_only: bool,
    /// The changes that are printed. If renamed files are not, they are new and removed.
    pub wanted: Vec<Status>,
    /// Change attributes are printed in JSON. Set by [`Comparison::begin`].
    pub shows_change: bool,
    /// All change attributes differ from the saved ones: printed in JSON.
    pub epoch_raised: bool,
    /// Why they differ, if that is certain: printed in JSON.
    pub raised_by: Option<Cause>,
}

/// The end of a comparison.
pub struct Compared {
    /// The state to save.
    pub state: Option<SpooledTempFile>,
    /// Something that was printed is not as saved.
    pub has_changes: bool,
}

impl Report {
    fn wants(&self, status: Status, record: &Record) -> bool {
        let joined = || self.wanted.contains(&Status::Renamed) && status != Status::Changed;
        (self.wanted.contains(&status) || joined()) && !(self.files_only && record.is_dir)
    }

    /// Prints a change. `from` is the path before a renaming.
    fn print(
        &self,
        out: &mut impl Write,
        path: &[u8],
        status: Status,
        record: &Record,
        from: Option<&[u8]>,
    ) -> std::io::Result<()> {
        match self.form {
            Form::Null => {
                // As find(1) prints them: no name looks like an option, or like a comment of rsync's
                // --files-from.
                if path != ROOT {
                    out.write_all(b"./")?;
                }
                out.write_all(path)?;
                out.write_all(b"\0")
            }
            Form::Json => {
                let change =
                    record.identity.change.filter(|_| self.shows_change && status != Status::Removed);
                let object = json!({
                    "status": status.word(),
                    "ino": record.identity.ino,
                    "generation": record.identity.generation,
                    "change": change.map(|v| v.to_string()),
                    "epoch_raised": self.epoch_raised,
                    "raised_by": self.raised_by.map(Cause::name),
                });
                writeln!(out, "{}", format::with_names(object, [("path", Some(path)), ("from", from)]))
            }
            Form::Text => {
                let from = from.map_or_else(String::new, |from| format!("{} -> ", format::name(from)));
                writeln!(out, "{} {from}{}", status.letter(), format::name(path))
            }
        }
    }
}

/// A spooled temporary file.
type Spool = BufWriter<SpooledTempFile>;

fn spool() -> Spool {
    BufWriter::new(SpooledTempFile::new(SPOOL_BYTES))
}

fn rewound(spool: Spool) -> std::io::Result<SpooledTempFile> {
    let mut file = spool.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// The saved state, and its next record.
struct Old {
    saved: Saved,
    next: Option<(Vec<u8>, Record)>,
}

impl Old {
    fn advance(&mut self) -> Result<()> {
        let next = self.saved.records.next_record().context("the saved state changed while it was read")?;
        self.next = next.map(|(path, record)| (path.to_vec(), record));
        Ok(())
    }

    /// Takes the next record if its path precedes `path`, or is `path` if `inclusive`.
    fn take_before(&mut self, path: Option<&[u8]>, inclusive: bool) -> Result<Option<(Vec<u8>, Record)>> {
        let is_due = |next: &mut (Vec<u8>, Record)| {
            path.is_none_or(|path| next.0.as_slice() < path || (inclusive && next.0 == path))
        };
        let Some(taken) = self.next.take_if(is_due) else { return Ok(None) };
        self.advance()?;
        Ok(Some(taken))
    }
}

/// Compares and saves the files of a walk, which come sorted by path.
pub struct Comparison {
    old: Option<Old>,
    report: Report,
    events: Spool,
    renames: Renames,
    state: Option<Writer<Spool>>,
    /// Files that could not be read, with a slash at the end: what was saved below them is kept.
    kept: BTreeSet<Vec<u8>>,
}

impl Comparison {
    /// Begins with a tree of this header. `old` is a state of the same tree.
    pub fn begin(old: Option<Saved>, save: bool, mut report: Report, header: &Header) -> Result<Self> {
        report.shows_change = !header.instance.starts_with(INSTANCE_BY_TIMES);
        let state = save.then(|| Writer::new(spool(), header)).transpose()?;
        let renames = Renames::new(report.wanted.contains(&Status::Renamed));
        let mut one = Self { old: None, report, events: spool(), renames, state, kept: BTreeSet::new() };
        if let Some(saved) = old {
            let root = header.root;
            let (before, record) = (saved.header.root, Record { identity: root, is_dir: true });
            if one.is_changed(&Record { identity: before, ..record }, &record) {
                one.put(ROOT, Status::Changed, &record)?;
            }
            let mut old = Old { saved, next: None };
            old.advance()?;
            one.old = Some(old);
        }
        Ok(one)
    }

    /// Returns whether a file changed or may have changed. Equal values of different instances prove nothing:
    /// they can be equal by chance.
    fn is_changed(&self, before: &Record, now: &Record) -> bool {
        self.report.epoch_raised || now.identity.change.is_none() || before != now
    }

    /// Notes a change, which is printed at the end.
    fn put(&mut self, path: &[u8], status: Status, record: &Record) -> Result<()> {
        if self.report.wants(status, record) {
            match status {
                Status::Removed => self.renames.removed(path, record),
                Status::New => self.renames.new_path(record),
                Status::Changed | Status::Renamed => {}
            }
            renames::write(&mut self.events, &Event { path: path.to_vec(), status, record: *record })?;
        }
        Ok(())
    }

    fn save(&mut self, path: &[u8], record: &Record) -> Result<()> {
        Ok(self.state.as_mut().map_or(Ok(()), |state| state.put(path, record))?)
    }

    /// Whether an old record is below a file that could not be read.
    fn is_kept(&mut self, path: &[u8]) -> bool {
        // What precedes the path without being a prefix of it can precede no later path as a prefix.
        while let Some(first) = self.kept.first() {
            if path.starts_with(first) {
                return true;
            }
            if first.as_slice() > path {
                return false;
            }
            self.kept.pop_first();
        }
        false
    }

    /// Handles the old records before `path` (all, if there is none): their files were removed.
    fn removed_before(&mut self, path: Option<&[u8]>) -> Result<()> {
        while let Some(old) = &mut self.old {
            let Some((path, record)) = old.take_before(path, false)? else { break };
            if self.is_kept(&path) {
                self.save(&path, &record)?;
            } else {
                self.put(&path, Status::Removed, &record)?;
            }
        }
        Ok(())
    }

    /// Takes the next file.
    pub fn file(&mut self, path: &[u8], record: &Record) -> Result<()> {
        self.removed_before(Some(path))?;
        if let Some(old) = &mut self.old {
            let status = match old.take_before(Some(path), true)? {
                None => Some(Status::New),
                Some((_, before)) if self.is_changed(&before, record) => Some(Status::Changed),
                Some(_) => None,
            };
            if let Some(status) = status {
                self.put(path, status, record)?;
            }
        }
        self.save(path, record)
    }

    /// Takes a path that this user may not read: the attributes of a file, or the names in a directory. The
    /// old records of it are kept, so that nothing below it is reported as new or removed.
    pub fn unreadable(&mut self, path: &[u8]) -> Result<()> {
        self.removed_before(Some(path))?;
        let own = self.old.as_mut().map_or(Ok(None), |old| old.take_before(Some(path), true))?;
        if let Some((path, record)) = own {
            self.save(&path, &record)?;
        }
        if self.old.is_some() {
            self.kept.insert([path, b"/"].concat());
        }
        Ok(())
    }

    /// Prints the changes to `out`, with renamed files joined. Returns whether there were any.
    fn print(report: &Report, events: Spool, renames: &Renames, out: &mut impl Write) -> Result<bool> {
        let mut events = BufReader::new(rewound(events)?);
        let mut has_changes = false;
        while let Some(Event { path, status, record }) = renames::read(&mut events)? {
            let from = renames.from(&record).filter(|_| status != Status::Changed);
            let (status, from) = match (from, status) {
                (Some(_), Status::Removed) => continue,
                (Some(from), _) => (Status::Renamed, Some(from)),
                (None, status) => (status, None),
            };
            if report.wanted.contains(&status) {
                has_changes = true;
                report.print(out, &path, status, &record, from).map_err(StdoutError)?;
            }
        }
        out.flush().map_err(StdoutError)?;
        Ok(has_changes)
    }

    /// Prints the changes.
    pub fn finish(mut self) -> Result<Compared> {
        self.removed_before(None)?;
        if self.renames.are_too_many() {
            warn("too many files are new or removed: renamed files are shown as new and removed");
        }
        let mut out = BufWriter::new(std::io::stdout().lock());
        let has_changes = Self::print(&self.report, self.events, &self.renames, &mut out)?;
        let Some(state) = self.state else { return Ok(Compared { state: None, has_changes }) };
        let (spool, len) = state.finish()?;
        if len > LEN_MAX {
            return Err(failure(FAILED, "the tree is too large for a saved state; save parts of the tree"));
        }
        Ok(Compared { state: Some(rewound(spool)?), has_changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers::state_format::{Identity, decode, encode};
    use std::io::Read;

    fn record(ino: u64, generation: u32, change: Option<u64>) -> Record {
        Record { identity: Identity { ino, generation, change }, is_dir: false }
    }

    fn header(change: u64) -> Header {
        Header { instance: String::new(), root: record(2, 0, Some(change)).identity }
    }

    fn saved(files: &[(&str, Record)]) -> (tempfile::TempDir, Saved) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let files = files.iter().map(|(path, record)| (path.as_bytes().to_vec(), *record)).collect();
        std::fs::write(&path, encode(&(header(8), files))).unwrap();
        let saved = super::super::saved_state::open(&path).unwrap();
        (dir, saved)
    }

    fn begin(old: Saved, change: u64) -> Comparison {
        let wanted = vec![Status::New, Status::Changed, Status::Removed, Status::Renamed];
        let (form, files_only, shows_change, epoch_raised) = (Form::Text, false, true, false);
        let report = Report { form, files_only, wanted, shows_change, epoch_raised, raised_by: None };
        Comparison::begin(Some(old), true, report, &header(change)).unwrap()
    }

    /// Returns what is printed, and the paths of the state.
    fn end(mut comparison: Comparison) -> (Vec<String>, Vec<String>) {
        comparison.removed_before(None).unwrap();
        let mut printed = Vec::new();
        let Comparison { report, events, renames, state, .. } = comparison;
        Comparison::print(&report, events, &renames, &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        let mut bytes = Vec::new();
        let (spool, len) = state.unwrap().finish().unwrap();
        rewound(spool).unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, len);
        let paths = decode(&bytes).unwrap().1.into_iter().map(|(path, _)| String::from_utf8(path).unwrap());
        (printed.lines().map(str::to_owned).collect(), paths.collect())
    }

    #[test]
    fn a_path_is_unchanged_only_if_all_of_its_identity_is() {
        let (_dir, old) = saved(&[
            ("changed", record(1, 0, Some(5))),
            ("gone", record(2, 0, Some(5))),
            ("reused", record(3, 0, Some(5))),
            ("same", record(4, 0, Some(5))),
            ("unknown", record(5, 0, None)),
            ("very last", record(7, 0, None)),
        ]);
        let mut comparison = begin(old, 9);
        for (path, record) in [
            ("changed", record(1, 0, Some(6))),
            ("new", record(6, 0, Some(1))),
            ("reused", record(3, 1, Some(5))),
            ("same", record(4, 0, Some(5))),
            ("unknown", record(5, 0, None)),
        ] {
            comparison.file(path.as_bytes(), &record).unwrap();
        }
        let (printed, paths) = end(comparison);
        assert_eq!(printed, ["C .", "C changed", "R gone", "N new", "C reused", "C unknown", "R very last"]);
        assert_eq!(paths, ["changed", "new", "reused", "same", "unknown"]);
    }

    #[test]
    fn a_removed_and_a_new_path_of_one_file_are_a_renaming() {
        let (_dir, old) = saved(&[
            ("a", record(1, 7, Some(5))),
            ("gone", record(2, 7, Some(5))),
            ("linked", record(3, 7, Some(5))),
            ("linked too", record(3, 7, Some(5))),
        ]);
        let mut comparison = begin(old, 8);
        for (path, record) in [
            ("b", record(1, 7, Some(6))),
            ("linked as a", record(3, 7, Some(6))),
            ("reused", record(2, 8, Some(1))),
        ] {
            comparison.file(path.as_bytes(), &record).unwrap();
        }
        let (printed, _) = end(comparison);
        let expected = ["M a -> b", "R gone", "R linked", "N linked as a", "R linked too", "N reused"];
        assert_eq!(printed, expected);
    }

    #[test]
    fn what_was_saved_of_an_unreadable_file_is_kept() {
        let one = record(1, 0, Some(5));
        let names = ["d", "d.txt", "d/a", "d/b/c", "d0", "e", "f", "g/x"];
        let (_dir, old) = saved(&names.map(|name| (name, one)));
        let mut comparison = begin(old, 8);
        // The directory `d`: its attributes are known, its names are not. Then a file without attributes.
        comparison.file(b"d", &record(1, 0, Some(6))).unwrap();
        comparison.unreadable(b"d").unwrap();
        comparison.file(b"d0", &one).unwrap();
        comparison.unreadable(b"f").unwrap();
        let (printed, paths) = end(comparison);
        assert_eq!(printed, ["C d", "R d.txt", "R e", "R g/x"]);
        assert_eq!(paths, ["d", "d/a", "d/b/c", "d0", "f"]);
    }
}
