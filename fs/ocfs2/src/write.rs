//! Contents of files: writing, growing, shrinking.
//!
//! A write has three steps. Clusters are claimed in memory, the data is written there, and a transaction sets
//! their bits, maps them and raises the size. So a crash shows old contents, holes, or new contents.

use crate::alloc::Sub;
use crate::change::Change;
use crate::layout::bytes::{put_u32, put_u64};
use crate::layout::dinode::{CLUSTERS_AT, Dinode, ID2_AT, INLINE_AT, SIZE_AT, dyn_features, put_features};
use crate::layout::extents::{Extent, ExtentList, REFCOUNTED};
use crate::map::Run;
use crate::tree::{Root, TREE_BLOCKS, TREE_CREDITS};
use crate::volume::{Ocfs2, Private, private_of};
use ivers_block::BlockNo;
use ivers_vfs::{Error, Inode, Logged, NameError, Result, Touch};
use std::ops::Range;

/// Bytes of zeros that are written at once.
const ZEROS: usize = 1 << 20;
/// Most replacements in trees of one transaction.
const BATCH: usize = 3;
/// Blocks of a transaction beside its trees: inode, bitmap, groups of clusters.
pub(crate) const OTHER_CREDITS: u32 = 16;
pub(crate) const BATCH_CREDITS: u32 = BATCH as u32 * TREE_CREDITS + OTHER_CREDITS;
/// Clusters that one transaction frees of an extent: so that few groups and revokes are in it.
pub(crate) const FREED_AT_ONCE: u32 = 4096;

/// Clusters of a file that a write puts somewhere.
struct Piece {
    clusters: Range<u32>,
    start: u64,
    /// They were claimed.
    fresh: bool,
    /// They had a place, and read as zeros.
    unwritten: bool,
}

impl Ocfs2 {
    pub(crate) fn cluster_bytes(&self) -> u64 {
        self.sb.cluster_size().into()
    }

    pub(crate) fn block_of_cluster(&self, cluster: u64) -> u64 {
        cluster * u64::from(self.sb.blocks_per_cluster)
    }

    /// Bytes that fit into the inode.
    pub(crate) fn inline_room(&self, dinode: &Dinode) -> u64 {
        (self.sb.block_size as usize - INLINE_AT - dinode.inline_xattr_bytes()) as u64
    }

    /// Refuses a change of contents that files share.
    pub(crate) fn check_not_shared(&self, dinode: &Dinode) -> Result<()> {
        if dinode.dyn_features & dyn_features::HAS_REFCOUNT != 0 {
            let what = "the file shares clusters with others (reflink), which is only read";
            log::warn!("{}, inode {}: {what}", self.place, dinode.ino);
            return Err(NameError::NotSupported.into());
        }
        Ok(())
    }

    /// Runs of a range of clusters: position, and what is there.
    pub(crate) fn runs(&self, dinode: &Dinode, clusters: Range<u64>) -> Result<Vec<(u64, Run)>> {
        let (mut at, mut runs) = (clusters.start, Vec::new());
        while at < clusters.end {
            let mut run = self.map(dinode, at)?;
            run.clusters = run.clusters.min(clusters.end - at);
            runs.push((at, run));
            at += run.clusters.max(1);
        }
        Ok(runs)
    }

    /// The clusters of a range of bytes that a write must take or convert.
    fn missing(&self, dinode: &Dinode, offset: u64, end: u64) -> Result<Vec<u32>> {
        let size = self.cluster_bytes();
        let clusters = offset / size..end.div_ceil(size);
        if dinode.is_inline() {
            let stays = end <= self.inline_room(dinode);
            return Ok(if stays { Vec::new() } else { (0..clusters.end as u32).collect() });
        }
        let runs = self.runs(dinode, clusters)?;
        let missing = runs.iter().filter(|(_, run)| run.start.is_none() || run.unwritten);
        Ok(missing.flat_map(|(at, run)| *at as u32..(*at + run.clusters) as u32).collect())
    }

    /// Credits for a change of the tree of a file, beside [`BATCH_CREDITS`].
    pub(crate) fn file_credits(&self, private: &Private, cluster: u32) -> Result<u32> {
        let dinode = private.state.read();
        if dinode.is_inline() { Ok(0) } else { self.leaf_credits(&Root::of_inode(&dinode), cluster) }
    }

    /// Extent blocks that a file with dirty pages in `count` clusters without contents may need.
    fn blocks_for(&self, dinode: &Dinode, count: usize) -> Result<u64> {
        if count == 0 || (!dinode.is_inline() && self.fits_root(dinode, count)?) {
            return Ok(0);
        }
        Ok(self.blocks_outside(count))
    }

    /// As [`blocks_for`](Self::blocks_for), if the inode has no room.
    pub(crate) fn blocks_outside(&self, count: usize) -> u64 {
        let per_block = (self.sb.block_size as usize - 64) / 16;
        TREE_BLOCKS + (6 * count).div_ceil(per_block) as u64
    }

    pub(crate) fn fs_reserve(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let private = private_of(inode);
        let end = offset.checked_add(len).filter(|&end| end <= self.sb.file_size_max());
        let end = end.ok_or(NameError::TooLarge)?;
        if self.writer()?.commits.journal().is_aborted() {
            return Err(NameError::ReadOnly.into());
        }
        let (new, blocks) = {
            let dinode = private.state.read();
            self.check_not_shared(&dinode)?;
            let mut new = self.missing(&dinode, offset, end)?;
            if let Some(&first) = new.first().filter(|_| !dinode.is_inline()) {
                self.check_leaf_credits(&dinode, first)?;
            }
            let count = {
                let reserved = private.reserved.lock();
                new.retain(|at| !reserved.clusters.contains(at));
                reserved.clusters.len() + new.len()
            };
            (new, self.blocks_for(&dinode, count)?)
        };
        self.set_aside(private, new, blocks)
    }

    /// Reserves clusters at these positions, and extent blocks up to `blocks`.
    pub(crate) fn set_aside(&self, private: &Private, new: Vec<u32>, blocks: u64) -> Result<()> {
        let (had, count) = (private.reserved.lock().blocks, new.len() as u64);
        let more = blocks.saturating_sub(had);
        let enough = more == 0 || {
            let space = self.space()?;
            space.blocks.free() >= space.reserved_blocks + more
        };
        if !enough {
            self.change(OTHER_CREDITS, |change| change.ensure(Sub::Blocks, more, 0))?;
        }
        let mut space = self.space()?;
        if count > space.available(0) || space.blocks.free() < space.reserved_blocks + more {
            return Err(NameError::NoSpace.into());
        }
        space.reserved += count;
        space.reserved_blocks += more;
        let mut reserved = private.reserved.lock();
        reserved.clusters.extend(new);
        reserved.blocks += more;
        Ok(())
    }

    /// Releases what is reserved for whole clusters of a range of bytes.
    pub(crate) fn fs_unreserve(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let size = self.cluster_bytes();
        let (first, end) = (offset.div_ceil(size), offset.saturating_add(len) / size);
        self.release(private_of(inode), first.min(u32::MAX.into()) as u32..end.min(u32::MAX.into()) as u32)
    }

    /// Releases what is reserved for clusters that were written or dropped.
    pub(crate) fn release(&self, private: &Private, clusters: Range<u32>) -> Result<()> {
        let (count, blocks) = {
            let mut reserved = private.reserved.lock();
            let before = reserved.clusters.len();
            reserved.clusters.retain(|at| !clusters.contains(at));
            let blocks = if reserved.clusters.is_empty() { std::mem::take(&mut reserved.blocks) } else { 0 };
            ((before - reserved.clusters.len()) as u64, blocks)
        };
        if count + blocks > 0 {
            let mut space = self.space()?;
            space.reserved = space.reserved.saturating_sub(count);
            space.reserved_blocks = space.reserved_blocks.saturating_sub(blocks);
        }
        Ok(())
    }

    fn write_bytes(&self, at: u64, data: &[u8]) -> Result<()> {
        self.cache.device().write_at(ivers_block::ByteOffset(at), data).map_err(Error::file_data)
    }

    fn write_zeros(&self, mut bytes: Range<u64>) -> Result<()> {
        let zeros = vec![0; (bytes.end.saturating_sub(bytes.start)).min(ZEROS as u64) as usize];
        while bytes.start < bytes.end {
            let len = (bytes.end - bytes.start).min(ZEROS as u64);
            self.write_bytes(bytes.start, &zeros[..len as usize])?;
            bytes.start += len;
        }
        Ok(())
    }

    /// Writes zeros to a range of bytes of a file, where it has contents.
    pub(crate) fn zero_mapped(&self, dinode: &Dinode, bytes: Range<u64>) -> Result<()> {
        let size = self.cluster_bytes();
        if dinode.is_inline() || bytes.is_empty() || dinode.clusters == 0 {
            return Ok(());
        }
        for (at, run) in self.runs(dinode, bytes.start / size..bytes.end.div_ceil(size))? {
            let Some(start) = run.start.filter(|_| !run.unwritten) else { continue };
            let (first, end) = (bytes.start.max(at * size), bytes.end.min((at + run.clusters) * size));
            let place = BlockNo(start).offset(self.sb.block_size).0;
            self.write_zeros(place + first - at * size..place + end - at * size)?;
        }
        Ok(())
    }

    pub(crate) fn fs_write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let end = (offset + data.len() as u64).min(inode.size());
        let Some(len) = end.checked_sub(offset).filter(|&len| len > 0) else { return Ok(()) };
        let data = &data[..len as usize];
        let private = private_of(inode);
        let (is_inline, room) = {
            let dinode = private.state.read();
            self.check_not_shared(&dinode)?;
            (dinode.is_inline(), self.inline_room(&dinode))
        };
        if is_inline && end <= room {
            self.change(OTHER_CREDITS, |change| {
                let mut dinode = private.state.write();
                let size = dinode.size.max(end);
                change.put_inode(&mut dinode, |bytes| {
                    bytes[INLINE_AT + offset as usize..INLINE_AT + end as usize].copy_from_slice(data);
                    put_u64(bytes, SIZE_AT, size);
                })?;
                change.log(inode, &mut dinode)
            })?;
            inode.logged_in_background();
            return Ok(());
        }
        if is_inline {
            self.move_out(inode)?;
        }
        self.write_mapped(inode, offset, data)?;
        self.writer()?.commits.changes().data_written(&self.writer()?.data);
        let size = self.cluster_bytes();
        self.release(private, (offset / size) as u32..end.div_ceil(size) as u32)
    }

    /// Moves inline data to a cluster.
    pub(crate) fn move_out(&self, inode: &Inode) -> Result<()> {
        let private = private_of(inode);
        let data = {
            let dinode = private.state.read();
            let block = self.block_of(&dinode)?;
            block[INLINE_AT..INLINE_AT + dinode.size as usize].to_vec()
        };
        let claimed = match data.is_empty() {
            true => None,
            false => Some(self.claim_for(private, 0, 1)?),
        };
        let written = claimed.as_ref().map_or(Ok(()), |range| {
            let place = range.start * self.cluster_bytes();
            self.write_zeros(place + data.len() as u64..place + self.cluster_bytes())?;
            self.write_bytes(place, &data)
        });
        if let (Err(error), Some(range)) = (written, &claimed) {
            self.space()?.busy.remove(range.clone());
            return Err(error);
        }
        self.change(BATCH_CREDITS, |change| {
            let mut dinode = private.state.write();
            let tail = dinode.inline_xattr_bytes();
            change.put_inode(&mut dinode, |bytes| {
                let end = bytes.len() - tail;
                put_features(bytes, 0, dyn_features::INLINE_DATA);
                ExtentList::encode_empty(&mut bytes[ID2_AT..end]);
            })?;
            if let Some(range) = claimed {
                change.take_claimed(range.clone())?;
                let start = self.block_of_cluster(range.start);
                change.add_extent(&mut dinode, Extent { cpos: 0, clusters: 1, start, flags: 0 })?;
            }
            inode.with_attr(|attr| attr.blocks_512 = dinode.attr(&self.sb).blocks_512);
            Ok(())
        })
    }

    fn claim_for(&self, private: &Private, near: u64, count: u64) -> Result<Range<u64>> {
        let credit = private.reserved.lock().clusters.len() as u64;
        self.claim(&mut *self.space()?, near, (1, count), credit)
    }

    /// Claims what a range needs. Returns all pieces of it.
    fn pieces(&self, private: &Private, offset: u64, end: u64) -> Result<Vec<Piece>> {
        let size = self.cluster_bytes();
        let clusters = offset / size..end.div_ceil(size);
        let (runs, mut near) = {
            let dinode = private.state.read();
            let before = clusters.start.checked_sub(1).map(|at| self.map(&dinode, at)).transpose()?;
            let near = before.and_then(|run| run.start).map_or(0, |start| self.sb.cluster_of(start) + 1);
            (self.runs(&dinode, clusters)?, near)
        };
        let mut pieces = Vec::new();
        for (at, run) in runs {
            let clusters = at as u32..(at + run.clusters) as u32;
            if let Some(start) = run.start {
                near = self.sb.cluster_of(start) + run.clusters;
                pieces.push(Piece { clusters, start, fresh: false, unwritten: run.unwritten });
                continue;
            }
            let mut first = clusters.start;
            while first < clusters.end {
                match self.claim_for(private, near, (clusters.end - first).into()) {
                    Ok(range) => {
                        near = range.end;
                        let end = first + (range.end - range.start) as u32;
                        let start = self.block_of_cluster(range.start);
                        pieces.push(Piece { clusters: first..end, start, fresh: true, unwritten: false });
                        first = end;
                    }
                    Err(error) => {
                        self.give_up(&pieces)?;
                        return Err(error);
                    }
                }
            }
        }
        Ok(pieces)
    }

    /// Releases claims that nothing maps.
    fn give_up(&self, pieces: &[Piece]) -> Result<()> {
        let mut space = self.space()?;
        for piece in pieces.iter().filter(|piece| piece.fresh) {
            let first = self.sb.cluster_of(piece.start);
            space.busy.remove(first..first + u64::from(piece.clusters.end - piece.clusters.start));
        }
        Ok(())
    }

    /// Writes data to extents, and maps those that are new.
    fn write_mapped(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let (private, end) = (private_of(inode), offset + data.len() as u64);
        let (old_size, blocks) = {
            let dinode = private.state.read();
            (dinode.size, private.reserved.lock().blocks)
        };
        let pieces = self.pieces(private, offset, end)?;
        let written =
            pieces.iter().try_for_each(|piece| self.write_piece(piece, offset, data)).and_then(|()| {
                // After the data: if writing it fails, the bytes past the old end are not touched.
                let dinode = private.state.read();
                self.zero_mapped(&dinode, old_size..offset.max(old_size))
            });
        if let Err(error) = written {
            self.give_up(&pieces)?;
            return Err(error);
        }
        let new: Vec<&Piece> = pieces.iter().filter(|piece| piece.fresh || piece.unwritten).collect();
        if new.is_empty() && end <= old_size {
            return Ok(());
        }
        let batches: Vec<&[&Piece]> = if new.is_empty() { vec![&[]] } else { new.chunks(BATCH).collect() };
        let size = self.cluster_bytes();
        for (nth, batch) in batches.iter().enumerate() {
            let is_last = nth + 1 == batches.len();
            // What is before the next batch is on the device.
            let next = batches.get(nth + 1).map_or(end, |next| u64::from(next[0].clusters.start) * size);
            let reached = if is_last { end } else { next.min(end) };
            let at = batch.first().map(|piece| piece.clusters.start);
            let credits = at.map_or(Ok(0), |at| self.file_credits(private, at));
            let mapped = credits.and_then(|more| {
                self.change(BATCH_CREDITS + more, |change| {
                    let fits = self.fits_root(&private.state.read(), batch.len())?;
                    change.ensure(Sub::Blocks, if fits { 0 } else { TREE_BLOCKS }, blocks)?;
                    self.map_batch(change, inode, batch, reached)
                })
            });
            if let Err(error) = mapped {
                let left: Vec<&Piece> =
                    batches[nth..].iter().flat_map(|batch| batch.iter().copied()).collect();
                left.iter().try_for_each(|piece| self.give_up(std::slice::from_ref(*piece)))?;
                return Err(error);
            }
        }
        inode.logged_in_background();
        Ok(())
    }

    /// Writes the data of a piece. In new and unwritten clusters, the bytes outside the data become zeros.
    fn write_piece(&self, piece: &Piece, offset: u64, data: &[u8]) -> Result<()> {
        let size = self.cluster_bytes();
        let bytes = u64::from(piece.clusters.start) * size..u64::from(piece.clusters.end) * size;
        let place = BlockNo(piece.start).offset(self.sb.block_size).0;
        let (first, end) = (bytes.start.max(offset), bytes.end.min(offset + data.len() as u64));
        if piece.fresh || piece.unwritten {
            self.write_zeros(place..place + first - bytes.start)?;
            self.write_zeros(place + end - bytes.start..place + bytes.end - bytes.start)?;
        }
        self.write_bytes(
            place + first - bytes.start,
            &data[(first - offset) as usize..(end - offset) as usize],
        )
    }

    fn map_batch(&self, change: &mut Change<'_>, inode: &Inode, batch: &[&Piece], end: u64) -> Result<()> {
        let private = private_of(inode);
        let mut dinode = private.state.write();
        for piece in batch {
            let count = piece.clusters.end - piece.clusters.start;
            let new = Extent { cpos: piece.clusters.start, clusters: count, start: piece.start, flags: 0 };
            if piece.fresh {
                let first = self.sb.cluster_of(piece.start);
                change.take_claimed(first..first + u64::from(count))?;
                change.add_extent(&mut dinode, new)?;
            } else {
                change.replace_part(&mut dinode, piece.clusters.clone(), Some(0))?;
            }
        }
        let size = dinode.size.max(end);
        change.put_inode(&mut dinode, |bytes| put_u64(bytes, SIZE_AT, size))?;
        inode.with_attr(|attr| attr.blocks_512 = dinode.attr(&self.sb).blocks_512);
        change.log(inode, &mut dinode)
    }

    pub(crate) fn fs_truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let private = private_of(inode);
        let (old, is_inline, room) = {
            let dinode = private.state.read();
            self.check_not_shared(&dinode)?;
            (dinode.size, dinode.is_inline(), self.inline_room(&dinode))
        };
        if is_inline && size > room {
            self.move_out(inode)?;
        } else if size > old {
            let dinode = private.state.read();
            self.zero_mapped(&dinode, old..size)?;
        }
        let is_inline = private.state.read().is_inline();
        let keep = size.div_ceil(self.cluster_bytes());
        if !is_inline {
            while self.cut_step(inode, keep as u32, size)? {}
        }
        self.change(OTHER_CREDITS, |change| {
            let mut dinode = private.state.write();
            change.put_inode(&mut dinode, |bytes| {
                if is_inline {
                    let area = &mut bytes[INLINE_AT..INLINE_AT + room as usize];
                    area[size.min(old) as usize..].fill(0);
                }
                put_u64(bytes, SIZE_AT, size);
            })?;
            inode.with_attr(|attr| attr.blocks_512 = dinode.attr(&self.sb).blocks_512);
            drop(dinode);
            inode.changed(Touch::Data, Logged::Anyway);
            change.log(inode, &mut private.state.write())
        })
    }

    /// Frees the last extent of a file, or a part of it, if it is past `keep` clusters. Returns whether there
    /// may be more. The size is lowered with it, not below `size`.
    pub(crate) fn cut_step(&self, inode: &Inode, keep: u32, size: u64) -> Result<bool> {
        let private = private_of(inode);
        self.change(BATCH_CREDITS, |change| {
            let mut dinode = private.state.write();
            let more = change.cut(&mut dinode, keep, size)?;
            inode.with_attr(|attr| attr.blocks_512 = dinode.attr(&self.sb).blocks_512);
            Ok(more)
        })
    }
}

impl Change<'_> {
    fn set_clusters(&mut self, dinode: &mut Dinode, clusters: u32) -> Result<()> {
        self.put_inode(dinode, |bytes| put_u32(bytes, CLUSTERS_AT, clusters))
    }

    /// Maps clusters of a hole.
    pub fn add_extent(&mut self, dinode: &mut Dinode, extent: Extent) -> Result<()> {
        self.replace(&Root::of_inode(dinode), extent.cpos, false, &[extent])?;
        self.set_clusters(dinode, dinode.clusters.saturating_add(extent.clusters))
    }

    /// Gives a part of one extent other flags, or frees it (`None`).
    pub(crate) fn replace_part(
        &mut self,
        dinode: &mut Dinode,
        part: Range<u32>,
        flags: Option<u8>,
    ) -> Result<()> {
        let root = Root::of_inode(dinode);
        let found = self.fs.extent_before(&root, part.start)?;
        let holds = |old: &Extent| old.cpos <= part.start && part.end <= old.cpos + old.clusters;
        let old = found.filter(holds);
        let old = old.ok_or_else(|| self.fs.corrupt(dinode.ino, "an extent changed while it was written"))?;
        if old.flags & REFCOUNTED != 0 {
            return Err(self.fs.corrupt(dinode.ino, "a file without shared clusters has some"));
        }
        let per_cluster = u64::from(self.fs.sb.blocks_per_cluster);
        let cut = |from: u32, to: u32, flags: u8| Extent {
            cpos: from,
            clusters: to - from,
            start: old.start + u64::from(from - old.cpos) * per_cluster,
            flags,
        };
        let mut new = vec![cut(old.cpos, part.start, old.flags)];
        new.extend(flags.map(|flags| cut(part.start, part.end, flags)));
        new.push(cut(part.end, old.cpos + old.clusters, old.flags));
        new.retain(|extent| extent.clusters > 0);
        self.replace(&root, part.start, true, &new)?;
        if flags.is_none() {
            let first = self.fs.sb.cluster_of(cut(part.start, part.end, 0).start);
            self.free_clusters(first..first + u64::from(part.end - part.start))?;
            self.set_clusters(dinode, dinode.clusters.saturating_sub(part.end - part.start))?;
        } else {
            *dinode = self.fs.any_dinode(dinode.ino)?.0;
        }
        Ok(())
    }

    /// See [`Ocfs2::cut_step`]. Blocks of directories are forgotten.
    pub fn cut(&mut self, dinode: &mut Dinode, keep: u32, size: u64) -> Result<bool> {
        let root = Root::of_inode(dinode);
        let Some(last) = self.fs.extent_before(&root, u32::MAX)? else { return Ok(false) };
        let end = last.cpos.saturating_add(last.clusters);
        if end <= keep {
            return Ok(false);
        }
        let is_dir = dinode.kind() == Some(ivers_vfs::FileType::Directory);
        let most = if is_dir { (64 / self.fs.sb.blocks_per_cluster).max(1) } else { FREED_AT_ONCE };
        let first = keep.max(last.cpos).max(end.saturating_sub(most));
        self.replace_part(dinode, first..end, None)?;
        if is_dir {
            let per_cluster = u64::from(self.fs.sb.blocks_per_cluster);
            let start = last.start + u64::from(first - last.cpos) * per_cluster;
            self.forget(start..start + u64::from(end - first) * per_cluster);
        }
        let size = size.max(u64::from(first) * u64::from(self.fs.sb.cluster_size()));
        if size < dinode.size {
            self.put_inode(dinode, |bytes| put_u64(bytes, SIZE_AT, size))?;
        }
        Ok(true)
    }
}
