//! A set of numbers as bits, in chunks that exist only where a bit is set.

const WORDS: usize = 512;
const CHUNK: u64 = WORDS as u64 * 64;

/// A sparse bitmap, for what a checker has seen: few bits of a large device, or all of a full one.
pub struct Bits {
    chunks: Vec<Option<Box<[u64; WORDS]>>>,
    /// Chunks that exist.
    kept: usize,
    len: u64,
}

impl Bits {
    /// A set of numbers below `len`.
    pub fn new(len: u64) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with(len.div_ceil(CHUNK) as usize, || None);
        Self { chunks, kept: 0, len }
    }

    /// The memory that it takes.
    pub fn bytes_kept(&self) -> usize {
        self.kept * WORDS * size_of::<u64>() + self.chunks.len() * size_of::<usize>()
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
            let stop = end.min((bit / 64 + 1) * 64);
            let mask = (!0u64 >> (64 - (stop - bit))) << (bit % 64);
            let kept = &mut self.kept;
            let chunk = self.chunks[(bit / CHUNK) as usize].get_or_insert_with(|| {
                *kept += 1;
                Box::new([0; WORDS])
            });
            let word = &mut chunk[(bit % CHUNK / 64) as usize];
            if *word & mask != 0 && first.is_none() {
                first = Some(bit / 64 * 64 + u64::from((*word & mask).trailing_zeros()));
            }
            *word |= mask;
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
            let mask = (!0u64 >> (64 - (stop - bit))) << (bit % 64);
            let found = word(self, bit) & mask;
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
}
