//! The files of `measure`: the measurement list, which only grows, and the store of known digests, which is
//! replaced.
//!
//! The list is synced before the store is saved. Otherwise the store could contain a file whose entry is
//! missing in the list, and that file would not be measured again. An incomplete entry that a crash leaves at
//! the end of the list is removed when the list is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_ima::digest::Algorithm;
use ivers_ima::list::{Aggregates, Entry, Template};
use ivers_ima::reader::{ListError, Reader};
use ivers_ima::store::{self, Store};
use rustix::fs::FlockOperation;
use serde_json::{Value, json};

use crate::output::failure::{BUSY, CORRUPT, FAILED, failure};
use crate::output::format::Shown;
use crate::output::save;
use crate::process::user_state_dir;

/// Longest list in bytes: about 40 million files. A longer list is refused, since its end would be taken for
/// an incomplete entry.
const LIST_MAX: u64 = 4 << 30;

/// Bytes of a list that are read at a time.
const PART_BYTES: u64 = 1 << 20;

/// A measurement list in a file.
pub struct List {
    file: File,
    aggregates: Aggregates,
    /// The digests of all entries. As in the kernel, an entry with a known digest is not added again.
    known_digests: BTreeSet<[u8; 32]>,
    entries: u64,
    violations: u64,
    /// Encoded entries that are not in the file yet.
    pending: Vec<u8>,
}

/// Opens and locks a list. Removes an incomplete entry at its end.
pub fn open(path: &Path) -> Result<List> {
    let context = || format!("cannot open the measurement list {}", path.shown());
    make_parent(path).with_context(context)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).append(true).create(true).mode(0o600).open(path).with_context(context)?;
    if !file.metadata().with_context(context)?.is_file() {
        return Err(failure(FAILED, format!("{}: it is not a regular file", context())));
    }
    match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(failure(BUSY, format!("{}: another mount or command uses it", context())));
        }
        locked => locked.with_context(context)?,
    }
    let (list, complete_len) = List::read(file).map_err(|error| match error.downcast_ref() {
        Some(error) => damaged(path, error),
        None => error.context(context()),
    })?;
    if complete_len < list.file.metadata().with_context(context)?.len() {
        list.file.set_len(complete_len).with_context(context)?;
    }
    Ok(list)
}

fn damaged(path: &Path, error: &ListError) -> anyhow::Error {
    let path = path.shown();
    failure(CORRUPT, format!("{path}: {error}; move it away to start a new list"))
}

fn too_long() -> anyhow::Error {
    failure(FAILED, "it is longer than 4 GiB; move it away to start a new list")
}

/// Goes to the start of a list. Fails if it is longer than [`LIST_MAX`].
fn check_len(file: &File) -> Result<()> {
    // Not by its metadata: a sandboxed process may not ask for those.
    if rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))? > LIST_MAX {
        return Err(too_long());
    }
    // The process that opened the file can have read it.
    rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0))?;
    Ok(())
}

/// Reads a list. Fails if it is longer than [`LIST_MAX`].
fn read_all(file: &File) -> Result<Vec<u8>> {
    check_len(file)?;
    let mut bytes = Vec::new();
    file.take(LIST_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIST_MAX { Err(too_long()) } else { Ok(bytes) }
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => std::fs::create_dir_all(dir),
        _ => Ok(()),
    }
}

impl List {
    /// Reads a list. Returns also the offset of the end of its last complete entry.
    fn read(file: File) -> Result<(Self, u64)> {
        check_len(&file)?;
        let mut list = Self {
            file,
            aggregates: Aggregates::default(),
            known_digests: BTreeSet::new(),
            entries: 0,
            violations: 0,
            pending: Vec::new(),
        };
        // In parts: a list can be longer than the memory.
        let (mut bytes, mut offset, mut entries) = (Vec::new(), 0, 0);
        loop {
            let is_last = (&list.file).take(PART_BYTES).read_to_end(&mut bytes)? == 0;
            let (mut reader, mut read) = (Reader::new(&bytes), 0);
            for entry in reader.by_ref() {
                let in_list = |error: ListError| ListError {
                    entry: error.entry + entries,
                    offset: error.offset + offset,
                    ..error
                };
                list.count(&entry.map_err(in_list)?);
                read += 1;
            }
            let len = reader.complete_len();
            entries += read;
            offset += len;
            bytes.drain(..len);
            if is_last {
                return Ok((list, offset as u64));
            }
        }
    }

    /// Takes over a list whose file another process opened and passed on; see [`List::into_file`].
    pub fn adopt(file: File) -> Result<Self> {
        Ok(Self::read(file)?.0)
    }

    /// Returns the file, for another process.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Adds the boot aggregate to an empty list, as the kernel does.
    pub fn begin(mut self, template: Template, algorithm: Algorithm) -> Result<Self> {
        if self.entries == 0 {
            self.add(&Entry::boot_aggregate(template, algorithm));
            self.sync()?;
        }
        Ok(self)
    }

    /// Counts an entry. Returns false if the list has it already; each violation counts.
    fn count(&mut self, entry: &Entry) -> bool {
        if entry.is_violation() {
            self.violations += 1;
        } else {
            let digest = entry.template_digest(Algorithm::Sha256);
            // A tree and not a table, which takes up to twice as much: there can be millions.
            if !digest.bytes().first_chunk().is_none_or(|digest| self.known_digests.insert(*digest)) {
                return false;
            }
        }
        self.aggregates.extend(entry);
        self.entries += 1;
        true
    }

    /// Adds an entry unless the list has it. Returns whether it was added. [`List::write`] and [`List::sync`]
    /// write it to the file.
    pub fn add(&mut self, entry: &Entry) -> bool {
        let is_new = self.count(entry);
        if is_new {
            self.pending.extend_from_slice(&entry.encode());
        }
        is_new
    }

    /// Writes new entries to the file.
    pub fn write(&mut self) -> std::io::Result<()> {
        self.file.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }

    /// Writes new entries to the file and makes them durable.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.write()?;
        self.file.sync_data()
    }

    /// Returns the aggregate of each bank.
    pub fn aggregates(&self) -> &Aggregates {
        &self.aggregates
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the number of violations.
    pub fn violations(&self) -> u64 {
        self.violations
    }
}

/// A list in its output formats.
pub struct Rendered {
    /// The complete entries in binary.
    pub binary: Vec<u8>,
    /// The entries in ASCII.
    pub ascii: Vec<u8>,
    /// The aggregate of each bank.
    pub aggregates: Aggregates,
    /// The number of entries.
    pub entries: u64,
    /// The number of violations.
    pub violations: u64,
}

/// Reads a list, up to `most` entries.
pub fn render(path: &Path, most: u64) -> Result<Rendered> {
    let file = File::open(path).with_context(|| path.shown())?;
    let mut binary = read_all(&file).with_context(|| path.shown())?;
    let mut rendered = Rendered {
        binary: Vec::new(),
        ascii: Vec::new(),
        aggregates: Aggregates::default(),
        entries: 0,
        violations: 0,
    };
    let mut reader = Reader::new(&binary);
    while rendered.entries < most {
        let Some(entry) = reader.next() else { break };
        let entry = entry.map_err(|error| damaged(path, &error))?;
        rendered.ascii.extend_from_slice(&entry.ascii());
        rendered.aggregates.extend(&entry);
        rendered.entries += 1;
        rendered.violations += u64::from(entry.is_violation());
    }
    let whole = reader.complete_len();
    binary.truncate(whole);
    rendered.binary = binary;
    Ok(rendered)
}

/// Returns the aggregates in JSON, by the name of the bank.
pub fn aggregates_json(aggregates: &Aggregates) -> Value {
    let banks = aggregates.banks().iter().map(|value| (value.algorithm().name(), value.hex()));
    json!(banks.collect::<BTreeMap<_, _>>())
}

/// Returns the default path of a list or store.
pub fn default_path(name: &str) -> Result<PathBuf> {
    let dir = user_state_dir().context("no home directory for lists and stores; use --list and --store")?;
    Ok(dir.join("measure").join(name))
}

/// Reads a store. It is empty if the file does not exist.
pub fn load_store(path: &Path) -> Result<Store> {
    let context = || format!("cannot read the store {}", path.shown());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Store::default()),
        file => file.with_context(context)?,
    };
    if !file.metadata().with_context(context)?.is_file() {
        return Err(failure(FAILED, format!("{}: it is not a regular file", context())));
    }
    let mut bytes = Vec::new();
    file.take(store::LEN_MAX).read_to_end(&mut bytes).with_context(context)?;
    Store::decode(&bytes).ok_or_else(|| {
        let path = path.shown();
        failure(
            CORRUPT,
            format!("{path} is not a store or is damaged; move it away to measure all files again"),
        )
    })
}

/// Saves a store.
pub fn save_store(path: &Path, store: &Store) -> Result<()> {
    make_parent(path).with_context(|| path.shown())?;
    save::save_by(path, |file| store.write_to(file), "the store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_continues_after_an_incomplete_entry() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/list");
        let entry = |byte| Entry::measured(Template::ImaNg, &Algorithm::Sha256.digest(&[byte]), b"/x", None);
        let adopt = || open(&path).unwrap().begin(Template::ImaNg, Algorithm::Sha256).unwrap();
        let mut list = adopt();
        assert_eq!(list.entries(), 1, "boot_aggregate");
        assert!(open(&path).is_err(), "the list is locked");
        assert!(list.add(&entry(1)) && !list.add(&entry(1)), "each entry once, as in the kernel");
        let violation = Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/x");
        assert!(list.add(&violation) && list.add(&violation), "each violation");
        list.sync().unwrap();
        let aggregates = list.aggregates().clone();
        drop(list);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &entry(2).encode()[..30]].concat()).unwrap();
        let mut list = adopt();
        assert_eq!((list.entries(), list.violations()), (4, 2));
        assert_eq!(*list.aggregates(), aggregates);
        assert!(list.add(&entry(2)));
        list.sync().unwrap();
        let rendered = render(&path, u64::MAX).unwrap();
        assert_eq!((rendered.entries, &rendered.aggregates), (5, list.aggregates()));
        assert_eq!(rendered.ascii.split(|&byte| byte == b'\n').count(), 6);
        assert_eq!(render(&path, 4).unwrap().binary, whole);
        drop(list);
        let mut damaged = whole;
        damaged[40] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(open(&path).is_err());
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_and_not_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        drop(open(&path).unwrap().begin(Template::ImaNg, Algorithm::Sha256).unwrap());
        let len = LIST_MAX + 1;
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        for error in [open(&path).map(drop).unwrap_err(), render(&path, 1).map(drop).unwrap_err()] {
            assert!(format!("{error:#}").contains("longer than 4 GiB; move it away"), "{error:#}");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    }

    #[test]
    fn a_damaged_store_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        assert_eq!(load_store(&path).unwrap(), Store::default());
        let mut store = Store::default();
        store.files("00");
        save_store(&path, &store).unwrap();
        assert_eq!(load_store(&path).unwrap(), store);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(load_store(&path).is_err());
    }
}
