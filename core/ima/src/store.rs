//! Digests under the change attribute that they were taken at.
//!
//! ```text
//! magic      8 bytes  "ivmeasr1"
//! count      number of filesystems
//!   instance bytes: which filesystem, or which mount of one whose values do not outlive it
//!   count    number of files
//! file   identity (it has a change attribute), algorithm (a number of `enum hash_algo`), digest, bytes of
//! `security.ima`
//! check      32 bytes: SHA-256 of all before
//! ```
//!
//! A record vouches for contents only if filesystem, inode number, generation and change attribute are all
//! the same: a number that is reused has another generation, and a file that was changed has another
//! attribute whatever its times say. Files are sorted by inode number; of each number the latest life alone
//! is kept, so that a store never outgrows its filesystems.

use crate::digest::{Algorithm, Digest};
use crate::file_id::{Identity, put, put_bytes, take, take_bytes};
use crate::signature::LABEL_MAX;
use std::collections::{BTreeMap, HashMap};

/// What a store begins with.
pub const MAGIC: &[u8; 8] = b"ivmeasr1";
/// No store is longer: some 50 million files.
pub const LEN_MAX: u64 = 4 << 30;
/// Of filesystems whose values do not outlive a mount so many are kept: the others' mounts have likely ended.
const PASSING_MAX: usize = 8;
/// More filesystems than this nobody has.
const INSTANCES_MAX: u64 = 4096;

const CHECK: Algorithm = Algorithm::Sha256;
const CHECK_LEN: usize = 32;

/// What is known of a file at one value of its change attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Which life of its number.
    pub generation: u32,
    /// The value.
    pub change: u64,
    /// Of its contents.
    pub digest: Digest,
    /// Its `security.ima`; empty: it has none.
    pub label: Vec<u8>,
}

/// What is known of the files of one filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files(HashMap<u64, Known>);

impl Files {
    /// What vouches for a file as it is now.
    pub fn find(&self, identity: &Identity) -> Option<&Known> {
        let known = self.0.get(&identity.ino)?;
        // No change attribute is no "unchanged".
        (known.generation == identity.generation && Some(known.change) == identity.change).then_some(known)
    }

    /// Remember. Nothing without a change attribute is.
    pub fn put(&mut self, identity: &Identity, digest: &Digest, label: &[u8]) {
        let Some(change) = identity.change else { return };
        let (digest, label) = (*digest, label.to_vec());
        if label.len() <= LABEL_MAX {
            self.0.insert(identity.ino, Known { generation: identity.generation, change, digest, label });
        }
    }

    /// Forget a file.
    pub fn forget(&mut self, ino: u64) {
        self.0.remove(&ino);
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes by which another process is told.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_into(&mut out);
        out
    }

    /// What another process told.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let files = Self::take_from(&mut bytes)?;
        bytes.is_empty().then_some(files)
    }

    fn put_into(&self, out: &mut Vec<u8>) {
        put(out, self.0.len() as u64);
        let mut files: Vec<_> = self.0.iter().collect();
        files.sort_unstable_by_key(|(ino, _)| **ino);
        for (&ino, known) in files {
            Identity { ino, generation: known.generation, change: Some(known.change) }.put(out);
            out.push(known.digest.algorithm().id());
            out.extend_from_slice(known.digest.bytes());
            put_bytes(out, &known.label);
        }
    }

    fn take_from(bytes: &mut &[u8]) -> Option<Self> {
        let count = take(bytes)?;
        // Each takes more than this many bytes: what is claimed must be there.
        let room = usize::try_from(count).ok().filter(|&count| count <= bytes.len() / 24)?;
        let mut files = HashMap::with_capacity(room);
        let mut before = None;
        for _ in 0..count {
            let identity = Identity::take(bytes)?;
            let algorithm = Algorithm::by_id(take_byte(bytes)?)?;
            let (digest, rest) = bytes.split_at_checked(algorithm.digest_len())?;
            *bytes = rest;
            let digest = Digest::new(algorithm, digest)?;
            let label = take_bytes(bytes).filter(|label| label.len() <= LABEL_MAX)?.to_vec();
            if before.replace(identity.ino) >= Some(identity.ino) {
                return None;
            }
            let known = Known { generation: identity.generation, change: identity.change?, digest, label };
            files.insert(identity.ino, known);
        }
        Some(Self(files))
    }
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Whether values under an instance of this name do not outlive a mount.
fn is_passing(instance: &str) -> bool {
    instance.contains('-')
}

/// All that is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Store(BTreeMap<String, Files>);

impl Store {
    /// The files of a filesystem.
    pub fn files(&mut self, instance: &str) -> &mut Files {
        if is_passing(instance) && !self.0.contains_key(instance) {
            let passing: Vec<_> = self.0.keys().filter(|name| is_passing(name)).cloned().collect();
            for gone in passing.iter().take((passing.len() + 1).saturating_sub(PASSING_MAX)) {
                self.0.remove(gone);
            }
        }
        self.0.entry(instance.to_owned()).or_default()
    }

    /// The bytes to keep.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, self.0.len() as u64);
        for (instance, files) in &self.0 {
            put_bytes(&mut out, instance.as_bytes());
            files.put_into(&mut out);
        }
        let check = CHECK.digest(&out);
        out.extend_from_slice(check.bytes());
        out
    }

    /// What was kept; nothing if the bytes are none, or damaged: then nothing vouches for anything.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, check) = bytes.split_last_chunk::<CHECK_LEN>()?;
        if CHECK.digest(body).bytes() != check {
            return None;
        }
        Self::decode_body(body)
    }

    /// All but the check.
    pub fn decode_body(body: &[u8]) -> Option<Self> {
        let mut rest = body.strip_prefix(MAGIC)?;
        let count = take(&mut rest).filter(|&count| count <= INSTANCES_MAX)?;
        let mut instances = BTreeMap::new();
        for _ in 0..count {
            let instance = String::from_utf8(take_bytes(&mut rest)?.to_vec()).ok()?;
            if instances.insert(instance, Files::take_from(&mut rest)?).is_some() {
                return None;
            }
        }
        rest.is_empty().then_some(Self(instances))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(ino: u64, generation: u32, change: Option<u64>) -> Identity {
        Identity { ino, generation, change }
    }

    #[test]
    fn only_the_very_same_is_vouched_for() {
        let mut files = Files::default();
        let digest = Algorithm::Sha256.digest(b"x");
        files.put(&identity(12, 3, Some(9)), &digest, b"label");
        let known = files.find(&identity(12, 3, Some(9))).unwrap();
        assert_eq!((&known.digest, &known.label[..]), (&digest, &b"label"[..]));
        for other in [
            identity(13, 3, Some(9)),
            identity(12, 4, Some(9)),
            identity(12, 3, Some(8)),
            identity(12, 3, None),
        ] {
            assert_eq!(files.find(&other), None, "{other:?}");
        }
        files.put(&identity(14, 0, None), &digest, b"");
        assert_eq!((files.len(), files.find(&identity(14, 0, None))), (1, None));
    }

    #[test]
    fn stores_survive_the_round_trip_and_damage_is_seen() {
        let mut store = Store::default();
        for (ino, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let id = identity(ino as u64, u32::MAX, Some(u64::MAX >> 1));
            store.files("00ff").put(&id, &algorithm.digest(b"x"), &vec![3; ino]);
        }
        store.files("other").put(&identity(0, 0, Some(0)), &Algorithm::Sha1.digest(b""), b"");
        let bytes = store.encode();
        assert_eq!(Store::decode(&bytes).as_ref(), Some(&store));
        let files = store.files("00ff").clone();
        assert_eq!(Files::decode(&files.encode()), Some(files));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Store::decode(&damaged), None, "byte {at}");
            assert_eq!(Store::decode(&bytes[..at]), None);
        }
        let mut claims = MAGIC.to_vec();
        claims.extend_from_slice(&[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(Store::decode_body(&claims), None, "more files than bytes");
    }

    #[test]
    fn mounts_that_passed_are_forgotten() {
        let mut store = Store::default();
        store.files("lasting");
        for mount in 0..20 {
            store.files(&format!("0-{mount:02}"));
        }
        assert_eq!(store.0.len(), PASSING_MAX + 1);
        assert!(store.0.contains_key("lasting") && store.0.contains_key("0-19"));
    }
}
