//! Record marking (RFC 5531 section 11): messages in a stream, each in fragments with a four-byte mark.

use thiserror::Error;

/// Bit of the mark that indicates the last fragment. The other bits are its length.
const LAST: u32 = 0x8000_0000;

/// The record mark is invalid, or the message exceeds the maximum size. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("message of at least {bytes} bytes, maximum {max}")]
pub struct TooLarge {
    /// Size of the message in bytes, at least.
    pub bytes: usize,
    /// Maximum size in bytes.
    pub max: usize,
}

/// Returns the mark of a message with one fragment.
pub fn mark(len: usize) -> [u8; 4] {
    (LAST | len as u32 & !LAST).to_be_bytes()
}

/// Assembles messages from received bytes (RFC 5531 section 11).
#[derive(Debug)]
pub struct Records {
    max: usize,
    message: Vec<u8>,
    /// Received bytes of the next mark.
    mark: Vec<u8>,
    /// Bytes of the current fragment that have not arrived.
    missing: usize,
    last: bool,
}

impl Records {
    /// Creates a reader for messages of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, message: Vec::new(), mark: Vec::with_capacity(4), missing: 0, last: false }
    }

    /// Consumes bytes until a message is complete or no bytes are left.
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
            let (now, later) = bytes.split_at((4 - self.mark.len()).min(bytes.len()));
            self.mark.extend_from_slice(now);
            *bytes = later;
            let Some(word) = self.mark.first_chunk() else { return Ok(None) };
            let word = u32::from_be_bytes(*word);
            self.mark.clear();
            self.missing = (word & !LAST) as usize;
            self.last = word & LAST != 0;
            let size = self.message.len() + self.missing;
            // An empty fragment that is not the last is invalid: a stream of them would never end.
            if size > self.max || (self.missing == 0 && !self.last) {
                return Err(TooLarge { bytes: size, max: self.max });
            }
            // Memory grows as bytes arrive: the announced length costs the sender nothing.
            self.message.reserve(self.missing.min(64 << 10));
        }
    }

    /// Returns whether a message is incomplete.
    pub fn is_inside(&self) -> bool {
        !self.message.is_empty() || !self.mark.is_empty() || self.missing > 0
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
    fn messages_are_independent_of_how_the_stream_is_cut() {
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
    fn a_message_is_refused_when_its_mark_exceeds_the_maximum() {
        assert!(Records::new(5).feed(&mut &mark(5)[..]).unwrap().is_none());
        assert_eq!(Records::new(5).feed(&mut &mark(6)[..]), Err(TooLarge { bytes: 6, max: 5 }));
        let mut records = Records::new(5);
        assert!(records.feed(&mut &b"\0\0\0\x04abcd"[..]).unwrap().is_none());
        assert_eq!(records.feed(&mut &mark(2)[..]), Err(TooLarge { bytes: 6, max: 5 }));
        assert!(Records::new(5).feed(&mut &[0; 4][..]).is_err());
    }
}
