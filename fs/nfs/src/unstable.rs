//! Bytes that were written and that the server may lose until COMMIT (RFC 8881, 18.3, 18.32).

use std::collections::BTreeMap;
use std::ops::Range;

use ivers_nfs4::types::Verifier;

#[derive(Debug, Clone, Copy)]
struct Write {
    end: u64,
    /// From the reply to WRITE.
    verifier: Verifier,
    /// Rises with each write.
    id: u64,
}

/// The unstable writes of a file, by offset. No two overlap: a newer one takes the place of older bytes.
#[derive(Debug, Default)]
pub struct Unstable {
    writes: BTreeMap<u64, Write>,
    next: u64,
}

/// What was written before a COMMIT was sent.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot(u64);

impl Unstable {
    /// Notes a write. Without a verifier the server has made it durable.
    pub fn note(&mut self, range: Range<u64>, verifier: Option<Verifier>) {
        self.forget(range.clone());
        let Some(verifier) = verifier else { return };
        let id = self.next;
        self.next += 1;
        if let Some((_, before)) = self.writes.range_mut(..range.start).next_back()
            && (before.end, before.verifier) == (range.start, verifier)
        {
            // The older part is committed once more than needed.
            (before.end, before.id) = (range.end, id);
            return;
        }
        self.writes.insert(range.start, Write { end: range.end, verifier, id });
    }

    /// These bytes were written again, or are gone.
    pub fn forget(&mut self, range: Range<u64>) {
        let before = self.writes.range(..range.start).next_back().map(|(start, write)| (*start, *write));
        let inside: Vec<_> =
            self.writes.range(range.clone()).map(|(start, write)| (*start, *write)).collect();
        for (start, write) in before.into_iter().filter(|(_, write)| write.end > range.start).chain(inside) {
            self.writes.remove(&start);
            if start < range.start {
                self.writes.insert(start, Write { end: range.start, ..write });
            }
            if write.end > range.end {
                self.writes.insert(range.end, write);
            }
        }
    }

    /// Returns whether nothing can be lost.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns what a COMMIT that is sent now commits.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.next)
    }

    /// A COMMIT succeeded with this verifier. Returns the ranges that the server lost. They stay until they
    /// are written again: a page may be on its way back to the cache, which then learns of them next time.
    pub fn committed(&mut self, Snapshot(next): Snapshot, verifier: Verifier) -> Vec<Range<u64>> {
        self.writes.retain(|_, write| write.id >= next || write.verifier != verifier);
        self.all(Snapshot(next))
    }

    /// Returns the ranges that a COMMIT was sent for.
    pub fn all(&self, Snapshot(next): Snapshot) -> Vec<Range<u64>> {
        let sent = self.writes.iter().filter(|(_, write)| write.id < next);
        sent.map(|(start, write)| *start..write.end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Option<Verifier> = Some([1; 8]);
    const TWO: Option<Verifier> = Some([2; 8]);

    fn pairs(ranges: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        ranges.into_iter().map(|range| (range.start, range.end)).collect()
    }

    fn ranges(unstable: &Unstable) -> Vec<(u64, u64)> {
        pairs(unstable.all(Snapshot(u64::MAX)))
    }

    #[test]
    fn a_newer_write_takes_the_place_of_older_bytes() {
        let mut unstable = Unstable::default();
        unstable.note(0..10, ONE);
        unstable.note(10..20, ONE);
        assert_eq!(ranges(&unstable), [(0, 20)], "neighbours are one");
        unstable.note(5..8, TWO);
        assert_eq!(ranges(&unstable), [(0, 5), (5, 8), (8, 20)]);
        unstable.note(4..12, None);
        assert_eq!(ranges(&unstable), [(0, 4), (12, 20)], "durable bytes are not listed");
        unstable.forget(2..u64::MAX);
        assert_eq!(ranges(&unstable), [(0, 2)]);
        unstable.forget(0..2);
        assert!(unstable.is_empty());
    }

    #[test]
    fn a_commit_covers_what_was_written_before_it_was_sent() {
        let mut unstable = Unstable::default();
        unstable.note(0..10, ONE);
        let sent = unstable.snapshot();
        unstable.note(10..20, ONE);
        assert!(unstable.committed(sent, [1; 8]).is_empty());
        assert_eq!(ranges(&unstable), [(0, 20)], "the range has grown since");
        let sent = unstable.snapshot();
        unstable.note(30..40, ONE);
        assert!(unstable.committed(sent, [1; 8]).is_empty());
        assert_eq!(ranges(&unstable), [(30, 40)]);
    }

    #[test]
    fn another_verifier_means_lost_until_written_again() {
        let mut unstable = Unstable::default();
        unstable.note(0..10, ONE);
        unstable.note(20..30, TWO);
        let lost = unstable.committed(unstable.snapshot(), [2; 8]);
        assert_eq!(pairs(lost), [(0, 10)]);
        let lost = unstable.committed(unstable.snapshot(), [2; 8]);
        assert_eq!(pairs(lost), [(0, 10)], "not written again yet");
        unstable.note(0..10, TWO);
        assert!(unstable.committed(unstable.snapshot(), [2; 8]).is_empty() && unstable.is_empty());
    }
}
