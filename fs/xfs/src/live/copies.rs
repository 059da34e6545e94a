//! Copy on write: the contents of shared blocks go to new blocks, which then take their place in the file.

use super::change::Edited;
use super::vnode::{core_of, private_of};
use super::volume::Xfs;
use crate::fork::Mapping;
use crate::layout::dinode::EXTENT_MAX;
use crate::write::alloc::Run;
use crate::write::space::journal_error;
use ivers_block::FileBlock;
use ivers_vfs::{Inode, NameError, Result};
use std::ops::Range;

impl Xfs {
    /// What a file has at a block, up to `end` and up to where other files begin or end to share it. The
    /// second value says whether they do. The write-back lock keeps both so, but others may end sharing it.
    ///
    /// If another file shared it until a change that is not durable, that change is committed: after a crash
    /// that file would show what is written now.
    pub(super) fn mapping_to_change(
        &self,
        inode: &Inode,
        at: FileBlock,
        end: FileBlock,
    ) -> Result<(Mapping, bool)> {
        let mut mapping = self.mapping_at(inode, at)?;
        mapping.len = mapping.len.min(end - at);
        let may_share = core_of(inode).may_share();
        let Some(block) = mapping.block.filter(|_| may_share) else { return Ok((mapping, false)) };
        let session = self.session()?;
        let (len, shared) = session.space.while_still(|| self.sharing(block, mapping.len))?;
        mapping.len = len;
        if !shared && session.space.may_be_shared_again(block, len) {
            session.commits.commit().map_err(journal_error)?;
        }
        Ok((mapping, shared))
    }

    /// Writes shared blocks of one extent; arguments as in `put_data`.
    ///
    /// A transaction allocates new blocks, for no file. They get the data. Then another transaction maps them
    /// in place of the old ones. A crash before its end leaves the old contents, and the next mount frees the
    /// new blocks.
    pub(super) fn write_copies(
        &self,
        inode: &Inode,
        blocks: Range<FileBlock>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let copy = self.allocate_copy(inode, at..blocks.end)?;
            let part = at..at + u64::from(copy.len);
            // The new blocks are no longer free, so their reservation is used. If the copy fails it stays.
            let reserved = private_of(inode).delayed.lock().copies.len_in(part.clone());
            let session = self.session()?;
            session.reserved.adjust(reserved, 0);
            let written = self.fill_copy(inode, part.clone(), copy, offset, data);
            if written.is_err() {
                self.free_copy(copy);
            }
            session.reserved.adjust(0, reserved);
            written?;
            self.release_copies(inode, part.clone());
            at = part.end;
        }
        Ok(())
    }

    fn allocate_copy(&self, inode: &Inode, blocks: Range<FileBlock>) -> Result<Run> {
        let most = (blocks.end - blocks.start).min(EXTENT_MAX.into()) as u32;
        let mut change = self.change()?;
        let copy = {
            let core = core_of(inode).clone();
            change.allocate_copy(&core, blocks.start, most)?.ok_or(NameError::NoSpace)?
        };
        change.finish(Vec::new())?;
        Ok(copy)
    }

    fn fill_copy(
        &self,
        inode: &Inode,
        blocks: Range<FileBlock>,
        copy: Run,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let block = self.sb.run(copy.start, copy.len.into());
        let block =
            block.ok_or_else(|| self.corrupt("an allocation ends outside", core_of(inode).whose()))?;
        self.put_data(inode, block, blocks.clone(), offset, data)?;
        let mut change = self.change()?;
        let mut edited = Edited::new(inode);
        change.map_copy(&mut edited.core, blocks.start, copy)?;
        change.finish(vec![edited])
    }

    fn free_copy(&self, copy: Run) {
        let freed = self.change().and_then(|mut change| {
            change.free_copy(copy)?;
            change.finish(Vec::new())
        });
        if let Err(error) = freed {
            log::warn!("{}: the next mount frees {} blocks for a copy: {error}", self.place, copy.len);
        }
    }

    /// Zeroes bytes of a file where it has written blocks. The caller records the change.
    pub(super) fn zero_bytes(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let (mut at, end) = (FileBlock(from >> bits), FileBlock(to.div_ceil(1 << bits)));
        while from < to && at < end {
            let (mapping, shared) = self.mapping_to_change(inode, at, end)?;
            let stop = at + mapping.len;
            let (start, last) = (from.max(at.0 << bits), to.min(stop.0 << bits));
            match mapping.block.filter(|_| !mapping.unwritten) {
                Some(_) if shared => self.zero_shared(inode, start, last)?,
                Some(block) => self.zero(inode, block, start - (at.0 << bits), last - start)?,
                None => {}
            }
            at = stop;
        }
        Ok(())
    }

    /// Zeroes bytes in shared blocks: whole blocks become a hole, parts of blocks are copied.
    fn zero_shared(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let whole = FileBlock(from.div_ceil(1 << bits))..FileBlock(to >> bits);
        if whole.start > whole.end {
            return self.zero_in_copy(inode, from, to);
        }
        self.zero_in_copy(inode, from, whole.start.0 << bits)?;
        self.zero_in_copy(inode, whole.end.0 << bits, to)?;
        self.free_blocks(inode, whole, |edited| edited)
    }

    /// Zeroes bytes within one shared block, in a copy of it.
    fn zero_in_copy(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let bits = self.sb.block_bits;
        let at = FileBlock(from >> bits);
        let (mapping, _) = self.mapping_to_change(inode, at, at + 1)?;
        let Some(block) = mapping.block else { return Ok(()) };
        let mut bytes = vec![0; 1 << bits];
        self.read_data(block, 0, &mut bytes)?;
        let start = at.0 << bits;
        let part = &mut bytes[(from - start) as usize..(to - start) as usize];
        if part.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        part.fill(0);
        if private_of(inode).delayed.lock().copies.len_in(at..at + 1) == 0 {
            self.session()?.check_space(1)?;
        }
        self.write_copies(inode, at..at + 1, start, &bytes)
    }
}
