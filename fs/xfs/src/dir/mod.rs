//! Directories: finding and listing names.
//!
//! | form | where |
//! |---|---|
//! | short form | in the inode |
//! | block | one block with entries and, at its end, their hashes |
//! | leaf, node | data blocks from byte 0, hashes from 32 GiB, free space from 64 GiB of the fork |
//!
//! Every entry has an address: its offset in the data blocks, in units of 8 bytes. Short-form entries keep
//! the address that they had or will have in a block, and so a cursor stays valid when the form changes.

mod data;
mod entry;
mod names;
mod short;

use crate::da::{HashSource, HashTree};
use crate::fork::{Fork, ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::bytes::number;
use crate::layout::directory::{
    ADDRESS_UNIT, LEAF_OFFSET, LEAF1_MAGICS, LEAFN_MAGICS, da_header_bytes, data_start, dir_unit, ftype,
    hash_entries_start, leaf_root,
};
use crate::layout::raw::{RawDirBlockTail, RawDirLeafEntry};
use crate::search::partition;
use crate::source::Source;
use data::{DataBlock, DataSource};
use entry::Emit;
use ivers_block::FileBlock;
use ivers_vfs::Result;
use std::mem::size_of;

pub(crate) use data::{item_at, item_len};
pub(crate) use entry::Entry;
pub(crate) use names::hash as name_hash;
use names::hash;
pub(crate) use names::{matches, same_name};
pub(crate) use short::ShortForm;

const LEAF_ENTRY_BYTES: usize = size_of::<RawDirLeafEntry>();

/// An entry that was found by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub ino: u64,
    /// Its address; 0 for `..` of a short form.
    pub address: u32,
}

/// Finding of names.
pub(crate) trait DirSource: Source {
    /// Returns the entry of a directory that has a name.
    fn find_entry(&self, dir: &Dinode, name: &[u8]) -> Result<Option<Found>> {
        let sb = self.sb();
        if let Fork::Local(bytes) = &dir.data {
            let short = ShortForm::of(self, dir, bytes)?;
            if name == b".." {
                return Ok(Some(Found { ino: short.parent, address: 0 }));
            }
            let found = short.entries.iter().find(|entry| matches(sb, entry.name, name));
            return Ok(found.map(|entry| Found { ino: entry.ino, address: entry.address as u32 }));
        }
        let wanted = hash(sb, name);
        // A larger directory has no block form.
        if dir.size() > sb.dir_block_size.into() {
            return self.find_by_hash(dir, name, wanted);
        }
        let first = self.data_block(dir, 0)?;
        if first.is_block_form() {
            let (count, leaf) = self.block_form_leaf(dir, &first)?;
            let entry = |index: usize| leaf_entry(&first.bytes, leaf, index);
            let from = partition(count, |index| entry(index).0 < wanted);
            for index in (from..count).take_while(|index| entry(*index).0 == wanted) {
                if let Some(found) = self.named_entry(dir, Some(&first), entry(index).1, name)? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        drop(first);
        self.find_by_hash(dir, name, wanted)
    }

    /// Finds a name in a leaf or node directory.
    fn find_by_hash(&self, dir: &Dinode, name: &[u8], wanted: u32) -> Result<Option<Found>> {
        let sb = self.sb();
        let root = leaf_root(sb);
        let unit = dir_unit(sb);
        let (ino, which, fork) = (dir.ino, Which::Data, &dir.data);
        let tree = |leaf_magics| HashTree { ino, which, fork, root, unit, leaf_magics };
        let version = usize::from(!sb.is_v5());
        let magic = number(&self.hash_block(&tree(LEAFN_MAGICS), root)?.bytes, 8, 2).unwrap_or(0) as u16;
        let tree = tree(if magic == LEAF1_MAGICS[version] { LEAF1_MAGICS } else { LEAFN_MAGICS });
        let Some(leaf) = self.hash_leaf(&tree, wanted)? else { return Ok(None) };
        let (header, entries) = (da_header_bytes(sb), hash_entries_start(sb));
        // `Some(None)`: the hashes that follow are larger.
        let found = self.each_leaf_from(&tree, leaf, |leaf| {
            let count = number(&leaf.bytes, header, 2).unwrap_or(0) as usize;
            if entries + count * LEAF_ENTRY_BYTES > leaf.bytes.len() {
                let what = format!("a leaf of a directory has {count} entries");
                return Err(self.corrupt_block(what, dir.whose(), leaf.block));
            }
            let entry = |index: usize| leaf_entry(&leaf.bytes, entries, index);
            let from = partition(count, |index| entry(index).0 < wanted);
            for index in from..count {
                let (hash, address) = entry(index);
                if hash != wanted {
                    return Ok(Some(None));
                }
                if let Some(found) = self.named_entry(dir, None, address, name)? {
                    return Ok(Some(Some(found)));
                }
            }
            Ok(None)
        })?;
        Ok(found.flatten())
    }

    /// Returns the entry at an address if it has a name. `None` too for a removed entry.
    fn named_entry(
        &self,
        dir: &Dinode,
        block: Option<&DataBlock>,
        address: u32,
        name: &[u8],
    ) -> Result<Option<Found>> {
        if address == 0 {
            return Ok(None);
        }
        let byte = u64::from(address) * ADDRESS_UNIT;
        let size = u64::from(self.sb().dir_block_size);
        let other;
        let block = match block {
            Some(block) if byte < size => block,
            _ => {
                other = self.data_block(dir, byte / size)?;
                &other
            }
        };
        let entry = block
            .entry_at(self.sb(), (byte % size) as usize)
            .map_err(|what| self.corrupt_block(what, dir.whose(), block.block))?;
        Ok(matches(self.sb(), entry.name, name).then_some(Found { ino: entry.ino, address }))
    }

    /// Returns how many hashes a block directory has, and where they start.
    fn block_form_leaf(&self, dir: &Dinode, block: &DataBlock) -> Result<(usize, usize)> {
        let tail = block.bytes.len() - size_of::<RawDirBlockTail>();
        let count = number(&block.bytes, tail, 4).unwrap_or(0) as usize;
        let leaf = count.checked_mul(LEAF_ENTRY_BYTES).and_then(|bytes| tail.checked_sub(bytes));
        match leaf.filter(|leaf| *leaf >= data_start(self.sb())) {
            Some(leaf) => Ok((count, leaf)),
            None => {
                let what = format!("a block directory has {count} entries");
                Err(self.corrupt_block(what, dir.whose(), block.block))
            }
        }
    }

    /// Returns the inode that a directory has for a name.
    fn find_name(&self, dir: &Dinode, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.find_entry(dir, name)?.map(|found| found.ino))
    }

    /// Returns the parent of a directory.
    fn parent_of(&self, dir: &Dinode) -> Result<u64> {
        self.find_name(dir, b"..")?
            .ok_or_else(|| self.corrupt("the directory has no entry for its parent", dir.whose()))
    }

    /// Emits the entries from a cursor on.
    fn list(&self, dir: &Dinode, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        if let Fork::Local(bytes) = &dir.data {
            let short = ShortForm::of(self, dir, bytes)?;
            let start = data_start(self.sb()) as u64 / ADDRESS_UNIT;
            let ftype = ftype::DIRECTORY;
            let dots = [
                Entry { ino: dir.ino, name: b".", ftype, address: start },
                Entry { ino: short.parent, name: b"..", ftype, address: start + 2 },
            ];
            for entry in dots.iter().chain(&short.entries).filter(|entry| entry.address >= cursor) {
                if entry.emit(emit).is_break() {
                    break;
                }
            }
            return Ok(());
        }
        let size = u64::from(self.sb().dir_block_size);
        let mut block = cursor.saturating_mul(ADDRESS_UNIT) / size;
        let end = dir.size().min(LEAF_OFFSET).div_ceil(size);
        while block < end {
            let mapping = self.map(&dir.data, FileBlock(block * dir_unit(self.sb())), dir.ino)?;
            if mapping.block.is_none() {
                block += (mapping.len / dir_unit(self.sb())).max(1);
                continue;
            }
            let data = self.data_block(dir, block)?;
            let stop =
                if data.is_block_form() { self.block_form_leaf(dir, &data)?.1 } else { data.bytes.len() };
            let first = block * size / ADDRESS_UNIT;
            let mut at = data_start(self.sb());
            while at < stop {
                let item = data.next(self.sb(), at, stop);
                let (entry, len) = item.map_err(|what| self.corrupt_block(what, dir.whose(), data.block))?;
                at += len;
                let Some(entry) = entry else { continue };
                let entry = Entry { address: first + entry.address, ..entry };
                if entry.address >= cursor && entry.emit(emit).is_break() {
                    return Ok(());
                }
            }
            block += 1;
        }
        Ok(())
    }
}

impl<S: Source> DirSource for S {}

/// The hash and the address of an entry of a table of hashes.
fn leaf_entry(bytes: &[u8], table: usize, index: usize) -> (u32, u32) {
    let at = table + index * LEAF_ENTRY_BYTES;
    (number(bytes, at, 4).unwrap_or(0) as u32, number(bytes, at + 4, 4).unwrap_or(0) as u32)
}
