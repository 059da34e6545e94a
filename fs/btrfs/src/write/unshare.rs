//! Copying shared blocks before a change, while space is short.
//!
//! When a change copies a block that a snapshot shares, each block or extent that it points to gets one more
//! reference. A node of 16 KiB has up to 493 pointers. Storing each reference may copy another block of the
//! extent tree. One change can copy several such blocks, which takes more than [`Need::Removal`] keeps free.
//! Therefore, while space is short, each shared block is copied in a change of its own, and a commit can come
//! between two of them.

use super::change::Need;
use super::tx::Tx;
use crate::inode::Vnode;
use crate::layout::items::extents_of_leaf;
use crate::layout::key::{Key, is_subvolume, object, orphan_key};
use crate::layout::node::Expected;
use crate::layout::superblock::MAX_LEVEL;
use ivers_vfs::Result;

/// A shared block: its copy refers to what the block refers to.
struct Shared {
    level: u8,
    /// The addresses of the blocks or extents that get one more reference.
    below: Vec<u64>,
}

/// What happens to the path afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Later {
    /// A leaf is changed: all blocks of the path are copied.
    Changed,
    /// A block of other trees is dropped as a whole, and not copied.
    Dropped,
}

impl Tx<'_> {
    /// Copies the shared blocks on the paths to some keys if space is short, and finds space for the change
    /// itself. Call it before the first step of the change.
    pub(super) fn unshare_paths(&mut self, need: Need, tree: u64, keys: &[Key]) -> Result<()> {
        if !self.is_short() {
            return Ok(());
        }
        for &key in keys {
            while let Some(shared) = self.first_shared(tree, key, Later::Changed)? {
                self.unshare(need, tree, key, shared)?;
            }
        }
        self.make_room(need, 0)
    }

    /// As [`Tx::unshare_paths`], for the last block of a tree that is being dropped.
    pub(super) fn unshare_last_path(&mut self, tree: u64) -> Result<()> {
        let last = Key::new(u64::MAX, u8::MAX, u64::MAX);
        while self.is_short()
            && let Some(shared) = self.first_shared(tree, last, Later::Dropped)?
        {
            self.unshare(Need::Removal, tree, last, shared)?;
        }
        self.make_room(Need::Removal, 0)
    }

    /// Makes a change that does nothing but copy a shared block on the path to a key.
    fn unshare(&mut self, need: Need, tree: u64, key: Key, shared: Shared) -> Result<()> {
        let leaves = self.extent_leaves(shared.below)?;
        // Each of these leaves of the extent tree is copied. A full leaf is also divided when an item grows.
        // Half of the leaves are counted for that. If more are full, they use the blocks that `need` keeps.
        self.make_room(need, leaves + leaves / 2 + u64::from(MAX_LEVEL))?;
        self.copy_path(tree, key, shared.level)?;
        self.end_change()
    }

    /// Calls [`Tx::unshare_paths`] for a key, the item of an inode, and its orphan item.
    pub(crate) fn unshare_for(&mut self, need: Need, vnode: &Vnode, key: Key) -> Result<()> {
        self.unshare_paths(need, vnode.subvolume, &[key, vnode.item_key(), orphan_key(vnode.objectid)])
    }

    /// Returns whether a change of this key must first copy shared blocks in a change of their own.
    pub(super) fn must_unshare(&self, tree: u64, key: Key) -> Result<bool> {
        Ok(self.is_short() && self.first_shared(tree, key, Later::Changed)?.is_some())
    }

    /// The highest block on the path to a key whose copy adds references.
    fn first_shared(&self, tree: u64, key: Key, later: Later) -> Result<Option<Shared>> {
        if !is_subvolume(tree) {
            return Ok(None);
        }
        let root = self.root(tree)?;
        let mut expected = Expected::root_of(tree, root.root);
        loop {
            let node = self.fs.forest.node(&expected)?;
            let is_root = expected.bytenr == root.root.bytenr;
            if later == Later::Dropped && !is_root && self.is_of_others(tree, &node, expected.bytenr)? {
                return Ok(None);
            }
            if self.adds_references(tree, &root, &node, expected.bytenr)? {
                let below: Vec<u64> = match node.level {
                    0 => {
                        let extents = extents_of_leaf(&node).map_err(|what| self.broken(what))?;
                        extents.iter().map(|extent| extent.bytenr).collect()
                    }
                    _ => (0..node.count()).map(|index| node.pointer(index).bytenr).collect(),
                };
                if !below.is_empty() {
                    return Ok(Some(Shared { level: node.level, below }));
                }
            }
            if node.level == 0 {
                return Ok(None);
            }
            expected = node.expected_below(node.at_most(key).saturating_sub(1), &expected);
        }
    }

    /// How many leaves of the extent tree have the items of some extents.
    fn extent_leaves(&self, mut extents: Vec<u64>) -> Result<u64> {
        extents.sort_unstable();
        let mut count = 0;
        let mut end_of_leaf = Some(Key::new(0, 0, 0));
        for bytenr in extents {
            let key = Key::new(bytenr, u8::MAX, u64::MAX);
            if end_of_leaf.is_none_or(|end| key < end) {
                continue;
            }
            count += 1;
            let mut expected = Expected::root_of(object::EXTENT_TREE, self.root(object::EXTENT_TREE)?.root);
            while expected.level > 0 {
                let node = self.fs.forest.node(&expected)?;
                expected = node.expected_below(node.at_most(key).saturating_sub(1), &expected);
            }
            end_of_leaf = expected.below;
        }
        Ok(count)
    }
}
