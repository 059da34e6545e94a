//! Directories: hash chains, and the order in which they change.
//!
//! An entry is a header block: name, directory and next entry of the chain lie in it. So a name comes or goes by one write of one block (the
//! header before it in the chain, or the directory), and an entry cannot stand in two chains at a time: how one is moved is told in
//! [`crate::rename`].

use crate::layout::{
    Block, COMMENT_MAX, NAME_MAX, OWNER_MAX, ST_FILE, ST_LINKDIR, ST_LINKFILE, ST_SOFTLINK, ST_USERDIR,
    T_SHORT, put_block, put_tail_block,
};
use crate::layout::{amiga_path, head, name_from, protect_of, put_date, put_tail32, put_text, put32, tail};
use crate::node::block_of;
use crate::space::Claim;
use crate::volume::{Affs, Header, Hops, Kind, order_error};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage};
use std::ops::ControlFlow;

/// What leads to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// The directory's hash table, at this slot.
    Table(usize),
    /// The entry before it in the chain.
    Entry(Block),
}

/// An entry, and what leads to it.
pub(crate) struct Found {
    pub before: Before,
    pub entry: Header,
}

impl Affs {
    pub(crate) fn slot_of(&self, name: &[u8]) -> usize {
        self.shape.flavour.hash(name, self.shape.table_len())
    }

    /// Walks a chain of a directory. Every entry is checked: it is one, and says that it is in this directory.
    pub(crate) fn walk_chain(
        &self,
        dir: Block,
        slot: usize,
        mut each: impl FnMut(Before, Header) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut next = self.header(dir)?.slot(slot);
        let mut before = Before::Table(slot);
        let mut hops = Hops::new();
        while next != Block::NONE {
            let entry = self.header(next)?;
            if entry.kind == Kind::Root || entry.parent() != dir {
                return Err(self.shape.damaged(
                    next,
                    format!("it stands in directory {dir} and says that it is in {}", entry.parent()),
                ));
            }
            if !hops.step(next) {
                return Err(self.shape.damaged(next, "the hash chain goes round"));
            }
            let (block, chain) = (next, entry.chain());
            if each(before, entry)?.is_break() {
                break;
            }
            (before, next) = (Before::Entry(block), chain);
        }
        Ok(())
    }

    /// The entry of a name, in Latin-1.
    pub(crate) fn find(&self, dir: Block, name: &[u8]) -> Result<Option<Found>> {
        let mut found = None;
        self.walk_chain(dir, self.slot_of(name), |before, entry| {
            if self.shape.flavour.same(self.name_of(&entry)?, name) {
                found = Some(Found { before, entry });
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    pub(crate) fn found(&self, dir: Block, name: &[u8]) -> Result<Found> {
        self.find(dir, name)?.ok_or_else(|| NameError::NotFound.into())
    }

    /// Where a new entry of this name goes: the end of its chain.
    pub(crate) fn end_of(&self, dir: Block, name: &[u8]) -> Result<Before> {
        let slot = self.slot_of(name);
        let mut end = Before::Table(slot);
        self.walk_chain(dir, slot, |_, entry| {
            end = Before::Entry(entry.block);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(end)
    }

    /// What leads to a block in the chain of its own name.
    pub(crate) fn before(&self, entry: &Header) -> Result<Before> {
        let found = self.found(entry.parent(), self.name_of(entry)?)?;
        if found.entry.block != entry.block {
            return Err(self.shape.damaged(entry.block, "another entry has the same name"));
        }
        Ok(found.before)
    }

    /// Lets what leads to an entry lead to another one.
    pub(crate) fn point(
        &self,
        change: &Change<'_>,
        dir: Block,
        before: Before,
        stage: Stage,
        to: Block,
    ) -> Result<()> {
        match before {
            Before::Table(slot) => {
                self.edit(change, dir, stage, |bytes| put_block(bytes, head::TABLE + slot * 4, to))
            }
            Before::Entry(entry) => {
                self.edit(change, entry, stage, |bytes| put_tail_block(bytes, tail::HASH_CHAIN, to))
            }
        }
    }

    /// Takes a link out of the chain of links, when its name is gone: links that have a name are in the chain at any time.
    pub(crate) fn unchain(&self, change: &Change<'_>, link: &Header) -> Result<()> {
        let real = self.header(link.real())?;
        let mut before = real.block;
        for other in self.links_of(&real)? {
            if other.block == link.block {
                let next = link.next_link();
                *self.moved.lock() = change.ticket();
                return self
                    .edit(change, before, Stage::Cut, |bytes| put_tail_block(bytes, tail::NEXT_LINK, next));
            }
            before = other.block;
        }
        Err(self.shape.damaged(link.block, format!("a link that block {} does not know of", real.block)))
    }

    pub(crate) fn free_header(&self, change: &Change<'_>, block: Block) -> Result<()> {
        self.space.give_up(change, &[block])?;
        self.has_died(block);
        Ok(())
    }

    /// Takes one name away: the entry's own, or a link's.
    fn drop_name(&self, change: &Change<'_>, dir: Block, found: &Found) -> Result<()> {
        let Found { before, entry } = found;
        self.recache_surely(change, dir, &[entry.block], None)?;
        self.point(change, dir, *before, Stage::Detach, entry.chain())?;
        self.drop_nameless(change, entry)
    }

    /// The same for what nothing leads to any more.
    pub(crate) fn drop_nameless(&self, change: &Change<'_>, entry: &Header) -> Result<()> {
        match entry.kind {
            Kind::LinkFile => {
                self.unchain(change, entry)?;
                self.free_header(change, entry.block)
            }
            // Its block is an inode of its own: freed with that.
            Kind::LinkDirectory => self.unchain(change, entry),
            _ => match self.links_of(entry)?.first() {
                Some(link) => self.replace_link(change, entry.block, link),
                None => Ok(()),
            },
        }
    }

    /// A directory may go: nothing is in it, and no hard link leads to it.
    pub(crate) fn may_go(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        let header = self.header(block_of(inode))?;
        if (0..self.shape.table_len()).any(|slot| header.slot(slot) != Block::NONE) {
            return Err(NameError::NotEmpty.into());
        }
        if header.next_link() != Block::NONE { Err(NameError::Busy.into()) } else { Ok(()) }
    }

    /// What an entry stands for: links to files for the file.
    pub(crate) fn meant_by(&self, entry: &Header) -> Result<Ino> {
        Ok(if entry.kind == Kind::LinkFile { entry.real() } else { entry.block }.ino())
    }

    pub(crate) fn fs_lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        let name = match self.shape.flavour.long_names {
            true => crate::layout::to_latin(name).ok_or(NameError::Invalid),
            false => name_from(name),
        };
        let name = match name {
            Ok(name) => name,
            // No entry can have it.
            Err(NameError::Invalid) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let _links = self.links.read();
        self.find(block_of(dir), &name)?.map(|found| self.meant_by(&found.entry)).transpose()
    }

    pub(crate) fn fs_parent(&self, dir: &Inode) -> Result<Ino> {
        let header = self.header(block_of(dir))?;
        Ok(if header.kind == Kind::Root { header.block } else { header.parent() }.ino())
    }

    /// The names in a directory have changed: its date goes to the header, so its value moves in any case.
    pub(crate) fn renamed_in(&self, dir: &Inode) -> Result<()> {
        dir.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(dir)
    }

    /// Inode attributes have changed with names.
    pub(crate) fn relinked(&self, inode: &Inode, by: i32) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = attr.nlink.saturating_add_signed(by));
        inode.changed(Touch::Metadata, Logged::Anyway);
        if inode.with_attr(|attr| attr.nlink) == 0 {
            self.orphans.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.fs_log_inode(inode)
    }

    /// Puts a header that nothing leads to yet at the end of its chain.
    fn attach(&self, change: &Change<'_>, dir: Block, name: &[u8], block: Block) -> Result<()> {
        let end = self.end_of(dir, name)?;
        self.point(change, dir, end, Stage::Attach, block)
    }

    pub(crate) fn fs_create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let name = name_from(name)?;
        let block = self.make(block_of(dir), &name, new)?;
        self.renamed_in(dir)?;
        let header = self.header(block)?;
        let mut loaded = self.loaded(&header, self.is_born(block))?;
        // The header has one time only.
        (loaded.attr.atime, loaded.attr.ctime) = (new.atime, new.now);
        Ok(loaded)
    }

    /// A header with a name, and what it stands for, all of it in one batch.
    fn make(&self, dir: Block, name: &[u8], new: &NewInode) -> Result<Block> {
        let target = match new.kind {
            FileType::Symlink => amiga_path(&new.target).ok_or(NameError::Invalid)?,
            FileType::Regular | FileType::Directory => Vec::new(),
            _ => return Err(NameError::NotPermitted.into()),
        };
        // A zero ends it, and behind the table there is more.
        if target.len() + 1 > self.shape.block_size as usize - head::TABLE - tail::BM_FLAG {
            return Err(NameError::NameTooLong.into());
        }
        if new.uid > OWNER_MAX || new.gid > OWNER_MAX {
            return Err(NameError::Invalid.into());
        }
        if !new.xattrs.is_empty() {
            return Err(NameError::NotSupported.into());
        }
        let needs_page = new.kind == FileType::Directory && self.shape.flavour.cached;
        let mut taken = self.space.take(&self.change()?, dir, 1 + u64::from(needs_page), Claim::Plain)?;
        let made = self.fill(dir, name, new, &target, &mut taken);
        if made.is_err() {
            self.space.give_up(&self.change()?, &taken)?;
        }
        made
    }

    /// Makes a new entry in the first of these blocks, and whatever belongs to it; what it takes more is in the list then.
    fn fill(
        &self,
        dir: Block,
        name: &[u8],
        new: &NewInode,
        target: &[u8],
        taken: &mut Vec<Block>,
    ) -> Result<Block> {
        let block = taken[0];
        let page = taken.get(1).copied();
        let map = match new.size {
            0 => None,
            size => Some(self.make_zeros(block, size)?),
        };
        if let Some(map) = &map {
            taken.extend(map.data.iter().chain(&map.extensions));
        }
        let (sec_type, is_dir) = match new.kind {
            FileType::Directory => (ST_USERDIR, true),
            FileType::Symlink => (ST_SOFTLINK, false),
            _ => (ST_FILE, false),
        };
        let protect = if new.kind == FileType::Symlink { 0 } else { protect_of(new.perm, 0, is_dir) };
        let owner = self.owner_word(new.uid, new.gid);
        let change = self.change()?;
        let _links = self.links.read();
        self.write_fresh(&change, block, |bytes| {
            put32(bytes, head::TYPE, T_SHORT);
            put_block(bytes, head::OWN_KEY, block);
            bytes[head::TABLE..head::TABLE + target.len()].copy_from_slice(target);
            put_tail32(bytes, tail::UID, owner);
            put_tail32(bytes, tail::PROTECT, protect);
            put_date(bytes, tail::DATE, new.mtime);
            put_text(bytes, tail::NAME, NAME_MAX, name);
            put_tail_block(bytes, tail::PARENT, dir);
            put_tail_block(bytes, tail::EXTENSION, page.unwrap_or(Block::NONE));
            put_tail32(bytes, tail::SEC_TYPE, sec_type);
        })?;
        if let Some(map) = &map {
            self.put_new_map(&change, block, map)?;
        }
        if let Some(page) = page {
            self.make_page(&change, page, block)?;
        }
        let record = self.record_of(&self.header(block)?, None)?;
        self.recache(&change, dir, &[], Some(record), Claim::Plain)?;
        self.attach(&change, dir, name, block)?;
        Ok(block)
    }

    /// A link block with a name, in the chain of links of what it leads to and in the directory's cache, and in no other chain yet. It leads to what `replaced` leads to in its chain, if
    /// that is given, and its record replaces that one's.
    pub(crate) fn make_link(
        &self,
        change: &Change<'_>,
        real: &Header,
        (dir, name): (Block, &[u8]),
        replaced: Option<&Header>,
        claim: Claim,
    ) -> Result<Block> {
        let block = self.space.take(change, real.block, 1, claim)?[0];
        let chain = replaced.map_or(Block::NONE, Header::chain);
        // With its comment, so that its record has room for what will take its place.
        let comment = self.comment_of(real)?;
        let sec_type = if real.kind == Kind::Directory { ST_LINKDIR } else { ST_LINKFILE };
        let (to, next) = (real.block, real.next_link());
        let (protect, date) = (real.protect(), self.shape.flavour.date_in(&real.bytes));
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
        let gone: Vec<Block> = replaced.iter().map(|header| header.block).collect();
        if let Err(error) = self.recache(change, dir, &gone, Some(record), claim) {
            self.space.give_up(change, &[block])?;
            return Err(error);
        }
        self.edit(change, to, Stage::Detach, |bytes| put_tail_block(bytes, tail::NEXT_LINK, block))?;
        self.is_born(block);
        Ok(block)
    }

    pub(crate) fn fs_link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let name = name_from(name)?;
        if inode.kind != FileType::Regular {
            return Err(NameError::NotSupported.into());
        }
        self.settle_moved()?;
        {
            let change = self.change()?;
            let _links = self.links.read();
            let end = self.end_of(block_of(dir), &name)?;
            let real = self.header(block_of(inode))?;
            let link = self.make_link(&change, &real, (block_of(dir), &name), None, Claim::Plain)?;
            self.point(&change, block_of(dir), end, Stage::Attach, link)?;
            // Another name may be removed because this one exists.
            *self.moved.lock() = change.ticket();
        }
        self.relinked(inode, 1)?;
        self.renamed_in(dir)
    }

    pub(crate) fn fs_unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let name = name_from(name)?;
        self.may_go(inode)?;
        self.settle_moved()?;
        {
            let change = self.change()?;
            let _links = self.links.write();
            let found = self.found(block_of(dir), &name)?;
            self.drop_name(&change, block_of(dir), &found)?;
        }
        let gone = if inode.kind == FileType::Directory { -(inode.attr().nlink as i32) } else { -1 };
        self.relinked(inode, gone)?;
        self.renamed_in(dir)
    }

    /// Frees what an inode without names holds.
    pub(crate) fn fs_delete_inode(&self, inode: &Inode) -> Result<()> {
        let blocks = if inode.kind == FileType::Regular {
            let map = self.map_of(inode)?;
            map.data
                .iter()
                .chain(&map.extensions)
                .chain(&map.surplus)
                .copied()
                .chain([block_of(inode)])
                .collect()
        } else if inode.kind == FileType::Directory {
            let pages = self.pages(block_of(inode))?;
            pages.iter().map(|page| page.block).chain([block_of(inode)]).collect()
        } else {
            vec![block_of(inode)]
        };
        self.forget_promises(inode);
        let change = self.change()?;
        self.space.give_up(&change, &blocks)?;
        self.has_died(block_of(inode));
        self.orphans.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Closes: see [`ivers_write_ordering::Ordered::close`].
    pub(crate) fn close(&self) -> Result<()> {
        if self.orphans.load(Ordering::Relaxed) > 0 {
            self.space.keep_mark();
        } else if let Err(error) = self.ordered.as_ref().map_or(Ok(()), |_| self.copy_stale()) {
            log::warn!("{}: the directory caches are not as they should be: {error}", self.shape.place);
            self.space.keep_mark();
        }
        self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.close().map_err(order_error))
    }
}
