//! Directories: hash chains, and the order of their changes.
//!
//! An entry is a header block. Its name, its directory and the pointer to the next entry of the chain are
//! in that block. So one write of one block adds or removes a name: the write of the preceding header, or
//! of the directory. An entry cannot be in two chains at a time; [`crate::rename`] explains how an entry
//! moves.

use crate::bitmap::AllocSource;
use crate::inode::header_block;
use crate::layout::{
    Block, COMMENT_MAX, NAME_MAX, OWNER_MAX, ST_FILE, ST_LINKDIR, ST_LINKFILE, ST_SOFTLINK, ST_USERDIR,
    T_SHORT, put_block, put_tail_block,
};
use crate::layout::{
    head, mode_to_protect, parse_name, posix_to_amiga, put_date, put_tail32, put_text, put32, tail,
};
use crate::volume::{Affs, CycleCheck, Header, Kind};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::*;
use ivers_write_ordering::{Change, Ordered, Stage};
use std::ops::ControlFlow;

/// What points to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Predecessor {
    /// This slot of the directory's hash table.
    Table(usize),
    /// The preceding entry of the chain.
    Entry(Block),
}

/// An entry and its predecessor.
pub(crate) struct Found {
    pub predecessor: Predecessor,
    pub entry: Header,
}

impl Affs {
    pub(crate) fn hash_slot(&self, name: &[u8]) -> usize {
        self.geometry.variant.hash(name, self.geometry.table_len())
    }

    /// Walks a hash chain of a directory. Checks that each entry is one, and that it belongs to this
    /// directory.
    pub(crate) fn walk_chain(
        &self,
        dir: Block,
        slot: usize,
        mut each: impl FnMut(Predecessor, Header) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut next = self.header(dir)?.slot(slot);
        let mut predecessor = Predecessor::Table(slot);
        let mut cycle = CycleCheck::new();
        while next != Block::NONE {
            let entry = self.header(next)?;
            if entry.kind == Kind::Root || entry.parent() != dir {
                return Err(self.geometry.corrupt(
                    next,
                    format!("an entry of directory {dir} names {} as its directory", entry.parent()),
                ));
            }
            if !cycle.step(next) {
                return Err(self.geometry.corrupt(next, "the hash chain has a cycle"));
            }
            let (block, chain) = (next, entry.chain());
            if each(predecessor, entry)?.is_break() {
                break;
            }
            (predecessor, next) = (Predecessor::Entry(block), chain);
        }
        Ok(())
    }

    /// Finds the entry of a name in Latin-1.
    pub(crate) fn find(&self, dir: Block, name: &[u8]) -> Result<Option<Found>> {
        let mut found = None;
        self.walk_chain(dir, self.hash_slot(name), |predecessor, entry| {
            if self.geometry.variant.names_equal(self.name_of(&entry)?, name) {
                found = Some(Found { predecessor, entry });
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    pub(crate) fn find_existing(&self, dir: Block, name: &[u8]) -> Result<Found> {
        self.find(dir, name)?.ok_or_else(|| NameError::NotFound.into())
    }

    /// Returns the end of the hash chain of a name, where a new entry is added.
    pub(crate) fn chain_end(&self, dir: Block, name: &[u8]) -> Result<Predecessor> {
        let slot = self.hash_slot(name);
        let mut end = Predecessor::Table(slot);
        self.walk_chain(dir, slot, |_, entry| {
            end = Predecessor::Entry(entry.block);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(end)
    }

    /// Returns the predecessor of an entry in the chain of its own name.
    pub(crate) fn predecessor(&self, entry: &Header) -> Result<Predecessor> {
        let found = self.find_existing(entry.parent(), self.name_of(entry)?)?;
        if found.entry.block != entry.block {
            return Err(self
                .geometry
                .corrupt(entry.block, "another entry of the directory has the same name"));
        }
        Ok(found.predecessor)
    }

    /// Lets a predecessor point to the entry `to`.
    pub(crate) fn set_pointer(
        &self,
        change: &Change<'_>,
        dir: Block,
        predecessor: Predecessor,
        stage: Stage,
        to: Block,
    ) -> Result<()> {
        match predecessor {
            Predecessor::Table(slot) => {
                self.edit(change, dir, stage, |bytes| put_block(bytes, head::TABLE + slot * 4, to))
            }
            Predecessor::Entry(entry) => {
                self.edit(change, entry, stage, |bytes| put_tail_block(bytes, tail::HASH_CHAIN, to))
            }
        }
    }

    /// Removes a link from the chain of links of its target after its name was removed: a link with a name
    /// is always in the chain.
    pub(crate) fn remove_from_link_chain(&self, change: &Change<'_>, link: &Header) -> Result<()> {
        let real = self.header(link.real())?;
        let mut predecessor = real.block;
        for other in self.hard_links(&real)? {
            if other.block == link.block {
                let next = link.next_link();
                *self.last_move.lock() = change.ticket();
                return self.edit(change, predecessor, Stage::Cut, |bytes| {
                    put_tail_block(bytes, tail::NEXT_LINK, next)
                });
            }
            predecessor = other.block;
        }
        Err(self
            .geometry
            .corrupt(link.block, format!("a hard link is not in the chain of links of block {}", real.block)))
    }

    pub(crate) fn free_header(&self, change: &Change<'_>, block: Block) -> Result<()> {
        self.bitmap.free(change, &[block])?;
        self.end_generation(block);
        Ok(())
    }

    /// Removes one name: the entry's own, or a link's.
    fn remove_name(&self, change: &Change<'_>, dir: Block, found: &Found) -> Result<()> {
        let Found { predecessor, entry } = found;
        self.update_cache_anyway(change, dir, &[entry.block], None)?;
        self.set_pointer(change, dir, *predecessor, Stage::Detach, entry.chain())?;
        self.finish_removal(change, entry)
    }

    /// Completes the removal of an entry that is in no hash chain.
    pub(crate) fn finish_removal(&self, change: &Change<'_>, entry: &Header) -> Result<()> {
        match entry.kind {
            Kind::LinkFile => {
                self.remove_from_link_chain(change, entry)?;
                self.free_header(change, entry.block)
            }
            // Its block is an inode, and is freed with the inode.
            Kind::LinkDirectory => self.remove_from_link_chain(change, entry),
            _ => match self.hard_links(entry)?.first() {
                Some(link) => self.take_over_link(change, entry.block, link),
                None => Ok(()),
            },
        }
    }

    /// Returns an error if a directory has entries, or if a hard link refers to it.
    pub(crate) fn check_removable(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        let header = self.header(header_block(inode))?;
        if (0..self.geometry.table_len()).any(|slot| header.slot(slot) != Block::NONE) {
            return Err(NameError::NotEmpty.into());
        }
        if header.next_link() != Block::NONE { Err(NameError::Busy.into()) } else { Ok(()) }
    }

    /// Returns the inode number of an entry. For a hard link to a file it is that of the file.
    pub(crate) fn target_ino(&self, entry: &Header) -> Result<Ino> {
        Ok(if entry.kind == Kind::LinkFile { entry.real() } else { entry.block }.ino())
    }

    pub(crate) fn fs_lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        let name = match self.geometry.variant.long_names {
            true => crate::layout::to_latin1(name).ok_or(NameError::Invalid),
            false => parse_name(name),
        };
        let name = match name {
            Ok(name) => name,
            // No entry can have this name.
            Err(NameError::Invalid) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let _chains = self.chain_lock.read();
        self.find(header_block(dir), &name)?.map(|found| self.target_ino(&found.entry)).transpose()
    }

    pub(crate) fn fs_parent(&self, dir: &Inode) -> Result<Ino> {
        let header = self.header(header_block(dir))?;
        Ok(if header.kind == Kind::Root { header.block } else { header.parent() }.ino())
    }

    /// Records that the names in a directory changed. The header stores the directory's date, so the bump
    /// is forced.
    pub(crate) fn dir_changed(&self, dir: &Inode) -> Result<()> {
        dir.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(dir)
    }

    /// Adds `by` to the link count of an inode and logs the inode.
    pub(crate) fn change_nlink(&self, inode: &Inode, by: i32) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(by));
        inode.changed(Touch::Metadata, Logged::Anyway);
        if inode.with_attr(|attr| attr.nlink) == 0 {
            self.orphans.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.fs_log_inode(inode)
    }

    /// Adds a header that nothing leads to yet to the end of the hash chain of its name.
    fn append_to_chain(&self, change: &Change<'_>, dir: Block, name: &[u8], block: Block) -> Result<()> {
        let end = self.chain_end(dir, name)?;
        self.set_pointer(change, dir, end, Stage::Attach, block)
    }

    pub(crate) fn fs_create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let name = parse_name(name)?;
        let block = self.create_entry(header_block(dir), &name, new)?;
        self.dir_changed(dir)?;
        let header = self.header(block)?;
        let mut loaded = self.inode_from_header(&header, self.begin_generation(block))?;
        // The header stores only one time.
        (loaded.attr.atime, loaded.attr.ctime) = (new.atime, new.now);
        Ok(loaded)
    }

    /// Creates an entry of any kind in one batch.
    fn create_entry(&self, dir: Block, name: &[u8], new: &NewInode) -> Result<Block> {
        let target = match new.kind {
            FileType::Symlink => posix_to_amiga(&new.target).ok_or(NameError::Invalid)?,
            FileType::Regular | FileType::Directory => Vec::new(),
            _ => return Err(NameError::NotPermitted.into()),
        };
        // The path ends with a zero byte, and other fields follow the table.
        if target.len() + 1 > self.geometry.block_size as usize - head::TABLE - tail::BM_FLAG {
            return Err(NameError::NameTooLong.into());
        }
        if new.uid > OWNER_MAX || new.gid > OWNER_MAX {
            return Err(NameError::Invalid.into());
        }
        if !new.xattrs.is_empty() {
            return Err(NameError::NotSupported.into());
        }
        let needs_cache_block = new.kind == FileType::Directory && self.geometry.variant.cached;
        let mut allocated = self.bitmap.allocate(
            &self.change()?,
            dir,
            1 + u64::from(needs_cache_block),
            AllocSource::Unreserved,
        )?;
        let created = self.write_entry(dir, name, new, &target, &mut allocated);
        if created.is_err() {
            self.bitmap.free(&self.change()?, &allocated)?;
        }
        created
    }

    /// Writes a new entry into the blocks in `allocated`, the header into the first of them. Adds further
    /// blocks that it allocates to the list.
    fn write_entry(
        &self,
        dir: Block,
        name: &[u8],
        new: &NewInode,
        target: &[u8],
        allocated: &mut Vec<Block>,
    ) -> Result<Block> {
        let block = allocated[0];
        let cache_block = allocated.get(1).copied();
        let map = match new.size {
            0 => None,
            size => Some(self.write_zeros(block, size)?),
        };
        if let Some(map) = &map {
            allocated.extend(map.data.iter().chain(&map.extensions));
        }
        let (sec_type, is_dir) = match new.kind {
            FileType::Directory => (ST_USERDIR, true),
            FileType::Symlink => (ST_SOFTLINK, false),
            _ => (ST_FILE, false),
        };
        let protect = if new.kind == FileType::Symlink { 0 } else { mode_to_protect(new.perm, 0, is_dir) };
        let owner = self.owner_word(new.uid, new.gid);
        let change = self.change()?;
        let _chains = self.chain_lock.read();
        self.write_fresh(&change, block, |bytes| {
            put32(bytes, head::TYPE, T_SHORT);
            put_block(bytes, head::OWN_KEY, block);
            bytes[head::TABLE..head::TABLE + target.len()].copy_from_slice(target);
            put_tail32(bytes, tail::UID, owner);
            put_tail32(bytes, tail::PROTECT, protect);
            put_date(bytes, tail::DATE, new.mtime);
            put_text(bytes, tail::NAME, NAME_MAX, name);
            put_tail_block(bytes, tail::PARENT, dir);
            put_tail_block(bytes, tail::EXTENSION, cache_block.unwrap_or(Block::NONE));
            put_tail32(bytes, tail::SEC_TYPE, sec_type);
        })?;
        if let Some(map) = &map {
            self.write_new_tables(&change, block, map)?;
        }
        if let Some(cache_block) = cache_block {
            self.write_empty_cache_block(&change, cache_block, block)?;
        }
        let record = self.record_of(&self.header(block)?, None)?;
        self.update_cache(&change, dir, &[], Some(record), AllocSource::Unreserved)?;
        self.append_to_chain(&change, dir, name, block)?;
        Ok(block)
    }

    /// Creates a link block with a name. The link is in the chain of links of its target and in the
    /// directory's cache, but in no hash chain yet. If `replaced` is given, the link points to the entry
    /// after `replaced` in its chain, and its record takes the place of that of `replaced`.
    pub(crate) fn create_link(
        &self,
        change: &Change<'_>,
        real: &Header,
        (dir, name): (Block, &[u8]),
        replaced: Option<&Header>,
        source: AllocSource,
    ) -> Result<Block> {
        let block = self.bitmap.allocate(change, real.block, 1, source)?[0];
        let chain = replaced.map_or(Block::NONE, Header::chain);
        // With the comment, so that the record has space for that of the target, which takes over the link.
        let comment = self.comment_of(real)?;
        let sec_type = if real.kind == Kind::Directory { ST_LINKDIR } else { ST_LINKFILE };
        let (to, next) = (real.block, real.next_link());
        let (protect, date) = (real.protect(), self.geometry.variant.date_in(&real.bytes));
        self.write_fresh(change, block, |bytes| {
            put32(bytes, head::TYPE, T_SHORT);
            put_block(bytes, head::OWN_KEY, block);
            put_tail32(bytes, tail::PROTECT, protect);
            put_text(bytes, tail::COMMENT, COMMENT_MAX, &comment);
            put_date(bytes, tail::DATE, date);
            put_text(bytes, tail::NAME, NAME_MAX, name);
            put_tail_block(bytes, tail::REAL_ENTRY, to);
            put_tail_block(bytes, tail::NEXT_LINK, next);
            put_tail_block(bytes, tail::HASH_CHAIN, chain);
            put_tail_block(bytes, tail::PARENT, dir);
            put_tail32(bytes, tail::SEC_TYPE, sec_type);
        })?;
        let record = self.record_of(&self.header(block)?, None)?;
        let removed: Vec<Block> = replaced.iter().map(|header| header.block).collect();
        if let Err(error) = self.update_cache(change, dir, &removed, Some(record), source) {
            self.bitmap.free(change, &[block])?;
            return Err(error);
        }
        self.edit(change, to, Stage::Detach, |bytes| put_tail_block(bytes, tail::NEXT_LINK, block))?;
        self.begin_generation(block);
        Ok(block)
    }

    pub(crate) fn fs_link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let name = parse_name(name)?;
        if inode.kind != FileType::Regular {
            return Err(NameError::NotSupported.into());
        }
        self.settle_last_move()?;
        {
            let change = self.change()?;
            let _chains = self.chain_lock.read();
            let end = self.chain_end(header_block(dir), &name)?;
            let real = self.header(header_block(inode))?;
            let link =
                self.create_link(&change, &real, (header_block(dir), &name), None, AllocSource::Unreserved)?;
            self.set_pointer(&change, header_block(dir), end, Stage::Attach, link)?;
            // A later change may remove another name because this one exists.
            *self.last_move.lock() = change.ticket();
        }
        self.change_nlink(inode, 1)?;
        self.dir_changed(dir)
    }

    pub(crate) fn fs_unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let name = parse_name(name)?;
        self.check_removable(inode)?;
        self.settle_last_move()?;
        {
            let change = self.change()?;
            let _chains = self.chain_lock.write();
            let found = self.find_existing(header_block(dir), &name)?;
            self.remove_name(&change, header_block(dir), &found)?;
        }
        let removed = if inode.kind == FileType::Directory { -(inode.attr().nlink as i32) } else { -1 };
        self.change_nlink(inode, removed)?;
        self.dir_changed(dir)
    }

    /// Frees the blocks of an orphan.
    pub(crate) fn fs_delete_inode(&self, inode: &Inode) -> Result<()> {
        let blocks = if inode.kind == FileType::Regular {
            let map = self.block_map(inode)?;
            map.data
                .iter()
                .chain(&map.extensions)
                .chain(&map.surplus)
                .copied()
                .chain([header_block(inode)])
                .collect()
        } else if inode.kind == FileType::Directory {
            let caches = self.cache_blocks(header_block(inode))?;
            caches.iter().map(|cache| cache.block).chain([header_block(inode)]).collect()
        } else {
            vec![header_block(inode)]
        };
        self.drop_reservation(inode);
        let change = self.change()?;
        self.bitmap.free(&change, &blocks)?;
        self.end_generation(header_block(inode));
        self.orphans.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Closes the volume: see [`ivers_write_ordering::Ordered::close`].
    pub(crate) fn close(&self) -> Result<()> {
        if self.orphans.load(Ordering::Relaxed) > 0 {
            self.bitmap.keep_dirty_mark();
        } else if let Err(error) = self.ordered.as_ref().map_or(Ok(()), |_| self.write_stale_records()) {
            log::warn!(
                "{}: cannot update the directory caches: {error}; the next mount repairs them",
                self.geometry.place
            );
            self.bitmap.keep_dirty_mark();
        }
        self.ordered.as_ref().map_or(Ok(()), |_| self.wait_for_batch(Ordered::close))
    }
}
