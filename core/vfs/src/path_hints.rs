//! The last known name of each inode, kept only for a [`crate::FileObserver`], which asks for paths.

use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use std::collections::HashMap;
use std::sync::Arc;

/// A name in a directory.
type Place = (Ino, Arc<[u8]>);

/// Kept as long as the inode number belongs to the file: a client may come back with the number alone. A leaf
/// lock.
pub(crate) struct PathHints(Option<RankedMutex<rank::Leaf, HashMap<Ino, Place>>>);

impl PathHints {
    pub(crate) fn new(wanted: bool) -> Self {
        Self(wanted.then(RankedMutex::default))
    }

    /// Notes where an inode was found.
    pub(crate) fn note(&self, ino: Ino, dir: Ino, name: &[u8]) {
        let Some(places) = &self.0 else { return };
        let mut places = places.lock();
        match places.get_mut(&ino) {
            Some((known, known_name)) if *known == dir && **known_name == *name => {}
            _ => {
                places.insert(ino, (dir, name.into()));
            }
        }
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<(Ino, Arc<[u8]>)> {
        self.0.as_ref()?.lock().get(&ino).cloned()
    }

    /// The inode number no longer belongs to this file.
    pub(crate) fn forget(&self, ino: Ino) {
        if let Some(places) = &self.0 {
            places.lock().remove(&ino);
        }
    }
}
