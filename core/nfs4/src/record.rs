//! Record marking (RFC 5531 section 11): messages in a stream, each in fragments with a word before them.

use thiserror::Error;

/// The bit of a fragment's word that says it is the last one; the others are its length.
const LAST: u32 = 0x8000_0000;

/// The stream makes no sense, or more than was agreed: the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message of {bytes} bytes or more, where {max} are the most")]
pub struct TooLarge {
    /// What it would at least have.
    pub bytes: usize,
    /// What was agreed.
    pub max: usize,
}

/// The word that goes before a message of one fragment.
pub fn mark(len: usize) -> [u8; 4] {
    (LAST | len as u32 & !LAST).to_be_bytes()
}

/// Puts messages together from what arrives, however it is cut.
#[derive(Debug)]
pub struct Records {
    max: usize,
    message: Vec<u8>,
    /// Bytes of the word before the next fragment.
    word: Vec<u8>,
    /// Bytes of the current fragment that have not come yet.
    missing: usize,
    last: bool,
}

impl Records {
    /// Messages of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, message: Vec::new(), word: Vec::with_capacity(4), missing: 0, last: false }
    }

    /// Take bytes off the front of `bytes`, until a message is complete or nothing is left.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, TooLarge> {
        loop {
            if self.missing > 0 {
                let (now, later) = bytes.split_at(self.missing.min(bytes.len()));
                self.message.extend_from_slice(now);
                self.missing -= now.len();
                *bytes = later;
                if self.missing > 0 {
                    return Ok(None);
                }
            }
            if self.last {
                self.last = false;
                return Ok(Some(std::mem::take(&mut self.message)));
            }
            let (now, later) = bytes.split_at((4 - self.word.len()).min(bytes.len()));
            self.word.extend_from_slice(now);
            *bytes = later;
            let Some(word) = self.word.first_chunk() else { return Ok(None) };
            let word = u32::from_be_bytes(*word);
            self.word.clear();
            self.missing = (word & !LAST) as usize;
            self.last = word & LAST != 0;
            let whole = self.message.len() + self.missing;
            // Fragments without bytes that are not the last one carry nothing on: a stream of them would never end.
            if whole > self.max || (self.missing == 0 && !self.last) {
                return Err(TooLarge { bytes: whole, max: self.max });
            }
            // Room as it comes, not as it is announced: an announcement costs its sender nothing.
            self.message.reserve(self.missing.min(64 << 10));
        }
    }

    /// Whether a message has begun to arrive.
    pub fn is_inside(&self) -> bool {
        !self.message.is_empty() || !self.word.is_empty() || self.missing > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut bytes = mark(5).to_vec();
        bytes.extend(b"first");
        bytes.extend([0, 0, 0, 2]);
        bytes.extend(b"se");
        bytes.extend(mark(4));
        bytes.extend(b"cond");
        bytes.extend(mark(0));
        bytes
    }

    #[test]
    fn messages_come_out_however_they_are_cut() {
        let stream = stream();
        for cut in 1..=stream.len() {
            let mut records = Records::new(6);
            let mut found = Vec::new();
            for mut piece in stream.chunks(cut) {
                while let Some(message) = records.feed(&mut piece).unwrap() {
                    found.push(message);
                }
                assert!(piece.is_empty());
            }
            assert_eq!(found, [b"first".to_vec(), b"second".to_vec(), Vec::new()]);
            assert!(!records.is_inside());
        }
    }

    #[test]
    fn what_is_too_large_is_refused_when_it_is_announced() {
        assert!(Records::new(5).feed(&mut &mark(5)[..]).unwrap().is_none());
        assert_eq!(Records::new(5).feed(&mut &mark(6)[..]), Err(TooLarge { bytes: 6, max: 5 }));
        let mut records = Records::new(5);
        assert!(records.feed(&mut &b"\0\0\0\x04abcd"[..]).unwrap().is_none());
        assert_eq!(records.feed(&mut &mark(2)[..]), Err(TooLarge { bytes: 6, max: 5 }));
        assert!(Records::new(5).feed(&mut &[0; 4][..]).is_err());
    }
}
