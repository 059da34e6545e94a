//! Moving the blocks of a file below the end that the filesystem is to have.
//!
//! File data is copied to free blocks before the transaction that maps them; blocks that are journalled
//! are copied in that transaction. The contents stay the same, so the counter does too.

use crate::balloc::Reserved;
use crate::fs::{Ext4, Handle, InodeCore, core_of};
use crate::layout::inode::FL_EXTENTS;
use crate::map::node::{END, Extent};
use crate::map::{MAP_CREDITS, Mapping};
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{Error, Inode, NameError, RangeKind, Result};

/// Blocks of file data that one transaction moves at most.
const DATA_RUN: u64 = 2048;
/// Journalled blocks that one transaction moves at most.
const JOURNALLED_RUN: u64 = 16;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// What the mapped blocks of an inode contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// File data, which is not journalled.
    Data,
    /// Names, link targets and values of attributes.
    Journalled,
    /// The orphan file, whose checksums contain the block numbers.
    OrphanFile,
}

impl Ext4 {
    /// Moves the blocks of an inode's map that lie at `limit` or after it. Nothing from there on may be
    /// allocatable. Each transaction leaves the file with its contents.
    pub(crate) fn relocate_map(&self, inode: &Inode, limit: BlockNo, contents: Contents) -> Result<()> {
        let mut at = FileBlock(0);
        let mut goal = self.goal_for(inode);
        while at < END {
            let mapping = self.map_block(inode, at)?;
            let end = at.saturating_add(mapping.len);
            if mapping.kind == RangeKind::Hole || mapping.block + mapping.len <= limit {
                at = end;
                continue;
            }
            let skip = limit.0.saturating_sub(mapping.block.0);
            let part = Mapping {
                start: mapping.start + skip,
                block: mapping.block + skip,
                len: mapping.len - skip,
                ..mapping
            };
            let moved = self.relocate_run(inode, part, goal, contents)?;
            goal = moved.0 + moved.1;
            at = part.start + moved.1;
        }
        self.relocate_nodes(inode, limit)
    }

    /// Moves the start of a run. Returns its new first block and how many blocks were moved.
    fn relocate_run(
        &self,
        inode: &Inode,
        part: Mapping,
        goal: BlockNo,
        contents: Contents,
    ) -> Result<(BlockNo, u64)> {
        let most = part.len.min(if contents == Contents::Data { DATA_RUN } else { JOURNALLED_RUN });
        let reserved = match self.reserve_blocks(inode, goal, most as u32) {
            Err(Error::Name(NameError::NoSpace)) => {
                self.journal.commit()?;
                self.reserve_blocks(inode, goal, most as u32)?
            }
            reserved => reserved?,
        };
        let (start, len) = (reserved.start, u64::from(reserved.len));
        if contents == Contents::Data && part.kind == RangeKind::Data {
            self.copy_data(part.block, start, len)?;
        }
        self.repoint(inode, Mapping { len, ..part }, reserved, contents)?;
        Ok((start, len))
    }

    /// Copies blocks on the device.
    fn copy_data(&self, from: BlockNo, to: BlockNo, blocks: u64) -> Result<()> {
        let size = self.sb.block_size;
        let mut bytes = vec![0; COPY_BYTES.min(blocks as usize * size as usize)];
        let total = blocks * u64::from(size);
        let mut at = 0;
        while at < total {
            let part = &mut bytes[..(total - at).min(COPY_BYTES as u64) as usize];
            self.dev.read_at(from.offset(size) + at, part)?;
            self.dev.write_at(to.offset(size) + at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Maps a run to reserved blocks, in one transaction, and frees its old blocks.
    fn repoint(&self, inode: &Inode, run: Mapping, reserved: Reserved, contents: Contents) -> Result<()> {
        let (start, len) = (reserved.start, reserved.len);
        let journalled = contents != Contents::Data;
        let mut h = self.begin(MAP_CREDITS + 16 + if journalled { len } else { 0 })?;
        self.commit_reserved(&mut h, reserved)?;
        for nth in (0..u64::from(len)).take_while(|_| journalled) {
            let bytes = self.block(run.block + nth)?.read().to_vec();
            let copy = self.new_block(start + nth)?;
            h.modify(&copy, |block| {
                block.copy_from_slice(&bytes);
                if contents == Contents::OrphanFile {
                    self.seal_moved_orphan_block(inode, start + nth, block);
                }
            })?;
        }
        let mut core = core_of(inode).write();
        let done = self.repoint_map(&mut h, inode, &mut core, run, start);
        drop(core);
        let unused = if done.is_ok() { run.block } else { start };
        self.free_blocks(&mut h, unused, len, journalled)?;
        self.log(&mut h, inode)?;
        done
    }

    fn repoint_map(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        run: Mapping,
        start: BlockNo,
    ) -> Result<()> {
        if core.flags & FL_EXTENTS == 0 {
            // Every node exists: this changes pointers only.
            return (0..run.len)
                .try_for_each(|nth| self.indirect_set(h, inode, core, run.start + nth, start + nth));
        }
        let (first, last) = (run.start, run.start + run.len);
        let extent = self
            .extent_at_or_after(inode, core, first)?
            .filter(|extent| extent.file_block <= first && last <= extent.end())
            .ok_or_else(|| self.corrupt_inode("extent tree: an extent is not where it was found", inode))?;
        let moved = Extent { file_block: first, len: run.len as u32, start, unwritten: extent.unwritten };
        let head = (first > extent.file_block).then(|| extent.part(extent.file_block, first));
        let tail = (last < extent.end()).then(|| extent.part(last, extent.end()));
        let pieces: Vec<Extent> = head.into_iter().chain([moved]).chain(tail).collect();
        self.extent_replace(h, inode, core, extent.file_block, &pieces)?;
        self.extent_join(h, inode, core, first)
    }
}
