//! Entries of leaf and node directories.

use super::data::{Target, place_of};
use super::leaf::{Leaf, LeafEdit};
use crate::dir::name_hash;
use crate::fork::Which;
use crate::inode::Dinode;
use crate::layout::directory::{NO_BEST, dir_unit};
use crate::write::hash_tree::{Path, Shape};
use crate::write::hashes::Hashes;
use crate::write::tx::Tx;
use ivers_block::FileBlock;
use ivers_vfs::Result;

impl Tx<'_> {
    fn leaf_at(&self, dir: &Dinode, tree: Shape, at: FileBlock) -> Result<Leaf> {
        self.read_tree(dir, tree, at, |bytes| Leaf::decode(&self.space().sb, bytes))
    }

    fn store_leaf(&mut self, dir: &Dinode, tree: Shape, at: FileBlock, leaf: &Leaf) -> Result<()> {
        let sb = &self.space().sb;
        self.change_tree(dir, tree, at, |bytes| leaf.encode(sb, bytes))
    }

    /// Changes a leaf of a node directory where it is.
    fn change_leaf<R>(
        &mut self,
        dir: &Dinode,
        tree: Shape,
        at: FileBlock,
        edit: impl FnOnce(&mut LeafEdit<'_>) -> R,
    ) -> Result<R> {
        let sb = &self.space().sb;
        self.try_change_tree(dir, tree, at, |bytes| Ok(edit(&mut LeafEdit::new(sb, bytes)?)))
    }

    /// The only leaf of a leaf directory, and what it says of free space.
    fn only_leaf(&self, dir: &Dinode) -> Result<(Leaf, Vec<u16>)> {
        let tree = self.dir_tree();
        let mut leaf = self.leaf_at(dir, tree, tree.root)?;
        match leaf.bests.take() {
            Some(bests) => Ok((leaf, bests)),
            None => Err(self.space().corrupt("the leaf of a directory changed its form", dir.whose())),
        }
    }

    pub(super) fn add_to_leaf(&mut self, dir: &mut Dinode, name: &[u8], target: Target) -> Result<bool> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        let (mut leaf, mut bests) = self.only_leaf(dir)?;
        let len = self.entry_len(name);
        let with_space = bests.iter().position(|best| *best != NO_BEST && *best >= len);
        let nth = match with_space {
            Some(nth) => nth,
            None => bests.iter().position(|best| *best == NO_BEST).unwrap_or(bests.len()),
        };
        bests.resize(bests.len().max(nth + 1), NO_BEST);
        if !leaf.takes_one(sb, bests.len()) {
            leaf.hashes.compact();
            if !leaf.takes_one(sb, bests.len()) {
                return Ok(false);
            }
        }
        if with_space.is_none() {
            self.new_data_block(dir, nth as u64)?;
        }
        let (address, best) = self.add_to_data(dir, nth as u64, name, target)?;
        bests[nth] = best;
        leaf.hashes.insert(name_hash(sb, name), address);
        leaf.bests = Some(bests);
        self.store_leaf(dir, tree, tree.root, &leaf)?;
        Ok(true)
    }

    pub(super) fn remove_from_leaf(&mut self, dir: &mut Dinode, hash: u32, address: u32) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        let (mut leaf, mut bests) = self.only_leaf(dir)?;
        let nth = place_of(sb, address).0 as usize;
        if !leaf.hashes.remove(hash, address) || nth >= bests.len() {
            return Err(self.space().corrupt("an entry of a directory has no hash", dir.whose()));
        }
        let (best, is_empty) = self.remove_from_data(dir, address)?;
        bests[nth] = best;
        if is_empty && nth > 0 {
            self.free_data_block(dir, nth as u64)?;
            bests[nth] = NO_BEST;
            while bests.last() == Some(&NO_BEST) {
                bests.pop();
            }
        }
        leaf.bests = Some(bests);
        self.store_leaf(dir, tree, tree.root, &leaf)?;
        self.leaf_to_block(dir, leaf)
    }

    pub(super) fn leaf_to_node(&mut self, dir: &mut Dinode) -> Result<()> {
        let tree = self.dir_tree();
        let (leaf, bests) = self.only_leaf(dir)?;
        self.new_free_block(dir, 0, bests)?;
        self.store_leaf(dir, tree, tree.root, &leaf)
    }

    pub(super) fn add_to_node(&mut self, dir: &mut Dinode, name: &[u8], target: Target) -> Result<()> {
        let sb = &self.space().sb;
        let unit = dir_unit(sb);
        let nth = match self.data_block_with(dir, self.entry_len(name))? {
            Some(nth) => nth,
            None => {
                let nth = self.first_hole(dir, Which::Data, FileBlock(0), unit)?.0 / unit;
                self.new_data_block(dir, nth)?;
                nth
            }
        };
        let (address, best) = self.add_to_data(dir, nth, name, target)?;
        self.set_best(dir, nth, best)?;
        self.add_hash(dir, name_hash(sb, name), address)
    }

    fn add_hash(&mut self, dir: &mut Dinode, hash: u32, address: u32) -> Result<()> {
        let tree = self.dir_tree();
        let mut path = self.find_leaf(dir, tree, hash)?;
        let last = self.change_leaf(dir, tree, path.leaf, |leaf| {
            let added = leaf.insert(hash, address);
            added.then(|| leaf.last_hash())
        })?;
        if let Some(last) = last {
            return self.set_last_hash(dir, tree, &path, last);
        }
        let mut leaf = self.leaf_at(dir, tree, path.leaf)?;
        if path.is_root() {
            self.push_root_down(dir, tree, &mut path, leaf.hashes.last_hash())?;
        }
        let all = &mut leaf.hashes.0;
        let mut right = Leaf { hashes: Hashes(all.split_off(all.len() / 2)), bests: None };
        let half = if hash <= leaf.hashes.last_hash() { &mut leaf } else { &mut right };
        half.hashes.insert(hash, address);
        let new = self.new_tree_unit(dir, tree)?;
        self.store_leaf(dir, tree, path.leaf, &leaf)?;
        self.store_leaf(dir, tree, new, &right)?;
        let lasts = (leaf.hashes.last_hash(), right.hashes.last_hash());
        self.add_leaf_after(dir, tree, &path, lasts, new)
    }

    pub(super) fn remove_from_node(&mut self, dir: &mut Dinode, hash: u32, address: u32) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        let mut path = self.find_leaf(dir, tree, hash)?;
        let remove = |leaf: &mut LeafEdit<'_>| (leaf.remove(hash, address), leaf.last_hash(), leaf.live());
        let live = loop {
            let (removed, last, live) = self.change_leaf(dir, tree, path.leaf, remove)?;
            if removed {
                break live;
            }
            if last > hash || !self.next_leaf(dir, tree, &mut path)? {
                return Err(self.space().corrupt("an entry of a directory has no hash", dir.whose()));
            }
        };
        let nth = place_of(sb, address).0;
        let (best, is_empty) = self.remove_from_data(dir, address)?;
        if is_empty && nth > 0 {
            self.free_data_block(dir, nth)?;
            self.set_best(dir, nth, NO_BEST)?;
        } else {
            self.set_best(dir, nth, best)?;
        }
        // Only then the tree can get smaller.
        if path.is_root() || live * 3 <= Leaf::room(&self.space().sb, None) {
            self.join_leaves(dir, tree, &path, live)?;
            self.node_to_leaf(dir)?;
        }
        Ok(())
    }

    /// Removes a leaf without entries, and joins one that has `live` entries with a leaf beside it if both
    /// fit easily in one.
    fn join_leaves(&mut self, dir: &mut Dinode, tree: Shape, path: &Path, live: usize) -> Result<()> {
        let room = Leaf::room(&self.space().sb, None);
        if live == 0 && !path.is_root() {
            return self.remove_leaf(dir, tree, path);
        }
        let Some((left_path, right_path)) = self.leaf_pair(dir, tree, path)? else { return Ok(()) };
        let mut left = self.leaf_at(dir, tree, left_path.leaf)?;
        let mut right = self.leaf_at(dir, tree, right_path.leaf)?;
        if (left.hashes.live() + right.hashes.live()) * 4 > room * 3 {
            return Ok(());
        }
        left.hashes.compact();
        right.hashes.compact();
        left.hashes.0.append(&mut right.hashes.0);
        self.store_leaf(dir, tree, left_path.leaf, &left)?;
        self.set_last_hash(dir, tree, &left_path, left.hashes.last_hash())?;
        self.remove_leaf(dir, tree, &right_path)
    }

    /// Turns a node directory into a leaf directory if one leaf is left, with space for the index of free
    /// space.
    fn node_to_leaf(&mut self, dir: &mut Dinode) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        if !self.find_leaf(dir, tree, 0)?.is_root() || self.free_blocks(dir)? != 1 {
            return Ok(());
        }
        let mut leaf = self.leaf_at(dir, tree, tree.root)?;
        let bests = self.free_block(dir, 0)?.bests;
        if leaf.hashes.live() > Leaf::room(sb, Some(bests.len())) {
            return Ok(());
        }
        leaf.hashes.compact();
        leaf.bests = Some(bests);
        self.drop_free_block(dir, 0)?;
        self.store_leaf(dir, tree, tree.root, &leaf)?;
        self.leaf_to_block(dir, leaf)
    }
}
