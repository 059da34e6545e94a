//! Reading a measurement list in binary: to go on with one that is there, and to check one against its
//! aggregates.

use crate::list::{Entry, PCR, Template};
use thiserror::Error;

/// No honest entry is longer: the longest path that a walk goes down, and a signature of a page.
const DATA_MAX: usize = 128 << 10;

/// What is wrong with a list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("entry {entry} of the measurement list, at byte {offset}: {why}")]
pub struct ListError {
    /// Which one, from 1.
    pub entry: usize,
    /// Where it begins.
    pub offset: usize,
    /// What is wrong.
    pub why: String,
}

/// Entries of a list, one after the other; what follows a mistake is not read.
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    entries: usize,
    ended: bool,
}

impl<'a> Reader<'a> {
    /// Read these.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, entries: 0, ended: false }
    }

    /// The bytes of all entries that were read. What lies behind is an entry that a crash has cut off, if the
    /// list ended without a mistake.
    pub fn whole(&self) -> usize {
        self.offset
    }

    /// `Ok(None)`: the bytes end before the entry does.
    fn read(&mut self) -> Result<Option<Entry>, String> {
        let mut rest = &self.bytes[self.offset..];
        let Some(pcr) = take::<4>(&mut rest) else { return Ok(None) };
        if u32::from_le_bytes(*pcr) != PCR {
            return Err(format!("PCR {} instead of {PCR}", u32::from_le_bytes(*pcr)));
        }
        let Some(digest) = take::<20>(&mut rest) else { return Ok(None) };
        let Some(name) = take_sized(&mut rest, 64, "a template name")? else { return Ok(None) };
        let template = Template::by_name(name).ok_or_else(|| {
            format!("template {:?}: there are ima-ng and ima-sig", String::from_utf8_lossy(name))
        })?;
        let Some(data) = take_sized(&mut rest, DATA_MAX, "template data")? else { return Ok(None) };
        let violation = digest.iter().all(|&byte| byte == 0);
        let entry = Entry::found(template, violation, data.to_vec())
            .ok_or_else(|| format!("its data is not that of {}", template.name()))?;
        if entry.encode()[4..24] != *digest {
            return Err("its template digest is not that of its data".to_owned());
        }
        self.offset = self.bytes.len() - rest.len();
        Ok(Some(entry))
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(taken)
}

fn take_sized<'a>(bytes: &mut &'a [u8], most: usize, what: &str) -> Result<Option<&'a [u8]>, String> {
    let Some(len) = take::<4>(bytes) else { return Ok(None) };
    let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
    if len > most {
        return Err(format!("{what} of {len} bytes"));
    }
    let Some((taken, rest)) = bytes.split_at_checked(len) else { return Ok(None) };
    *bytes = rest;
    Ok(Some(taken))
}

impl Iterator for Reader<'_> {
    type Item = Result<Entry, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read();
        self.ended = !matches!(read, Ok(Some(_)));
        self.entries += 1;
        match read {
            Ok(entry) => entry.map(Ok),
            Err(why) => Some(Err(ListError { entry: self.entries, offset: self.offset, why })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Algorithm;

    fn list() -> (Vec<Entry>, Vec<u8>) {
        let digest = Algorithm::Sha512.digest(b"x");
        let entries = vec![
            Entry::boot_aggregate(Template::ImaNg, Algorithm::Sha256),
            Entry::measured(Template::ImaSig, &digest, b"/etc/x y", Some(b"\x03\x02")),
            Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/etc/x"),
            Entry::measured(Template::ImaNg, &digest, &[0xff, b'/'], None),
        ];
        let bytes = entries.iter().flat_map(Entry::encode).collect();
        (entries, bytes)
    }

    #[test]
    fn what_was_written_is_read() {
        let (entries, bytes) = list();
        let mut reader = Reader::new(&bytes);
        let read: Result<Vec<_>, _> = reader.by_ref().collect();
        assert_eq!(read.unwrap(), entries);
        assert_eq!(reader.whole(), bytes.len());
    }

    #[test]
    fn a_torn_end_is_told_from_damage() {
        let (entries, bytes) = list();
        let whole = bytes.len() - entries[3].encode().len();
        for cut in whole..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]);
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 3);
            assert_eq!(reader.whole(), whole);
        }
        // A bit anywhere is seen, but for the lengths of the last entry, which may look cut off.
        for at in 0..whole {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let read: Vec<_> = Reader::new(&damaged).collect();
            let same =
                read.len() == entries.len() && read.iter().zip(&entries).all(|(a, b)| a.as_ref() == Ok(b));
            assert!(!same, "byte {at}");
        }
    }
}
