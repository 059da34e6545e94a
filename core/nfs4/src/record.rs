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

/// If fewer bytes of a fragment are missing, they are read together with the bytes after them.
const MIN_DIRECT_BYTES: usize = 32 << 10;
/// Memory for a message of which no byte has arrived: a sender can announce any length at no cost.
const INITIAL_CAPACITY: usize = 64 << 10;

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

    /// Returns a buffer to read the next bytes into, without a copy. All of its spare capacity belongs to the
    /// current fragment. Call [`Records::bytes_read`] next.
    pub fn read_buffer(&mut self) -> Option<&mut Vec<u8>> {
        if self.missing < MIN_DIRECT_BYTES {
            return None;
        }
        self.reserve(1);
        let spare = self.message.capacity() - self.message.len();
        (1..=self.missing).contains(&spare).then_some(&mut self.message)
    }

    /// Notes that this many bytes were read into the buffer of [`Records::read_buffer`]. Returns the message
    /// if it is complete.
    pub fn bytes_read(&mut self, bytes: usize) -> Option<Vec<u8>> {
        self.missing -= bytes;
        self.complete()
    }

    /// Makes room for this many bytes of the fragment. The first room may be small. The next one is for the
    /// whole fragment, so that no byte is moved more than once.
    fn reserve(&mut self, bytes: usize) {
        if self.message.capacity() - self.message.len() < bytes {
            let room =
                if self.message.is_empty() { self.missing.min(INITIAL_CAPACITY) } else { self.missing };
            self.message.reserve_exact(room.max(bytes));
        }
    }

    fn complete(&mut self) -> Option<Vec<u8>> {
        let is_complete = self.missing == 0 && std::mem::take(&mut self.last);
        is_complete.then(|| std::mem::take(&mut self.message))
    }

    /// Consumes bytes until a message is complete or no bytes are left.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, TooLarge> {
        loop {
            if self.missing > 0 {
                let (now, later) = bytes.split_at(self.missing.min(bytes.len()));
                self.reserve(now.len());
                self.message.extend_from_slice(now);
                self.missing -= now.len();
                *bytes = later;
                if self.missing > 0 {
                    return Ok(None);
                }
            }
            if let Some(message) = self.complete() {
                return Ok(Some(message));
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
    fn large_fragments_are_read_into_the_message() {
        let long: Vec<u8> = (0..300_000).map(|at| (at * 7 % 251) as u8).collect();
        let mut stream = (200_000_u32).to_be_bytes().to_vec();
        stream.extend(&long[..200_000]);
        stream.extend(mark(100_000));
        stream.extend(&long[200_000..]);
        stream.extend(mark(5));
        stream.extend(b"short");
        for piece in [1000, 40_000, 70_000, 1 << 20] {
            let (mut records, mut rest) = (Records::new(300_000), &stream[..]);
            let (mut found, mut direct) = (Vec::new(), 0);
            while !rest.is_empty() {
                let message = if let Some(room) = records.read_buffer() {
                    let len = (room.capacity() - room.len()).min(rest.len()).min(piece);
                    room.extend_from_slice(&rest[..len]);
                    (rest, direct) = (&rest[len..], direct + len);
                    records.bytes_read(len)
                } else {
                    // As from a socket: a few bytes at a time.
                    let (mut now, later) = rest.split_at(rest.len().min(4));
                    rest = later;
                    let message = records.feed(&mut now).unwrap();
                    assert!(now.is_empty());
                    message
                };
                found.extend(message);
            }
            assert!(found == [long.clone(), b"short".to_vec()], "{piece}");
            assert!(direct > 230_000, "{piece}: {direct}");
        }
        let mut records = Records::new(1 << 30);
        records.feed(&mut &mark(1 << 30)[..]).unwrap();
        assert!(records.read_buffer().unwrap().capacity() <= INITIAL_CAPACITY, "nothing has arrived");
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
