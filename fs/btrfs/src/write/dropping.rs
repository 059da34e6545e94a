//! Dropping the trees of deleted subvolumes, in bounded changes.
//!
//! A tree is dropped from its last block to its first one. Each commit has a complete tree with fewer blocks.
//! So after a crash, the next writable mount by ivers or Linux continues.

use super::change::Need;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::layout::bytes::read;
use crate::layout::items::RootItem;
use crate::layout::key::{Key, is_subvolume, kind, object, orphan_key};
use crate::layout::node::Expected;
use crate::layout::raw::RawRootItem;
use crate::tree::Root;
use ivers_vfs::{Error, NameError, Result};
use std::ops::ControlFlow;

/// Blocks that one change drops at most.
const BLOCKS_A_CHANGE: usize = 64;
/// A change ends when it has more delayed references than this.
const REFS_ENOUGH: usize = 128;

impl Btrfs {
    /// Returns the deleted subvolumes that still have trees. Leaves out a tree that Linux has begun to drop:
    /// it points to blocks that no longer exist, and only Linux can continue.
    pub(super) fn deleted_subvolumes(&self) -> Result<Vec<(Key, Root)>> {
        let _trees = self.live.read();
        let mut found = Vec::new();
        let Some(tree) = self.tree(object::ROOT_TREE)? else { return Ok(found) };
        let first = Key::new(object::FIRST_FREE, kind::ROOT_ITEM, 0);
        let last = Key::new(object::LAST_FREE, kind::ROOT_ITEM, u64::MAX);
        self.forest.scan(&tree, first, last, |key, data| {
            let raw = read::<RawRootItem>(data, 0).filter(|_| key.kind == kind::ROOT_ITEM);
            let is_whole = raw.is_some_and(|raw| Key::from(&raw.drop_progress) == Key::new(0, 0, 0));
            if is_whole && is_subvolume(key.objectid) {
                let item = RootItem::decode(data).map_err(|what| self.forest.corrupt(what, &tree, key))?;
                if item.refs == 0 {
                    let RootItem { root, last_snapshot, read_only, .. } = item;
                    found.push((key, Root { root, key: Some(key), last_snapshot, read_only, dropped: true }));
                }
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(found)
    }

    /// The roots of [`Btrfs::deleted_subvolumes`].
    #[cfg(test)]
    pub(super) fn list_deleted(&self) -> Result<Vec<Root>> {
        Ok(self.deleted_subvolumes()?.into_iter().map(|(_, root)| root).collect())
    }

    /// Drops the trees of deleted subvolumes. Returns their number. If there is no space for that, the rest
    /// stays for the next writable mount: changes that free space still work. So does a tree with a block
    /// that cannot be read.
    pub(crate) fn drop_deleted_subvolumes(&self) -> Result<usize> {
        let _dropping = self.session.dropping.lock();
        let mut count = 0;
        for (key, root) in self.deleted_subvolumes()? {
            let tree = key.objectid;
            // If an earlier call dropped a part of it, the root in memory is newer.
            self.forest.roots.lock().entry(tree).or_insert(root);
            loop {
                match self.change(Need::Removal, |tx| tx.drop_some(tree)) {
                    Ok(Dropped::Some) => {}
                    Ok(Dropped::All) => {
                        count += 1;
                        break;
                    }
                    Ok(Dropped::Unreadable(error)) => {
                        let place = &self.forest.volume.place;
                        log::error!("{place}: deleted subvolume {tree}: its space stays in use: {error}");
                        break;
                    }
                    Err(Error::Name(NameError::NoSpace)) => {
                        log::warn!("{}: no space to drop deleted subvolumes", self.forest.volume.place);
                        return Ok(count);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }
}

/// What a change dropped of a tree.
#[derive(Debug)]
pub(super) enum Dropped {
    /// A part: more blocks are left.
    Some,
    /// The rest.
    All,
    /// Perhaps a part. The block that must go next cannot be read, so the rest stays.
    Unreadable(Error),
}

impl Tx<'_> {
    /// Drops the last blocks of the tree of a deleted subvolume.
    pub(super) fn drop_some(&mut self, tree: u64) -> Result<Dropped> {
        for count in 0..BLOCKS_A_CHANGE {
            // An error after the first change of a block would end the session.
            if let Err(error) = self.read_last_blocks(tree) {
                return Ok(Dropped::Unreadable(error));
            }
            if count == 0 {
                self.unshare_last_path(tree)?;
            } else if self.live.refs.len() > REFS_ENOUGH || self.has_many_refs() || self.is_short() {
                break;
            }
            if !self.drop_last_block(tree)? {
                self.forget_tree(tree)?;
                return Ok(Dropped::All);
            }
        }
        Ok(Dropped::Some)
    }

    /// Reads all blocks that [`Tx::drop_last_block`] changes: those on the way to the last leaf, and the
    /// nodes before them, with which they may be merged.
    fn read_last_blocks(&self, tree: u64) -> Result<()> {
        let mut expected = Expected::root_of(tree, self.tree(tree)?.root);
        loop {
            let node = self.fs.forest.node(&expected)?;
            let last = node.count().checked_sub(1).filter(|_| node.level > 0);
            let Some(last) = last else { return Ok(()) };
            if node.level > 1 && last > 0 {
                self.fs.forest.node(&node.expected_below(last - 1, &expected))?;
            }
            expected = node.expected_below(last, &expected);
        }
    }

    /// The tree is gone: removes its item, and the mark that it must be dropped.
    fn forget_tree(&mut self, tree: u64) -> Result<()> {
        let root = self.fs.forest.roots.lock().remove(&tree);
        let key = root.and_then(|root| root.key);
        let key = key.ok_or_else(|| self.broken(format!("tree {tree} has no root item")))?;
        self.live.changed_roots.remove(&tree);
        self.live.more_blocks.remove(&tree);
        self.remove(object::ROOT_TREE, key)?;
        let mark = orphan_key(tree);
        if self.item(object::ROOT_TREE, mark)?.is_some() {
            self.remove(object::ROOT_TREE, mark)?;
        }
        Ok(())
    }
}
