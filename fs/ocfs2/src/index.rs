//! Indexes of directories: which block has a name, by its hash.
//!
//! The root of an index has the entries itself, or a tree of clusters. A cluster has the entries from one
//! hash to the next; which of its blocks has an entry is in the second half of the hash. If a block of a
//! cluster is full, new clusters replace the extent. Their leaves are written directly to the device before
//! the transaction commits. The transaction allocates them, changes the tree, and frees the old ones.

use crate::alloc::{Origin, Sub};
use crate::change::Change;
use crate::layout::blockcheck::{self, CHECK_BYTES};
use crate::layout::bytes::{put_u16, put_u32, put_u64, u8_at, u16_at, u32_at, u64_at};
use crate::layout::dinode::{DX_ROOT_AT, Dinode, dyn_features, put_features};
use crate::layout::directory::{IndexEntry, index_entries, index_room, put_index};
use crate::layout::extents::{Extent, ExtentList};
use crate::layout::name_hash;
use crate::layout::shape::{DX_LEAF, DX_ROOT};
use crate::layout::superblock::incompat;
use crate::tree::Root;
use crate::volume::Ocfs2;
use ivers_block::BlockNo;
use ivers_vfs::{NameError, Result};
use std::ops::Range;

/// Offsets in the root: clusters of the tree, flags, the directory, the number of entries, the first block
/// with free space.
const CLUSTERS_AT: usize = 0x28;
const FLAGS_AT: usize = 0x2C;
const DIR_AT: usize = 0x30;
const COUNT_AT: usize = 0x38;
pub(crate) const FREE_AT: usize = 0x40;
/// Offsets of the entries, or of the list of extents, in the root, and of the entries in a leaf.
const ROOT_LIST_AT: usize = 0xC0;
const LEAF_LIST_AT: usize = 0x28;
/// The flag of a root that has the entries itself.
const INLINE: u8 = 1;
/// Most clusters that replace one.
const SPLIT_MAX: usize = 8;

/// Where an entry is put. Nothing has changed yet.
pub(crate) enum Place {
    /// In the root, or in a leaf.
    List(u64),
    /// Clusters that replace one, or the entries in the root: the first hash and the entries of each. The new
    /// one is included, without its block.
    Split(Option<Extent>, Vec<(u32, Vec<IndexEntry>)>),
}

impl Place {
    /// Clusters that are needed.
    pub fn clusters(&self) -> u64 {
        if let Self::Split(_, parts) = self { parts.len() as u64 } else { 0 }
    }
}

impl Ocfs2 {
    pub(crate) fn is_indexed(&self, dir: &Dinode) -> bool {
        dir.dyn_features & dyn_features::INDEXED_DIR != 0 && !dir.is_inline()
    }

    pub(crate) fn leaf_of(&self, extent: &Extent, [major, minor]: [u32; 2]) -> u64 {
        let per_cluster = u64::from(self.sb.blocks_per_cluster);
        let nth = u64::from(major.saturating_sub(extent.cpos).min(extent.clusters.saturating_sub(1)));
        extent.start + nth * per_cluster + u64::from(minor) % per_cluster
    }

    /// Calls `with` with the entries in the root of an index or in a leaf, and with how many there may be.
    fn with_index_list<R>(
        &self,
        dir: &Dinode,
        block: u64,
        with: impl FnOnce(&mut dyn Iterator<Item = IndexEntry>, usize) -> R,
    ) -> Result<R> {
        let is_root = block == dir.dx_root;
        let shape = if is_root { &DX_ROOT } else { &DX_LEAF };
        let bytes = self.structure(block, shape)?;
        let list = &bytes[if is_root { ROOT_LIST_AT } else { LEAF_LIST_AT }..];
        let mut entries = index_entries(list).map_err(|what| self.corrupt_block(block, what))?;
        Ok(with(&mut entries, index_room(list)))
    }

    fn index_list(&self, dir: &Dinode, block: u64) -> Result<(Vec<IndexEntry>, usize)> {
        self.with_index_list(dir, block, |entries, room| (entries.collect(), room))
    }

    /// Returns the block of the index that has entries of a hash, and the extent that it is in.
    fn index_block(&self, dir: &Dinode, hash: [u32; 2]) -> Result<(u64, Option<Extent>)> {
        let bytes = self.structure(dir.dx_root, &DX_ROOT)?;
        if u64_at(&bytes, DIR_AT) != dir.ino {
            return Err(self.corrupt_block(dir.dx_root, "the index is of another directory"));
        }
        if u8_at(&bytes, FLAGS_AT) & INLINE != 0 {
            return Ok((dir.dx_root, None));
        }
        let extent = self.extent_before(&Root::of_index(dir.dx_root, dir.ino), hash[0])?;
        let extent = extent.ok_or_else(|| self.corrupt_block(dir.dx_root, "the index has a gap"))?;
        Ok((self.leaf_of(&extent, hash), Some(extent)))
    }

    /// Returns the blocks of a directory in which a name may be.
    pub(crate) fn indexed_blocks(&self, dir: &Dinode, name: &[u8]) -> Result<Vec<u64>> {
        let hash = name_hash::of_name(name, self.sb.dx_seed);
        let (block, _) = self.index_block(dir, hash)?;
        self.with_index_list(dir, block, |entries, _| {
            entries.filter(|(other, _)| *other == hash).map(|(_, block)| block).collect()
        })
    }

    /// Finds a place for the entry of a name.
    pub(crate) fn index_place(&self, dir: &Dinode, name: &[u8]) -> Result<Place> {
        let hash = name_hash::of_name(name, self.sb.dx_seed);
        let (block, extent) = self.index_block(dir, hash)?;
        if self.with_index_list(dir, block, |entries, room| entries.count() < room)? {
            return Ok(Place::List(block));
        }
        let mut entries = Vec::new();
        if let Some(extent) = &extent {
            let per_cluster = u64::from(self.sb.blocks_per_cluster);
            let blocks = u64::from(extent.clusters) * per_cluster;
            for block in extent.start..extent.start + blocks {
                entries.extend(self.index_list(dir, block)?.0);
            }
        } else {
            entries = self.index_list(dir, block)?.0;
        }
        entries.push((hash, 0));
        entries.sort_by_key(|(hash, _)| hash[0]);
        let first = extent.map_or(0, |extent| extent.cpos);
        // The entries in the root fit into one cluster, unless its blocks are filled unevenly.
        let mut count = if extent.is_some() { 2 } else { 1 };
        while count <= SPLIT_MAX {
            if let Some(parts) = self.split_entries(&entries, first, count) {
                return Ok(Place::Split(extent, parts));
            }
            count += 1;
        }
        Err(NameError::NoSpace.into())
    }

    /// Divides sorted entries into at most `count` clusters. Entries with one hash stay together. Returns
    /// `None` if a block would overflow.
    fn split_entries(
        &self,
        entries: &[IndexEntry],
        first: u32,
        count: usize,
    ) -> Option<Vec<(u32, Vec<IndexEntry>)>> {
        let room = (self.sb.block_size as usize - LEAF_LIST_AT - 8) / 16;
        let mut parts: Vec<(u32, Vec<IndexEntry>)> = vec![(first, Vec::new())];
        for (nth, entry) in entries.iter().enumerate() {
            let hash = entry.0[0];
            let is_due = nth * count >= parts.len() * entries.len();
            let last = parts.last_mut()?;
            if is_due && hash > last.0 && last.1.last().is_some_and(|before| before.0[0] != hash) {
                parts.push((hash, vec![*entry]));
            } else {
                last.1.push(*entry);
            }
        }
        let fits = parts.iter().all(|(_, entries)| {
            let blocks = self.sb.blocks_per_cluster as usize;
            let mut used = vec![0; blocks];
            entries.iter().for_each(|(hash, _)| used[hash[1] as usize % blocks] += 1);
            used.into_iter().all(|used| used <= room)
        });
        fits.then_some(parts)
    }

    /// Credits for the index of a directory that gets a name there, beside those of one leaf.
    pub(crate) fn index_credits(&self, dir: &Dinode, place: &Place) -> Result<u32> {
        match place {
            Place::Split(Some(old), _) => self.leaf_credits(&Root::of_index(dir.dx_root, dir.ino), old.cpos),
            _ => Ok(0),
        }
    }

    /// As [`index_credits`](Self::index_credits), for a name that is not known.
    pub(crate) fn index_credits_max(&self, dir: &Dinode) -> Result<u32> {
        if !self.is_indexed(dir) || u8_at(&self.structure(dir.dx_root, &DX_ROOT)?, FLAGS_AT) & INLINE != 0 {
            return Ok(0);
        }
        self.leaf_credits(&Root::of_index(dir.dx_root, dir.ino), 0)
    }
}

impl Change<'_> {
    /// Changes the entries in the root of an index or in a leaf, and their number.
    fn put_index_list(&mut self, dir: &Dinode, block: u64, entries: &[IndexEntry], more: i32) -> Result<()> {
        let is_root = block == dir.dx_root;
        let shape = if is_root { &DX_ROOT } else { &DX_LEAF };
        let at = if is_root { ROOT_LIST_AT } else { LEAF_LIST_AT };
        self.put_shape(block, shape, |bytes| put_index(&mut bytes[at..], entries))?;
        self.put_shape(dir.dx_root, &DX_ROOT, |bytes| {
            let count = u32_at(bytes, COUNT_AT).saturating_add_signed(more);
            put_u32(bytes, COUNT_AT, count);
        })
    }

    /// Adds the entry of a name that a block has now.
    pub fn index_add(&mut self, dir: &Dinode, place: Place, name: &[u8], block: u64) -> Result<()> {
        let new = (name_hash::of_name(name, self.fs.sb.dx_seed), block);
        let (old, parts) = match place {
            Place::List(list) => {
                let (mut entries, _) = self.fs.index_list(dir, list)?;
                entries.push(new);
                return self.put_index_list(dir, list, &entries, 1);
            }
            Place::Split(old, parts) => (old, parts),
        };
        let mut extents = Vec::new();
        for (first, mut entries) in parts {
            for entry in entries.iter_mut().filter(|entry| entry.0 == new.0 && entry.1 == 0) {
                entry.1 = block;
            }
            let range = self.clusters(0, 1)?;
            let start = range.start * u64::from(self.fs.sb.blocks_per_cluster);
            self.write_leaves(start, &entries)?;
            extents.push(Extent { cpos: first, clusters: 1, start, flags: 0 });
        }
        let (root, added) = (Root::of_index(dir.dx_root, dir.ino), extents.len() as i32);
        let lost = old.map_or(0, |old| old.clusters);
        if old.is_none() {
            self.put_shape(dir.dx_root, &DX_ROOT, |bytes| {
                bytes[FLAGS_AT] &= !INLINE;
                ExtentList::encode_empty(&mut bytes[ROOT_LIST_AT..]);
            })?;
        }
        self.replace(&root, old.map_or(0, |old| old.cpos), old.is_some(), &extents)?;
        if let Some(old) = old {
            self.free_leaves(&old)?;
        }
        self.put_shape(dir.dx_root, &DX_ROOT, |bytes| {
            put_u32(bytes, COUNT_AT, u32_at(bytes, COUNT_AT).saturating_add(1));
            let clusters = u32_at(bytes, CLUSTERS_AT).saturating_sub(lost).saturating_add_signed(added);
            put_u32(bytes, CLUSTERS_AT, clusters);
        })
    }

    /// Writes the leaves of a new cluster to the device.
    fn write_leaves(&self, start: u64, entries: &[IndexEntry]) -> Result<()> {
        let (sb, per_cluster) = (&self.fs.sb, self.fs.sb.blocks_per_cluster);
        let mut bytes = vec![0; sb.cluster_size() as usize];
        for (nth, leaf) in bytes.chunks_exact_mut(sb.block_size as usize).enumerate() {
            let own: Vec<IndexEntry> = entries
                .iter()
                .filter(|(hash, _)| hash[1] as usize % per_cluster as usize == nth)
                .copied()
                .collect();
            DX_LEAF.put(leaf, start + nth as u64, sb.generation);
            put_index(&mut leaf[LEAF_LIST_AT..], &own);
            if sb.has(incompat::META_ECC) {
                let check = blockcheck::compute(leaf, DX_LEAF.check_at);
                leaf[DX_LEAF.check_at..DX_LEAF.check_at + CHECK_BYTES].copy_from_slice(&check);
            }
        }
        Ok(self.fs.cache.device().write_at(BlockNo(start).offset(sb.block_size), &bytes)?)
    }

    fn free_leaves(&mut self, extent: &Extent) -> Result<()> {
        let blocks = u64::from(extent.clusters) * u64::from(self.fs.sb.blocks_per_cluster);
        let first = self.fs.sb.cluster_of(extent.start);
        self.free_clusters(first..first + u64::from(extent.clusters))?;
        self.forget(extent.start..extent.start + blocks);
        Ok(())
    }

    /// Removes the entry of a name that a block has.
    pub fn index_remove(&mut self, dir: &Dinode, name: &[u8], block: u64) -> Result<()> {
        let old = (name_hash::of_name(name, self.fs.sb.dx_seed), block);
        let (list, _) = self.fs.index_block(dir, old.0)?;
        let (mut entries, _) = self.fs.index_list(dir, list)?;
        let Some(nth) = entries.iter().position(|entry| *entry == old) else {
            return Err(self.fs.corrupt(dir.ino, "the index of the directory lacks a name; run ivers check"));
        };
        entries.remove(nth);
        self.put_index_list(dir, list, &entries, -1)
    }

    /// Creates the index of a directory that has one block with these names.
    pub fn index_new(&mut self, dir: &mut Dinode, names: &[Vec<u8>], block: u64, free: u64) -> Result<()> {
        let (seed, generation, ino) = (self.fs.sb.dx_seed, self.fs.sb.generation, dir.ino);
        let entries: Vec<IndexEntry> =
            names.iter().map(|name| (name_hash::of_name(name, seed), block)).collect();
        let taken = self.block(Sub::Blocks)?;
        let room = (self.fs.sb.block_size as usize - ROOT_LIST_AT - 8) / 16;
        if entries.len() > room {
            return Err(self
                .fs
                .corrupt(ino, "the directory has more names than fit into the root of its index"));
        }
        self.put_new(taken.block, DX_ROOT.check_at, |bytes| {
            DX_ROOT.put(bytes, taken.block, generation);
            put_u16(bytes, 0x12, taken.bit);
            bytes[FLAGS_AT] = INLINE;
            put_u64(bytes, DIR_AT, ino);
            put_u32(bytes, COUNT_AT, entries.len() as u32);
            put_u64(bytes, FREE_AT, free);
            put_index(&mut bytes[ROOT_LIST_AT..], &entries);
        })?;
        self.put_inode(dir, |bytes| {
            put_u64(bytes, DX_ROOT_AT, taken.block);
            put_features(bytes, dyn_features::INDEXED_DIR, 0);
        })
    }

    /// Frees a part of the index of a directory that is deleted. Returns whether there may be more.
    pub fn index_cut(&mut self, dir: &mut Dinode) -> Result<bool> {
        if !self.fs.is_indexed(dir) {
            return Ok(false);
        }
        let (is_inline, origin): (bool, Origin) = {
            let bytes = self.fs.structure(dir.dx_root, &DX_ROOT)?;
            // `dr_suballoc_loc` follows the list of free blocks.
            let origin = (u16_at(&bytes, 0x10), u16_at(&bytes, 0x12), u64_at(&bytes, 0x48));
            (u8_at(&bytes, FLAGS_AT) & INLINE != 0, origin)
        };
        let root = Root::of_index(dir.dx_root, dir.ino);
        let last = if is_inline { None } else { self.fs.extent_before(&root, u32::MAX)? };
        if let Some(last) = last {
            self.replace(&root, last.cpos, true, &[])?;
            self.free_leaves(&last)?;
            return Ok(true);
        }
        self.free_block(Sub::Blocks, dir.dx_root, origin)?;
        self.put_inode(dir, |bytes| {
            put_u64(bytes, DX_ROOT_AT, 0);
            put_features(bytes, 0, dyn_features::INDEXED_DIR);
        })?;
        Ok(false)
    }

    /// Sets the first block of the list of blocks with free space.
    pub fn put_free_list(&mut self, dir: &Dinode, first: u64) -> Result<()> {
        self.put_shape(dir.dx_root, &DX_ROOT, |bytes| put_u64(bytes, FREE_AT, first))
    }
}

/// The range of bytes of a block of a directory that has entries.
pub(crate) fn entries_of(block: &[u8], has_trailer: bool) -> Range<usize> {
    0..block.len() - if has_trailer { crate::layout::directory::TRAILER_BYTES } else { 0 }
}
