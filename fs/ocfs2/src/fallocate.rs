//! Space of files, apart from writing: allocating it, and punching holes.

use crate::alloc::Sub;
use crate::layout::bytes::put_u64;
use crate::layout::dinode::SIZE_AT;
use crate::layout::extents::{Extent, UNWRITTEN};
use crate::map::Run;
use crate::tree::TREE_BLOCKS;
use crate::volume::{Ocfs2, private_of};
use crate::write::{BATCH_CREDITS, FREED_AT_ONCE, OTHER_CREDITS};
use ivers_vfs::{Error, FallocateMode, Inode, Logged, NameError, Result, Touch};
use std::ops::Range;

impl Ocfs2 {
    pub(crate) fn fs_fallocate(&self, inode: &Inode, mode: FallocateMode, range: Range<u64>) -> Result<()> {
        let allocates = !mode.contains(FallocateMode::PUNCH_HOLE);
        if allocates && !self.sb.has_unwritten() {
            return Err(NameError::NotSupported.into());
        }
        let private = private_of(inode);
        self.check_not_shared(&private.state.read())?;
        let last = inode.size().div_ceil(self.cluster_bytes());
        if mode.contains(FallocateMode::KEEP_SIZE)
            && allocates
            && range.end.div_ceil(self.cluster_bytes()) > last
        {
            // fsck.ocfs2 takes clusters past the end for an error.
            return Err(NameError::NotSupported.into());
        }
        if range.end > self.sb.file_size_max() {
            return Err(NameError::TooLarge.into());
        }
        if private.state.read().is_inline() {
            self.move_out(inode)?;
        }
        // Dirty pages may rely on space in the inode that is used up now.
        let count = private.reserved.lock().clusters.len();
        if count > 0 {
            self.set_aside(private, Vec::new(), self.blocks_outside(count))?;
        }
        let result = self.allocate_range(inode, mode, range);
        if result.is_err() {
            // A part may be visible. What was taken past the end is freed.
            let size = inode.size();
            while self.cut_step(inode, size.div_ceil(self.cluster_bytes()) as u32, size)? {}
            inode.changed(Touch::Data, Logged::Anyway);
            self.change(OTHER_CREDITS, |change| {
                let mut dinode = private.state.write();
                let size = size.min(dinode.size);
                change.put_inode(&mut dinode, |bytes| put_u64(bytes, SIZE_AT, size))?;
                change.log(inode, &mut dinode)
            })?;
        }
        result
    }

    fn allocate_range(&self, inode: &Inode, mode: FallocateMode, range: Range<u64>) -> Result<()> {
        let punches = mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE);
        let allocates = !mode.contains(FallocateMode::PUNCH_HOLE);
        let (private, size) = (private_of(inode), self.cluster_bytes());
        let old = private.state.read().size;
        let grows = allocates && !mode.contains(FallocateMode::KEEP_SIZE) && range.end > old;
        if grows {
            self.zero_mapped(&private.state.read(), old..range.end)?;
        }
        if punches {
            let (first, end) = (range.start.div_ceil(size), range.end / size);
            let dinode = private.state.read();
            if first > end {
                self.zero_mapped(&dinode, range.clone())?;
            } else {
                self.zero_mapped(&dinode, range.start..(first * size).min(range.end))?;
                self.zero_mapped(&dinode, (end * size).max(range.start)..range.end)?;
            }
            drop(dinode);
            let flags = allocates.then_some(UNWRITTEN);
            let punched = loop {
                match self.punch_step(inode, first as u32..end.max(first) as u32, flags) {
                    Ok(true) => {}
                    other => break other,
                }
            };
            match punched {
                // No space to split the extent: zeros are written to the rest of the range, and its clusters
                // stay allocated.
                Err(Error::Name(NameError::NoSpace)) => {
                    self.zero_mapped(&private.state.read(), first * size..end.max(first) * size)?;
                }
                punched => drop(punched?),
            }
        }
        if allocates {
            let end = range.end.div_ceil(size);
            let mut at = range.start / size;
            while at < end {
                at = self.allocate_step(inode, at, end, if grows { range.end } else { 0 })?;
            }
        }
        self.change(OTHER_CREDITS, |change| {
            let mut dinode = private.state.write();
            if grows {
                change.put_inode(&mut dinode, |bytes| put_u64(bytes, SIZE_AT, range.end))?;
                inode.with_attr(|attr| attr.size = attr.size.max(range.end));
            }
            inode.with_attr(|attr| attr.blocks_512 = dinode.attr(&self.sb).blocks_512);
            drop(dinode);
            inode.changed(Touch::Data, Logged::Anyway);
            change.log(inode, &mut private.state.write())
        })
    }

    /// Frees one extent, or a part of one, in a range, or makes it unwritten. Returns whether there was one.
    fn punch_step(&self, inode: &Inode, clusters: Range<u32>, flags: Option<u8>) -> Result<bool> {
        let private = private_of(inode);
        let credits = BATCH_CREDITS + self.file_credits(private, clusters.start)?;
        self.change(credits, |change| {
            let mut dinode = private.state.write();
            let fits = self.fits_root(&dinode, 1)?;
            change.ensure(Sub::Blocks, if fits { 0 } else { TREE_BLOCKS }, 0)?;
            let runs = self.runs(&dinode, u64::from(clusters.start)..clusters.end.into())?;
            let counts = |run: &Run| run.start.is_some() && !(flags.is_some() && run.unwritten);
            let Some((at, run)) = runs.into_iter().find(|(_, run)| counts(run)) else {
                return Ok(false);
            };
            let count = run.clusters.min(FREED_AT_ONCE.into());
            change.replace_part(&mut dinode, at as u32..(at + count) as u32, flags)?;
            Ok(true)
        })
    }

    /// Takes clusters for a hole as an unwritten extent, and raises the size with it, up to `size`. Returns
    /// where to continue.
    fn allocate_step(&self, inode: &Inode, at: u64, end: u64, size: u64) -> Result<u64> {
        let private = private_of(inode);
        let credits = BATCH_CREDITS + self.file_credits(private, at as u32)?;
        self.change(credits, |change| {
            let mut dinode = private.state.write();
            let run = self.map(&dinode, at)?;
            let count = run.clusters.min(end - at);
            if run.start.is_some() {
                return Ok(at + count.max(1));
            }
            let fits = self.fits_root(&dinode, 1)?;
            change.ensure(Sub::Blocks, if fits { 0 } else { TREE_BLOCKS }, 0)?;
            let range = self.claim(&mut change.space, 0, (1, count), 0)?;
            change.take_claimed(range.clone())?;
            let (clusters, start) = ((range.end - range.start) as u32, self.block_of_cluster(range.start));
            let new = Extent { cpos: at as u32, clusters, start, flags: UNWRITTEN };
            change.add_extent(&mut dinode, new)?;
            let reached = (at + u64::from(clusters)) * self.cluster_bytes();
            let size = size.min(reached).max(dinode.size);
            change.put_inode(&mut dinode, |bytes| put_u64(bytes, SIZE_AT, size))?;
            Ok(at + u64::from(clusters))
        })
    }
}
