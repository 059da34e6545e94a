//! Inode numbers. The format has none.
//!
//! The inode number of a file is the position of its short entry on the device, so a file that was only
//! looked up needs no memory here. Changes in this mount make two exceptions:
//!
//! - Another file may reuse the position of a removed entry. Each position has a generation, which is part of
//!   the inode number and rises with each removal.
//! - A renamed inode gets another position, and must keep its number while it is in memory or a front end
//!   remembers it. The map stores the number until the VFS releases it. Then the number is stale: it never
//!   identifies another file, and the VFS looks the name up again.

use ivers_vfs::Ino;
use std::collections::HashMap;

/// The inode number of the root directory, which has no entry. It is never the position of an entry, because
/// the first entries of the device would lie in the boot sector.
pub(crate) const ROOT: Ino = Ino(1);
/// The lower bits of an inode number are the position; the generation follows.
const GENERATION_SHIFT: u32 = 40;
/// The bits of a generation. With them an inode number has 62 bits.
const GENERATION_MASK: u64 = (1 << 22) - 1;

/// The position of a directory entry on the device: its byte offset divided by
/// [`SLOT_BYTES`](crate::layout::SLOT_BYTES).
pub(crate) type EntryPos = u64;

/// Returns the generation that is part of an inode number.
pub(crate) fn generation_in(ino: Ino) -> u32 {
    (ino.0 >> GENERATION_SHIFT & GENERATION_MASK) as u32
}

/// Maps inode numbers to positions of entries, and back.
#[derive(Default)]
pub(crate) struct InoMap {
    /// The numbers of renamed inodes, by their new position.
    renamed: HashMap<EntryPos, Ino>,
    /// The new positions of renamed inodes.
    positions: HashMap<Ino, EntryPos>,
    /// The removals from each position. A position without one is absent.
    generations: HashMap<EntryPos, u64>,
}

impl InoMap {
    /// Returns how many entries were removed from a position in this mount.
    fn generation(&self, pos: EntryPos) -> u64 {
        self.generations.get(&pos).copied().unwrap_or(0)
    }

    /// Returns the inode number of the file whose entry is at a position.
    pub fn ino_at(&self, pos: EntryPos) -> Ino {
        let computed = || Ino((self.generation(pos) & GENERATION_MASK) << GENERATION_SHIFT | pos);
        self.renamed.get(&pos).copied().unwrap_or_else(computed)
    }

    /// Returns the position of an inode's entry, or `None` if the number is stale.
    pub fn pos_of(&self, ino: Ino) -> Option<EntryPos> {
        self.positions.get(&ino).copied().or_else(|| {
            let pos = ino.0 & ((1 << GENERATION_SHIFT) - 1);
            (self.ino_at(pos) == ino).then_some(pos)
        })
    }

    /// Records that the entry of an inode was removed.
    pub fn remove(&mut self, ino: Ino, pos: EntryPos) {
        self.release(ino);
        *self.generations.entry(pos).or_default() += 1;
    }

    /// Records that the entry of an inode moved.
    pub fn rename(&mut self, ino: Ino, from: EntryPos, to: EntryPos) {
        self.remove(ino, from);
        self.renamed.insert(to, ino);
        self.positions.insert(ino, to);
    }

    /// Forgets an inode whose number is in use nowhere. If it was renamed, its number becomes stale.
    pub fn release(&mut self, ino: Ino) {
        if let Some(pos) = self.positions.remove(&ino) {
            self.renamed.remove(&pos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_never_identifies_another_file() {
        let mut map = InoMap::default();
        let a = map.ino_at(100);
        assert_eq!((a, map.pos_of(a)), (Ino(100), Some(100)));
        map.rename(a, 100, 200);
        assert_eq!((map.ino_at(200), map.pos_of(a)), (a, Some(200)));
        assert_ne!(generation_in(a), generation_in(map.ino_at(100)));
        let b = map.ino_at(100);
        assert_ne!(a, b, "another file reuses the position");
        map.rename(a, 200, 300);
        assert_ne!(map.ino_at(200), a);
        map.release(a);
        assert_eq!(map.pos_of(a), None, "stale, and not b");
        assert_eq!(map.pos_of(map.ino_at(300)), Some(300));
        map.remove(b, 100);
        assert_eq!(map.pos_of(b), None);
    }
}
