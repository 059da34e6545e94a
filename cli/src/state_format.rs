//! The file that `changed` saves: the files of a tree and the change attribute of each.
//!
//! ```text
//! magic     8 bytes  "ivstate2"
//! instance  length and bytes: the filesystem, or the mount if values end with it
//! root      identity of the directory that the paths are relative to
//! count     number of records
//! record    shared (length of the prefix shared with the previous path), length and bytes of the rest,
//!           directory (0 or 1), identity
//! check     8 bytes, little-endian: FNV-1a of all bytes before
//!
//! identity  ino, generation, has-change (0 or 1), change
//! ```
//!
//! Version 1 had no root, so a state of another directory could not be detected: it is refused. Numbers are
//! LEB128. Records are sorted by path. Since paths share prefixes, a short file can expand to very long
//! paths. So the length of the file bounds the length of all paths together (see [`State::is_loadable`]).

use std::collections::BTreeMap;

pub use ivers_ima::file_id::Identity;
use ivers_ima::file_id::{put, put_bytes, take, take_bytes};

/// The magic of a saved state.
pub const MAGIC: &[u8; 8] = b"ivstate2";
/// The part of the magic that all versions share.
pub const MAGIC_FAMILY: &[u8; 7] = b"ivstate";

/// The longest state in bytes: about 150 million files.
pub const LEN_MAX: u64 = 4 << 30;

/// One file of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The inode, its generation and its change attribute.
    pub identity: Identity,
    /// The file is a directory.
    pub is_dir: bool,
}

/// A saved state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The instance of the filesystem. Change attributes of different instances are never compared.
    pub instance: String,
    /// The directory that was walked.
    pub root: Identity,
    /// The files by their path relative to the directory.
    pub files: BTreeMap<Vec<u8>, Record>,
}

fn check(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Most bytes of a record besides the path: flags and numbers.
const RECORD_MAX: usize = 2 + 5 * 10;

/// Bytes of memory that the paths of a state of `len` bytes can take. Real trees stay far below: a record has
/// about twenty bytes besides the path.
fn paths_max(len: usize) -> usize {
    len.saturating_mul(64).saturating_add(64 << 20)
}

/// The bound for the paths of a tree while its state is collected. It ends the walk over a damaged image
/// before the paths fill the memory.
#[derive(Debug, Default)]
pub struct PathBudget {
    paths: usize,
    encoded: usize,
}

impl PathBudget {
    /// Adds one file. Returns whether the state is still loadable.
    pub fn take(&mut self, path: &[u8], name: &[u8]) -> bool {
        // In a state, only paths below the parent can lie between the parent and the file. So at most the
        // name and a slash are not shared with the previous path.
        self.paths = self.paths.saturating_add(path.len());
        self.encoded = self.encoded.saturating_add(name.len() + 1 + RECORD_MAX);
        self.paths <= paths_max(self.encoded)
    }
}

impl State {
    /// Returns whether [`State::decode`] accepts this state, which is encoded in `len` bytes.
    pub fn is_loadable(&self, len: usize) -> bool {
        len as u64 <= LEN_MAX && self.files.keys().map(Vec::len).sum::<usize>() <= paths_max(len)
    }

    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_bytes(&mut out, self.instance.as_bytes());
        self.root.put(&mut out);
        put(&mut out, self.files.len() as u64);
        let mut before: &[u8] = b"";
        for (path, record) in &self.files {
            let shared = path.iter().zip(before).take_while(|(a, b)| a == b).count();
            put(&mut out, shared as u64);
            put_bytes(&mut out, &path[shared..]);
            out.push(u8::from(record.is_dir));
            record.identity.put(&mut out);
            before = path;
        }
        let sum = check(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes a state. `None` if the bytes are not a state or are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if check(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        Self::decode_body(body)
    }

    /// Decodes a state without its checksum.
    pub fn decode_body(body: &[u8]) -> Option<Self> {
        let mut rest = body.strip_prefix(MAGIC)?;
        let instance = String::from_utf8(take_bytes(&mut rest)?.to_vec()).ok()?;
        let root = Identity::take(&mut rest)?;
        let count = take(&mut rest)?;
        let mut files = BTreeMap::new();
        let mut path = Vec::new();
        let mut budget = paths_max(body.len());
        for _ in 0..count {
            let shared = usize::try_from(take(&mut rest)?).ok().filter(|&n| n <= path.len())?;
            path.truncate(shared);
            path.extend_from_slice(take_bytes(&mut rest)?);
            budget = budget.checked_sub(path.len())?;
            let is_dir = take(&mut rest)? != 0;
            let identity = Identity::take(&mut rest)?;
            files.insert(path.clone(), Record { identity, is_dir });
        }
        rest.is_empty().then_some(State { instance, root, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip_and_damage_is_detected() {
        let root = Identity { ino: 2, generation: 7, change: Some(1 << 40) };
        let mut state = State { instance: "00ff".into(), root, ..State::default() };
        for (path, change) in [("a", Some(1)), ("a/b", Some(u64::MAX >> 1)), ("a/bc", None), ("z", Some(0))] {
            let identity = Identity { ino: 12, generation: u32::MAX, change };
            state.files.insert(path.into(), Record { identity, is_dir: path == "a" });
        }
        let bytes = state.encode();
        assert_eq!(State::decode(&bytes), Some(state));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(State::decode(&damaged), None, "byte {at}");
            assert_eq!(State::decode(&bytes[..at]), None);
        }
    }

    #[test]
    fn a_short_file_cannot_expand_to_long_paths() {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, 0);
        Identity::default().put(&mut bytes);
        put(&mut bytes, 200_001);
        put(&mut bytes, 0);
        put(&mut bytes, 100_000);
        bytes.extend_from_slice(&[b'x'; 100_000]);
        bytes.extend_from_slice(&[0; 5]);
        for n in 0..200_000u32 {
            put(&mut bytes, 100_000 - u64::from(n == 0));
            put(&mut bytes, 1);
            bytes.extend_from_slice(&[b'y', 0, 0, 0, 0, 0]);
        }
        assert_eq!(State::decode_body(&bytes), None, "20 GB of paths");
    }
}
