//! Reading a directory in pieces.
//!
//! A cursor stays valid while names are added and removed between two calls. In a tree, leaves split and
//! names move, so the cursor is the hash: names are returned in the order of `(major hash, minor hash)`,
//! which never changes for a name. A directory that may still become a tree (inline, or one block) is read in
//! the same order, so that a cursor survives the conversion. A linear directory of several blocks never
//! becomes a tree and its names never move: there the cursor is the offset.
//!
//! | cursor | in hash order |
//! |---|---|
//! | 0, 1 | at `.`, at `..` |
//! | 3 + p | at the first name at position p or later: 31 bits of major hash, 27 of minor hash, 5 of rank |
//!
//! The rank distinguishes names whose hashes agree in those bits.

use super::hash::NameHash;
use super::inline::Part;
use super::linear::Entry;
use super::{FIRST, Shape, corrupt, place};
use crate::fs::Ext4;
use ivers_block::FileBlock;
use ivers_vfs::{DirEntry, FileType, Ino, Inode, Result};
use std::ops::ControlFlow;

/// Bits of the rank, which distinguishes names whose hashes agree in all other bits.
const RANK_BITS: u32 = 5;
/// The cursor of position 0.
const FIRST_PLACE: u64 = 3;
/// Limit of the leaves of one hash that are read together.
const MAX_CHAIN: u32 = 4096;

type Emit<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>;

/// A name with its position in the order.
struct Placed {
    place: u64,
    ino: u32,
    kind: Option<FileType>,
    name: Vec<u8>,
}

impl Placed {
    /// An entry, without its rank. `None` if it is before `from` whatever its rank: a directory is read in
    /// many calls, and most would copy and sort names that earlier ones returned.
    fn new(hash: NameHash, entry: &Entry<'_>, from: u64) -> Option<Self> {
        // The legacy hash has no minor half. Any other hash of the name will do; nothing else depends on it.
        let minor = if hash.minor == 0 { crc32c::crc32c(entry.name) } else { hash.minor };
        let place = u64::from(hash.major >> 1) << 32 | u64::from(minor >> RANK_BITS << RANK_BITS);
        let is_wanted = place >= from >> RANK_BITS << RANK_BITS;
        is_wanted.then(|| Self { place, ino: entry.ino, kind: entry.kind, name: entry.name.to_vec() })
    }
}

/// Sorts names and gives ranks to those with equal hashes.
fn arrange(names: &mut [Placed]) {
    names.sort_by(|a, b| (a.place, &a.name).cmp(&(b.place, &b.name)));
    let (mut last, mut rank) = (u64::MAX, 0);
    for name in names {
        rank = if name.place == last { (rank + 1).min((1 << RANK_BITS) - 1) } else { 0 };
        last = name.place;
        name.place |= rank;
    }
}

fn emit_from(names: &mut Vec<Placed>, cursor: u64, emit: Emit<'_>) -> ControlFlow<()> {
    arrange(names);
    for name in names.drain(..) {
        let at = FIRST_PLACE + name.place;
        if at >= cursor {
            emit(&DirEntry {
                ino: Ino(u64::from(name.ino)),
                name: &name.name,
                kind: name.kind,
                next: at + 1,
            })?;
        }
    }
    ControlFlow::Continue(())
}

impl Ext4 {
    /// Emits entries from a cursor on.
    pub(crate) fn dir_read(&self, dir: &Inode, cursor: u64, emit: Emit<'_>) -> Result<()> {
        let shape = self.dir_shape(dir);
        let by_hash = match shape {
            Shape::Indexed => true,
            Shape::Inline => self.has_dir_index(),
            Shape::Linear => self.has_dir_index() && self.dir_blocks(dir) <= 1,
        };
        if !by_hash {
            return match shape {
                Shape::Inline => self.readdir_inline(dir, cursor, emit),
                _ => self.readdir_linear(dir, cursor, emit),
            };
        }
        let dots = [(0, dir.ino, &b"."[..]), (1, self.dir_parent(dir)?, &b".."[..])];
        for (at, ino, name) in dots {
            if cursor <= at
                && emit(&DirEntry { ino, name, kind: Some(FileType::Directory), next: at + 1 }).is_break()
            {
                return Ok(());
            }
        }
        if shape == Shape::Indexed {
            return self.readdir_tree(dir, cursor, emit);
        }
        let hasher = self.default_hasher();
        let from = cursor.saturating_sub(FIRST_PLACE);
        let mut names = Vec::new();
        let mut collect = |entry: Entry<'_>| -> ControlFlow<()> {
            if entry.ino != 0 && !entry.is_dot() {
                names.extend(Placed::new(hasher.hash(entry.name), &entry, from));
            }
            ControlFlow::Continue(())
        };
        let format = self.dir_format();
        if shape == Shape::Inline {
            for part in Part::ALL {
                let area = self.inline_area(dir, part)?;
                format.walk(&area, &|| place(dir, FIRST), &mut collect)?;
            }
        } else if self.dir_blocks(dir) > 0 {
            let buffer = self.dir_leaf(dir, FIRST)?;
            format.walk(&buffer.read()[..format.usable()], &|| place(dir, FIRST), &mut collect)?;
        }
        let _ = emit_from(&mut names, cursor, emit);
        Ok(())
    }

    fn readdir_tree(&self, dir: &Inode, cursor: u64, emit: Emit<'_>) -> Result<()> {
        let format = self.dir_format();
        let from = cursor.saturating_sub(FIRST_PLACE);
        let Ok(major) = u32::try_from((from >> 32) << 1) else { return Ok(()) };
        let mut path = self.htree_path(dir, |_| major)?;
        let mut names = Vec::new();
        let mut chain = 0;
        // Every leaf has one row: more steps than blocks mean repeated rows.
        for _ in 0..=self.dir_blocks(dir) {
            let lblk = path.leaf();
            self.read_ahead_dir(dir, lblk);
            let buffer = self.htree_leaf(dir, lblk)?;
            let (low, next) = (path.low & !1, path.next_hash());
            let mut astray = false;
            format.walk::<()>(&buffer.read()[..format.usable()], &|| place(dir, lblk), |entry| {
                if entry.ino != 0 {
                    let hash = path.hasher.hash(entry.name);
                    astray |= hash.major < low || next.is_some_and(|next| hash.major >= next);
                    names.extend(Placed::new(hash, &entry, from));
                }
                ControlFlow::Continue(())
            })?;
            if astray {
                return Err(corrupt(dir, lblk, "a name is in the wrong leaf for its hash"));
            }
            let runs_on = next.is_some_and(|next| next & 1 != 0);
            if runs_on {
                chain += 1;
                if chain > MAX_CHAIN {
                    return Err(corrupt(dir, lblk, "too many names share a hash"));
                }
            } else {
                chain = 0;
                if emit_from(&mut names, cursor, emit).is_break() {
                    return Ok(());
                }
            }
            if !self.htree_next(dir, &mut path)? {
                let _ = emit_from(&mut names, cursor, emit);
                return Ok(());
            }
        }
        Err(corrupt(dir, FIRST, "an index has more rows than its directory has blocks"))
    }

    /// Reads a linear directory: the cursor is an offset, and names never move. Skips an entry that was
    /// merged into the one before it.
    fn readdir_linear(&self, dir: &Inode, cursor: u64, emit: Emit<'_>) -> Result<()> {
        let format = self.dir_format();
        let bits = self.sb.block_bits;
        for lblk in ((cursor >> bits)..self.dir_blocks(dir)).map(FileBlock) {
            self.read_ahead_dir(dir, lblk);
            let buffer = self.dir_leaf(dir, lblk)?;
            let base = lblk.0 << bits;
            let end = (lblk.0 + 1) << bits;
            let stopped = format.walk(&buffer.read()[..format.usable()], &|| place(dir, lblk), |entry| {
                let at = base + entry.offset as u64;
                if entry.ino == 0 || at < cursor {
                    return ControlFlow::Continue(());
                }
                let last = entry.offset + entry.rec_len >= format.usable();
                let next = if last { end } else { at + entry.rec_len as u64 };
                emit(&DirEntry { ino: Ino(u64::from(entry.ino)), name: entry.name, kind: entry.kind, next })
            })?;
            if stopped.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads inline names without `dir_index`: the offsets are those of the names after the move to a block.
    fn readdir_inline(&self, dir: &Inode, cursor: u64, emit: Emit<'_>) -> Result<()> {
        let dots = [(0, 12, dir.ino, &b"."[..]), (12, 24, self.dir_parent(dir)?, &b".."[..])];
        for (at, next, ino, name) in dots {
            if cursor <= at && emit(&DirEntry { ino, name, kind: Some(FileType::Directory), next }).is_break()
            {
                return Ok(());
            }
        }
        let format = self.dir_format();
        for part in Part::ALL {
            let base = part.offset_in_block() as u64;
            let stopped = format.walk(&self.inline_area(dir, part)?, &|| place(dir, FIRST), |entry| {
                let at = base + entry.offset as u64;
                if entry.ino == 0 || at < cursor {
                    return ControlFlow::Continue(());
                }
                let next = at + entry.rec_len as u64;
                emit(&DirEntry { ino: Ino(u64::from(entry.ino)), name: entry.name, kind: entry.kind, next })
            })?;
            if stopped.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }
}
