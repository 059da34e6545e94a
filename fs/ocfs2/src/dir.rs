//! Directories: blocks with entries of any length, in no order, or entries in the inode. A lookup does not
//! use the index, which some directories have.

use crate::layout::dinode::{Dinode, INLINE_AT};
use crate::layout::directory::{Entry, TRAILER_BYTES, TRAILER_CHECK_AT, entry};
use crate::layout::superblock::SUPERBLOCK;
use crate::volume::{Ocfs2, Private};
use ivers_block::BufferRead;
use ivers_vfs::{DirEntry, Ino, Result};
use std::ops::{ControlFlow, Range};

impl Ocfs2 {
    /// Reads a block of a directory that is not inline. Returns its number, too.
    pub(crate) fn directory_block(&self, dir: &Dinode, block: u64) -> Result<(u64, BufferRead)> {
        let per_cluster = u64::from(self.sb.blocks_per_cluster);
        let run = self.map(dir, block / per_cluster)?;
        let start = run.start.filter(|_| !run.unwritten);
        let start = start.ok_or_else(|| self.corrupt(dir.ino, "the directory has a hole"))?;
        let number = start + block % per_cluster;
        let check_at = self.sb.block_size as usize - TRAILER_BYTES + TRAILER_CHECK_AT;
        Ok((number, self.block(number, check_at)?))
    }

    /// Calls `each` with the entries that begin in a range of bytes, and with the byte after each, until it
    /// breaks. The start may be anywhere: entries are found from the start of their block.
    pub(crate) fn for_each_entry(
        &self,
        dir: &Dinode,
        range: Range<u64>,
        mut each: impl FnMut(Entry<'_>, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let size = u64::from(self.sb.block_size);
        let mut start = if dir.is_inline() { 0 } else { range.start / size * size };
        while start < range.end {
            let block;
            let bytes: &[u8] = if dir.is_inline() {
                block = self.block_of(dir)?;
                &block[INLINE_AT..INLINE_AT + dir.size as usize]
            } else {
                block = self.directory_block(dir, start / size)?.1;
                &block
            };
            let mut at = 0;
            while at < bytes.len() {
                let (found, next) = entry(bytes, at).map_err(|what| {
                    self.corrupt(dir.ino, format!("{what}, at byte {}", start + at as u64))
                })?;
                if let Some(found) = found
                    && range.contains(&(start + at as u64))
                    && each(found, start + next as u64).is_break()
                {
                    return Ok(());
                }
                at = next;
            }
            start += bytes.len().max(1) as u64;
        }
        Ok(())
    }

    /// Checks the size of a directory. It has no holes, so it is not larger than its clusters.
    pub(crate) fn check_directory(&self, dir: &Dinode) -> Result<()> {
        let size = u64::from(self.sb.block_size);
        let most = u64::from(dir.clusters.min(self.sb.clusters)) * u64::from(self.sb.cluster_size());
        let fits = dir.is_inline() || (dir.size.is_multiple_of(size) && dir.size <= most);
        // The size of inline contents was checked with the inode.
        if dir.size == 0 || !fits {
            let what = format!("the directory has {} bytes, not whole blocks up to {most}", dir.size);
            return Err(self.corrupt(dir.ino, what));
        }
        Ok(())
    }

    fn find_in(&self, dir: &Dinode, range: Range<u64>, name: &[u8]) -> Result<Option<(u64, u64)>> {
        let mut found = None;
        self.for_each_entry(dir, range, |entry, next| {
            if entry.name != name {
                return ControlFlow::Continue(());
            }
            found = Some((entry.ino, next));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Whether an inode number can be one.
    pub(crate) fn is_ino(&self, ino: u64) -> bool {
        (SUPERBLOCK + 1..self.sb.blocks()).contains(&ino)
    }

    /// Finds a name.
    pub(crate) fn find_name(&self, private: &Private, name: &[u8]) -> Result<Option<Ino>> {
        let dir = &*private.state.read();
        let find = |range| self.find_in(dir, range, name);
        let Some(ino) = private.search_start.search(dir.size, find)? else { return Ok(None) };
        if !self.is_ino(ino) {
            let what = format!("an entry refers to inode {ino}, which does not exist");
            return Err(self.corrupt(dir.ino, what));
        }
        Ok(Some(Ino(ino)))
    }

    /// Returns the parent of a directory.
    pub(crate) fn parent_of(&self, dir: &Dinode) -> Result<Ino> {
        // `..` is in the first block.
        match self.find_in(dir, 0..dir.size.min(self.sb.block_size.into()), b"..")? {
            Some((ino, _)) if self.is_ino(ino) => Ok(Ino(ino)),
            _ => Err(self.corrupt(dir.ino, "the directory has no valid ..")),
        }
    }

    /// Emits the entries from a cursor on: the byte after an entry.
    pub(crate) fn list(
        &self,
        dir: &Dinode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.for_each_entry(dir, cursor.min(dir.size)..dir.size, |entry, next| {
            let kind = entry.file_type();
            emit(&DirEntry { ino: Ino(entry.ino), name: entry.name, kind, next })
        })
    }
}
