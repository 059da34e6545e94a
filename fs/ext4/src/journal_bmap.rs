//! The map of the journal's inode: read before the journal is open, and therefore apart from other files'
//! maps.

use crate::fs::{Ext4, core_of};
use crate::layout::inode::FL_EXTENTS;
use ivers_block::{BlockNo, Buffer};
use ivers_journal::jbd2::{LogExtent, LogMap};
use ivers_vfs::{Error, Result};
use std::sync::Arc;

/// Limit of the blocks of the map: far more than a journal needs.
const MAX_MAP_BLOCKS: u32 = 1 << 16;

struct Walk<'a> {
    fs: &'a Ext4,
    found: Vec<LogExtent>,
    left: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Ext4 {
    /// Returns the extents of the journal's inode.
    pub(crate) fn journal_map(&self) -> Result<LogMap> {
        let inode = self.detached(self.load(self.sb.journal_inum, true)?);
        let (flags, i_block) = {
            let core = core_of(&inode).read();
            (core.flags, core.i_block)
        };
        let blocks = inode.attr().size >> self.sb.block_bits;
        let mut walk = Walk { fs: self, found: Vec::new(), left: MAX_MAP_BLOCKS };
        if flags & FL_EXTENTS != 0 {
            walk.extents(&i_block, None)?;
        } else {
            let mut next = 0;
            for slot in 0..15 {
                let depth = slot.max(11) - 11;
                walk.indirect(u32_at(&i_block, slot as usize * 4), depth, &mut next, blocks)?;
            }
        }
        let map = LogMap::new(walk.found);
        if map.len() < blocks.min(1024) {
            return Err(self.bad_journal("its map has holes"));
        }
        Ok(map)
    }

    fn bad_journal(&self, what: &str) -> Error {
        Error::corrupt(what, format!("{}, the journal's inode {}", self.place, self.sb.journal_inum))
    }
}

impl Walk<'_> {
    fn node(&mut self, block: u64) -> Result<Arc<Buffer>> {
        self.left = self.left.checked_sub(1).ok_or_else(|| self.fs.bad_journal("its map is too large"))?;
        self.fs.block(block)
    }

    fn add(&mut self, log_block: u32, fs_block: u64, len: u32) -> Result<()> {
        if !self.fs.sb.is_valid_run(fs_block, u64::from(len)) {
            return Err(self.fs.bad_journal("its map refers to blocks outside the filesystem"));
        }
        if let Some(last) = self.found.last_mut()
            && last.log_block.checked_add(last.len) == Some(log_block)
            && last.fs_block + u64::from(last.len) == BlockNo(fs_block)
        {
            last.len += len;
            return Ok(());
        }
        self.found.push(LogExtent { log_block, fs_block: BlockNo(fs_block), len });
        Ok(())
    }

    fn extents(&mut self, node: &[u8], parent_depth: Option<u16>) -> Result<()> {
        let (magic, entries, depth) = (u16_at(node, 0), usize::from(u16_at(node, 2)), u16_at(node, 6));
        let deeper = parent_depth.is_some_and(|parent| depth.checked_add(1) != Some(parent));
        if magic != 0xF30A || depth > 5 || deeper || 12 + entries * 12 > node.len() {
            return Err(self.fs.bad_journal("a node of its extent tree is damaged"));
        }
        for entry in node[12..12 + entries * 12].chunks_exact(12) {
            if depth == 0 {
                let len = u32::from(u16_at(entry, 4));
                let start = u64::from(u32_at(entry, 8)) | u64::from(u16_at(entry, 6)) << 32;
                if len == 0 || len > 32768 {
                    return Err(self.fs.bad_journal("it has unwritten extents"));
                }
                self.add(u32_at(entry, 0), start, len)?;
            } else {
                let child = u64::from(u32_at(entry, 4)) | u64::from(u16_at(entry, 8)) << 32;
                let buffer = self.node(child)?;
                let bytes = buffer.snapshot();
                self.extents(&bytes, Some(depth))?;
            }
        }
        Ok(())
    }

    fn indirect(&mut self, block: u32, depth: u32, next: &mut u64, end: u64) -> Result<()> {
        if *next >= end {
            return Ok(());
        }
        if depth == 0 {
            if block == 0 {
                return Err(self.fs.bad_journal("its map has holes"));
            }
            let at = u32::try_from(*next).map_err(|_| self.fs.bad_journal("it is too long"))?;
            *next += 1;
            return self.add(at, u64::from(block), 1);
        }
        let buffer = self.node(u64::from(block))?;
        let bytes = buffer.snapshot();
        for slot in bytes.chunks_exact(4) {
            self.indirect(u32_at(slot, 0), depth - 1, next, end)?;
        }
        Ok(())
    }
}
