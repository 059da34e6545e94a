//! Where inodes were seen last: the name cache the other way round, kept only for who asks for paths ([`crate::Watch`]).

use crate::sync::Mutex;
use crate::types::Ino;
use std::collections::HashMap;
use std::sync::Arc;

/// A name in a directory.
pub(crate) type Place = (Ino, Arc<[u8]>);

/// The last place of each inode that has had a name, as long as its number is the file's: a client may come back with the number alone. A leaf lock.
pub(crate) struct Places(Option<Mutex<HashMap<Ino, Place>>>);

impl Places {
    pub(crate) fn new(wanted: bool) -> Self {
        Self(wanted.then(Mutex::default))
    }

    /// It is there now.
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

    pub(crate) fn find(&self, ino: Ino) -> Option<Place> {
        self.0.as_ref()?.lock().get(&ino).cloned()
    }

    /// The number is this file's no longer.
    pub(crate) fn forget(&self, ino: Ino) {
        if let Some(places) = &self.0 {
            places.lock().remove(&ino);
        }
    }
}
