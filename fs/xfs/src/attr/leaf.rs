//! Blocks of attributes, and values in blocks of their own.

use super::attribute::{Attribute, Value, check_name};
use crate::fork::{ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::attribute::{VALUE_MAX, attr_entries_start, flags, remote_header_bytes};
use crate::layout::bytes::{number, read};
use crate::layout::checksum::{REMOTE, REMOTE_VALUE_MAGIC};
use crate::layout::directory::da_header_bytes;
use crate::layout::raw::{RawAttrLeafEntry, RawRemoteHeader};
use crate::layout::superblock::Superblock;
use crate::search::partition;
use crate::source::Source;
use ivers_block::FileBlock;
use ivers_vfs::Result;
use std::mem::size_of;

const ENTRY_BYTES: usize = size_of::<RawAttrLeafEntry>();

/// A block of attributes, sorted by hash.
pub(crate) struct Table<'a> {
    bytes: &'a [u8],
    entries: usize,
    pub count: usize,
}

impl Table<'_> {
    /// The entry with an index.
    pub(crate) fn entry(&self, index: usize) -> Option<RawAttrLeafEntry> {
        read(self.bytes, self.entries + index * ENTRY_BYTES)
    }

    pub(crate) fn hash(&self, index: usize) -> u32 {
        self.entry(index).map_or(0, |entry| entry.hashval.get())
    }

    /// The first entry with this hash or a larger one.
    pub(super) fn first_with(&self, hash: u32) -> usize {
        partition(self.count, |index| self.hash(index) < hash)
    }

    pub(crate) fn attribute(&self, index: usize) -> std::result::Result<Attribute, String> {
        let cut = || "an attribute ends past its block".to_owned();
        let entry = self.entry(index).ok_or_else(cut)?;
        let at = usize::from(entry.nameidx.get());
        let field = |at, len| number(self.bytes, at, len).ok_or_else(cut);
        let take = |at: usize, len: usize| self.bytes.get(at..at + len).map(<[u8]>::to_vec).ok_or_else(cut);
        if at < self.entries + self.count * ENTRY_BYTES {
            return Err("an attribute is where its entry should be".into());
        }
        let (name, value) = if entry.flags & flags::LOCAL != 0 {
            let (value_len, name_len) = (field(at, 2)? as usize, field(at + 2, 1)? as usize);
            (take(at + 3, name_len)?, Value::Here(take(at + 3 + name_len, value_len)?))
        } else {
            let (block, len) = (FileBlock(field(at, 4)?), field(at + 4, 4)? as u32);
            (take(at + 9, field(at + 8, 1)? as usize)?, Value::Remote { block, len })
        };
        check_name(&name, entry.flags)?;
        Ok(Attribute { flags: entry.flags, name, value })
    }
}

/// Finds the entries of a block of attributes.
pub(crate) fn attribute_table<'a>(
    sb: &Superblock,
    bytes: &'a [u8],
) -> std::result::Result<Table<'a>, String> {
    let (header, entries) = (da_header_bytes(sb), attr_entries_start(sb));
    let count = number(bytes, header, 2).unwrap_or(0) as usize;
    if entries + count * ENTRY_BYTES > bytes.len() {
        return Err(format!("a block of attributes has {count} entries"));
    }
    Ok(Table { bytes, entries, count })
}

/// Reading of values.
pub(crate) trait ValueSource: Source {
    /// Reads a value from its blocks. In version 5 each has a header.
    fn remote_value(&self, inode: &Dinode, first: FileBlock, len: u32) -> Result<Vec<u8>> {
        if len > VALUE_MAX {
            return Err(self.corrupt(format!("the value of an attribute has {len} bytes"), inode.whose()));
        }
        let (len, header) = (len as usize, remote_header_bytes(self.sb()));
        let each = self.sb().block_size as usize - header;
        if len == 0 {
            return Ok(Vec::new());
        }
        let blocks = self
            .mapped_blocks(&inode.attrs, inode.unit(Which::Attributes, first, len.div_ceil(each) as u64))?;
        let mut value = Vec::with_capacity(len);
        for block in blocks.iter().copied() {
            let part = each.min(len - value.len());
            let bytes = self.unit(&[block], &REMOTE, inode.whose())?;
            if !self.sb().is_v5() {
                value.extend_from_slice(&bytes[..part]);
                continue;
            }
            let head = read::<RawRemoteHeader>(&bytes, 0)
                .filter(|head| head.rm_magic.get().to_be_bytes() == *REMOTE_VALUE_MAGIC);
            let fits = |head: &RawRemoteHeader| {
                head.rm_offset.get() as usize == value.len() && head.rm_bytes.get() as usize == part
            };
            if !head.is_some_and(|head| fits(&head)) {
                let what = "a block of an attribute's value has a wrong magic, offset or length";
                return Err(self.corrupt_block(what, inode.whose(), block));
            }
            value.extend_from_slice(&bytes[header..header + part]);
        }
        Ok(value)
    }
}

impl<S: Source> ValueSource for S {}
