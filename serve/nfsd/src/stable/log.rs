//! Records, one behind the other, in one file.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `ivers-st` |
//! | 4 | version: 1 |
//! | 8 | length of the base |
//! | 16 | salt, another one in each file |
//! | 8 | check of all that |
//! | ... | the base: records that were written with the head |
//! | ... | records that were appended since |
//!
//! A record is the first half of the salt (8), its length (4), its bytes, and its check (8): SipHash-2-4 under the salt, of where it stands and of all before the check. Numbers are
//! big-endian. No client knows the salt: nothing that he has put into a record looks like another one.
//!
//! # Why a log, and why it is also replaced
//!
//! A change is a few hundred bytes, and a client waits for it: appended, it costs one write and one flush, however many other clients are on record. A file written anew for
//! each would cost two flushes and all the rest. But a log grows, and after a failed flush nobody knows what is in it. So at each start, when
//! it has become long, before the next change after any failure, and when somebody has taken the file away, everything is written to another file, which is flushed and
//! takes the log's place: a file of one state or of the other, never of both.
//!
//! # What a crash leaves, and what it does not
//!
//! | found | what it was | what is done |
//! |---|---|---|
//! | another file beside the log | a replacement that did not take place | it is overwritten |
//! | the last appended record is cut, or its check is wrong | an append that nobody was told had ended | it is discarded |
//! | a wrong record in the base, or with a good one behind it | no crash: the base was flushed before it got its name, and an append begins after the last was flushed | the server does not start, and says so |
//!
//! The salt keeps what an older file left on the disk from looking like a record of this one.

use std::hash::Hasher;
use std::io;

use ivers_nfs4::xdr::Xdr;
use siphasher::sip::SipHasher24;

use super::contents::{Contents, Record};
use super::log_file::LogFile;

const MAGIC: &[u8; 8] = b"ivers-st";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 44;
/// The mark and the length.
const BEGIN_BYTES: usize = 12;
const CHECK_BYTES: usize = 8;
/// A log is replaced when what was appended is longer than its base and this.
const APPENDED_BYTES: u64 = 1 << 20;

/// Why a log cannot be read, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BadLog {
    /// Written by a version that knew more.
    Newer(u32),
    /// Something that no crash does.
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

/// The record at a place, and where the next one is.
fn take<'a>(log: &'a [u8], salt: &[u8; 16], at: usize) -> Option<(&'a [u8], usize)> {
    let rest = log.get(at..).filter(|rest| rest.starts_with(&salt[..8]))?;
    let length = u32::from_be_bytes(*rest[8..].first_chunk()?) as usize;
    let checked = rest.get(..BEGIN_BYTES.checked_add(length)?)?;
    let told = rest.get(checked.len()..checked.len() + CHECK_BYTES)?;
    (check(salt, at, checked) == told).then(|| (&checked[BEGIN_BYTES..], at + checked.len() + CHECK_BYTES))
}

/// What a log says, and how many bytes at its end were never acknowledged.
pub(super) fn read(log: &[u8]) -> Result<(Contents, usize), BadLog> {
    let damaged = BadLog::Damaged;
    let head = log.first_chunk::<HEAD_BYTES>().ok_or(damaged(log.len()))?;
    let (told, told_check) = head.split_at(HEAD_BYTES - CHECK_BYTES);
    if &told[..8] != MAGIC {
        return Err(damaged(0));
    }
    let mut salt = [0; 16];
    salt.copy_from_slice(&told[20..]);
    if check(&salt, 0, told) != told_check {
        return Err(damaged(8));
    }
    let mut words =
        told[8..20].chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
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
        // Checked and yet not understood: this version did not write it.
        contents.apply(Record::from_bytes(body).map_err(|_| BadLog::Newer(VERSION))?);
        at = next;
    }
    if at < base_end || (at + 1..log.len()).any(|later| take(log, &salt, later).is_some()) {
        return Err(damaged(at));
    }
    Ok((contents, log.len() - at))
}

/// A log that is written to.
pub(super) struct Log<M> {
    log_file: M,
    contents: Contents,
    salt: [u8; 16],
    base_end: u64,
    end: u64,
    /// What the log_file holds is not known: only a replacement can be trusted.
    suspect: bool,
}

impl<M: LogFile> Log<M> {
    /// A log of these contents, in the place of what is there.
    pub fn create(log_file: M, contents: Contents, salt: [u8; 16]) -> io::Result<Self> {
        let mut log = Self { log_file, contents, salt, base_end: 0, end: 0, suspect: true };
        log.replace(log.contents.clone())?;
        Ok(log)
    }

    /// What is kept, durably.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Keep one thing more. When this returns it is durable; if it fails it may be or not, and what is kept is as before for whoever asks.
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

    /// Look whether it is still where the next start will look for it, and write it there again if it is not. True: it was.
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
        // Another salt without another source of randomness: what the old one makes of where the old file ended.
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

/// The same log as if another version had written it.
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
