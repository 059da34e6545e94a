//! Inodes that get other numbers: the entries that refer to them.

use super::inline::Part;
use super::linear::{Entry, le32, put32};
use super::{FIRST, Shape, corrupt, index, place};
use crate::fs::{Ext4, Handle, core_of};
use ivers_block::{Buffer, FileBlock};
use ivers_vfs::{Inode, Result};
use std::ops::ControlFlow;
use std::sync::Arc;

impl Ext4 {
    /// Calls `f` for every entry of a directory, `.` and `..` too, with its block and its inode number. An
    /// inline directory stores `..` and counts as one block.
    pub(crate) fn each_entry(&self, dir: &Inode, f: &mut dyn FnMut(FileBlock, u32)) -> Result<()> {
        if self.dir_shape(dir) == Shape::Inline {
            f(FIRST, le32(&core_of(dir).read().i_block, 0));
            for part in Part::ALL {
                let area = self.inline_area(dir, part)?;
                self.entries_in(dir, FIRST, &area, &mut |_, ino| f(FIRST, ino))?;
            }
            return Ok(());
        }
        for lblk in FIRST.run(self.dir_blocks(dir)) {
            self.read_ahead_dir(dir, lblk);
            if let Some((buffer, area, _)) = self.entry_area(dir, lblk)? {
                let block = buffer.read();
                self.entries_in(dir, lblk, &block[..area], &mut |_, ino| f(lblk, ino))?;
            }
        }
        Ok(())
    }

    /// Changes the number in all entries of a block that refer to an inode.
    pub(crate) fn renumber_entries(
        &self,
        h: &mut Handle,
        dir: &Inode,
        lblk: FileBlock,
        old: u32,
        new: u32,
    ) -> Result<()> {
        let offsets = |area: &[u8]| -> Result<Vec<usize>> {
            let mut found = Vec::new();
            self.entries_in(dir, lblk, area, &mut |offset, ino| {
                if ino == old {
                    found.push(offset);
                }
            })?;
            Ok(found)
        };
        if self.dir_shape(dir) == Shape::Inline {
            for part in Part::ALL {
                let found = offsets(&self.inline_area(dir, part)?)?;
                self.inline_change(dir, part, |area| {
                    found.iter().for_each(|&offset| put32(area, offset, new));
                    Ok(())
                })?;
            }
            let mut core = core_of(dir).write();
            if le32(&core.i_block, 0) == old {
                put32(&mut core.i_block, 0, new);
            }
            return Ok(());
        }
        let Some((buffer, area, is_root)) = self.entry_area(dir, lblk)? else { return Ok(()) };
        let found = offsets(&buffer.read()[..area])?;
        let change = |block: &mut [u8]| found.iter().for_each(|&offset| put32(block, offset, new));
        if is_root {
            self.change_index(h, dir, &buffer, true, change)
        } else {
            self.change_leaf(h, dir, &buffer, |block| {
                change(block);
                Ok(())
            })
        }
    }

    /// A verified block with entries, how many of its bytes they cover, and whether it is the root of a hash
    /// tree. `None` for the inner nodes of such a tree.
    fn entry_area(&self, dir: &Inode, lblk: FileBlock) -> Result<Option<(Arc<Buffer>, usize, bool)>> {
        let format = self.dir_format();
        if self.dir_shape(dir) == Shape::Indexed {
            if lblk == FIRST {
                let buffer = self.htree_root(dir)?.0;
                // The entry `..` covers the index.
                return Ok(Some((buffer, format.block_size, true)));
            }
            let buffer = self.dir_block_at(dir, lblk)?;
            if index::looks_like_node(&format, &buffer.read()) {
                return Ok(None);
            }
        }
        Ok(Some((self.dir_leaf(dir, lblk)?, format.usable(), false)))
    }

    fn entries_in(
        &self,
        dir: &Inode,
        lblk: FileBlock,
        area: &[u8],
        f: &mut dyn FnMut(usize, u32),
    ) -> Result<()> {
        let walked = self.dir_format().walk::<()>(area, &|| place(dir, lblk), |entry: Entry<'_>| {
            if entry.ino != 0 {
                f(entry.offset, entry.ino);
            }
            ControlFlow::Continue(())
        });
        walked.map(drop).map_err(|_| corrupt(dir, lblk, "a directory block is damaged: run e2fsck"))
    }
}
