//! Listing directories: `readdir` continues at a position that stays valid while names are added and
//! removed.

use crate::inode::{affs_inode, header_block};
use crate::layout::{Block, to_utf8};
use crate::volume::{Affs, Kind};
use ivers_vfs::*;
use std::ops::ControlFlow;

/// The entries of one hash chain, in the order of their keys.
pub(crate) struct ListedChain {
    /// The directory's change counter when the chain was read. The entries are valid while it is the same.
    version: u64,
    slot: usize,
    entries: Vec<ListedEntry>,
}

struct ListedEntry {
    key: u64,
    ino: Ino,
    kind: Option<FileType>,
    name: Vec<u8>,
}

/// Cursors: 1 is after `.`, 2 after `..`. In a larger cursor, the bits from this one up are the slot,
/// counted from 1, and the bits below it the key of the last entry.
const KEY_BITS: u32 = 48;

impl Affs {
    /// Returns the position of a name within its chain. It depends on the name, because an entry that takes
    /// over a hard link changes its block.
    fn name_key(&self, name: &[u8]) -> u64 {
        // FNV-1a.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &c| {
            (hash ^ u64::from(self.geometry.variant.to_upper(c))).wrapping_mul(0x100_0000_01b3)
        });
        (hash ^ hash >> KEY_BITS) & ((1 << KEY_BITS) - 1)
    }

    fn read_chain(&self, dir: Block, version: u64, slot: usize) -> Result<ListedChain> {
        let mut entries = Vec::new();
        let _chains = self.chain_lock.read();
        self.walk_chain(dir, slot, |_, entry| {
            let name = self.name_of(&entry)?;
            let kind = match entry.kind {
                Kind::Directory => Some(FileType::Directory),
                Kind::File => Some(FileType::Regular),
                Kind::SoftLink | Kind::LinkDirectory => Some(FileType::Symlink),
                Kind::LinkFile | Kind::Root => None,
            };
            entries.push(ListedEntry {
                key: self.name_key(name),
                ino: self.target_ino(&entry)?,
                kind,
                name: to_utf8(name),
            });
            Ok(ControlFlow::Continue(()))
        })?;
        entries.sort_by_key(|entry| entry.key);
        Ok(ListedChain { version, slot, entries })
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
        let (first, after) = match cursor >> KEY_BITS {
            0 => (0, None),
            slot => (slot as usize - 1, Some(cursor & ((1 << KEY_BITS) - 1))),
        };
        // Every change of names raises the counter, also if nobody queried it: see `dir_changed`.
        let version = dir.counter.peek();
        for slot in first..self.geometry.table_len() {
            let cached = affs_inode(dir).state.lock().listed_chain.take();
            let chain = match cached {
                Some(cached) if cached.version == version && cached.slot == slot => cached,
                _ => self.read_chain(header_block(dir), version, slot)?,
            };
            let mut stopped = false;
            for ListedEntry { key, ino, kind, name } in &chain.entries {
                if slot == first && after.is_some_and(|after| *key <= after) {
                    continue;
                }
                let next = (slot as u64 + 1) << KEY_BITS | key;
                if emit(&DirEntry { ino: *ino, name, kind: *kind, next }).is_break() {
                    stopped = true;
                    break;
                }
            }
            if stopped {
                affs_inode(dir).state.lock().listed_chain = Some(chain);
                return Ok(());
            }
        }
        Ok(())
    }
}
