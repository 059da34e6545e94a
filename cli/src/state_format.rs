//! The file that `changed` saves: which files there were, and the change attribute of each.
//!
//! ```text
//! magic     8 bytes  "ivstate2"
//! instance  length and bytes: the filesystem, or the mount where values do not outlive it
//! root      identity of the directory that the paths are relative to
//! count     number of records
//! record    shared (bytes in common with the path before), length and bytes of the rest,
//!           directory (0 or 1), identity
//! check     8 bytes, little-endian: FNV-1a of all before
//!
//! identity  ino, generation, has-change (0 or 1), change
//! ```
//!
//! The first version had no root, so that a state of another directory could not be told apart: it is no longer read.
//! Numbers are LEB128. Records are sorted by path. Paths share their beginnings, so a few bytes can stand for many: what all paths
//! take together is bounded by the length of the file (see [`State::is_loadable`]).

use std::collections::BTreeMap;

pub use ivers_measure::record::Identity;
use ivers_measure::record::{put, put_bytes, take, take_bytes};

/// What a state begins with.
pub const MAGIC: &[u8; 8] = b"ivstate2";
/// The part of it that all versions have in common.
pub const MAGIC_FAMILY: &[u8; 7] = b"ivstate";

/// No state is longer: some 150 million files.
pub const LEN_MAX: u64 = 4 << 30;

/// One file of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Who it is and whether it changed.
    pub identity: Identity,
    /// It is a directory.
    pub is_dir: bool,
}

/// A saved state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Values of different instances are never compared.
    pub instance: String,
    /// The tree's own directory.
    pub root: Identity,
    /// By path, relative to the tree.
    pub files: BTreeMap<Vec<u8>, Record>,
}

fn check(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Bytes of a record besides the path: the flags, and the numbers at their longest.
const RECORD_MAX: usize = 2 + 5 * 10;

/// Bytes that the paths of a state of `len` bytes may take in memory. Honest trees stay far below: each record has some twenty
/// bytes of its own.
fn paths_max(len: usize) -> usize {
    len.saturating_mul(64).saturating_add(64 << 20)
}

/// How much more a tree may hold of which a state is made, so that the walk over a damaged image ends before its paths fill the
/// memory.
#[derive(Debug, Default)]
pub struct Room {
    paths: usize,
    encoded: usize,
}

impl Room {
    /// Make room for one file; false if no state of all that came may be loaded.
    pub fn take(&mut self, path: &[u8], name: &[u8]) -> bool {
        // In the order of a state only paths below the parent can come between it and the file: the bytes that are not shared with
        // the one before are the name and a slash at most.
        self.paths = self.paths.saturating_add(path.len());
        self.encoded = self.encoded.saturating_add(name.len() + 1 + RECORD_MAX);
        self.paths <= paths_max(self.encoded)
    }
}

impl State {
    /// Whether a state that was encoded into `len` bytes can be read again.
    pub fn is_loadable(&self, len: usize) -> bool {
        len as u64 <= LEN_MAX && self.files.keys().map(Vec::len).sum::<usize>() <= paths_max(len)
    }

    /// The bytes to save.
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

    /// What was saved; `None` if the bytes are no state, or damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if check(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        Self::decode_body(body)
    }

    /// All but the checksum.
    pub fn decode_body(body: &[u8]) -> Option<Self> {
        let mut rest = body.strip_prefix(MAGIC)?;
        let instance = String::from_utf8(take_bytes(&mut rest)?.to_vec()).ok()?;
        let root = Identity::take(&mut rest)?;
        let count = take(&mut rest)?;
        let mut files = BTreeMap::new();
        let mut path = Vec::new();
        let mut room = paths_max(body.len());
        for _ in 0..count {
            let shared = usize::try_from(take(&mut rest)?).ok().filter(|&n| n <= path.len())?;
            path.truncate(shared);
            path.extend_from_slice(take_bytes(&mut rest)?);
            room = room.checked_sub(path.len())?;
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
    fn states_survive_the_round_trip_and_damage_is_seen() {
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
    fn few_bytes_do_not_become_many() {
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
