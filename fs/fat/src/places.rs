//! Inode numbers, which the format has none of.
//!
//! A file is found by its place, that of its short entry on the device, and its number is made of that: so nothing has to be remembered of files that are only
//! looked at. What has been changed in this mount makes exceptions:
//!
//! - a name that went leaves its place to another: a place has lives, which are counted in the number;
//! - an inode that is renamed gets another place and must keep its number while it is in memory. Once it has left, its number is stale (never
//!   another file's), and the VFS asks for the name again.

use ivers_vfs::Ino;
use std::collections::HashMap;

/// The number of the root, which has no entry. No entry lies in the boot sector, so none has this place.
pub(crate) const ROOT: Ino = Ino(1);
const LIFE_SHIFT: u32 = 40;
/// Lives that fit a number of 63 bits.
const LIVES: u64 = (1 << 22) - 1;

/// A place: which entry of the device, counted from its first byte in entries.
pub(crate) type Place = u64;

#[derive(Default)]
pub(crate) struct Places {
    /// Where a number is not the place's own.
    moved: HashMap<Place, Ino>,
    at: HashMap<Ino, Place>,
    lives: HashMap<Place, u64>,
}

impl Places {
    pub fn life(&self, place: Place) -> u64 {
        self.lives.get(&place).copied().unwrap_or(0)
    }

    /// The number of what has its entry here.
    pub fn number(&self, place: Place) -> Ino {
        let own = || Ino((self.life(place) & LIVES) << LIFE_SHIFT | place);
        self.moved.get(&place).copied().unwrap_or_else(own)
    }

    /// Where the entry of a number is, if the number is good.
    pub fn find(&self, ino: Ino) -> Option<Place> {
        self.at.get(&ino).copied().or_else(|| {
            let place = ino.0 & ((1 << LIFE_SHIFT) - 1);
            (self.number(place) == ino).then_some(place)
        })
    }

    /// The name of an inode is gone.
    pub fn gone(&mut self, ino: Ino, place: Place) {
        self.forget(ino);
        *self.lives.entry(place).or_default() += 1;
    }

    /// An inode has its entry elsewhere.
    pub fn moves(&mut self, ino: Ino, from: Place, to: Place) {
        self.gone(ino, from);
        self.moved.insert(to, ino);
        self.at.insert(ino, to);
    }

    /// An inode has left memory.
    pub fn forget(&mut self, ino: Ino) {
        if let Some(place) = self.at.remove(&ino) {
            self.moved.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_another_files() {
        let mut places = Places::default();
        let a = places.number(100);
        assert_eq!((a, places.find(a)), (Ino(100), Some(100)));
        places.moves(a, 100, 200);
        assert_eq!((places.number(200), places.find(a)), (a, Some(200)));
        let b = places.number(100);
        assert_ne!(a, b, "another file in the old place");
        places.moves(a, 200, 300);
        assert_ne!(places.number(200), a);
        places.forget(a);
        assert_eq!(places.find(a), None, "stale, not b");
        assert_eq!(places.find(places.number(300)), Some(300));
        places.gone(b, 100);
        assert_eq!(places.find(b), None);
    }
}
