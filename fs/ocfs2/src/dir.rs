//! Directories: blocks with entries of any length, in no order, or entries in the inode. Some have an index
//! on the device. The other large ones get one in memory.

use crate::index::entries_of;
use crate::layout::dinode::{Dinode, INLINE_AT};
use crate::layout::directory::{self, Entry, TRAILER_BYTES, TRAILER_CHECK_AT, entry};
use crate::layout::superblock::{SUPERBLOCK, incompat};
use crate::volume::{Ocfs2, Private};
use ivers_block::BufferRead;
use ivers_vfs::{DirEntry, Error, Ino, Result};
use std::ops::{ControlFlow, Range};

/// Directories of at least so many bytes get an index in memory if they have none on the device: a search
/// through smaller ones is cheap.
const INDEXED_BYTES: u64 = 8192;

/// Where an entry is.
pub(crate) struct Found {
    /// `None`: in the inode.
    pub block: Option<u64>,
    pub at: usize,
    pub ino: u64,
}

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

    /// Calls `each` with every entry that begins in a range of bytes, and with the range of the entry, until
    /// `each` breaks. The start may be anywhere: entries are found from the start of their block.
    pub(crate) fn for_each_entry(
        &self,
        dir: &Dinode,
        range: Range<u64>,
        mut each: impl FnMut(Entry<'_>, Range<u64>) -> ControlFlow<()>,
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
                    && each(found, start + at as u64..start + next as u64).is_break()
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
        self.for_each_entry(dir, range, |entry, bytes| {
            if entry.name != name {
                return ControlFlow::Continue(());
            }
            found = Some((entry.ino, bytes.end));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Whether an inode number can be one.
    pub(crate) fn is_ino(&self, ino: u64) -> bool {
        (SUPERBLOCK + 1..self.sb.blocks()).contains(&ino)
    }

    pub(crate) fn has_trailer(&self, dir: &Dinode) -> bool {
        !dir.is_inline() && (self.sb.has(incompat::META_ECC) || self.is_indexed(dir))
    }

    pub(crate) fn trailer_at(&self) -> usize {
        self.sb.block_size as usize - TRAILER_BYTES
    }

    /// The place of an entry in an index in memory: its byte on the device.
    pub(crate) fn place_of(&self, block: u64, at: usize) -> u64 {
        block * u64::from(self.sb.block_size) + at as u64
    }

    /// Returns the blocks that may have a name, from the index in memory. Makes the index if a large
    /// directory has none. `None`: there is no index. The caller holds the lock of the directory.
    fn remembered_blocks(&self, dir: &Dinode, name: &[u8]) -> Option<Vec<u64>> {
        if dir.size < INDEXED_BYTES {
            return None;
        }
        let size = u64::from(self.sb.block_size);
        // A damaged block prevents the index. A search still finds names before the damage.
        let places = self.names.places_or_make(Ino(dir.ino), name, |new| {
            let mut is_whole = true;
            for nth in 0..dir.size / size {
                let number = self.directory_block(dir, nth)?.0;
                self.for_each_entry(dir, nth * size..(nth + 1) * size, |entry, bytes| {
                    let at = (bytes.start % size) as usize;
                    is_whole = new.add(entry.name, self.place_of(number, at));
                    if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                if !is_whole {
                    break;
                }
            }
            Ok(is_whole)
        });
        places.map(|places| places.into_iter().map(|place| place / size).collect())
    }

    /// Returns the blocks in which a name may be. `None`: it can be anywhere.
    fn blocks_of_name(&self, dir: &Dinode, name: &[u8]) -> Result<Option<Vec<u64>>> {
        if self.is_indexed(dir) {
            self.indexed_blocks(dir, name).map(Some)
        } else if dir.is_inline() {
            Ok(None)
        } else {
            Ok(self.remembered_blocks(dir, name))
        }
    }

    /// Finds a name in one of these blocks.
    fn find_in_blocks(&self, dir: &Dinode, blocks: &[u64], name: &[u8]) -> Result<Option<Found>> {
        for &number in blocks {
            let block = self.block(number, self.trailer_at() + TRAILER_CHECK_AT)?;
            if let Some(found) = self.find_in_block(dir, number, &block, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_in_block(&self, dir: &Dinode, number: u64, block: &[u8], name: &[u8]) -> Result<Option<Found>> {
        let damaged = |what| self.corrupt(dir.ino, what);
        let has_trailer = self.has_trailer(dir);
        if has_trailer {
            directory::check_trailer(block, number, dir.ino).map_err(damaged)?;
        }
        let found = directory::find(&block[entries_of(block, has_trailer)], name).map_err(damaged)?;
        Ok(found.map(|(at, ino)| Found { block: Some(number), at, ino }))
    }

    /// Finds the entry of a name. The caller holds the lock of the directory.
    pub(crate) fn find_entry(&self, dir: &Dinode, name: &[u8]) -> Result<Option<Found>> {
        if dir.is_inline() {
            let block = self.block_of(dir)?;
            let found = directory::find(&block[INLINE_AT..INLINE_AT + dir.size as usize], name);
            let found = found.map_err(|what| self.corrupt(dir.ino, what))?;
            return Ok(found.map(|(at, ino)| Found { block: None, at, ino }));
        }
        if let Some(blocks) = self.blocks_of_name(dir, name)? {
            return self.find_in_blocks(dir, &blocks, name);
        }
        for nth in 0..dir.size / u64::from(self.sb.block_size) {
            let (number, block) = self.directory_block(dir, nth)?;
            if let Some(found) = self.find_in_block(dir, number, &block, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a name.
    pub(crate) fn find_name(&self, private: &Private, name: &[u8]) -> Result<Option<Ino>> {
        let dir = &*private.state.read();
        let by_index = self.blocks_of_name(dir, name).and_then(|blocks| match blocks {
            Some(blocks) => Ok(Some(self.find_in_blocks(dir, &blocks, name)?.map(|found| found.ino))),
            None => Ok(None),
        });
        let found = match by_index {
            Ok(Some(found)) => found,
            // If the index is damaged, the names can still be read.
            Ok(None) | Err(Error::Corrupt { .. }) => {
                private.search_start.search(dir.size, |range| self.find_in(dir, range, name))?
            }
            Err(error) => return Err(error),
        };
        let Some(ino) = found else { return Ok(None) };
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
        self.for_each_entry(dir, cursor.min(dir.size)..dir.size, |entry, bytes| {
            let kind = entry.file_type();
            emit(&DirEntry { ino: Ino(entry.ino), name: entry.name, kind, next: bytes.end })
        })
    }
}
