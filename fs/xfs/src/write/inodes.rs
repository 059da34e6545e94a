//! Allocating and freeing inodes, and their chunks. Chunks stay when all their inodes are free.

use super::extent::FreeExtent;
use super::find::GroupRequest;
use super::tree::{Cursor, Tree};
use super::tx::Tx;
use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO};
use crate::layout::chunk::{CHUNK_INODES, InodeChunk};
use crate::layout::features::{Incompat, RoCompat};
use crate::layout::owner::Owner;
use crate::layout::raw::RawDinode;
use crate::layout::tree::TreeKind;
use crate::unit::Whose;
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};
use zerocopy::{FromZeros, IntoBytes};

const fn chunks(ag: u32) -> Tree {
    Tree::new(TreeKind::Inodes, ag)
}

const fn free_chunks(ag: u32) -> Tree {
    Tree::new(TreeKind::FreeInodes, ag)
}

/// A chunk, and where its records are.
struct PlacedChunk {
    chunk: InodeChunk,
    /// In the inode B-tree.
    place: Cursor,
    /// In the B-tree of free inodes, if it was looked for there.
    free_place: Option<Cursor>,
}

impl Tx<'_> {
    fn is_sparse(&self) -> bool {
        self.space().sb.incompat.contains(Incompat::SPARSE)
    }

    fn has_free_tree(&self) -> bool {
        self.space().sb.ro_compat.contains(RoCompat::FINOBT)
    }

    fn chunk_at(&mut self, tree: Tree, cursor: &Cursor) -> Result<InodeChunk> {
        let record = self.record(tree, cursor)?;
        let chunk = InodeChunk::decode(&record, self.is_sparse());
        let space = self.space();
        let last = chunk.first.checked_add(63 - (!chunk.holes).leading_zeros().min(63));
        let in_group = last.is_some_and(|last| last >> space.sb.inopb_bits < space.sb.ag_len(tree.ag));
        let what = match chunk.contradiction() {
            None if in_group => return Ok(chunk),
            None => "a chunk of inodes lies outside of its group",
            Some(what) => what,
        };
        Err(space.corrupt(format!("{what}, at inode {} of the group", chunk.first), Whose::Group(tree.ag)))
    }

    /// The chunk of an inode, and the place of its record.
    fn chunk_of(&mut self, tree: Tree, agino: u32) -> Result<Option<(Cursor, InodeChunk)>> {
        let Some(cursor) = self.at_most(tree, [agino.into(), 0, 0])? else { return Ok(None) };
        let chunk = self.chunk_at(tree, &cursor)?;
        Ok((u64::from(agino - chunk.first) < CHUNK_INODES).then_some((cursor, chunk)))
    }

    /// Allocates an inode near another one, a directory in another group. `None` if there is no space.
    ///
    /// Its slot in the cluster has the generation and the change counter of the inode that was there before.
    pub(crate) fn allocate_inode(&mut self, parent: u64, is_directory: bool) -> Result<Option<u64>> {
        let sb = &self.space().sb;
        let (parent_ag, parent_agino) = sb.agino(parent).unwrap_or((0, 0));
        let groups = self.groups();
        let first = if is_directory {
            // Several directories in a row go to different groups, as do the files in them.
            let next = groups.next_directory % sb.ag_count;
            groups.next_directory = next + 1;
            next
        } else {
            parent_ag
        };
        for nth in 0..sb.ag_count {
            let ag = (first + nth) % sb.ag_count;
            let near = if ag == parent_ag { parent_agino } else { 0 };
            let is_full = self.with_agi(ag, |agi| agi.agi_freecount.get() == 0)?;
            if is_full && !self.allocate_chunk(ag)? {
                continue;
            }
            let placed = self.free_chunk_near(ag, near)?;
            let (first, free) = (placed.chunk.first, placed.chunk.free & !placed.chunk.holes);
            let agino = first + free.trailing_zeros();
            self.mark_inodes(ag, placed, 1 << (agino - first), false)?;
            return Ok(Some(sb.ino(ag, agino)));
        }
        Ok(None)
    }

    /// Frees an inode. The caller logs it as free, and took it from its list of unlinked inodes.
    pub(crate) fn free_inode(&mut self, ino: u64) -> Result<()> {
        self.free_inodes(&[ino])
    }

    /// As [`Tx::free_inode`], for several. Each chunk changes once for neighbours in the list.
    pub(crate) fn free_inodes(&mut self, inos: &[u64]) -> Result<()> {
        let mut rest = inos;
        while let Some(&first) = rest.first() {
            let (ag, agino) = self.space().sb.agino(first).ok_or_else(|| self.no_inode(first))?;
            let found = self.chunk_of(chunks(ag), agino)?;
            let (cursor, chunk) = found.ok_or_else(|| self.no_inode(first))?;
            let mut bits = 0;
            while let Some(&ino) = rest.first() {
                let place = self.space().sb.agino(ino).filter(|(other, _)| *other == ag);
                let index = place.and_then(|(_, agino)| agino.checked_sub(chunk.first));
                let Some(index) = index.filter(|index| u64::from(*index) < CHUNK_INODES) else { break };
                if (chunk.free | bits) >> index & 1 != 0 {
                    return Err(self.no_inode(ino));
                }
                bits |= 1 << index;
                rest = &rest[1..];
            }
            self.mark_inodes(ag, PlacedChunk { chunk, place: cursor, free_place: None }, bits, true)?;
        }
        Ok(())
    }

    fn no_inode(&self, ino: u64) -> Error {
        self.space().corrupt("an inode is freed that is not in use", Whose::Inode(ino))
    }

    /// A chunk with a free inode, and its places in the B-trees.
    fn free_chunk_near(&mut self, ag: u32, near: u32) -> Result<PlacedChunk> {
        let contradicts = |tx: &Self| {
            let what = "the AGI has free inodes that the B-trees do not have";
            Err(tx.space().corrupt(what, Whose::Group(ag)))
        };
        let tree = if self.has_free_tree() { free_chunks(ag) } else { chunks(ag) };
        let distance = |chunk: &InodeChunk| chunk.first.abs_diff(near);
        let mut best: Option<(Cursor, InodeChunk)> = None;
        for forward in [false, true] {
            // Nothing is nearer than the chunk of the inode itself.
            if best.as_ref().is_some_and(|(_, chunk)| u64::from(distance(chunk)) < CHUNK_INODES) {
                break;
            }
            let Some(mut cursor) = self.beside(tree, [near.into(), 0, 0], forward)? else { continue };
            // No group has more chunks.
            for _ in 0..self.space().sb.ag_len(ag) {
                let chunk = self.chunk_at(tree, &cursor)?;
                if chunk.free_count > 0 {
                    let is_nearer = best.as_ref().is_none_or(|(_, best)| distance(&chunk) < distance(best));
                    best = if is_nearer { Some((cursor, chunk)) } else { best };
                    break;
                }
                if !self.step(tree, &mut cursor, forward)? {
                    break;
                }
            }
        }
        let Some((found, best)) = best else { return contradicts(self) };
        if !self.has_free_tree() {
            return Ok(PlacedChunk { chunk: best, place: found, free_place: None });
        }
        match self.chunk_of(chunks(ag), best.first)? {
            Some((place, chunk)) if chunk == best => {
                Ok(PlacedChunk { chunk, place, free_place: Some(found) })
            }
            _ => contradicts(self),
        }
    }

    /// Marks inodes of a chunk as free or in use: those whose bits are set.
    fn mark_inodes(&mut self, ag: u32, placed: PlacedChunk, bits: u64, free: bool) -> Result<()> {
        let PlacedChunk { chunk, place, free_place } = placed;
        let (sparse, count) = (self.is_sparse(), bits.count_ones());
        let (inodes, old) = (u64::from(count), chunk.free_count);
        let marked = match free {
            true => InodeChunk { free: chunk.free | bits, free_count: old.saturating_add(inodes), ..chunk },
            false => InodeChunk { free: chunk.free & !bits, free_count: old.saturating_sub(inodes), ..chunk },
        };
        self.update(chunks(ag), &place, &marked.encode(sparse))?;
        match free_place {
            Some(place) => self.set_free_chunk_at(ag, place, marked)?,
            None if self.has_free_tree() => self.set_free_chunk(ag, Some(chunk), marked)?,
            None => {}
        }
        self.modify_agi(ag, |agi| {
            let old = agi.agi_freecount.get();
            agi.agi_freecount = if free { old.wrapping_add(count) } else { old.wrapping_sub(count) }.into();
        })
    }

    /// Changes the record of a chunk in the B-tree of free inodes, which has only chunks with free inodes.
    fn set_free_chunk(&mut self, ag: u32, before: Option<InodeChunk>, after: InodeChunk) -> Result<()> {
        let tree = free_chunks(ag);
        let Some(before) = before.filter(|before| before.free_count > 0) else {
            return self.insert(tree, &after.encode(self.is_sparse()));
        };
        let found = self.chunk_of(tree, before.first)?;
        let Some((cursor, _)) = found.filter(|(_, chunk)| *chunk == before) else {
            let what = "the B-tree of free inodes differs from the inode B-tree";
            return Err(self.space().corrupt(what, Whose::Group(ag)));
        };
        self.set_free_chunk_at(ag, cursor, after)
    }

    /// As [`Tx::set_free_chunk`], of a record that was found.
    fn set_free_chunk_at(&mut self, ag: u32, place: Cursor, after: InodeChunk) -> Result<()> {
        let tree = free_chunks(ag);
        match after.free_count {
            0 => self.delete(tree, place),
            _ => self.update(tree, &place, &after.encode(self.is_sparse())),
        }
    }

    /// Allocates a chunk, or a part of one if the group has no space for a whole one. Returns whether there
    /// was space.
    fn allocate_chunk(&mut self, ag: u32) -> Result<bool> {
        let sb = &self.space().sb;
        let percent = u64::from(sb.inode_max_percent);
        let most = (sb.blocks / 100).saturating_mul(percent) << sb.inopb_bits;
        let (len, blocks, alignment) = (sb.ag_len(ag), sb.chunk_blocks(), sb.chunk_alignment());
        if percent != 0 && self.groups().counts.inodes.saturating_add(CHUNK_INODES) > most {
            return Ok(false);
        }
        let newest = self.with_agi(ag, |agi| agi.agi_newino.get())?;
        let goal = if newest == NULL_AGINO { 0 } else { (newest >> sb.inopb_bits).min(len - 1) };
        let whole = GroupRequest::new(Owner::INODES, goal, (blocks, blocks), len);
        let whole = GroupRequest { alignment, ..whole };
        if let Some(found) = self.allocate_in(ag, whole)? {
            for first in (0..blocks << sb.inopb_bits).step_by(CHUNK_INODES as usize) {
                let chunk = InodeChunk {
                    first: (found.start << sb.inopb_bits) + first,
                    holes: 0,
                    count: CHUNK_INODES,
                    free_count: CHUNK_INODES,
                    free: u64::MAX,
                };
                self.add_chunk(ag, chunk)?;
            }
            self.write_inodes(ag, found)?;
            return Ok(true);
        }
        let part = sb.geometry.sparse_alignment;
        if !self.is_sparse() || part == 0 || part >= blocks || !part.is_multiple_of(sb.cluster_blocks()) {
            return Ok(false);
        }
        let end = (len / alignment * alignment).saturating_sub(blocks);
        let request =
            GroupRequest { min: part, max: part, alignment: part, range: (alignment, end), ..whole };
        let Some(found) = self.allocate_in(ag, request)? else { return Ok(false) };
        let start = found.start / alignment * alignment;
        let skipped = (found.start - start) << sb.inopb_bits;
        let inodes = part << sb.inopb_bits;
        let exists = ((1u128 << inodes) - 1) << skipped;
        let chunk = InodeChunk {
            first: start << sb.inopb_bits,
            holes: !(exists as u64),
            count: inodes.into(),
            free_count: inodes.into(),
            free: u64::MAX,
        };
        self.add_chunk(ag, chunk)?;
        self.write_inodes(ag, found)?;
        Ok(true)
    }

    /// Adds new inodes to the B-trees. A part of a chunk is joined with the parts that exist.
    fn add_chunk(&mut self, ag: u32, new: InodeChunk) -> Result<()> {
        let found = self.chunk_of(chunks(ag), new.first.saturating_add(CHUNK_INODES as u32 - 1))?;
        let sparse = self.is_sparse();
        match found {
            Some((cursor, old)) => {
                if old.first != new.first || old.holes | new.holes != u64::MAX {
                    let what = format!("chunks of inodes overlap at inode {} of the group", new.first);
                    return Err(self.space().corrupt(what, Whose::Group(ag)));
                }
                let joined = InodeChunk {
                    holes: old.holes & new.holes,
                    count: old.count + new.count,
                    free_count: old.free_count + new.free_count,
                    ..old
                };
                self.update(chunks(ag), &cursor, &joined.encode(sparse))?;
                if self.has_free_tree() {
                    self.set_free_chunk(ag, Some(old), joined)?;
                }
            }
            None => {
                self.insert(chunks(ag), &new.encode(sparse))?;
                if self.has_free_tree() {
                    self.set_free_chunk(ag, None, new)?;
                }
            }
        }
        self.modify_agi(ag, |agi| {
            agi.agi_count = (agi.agi_count.get() + new.count as u32).into();
            agi.agi_freecount = (agi.agi_freecount.get() + new.free_count as u32).into();
            agi.agi_newino = new.first.into();
        })
    }

    /// Writes free inodes to new blocks.
    fn write_inodes(&mut self, ag: u32, blocks: FreeExtent) -> Result<()> {
        let space = self.space();
        let sb = &space.sb;
        for first in (blocks.start..blocks.end()).step_by(sb.cluster_blocks() as usize) {
            let cluster: Vec<BlockNo> =
                (first..first + sb.cluster_blocks()).filter_map(|block| sb.ag_block(ag, block)).collect();
            self.new_unit(&cluster);
            self.modify(&cluster, None, Whose::Group(ag), |bytes| {
                for (index, slot) in bytes.chunks_exact_mut(sb.inode_size as usize).enumerate() {
                    let ino = sb.ino(ag, (first << sb.inopb_bits) + index as u32);
                    let mut raw = RawDinode::new_zeroed();
                    raw.di_magic = MAGIC_INODE.into();
                    raw.di_version = 3;
                    // A file that gets a number again must differ from its predecessor, also from one in a
                    // chunk that Linux has freed.
                    raw.di_gen = space.first_generation(ino).into();
                    raw.di_next_unlinked = NULL_AGINO.into();
                    raw.di_ino = ino.into();
                    raw.di_uuid = sb.meta_uuid;
                    slot[..raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
                }
            })?;
        }
        Ok(())
    }

    /// Whether the inode B-tree says that an inode is in use.
    #[cfg(test)]
    pub(crate) fn is_inode_in_use(&mut self, ino: u64) -> Result<bool> {
        let Some((ag, agino)) = self.space().sb.agino(ino) else { return Ok(false) };
        let found = self.chunk_of(chunks(ag), agino)?;
        Ok(found.is_some_and(|(_, chunk)| chunk.has(agino)))
    }
}
