//! A guard against endless walks. On a damaged image a directory can contain itself or have several parents.

use std::collections::HashSet;
use std::hash::Hash;

use ivers_vfs::{Error, Result};

/// Most levels of directories.
const DEPTH_MAX: usize = 4096;
/// Longest path in bytes.
const PATH_MAX: usize = 64 << 10;

/// The directories that a walk has entered.
#[derive(Debug)]
pub struct CycleGuard<Id>(HashSet<Id>);

impl<Id> Default for CycleGuard<Id> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<Id: Eq + Hash> CycleGuard<Id> {
    /// Enters a directory, which `location` names in errors. `depth` and `path_len` count the directories and
    /// bytes below the start of the walk. Fails if the directory was entered before: it has two parents, and
    /// a walk over many of them would take as long as there are paths to them.
    pub fn enter(
        &mut self,
        id: Id,
        depth: usize,
        path_len: usize,
        location: impl FnOnce() -> String,
    ) -> Result<()> {
        if depth > DEPTH_MAX || path_len > PATH_MAX {
            return Err(Error::corrupt("directories are nested too deeply", location()));
        }
        if !self.0.insert(id) {
            return Err(Error::corrupt("a directory has two parents or contains itself", location()));
        }
        Ok(())
    }

    /// Starts another walk.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
