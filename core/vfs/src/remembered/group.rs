//! The remembered inodes among 64 with neighbouring numbers.
//!
//! A front end remembers millions of inodes. Formats number the inodes of a directory one after the other, so
//! a group is mostly full. Then an inode takes 10 bytes, with its share of the table of groups.
//!
//! Bit `n` of `present` says that inode `n` of the group is remembered. `words` has one word for each of
//! them, in the order of their numbers, and after these the directories in which they were last found, each
//! once. A word has the generation in its low 32 bits, then the references in 26 bits, then the place of the
//! directory in 6 bits. Two words need no allocation: that is a group with one inode.

use crate::types::Ino;
use smallvec::SmallVec;

/// Inodes of a group. Only one under shuttle: a schedule has few inodes, and they must be in several shards.
pub(super) const INODES: u64 = if cfg!(shuttle) { 1 } else { 64 };
const REFERENCES_SHIFT: u32 = 32;
const PLACE_SHIFT: u32 = 58;
/// The largest count of references. An inode that reaches it is never forgotten.
pub(super) const REFERENCES_MAX: u32 = (1 << (PLACE_SHIFT - REFERENCES_SHIFT)) - 1;
/// Memory of a group in its table, with its share of the table's free slots.
const SLOT_BYTES: u64 = 60;
/// What the allocator adds to an allocation, on average.
const ALLOCATION_BYTES: u64 = 16;

/// What is kept of a remembered inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// At most [`REFERENCES_MAX`].
    pub(super) references: u32,
    pub(super) generation: u32,
    /// The directory in which it was last found. A hint.
    pub(super) seen_in: Ino,
}

#[derive(Debug, Default)]
pub(super) struct Group {
    present: u64,
    words: SmallVec<[u64; 2]>,
}

fn word(entry: Entry, place: usize) -> u64 {
    u64::from(entry.generation)
        | u64::from(entry.references.min(REFERENCES_MAX)) << REFERENCES_SHIFT
        | (place as u64) << PLACE_SHIFT
}

fn place_of(word: u64) -> usize {
    (word >> PLACE_SHIFT) as usize
}

impl Group {
    pub(super) fn len(&self) -> usize {
        self.present.count_ones() as usize
    }

    /// Whether inode `nth` of the group is remembered.
    pub(super) fn contains(&self, nth: u64) -> bool {
        self.present & 1 << nth != 0
    }

    /// The places of the remembered inodes within the group.
    pub(super) fn members(&self) -> impl Iterator<Item = u64> + use<> {
        let present = self.present;
        (0..INODES).filter(move |nth| present & 1 << nth != 0)
    }

    /// Memory of the group in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let allocated = self.words.capacity() as u64 * 8 + ALLOCATION_BYTES;
        SLOT_BYTES + if self.words.spilled() { allocated } else { 0 }
    }

    /// The index of the word of inode `nth`, or where it would be.
    fn index(&self, nth: u64) -> usize {
        (self.present & ((1 << nth) - 1)).count_ones() as usize
    }

    fn directories(&self) -> &[u64] {
        &self.words[self.len()..]
    }

    pub(super) fn get(&self, nth: u64) -> Option<Entry> {
        self.contains(nth).then(|| {
            let word = self.words[self.index(nth)];
            Entry {
                references: (word >> REFERENCES_SHIFT) as u32 & REFERENCES_MAX,
                generation: word as u32,
                seen_in: Ino(self.directories()[place_of(word)]),
            }
        })
    }

    /// Adds an entry or replaces it.
    pub(super) fn set(&mut self, nth: u64, entry: Entry) {
        if self.get(nth).is_some_and(|old| old.seen_in == entry.seen_in) {
            let index = self.index(nth);
            self.words[index] = word(entry, place_of(self.words[index]));
            return;
        }
        // Removes a directory that no other inode names, so that there are never more than inodes.
        self.remove(nth);
        let known = self.directories().iter().position(|dir| *dir == entry.seen_in.0);
        let place = known.unwrap_or_else(|| {
            self.insert(self.words.len(), entry.seen_in.0);
            self.directories().len() - 1
        });
        self.insert(self.index(nth), word(entry, place));
        self.present |= 1 << nth;
    }

    /// Inserts a word. Grows by a quarter: twice as much would be wasted in full groups.
    fn insert(&mut self, index: usize, word: u64) {
        if self.words.len() == self.words.capacity() {
            self.words.reserve_exact((self.words.len() / 4).max(2));
        }
        self.words.insert(index, word);
    }

    /// Removes an entry, if there is one.
    pub(super) fn remove(&mut self, nth: u64) {
        if !self.contains(nth) {
            return;
        }
        let place = place_of(self.words.remove(self.index(nth)));
        self.present &= !(1 << nth);
        let len = self.len();
        let entries = &mut self.words[..len];
        if entries.iter().all(|word| place_of(*word) != place) {
            // The directories behind it move down by one.
            for word in entries.iter_mut().filter(|word| place_of(**word) > place) {
                *word -= 1 << PLACE_SHIFT;
            }
            self.words.remove(len + place);
        }
        if self.words.spilled() && self.words.len() <= self.words.capacity() / 2 {
            self.words.shrink_to_fit();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entry(references: u32, generation: u32, seen_in: u64) -> Entry {
        Entry { references, generation, seen_in: Ino(seen_in) }
    }

    #[test]
    fn a_group_keeps_what_it_was_given() {
        let mut group = Group::default();
        let mut expected = BTreeMap::new();
        // A generator of numbers, so that each run takes the same steps.
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..100_000 {
            let nth = next(INODES);
            // Phases with few directories, and with one for each inode.
            let dirs = if step / 1000 % 2 == 0 { 3 } else { 1000 };
            // Phases in which the group fills, and in which it empties.
            if next(10) < if step / 5000 % 2 == 0 { 2 } else { 8 } {
                group.remove(nth);
                expected.remove(&nth);
            } else {
                let entry = entry(next(1 << 26) as u32, next(1 << 32) as u32, next(dirs) << 40);
                group.set(nth, entry);
                expected.insert(nth, entry);
            }
            assert_eq!(group.len(), expected.len());
            assert!(group.members().eq(expected.keys().copied()));
            assert!((0..INODES).all(|nth| group.get(nth) == expected.get(&nth).copied()), "step {step}");
            let dirs: std::collections::BTreeSet<_> =
                expected.values().map(|entry| entry.seen_in.0).collect();
            assert_eq!(group.directories().len(), dirs.len());
        }
    }

    #[test]
    fn all_inodes_can_be_in_different_directories() {
        let mut group = Group::default();
        for round in 0..3 {
            for nth in 0..INODES {
                group.set(nth, entry(1, 2, nth + round));
            }
        }
        assert!((0..INODES).all(|nth| group.get(nth) == Some(entry(1, 2, nth + 2))));
    }

    #[test]
    fn an_inode_alone_takes_at_most_64_bytes_and_one_of_many_11() {
        assert!(size_of::<(u64, Group)>() <= 40);
        let mut group = Group::default();
        group.set(5, entry(1, 2, 3));
        assert!(group.bytes() <= 64);
        (0..INODES).for_each(|nth| group.set(nth, entry(1, nth as u32, 3)));
        assert!(group.bytes() <= 11 * INODES, "{} bytes", group.bytes());
        (0..INODES).filter(|nth| *nth != 9).for_each(|nth| group.remove(nth));
        assert!(group.bytes() <= 64);
        assert_eq!(group.get(9), Some(entry(1, 9, 3)));
    }

    #[test]
    fn references_stay_at_their_largest_count() {
        let mut group = Group::default();
        group.set(0, entry(u32::MAX, 2, 3));
        assert_eq!(group.get(0), Some(entry(REFERENCES_MAX, 2, 3)));
    }
}
