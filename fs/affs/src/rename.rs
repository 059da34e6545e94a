//! Moves, and other cases in which an entry takes the place of a hard link to it.
//!
//! An entry cannot stand in two chains at a time (see [`crate::names`]). To move one without a moment in which a crash would lose it, a hard link takes its
//! place in between:
//!
//! 1. a link block with the new name is made and put into the chain of links ([`Stage::Fresh`], [`Stage::Detach`]), then where the new
//!    name belongs, in place of what is replaced, if anything ([`Stage::Attach`]). All this is settled: both names lead to the entry.
//! 2. The entry leaves its old chain ([`Stage::Detach`]), takes the link's name and place ([`Stage::Turn`]), and stands where the link stood ([`Stage::Attach`]);
//!    the link leaves the chain of links ([`Stage::Cut`]).
//!
//! The same second half is what happens when the own name of an entry with hard links is removed: it takes the name of the newest link.
//!
//! A change of the same batch that takes another name away would be written before the second half is complete, and could lead from
//! a chain into the other: so whoever takes a name away settles [`Affs::moved`] first.

use crate::layout::{Block, NAME_MAX, name_from, put_tail_block, put_text, tail};
use crate::node::{block_of, node};
use crate::space::Claim;
use crate::volume::{Affs, Header, Kind};
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage, Ticket};

impl Affs {
    pub(crate) fn settle_moved(&self) -> Result<()> {
        let moved: Ticket = *self.moved.lock();
        self.settle(moved)
    }

    /// An entry that stands in no chain (any more) takes the place, the name and the directory of a link to it, whose block is freed.
    pub(crate) fn replace_link(&self, change: &Change<'_>, block: Block, link: &Header) -> Result<()> {
        let before = self.before(link)?;
        self.unchain(change, link)?;
        let (name, dir, chain) = (self.name_of(link)?, link.parent(), link.chain());
        let record = self.record_of(&self.header(block)?, Some(name))?;
        self.recache_surely(change, dir, &[link.block], Some(record))?;
        self.edit(change, block, Stage::Turn, |bytes| {
            put_text(bytes, tail::NAME, NAME_MAX, name);
            put_tail_block(bytes, tail::PARENT, dir);
            put_tail_block(bytes, tail::HASH_CHAIN, chain);
        })?;
        self.point(change, dir, before, Stage::Attach, block)?;
        self.free_header(change, link.block)
    }

    pub(crate) fn fs_rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        let (old_name, new_name) = (name_from(old_name)?, name_from(new_name)?);
        if exchange {
            return Err(NameError::NotSupported.into());
        }
        target.map_or(Ok(()), |target| self.may_go(target))?;
        self.settle_moved()?;
        let (from, to) = (block_of(old_dir), block_of(new_dir));
        let stays = from == to && target.is_none() && self.slot_of(&old_name) == self.slot_of(&new_name);
        if stays {
            let change = self.change()?;
            let _links = self.links.read();
            let entry = self.found(from, &old_name)?.entry;
            let record = self.record_of(&entry, Some(&new_name))?;
            self.recache(&change, from, &[], Some(record), Claim::Kept)?;
            self.edit(&change, entry.block, Stage::Attach, |bytes| {
                put_text(bytes, tail::NAME, NAME_MAX, &new_name)
            })?;
        } else if node(inode).kind == Kind::LinkDirectory {
            return Err(NameError::NotSupported.into());
        } else {
            let (placed, ticket) = self.place_link(rename, &new_name)?;
            self.settle(ticket)?;
            self.leave_old_place(rename, &old_name, placed)?;
        }
        if let Some(target) = target {
            let gone = if target.kind == FileType::Directory { -(target.attr().nlink as i32) } else { -1 };
            self.relinked(target, gone)?;
        }
        self.relinked(inode, 0)?;
        if from != to {
            self.renamed_in(old_dir)?;
        }
        self.renamed_in(new_dir)
    }

    /// The first half of a move: a link under the new name. What stood there, if anything, stands in no chain then.
    fn place_link(&self, rename: &Rename<'_>, new_name: &[u8]) -> Result<((Block, Option<Header>), Ticket)> {
        let to = block_of(rename.new_dir);
        let change = self.change()?;
        let _links = self.links.read();
        let replaced = match rename.target {
            Some(_) => Some(self.found(to, new_name)?),
            None => None,
        };
        let before = match &replaced {
            Some(found) => found.before,
            None => self.end_of(to, new_name)?,
        };
        let real = self.header(block_of(rename.inode))?;
        let instead_of = replaced.as_ref().map(|found| &found.entry);
        let link = self.make_link(&change, &real, (to, new_name), instead_of, Claim::Kept)?;
        self.point(&change, to, before, Stage::Attach, link)?;
        Ok(((link, replaced.map(|found| found.entry)), change.ticket()))
    }

    /// The second half.
    fn leave_old_place(
        &self,
        rename: &Rename<'_>,
        old_name: &[u8],
        (link, replaced): (Block, Option<Header>),
    ) -> Result<()> {
        let change = self.change()?;
        let _links = self.links.write();
        let from = block_of(rename.old_dir);
        let old = self.found(from, old_name)?;
        self.recache_surely(&change, from, &[old.entry.block], None)?;
        self.point(&change, from, old.before, Stage::Detach, old.entry.chain())?;
        if old.entry.kind == Kind::LinkFile {
            // A link's name moves: the new link stays, the old one goes.
            self.unchain(&change, &old.entry)?;
            self.free_header(&change, old.entry.block)?;
        } else {
            self.replace_link(&change, old.entry.block, &self.header(link)?)?;
        }
        if let Some(replaced) = replaced {
            // Its header as it is now: the chain may have changed under it.
            self.drop_nameless(&change, &self.header(replaced.block)?)?;
        }
        *self.moved.lock() = change.ticket();
        Ok(())
    }
}
