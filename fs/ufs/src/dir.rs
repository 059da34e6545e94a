//! Directories: units of 512 or 1024 bytes with entries of any length, in no order.

use crate::layout::dinode::Dinode;
use crate::layout::directory::{Entry, UNIT_BYTES, entry, unit_bytes};
use crate::layout::superblock::ROOT;
use crate::volume::{Private, Ufs};
use ivers_block::FileBlock;
use ivers_vfs::{DirEntry, Ino, Result};
use std::ops::{ControlFlow, Range};

/// Directories of at least so many bytes get an index in memory: a search through smaller ones is cheap.
const INDEXED_BYTES: u64 = 4096;

impl Ufs {
    /// Calls `each` with the entries that begin in a range of bytes, and with the byte after each, until it
    /// breaks. The start may be anywhere: entries are found from the start of their unit.
    pub(crate) fn for_each_entry(
        &self,
        dir: &Dinode,
        range: Range<u64>,
        mut each: impl FnMut(Entry<'_>, Range<u64>) -> ControlFlow<()>,
    ) -> Result<()> {
        let unit_bytes = unit_bytes(&self.sb);
        let first = range.start - range.start % unit_bytes as u64;
        for start in (first..range.end).step_by(unit_bytes) {
            let (fragment, in_fragment) = self.directory_place(dir, start)?;
            let bytes = self.fragment(dir.ino, fragment)?;
            let len = dir.size.saturating_sub(start).min(unit_bytes as u64) as usize;
            let unit = &bytes[in_fragment..in_fragment + len];
            let mut at = 0;
            while at < len {
                let (found, next) = entry(unit, at, &self.sb).map_err(|what| {
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
        }
        Ok(())
    }

    /// Returns the fragment of a byte of a directory, and the offset there.
    pub(crate) fn directory_place(&self, dir: &Dinode, byte: u64) -> Result<(u64, usize)> {
        let (block_size, fragment_size) = (u64::from(self.sb.block_size), u64::from(self.sb.fragment_size));
        let run = self.map(dir, FileBlock(byte / block_size))?;
        let first = run.start.ok_or_else(|| self.corrupt(dir.ino, "the directory has a hole"))?;
        Ok((first + byte % block_size / fragment_size, (byte % fragment_size) as usize))
    }

    /// Checks the size of a directory. It has no holes, so it is not larger than the filesystem.
    pub(crate) fn check_directory(&self, dir: &Dinode) -> Result<()> {
        let most = self.sb.size * u64::from(self.sb.fragment_size);
        if dir.size == 0 || !dir.size.is_multiple_of(UNIT_BYTES as u64) || dir.size > most {
            let what = format!("the directory has {} bytes, not a multiple of 512 up to {most}", dir.size);
            return Err(self.corrupt(dir.ino, what));
        }
        Ok(())
    }

    /// Finds a name among the entries that begin in a range. Returns the inode, and the bytes of the entry.
    pub(crate) fn find_in(
        &self,
        dir: &Dinode,
        range: Range<u64>,
        name: &[u8],
    ) -> Result<Option<(u32, Range<u64>)>> {
        let mut found = None;
        self.for_each_entry(dir, range, |entry, bytes| {
            if entry.name != name {
                return ControlFlow::Continue(());
            }
            found = Some((entry.ino, bytes));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Returns the bytes at which an entry with this name may begin, in order, if the directory has an index.
    /// Makes the index of a large one. The caller holds the lock of the directory.
    fn indexed(&self, dir: &Dinode, name: &[u8]) -> Option<Vec<u64>> {
        if dir.size < INDEXED_BYTES {
            return None;
        }
        // A damaged block prevents the index. A search still finds names before the damage.
        self.names.places_or_make(Ino(dir.ino.into()), name, |new| {
            let mut is_whole = true;
            self.for_each_entry(dir, 0..dir.size, |entry, bytes| {
                is_whole = new.add(entry.name, bytes.start);
                if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(is_whole)
        })
    }

    /// Finds an entry at one of these bytes.
    fn find_at(&self, dir: &Dinode, places: &[u64], name: &[u8]) -> Result<Option<(u32, Range<u64>)>> {
        for &place in places {
            if let Some(found) = self.find_in(dir, place..place + 1, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a name in a directory. Returns the inode, and the bytes of the entry. The caller holds the lock
    /// of the directory.
    pub(crate) fn find_entry(&self, dir: &Dinode, name: &[u8]) -> Result<Option<(u32, Range<u64>)>> {
        match self.indexed(dir, name) {
            Some(places) => self.find_at(dir, &places, name),
            None => self.find_in(dir, 0..dir.size, name),
        }
    }

    /// Finds a name.
    pub(crate) fn find_name(&self, private: &Private, name: &[u8]) -> Result<Option<Ino>> {
        let dir = &private.state.read().dinode;
        let find = |range| Ok(self.find_in(dir, range, name)?.map(|(ino, bytes)| (ino, bytes.end)));
        let found = match self.indexed(dir, name) {
            Some(places) => self.find_at(dir, &places, name)?.map(|(ino, _)| ino),
            None => private.search_start.search(dir.size, find)?,
        };
        let Some(ino) = found else { return Ok(None) };
        if !(ROOT..self.sb.inodes()).contains(&ino) {
            let what = format!("an entry refers to inode {ino}, which does not exist");
            return Err(self.corrupt(dir.ino, what));
        }
        Ok(Some(Ino(ino.into())))
    }

    /// Returns the parent of a directory.
    pub(crate) fn parent_of(&self, dir: &Dinode) -> Result<Ino> {
        // `..` is in the first unit.
        match self.find_in(dir, 0..UNIT_BYTES as u64, b"..")? {
            Some((ino, _)) if (ROOT..self.sb.inodes()).contains(&ino) => Ok(Ino(ino.into())),
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
            emit(&DirEntry { ino: Ino(entry.ino.into()), name: entry.name, kind, next: bytes.end })
        })
    }
}
