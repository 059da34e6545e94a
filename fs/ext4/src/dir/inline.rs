//! Inline directories: the parent's inode number and a first chain of entries in `i_block`, a second chain in
//! the attribute `system.data`. `.` and `..` are not stored.
//!
//! When both chains are full, the directory moves to a block, where every entry gets the offset that readers'
//! cursors refer to.

use super::linear::{Format, entry_size, le32, put16};
use super::{FIRST, Found, Spot, place};
use crate::fs::{Ext4, Handle, core_of};
use crate::layout::Incompat;
use crate::layout::inode::{FL_EXTENTS, FL_INLINE_DATA};
use crate::xattr::body;
use ivers_vfs::{Error, FileType, Inode, Result};
use std::ops::{ControlFlow, Range};

/// Bytes of `i_block`.
const I_BLOCK: usize = 60;
/// Bytes of the parent's inode number.
const PARENT: usize = 4;

/// One of the two chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// In `i_block`.
    Slot,
    /// In `system.data`.
    Attribute,
}

impl Part {
    pub(crate) const ALL: [Self; 2] = [Part::Slot, Part::Attribute];

    /// Offset of the chain in a block, after `.` and `..`.
    pub(crate) fn offset_in_block(self) -> usize {
        let dots = 2 * entry_size(1);
        match self {
            Part::Slot => dots,
            Part::Attribute => dots + I_BLOCK - PARENT,
        }
    }
}

impl Ext4 {
    fn inline_data_range(&self, dir: &Inode, attributes: &[u8]) -> Result<Range<usize>> {
        let range = body::inline_data_range(attributes).map_err(|what| self.corrupt_inode(what, dir))?;
        Ok(range.unwrap_or(0..0))
    }

    /// Returns a copy of a chain.
    pub(crate) fn inline_area(&self, dir: &Inode, part: Part) -> Result<Vec<u8>> {
        let core = core_of(dir).read();
        Ok(match part {
            Part::Slot => core.i_block[PARENT..].to_vec(),
            Part::Attribute => core.body_xattrs[self.inline_data_range(dir, &core.body_xattrs)?].to_vec(),
        })
    }

    /// Changes a chain in place.
    pub(crate) fn inline_change(
        &self,
        dir: &Inode,
        part: Part,
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut core = core_of(dir).write();
        match part {
            Part::Slot => change(&mut core.i_block[PARENT..]),
            Part::Attribute => {
                let range = self.inline_data_range(dir, &core.body_xattrs)?;
                change(&mut core.body_xattrs[range])
            }
        }
    }

    pub(crate) fn inline_find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        let format = self.dir_format();
        for part in Part::ALL {
            let area = self.inline_area(dir, part)?;
            if let Some(entry) = format.find(&area, name, &|| place(dir, FIRST))? {
                return Ok(Some(Found {
                    spot: Spot::Inline(part, entry.offset),
                    ino: entry.ino,
                    kind: entry.kind,
                }));
            }
        }
        Ok(None)
    }

    pub(crate) fn inline_is_empty(&self, dir: &Inode) -> Result<bool> {
        for part in Part::ALL {
            let used =
                self.dir_format().walk(&self.inline_area(dir, part)?, &|| place(dir, FIRST), |entry| {
                    if entry.ino == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
            if used.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds a name; false if there is no space.
    pub(crate) fn inline_add(&self, dir: &Inode, name: &[u8], ino: u32, kind: FileType) -> Result<bool> {
        let format = self.dir_format();
        for part in Part::ALL {
            let room = format.room(&self.inline_area(dir, part)?, name.len(), &|| place(dir, FIRST))?;
            if let Some(offset) = room {
                self.inline_change(dir, part, |area| format.insert_at(area, offset, ino, name, kind))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn inline_remove(&self, dir: &Inode, part: Part, offset: usize) -> Result<()> {
        let format = self.dir_format();
        self.inline_change(dir, part, |area| format.remove_at(area, offset, &|| place(dir, FIRST)))
    }

    /// Moves the names to a block.
    pub(crate) fn inline_dir_to_block(&self, h: &mut Handle, dir: &Inode) -> Result<()> {
        let format = self.dir_format();
        let chains = [self.inline_area(dir, Part::Slot)?, self.inline_area(dir, Part::Attribute)?];
        let content = block_of_chains(&format, dir, &chains)?;
        let before = {
            let mut core = core_of(dir).write();
            let before = (core.i_block, core.flags, core.disk_size, core.body_xattrs.clone(), dir.size());
            core.body_xattrs = body::without_inline_data(&core.body_xattrs)
                .map_err(|what| self.corrupt_inode(what, dir))?
                .into();
            core.flags &= !FL_INLINE_DATA;
            core.i_block = [0; I_BLOCK];
            if self.sb.incompat.contains(Incompat::EXTENTS) {
                core.flags |= FL_EXTENTS;
                // An extent tree of one empty leaf: eh_magic, eh_entries, eh_max, eh_depth.
                put16(&mut core.i_block, 0, 0xF30A);
                put16(&mut core.i_block, 4, 4);
            }
            core.disk_size = 0;
            before
        };
        dir.with_attr(|attr| attr.size = 0);
        let (_, buffer) = match self.append_dir_block(h, dir) {
            Ok(appended) => appended,
            Err(error) => {
                let mut core = core_of(dir).write();
                (core.i_block, core.flags, core.disk_size, core.body_xattrs) =
                    (before.0, before.1, before.2, before.3);
                dir.with_attr(|attr| attr.size = before.4);
                return Err(error);
            }
        };
        self.change_leaf(h, dir, &buffer, |block| {
            block.copy_from_slice(&content);
            Ok(())
        })
    }
}

/// Builds the block that holds `.`, `..` and both chains at their offsets.
fn block_of_chains(format: &Format, dir: &Inode, chains: &[Vec<u8>; 2]) -> Result<Vec<u8>> {
    let mut block = vec![0; format.block_size];
    format.clear_block(&mut block);
    let parent = le32(&core_of(dir).read().i_block, 0);
    let kind = Some(FileType::Directory);
    let dot = entry_size(1);
    format.write_entry(&mut block, 0, dot, dir.ino.0 as u32, b".", kind);
    let mut entries = vec![(dot, parent, b"..".to_vec(), kind)];
    for (part, chain) in Part::ALL.into_iter().zip(chains) {
        format.walk::<()>(chain, &|| place(dir, FIRST), |entry| {
            if entry.ino != 0 {
                entries.push((
                    part.offset_in_block() + entry.offset,
                    entry.ino,
                    entry.name.to_vec(),
                    entry.kind,
                ));
            }
            ControlFlow::Continue(())
        })?;
    }
    // Each entry extends to the next, so unused ones vanish.
    for (number, (offset, ino, name, kind)) in entries.iter().enumerate() {
        let end = entries.get(number + 1).map_or(format.usable(), |next| next.0);
        if offset + entry_size(name.len()) > end {
            return Err(Error::corrupt("inline names do not fit a block", place(dir, FIRST)));
        }
        format.write_entry(&mut block, *offset, end - offset, *ino, name, *kind);
    }
    Ok(block)
}
