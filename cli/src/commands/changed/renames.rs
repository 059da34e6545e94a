//! Joining a removed and a new path that name the same file: inode number and generation are equal.
//!
//! The changes wait in a temporary file until the walk is over. Meanwhile a table has the files that are new
//! or removed. Its memory is bounded: with more of them, all are shown as new and removed.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};

use ivers::state_format::{Identity, Record};

/// Most bytes of the table.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of an entry without its path.
const ENTRY_BYTES: usize = 96;

/// The change of a path since the saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Status {
    /// The path did not exist.
    New,
    /// The path names another file, or the file has another change attribute.
    Changed,
    /// The path no longer exists.
    Removed,
    /// The path is new, and names a file that had another path, which no longer exists.
    Renamed,
}

impl Status {
    /// Returns the name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Status::New => "new",
            Status::Changed => "changed",
            Status::Removed => "removed",
            Status::Renamed => "renamed",
        }
    }

    /// Returns the letter in text.
    pub fn letter(self) -> char {
        match self {
            Status::New => 'N',
            Status::Changed => 'C',
            Status::Removed => 'R',
            // Moved.
            Status::Renamed => 'M',
        }
    }
}

/// A change of a path.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// The path.
    pub path: Vec<u8>,
    /// New, changed or removed.
    pub status: Status,
    /// What the path names, or named.
    pub record: Record,
}

/// Writes an event to a temporary file.
pub fn write(out: &mut impl Write, event: &Event) -> io::Result<()> {
    let Event { path, status, record } = event;
    let Identity { ino, generation, change } = record.identity;
    out.write_all(&[*status as u8, record.is_dir.into(), change.is_some().into()])?;
    out.write_all(&ino.to_le_bytes())?;
    out.write_all(&generation.to_le_bytes())?;
    out.write_all(&change.unwrap_or(0).to_le_bytes())?;
    out.write_all(&(path.len() as u64).to_le_bytes())?;
    out.write_all(path)
}

/// Reads the next event of a file that [`write`] wrote.
pub fn read(from: &mut impl Read) -> io::Result<Option<Event>> {
    let mut flags = [0; 3];
    match from.read_exact(&mut flags) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [status, is_dir, has_change] = flags;
    let statuses = [Status::New, Status::Changed, Status::Removed, Status::Renamed];
    let known = statuses.into_iter().find(|known| *known as u8 == status);
    let status = known.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
    let mut number = [0; 8];
    let mut generation = [0; 4];
    from.read_exact(&mut number)?;
    let ino = u64::from_le_bytes(number);
    from.read_exact(&mut generation)?;
    let generation = u32::from_le_bytes(generation);
    from.read_exact(&mut number)?;
    let change = (has_change != 0).then_some(u64::from_le_bytes(number));
    from.read_exact(&mut number)?;
    let len = u64::from_le_bytes(number);
    let mut path = Vec::new();
    if from.take(len).read_to_end(&mut path)? as u64 != len {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let record = Record { identity: Identity { ino, generation, change }, is_dir: is_dir != 0 };
    Ok(Some(Event { path, status, record }))
}

/// A file that is new or removed at some paths.
#[derive(Debug, Default)]
struct Paths {
    /// The path that was removed. `None` if there are several, or none.
    removed: Option<Box<[u8]>>,
    removed_count: u32,
    new_count: u32,
}

/// The files that are new or removed.
#[derive(Debug)]
pub struct Renames {
    /// `None`: nothing is joined.
    files: Option<HashMap<(u64, u32, bool), Paths>>,
    bytes: usize,
    too_many: bool,
}

fn key(record: &Record) -> (u64, u32, bool) {
    (record.identity.ino, record.identity.generation, record.is_dir)
}

impl Renames {
    /// Creates an empty table. `wanted`: renamed files are joined.
    pub fn new(wanted: bool) -> Self {
        Self { files: wanted.then(HashMap::new), bytes: 0, too_many: false }
    }

    fn charge(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes > BYTES_MAX && self.files.take().is_some() {
            self.too_many = true;
        }
    }

    /// Notes a path that was removed.
    pub fn removed(&mut self, path: &[u8], record: &Record) {
        let Some(files) = &mut self.files else { return };
        let paths = files.entry(key(record)).or_default();
        paths.removed_count += 1;
        paths.removed = (paths.removed_count == 1).then(|| path.into());
        self.charge(ENTRY_BYTES + path.len());
    }

    /// Notes a path that is new.
    pub fn new_path(&mut self, record: &Record) {
        let Some(files) = &mut self.files else { return };
        files.entry(key(record)).or_default().new_count += 1;
        self.charge(ENTRY_BYTES);
    }

    /// Returns the former path of a file that was renamed: that was removed at one path and is new at one.
    pub fn from(&self, record: &Record) -> Option<&[u8]> {
        let paths = self.files.as_ref()?.get(&key(record))?;
        paths.removed.as_deref().filter(|_| paths.new_count == 1)
    }

    /// Returns whether there were too many files to join them.
    pub fn are_too_many(&self) -> bool {
        self.too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip() {
        let record = |change| Record { identity: Identity { ino: 7, generation: 3, change }, is_dir: true };
        let events = [
            Event { path: b"a/\xff".to_vec(), status: Status::Removed, record: record(None) },
            Event { path: Vec::new(), status: Status::New, record: record(Some(u64::MAX)) },
        ];
        let mut bytes = Vec::new();
        events.iter().for_each(|event| write(&mut bytes, event).unwrap());
        let mut from = &bytes[..];
        let back: Vec<_> = std::iter::from_fn(|| read(&mut from).unwrap()).collect();
        assert_eq!(back, events);
        assert!(read(&mut &bytes[..5]).is_err());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut renames = Renames::new(true);
        let path = vec![b'x'; 4000];
        for ino in 0..20_000 {
            let record = Record { identity: Identity { ino, generation: 0, change: None }, is_dir: false };
            renames.removed(&path, &record);
            renames.new_path(&record);
        }
        assert!(renames.are_too_many() && renames.files.is_none());
        assert!(!Renames::new(false).are_too_many());
    }
}
