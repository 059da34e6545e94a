//! A set of numbers as bits, in chunks that exist only where a bit is set. A run that covers whole chunks
//! takes no memory of its own: the free space of an empty device is such a run.

use std::sync::Arc;

const WORDS: usize = 512;
const CHUNK: u64 = WORDS as u64 * 64;

/// A sparse bitmap, for what a checker has seen: few bits of a large device, or all of a full one.
pub struct Bits {
    /// Several places may have `full`. No other chunk has two owners.
    chunks: Vec<Option<Arc<[u64; WORDS]>>>,
    full: Arc<[u64; WORDS]>,
    /// Places that have a chunk, and of them those that have `full`.
    kept: usize,
    kept_full: usize,
    len: u64,
}

impl Bits {
    /// A set of numbers below `len`.
    pub fn new(len: u64) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with(len.div_ceil(CHUNK) as usize, || None);
        Self { chunks, full: Arc::new([u64::MAX; WORDS]), kept: 0, kept_full: 0, len }
    }

    /// The memory that it takes.
    pub fn bytes_kept(&self) -> usize {
        (self.kept - self.kept_full + 1) * WORDS * size_of::<u64>() + self.chunks.len() * size_of::<usize>()
    }

    /// Whether no number was added.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Whether a number is in the set.
    pub fn get(&self, bit: u64) -> bool {
        self.chunks
            .get((bit / CHUNK) as usize)
            .and_then(Option::as_ref)
            .is_some_and(|chunk| chunk[(bit % CHUNK / 64) as usize] >> (bit % 64) & 1 == 1)
    }

    /// Adds a run; returns the first number of it that was there. Numbers beyond the end are not kept.
    pub fn set_run(&mut self, start: u64, len: u64) -> Option<u64> {
        let end = start.saturating_add(len).min(self.len);
        let mut first = None;
        let mut bit = start;
        while bit < end {
            let chunk_end = (bit / CHUNK + 1) * CHUNK;
            let stop = end.min(chunk_end);
            if first.is_none() {
                first = self.find(bit, stop - bit, true);
            }
            let place = &mut self.chunks[(bit / CHUNK) as usize];
            let was_full = place.as_ref().is_some_and(|chunk| Arc::ptr_eq(chunk, &self.full));
            self.kept += usize::from(place.is_none());
            if stop - bit == CHUNK {
                self.kept_full += usize::from(!was_full);
                *place = Some(self.full.clone());
            } else if let Some(chunk) = Arc::get_mut(place.get_or_insert_with(|| Arc::new([0; WORDS]))) {
                set_bits(chunk, bit % CHUNK, stop - bit);
            }
            bit = stop;
        }
        first
    }

    /// Returns the first number of a run that is in the set (`wanted`), or that is not.
    pub fn find(&self, start: u64, len: u64, wanted: bool) -> Option<u64> {
        self.find_word(start, len, |bits, bit| if wanted { bits.word(bit) } else { !bits.word(bit) })
    }

    /// Returns the first number of a run that is in this set and not in another one.
    pub fn find_outside(&self, other: &Self, start: u64, len: u64) -> Option<u64> {
        self.find_word(start, len, |bits, bit| bits.word(bit) & !other.word(bit))
    }

    /// The 64 numbers around `bit`.
    fn word(&self, bit: u64) -> u64 {
        let chunk = self.chunks.get((bit / CHUNK) as usize).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[(bit % CHUNK / 64) as usize])
    }

    fn find_word(&self, start: u64, len: u64, word: impl Fn(&Self, u64) -> u64) -> Option<u64> {
        let end = start.saturating_add(len).min(self.len);
        let mut bit = start;
        while bit < end {
            let stop = end.min((bit / 64 + 1) * 64);
            let found = word(self, bit) & mask(bit, stop);
            if found != 0 {
                return Some(bit / 64 * 64 + u64::from(found.trailing_zeros()));
            }
            bit = stop;
        }
        None
    }

    /// Copies `len` bits from `start` on to bytes, the first to the lowest bit.
    pub fn bytes(&self, start: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; len.div_ceil(8) as usize];
        let mut at = 0;
        while at < len {
            let bit = start + at;
            let Some(Some(chunk)) = self.chunks.get((bit / CHUNK) as usize) else {
                at += (CHUNK - bit % CHUNK).min(len - at);
                continue;
            };
            if at.is_multiple_of(8) && bit.is_multiple_of(8) && len - at >= 8 {
                bytes[(at / 8) as usize] = (chunk[(bit % CHUNK / 64) as usize] >> (bit % 64)) as u8;
                at += 8;
            } else {
                bytes[(at / 8) as usize] |=
                    ((chunk[(bit % CHUNK / 64) as usize] >> (bit % 64) & 1) as u8) << (at % 8);
                at += 1;
            }
        }
        bytes
    }
}

/// The bits from `bit` to `stop` of their word.
fn mask(bit: u64, stop: u64) -> u64 {
    (!0 >> (64 - (stop - bit))) << (bit % 64)
}

/// Sets a run of bits of a chunk.
fn set_bits(chunk: &mut [u64; WORDS], start: u64, len: u64) {
    let (mut bit, end) = (start, start + len);
    while bit < end {
        let stop = end.min((bit / 64 + 1) * 64);
        chunk[(bit / 64) as usize] |= mask(bit, stop);
        bit = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_runs() {
        let (mut bits, mut other) = (Bits::new(200_000), Bits::new(200_000));
        bits.set_run(70, 1000);
        other.set_run(70, 999);
        assert_eq!((bits.find(0, 200_000, true), bits.find(70, 1000, false)), (Some(70), None));
        assert_eq!((bits.find(70, 1001, false), bits.find(1070, 100_000, true)), (Some(1070), None));
        assert_eq!(
            (bits.find_outside(&other, 0, 1069), bits.find_outside(&other, 0, 1070)),
            (None, Some(1069))
        );
        assert_eq!((bits.find(199_999, 9, false), bits.find(200_000, 9, false)), (Some(199_999), None));
    }

    #[test]
    fn runs_are_set_and_found() {
        let mut bits = Bits::new(200_000);
        assert_eq!(bits.set_run(60, 70_000), None);
        assert_eq!(bits.set_run(0, 60), None);
        assert_eq!(bits.set_run(0, 61), Some(0));
        assert_eq!(bits.set_run(70_059, 3), Some(70_059));
        assert!(bits.get(70_061) && !bits.get(70_062) && !bits.get(1 << 40));
        assert!(bits.set_run(199_999, 1).is_none() && bits.set_run(199_999, 1).is_some());
        assert_eq!(bits.set_run(199_999, u64::MAX), Some(199_999));
        let mut other = Bits::new(100);
        other.set_run(3, 7);
        assert_eq!(other.bytes(0, 20), [0xF8, 0x03, 0]);
        assert_eq!(other.bytes(3, 9), [0x7F, 0]);
    }

    #[test]
    fn whole_chunks_take_no_memory_of_their_own() {
        let len = 100 * CHUNK + 5;
        let mut bits = Bits::new(len);
        let empty = bits.bytes_kept();
        assert!(bits.is_empty());
        assert_eq!(bits.set_run(0, 50 * CHUNK), None);
        assert!(bits.bytes_kept() == empty && !bits.is_empty());
        // A chunk that has a part of a run is one of its own, until the rest of it is a run.
        assert_eq!(bits.set_run(50 * CHUNK + 3, CHUNK), None);
        assert!(bits.bytes_kept() > empty);
        assert_eq!(bits.set_run(49 * CHUNK, 10 * CHUNK), Some(49 * CHUNK));
        assert_eq!(bits.bytes_kept(), empty);
        assert_eq!(bits.set_run(7, 1), Some(7));
        assert_eq!((bits.find(0, len, false), bits.find(59 * CHUNK, len, true)), (Some(59 * CHUNK), None));
        assert_eq!(bits.set_run(58 * CHUNK, u64::MAX), Some(58 * CHUNK));
        assert_eq!((bits.find(0, len, false), bits.get(len - 1), bits.get(len)), (None, true, false));
        assert_eq!(bits.bytes(5 * CHUNK - 4, 12), [0xFF, 0x0F]);
    }
}
