//! Digests of files, each with the change attribute that it is valid for.
//!
//! ```text
//! magic          8 bytes "ivmeasr1"
//! count          number of filesystems, then for each of them:
//!   instance     byte string: the filesystem, or one mount of a filesystem whose values end with the mount
//!   count        number of files, then for each of them, sorted by inode number:
//!     identity   with a change attribute
//!     algorithm  one byte, a number of `enum hash_algo`
//!     digest     as many bytes as the algorithm has
//!     label      byte string: `security.ima`
//! checksum       32 bytes: SHA-256 of all bytes before it
//! ```
//!
//! Numbers and byte strings are those of [`crate::file_id`].
//!
//! A record is valid for a file only if filesystem, inode number, generation and change attribute are all
//! equal. A reused inode number has another generation. A changed file has another change attribute, whatever
//! its times are. One record is kept for each inode number, so that a store does not outgrow its filesystems.

use crate::digest::{Algorithm, Digest, Hasher};
use crate::file_id::{Identity, put, put_bytes, take, take_bytes};
use crate::signature::LABEL_MAX;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The first bytes of a store.
pub const MAGIC: &[u8; 8] = b"ivmeasr1";
/// Upper bound of a store in bytes: some 50 million files.
pub const LEN_MAX: u64 = 4 << 30;
/// How many instances are kept whose values end with their mount. Most of those mounts no longer exist.
const PER_MOUNT_MAX: usize = 8;
/// Upper bound of the filesystems in a store.
const INSTANCES_MAX: u64 = 4096;

/// A store is written in parts of about this size: as a whole it can take as much memory as its records.
const PART_BYTES: usize = 64 << 10;

const CHECKSUM: Algorithm = Algorithm::Sha256;
const CHECKSUM_LEN: usize = 32;

/// The digest and label of a file at one value of its change attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The file's generation.
    pub generation: u32,
    /// The change attribute.
    pub change: u64,
    /// The digest of the contents.
    pub digest: Digest,
    /// `security.ima`; empty if the file has none.
    pub label: Vec<u8>,
}

impl Record {
    /// The record as it is kept in memory, where there can be millions: less than half of its size.
    fn pack(identity: &Identity, change: u64, digest: &Digest, label: &[u8]) -> Box<[u8]> {
        let mut packed = Vec::new();
        put(&mut packed, u64::from(identity.generation));
        put(&mut packed, change);
        packed.push(digest.algorithm().id());
        packed.extend_from_slice(digest.bytes());
        packed.extend_from_slice(label);
        packed.into()
    }

    fn unpack(mut packed: &[u8]) -> Option<Self> {
        let generation = u32::try_from(take(&mut packed)?).ok()?;
        let change = take(&mut packed)?;
        let algorithm = Algorithm::by_id(take_byte(&mut packed)?)?;
        let (digest, label) = packed.split_at_checked(algorithm.digest_len())?;
        Some(Self { generation, change, digest: Digest::new(algorithm, digest)?, label: label.to_vec() })
    }
}

/// The records of one filesystem, by inode number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files(BTreeMap<u64, Box<[u8]>>);

impl Files {
    /// Returns the record that is valid for a file.
    pub fn find(&self, identity: &Identity) -> Option<Record> {
        let record = Record::unpack(self.0.get(&identity.ino)?)?;
        // A file without a change attribute equals no record.
        (record.generation == identity.generation && Some(record.change) == identity.change).then_some(record)
    }

    /// Adds a record. A file without a change attribute gets none.
    pub fn put(&mut self, identity: &Identity, digest: &Digest, label: &[u8]) {
        let Some(change) = identity.change else { return };
        if label.len() <= LABEL_MAX {
            self.0.insert(identity.ino, Record::pack(identity, change, digest, label));
        }
    }

    /// Removes the record of a file.
    pub fn forget(&mut self, ino: u64) {
        self.0.remove(&ino);
    }

    /// Returns the approximate memory of the records in bytes.
    pub fn memory_bytes(&self) -> u64 {
        // A number and a reference, twice for half-full nodes; and what allocators add.
        self.0.values().map(|packed| 2 * 24 + packed.len().next_multiple_of(16) as u64).sum()
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the encoding for another process: a count and the records, without magic and checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.0.len() as u64);
        self.0.iter().for_each(|(&ino, packed)| put_record(&mut out, ino, packed));
        out
    }

    /// Decodes the result of [`Files::encode`]; `None` if it is invalid.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let files = Self::decode_from(&mut bytes)?;
        bytes.is_empty().then_some(files)
    }

    fn decode_from(bytes: &mut &[u8]) -> Option<Self> {
        let count = take(bytes)?;
        let mut files = Self::default();
        let mut before = None;
        for _ in 0..count {
            let identity = Identity::take(bytes)?;
            let algorithm = Algorithm::by_id(take_byte(bytes)?)?;
            let (digest, rest) = bytes.split_at_checked(algorithm.digest_len())?;
            *bytes = rest;
            let digest = Digest::new(algorithm, digest)?;
            let label = take_bytes(bytes).filter(|label| label.len() <= LABEL_MAX)?;
            if before.replace(identity.ino) >= Some(identity.ino) {
                return None;
            }
            files.0.insert(identity.ino, Record::pack(&identity, identity.change?, &digest, label));
        }
        Some(files)
    }
}

/// Appends a record in the form that is described above.
fn put_record(out: &mut Vec<u8>, ino: u64, packed: &[u8]) {
    let Some(record) = Record::unpack(packed) else { return };
    Identity { ino, generation: record.generation, change: Some(record.change) }.put(out);
    out.push(record.digest.algorithm().id());
    out.extend_from_slice(record.digest.bytes());
    put_bytes(out, &record.label);
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Returns whether the values of this instance end with its mount: its name then has a part after a hyphen.
fn is_per_mount(instance: &str) -> bool {
    instance.contains('-')
}

/// The records of all filesystems, by instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Store(BTreeMap<String, Files>);

impl Store {
    /// Returns the records of an instance, and removes those of mounts that exceed the limit.
    pub fn files(&mut self, instance: &str) -> &mut Files {
        if is_per_mount(instance) && !self.0.contains_key(instance) {
            let per_mount: Vec<_> = self.0.keys().filter(|name| is_per_mount(name)).cloned().collect();
            for ended in per_mount.iter().take((per_mount.len() + 1).saturating_sub(PER_MOUNT_MAX)) {
                self.0.remove(ended);
            }
        }
        self.0.entry(instance.to_owned()).or_default()
    }

    /// Writes the encoding that is described above, in parts.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut checksum = Hasher::new(CHECKSUM);
        let mut write = |part: &mut Vec<u8>| {
            checksum.update(part);
            out.write_all(part)?;
            part.clear();
            Ok::<_, io::Error>(())
        };
        let mut part = MAGIC.to_vec();
        put(&mut part, self.0.len() as u64);
        for (instance, files) in &self.0 {
            put_bytes(&mut part, instance.as_bytes());
            put(&mut part, files.0.len() as u64);
            for (&ino, packed) in &files.0 {
                put_record(&mut part, ino, packed);
                if part.len() >= PART_BYTES {
                    write(&mut part)?;
                }
            }
        }
        write(&mut part)?;
        out.write_all(checksum.finish().bytes())
    }

    /// Decodes a store; `None` if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_LEN>()?;
        if CHECKSUM.digest(body).bytes() != checksum {
            return None;
        }
        Self::decode_body(body)
    }

    /// Decodes a store without its checksum.
    pub fn decode_body(body: &[u8]) -> Option<Self> {
        let mut rest = body.strip_prefix(MAGIC)?;
        let count = take(&mut rest).filter(|&count| count <= INSTANCES_MAX)?;
        let mut instances = BTreeMap::new();
        for _ in 0..count {
            let instance = String::from_utf8(take_bytes(&mut rest)?.to_vec()).ok()?;
            if instances.insert(instance, Files::decode_from(&mut rest)?).is_some() {
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
    fn a_record_is_valid_only_for_the_same_file_and_change() {
        let mut files = Files::default();
        let digest = Algorithm::Sha256.digest(b"x");
        files.put(&identity(12, 3, Some(9)), &digest, b"label");
        let record = files.find(&identity(12, 3, Some(9))).unwrap();
        assert_eq!((record.digest, &record.label[..]), (digest, &b"label"[..]));
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
    fn stores_round_trip_and_damage_is_detected() {
        let mut store = Store::default();
        for (ino, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let id = identity(ino as u64, u32::MAX, Some(u64::MAX >> 1));
            store.files("00ff").put(&id, &algorithm.digest(b"x"), &vec![3; ino]);
        }
        store.files("other").put(&identity(0, 0, Some(0)), &Algorithm::Sha1.digest(b""), b"");
        let mut bytes = Vec::new();
        store.write_to(&mut bytes).unwrap();
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
        assert_eq!(Store::decode_body(&claims), None, "count exceeds the bytes");
    }

    #[test]
    fn records_of_old_mounts_are_removed() {
        let mut store = Store::default();
        store.files("lasting");
        for mount in 0..20 {
            store.files(&format!("0-{mount:02}"));
        }
        assert_eq!(store.0.len(), PER_MOUNT_MAX + 1);
        assert!(store.0.contains_key("lasting") && store.0.contains_key("0-19"));
    }
}
