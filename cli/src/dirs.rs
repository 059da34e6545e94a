//! Directories without end. A damaged image can hold directories that lie in themselves, or that many others hold: whoever walks a tree
//! asks here before he goes down.

use std::collections::HashSet;
use std::hash::Hash;

use ivers_vfs::{Error, Result};

/// No honest tree is deeper.
const DEPTH_MAX: usize = 4096;
/// Nor are its paths longer.
const PATH_MAX: usize = 64 << 10;

/// The directories that a walk has been in.
#[derive(Debug)]
pub struct Dirs<Number>(HashSet<Number>);

impl<Number> Default for Dirs<Number> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<Number: Eq + Hash> Dirs<Number> {
    /// Go into a directory, which `shown` names, `depth` directories and `path_len` bytes below where the walk began. One that was
    /// there before has two names: that is damage, and many of them would take as long as there are paths to them.
    pub fn enter(
        &mut self,
        number: Number,
        depth: usize,
        path_len: usize,
        shown: impl FnOnce() -> String,
    ) -> Result<()> {
        if depth > DEPTH_MAX || path_len > PATH_MAX {
            return Err(Error::corrupt("directories without end", shown()));
        }
        if !self.0.insert(number) {
            return Err(Error::corrupt("a directory is in two places, or in itself", shown()));
        }
        Ok(())
    }

    /// Begin another walk.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
