//! Messages out of a stream, with what they cost booked as it arrives.
//!
//! The records of `ivers_nfs4` do the same for a client. A server wants two things more: large fragments are read from the socket to where they stay, and
//! a message for which there is no room loses all but its head, so that the rest of the stream still makes sense and the caller can be told to come again.

use std::sync::Arc;
use std::time::Instant;

use super::budget::{Account, Charge};

const LAST: u32 = 0x8000_0000;
/// What is kept of a message that there is no room for: enough to answer it.
const HEAD_BYTES: usize = 2048;
/// Fragments that lack less are read together with what comes behind them.
const DIRECT_BYTES: usize = 32 << 10;
/// Room before anything of a fragment has come; an announcement costs its sender nothing.
const FIRST_ROOM_BYTES: usize = 64 << 10;

/// The stream makes no sense, or a message is larger than any may be: the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its bytes, or the first of them.
    pub bytes: Vec<u8>,
    /// What it holds until it is answered.
    pub charge: Charge,
    /// Whether that is all of it.
    pub whole: bool,
}

/// Puts messages together.
#[derive(Debug)]
pub struct Assembler {
    account: Arc<Account>,
    record_bytes_max: usize,
    bytes: Vec<u8>,
    charge: Option<Charge>,
    /// Bytes of this message that have come, kept or not.
    seen: usize,
    whole: bool,
    word: [u8; 4],
    word_len: usize,
    missing: usize,
    last: bool,
    begun: Option<Instant>,
}

impl Assembler {
    /// For a connection.
    pub fn new(account: Arc<Account>, record_bytes_max: usize) -> Self {
        Self {
            account,
            record_bytes_max,
            bytes: Vec::new(),
            charge: None,
            seen: 0,
            whole: true,
            word: [0; 4],
            word_len: 0,
            missing: 0,
            last: false,
            begun: None,
        }
    }

    /// Since when a message has been arriving.
    pub fn begun(&self) -> Option<Instant> {
        self.begun
    }

    /// Where the next bytes may be read to without a copy: the spare room of this, all of which belongs to the fragment that is under way.
    pub fn direct(&mut self) -> Option<&mut Vec<u8>> {
        if self.missing < DIRECT_BYTES || !self.whole {
            return None;
        }
        if self.bytes.capacity() == self.bytes.len() {
            let room = self.room();
            self.bytes.reserve_exact(room);
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        (1..=self.missing).contains(&spare).then_some(&mut self.bytes)
    }

    /// So many bytes were read to where [`Self::direct`] said.
    pub fn took(&mut self, bytes: usize) -> Option<Message> {
        self.arrived(bytes);
        self.complete()
    }

    /// Take bytes off the front, until a message is complete or nothing is left.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, Broken> {
        loop {
            if self.missing > 0 {
                let (now, later) = bytes.split_at(self.missing.min(bytes.len()));
                *bytes = later;
                if self.whole {
                    if self.bytes.capacity() - self.bytes.len() < now.len() {
                        let room = self.room();
                        self.bytes.reserve_exact(room.max(now.len()));
                    }
                    self.bytes.extend_from_slice(now);
                }
                self.arrived(now.len());
                if self.missing > 0 {
                    return Ok(None);
                }
            }
            if let Some(message) = self.complete() {
                return Ok(Some(message));
            }
            let (now, later) = bytes.split_at((4 - self.word_len).min(bytes.len()));
            if now.is_empty() {
                return Ok(None);
            }
            self.begun.get_or_insert_with(Instant::now);
            self.word[self.word_len..self.word_len + now.len()].copy_from_slice(now);
            self.word_len += now.len();
            *bytes = later;
            if self.word_len < 4 {
                return Ok(None);
            }
            self.word_len = 0;
            let word = u32::from_be_bytes(self.word);
            (self.missing, self.last) = ((word & !LAST) as usize, word & LAST != 0);
            // A fragment of nothing that is not the last carries nothing on: a stream of them would never end.
            if self.seen + self.missing > self.record_bytes_max || (self.missing == 0 && !self.last) {
                return Err(Broken);
            }
        }
    }

    /// Little before anything has come, then all of the fragment: nothing is copied more than once.
    fn room(&self) -> usize {
        if self.bytes.is_empty() { self.missing.min(FIRST_ROOM_BYTES) } else { self.missing }
    }

    fn arrived(&mut self, bytes: usize) {
        self.missing -= bytes;
        self.seen += bytes;
        if !self.whole {
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
            self.whole = false;
            self.bytes.truncate(HEAD_BYTES);
            self.bytes.shrink_to_fit();
            // The head is small and is answered at once: it is held without asking.
            let mut charge = self.account.nothing();
            charge.grow_anyway(self.bytes.len());
            self.charge = Some(charge);
        }
    }

    fn complete(&mut self) -> Option<Message> {
        if !self.last || self.missing > 0 {
            return None;
        }
        self.last = false;
        self.begun = None;
        self.seen = 0;
        Some(Message {
            bytes: std::mem::take(&mut self.bytes),
            charge: self.charge.take().unwrap_or_else(|| self.account.nothing()),
            whole: std::mem::replace(&mut self.whole, true),
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

    fn assembler(record_bytes_max: usize, connection_bytes: usize) -> (Arc<Budget>, Assembler) {
        let budget = Budget::new(Bounds {
            connection_bytes,
            client_bytes: 1 << 30,
            total_bytes: 1 << 30,
            client_connections: 1,
            total_connections: 1,
        });
        let account = budget.open(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST).into()).unwrap();
        (budget, Assembler::new(account, record_bytes_max))
    }

    /// Feed in pieces, large fragments the direct way as a socket would.
    fn collect(assembler: &mut Assembler, stream: &[u8], piece: usize) -> Result<Vec<Message>, Broken> {
        let (mut at, mut found) = (0, Vec::new());
        while at < stream.len() {
            if let Some(room) = assembler.direct() {
                let len = (room.capacity() - room.len()).min(stream.len() - at).min(piece);
                room.extend_from_slice(&stream[at..at + len]);
                at += len;
                found.extend(assembler.took(len));
                continue;
            }
            let mut now = &stream[at..stream.len().min(at + piece)];
            at += now.len();
            while let Some(message) = assembler.feed(&mut now)? {
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
        fn messages_come_out_however_they_are_cut(
            lens in prop::collection::vec(prop_oneof![0..40usize, 0..300_000usize], 1..6),
            fragments in 1..4usize,
            piece in prop_oneof![1..8usize, 1000..100_000usize],
        ) {
            let messages: Vec<Vec<u8>> =
                lens.iter().map(|&len| (0..len).map(|at| (at * 7 % 251) as u8).collect()).collect();
            let stream: Vec<u8> =
                messages.iter().flat_map(|message| stream_of(message, fragments)).collect();
            let (budget, mut assembler) = assembler(300_000, 1 << 30);
            let found = collect(&mut assembler, &stream, piece).unwrap();
            prop_assert!(found.iter().all(|message| message.whole));
            prop_assert!(budget.bytes() >= lens.iter().sum());
            let found: Vec<Vec<u8>> = found.into_iter().map(|message| message.bytes).collect();
            prop_assert_eq!(found, messages);
            prop_assert_eq!(assembler.begun(), None);
            prop_assert_eq!(budget.bytes(), 0);
        }

        #[test]
        fn any_bytes_are_harmless(stream in prop::collection::vec(any::<u8>(), 0..2000), piece in 1..64usize) {
            let (_, mut assembler) = assembler(1000, 500);
            let _ = collect(&mut assembler, &stream, piece);
            assert!(assembler.bytes.capacity() <= 1000);
        }
    }

    #[test]
    fn what_there_is_no_room_for_keeps_its_head() {
        let (budget, mut assembler) = assembler(1 << 20, 50_000);
        let mut stream = stream_of(&[1; 200_000], 2);
        stream.extend(stream_of(&[2; 100], 1));
        let found = collect(&mut assembler, &stream, 10_000).unwrap();
        assert!(!found[0].whole && found[0].bytes.len() <= HEAD_BYTES && found[0].bytes.len() > 100);
        assert!(found[1].whole && found[1].bytes == [2; 100]);
        assert!(budget.bytes() < 5_000);
    }

    #[test]
    fn an_announcement_costs_little() {
        let (budget, mut assembler) = assembler(1 << 20, 1 << 30);
        assert!(assembler.feed(&mut &mark(1 << 20)[..]).unwrap().is_none());
        assert!(assembler.direct().unwrap().capacity() <= FIRST_ROOM_BYTES);
        assert!(budget.bytes() < 1000);
        assert!(assembler.begun().is_some());
        let (_, mut assembler) = self::assembler(1 << 20, 1 << 30);
        assert_eq!(assembler.feed(&mut &mark((1 << 20) + 1)[..]).unwrap_err(), Broken);
        let (_, mut assembler) = self::assembler(1 << 20, 1 << 30);
        assert_eq!(assembler.feed(&mut &[0; 4][..]).unwrap_err(), Broken);
    }
}
