//! Renames, and other cases in which an entry takes over a hard link to it.
//!
//! An entry cannot be in two hash chains at a time (see [`crate::names`]). A crash must not lose an entry
//! that moves, so a hard link stands in for it:
//!
//! 1. The driver creates a link block with the new name ([`Stage::Fresh`]) and adds it to the chain of
//!    links ([`Stage::Detach`]). Then it adds the link to the hash chain of the new name, in place of the
//!    replaced entry if there is one ([`Stage::Attach`]). It settles this change: both names lead to the
//!    entry.
//! 2. It removes the entry from its old chain ([`Stage::Detach`]), gives it the name and directory of the
//!    link ([`Stage::Turn`]) and puts it where the link was ([`Stage::Attach`]). Then it removes the link
//!    from the chain of links ([`Stage::Cut`]).
//!
//! The driver also does step 2 when the own name of an entry with hard links is removed: the entry takes
//! over its newest link.
//!
//! Another change of the same batch that removes a name would be written before step 2 is complete, and
//! could lead from one chain into the other. So a change that removes a name settles [`Affs::last_move`]
//! first.

use crate::bitmap::AllocSource;
use crate::inode::{affs_inode, header_block};
use crate::layout::{Block, NAME_MAX, parse_name, put_tail_block, put_text, tail};
use crate::volume::{Affs, Header, Kind};
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage, Ticket};

impl Affs {
    pub(crate) fn settle_last_move(&self) -> Result<()> {
        let moved: Ticket = *self.last_move.lock();
        self.settle(moved)
    }

    /// Lets an entry that is in no hash chain take over a link to it: its place, its name and its
    /// directory. Frees the link's block.
    pub(crate) fn take_over_link(&self, change: &Change<'_>, block: Block, link: &Header) -> Result<()> {
        let predecessor = self.predecessor(link)?;
        self.remove_from_link_chain(change, link)?;
        let (name, dir, chain) = (self.name_of(link)?, link.parent(), link.chain());
        let record = self.record_of(&self.header(block)?, Some(name))?;
        self.update_cache_anyway(change, dir, &[link.block], Some(record))?;
        self.edit(change, block, Stage::Turn, |bytes| {
            put_text(bytes, tail::NAME, NAME_MAX, name);
            put_tail_block(bytes, tail::PARENT, dir);
            put_tail_block(bytes, tail::HASH_CHAIN, chain);
        })?;
        self.set_pointer(change, dir, predecessor, Stage::Attach, block)?;
        self.free_header(change, link.block)
    }

    pub(crate) fn fs_rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        let (old_name, new_name) = (parse_name(old_name)?, parse_name(new_name)?);
        if exchange {
            return Err(NameError::NotSupported.into());
        }
        target.map_or(Ok(()), |target| self.check_removable(target))?;
        self.settle_last_move()?;
        let (from, to) = (header_block(old_dir), header_block(new_dir));
        let same_chain =
            from == to && target.is_none() && self.hash_slot(&old_name) == self.hash_slot(&new_name);
        if same_chain {
            let change = self.change()?;
            let _chains = self.chain_lock.read();
            let entry = self.find_existing(from, &old_name)?.entry;
            let record = self.record_of(&entry, Some(&new_name))?;
            self.update_cache(&change, from, &[], Some(record), AllocSource::ReservePool)?;
            self.edit(&change, entry.block, Stage::Attach, |bytes| {
                put_text(bytes, tail::NAME, NAME_MAX, &new_name)
            })?;
        } else if affs_inode(inode).kind == Kind::LinkDirectory {
            return Err(NameError::NotSupported.into());
        } else {
            let (stand_in, ticket) = self.add_stand_in(rename, &new_name)?;
            self.settle(ticket)?;
            self.replace_stand_in(rename, &old_name, stand_in)?;
        }
        if let Some(target) = target {
            let lost_links =
                if target.kind == FileType::Directory { -(target.attr().nlink as i32) } else { -1 };
            self.change_nlink(target, lost_links)?;
        }
        self.change_nlink(inode, 0)?;
        if from != to {
            self.dir_changed(old_dir)?;
        }
        self.dir_changed(new_dir)
    }

    /// Adds a link with the new name. Returns the link, and the replaced entry, which is then in no hash
    /// chain.
    fn add_stand_in(
        &self,
        rename: &Rename<'_>,
        new_name: &[u8],
    ) -> Result<((Block, Option<Header>), Ticket)> {
        let to = header_block(rename.new_dir);
        let change = self.change()?;
        let _chains = self.chain_lock.read();
        let replaced = match rename.target {
            Some(_) => Some(self.find_existing(to, new_name)?),
            None => None,
        };
        let predecessor = match &replaced {
            Some(found) => found.predecessor,
            None => self.chain_end(to, new_name)?,
        };
        let real = self.header(header_block(rename.inode))?;
        let replaced_entry = replaced.as_ref().map(|found| &found.entry);
        let link =
            self.create_link(&change, &real, (to, new_name), replaced_entry, AllocSource::ReservePool)?;
        self.set_pointer(&change, to, predecessor, Stage::Attach, link)?;
        Ok(((link, replaced.map(|found| found.entry)), change.ticket()))
    }

    /// Removes the entry from its old chain and lets it take over the link.
    fn replace_stand_in(
        &self,
        rename: &Rename<'_>,
        old_name: &[u8],
        (link, replaced): (Block, Option<Header>),
    ) -> Result<()> {
        let change = self.change()?;
        let _chains = self.chain_lock.write();
        let from = header_block(rename.old_dir);
        let old = self.find_existing(from, old_name)?;
        self.update_cache_anyway(&change, from, &[old.entry.block], None)?;
        self.set_pointer(&change, from, old.predecessor, Stage::Detach, old.entry.chain())?;
        if old.entry.kind == Kind::LinkFile {
            // The entry is a link itself: the new link stays and the old one is freed.
            self.remove_from_link_chain(&change, &old.entry)?;
            self.free_header(&change, old.entry.block)?;
        } else {
            self.take_over_link(&change, old.entry.block, &self.header(link)?)?;
        }
        if let Some(replaced) = replaced {
            // Read the header again: its pointer to the next entry may have changed.
            self.finish_removal(&change, &self.header(replaced.block)?)?;
        }
        *self.last_move.lock() = change.ticket();
        Ok(())
    }
}
