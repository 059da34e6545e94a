//! Names of files with several names whose nodes were dropped.
//!
//! A node that is made again finds one name through the directory where the file was last seen. That is not
//! enough for a file with hard links: this name may be removed while the file is open for writing. Then a
//! query has no path by which it can have the file flushed, and must call it changed.

use std::collections::{HashMap, HashSet, VecDeque};

/// A name in a directory, by the number of the directory's node.
pub(crate) type Place = (u64, Box<[u8]>);

/// Names kept for one file, enough for a file with some links. A removed name does not say which file it had.
/// One kept name must still exist: otherwise a file that is open for writing is not found, and counts as
/// changed at each query.
pub(crate) const PLACES_MAX: usize = 16;

/// Names that are kept in each shard of the nodes. The oldest go first.
const KEPT_MAX: usize = 1024;

/// The names of one shard's files, by node number.
#[derive(Default)]
pub(crate) struct KeptPlaces {
    places: HashMap<u64, Vec<Place>>,
    /// In order of arrival. May have entries of files that are gone.
    order: VecDeque<u64>,
    count: usize,
}

impl KeptPlaces {
    /// Keeps names of a file. The latest is the last.
    pub(crate) fn keep(&mut self, id: u64, places: impl IntoIterator<Item = Place>) {
        for place in places {
            let known = self.places.entry(id).or_insert_with(|| {
                self.order.push_back(id);
                Vec::new()
            });
            if !known.contains(&place) {
                if known.len() == PLACES_MAX {
                    known.remove(0);
                    self.count -= 1;
                }
                known.push(place);
                self.count += 1;
            }
        }
        while self.count > KEPT_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(oldest);
        }
        if self.order.len() > 2 * KEPT_MAX {
            let mut seen = HashSet::new();
            self.order.retain(|id| self.places.contains_key(id) && seen.insert(*id));
        }
    }

    /// Removes the names of a file, and returns them.
    pub(crate) fn take(&mut self, id: u64) -> Vec<Place> {
        // Most shards keep none.
        if self.places.is_empty() { Vec::new() } else { self.remove(id) }
    }

    fn remove(&mut self, id: u64) -> Vec<Place> {
        let places = self.places.remove(&id).unwrap_or_default();
        self.count -= places.len();
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_until_they_are_too_many() {
        let place = |name: usize| -> Place { (1, name.to_string().into_bytes().into()) };
        let mut kept = KeptPlaces::default();
        kept.keep(7, [place(1), place(2)]);
        kept.keep(7, [place(2), place(3)]);
        assert_eq!(kept.take(7), [place(1), place(2), place(3)]);
        assert!(kept.take(7).is_empty());
        kept.keep(8, (0..2 * PLACES_MAX).map(place));
        assert_eq!(kept.take(8), (PLACES_MAX..2 * PLACES_MAX).map(place).collect::<Vec<_>>());
        for id in 0..2 * KEPT_MAX as u64 {
            kept.keep(id, [place(0), place(1)]);
            assert!(kept.count <= KEPT_MAX && kept.order.len() <= 2 * KEPT_MAX);
        }
        assert!(kept.take(0).is_empty());
        assert_eq!(kept.take(2 * KEPT_MAX as u64 - 1).len(), 2);
        assert_eq!(kept.count, kept.places.values().map(Vec::len).sum::<usize>());
        // A file without names takes no memory.
        kept.keep(u64::MAX, []);
        assert!(!kept.places.contains_key(&u64::MAX));
        // Files that come and go leave no trace.
        for _ in 0..5 * KEPT_MAX {
            kept.keep(9, [place(0)]);
            kept.take(9);
        }
        assert!(kept.order.len() <= 2 * KEPT_MAX + 1);
    }
}
