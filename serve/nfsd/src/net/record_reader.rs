//! Reads RPC records from a stream, and charges their bytes to the budget as they arrive.
//!
//! `ivers_nfs4::record` does this for a client. A server needs two things more. It reads large fragments from
//! the socket directly into the message. And if a message exceeds the limits, it keeps only the head, so that
//! the stream stays in step and the caller gets an error.

use std::sync::Arc;
use std::time::Instant;

use super::budget::{Account, Charge};

const LAST: u32 = 0x8000_0000;
/// Bytes kept of a message that exceeds the limits: enough to answer it.
const HEAD_BYTES: usize = 2048;
/// If less than this is missing of a fragment, it is read together with the bytes after it.
const MIN_DIRECT_BYTES: usize = 32 << 10;
/// Buffer size before any byte of a fragment has arrived. The announced length costs the sender nothing.
const INITIAL_CAPACITY: usize = 64 << 10;

/// The record mark is invalid or the record exceeds the maximum size. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidRecord;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// The bytes of the message, or the first of them.
    pub bytes: Vec<u8>,
    /// The budget's charge, held until the message is answered.
    pub charge: Charge,
    /// Whether the message is complete.
    pub is_complete: bool,
}

/// Assembles messages from the fragments of records (RFC 5531 section 11).
#[derive(Debug)]
pub struct RecordReader {
    account: Arc<Account>,
    record_bytes_max: usize,
    bytes: Vec<u8>,
    charge: Option<Charge>,
    /// Bytes of the current message that have arrived, kept or discarded.
    arrived_bytes: usize,
    is_complete: bool,
    /// The record mark, and how many of its bytes have arrived.
    mark: [u8; 4],
    mark_len: usize,
    /// Bytes of the current fragment that have not arrived.
    missing: usize,
    is_last: bool,
    started: Option<Instant>,
}

impl RecordReader {
    /// Creates a reader for one connection.
    pub fn new(account: Arc<Account>, record_bytes_max: usize) -> Self {
        Self {
            account,
            record_bytes_max,
            bytes: Vec::new(),
            charge: None,
            arrived_bytes: 0,
            is_complete: true,
            mark: [0; 4],
            mark_len: 0,
            missing: 0,
            is_last: false,
            started: None,
        }
    }

    /// Returns when the current, incomplete message started to arrive.
    pub fn started(&self) -> Option<Instant> {
        self.started
    }

    /// Returns a buffer to read the next bytes into, without a copy. All of its spare capacity belongs to the
    /// current fragment.
    pub fn read_buffer(&mut self) -> Option<&mut Vec<u8>> {
        if self.missing < MIN_DIRECT_BYTES || !self.is_complete {
            return None;
        }
        if self.bytes.capacity() == self.bytes.len() {
            let room = self.capacity();
            self.bytes.reserve_exact(room);
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        (1..=self.missing).contains(&spare).then_some(&mut self.bytes)
    }

    /// Tells that `bytes` bytes were read into the buffer of [`Self::read_buffer`].
    pub fn bytes_read(&mut self, bytes: usize) -> Option<Message> {
        self.count_arrived(bytes);
        self.complete()
    }

    /// Consumes bytes until a message is complete or no bytes are left.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, InvalidRecord> {
        loop {
            if self.missing > 0 {
                let (now, later) = bytes.split_at(self.missing.min(bytes.len()));
                *bytes = later;
                if self.is_complete {
                    if self.bytes.capacity() - self.bytes.len() < now.len() {
                        let room = self.capacity();
                        self.bytes.reserve_exact(room.max(now.len()));
                    }
                    self.bytes.extend_from_slice(now);
                }
                self.count_arrived(now.len());
                if self.missing > 0 {
                    return Ok(None);
                }
            }
            if let Some(message) = self.complete() {
                return Ok(Some(message));
            }
            let (now, later) = bytes.split_at((4 - self.mark_len).min(bytes.len()));
            if now.is_empty() {
                return Ok(None);
            }
            self.started.get_or_insert_with(Instant::now);
            self.mark[self.mark_len..self.mark_len + now.len()].copy_from_slice(now);
            self.mark_len += now.len();
            *bytes = later;
            if self.mark_len < 4 {
                return Ok(None);
            }
            self.mark_len = 0;
            let word = u32::from_be_bytes(self.mark);
            (self.missing, self.is_last) = ((word & !LAST) as usize, word & LAST != 0);
            // An empty fragment that is not the last is invalid: a stream of them would never end.
            if self.arrived_bytes + self.missing > self.record_bytes_max
                || (self.missing == 0 && !self.is_last)
            {
                return Err(InvalidRecord);
            }
        }
    }

    /// Returns a small size before any byte has arrived, then the is_complete fragment: nothing is copied
    /// more than once.
    fn capacity(&self) -> usize {
        if self.bytes.is_empty() { self.missing.min(INITIAL_CAPACITY) } else { self.missing }
    }

    fn count_arrived(&mut self, bytes: usize) {
        self.missing -= bytes;
        self.arrived_bytes += bytes;
        if !self.is_complete {
            return;
        }
        let room = match &mut self.charge {
            Some(charge) => charge.grow(bytes),
            empty => {
                *empty = self.account.charge(bytes);
                empty.is_some()
            }
        };
        if !room {
            self.is_complete = false;
            self.bytes.truncate(HEAD_BYTES);
            self.bytes.shrink_to_fit();
            // The head is small and answered at once, so it is charged regardless of the limits.
            let mut charge = self.account.empty_charge();
            charge.grow_anyway(self.bytes.len());
            self.charge = Some(charge);
        }
    }

    fn complete(&mut self) -> Option<Message> {
        if !self.is_last || self.missing > 0 {
            return None;
        }
        self.is_last = false;
        self.started = None;
        self.arrived_bytes = 0;
        Some(Message {
            bytes: std::mem::take(&mut self.bytes),
            charge: self.charge.take().unwrap_or_else(|| self.account.empty_charge()),
            is_complete: std::mem::replace(&mut self.is_complete, true),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ivers_nfs4::record::mark;
    use proptest::prelude::*;

    use super::super::budget::{Bounds, Budget};
    use super::*;

    fn reader(record_bytes_max: usize, connection_bytes: usize) -> (Arc<Budget>, RecordReader) {
        let budget = Budget::new(Bounds {
            connection_bytes,
            client_bytes: 1 << 30,
            total_bytes: 1 << 30,
            client_connections: 1,
            total_connections: 1,
        });
        let account = budget.open(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap();
        (budget, RecordReader::new(account, record_bytes_max))
    }

    /// Feeds the stream in pieces. Large fragments go through `read_buffer`, as from a socket.
    fn collect(
        reader: &mut RecordReader,
        stream: &[u8],
        piece: usize,
    ) -> Result<Vec<Message>, InvalidRecord> {
        let (mut at, mut found) = (0, Vec::new());
        while at < stream.len() {
            if let Some(room) = reader.read_buffer() {
                let len = (room.capacity() - room.len()).min(stream.len() - at).min(piece);
                room.extend_from_slice(&stream[at..at + len]);
                at += len;
                found.extend(reader.bytes_read(len));
                continue;
            }
            let mut now = &stream[at..stream.len().min(at + piece)];
            at += now.len();
            while let Some(message) = reader.feed(&mut now)? {
                found.push(message);
            }
            assert!(now.is_empty());
        }
        Ok(found)
    }

    fn stream_of(message: &[u8], fragments: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut rest = message;
        for _ in 1..fragments {
            let (now, later) = rest.split_at(rest.len() / 2);
            if !now.is_empty() {
                stream.extend((now.len() as u32).to_be_bytes());
                stream.extend(now);
            }
            rest = later;
        }
        stream.extend(mark(rest.len()));
        stream.extend(rest);
        stream
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn messages_are_independent_of_how_the_stream_is_cut(
            lens in prop::collection::vec(prop_oneof![0..40usize, 0..300_000usize], 1..6),
            fragments in 1..4usize,
            piece in prop_oneof![1..8usize, 1000..100_000usize],
        ) {
            let messages: Vec<Vec<u8>> =
                lens.iter().map(|&len| (0..len).map(|at| (at * 7 % 251) as u8).collect()).collect();
            let stream: Vec<u8> =
                messages.iter().flat_map(|message| stream_of(message, fragments)).collect();
            let (budget, mut reader) = reader(300_000, 1 << 30);
            let found = collect(&mut reader, &stream, piece).unwrap();
            prop_assert!(found.iter().all(|message| message.is_complete));
            prop_assert!(budget.bytes() >= lens.iter().sum());
            let found: Vec<Vec<u8>> = found.into_iter().map(|message| message.bytes).collect();
            prop_assert_eq!(found, messages);
            prop_assert_eq!(reader.started(), None);
            prop_assert_eq!(budget.bytes(), 0);
        }

        #[test]
        fn any_bytes_are_safe(stream in prop::collection::vec(any::<u8>(), 0..2000), piece in 1..64usize) {
            let (_, mut reader) = reader(1000, 500);
            let _ = collect(&mut reader, &stream, piece);
            assert!(reader.bytes.capacity() <= 1000);
        }
    }

    #[test]
    fn a_message_over_the_limit_keeps_its_head() {
        let (budget, mut reader) = reader(1 << 20, 50_000);
        let mut stream = stream_of(&[1; 200_000], 2);
        stream.extend(stream_of(&[2; 100], 1));
        let found = collect(&mut reader, &stream, 10_000).unwrap();
        assert!(!found[0].is_complete && found[0].bytes.len() <= HEAD_BYTES && found[0].bytes.len() > 100);
        assert!(found[1].is_complete && found[1].bytes == [2; 100]);
        assert!(budget.bytes() < 5_000);
    }

    #[test]
    fn an_announced_length_allocates_little() {
        let (budget, mut reader) = reader(1 << 20, 1 << 30);
        assert!(reader.feed(&mut &mark(1 << 20)[..]).unwrap().is_none());
        assert!(reader.read_buffer().unwrap().capacity() <= INITIAL_CAPACITY);
        assert!(budget.bytes() < 1000);
        assert!(reader.started().is_some());
        let (_, mut reader) = self::reader(1 << 20, 1 << 30);
        assert_eq!(reader.feed(&mut &mark((1 << 20) + 1)[..]).unwrap_err(), InvalidRecord);
        let (_, mut reader) = self::reader(1 << 20, 1 << 30);
        assert_eq!(reader.feed(&mut &[0; 4][..]).unwrap_err(), InvalidRecord);
    }
}
