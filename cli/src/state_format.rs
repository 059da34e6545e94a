//! The file that `changed` saves: the files of a tree and the change attribute of each.
//!
//! ```text
//! magic     8 bytes  "ivstate3"
//! instance  length and bytes: the filesystem, or the mount if values end with it
//! root      identity of the directory that the paths are relative to
//! record    1 + shared (length of the prefix shared with the previous path), length and bytes of the rest,
//!           directory (0 or 1), identity
//! end       0
//! check     8 bytes, little-endian: FNV-1a of all bytes before
//!
//! identity  ino, generation, has-change (0 or 1), change
//! ```
//!
//! Numbers are LEB128. Records are sorted by path, and each path differs from the others. So two states are
//! compared record by record, and neither is ever in memory as a whole: a tree of ten million files takes no
//! more memory than one of ten.
//!
//! Version 2 has the number of records before the first one, `shared` without the 1, and no end. It can be
//! read. Version 1 had no root, so a state of another directory could not be detected: it is refused.

use std::io::{self, BufRead, Write};

pub use ivers_ima::file_id::Identity;
use ivers_ima::file_id::{put, put_bytes};

/// The magic of a saved state.
pub const MAGIC: &[u8; 8] = b"ivstate3";
/// The magic of the version before.
pub const MAGIC_2: &[u8; 8] = b"ivstate2";
/// The part of the magic that all versions share.
pub const MAGIC_FAMILY: &[u8; 7] = b"ivstate";

/// The longest state in bytes: about 150 million files.
pub const LEN_MAX: u64 = 4 << 30;
/// The longest path in bytes: twice the longest path of a directory that a walk enters.
const PATH_MAX: usize = 128 << 10;
/// The longest instance in bytes.
const INSTANCE_MAX: usize = 4096;

/// One file of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The inode, its generation and its change attribute.
    pub identity: Identity,
    /// The file is a directory.
    pub is_dir: bool,
}

/// What precedes the records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The instance of the filesystem. Change attributes of different instances are never compared.
    pub instance: String,
    /// The directory that was walked.
    pub root: Identity,
}

/// A state that cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The medium failed.
    Io(io::Error),
    /// The bytes are no valid state.
    Damaged,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::Io(error) => error.fmt(f),
            ReadError::Damaged => f.write_str("it is damaged"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::Damaged,
            _ => ReadError::Io(error),
        }
    }
}

/// The checksum of all bytes so far: FNV-1a.
#[derive(Debug, Clone, Copy)]
struct Check(u64);

impl Check {
    const START: Self = Self(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }
}

/// Returns the FNV-1a of some bytes.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let mut check = Check::START;
    check.add(bytes);
    check.0
}

/// Writes a state, record by record.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    check: Check,
    len: u64,
    before: Vec<u8>,
    encoded: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a state.
    pub fn new(out: W, header: &Header) -> io::Result<Self> {
        let mut writer =
            Self { out, check: Check::START, len: 0, before: Vec::new(), encoded: MAGIC.to_vec() };
        put_bytes(&mut writer.encoded, header.instance.as_bytes());
        header.root.put(&mut writer.encoded);
        writer.flush_encoded()?;
        Ok(writer)
    }

    fn flush_encoded(&mut self) -> io::Result<()> {
        self.check.add(&self.encoded);
        self.len += self.encoded.len() as u64;
        self.out.write_all(&self.encoded)?;
        self.encoded.clear();
        Ok(())
    }

    /// Adds a file. Its path must follow that of the file before.
    pub fn put(&mut self, path: &[u8], record: &Record) -> io::Result<()> {
        debug_assert!(self.before.as_slice() < path, "records are sorted by path");
        let shared = path.iter().zip(&self.before).take_while(|(a, b)| a == b).count();
        put(&mut self.encoded, 1 + shared as u64);
        put_bytes(&mut self.encoded, &path[shared..]);
        self.encoded.push(u8::from(record.is_dir));
        record.identity.put(&mut self.encoded);
        self.before.truncate(shared);
        self.before.extend_from_slice(&path[shared..]);
        self.flush_encoded()
    }

    /// Ends the state. Returns what it was written to, and its length in bytes.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        put(&mut self.encoded, 0);
        self.flush_encoded()?;
        self.out.write_all(&self.check.0.to_le_bytes())?;
        Ok((self.out, self.len + 8))
    }
}

/// Reads a state, record by record. The checksum comes last: what was read before is only certain then.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    check: Check,
    /// Version 2: the records that follow.
    count: Option<u64>,
    path: Vec<u8>,
    has_ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads what precedes the records.
    pub fn new(from: R) -> Result<(Self, Header), ReadError> {
        let mut reader = Self { from, check: Check::START, count: None, path: Vec::new(), has_ended: false };
        let mut magic = [0; 8];
        reader.fill(&mut magic)?;
        if magic != *MAGIC && magic != *MAGIC_2 {
            return Err(ReadError::Damaged);
        }
        let len = reader.len(INSTANCE_MAX)?;
        let mut instance = vec![0; len];
        reader.fill(&mut instance)?;
        let instance = String::from_utf8(instance).map_err(|_| ReadError::Damaged)?;
        let root = reader.identity()?;
        if magic == *MAGIC_2 {
            reader.count = Some(reader.number()?);
        }
        Ok((reader, Header { instance, root }))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        self.from.read_exact(bytes)?;
        self.check.add(bytes);
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    fn number(&mut self) -> Result<u64, ReadError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            value |= (part << shift >> shift == part).then_some(part << shift).ok_or(ReadError::Damaged)?;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ReadError::Damaged)
    }

    /// Reads a length that must not exceed `most`.
    fn len(&mut self, most: usize) -> Result<usize, ReadError> {
        let len = usize::try_from(self.number()?).map_err(|_| ReadError::Damaged)?;
        if len > most { Err(ReadError::Damaged) } else { Ok(len) }
    }

    fn identity(&mut self) -> Result<Identity, ReadError> {
        let ino = self.number()?;
        let generation = u32::try_from(self.number()?).map_err(|_| ReadError::Damaged)?;
        let has_change = self.number()? != 0;
        let change = self.number()?;
        Ok(Identity { ino, generation, change: has_change.then_some(change) })
    }

    /// The prefix that the next path shares with this one; `None` at the end.
    fn shared(&mut self) -> Result<Option<u64>, ReadError> {
        match &mut self.count {
            Some(0) => Ok(None),
            Some(left) => {
                *left -= 1;
                self.number().map(Some)
            }
            None => Ok(self.number()?.checked_sub(1)),
        }
    }

    /// Reads the next record, with its path. `None` at the end, once the checksum was right.
    pub fn next_record(&mut self) -> Result<Option<(&[u8], Record)>, ReadError> {
        if self.has_ended {
            return Ok(None);
        }
        let Some(shared) = self.shared()? else {
            self.check_end()?;
            self.has_ended = true;
            return Ok(None);
        };
        let old_len = self.path.len();
        let shared = usize::try_from(shared).ok().filter(|len| *len <= old_len).ok_or(ReadError::Damaged)?;
        let rest = self.len(PATH_MAX - shared.min(PATH_MAX))?;
        let mut tail = vec![0; rest];
        self.fill(&mut tail)?;
        // Sorted: the first byte that differs is larger, or the path goes on where the one before ends.
        let follows = match (self.path.get(shared), tail.first()) {
            (Some(before), Some(now)) => before < now,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if !follows {
            return Err(ReadError::Damaged);
        }
        self.path.truncate(shared);
        self.path.extend_from_slice(&tail);
        let is_dir = self.number()? != 0;
        let identity = self.identity()?;
        Ok(Some((&self.path, Record { identity, is_dir })))
    }

    fn check_end(&mut self) -> Result<(), ReadError> {
        let sum = self.check.0;
        let mut stored = [0; 8];
        self.from.read_exact(&mut stored)?;
        let has_more = !self.from.fill_buf()?.is_empty();
        if sum != u64::from_le_bytes(stored) || has_more { Err(ReadError::Damaged) } else { Ok(()) }
    }
}

/// Appends the checksum to a state that has none.
pub fn seal(mut body: Vec<u8>) -> Vec<u8> {
    let mut check = Check::START;
    check.add(&body);
    body.extend_from_slice(&check.0.to_le_bytes());
    body
}

/// A state as a whole.
pub type Whole = (Header, Vec<(Vec<u8>, Record)>);

/// Decodes a whole state. `None` if the bytes are no valid state.
pub fn decode(bytes: &[u8]) -> Option<Whole> {
    let (mut reader, header) = Reader::new(bytes).ok()?;
    let mut files = Vec::new();
    while let Some((path, record)) = reader.next_record().ok()? {
        files.push((path.to_vec(), record));
    }
    Some((header, files))
}

/// Encodes a whole state. Its paths must be sorted.
pub fn encode((header, files): &Whole) -> Vec<u8> {
    let written = Writer::new(Vec::new(), header).and_then(|mut writer| {
        files.iter().try_for_each(|(path, record)| writer.put(path, record))?;
        writer.finish()
    });
    // Writing to memory does not fail.
    written.map(|(bytes, _)| bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Whole {
        let root = Identity { ino: 2, generation: 7, change: Some(1 << 40) };
        let files = [("a", Some(1)), ("a/b", Some(u64::MAX >> 1)), ("a/bc", None), ("z", Some(0))];
        let record = |(path, change): (&str, _)| {
            let identity = Identity { ino: 12, generation: u32::MAX, change };
            (path.into(), Record { identity, is_dir: path == "a" })
        };
        (Header { instance: "00ff".into(), root }, files.map(record).to_vec())
    }

    /// The example as version 2 stored it.
    fn example_2() -> Vec<u8> {
        let (header, files) = example();
        let mut bytes = MAGIC_2.to_vec();
        put_bytes(&mut bytes, header.instance.as_bytes());
        header.root.put(&mut bytes);
        put(&mut bytes, files.len() as u64);
        for ((path, record), shared) in files.iter().zip([0, 1, 3, 0]) {
            put(&mut bytes, shared);
            put_bytes(&mut bytes, &path[shared as usize..]);
            bytes.push(u8::from(record.is_dir));
            record.identity.put(&mut bytes);
        }
        seal(bytes)
    }

    #[test]
    fn states_of_both_versions_are_read_and_damage_is_detected() {
        for bytes in [encode(&example()), example_2()] {
            assert_eq!(decode(&bytes), Some(example()));
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), None, "trailing bytes");
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert_eq!(decode(&damaged), None, "byte {at}");
                assert_eq!(decode(&bytes[..at]), None);
            }
        }
    }

    /// A state of two records. The first is `name`; the second has this length of the shared prefix, and this
    /// rest.
    fn second_path(shared: u64, rest: &[u8]) -> Option<Whole> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, 0);
        Identity::default().put(&mut bytes);
        for (shared, rest) in [(0, &b"name"[..]), (shared, rest)] {
            put(&mut bytes, 1 + shared);
            put_bytes(&mut bytes, rest);
            bytes.extend_from_slice(&[0; 5]);
        }
        bytes.push(0);
        decode(&seal(bytes))
    }

    #[test]
    fn paths_that_are_unsorted_or_too_long_are_refused() {
        assert!(second_path(4, b"s").is_some() && second_path(2, b"n").is_some());
        for (shared, rest) in [(4, &b""[..]), (3, b"e"), (3, b""), (0, b"a"), (2, b"l"), (5, b"x")] {
            assert_eq!(second_path(shared, rest), None, "{shared} {rest:?}");
        }
        assert!(second_path(0, &vec![b'x'; PATH_MAX]).is_some());
        assert_eq!(second_path(1, &vec![b'x'; PATH_MAX]), None);
    }
}
