//! Listing a directory: where `readdir` goes on, whatever came and went in between.

use crate::layout::{Block, to_utf8};
use crate::node::{block_of, node};
use crate::volume::{Affs, Kind};
use ivers_vfs::*;
use std::ops::ControlFlow;

/// The entries of one chain, in the order in which they are handed out.
pub(crate) struct Listing {
    /// The directory's value when they were read: they count while it is the same.
    version: u64,
    slot: usize,
    entries: Vec<Listed>,
}

struct Listed {
    key: u64,
    ino: Ino,
    kind: Option<FileType>,
    name: Vec<u8>,
}

/// Cursors: 1 stands behind `.`, 2 behind `..`; above these the slot (from 1) and, below it, the key of the last entry.
const KEY_BITS: u32 = 48;

impl Affs {
    /// Places are kept by name: blocks change places when a link's name becomes an entry's own.
    fn key_of(&self, name: &[u8]) -> u64 {
        // FNV-1a.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &c| {
            (hash ^ u64::from(self.shape.flavour.upper(c))).wrapping_mul(0x100_0000_01b3)
        });
        (hash ^ hash >> KEY_BITS) & ((1 << KEY_BITS) - 1)
    }

    fn list(&self, dir: Block, version: u64, slot: usize) -> Result<Listing> {
        let mut entries = Vec::new();
        let _links = self.links.read();
        self.walk_chain(dir, slot, |_, entry| {
            let name = self.name_of(&entry)?;
            let kind = match entry.kind {
                Kind::Directory => Some(FileType::Directory),
                Kind::File => Some(FileType::Regular),
                Kind::SoftLink | Kind::LinkDirectory => Some(FileType::Symlink),
                Kind::LinkFile | Kind::Root => None,
            };
            entries.push(Listed {
                key: self.key_of(name),
                ino: self.meant_by(&entry)?,
                kind,
                name: to_utf8(name),
            });
            Ok(ControlFlow::Continue(()))
        })?;
        entries.sort_by_key(|entry| entry.key);
        Ok(Listing { version, slot, entries })
    }

    pub(crate) fn fs_readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let parent = self.fs_parent(dir)?;
        for (next, (name, ino)) in (1..).zip([(b".".as_slice(), dir.ino), (b"..", parent)]) {
            let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
            if cursor < next && emit(&entry).is_break() {
                return Ok(());
            }
        }
        let (first, behind) = match cursor >> KEY_BITS {
            0 => (0, None),
            slot => (slot as usize - 1, Some(cursor & ((1 << KEY_BITS) - 1))),
        };
        // Every change of names moves it, whoever looks or not: see `renamed_in`.
        let version = dir.counter.peek();
        for slot in first..self.shape.table_len() {
            let kept = node(dir).state.lock().listing.take();
            let listing = match kept {
                Some(kept) if kept.version == version && kept.slot == slot => kept,
                _ => self.list(block_of(dir), version, slot)?,
            };
            let mut stopped = false;
            for Listed { key, ino, kind, name } in &listing.entries {
                if slot == first && behind.is_some_and(|behind| *key <= behind) {
                    continue;
                }
                let next = (slot as u64 + 1) << KEY_BITS | key;
                if emit(&DirEntry { ino: *ino, name, kind: *kind, next }).is_break() {
                    stopped = true;
                    break;
                }
            }
            if stopped {
                node(dir).state.lock().listing = Some(listing);
                return Ok(());
            }
        }
        Ok(())
    }
}
