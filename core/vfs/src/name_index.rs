//! Where the entries of large directories are, for formats whose directories have no order.
//!
//! The driver must add to the index each name that it adds to the directory, and remove each name that it
//! removes. So a name that is not in the index of a directory is not in the directory. An index may
//! vanish at any time: then the driver searches the directory, or makes the index again.
//!
//! Indexes are charged to the budget of the caches. All of them take at most a quarter of it. If they would
//! take more, those that were used least recently go.

use crate::error::Result;
use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use ivers_block::Budget;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Memory of a name in an index: its hash and its place, and what the tree needs beside them.
const NAME_BYTES: u64 = 32;

/// The names of a directory: the hash of each, and its place.
#[derive(Default)]
struct Table {
    places: BTreeSet<(u64, u64)>,
    /// The turn of the last use.
    used: u64,
}

#[derive(Default)]
struct Tables {
    by_dir: HashMap<Ino, Table>,
    names: u64,
    turn: u64,
}

impl Tables {
    fn of(&mut self, dir: Ino) -> Option<&mut Table> {
        self.turn += 1;
        let table = self.by_dir.get_mut(&dir)?;
        table.used = self.turn;
        Some(table)
    }
}

/// The indexes of a filesystem.
pub struct NameIndexes {
    budget: Arc<Budget>,
    hasher: RandomState,
    tables: RankedMutex<rank::Leaf, Tables>,
}

/// An index that is being made.
pub struct NewIndex<'a> {
    indexes: &'a NameIndexes,
    table: Table,
    most: u64,
}

impl NewIndex<'_> {
    /// Adds a name and the place of its entry. Returns whether there is memory for more.
    pub fn add(&mut self, name: &[u8], place: u64) -> bool {
        self.table.places.insert((self.indexes.hasher.hash_one(name), place));
        (self.table.places.len() as u64) < self.most
    }
}

impl NameIndexes {
    /// Creates indexes whose memory is charged to a budget.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, hasher: RandomState::new(), tables: RankedMutex::default() }
    }

    /// How many names all indexes may have now.
    fn most(&self) -> u64 {
        self.budget.allowed() / 4 / NAME_BYTES
    }

    /// Builds the index of a directory. `fill` adds every name, and returns false if one did not fit. The
    /// caller must keep the directory from changing. Returns whether the index exists.
    pub fn make(&self, dir: Ino, fill: impl FnOnce(&mut NewIndex<'_>) -> Result<bool>) -> Result<bool> {
        let mut new = NewIndex { indexes: self, table: Table::default(), most: self.most() };
        if !fill(&mut new)? {
            return Ok(false);
        }
        let table = new.table;
        self.forget(dir);
        let mut tables = self.tables.lock();
        let names = table.places.len() as u64;
        tables.names += names;
        self.budget.charge(names * NAME_BYTES);
        tables.by_dir.insert(dir, table);
        tables.of(dir);
        self.limit(&mut tables, self.most());
        Ok(tables.by_dir.contains_key(&dir))
    }

    /// Returns the places at which an entry with this name may be, in order. `None`: the directory has no
    /// index.
    pub fn places(&self, dir: Ino, name: &[u8]) -> Option<Vec<u64>> {
        let hash = self.hasher.hash_one(name);
        let mut tables = self.tables.lock();
        let places = &tables.of(dir)?.places;
        Some(places.range((hash, 0)..=(hash, u64::MAX)).map(|&(_, place)| place).collect())
    }

    /// As [`NameIndexes::places`], but makes the index with `fill` if the directory has none. `None`: it
    /// cannot be made, because a name cannot be read, or there is no memory.
    pub fn places_or_make(
        &self,
        dir: Ino,
        name: &[u8],
        fill: impl FnOnce(&mut NewIndex<'_>) -> Result<bool>,
    ) -> Option<Vec<u64>> {
        self.places(dir, name).or_else(|| {
            let made = self.make(dir, fill);
            made.is_ok_and(|made| made).then(|| self.places(dir, name))?
        })
    }

    /// Adds a name that the directory got.
    pub fn add(&self, dir: Ino, name: &[u8], place: u64) {
        let hash = self.hasher.hash_one(name);
        let mut tables = self.tables.lock();
        if tables.of(dir).is_some_and(|table| table.places.insert((hash, place))) {
            tables.names += 1;
            self.budget.charge(NAME_BYTES);
            self.limit(&mut tables, self.most());
        }
    }

    /// Removes a name that the directory lost.
    pub fn remove(&self, dir: Ino, name: &[u8], place: u64) {
        let hash = self.hasher.hash_one(name);
        let mut tables = self.tables.lock();
        if tables.of(dir).is_some_and(|table| table.places.remove(&(hash, place))) {
            tables.names -= 1;
            self.budget.uncharge(NAME_BYTES);
        }
    }

    /// Drops the index of a directory that is evicted or new.
    pub fn forget(&self, dir: Ino) {
        self.drop_table(&mut self.tables.lock(), dir);
    }

    /// Drops indexes, least recently used first, until at least this many bytes are released or none is left.
    pub fn evict(&self, bytes: u64) {
        let mut tables = self.tables.lock();
        let most = tables.names.saturating_sub(bytes.div_ceil(NAME_BYTES));
        self.limit(&mut tables, most);
    }

    fn limit(&self, tables: &mut Tables, most: u64) {
        while tables.names > most {
            let oldest = tables.by_dir.iter().min_by_key(|(_, table)| table.used);
            let Some(oldest) = oldest.map(|(&dir, _)| dir) else { break };
            self.drop_table(tables, oldest);
        }
    }

    fn drop_table(&self, tables: &mut Tables, dir: Ino) {
        if let Some(table) = tables.by_dir.remove(&dir) {
            let names = table.places.len() as u64;
            tables.names -= names;
            self.budget.uncharge(names * NAME_BYTES);
        }
    }
}

impl Drop for NameIndexes {
    fn drop(&mut self) {
        self.evict(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(indexes: &NameIndexes, dir: u64, names: u64) -> bool {
        let filled = indexes
            .make(Ino(dir), |new| Ok((0..names).all(|number| new.add(&number.to_le_bytes(), number * 16))));
        filled.unwrap()
    }

    #[test]
    fn names_are_found_until_they_are_removed() {
        let budget = Arc::new(Budget::new(1 << 20));
        let indexes = NameIndexes::new(budget.clone());
        assert_eq!(indexes.places(Ino(2), b"x"), None);
        indexes.add(Ino(2), b"x", 5);
        assert!(fill(&indexes, 2, 1000));
        for number in 0..1000u64 {
            assert_eq!(indexes.places(Ino(2), &number.to_le_bytes()), Some(vec![number * 16]));
        }
        assert_eq!(indexes.places(Ino(2), b"x"), Some(vec![]));
        indexes.add(Ino(2), b"x", 512);
        indexes.add(Ino(2), b"x", 100);
        assert_eq!(indexes.places(Ino(2), b"x"), Some(vec![100, 512]));
        indexes.remove(Ino(2), b"x", 512);
        indexes.remove(Ino(2), b"x", 512);
        assert_eq!(indexes.places(Ino(2), b"x"), Some(vec![100]));
        assert_eq!(budget.used(), 1001 * NAME_BYTES);
        indexes.forget(Ino(2));
        assert_eq!((indexes.places(Ino(2), b"x"), budget.used()), (None, 0));
    }

    #[test]
    fn the_least_recently_used_indexes_go() {
        let budget = Arc::new(Budget::new(4 * 1000 * NAME_BYTES));
        let indexes = NameIndexes::new(budget.clone());
        assert!(!fill(&indexes, 9, 1001), "larger than all that is allowed");
        for dir in 2..5 {
            assert!(fill(&indexes, dir, 300));
        }
        assert!(indexes.places(Ino(2), b"x").is_some());
        assert!(fill(&indexes, 5, 300));
        assert!(indexes.places(Ino(3), b"x").is_none(), "the one that was used least recently");
        assert!([2, 4, 5].iter().all(|&dir| indexes.places(Ino(dir), b"x").is_some()));
        // Names that are added count, too.
        (0..200u64).for_each(|number| indexes.add(Ino(5), &(1000 + number).to_le_bytes(), number));
        assert!(indexes.places(Ino(2), b"x").is_none());
        indexes.evict(1);
        assert!(indexes.places(Ino(4), b"x").is_none());
        assert_eq!(budget.used(), 500 * NAME_BYTES);
        drop(indexes);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_error_leaves_no_index() {
        let indexes = NameIndexes::new(Arc::new(Budget::unlimited()));
        let failed = indexes.make(Ino(2), |new| {
            new.add(b"a", 0);
            Err(crate::error::NameError::Stale.into())
        });
        assert!(failed.is_err());
        assert_eq!(indexes.places(Ino(2), b"a"), None);
    }
}
