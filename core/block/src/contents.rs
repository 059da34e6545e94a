//! The bytes of a block, counted in the memory budget for as long as they exist.

use std::ops::Deref;
use std::sync::Arc;

use crate::Budget;

/// Memory of contents in bytes, beside the bytes: the reference counts, and where the bytes and the budget
/// are.
const OVERHEAD_BYTES: u64 = 48;

/// The contents of a block at one time. Clones share the bytes, which never change while they are shared.
///
/// The bytes count in the budget until the last clone is dropped. A journal may keep older contents of a
/// block than the cache has: each version counts once.
///
/// The bytes have an allocation of their own: a block is a power of two in size, for which allocators have an
/// exact size class. Reference counts in the same allocation would cost a quarter more.
#[derive(Clone)]
pub struct Contents(Arc<Charged>);

struct Charged {
    bytes: Box<[u8]>,
    /// `None`: not counted.
    budget: Option<Arc<Budget>>,
}

impl Charged {
    fn new(bytes: Box<[u8]>, budget: Option<Arc<Budget>>) -> Self {
        if let Some(budget) = &budget {
            budget.charge(Contents::cost(bytes.len() as u64));
        }
        Self { bytes, budget }
    }
}

impl Clone for Charged {
    fn clone(&self) -> Self {
        Self::new(self.bytes.clone(), self.budget.clone())
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.uncharge(Contents::cost(self.bytes.len() as u64));
        }
    }
}

impl Contents {
    /// Contents that count in `budget`.
    pub fn new(bytes: impl Into<Box<[u8]>>, budget: &Arc<Budget>) -> Self {
        Self(Arc::new(Charged::new(bytes.into(), Some(budget.clone()))))
    }

    /// Zeros that count in `budget`.
    pub fn zeroed(len: usize, budget: &Arc<Budget>) -> Self {
        Self::new(vec![0; len], budget)
    }

    /// The bytes, to change them. Copies them first if they are shared.
    pub fn make_mut(&mut self) -> &mut [u8] {
        &mut Arc::make_mut(&mut self.0).bytes
    }

    /// The bytes, to change them. `None` if there are other clones.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut Arc::get_mut(&mut self.0)?.bytes)
    }

    /// Returns whether both are one version: clones of each other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Memory of contents of `len` bytes.
    pub(crate) const fn cost(len: u64) -> u64 {
        len + OVERHEAD_BYTES
    }
}

impl From<Vec<u8>> for Contents {
    /// Contents that no budget counts, for bytes that are about to be written and dropped.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Charged::new(bytes.into(), None)))
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_counts_once_until_its_last_clone_is_dropped() {
        let budget = Arc::new(Budget::unlimited());
        let each = Contents::cost(512);
        let mut new = Contents::zeroed(512, &budget);
        new.make_mut()[0] = 1;
        let old = new.clone();
        assert_eq!(budget.used(), each);
        new.make_mut()[0] = 2;
        assert_eq!((old[0], new[0], budget.used()), (1, 2, 2 * each));
        let again = old.clone();
        drop(old);
        assert_eq!(budget.used(), 2 * each);
        drop(again);
        assert_eq!(budget.used(), each);
        let mut free = Contents::from(vec![0; 512]);
        free.make_mut()[0] = 3;
        assert_eq!(budget.used(), each);
        let other = new.clone();
        assert!(new.get_mut().is_none());
        drop(other);
        assert_eq!(new.get_mut().unwrap()[0], 2);
        assert_eq!(budget.used(), each);
    }
}
