//! What measuring keeps: the list, which only grows, and the store, which is replaced as a whole.
//!
//! The list is written and synced before the store is: a store that vouched for what is in no list would leave a gap in it that nobody
//! sees. What a crash leaves of an entry at the end of the list is taken off when the list is opened again.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_measure::digest::{Algorithm, Digest};
use ivers_measure::list::{Aggregates, Entry, Template};
use ivers_measure::reader::Reader;
use ivers_measure::store::{self, Store};
use rustix::fs::FlockOperation;

use crate::failure::{BUSY, CORRUPT, FAILED, failure};
use crate::{daemon, state};

/// No list is longer: some 40 million files.
const LIST_MAX: u64 = 4 << 30;

/// A measurement list in a file.
pub struct List {
    file: File,
    aggregates: Aggregates,
    /// Digests of all entries, by which the kernel too knows what it has already.
    seen: HashSet<Digest>,
    entries: u64,
    violations: u64,
    /// Not yet in the file.
    fresh: Vec<u8>,
}

/// Open a list, for this process alone. What a crash cut off is taken off its end.
pub fn open(path: &Path) -> Result<List> {
    let place = || format!("cannot keep the measurement list {}", path.display());
    make_parent(path).with_context(place)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).append(true).create(true).mode(0o600).open(path).with_context(place)?;
    if !file.metadata().with_context(place)?.is_file() {
        return Err(failure(FAILED, format!("{}: a regular file is wanted", place())));
    }
    match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(failure(BUSY, format!("{}: another mount or command keeps it", place())));
        }
        locked => locked.with_context(place)?,
    }
    let (list, whole) = List::of(file).map_err(|error| match error.downcast_ref() {
        Some(error) => damaged(path, error),
        None => error.context(place()),
    })?;
    if whole < list.file.metadata().with_context(place)?.len() {
        list.file.set_len(whole).with_context(place)?;
    }
    Ok(list)
}

fn damaged(path: &Path, error: &ivers_measure::reader::ListError) -> anyhow::Error {
    let path = path.display();
    failure(CORRUPT, format!("{path}: {error}: move it away, and a new one is begun"))
}

fn read(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LIST_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => std::fs::create_dir_all(dir),
        _ => Ok(()),
    }
}

impl List {
    /// Read a list, and tell how long it is up to the end of its last entry.
    fn of(mut file: File) -> Result<(Self, u64)> {
        // Opened by another process perhaps, which has read it to its end.
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
        let bytes = read(&mut file)?;
        let mut list = Self {
            file,
            aggregates: Aggregates::default(),
            seen: HashSet::new(),
            entries: 0,
            violations: 0,
            fresh: Vec::new(),
        };
        let mut reader = Reader::new(&bytes);
        for entry in reader.by_ref() {
            list.count(&entry?);
        }
        Ok((list, reader.whole() as u64))
    }

    /// The same list in another process, which has [`List::into_file`] from the one that opened it.
    pub fn adopt(file: File) -> Result<Self> {
        Ok(Self::of(file)?.0)
    }

    /// Its file, for another process.
    pub fn into_file(self) -> File {
        self.file
    }

    /// An empty one begins as the kernel's does.
    pub fn begin(mut self, template: Template, algorithm: Algorithm) -> Result<Self> {
        if self.entries == 0 {
            self.add(&Entry::boot_aggregate(template, algorithm));
            self.sync()?;
        }
        Ok(self)
    }

    /// Whether it was not there yet. Violations are as many as happen.
    fn count(&mut self, entry: &Entry) -> bool {
        if entry.is_violation() {
            self.violations += 1;
        } else if !self.seen.insert(entry.template_digest(Algorithm::Sha256)) {
            return false;
        }
        self.aggregates.extend(entry);
        self.entries += 1;
        true
    }

    /// Add an entry, unless the list has it; whether it had not. It is in the file once [`List::sync`] or [`List::write`] has returned.
    pub fn add(&mut self, entry: &Entry) -> bool {
        let is_new = self.count(entry);
        if is_new {
            self.fresh.extend_from_slice(&entry.encode());
        }
        is_new
    }

    /// Hand what was added over to the system.
    pub fn write(&mut self) -> std::io::Result<()> {
        self.file.write_all(&self.fresh)?;
        self.fresh.clear();
        Ok(())
    }

    /// The same, durably.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.write()?;
        self.file.sync_data()
    }

    /// The value of each bank.
    pub fn aggregates(&self) -> &Aggregates {
        &self.aggregates
    }

    /// How many there are.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// How many of them are violations.
    pub fn violations(&self) -> u64 {
        self.violations
    }
}

/// A list as it is shown.
pub struct Shown {
    /// In binary, what a crash cut off left out.
    pub binary: Vec<u8>,
    /// In ascii.
    pub ascii: Vec<u8>,
    /// The value of each bank.
    pub aggregates: Aggregates,
    /// How many entries there are.
    pub entries: u64,
    /// How many of them are violations.
    pub violations: u64,
}

/// Read a list, up to so many entries.
pub fn show(path: &Path, most: u64) -> Result<Shown> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut binary = read(&mut file).with_context(|| path.display().to_string())?;
    let mut shown = Shown {
        binary: Vec::new(),
        ascii: Vec::new(),
        aggregates: Aggregates::default(),
        entries: 0,
        violations: 0,
    };
    let mut reader = Reader::new(&binary);
    while shown.entries < most {
        let Some(entry) = reader.next() else { break };
        let entry = entry.map_err(|error| damaged(path, &error))?;
        shown.ascii.extend_from_slice(&entry.ascii());
        shown.aggregates.extend(&entry);
        shown.entries += 1;
        shown.violations += u64::from(entry.is_violation());
    }
    let whole = reader.whole();
    binary.truncate(whole);
    shown.binary = binary;
    Ok(shown)
}

/// Where something is kept if nobody says.
pub fn default_place(name: &str) -> Result<PathBuf> {
    let log = daemon::default_log();
    let dir = log.as_deref().and_then(Path::parent).map(|dir| dir.join("measure"));
    dir.map(|dir| dir.join(name))
        .context("there is no home to keep lists and stores in: say --list and --store")
}

/// The store in a file; an empty one if there is none.
pub fn load_store(path: &Path) -> Result<Store> {
    let place = || format!("cannot read the store {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Store::default()),
        file => file.with_context(place)?,
    };
    if !file.metadata().with_context(place)?.is_file() {
        return Err(failure(FAILED, format!("{}: a regular file is wanted", place())));
    }
    let mut bytes = Vec::new();
    file.take(store::LEN_MAX).read_to_end(&mut bytes).with_context(place)?;
    Store::decode(&bytes).ok_or_else(|| {
        let path = path.display();
        failure(
            CORRUPT,
            format!("{path} is no store, or a damaged one: move it away, and all is measured again"),
        )
    })
}

/// Replace the store in a file.
pub fn save_store(path: &Path, store: &Store) -> Result<()> {
    make_parent(path).with_context(|| path.display().to_string())?;
    state::put(path, &store.encode(), "the store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_behind_what_a_crash_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/list");
        let entry = |byte| Entry::measured(Template::ImaNg, &Algorithm::Sha256.digest(&[byte]), b"/x", None);
        let adopt = || open(&path).unwrap().begin(Template::ImaNg, Algorithm::Sha256).unwrap();
        let mut list = adopt();
        assert_eq!(list.entries(), 1, "boot_aggregate");
        assert!(open(&path).is_err(), "kept by one at a time");
        assert!(list.add(&entry(1)) && !list.add(&entry(1)), "as the kernel: once");
        let violation = Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/x");
        assert!(list.add(&violation) && list.add(&violation), "each of them");
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
        let shown = show(&path, u64::MAX).unwrap();
        assert_eq!((shown.entries, &shown.aggregates), (5, list.aggregates()));
        assert_eq!(shown.ascii.split(|&byte| byte == b'\n').count(), 6);
        assert_eq!(show(&path, 4).unwrap().binary, whole);
        drop(list);
        let mut damaged = whole;
        damaged[40] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(open(&path).is_err());
    }

    #[test]
    fn a_damaged_store_vouches_for_nothing() {
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
