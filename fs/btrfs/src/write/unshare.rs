//! Copying shared blocks before a change, while space is short.
//!
//! When a change copies a block that a snapshot shares, each block or extent that it points to gets one more
//! reference. A node has up to 493 pointers, and storing each reference may copy another block of the extent
//! tree. One change can copy several such blocks, which takes more than [`Need::Removal`] keeps free.
//! Therefore, while space is short, each shared block is copied in a change of its own, and a commit can come
//! between two of them.

use super::change::Need;
use super::tx::Tx;
use crate::inode::Vnode;
use crate::layout::items::extents_of_leaf;
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::node::Expected;
use crate::layout::superblock::{MAX_LEVEL, TreeRoot};
use ivers_vfs::Result;

/// A block whose copy adds references.
struct Shared {
    level: u8,
    /// The addresses of the blocks or extents that get one more reference.
    below: Vec<u64>,
}

impl Tx<'_> {
    /// Copies the shared blocks on the paths to some keys if space is short, and finds space for the change
    /// itself. Call it before the first step of the change.
    pub(super) fn unshare_paths(&mut self, need: Need, tree: u64, keys: &[Key]) -> Result<()> {
        if !self.is_short() {
            return Ok(());
        }
        for &key in keys {
            while let Some(Shared { level, below }) = self.first_shared(tree, key)? {
                let leaves = self.extent_leaves(below)?;
                // Each leaf of the extent tree is copied. An item that grows divides a full leaf; if more
                // than half of the leaves are full, the blocks that the change must leave serve for that.
                self.make_room(need, leaves + leaves / 2 + u64::from(MAX_LEVEL))?;
                self.copy_path(tree, key, level)?;
                self.end_change()?;
            }
        }
        self.make_room(need, 0)
    }

    /// [`Tx::unshare_paths`] for the item of an inode and one more key.
    pub(crate) fn unshare_for(&mut self, need: Need, vnode: &Vnode, key: Key) -> Result<()> {
        let orphan = Key::new(object::ORPHANS, kind::ORPHAN_ITEM, vnode.objectid);
        self.unshare_paths(need, vnode.subvolume, &[key, vnode.item_key(), orphan])
    }

    /// Returns whether a change of this key must first copy shared blocks in a change of their own.
    pub(super) fn must_unshare(&self, tree: u64, key: Key) -> Result<bool> {
        Ok(self.is_short() && self.first_shared(tree, key)?.is_some())
    }

    /// The highest block on the path to a key whose copy adds references.
    fn first_shared(&self, tree: u64, key: Key) -> Result<Option<Shared>> {
        if !is_subvolume(tree) {
            return Ok(None);
        }
        let root = self.root(tree)?;
        let mut expected = whole(tree, root.root);
        loop {
            let node = self.fs.forest.node(&expected)?;
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
            let mut expected = whole(object::EXTENT_TREE, self.root(object::EXTENT_TREE)?.root);
            while expected.level > 0 {
                let node = self.fs.forest.node(&expected)?;
                expected = node.expected_below(node.at_most(key).saturating_sub(1), &expected);
            }
            end_of_leaf = expected.below;
        }
        Ok(count)
    }
}

fn whole(tree: u64, root: TreeRoot) -> Expected {
    let TreeRoot { bytenr, generation, level } = root;
    Expected { bytenr, generation, level, tree, first: None, below: None }
}
