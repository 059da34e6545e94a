//! Directories: one interface to inline, linear and hashed directories.
//!
//! The names of a directory are stored in its inode (`inline_data`), in blocks that are searched in order, or
//! in the leaves of a hash tree (`dir_index`). Callers hold the directory's `Inode::lock`: shared to read,
//! exclusive to change.

pub mod cursor;
pub mod hash;
pub mod htree;
pub mod index;
pub mod inline;
pub mod linear;
pub mod ops;
mod renumber;

use crate::fs::{Ext4, Handle, core_of};
use crate::layout::inode::{FL_INDEX, FL_INLINE_DATA};
use crate::layout::{Compat, Incompat};
use hash::NameHasher;
use ivers_block::{Buffer, FileBlock};
use ivers_vfs::{Error, FileType, Ino, Inode, NameError, Result};
use linear::{Format, le32, put32};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How a directory stores its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In the inode.
    Inline,
    /// In blocks, unordered.
    Linear,
    /// In a hash tree.
    Indexed,
}

/// The position of an entry.
pub(crate) enum Spot {
    /// In a leaf or linear block.
    Block(Arc<Buffer>, usize),
    /// In the inode.
    Inline(inline::Part, usize),
}

/// An entry found by name.
pub(crate) struct Found {
    pub(crate) spot: Spot,
    pub(crate) ino: u32,
    pub(crate) kind: Option<FileType>,
}

impl Ext4 {
    /// Returns the parameters of directory blocks.
    pub(crate) fn dir_format(&self) -> Format {
        Format {
            block_size: self.sb.block_size as usize,
            filetype: self.sb.incompat.contains(Incompat::FILETYPE),
            checksum: self.has_csum(),
        }
    }

    /// Returns the hasher for names in no index.
    pub(crate) fn default_hasher(&self) -> NameHasher {
        self.hasher(self.sb.def_hash_version).unwrap_or_else(|| {
            // An unknown version affects only the default: our trees store the hash that they use.
            self.hasher(1).expect("half-MD4 is a known version")
        })
    }

    pub(crate) fn hasher(&self, version: u8) -> Option<NameHasher> {
        NameHasher::new(version, self.sb.hash_unsigned, self.sb.hash_seed)
    }

    pub(crate) fn has_dir_index(&self) -> bool {
        self.sb.compat.contains(Compat::DIR_INDEX)
    }

    pub(crate) fn dir_shape(&self, dir: &Inode) -> Shape {
        let flags = core_of(dir).read().flags;
        if flags & FL_INLINE_DATA != 0 {
            Shape::Inline
        } else if flags & FL_INDEX != 0 && self.has_dir_index() {
            Shape::Indexed
        } else {
            Shape::Linear
        }
    }

    /// The number of blocks that the directory's size covers.
    pub(crate) fn dir_blocks(&self, dir: &Inode) -> u64 {
        dir.size() >> self.sb.block_bits
    }

    fn dir_seed(&self, dir: &Inode) -> u32 {
        self.inode_seed(dir.ino.0 as u32, dir.generation)
    }

    /// Returns a directory block that must exist.
    pub(crate) fn dir_block_at(&self, dir: &Inode, lblk: FileBlock) -> Result<Arc<Buffer>> {
        if lblk.0 >= self.dir_blocks(dir) {
            return Err(corrupt(dir, lblk, "an index refers to a block after the end of its directory"));
        }
        self.dir_block(dir, lblk)?.ok_or_else(|| corrupt(dir, lblk, "a directory has a hole"))
    }

    /// Returns a block of entries; verifies its checksum.
    pub(crate) fn dir_leaf(&self, dir: &Inode, lblk: FileBlock) -> Result<Arc<Buffer>> {
        let buffer = self.dir_block_at(dir, lblk)?;
        let format = self.dir_format();
        if format.checksum {
            let block = buffer.read();
            // Nodes and leaves share the buffers' verified flag: the tail shows that a leaf was verified.
            if !format.has_tail(&block) {
                return Err(corrupt(dir, lblk, "a directory block lacks its checksum"));
            }
            if !buffer.is_verified() {
                let stored = le32(&block, format.usable() + 8);
                if self.csum(self.dir_seed(dir), &block[..format.usable()]) != stored {
                    return Err(corrupt(dir, lblk, "a directory block has a bad checksum"));
                }
                buffer.set_verified();
            }
        }
        Ok(buffer)
    }

    /// Verifies the checksum of an index block whose table is known.
    pub(crate) fn verify_index(
        &self,
        dir: &Inode,
        lblk: FileBlock,
        buffer: &Buffer,
        block: &[u8],
        table: &index::Table,
    ) -> Result<()> {
        if self.has_csum() && !buffer.is_verified() {
            let sum = table.checksum(block, self.dir_seed(dir), |seed, bytes| self.csum(seed, bytes));
            if sum != table.stored_checksum(block) {
                return Err(corrupt(dir, lblk, "an index block has a bad checksum"));
            }
            buffer.set_verified();
        }
        Ok(())
    }

    /// Changes a block of entries and its checksum.
    pub(crate) fn change_leaf<R>(
        &self,
        h: &mut Handle,
        dir: &Inode,
        buffer: &Arc<Buffer>,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let format = self.dir_format();
        let seed = self.dir_seed(dir);
        let usable = format.usable();
        let result = h.modify(buffer, |block| {
            let result = change(block);
            if format.checksum {
                let sum = self.csum(seed, &block[..usable]);
                put32(block, usable + 8, sum);
            }
            result
        })?;
        buffer.set_verified();
        result
    }

    /// Changes an index block and its checksum.
    pub(crate) fn change_index(
        &self,
        h: &mut Handle,
        dir: &Inode,
        buffer: &Arc<Buffer>,
        root: bool,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let format = self.dir_format();
        let seed = self.dir_seed(dir);
        let result = h.modify(buffer, |block| {
            change(block);
            let table = if root {
                index::parse_root(&format, block).map(|root| root.table)
            } else {
                index::parse_node(&format, block)
            }?;
            if format.checksum {
                let sum = table.checksum(block, seed, |seed, bytes| self.csum(seed, bytes));
                table.store_checksum(block, sum);
            }
            Ok(())
        })?;
        buffer.set_verified();
        result.map_err(|what: &str| Error::corrupt(what, format!("directory inode {}", dir.ino)))
    }

    /// Finds the entry of a name.
    pub(crate) fn dir_find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        match self.dir_shape(dir) {
            Shape::Inline => self.inline_find(dir, name),
            Shape::Indexed => self.htree_find(dir, name),
            Shape::Linear => {
                for lblk in FIRST.run(self.dir_blocks(dir)) {
                    let buffer = self.dir_leaf(dir, lblk)?;
                    if let Some(found) = self.find_in_leaf(dir, lblk, &buffer, name)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
        }
    }

    pub(crate) fn find_in_leaf(
        &self,
        dir: &Inode,
        lblk: FileBlock,
        buffer: &Arc<Buffer>,
        name: &[u8],
    ) -> Result<Option<Found>> {
        let format = self.dir_format();
        let block = buffer.read();
        let found = format.find(&block[..format.usable()], name, &|| place(dir, lblk))?;
        Ok(found.map(|entry| Found {
            spot: Spot::Block(buffer.clone(), entry.offset),
            ino: entry.ino,
            kind: entry.kind,
        }))
    }

    /// Finds the inode of a name, and its type if entries store it.
    pub fn dir_lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<(Ino, Option<FileType>)>> {
        if name.len() > linear::NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        match self.dir_find(dir, name)? {
            None => Ok(None),
            Some(found) if found.ino > self.sb.inodes_count() => Err(Error::corrupt(
                "an entry has an invalid inode number",
                format!("directory inode {}", dir.ino),
            )),
            Some(found) => Ok(Some((Ino(u64::from(found.ino)), found.kind))),
        }
    }

    /// Adds a name; the caller has checked that it is free. The directory's size may grow; the caller logs
    /// it.
    pub fn dir_add(&self, h: &mut Handle, dir: &Inode, name: &[u8], ino: Ino, kind: FileType) -> Result<()> {
        if name.is_empty() {
            return Err(NameError::Invalid.into());
        }
        if name.len() > linear::NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        let ino = u32::try_from(ino.0).map_err(|_| NameError::Invalid)?;
        if self.dir_shape(dir) == Shape::Inline {
            if self.inline_add(dir, name, ino, kind)? {
                return Ok(());
            }
            self.inline_dir_to_block(h, dir)?;
        }
        match self.dir_shape(dir) {
            Shape::Indexed => self.htree_add(h, dir, name, ino, kind),
            _ => self.linear_add(h, dir, name, ino, kind),
        }
    }

    fn linear_add(&self, h: &mut Handle, dir: &Inode, name: &[u8], ino: u32, kind: FileType) -> Result<()> {
        let format = self.dir_format();
        let usable = format.usable();
        let blocks = self.dir_blocks(dir);
        for lblk in FIRST.run(blocks) {
            let buffer = self.dir_leaf(dir, lblk)?;
            let room = format.room(&buffer.read()[..usable], name.len(), &|| place(dir, lblk))?;
            if let Some(offset) = room {
                // Without the feature, a tree that is changed as a linear directory stops being a tree.
                core_of(dir).write().flags &= !FL_INDEX;
                return self.change_leaf(h, dir, &buffer, |block| {
                    format.insert_at(&mut block[..usable], offset, ino, name, kind)
                });
            }
        }
        if self.has_dir_index() && blocks == 1 && self.htree_convert(h, dir)? {
            return self.htree_add(h, dir, name, ino, kind);
        }
        let (_, buffer) = self.append_dir_block(h, dir)?;
        self.change_leaf(h, dir, &buffer, |block| {
            format.clear_block(block);
            format.insert_at(&mut block[..usable], 0, ino, name, kind)
        })
    }

    /// Removes a name and returns its inode number.
    pub fn dir_remove(&self, h: &mut Handle, dir: &Inode, name: &[u8]) -> Result<Ino> {
        let found = self.dir_find(dir, name)?.ok_or(NameError::NotFound)?;
        match &found.spot {
            Spot::Block(buffer, offset) => {
                let format = self.dir_format();
                let usable = format.usable();
                self.change_leaf(h, dir, buffer, |block| {
                    format
                        .remove_at(&mut block[..usable], *offset, &|| format!("directory inode {}", dir.ino))
                })?;
            }
            Spot::Inline(part, offset) => self.inline_remove(dir, *part, *offset)?,
        }
        Ok(Ino(u64::from(found.ino)))
    }

    /// Makes an existing name refer to another inode.
    pub fn dir_set(&self, h: &mut Handle, dir: &Inode, name: &[u8], ino: Ino, kind: FileType) -> Result<()> {
        let ino = u32::try_from(ino.0).map_err(|_| NameError::Invalid)?;
        let found = self.dir_find(dir, name)?.ok_or(NameError::NotFound)?;
        let format = self.dir_format();
        match &found.spot {
            Spot::Block(buffer, offset) => self.change_leaf(h, dir, buffer, |block| {
                format.set_at(block, *offset, ino, kind);
                Ok(())
            }),
            Spot::Inline(part, offset) => self.inline_change(dir, *part, |area| {
                format.set_at(area, *offset, ino, kind);
                Ok(())
            }),
        }
    }

    /// Whether the directory holds only `.` and `..`.
    pub fn dir_is_empty(&self, dir: &Inode) -> Result<bool> {
        let shape = self.dir_shape(dir);
        let format = self.dir_format();
        if shape == Shape::Inline {
            return self.inline_is_empty(dir);
        }
        for lblk in FIRST.run(self.dir_blocks(dir)) {
            let buffer = self.dir_block_at(dir, lblk)?;
            let block = buffer.read();
            if shape == Shape::Indexed && (lblk == FIRST || index::looks_like_node(&format, &block)) {
                continue;
            }
            self.dir_leaf(dir, lblk)?;
            let used = format.walk(&block[..format.usable()], &|| place(dir, lblk), |entry| {
                if entry.ino != 0 && !entry.is_dot() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if used.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the first block of a new directory, with `.` and `..`.
    pub fn dir_init(&self, h: &mut Handle, dir: &Inode, parent: Ino) -> Result<()> {
        let (_, buffer) = self.append_dir_block(h, dir)?;
        let kind = Some(FileType::Directory);
        let entries = [(dir.ino.0 as u32, &b"."[..], kind), (parent.0 as u32, &b".."[..], kind)];
        let format = self.dir_format();
        self.change_leaf(h, dir, &buffer, |block| {
            format.fill_block(block, entries.into_iter());
            Ok(())
        })
    }

    /// Makes `..` refer to another directory.
    pub fn dir_set_parent(&self, h: &mut Handle, dir: &Inode, parent: Ino) -> Result<()> {
        let parent = u32::try_from(parent.0).map_err(|_| NameError::Invalid)?;
        let shape = self.dir_shape(dir);
        if shape == Shape::Inline {
            put32(&mut core_of(dir).write().i_block, 0, parent);
            return Ok(());
        }
        let (buffer, offset, _) = self.dotdot(dir)?;
        let format = self.dir_format();
        if shape == Shape::Indexed {
            self.change_index(h, dir, &buffer, true, |block| {
                format.set_at(block, offset, parent, FileType::Directory)
            })
        } else {
            self.change_leaf(h, dir, &buffer, |block| {
                format.set_at(block, offset, parent, FileType::Directory);
                Ok(())
            })
        }
    }

    /// Returns the entry `..` of a directory that has blocks: its buffer, offset and inode number.
    fn dotdot(&self, dir: &Inode) -> Result<(Arc<Buffer>, usize, u32)> {
        let format = self.dir_format();
        let buffer = if self.dir_shape(dir) == Shape::Indexed {
            self.htree_root(dir)?.0
        } else {
            self.dir_leaf(dir, FIRST)?
        };
        let block = buffer.read();
        let first = format.entry(&block, 0).map_err(|what| corrupt(dir, FIRST, what))?;
        let second = format.entry(&block, first.rec_len).map_err(|what| corrupt(dir, FIRST, what))?;
        if first.name != b"." || second.name != b".." {
            return Err(corrupt(dir, FIRST, "a directory does not begin with . and .."));
        }
        let (offset, ino) = (second.offset, second.ino);
        drop(block);
        Ok((buffer, offset, ino))
    }

    /// Returns the parent of a directory.
    pub fn dir_parent(&self, dir: &Inode) -> Result<Ino> {
        let ino = if self.dir_shape(dir) == Shape::Inline {
            le32(&core_of(dir).read().i_block, 0)
        } else {
            self.dotdot(dir)?.2
        };
        if ino == 0 || ino > self.sb.inodes_count() {
            return Err(corrupt(dir, FIRST, ".. has an invalid inode number"));
        }
        Ok(Ino(u64::from(ino)))
    }
}

/// The first block of a directory.
pub(crate) const FIRST: FileBlock = FileBlock(0);

pub(crate) fn place(dir: &Inode, lblk: FileBlock) -> String {
    format!("directory inode {}, block {lblk}", dir.ino)
}

pub(crate) fn corrupt(dir: &Inode, lblk: FileBlock, what: &str) -> Error {
    Error::corrupt(what, place(dir, lblk))
}
