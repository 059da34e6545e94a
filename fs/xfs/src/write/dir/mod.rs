//! Changes of directories, in all forms.
//!
//! | form | becomes the next one when | becomes the one before when |
//! |---|---|---|
//! | short form | the inode or a block has no space for the entry | |
//! | block | entry or hash do not fit in the block | the entries fit in the inode |
//! | leaf | the leaf is full | one data block is left, and has space for the hashes |
//! | node | | one leaf is left, and has space for the index of free space |
//!
//! Entries keep their addresses when the form changes.

mod block;
mod data;
mod forms;
mod free_index;
mod leaf;
mod node;
mod short;

use super::tx::Tx;
use crate::dir::{DirSource, Entry, Found, ShortForm, name_hash};
use crate::fork::{Fork, Which};
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::checksum::DIR_DATA;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::layout::directory::{LEAF1_MAGICS, dir_unit, entry_bytes};
pub(crate) use data::Target;
use data::{DataEdit, address_of, place_of};
use ivers_block::{FileBlock, Unit};
use ivers_vfs::{FileType, NameError, Result};

/// How a directory is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Short,
    Block,
    Leaf,
    Node,
}

impl Tx<'_> {
    fn form_of(&self, dir: &Dinode) -> Result<Form> {
        if let Fork::Local(_) = dir.data {
            return Ok(Form::Short);
        }
        // A larger one has several data blocks.
        let sb = &self.space().sb;
        if dir.size() <= sb.dir_block_size.into() {
            let end = self.end_before(dir, Which::Data, FileBlock(FILE_BLOCKS_END))?;
            if end.0 == dir_unit(sb) {
                return Ok(Form::Block);
            }
        }
        let tree = self.dir_tree();
        let magic = self.read_tree(dir, tree, tree.root, |bytes| Ok(number(bytes, 8, 2).unwrap_or(0)))?;
        Ok(if magic == LEAF1_MAGICS[0].into() { Form::Leaf } else { Form::Node })
    }

    /// The device blocks of a data block.
    fn data_unit(&self, dir: &Dinode, nth: u64) -> Result<Unit> {
        let unit = dir_unit(&self.space().sb);
        self.unit_blocks(dir, Which::Data, FileBlock(nth * unit), unit)
    }

    /// Makes the contents of a new directory.
    pub(crate) fn init_directory(&mut self, dir: &mut Dinode, parent: u64) {
        let short = ShortForm { parent, entries: Vec::new() };
        let bytes = short::encode(&short, self.space().sb.has_ftype());
        dir.set_size(bytes.len() as u64);
        dir.data = Fork::Local(bytes.into());
    }

    /// Adds an entry. The caller has checked that the name is valid and new.
    pub(crate) fn add_entry(&mut self, dir: &mut Dinode, name: &[u8], target: Target) -> Result<()> {
        if name.len() > u8::MAX.into() {
            return Err(NameError::NameTooLong.into());
        }
        loop {
            let form = self.form_of(dir)?;
            let added = match form {
                Form::Short => self.add_to_short(dir, name, target)?,
                Form::Block => self.add_to_block(dir, name, target)?,
                Form::Leaf => self.add_to_leaf(dir, name, target)?,
                Form::Node => {
                    self.add_to_node(dir, name, target)?;
                    true
                }
            };
            if added {
                return Ok(());
            }
            match form {
                Form::Short => self.short_to_block(dir)?,
                Form::Block => self.block_to_leaf(dir)?,
                Form::Leaf | Form::Node => self.leaf_to_node(dir)?,
            }
        }
    }

    fn add_to_short(&mut self, dir: &mut Dinode, name: &[u8], target: Target) -> Result<bool> {
        let sb = &self.space().sb;
        let room = dir.space(sb, Which::Data);
        let Fork::Local(bytes) = &dir.data else { return Ok(false) };
        let mut short = ShortForm::of(self, dir, bytes)?;
        let Some((address, index)) = short::place_for(sb, &short, name.len()) else { return Ok(false) };
        if short.entries.len() >= u8::MAX.into() {
            return Ok(false);
        }
        short.entries.insert(index, Entry { ino: target.ino, name, ftype: target.ftype, address });
        let bytes = short::encode(&short, sb.has_ftype());
        Ok(store_short(dir, bytes, room))
    }

    fn add_to_block(&mut self, dir: &Dinode, name: &[u8], target: Target) -> Result<bool> {
        let sb = &self.space().sb;
        let (blocks, hash) = (self.data_unit(dir, 0)?, name_hash(sb, name));
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            block::add(sb, bytes, (name, hash), target.ino, target.ftype)
        })
    }

    /// Adds an entry to a data block that has space; returns its address and the largest free range left.
    fn add_to_data(&mut self, dir: &Dinode, nth: u64, name: &[u8], target: Target) -> Result<(u32, u16)> {
        let (sb, blocks) = (&self.space().sb, self.data_unit(dir, nth)?);
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let len = bytes.len();
            let mut data = DataEdit::new(sb, bytes, len)?;
            let at = data
                .add(target.ino, name, target.ftype)
                .ok_or("the index of free space says more than there is")?;
            Ok((address_of(sb, nth, at), data.best()))
        })
    }

    /// Adds a data block without entries.
    fn new_data_block(&mut self, dir: &mut Dinode, nth: u64) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        let (unit, size) = (dir_unit(sb), u64::from(sb.dir_block_size));
        if nth >= tree.root.0 / unit {
            return Err(NameError::NoSpace.into());
        }
        let at = (FileBlock(nth * unit), unit);
        let blocks = self.new_fork_unit(dir, Which::Data, at, &DIR_DATA)?;
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let len = bytes.len();
            DataEdit::empty(sb, bytes, len, false);
            Ok(())
        })?;
        dir.set_size(dir.size().max((nth + 1) * size));
        Ok(())
    }

    /// Removes an entry from a data block; returns the largest free range, and whether no entry is left.
    fn remove_from_data(&mut self, dir: &Dinode, address: u32) -> Result<(u16, bool)> {
        let sb = &self.space().sb;
        let (nth, at) = place_of(sb, address);
        let blocks = self.data_unit(dir, nth)?;
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            if let Some(found) = data::remove_locally(sb, bytes, at)? {
                return Ok(found);
            }
            let len = bytes.len();
            let mut data = DataEdit::new(sb, bytes, len)?;
            data.remove(at)?;
            Ok((data.best(), data.is_empty()))
        })
    }

    /// Frees a data block without entries. The size is that up to the last block.
    fn free_data_block(&mut self, dir: &mut Dinode, nth: u64) -> Result<()> {
        let sb = &self.space().sb;
        let (unit, root) = (dir_unit(sb), self.dir_tree().root);
        self.free_fork_unit(dir, Which::Data, FileBlock(nth * unit), unit)?;
        let end = self.end_before(dir, Which::Data, root)?;
        dir.set_size(end.0 << sb.block_bits);
        Ok(())
    }

    /// Removes an entry; returns what it was. `.` and `..` stay.
    pub(crate) fn remove_entry(&mut self, dir: &mut Dinode, name: &[u8]) -> Result<Found> {
        let found = self.find_entry(dir, name)?.ok_or(NameError::NotFound)?;
        let sb = &self.space().sb;
        let (hash, (nth, at)) = (name_hash(sb, name), place_of(sb, found.address));
        match self.form_of(dir)? {
            Form::Short => {
                let Fork::Local(bytes) = &dir.data else { return Ok(found) };
                let mut short = ShortForm::of(self, dir, bytes)?;
                short.entries.retain(|entry| entry.address != found.address.into());
                let bytes = short::encode(&short, sb.has_ftype());
                let room = bytes.len();
                store_short(dir, bytes, room);
            }
            Form::Block => {
                let blocks = self.data_unit(dir, nth)?;
                let remove = |bytes: &mut [u8]| block::remove(sb, bytes, hash, at);
                self.change_unit(dir.ino, &blocks, &DIR_DATA, remove)?;
                self.block_to_short(dir)?;
            }
            Form::Leaf => self.remove_from_leaf(dir, hash, found.address)?,
            Form::Node => self.remove_from_node(dir, hash, found.address)?,
        }
        Ok(found)
    }

    /// Changes what an entry says, `..` included.
    pub(crate) fn replace_entry(&mut self, dir: &mut Dinode, name: &[u8], target: Target) -> Result<()> {
        let found = self.find_entry(dir, name)?.ok_or(NameError::NotFound)?;
        let sb = &self.space().sb;
        if let Fork::Local(bytes) = &dir.data {
            let room = dir.space(sb, Which::Data);
            let mut short = ShortForm::of(self, dir, bytes)?;
            match short.entries.iter_mut().find(|entry| entry.address == found.address.into()) {
                Some(entry) => (entry.ino, entry.ftype) = (target.ino, target.ftype),
                None => short.parent = target.ino,
            }
            let bytes = short::encode(&short, sb.has_ftype());
            if store_short(dir, bytes, room) {
                return Ok(());
            }
            // Numbers of 64 bits take more space.
            self.short_to_block(dir)?;
            return self.replace_entry(dir, name, target);
        }
        let is_block_form = self.form_of(dir)? == Form::Block;
        let (nth, at) = place_of(sb, found.address);
        let blocks = self.data_unit(dir, nth)?;
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let stop = if is_block_form { block::split(bytes)?.1 } else { bytes.len() };
            DataEdit::new(sb, bytes, stop)?.replace(at, target.ino, target.ftype)
        })
    }

    /// Moves contents from the inode to blocks: entries, or the target of a link.
    pub(super) fn data_out_of_inode(&mut self, inode: &mut Dinode) -> Result<()> {
        match inode.kind() {
            FileType::Directory => self.short_to_block(inode),
            _ => self.target_to_blocks(inode),
        }
    }

    /// Whether a directory has no entries but `.` and `..`.
    pub(crate) fn is_empty_directory(&self, dir: &Dinode) -> Result<bool> {
        // A directory without entries has the short form.
        let Fork::Local(bytes) = &dir.data else { return Ok(false) };
        Ok(ShortForm::of(self, dir, bytes)?.entries.is_empty())
    }

    /// Bytes of an entry in a data block.
    fn entry_len(&self, name: &[u8]) -> u16 {
        entry_bytes(&self.space().sb, name.len()) as u16
    }
}

/// Stores a directory in the inode; returns `false` if it does not fit.
fn store_short(dir: &mut Dinode, bytes: Vec<u8>, room: usize) -> bool {
    if bytes.len() > room {
        return false;
    }
    dir.set_size(bytes.len() as u64);
    dir.data = Fork::Local(bytes.into());
    true
}
