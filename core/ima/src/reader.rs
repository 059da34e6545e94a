//! A reader of binary measurement lists: to continue an existing list, and to verify one against its
//! aggregates.

use crate::list::{Entry, PCR, Template};
use thiserror::Error;

/// Upper bound of an entry's template data in bytes: longer than the longest path that ivers records and a
/// signature of one page together.
const DATA_MAX: usize = 128 << 10;

/// A damaged entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("entry {entry} of the measurement list, at byte {offset}: {why}")]
pub struct ListError {
    /// The entry, counted from 1.
    pub entry: usize,
    /// Its offset in the list, in bytes.
    pub offset: usize,
    /// The damage.
    pub why: String,
}

/// An iterator over the entries of a list. It ends after the first damaged entry.
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    entries: usize,
    ended: bool,
}

impl<'a> Reader<'a> {
    /// Creates a reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, entries: 0, ended: false }
    }

    /// Returns the length of all entries read, in bytes. If the iterator ended without an error, trailing
    /// bytes are an entry that a crash truncated.
    pub fn complete_len(&self) -> usize {
        self.offset
    }

    /// Returns the next entry; `Ok(None)` if the bytes end before the entry does.
    fn read(&mut self) -> Result<Option<Entry>, String> {
        let mut rest = &self.bytes[self.offset..];
        let Some(pcr) = take::<4>(&mut rest) else { return Ok(None) };
        if u32::from_le_bytes(*pcr) != PCR {
            return Err(format!("PCR {} instead of {PCR}", u32::from_le_bytes(*pcr)));
        }
        let Some(digest) = take::<20>(&mut rest) else { return Ok(None) };
        let Some(name) = take_sized(&mut rest, 64, "a template name")? else { return Ok(None) };
        let template = Template::by_name(name).ok_or_else(|| {
            format!("unknown template {:?}; supported are ima-ng and ima-sig", String::from_utf8_lossy(name))
        })?;
        let Some(data) = take_sized(&mut rest, DATA_MAX, "template data")? else { return Ok(None) };
        let violation = digest.iter().all(|&byte| byte == 0);
        let entry = Entry::decode(template, violation, data.to_vec())
            .ok_or_else(|| format!("template data does not have the fields of {}", template.name()))?;
        if entry.encode()[4..24] != *digest {
            return Err("template digest does not match the template data".to_owned());
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

fn take_sized<'a>(bytes: &mut &'a [u8], len_max: usize, what: &str) -> Result<Option<&'a [u8]>, String> {
    let Some(len) = take::<4>(bytes) else { return Ok(None) };
    let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
    if len > len_max {
        return Err(format!("{what} of {len} bytes; at most {len_max} are valid"));
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
    fn entries_round_trip() {
        let (entries, bytes) = list();
        let mut reader = Reader::new(&bytes);
        let read: Result<Vec<_>, _> = reader.by_ref().collect();
        assert_eq!(read.unwrap(), entries);
        assert_eq!(reader.complete_len(), bytes.len());
    }

    #[test]
    fn a_torn_end_is_distinguished_from_damage() {
        let (entries, bytes) = list();
        let whole = bytes.len() - entries[3].encode().len();
        for cut in whole..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]);
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 3);
            assert_eq!(reader.complete_len(), whole);
        }
        // Every bit error is detected. The last entry is excluded: a wrong length in it looks torn.
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
