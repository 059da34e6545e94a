//! Names: adding them to directories, and removing them.

use crate::alloc::Sub;
use crate::change::Change;
use crate::index::{FREE_AT, Place, entries_of};
use crate::layout::bytes::{put_u16, put_u64, u16_at, u64_at};
use crate::layout::dinode::{Dinode, ID2_AT, INLINE_AT, SIZE_AT, dyn_features, put_features};
use crate::layout::directory::{
    self, Entry, NAME_MAX, TRAILER_CHECK_AT, TRAILER_FREE_AT, TRAILER_NEXT_AT, number_of,
};
use crate::layout::extents::{Extent, ExtentList};
use crate::layout::shape::DX_ROOT;
use crate::layout::superblock::incompat;
use crate::tree::{TREE_BLOCKS, TREE_CREDITS};
use crate::volume::Ocfs2;
use ivers_vfs::{FileType, Ino, NameError, Result};
use std::ops::ControlFlow;

/// Most blocks that adding a name changes: trees of the directory and of its index, clusters and groups.
pub(crate) const ADD_CREDITS: u32 = 2 * TREE_CREDITS + 24;
/// Most blocks that removing a name changes.
pub(crate) const REMOVE_CREDITS: u32 = 8;

/// Where a name goes: found before the change begins.
pub(crate) struct NamePlace {
    entry: EntryPlace,
    index: Option<Place>,
    /// Credits for the index beside those of one leaf.
    pub credits: u32,
}

/// Where a new entry is written.
#[derive(Clone, Copy)]
enum EntryPlace {
    Inode,
    /// The inode is full: its entries move to a block first.
    FullInode,
    Block(u64),
    /// In a new block: no block has space.
    NewBlock,
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX { Err(NameError::NameTooLong.into()) } else { Ok(()) }
}

impl Ocfs2 {
    /// The bytes of the inode that have the entries of a directory.
    fn inline_area(dir: &Dinode) -> std::ops::Range<usize> {
        INLINE_AT..INLINE_AT + dir.size as usize
    }

    fn damaged(&self, dir: &Dinode, what: &str) -> ivers_vfs::Error {
        self.corrupt(dir.ino, what)
    }

    /// Finds where a name goes. The caller holds the lock of `Space`.
    pub(crate) fn name_place(&self, dir: &Dinode, name: &[u8]) -> Result<NamePlace> {
        let need = directory::entry_bytes(name);
        if dir.is_inline() {
            let block = self.block_of(dir)?;
            let found = directory::find_space(&block[Self::inline_area(dir)], need);
            let has_room = found.map_err(|what| self.damaged(dir, what))?.0.is_some();
            let entry = if has_room { EntryPlace::Inode } else { EntryPlace::FullInode };
            return Ok(NamePlace { entry, index: None, credits: 0 });
        }
        let entry = self.find_room(dir, need)?.map_or(EntryPlace::NewBlock, EntryPlace::Block);
        if !self.is_indexed(dir) {
            return Ok(NamePlace { entry, index: None, credits: 0 });
        }
        let index = self.index_place(dir, name)?;
        let credits = self.index_credits(dir, &index)?;
        Ok(NamePlace { entry, index: Some(index), credits })
    }

    /// Finds a block of a directory with room for an entry.
    fn find_room(&self, dir: &Dinode, need: usize) -> Result<Option<u64>> {
        let count = dir.size / u64::from(self.sb.block_size);
        if !self.is_indexed(dir) {
            let has_trailer = self.has_trailer(dir);
            for nth in (0..count).rev() {
                let (number, block) = self.directory_block(dir, nth)?;
                let found = directory::find_space(&block[entries_of(&block, has_trailer)], need);
                if found.map_err(|what| self.damaged(dir, what))?.0.is_some() {
                    return Ok(Some(number));
                }
            }
            return Ok(None);
        }
        let mut next = u64_at(&self.structure(dir.dx_root, &DX_ROOT)?, FREE_AT);
        for _ in 0..=count {
            if next == 0 {
                return Ok(None);
            }
            let (free, after) = self.free_of(dir, next)?;
            if usize::from(free) >= need {
                return Ok(Some(next));
            }
            next = after;
        }
        Err(self.damaged(dir, "the list of blocks with free space does not end; run fsck.ocfs2"))
    }

    /// The longest free space of a block of an indexed directory, and the next block that has some.
    fn free_of(&self, dir: &Dinode, number: u64) -> Result<(u16, u64)> {
        let block = self.block(number, self.trailer_at() + TRAILER_CHECK_AT)?;
        directory::check_trailer(&block, number, dir.ino).map_err(|what| self.damaged(dir, what))?;
        let trailer = &block[self.trailer_at()..];
        Ok((u16_at(trailer, TRAILER_FREE_AT), u64_at(trailer, TRAILER_NEXT_AT)))
    }

    /// Returns `NotEmpty` if a directory has names.
    pub(crate) fn check_empty(&self, dir: &Dinode) -> Result<()> {
        let mut is_empty = true;
        self.for_each_entry(dir, 0..dir.size, |entry, _| {
            is_empty = matches!(entry.name, b"." | b"..");
            if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if is_empty { Ok(()) } else { Err(NameError::NotEmpty.into()) }
    }
}

impl Change<'_> {
    /// Makes sure that there is space for adding a name. Call it before the first change. `makes`: also for a
    /// new directory.
    pub fn prepare_add(&mut self, place: &NamePlace, makes: bool) -> Result<()> {
        let (mut blocks, mut clusters) = match place.entry {
            EntryPlace::Inode | EntryPlace::Block(_) => (0, 0),
            EntryPlace::FullInode | EntryPlace::NewBlock => (2 * TREE_BLOCKS + 1, 2),
        };
        if let Some(index) = &place.index {
            clusters += index.clusters();
            blocks += if index.clusters() > 0 { TREE_BLOCKS } else { 0 };
        }
        if makes {
            (blocks, clusters) = (blocks + TREE_BLOCKS + 1, clusters + 1);
        }
        self.ensure(Sub::Blocks, blocks, 0)?;
        if self.space.available(0) < clusters {
            return Err(NameError::NoSpace.into());
        }
        Ok(())
    }

    /// Changes the entries of a directory in one place: the inode, or a block. Keeps the list of blocks with
    /// free space.
    fn put_entries(
        &mut self,
        dir: &mut Dinode,
        block: Option<u64>,
        edit: impl FnOnce(&mut [u8]) -> std::result::Result<(), &'static str>,
    ) -> Result<()> {
        let fs = self.fs;
        let Some(number) = block else {
            let area = Ocfs2::inline_area(dir);
            let edited = self.put_inode(dir, |bytes| edit(&mut bytes[area]))?;
            return edited.map_err(|what| fs.damaged(dir, what));
        };
        let (has_trailer, trailer_at) = (fs.has_trailer(dir), fs.trailer_at());
        let edited = self.put_directory_block(number, |bytes| {
            let area = entries_of(bytes, has_trailer);
            edit(&mut bytes[area.clone()])?;
            Ok(directory::find_space(&bytes[area], 0)?.1)
        })?;
        let longest = edited.map_err(|what: &str| fs.damaged(dir, what))? as u16;
        if !fs.is_indexed(dir) {
            return Ok(());
        }
        let (old, next) = fs.free_of(dir, number)?;
        let mut next = next;
        if (old == 0) != (longest == 0) {
            let first = u64_at(&fs.structure(dir.dx_root, &DX_ROOT)?, FREE_AT);
            if old == 0 {
                next = first;
                self.put_free_list(dir, number)?;
            } else {
                self.leave_free_list(dir, first, number, next)?;
                next = 0;
            }
        }
        self.put_directory_block(number, |bytes| {
            put_u16(bytes, trailer_at + TRAILER_FREE_AT, longest);
            put_u64(bytes, trailer_at + TRAILER_NEXT_AT, next);
        })
    }

    fn leave_free_list(&mut self, dir: &Dinode, first: u64, number: u64, next: u64) -> Result<()> {
        if first == number {
            return self.put_free_list(dir, next);
        }
        let mut at = first;
        for _ in 0..=dir.size / u64::from(self.fs.sb.block_size) {
            let after = if at == 0 { break } else { self.fs.free_of(dir, at)?.1 };
            if after == number {
                let trailer_at = self.fs.trailer_at();
                return self.put_directory_block(at, |bytes| {
                    put_u64(bytes, trailer_at + TRAILER_NEXT_AT, next);
                });
            }
            at = after;
        }
        Err(self.fs.damaged(dir, "the list of blocks with free space lacks a block; run fsck.ocfs2"))
    }

    /// Changes a block of a directory. One without a trailer has no checksum.
    fn put_directory_block<R>(&mut self, number: u64, edit: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.put(number, self.fs.trailer_at() + TRAILER_CHECK_AT, edit)
    }

    /// Adds a name. [`prepare_add`](Self::prepare_add) made sure that there is space.
    pub fn add_name(
        &mut self,
        dir: &mut Dinode,
        place: NamePlace,
        name: &[u8],
        ino: u64,
        kind: FileType,
    ) -> Result<()> {
        let new = Entry { ino, kind: number_of(kind), name };
        let NamePlace { mut entry, mut index, .. } = place;
        if let EntryPlace::FullInode = entry {
            self.expand(dir)?;
            NamePlace { entry, index, .. } = self.fs.name_place(dir, name)?;
        }
        let block = match entry {
            EntryPlace::Inode => None,
            EntryPlace::Block(number) => Some(number),
            EntryPlace::FullInode | EntryPlace::NewBlock => Some(self.extend(dir)?),
        };
        let mut added_at = 0;
        self.put_entries(dir, block, |area| {
            let at = directory::find_space(area, directory::entry_bytes(name))?.0;
            added_at = directory::add(area, at.ok_or("free space vanished")?, new)?;
            Ok(())
        })?;
        let Some(number) = block else { return Ok(()) };
        match index {
            Some(index) => self.index_add(dir, index, name, number),
            None => {
                self.fs.names.add(Ino(dir.ino), name, self.fs.place_of(number, added_at));
                Ok(())
            }
        }
    }

    /// Removes a name that refers to an inode.
    pub fn remove_name(&mut self, dir: &mut Dinode, name: &[u8], ino: u64) -> Result<()> {
        let found = self.fs.find_entry(dir, name)?.ok_or(NameError::NotFound)?;
        if found.ino != ino {
            let what = format!("{} refers to inode {}, not to {ino}", name.escape_ascii(), found.ino);
            return Err(self.fs.corrupt(dir.ino, what));
        }
        if let Some(block) = found.block
            && self.fs.is_indexed(dir)
        {
            self.index_remove(dir, name, block)?;
        }
        self.put_entries(dir, found.block, |area| directory::remove(area, found.at))?;
        if let Some(block) = found.block {
            self.fs.names.remove(Ino(dir.ino), name, self.fs.place_of(block, found.at));
        }
        Ok(())
    }

    /// Makes a name refer to another inode.
    pub fn redirect(&mut self, dir: &mut Dinode, name: &[u8], ino: u64, kind: FileType) -> Result<()> {
        let found = self.fs.find_entry(dir, name)?.ok_or(NameError::NotFound)?;
        self.put_entries(dir, found.block, |area| {
            directory::put_target(area, found.at, ino, kind);
            Ok(())
        })
    }

    /// Writes the entries of a new directory. An inode that can have data has its entries there.
    pub fn make_directory(&mut self, dir: &mut Dinode, parent: u64) -> Result<()> {
        // An inode that had this number may have left an index.
        self.fs.names.forget(Ino(dir.ino));
        let kind = number_of(FileType::Directory);
        let own = dir.ino;
        let room = self.fs.inline_room(dir);
        self.put_inode(dir, |bytes| {
            put_u16(bytes, ID2_AT, room as u16);
            put_features(bytes, dyn_features::INLINE_DATA, 0);
            put_u64(bytes, SIZE_AT, room);
            let area = &mut bytes[INLINE_AT..INLINE_AT + room as usize];
            let first = directory::entry_bytes(b".");
            directory::put_entry(area, 0, first, Entry { ino: own, kind, name: b"." });
            let rest = area.len() - first;
            directory::put_entry(area, first, rest, Entry { ino: parent, kind, name: b".." });
        })?;
        if self.fs.sb.has(incompat::INLINE_DATA) { Ok(()) } else { self.expand(dir) }
    }

    /// Moves the entries in an inode to a block.
    fn expand(&mut self, dir: &mut Dinode) -> Result<()> {
        let fs = self.fs;
        let old = fs.block_of(dir)?[Ocfs2::inline_area(dir)].to_vec();
        let wants_index = fs.sb.has(incompat::INDEXED_DIRS);
        let has_trailer = wants_index || fs.sb.has(incompat::META_ECC);
        let (mut names, mut last) = (Vec::new(), 0);
        let mut at = 0;
        while at < old.len() {
            let (has, next) = directory::entry(&old, at).map_err(|what| fs.damaged(dir, what))?;
            names.extend(has.map(|entry| entry.name.to_vec()));
            (last, at) = (at, next);
        }
        let range = self.clusters(0, 1)?;
        let number = range.start * u64::from(fs.sb.blocks_per_cluster);
        let (trailer_at, owner) = (fs.trailer_at(), dir.ino);
        let mut longest = 0;
        self.put_new(number, trailer_at + TRAILER_CHECK_AT, |bytes| {
            bytes[..old.len()].copy_from_slice(&old);
            let area = entries_of(bytes, has_trailer);
            directory::put_length(bytes, last, area.end - last);
            longest = directory::find_space(&bytes[area], 0).map_or(0, |found| found.1);
            if has_trailer {
                directory::put_trailer(bytes, number, owner);
                if wants_index {
                    put_u16(bytes, trailer_at + TRAILER_FREE_AT, longest as u16);
                }
            }
        })?;
        let (size, tail) = (u64::from(fs.sb.block_size), dir.inline_xattr_bytes());
        self.put_inode(dir, |bytes| {
            let end = bytes.len() - tail;
            put_features(bytes, 0, dyn_features::INLINE_DATA);
            put_u64(bytes, SIZE_AT, size);
            ExtentList::encode_empty(&mut bytes[ID2_AT..end]);
        })?;
        self.add_extent(dir, Extent { cpos: 0, clusters: 1, start: number, flags: 0 })?;
        let free = if longest > 0 { number } else { 0 };
        if wants_index { self.index_new(dir, &names, number, free) } else { Ok(()) }
    }

    /// Adds an empty block to a directory. Returns its number.
    fn extend(&mut self, dir: &mut Dinode) -> Result<u64> {
        let fs = self.fs;
        let (per_cluster, nth) =
            (u64::from(fs.sb.blocks_per_cluster), dir.size / u64::from(fs.sb.block_size));
        let cluster = nth / per_cluster;
        let start = match fs.map(dir, cluster)?.start {
            Some(start) => start,
            None => {
                let range = self.clusters(0, 1)?;
                let start = range.start * per_cluster;
                self.add_extent(dir, Extent { cpos: cluster as u32, clusters: 1, start, flags: 0 })?;
                start
            }
        };
        let number = start + nth % per_cluster;
        let (has_trailer, trailer_at, owner) = (fs.has_trailer(dir), fs.trailer_at(), dir.ino);
        let first = match fs.is_indexed(dir) {
            true => Some(u64_at(&fs.structure(dir.dx_root, &DX_ROOT)?, FREE_AT)),
            false => None,
        };
        self.put_new(number, trailer_at + TRAILER_CHECK_AT, |bytes| {
            let end = entries_of(bytes, has_trailer).end;
            directory::put_length(bytes, 0, end);
            if has_trailer {
                directory::put_trailer(bytes, number, owner);
            }
            if let Some(first) = first {
                put_u16(bytes, trailer_at + TRAILER_FREE_AT, end as u16);
                put_u64(bytes, trailer_at + TRAILER_NEXT_AT, first);
            }
        })?;
        if first.is_some() {
            self.put_free_list(dir, number)?;
        }
        let size = dir.size + u64::from(fs.sb.block_size);
        self.put_inode(dir, |bytes| put_u64(bytes, SIZE_AT, size))?;
        Ok(number)
    }
}
