//! Where a search through a directory begins whose entries are in no order.

use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;

/// The byte of a directory after the entry that was found last. The next search begins there: programs look
/// names up in the order in which they were listed.
#[derive(Debug, Default)]
pub struct SearchStart(AtomicU64);

impl SearchStart {
    /// Searches a directory of `size` bytes. `find` searches the entries that begin in a range, and returns
    /// what it found and the byte after the entry.
    pub fn search<T>(
        &self,
        size: u64,
        find: impl Fn(Range<u64>) -> Result<Option<(T, u64)>>,
    ) -> Result<Option<T>> {
        let start = self.0.load(Ordering::Relaxed).min(size);
        let found = match find(start..size)? {
            None => find(0..start)?,
            found => found,
        };
        Ok(found.map(|(found, next)| {
            self.0.store(next, Ordering::Relaxed);
            found
        }))
    }
}
