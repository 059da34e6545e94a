//! The log: a file of records.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `ivers-st` |
//! | 4 | version: 1 |
//! | 8 | length of the base |
//! | 16 | salt, different in each file |
//! | 8 | checksum of the above |
//! | ... | the base: records written with the header |
//! | ... | appended records |
//!
//! A record consists of the first half of the salt (8), its length (4), its body, and its checksum (8). The
//! checksum is SipHash-2-4 with the salt as key, over the record's offset and everything before the checksum.
//! Numbers are big-endian. Clients do not know the salt, so data from a client cannot look like a record.
//!
//! # Appending and replacing
//!
//! A change has a few hundred bytes, and a client waits for it. Appending it costs one write and one flush,
//! independent of the number of clients. Writing the whole file would cost two flushes and all records.
//!
//! However, a log grows, and its contents are unknown after a failed flush. The log is therefore replaced in
//! these cases:
//!
//! - at each start,
//! - when it has become long,
//! - before the next change after an error,
//! - when the file has been removed.
//!
//! A replacement is a new file, which is flushed and renamed to the name of the log. A reader finds one of
//! the two files, never a mixture.
//!
//! # Crashes and damage
//!
//! | found | cause | action |
//! |---|---|---|
//! | a second file beside the log | an incomplete replacement | overwrite it |
//! | the last appended record is cut or has a wrong checksum | an unacknowledged append | discard it |
//! | a bad record in the base, or before a good one | damage, not a crash | refuse to start |
//!
//! A crash cannot damage the base, which is flushed before the rename, nor an earlier record, because an
//! append begins after the last flush. Because of the salt, remains of an older file on the disk do not look
//! like records.

use std::hash::Hasher;
use std::io;

use ivers_nfs4::xdr::Xdr;
use siphasher::sip::SipHasher24;

use super::contents::{Contents, Record};
use super::log_file::LogFile;

const MAGIC: &[u8; 8] = b"ivers-st";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 44;
/// Salt and length.
const BEGIN_BYTES: usize = 12;
const CHECK_BYTES: usize = 8;
/// A log is replaced when the appended records are longer than its base and than this.
const APPENDED_BYTES: u64 = 1 << 20;

/// The reason why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BadLog {
    /// Written by a later version.
    Newer(u32),
    /// Damage that no crash causes, and its byte offset.
    Damaged(usize),
}

fn check(salt: &[u8; 16], at: usize, bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = SipHasher24::new_with_key(salt);
    hasher.write(&(at as u64).to_be_bytes());
    hasher.write(bytes);
    hasher.finish().to_be_bytes()
}

fn put(record: &Record, salt: &[u8; 16], at: usize) -> Vec<u8> {
    let body = record.to_bytes();
    let mut bytes = salt[..8].to_vec();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes.extend(check(salt, at, &bytes));
    bytes
}

/// Returns the record at an offset, and the offset of the next record.
fn take<'a>(log: &'a [u8], salt: &[u8; 16], at: usize) -> Option<(&'a [u8], usize)> {
    let rest = log.get(at..).filter(|rest| rest.starts_with(&salt[..8]))?;
    let length = u32::from_be_bytes(*rest[8..].first_chunk()?) as usize;
    let checked = rest.get(..BEGIN_BYTES.checked_add(length)?)?;
    let stored = rest.get(checked.len()..checked.len() + CHECK_BYTES)?;
    (check(salt, at, checked) == stored).then(|| (&checked[BEGIN_BYTES..], at + checked.len() + CHECK_BYTES))
}

/// Reads a log. Returns its contents and the length of the unacknowledged record at its end.
pub(super) fn read(log: &[u8]) -> Result<(Contents, usize), BadLog> {
    let damaged = BadLog::Damaged;
    let head = log.first_chunk::<HEAD_BYTES>().ok_or(damaged(log.len()))?;
    let (header, stored_check) = head.split_at(HEAD_BYTES - CHECK_BYTES);
    if &header[..8] != MAGIC {
        return Err(damaged(0));
    }
    let mut salt = [0; 16];
    salt.copy_from_slice(&header[20..]);
    if check(&salt, 0, header) != stored_check {
        return Err(damaged(8));
    }
    let mut words =
        header[8..20].chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let (version, high, low) = (words.next(), words.next(), words.next());
    if version != Some(VERSION) {
        return Err(BadLog::Newer(version.unwrap_or_default()));
    }
    let base = (u64::from(high.unwrap_or_default()) << 32 | u64::from(low.unwrap_or_default())) as usize;
    let base_end = HEAD_BYTES.checked_add(base).filter(|end| *end <= log.len()).ok_or(damaged(log.len()))?;
    let mut contents = Contents::default();
    let mut at = HEAD_BYTES;
    while at < log.len() {
        let Some((body, next)) = take(log, &salt, at).filter(|(_, next)| at >= base_end || *next <= base_end)
        else {
            break;
        };
        // The checksum is correct, but this version cannot decode it: a later version wrote it.
        contents.apply(Record::from_bytes(body).map_err(|_| BadLog::Newer(VERSION))?);
        at = next;
    }
    if at < base_end || (at + 1..log.len()).any(|later| take(log, &salt, later).is_some()) {
        return Err(damaged(at));
    }
    Ok((contents, log.len() - at))
}

/// A log that is open for writing.
pub(super) struct Log<M> {
    log_file: M,
    contents: Contents,
    salt: [u8; 16],
    base_end: u64,
    end: u64,
    /// The contents of the file are unknown after an error: it must be replaced.
    suspect: bool,
}

impl<M: LogFile> Log<M> {
    /// Creates a log with these contents, and replaces the existing one.
    pub fn create(log_file: M, contents: Contents, salt: [u8; 16]) -> io::Result<Self> {
        let mut log = Self { log_file, contents, salt, base_end: 0, end: 0, suspect: true };
        log.replace(log.contents.clone())?;
        Ok(log)
    }

    /// Returns the durable contents.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Applies a record durably. On error, `contents` stays unchanged, but the file may or may not contain
    /// the record.
    pub fn append(&mut self, record: Record) -> io::Result<()> {
        if !self.suspect && !self.contents.changed_by(&record) {
            return Ok(());
        }
        self.suspect |= !self.log_file.is_in_place()?;
        if self.suspect || self.end - self.base_end > self.base_end.max(APPENDED_BYTES) {
            let mut contents = self.contents.clone();
            contents.apply(record);
            return self.replace(contents);
        }
        let bytes = put(&record, &self.salt, self.end as usize);
        self.suspect = true;
        self.log_file.write_at(self.end, &bytes)?;
        self.log_file.sync_log()?;
        self.suspect = false;
        self.end += bytes.len() as u64;
        self.contents.apply(record);
        Ok(())
    }

    /// Checks that the next start will find the file, and otherwise writes it again. Returns whether it was
    /// there.
    pub fn ensure_in_place(&mut self) -> io::Result<bool> {
        self.suspect |= !self.log_file.is_in_place()?;
        if !self.suspect {
            return Ok(true);
        }
        self.replace(self.contents.clone())?;
        Ok(false)
    }

    fn replace(&mut self, contents: Contents) -> io::Result<()> {
        self.suspect = true;
        // Derive the next salt from the old one and the file's length, which needs no randomness.
        let (first, second) =
            (check(&self.salt, self.end as usize, b"1"), check(&self.salt, self.end as usize, b"2"));
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&first);
        salt[8..].copy_from_slice(&second);
        let mut base = Vec::new();
        for record in contents.records() {
            base.extend(put(&record, &salt, HEAD_BYTES + base.len()));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend((base.len() as u64).to_be_bytes());
        bytes.extend(salt);
        bytes.extend(check(&salt, 0, &bytes));
        bytes.extend(base);
        self.log_file.write_next(&bytes)?;
        self.log_file.sync_next()?;
        self.log_file.rename_next()?;
        self.log_file.sync_names()?;
        self.salt = salt;
        self.end = bytes.len() as u64;
        self.base_end = self.end;
        self.contents = contents;
        self.suspect = false;
        Ok(())
    }
}

/// Returns the log with another version in its header.
#[cfg(test)]
pub(super) fn of_version(log: &[u8], version: u32) -> Vec<u8> {
    let mut bytes = log.to_vec();
    bytes[8..12].copy_from_slice(&version.to_be_bytes());
    let mut salt = [0; 16];
    salt.copy_from_slice(&bytes[20..36]);
    let sum = check(&salt, 0, &bytes[..36]);
    bytes[36..44].copy_from_slice(&sum);
    bytes
}
