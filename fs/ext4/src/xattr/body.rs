//! The table of extended attributes as bytes: in the inode's body after a magic number, or in a block after a
//! header. Entries grow from the front, values from the back.

use crate::dir::linear::{le16, le32, put16, put32};
use std::ops::Range;

/// The magic number of both tables.
pub(crate) const MAGIC: u32 = 0xEA02_0000;
/// Bytes of an entry before its name.
const ENTRY: usize = 16;
/// Name index of `system.*`.
pub(crate) const INDEX_SYSTEM: u8 = 7;
/// The attribute that continues inline data.
pub(crate) const INLINE_DATA: &[u8] = b"data";

/// The location of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// In the table.
    Here(Vec<u8>),
    /// In an attribute inode (`ea_inode`).
    Inode { ino: u32, size: u32 },
}

/// One attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) index: u8,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Value,
    /// `e_hash` as stored.
    pub(crate) hash: u32,
}

impl Attribute {
    /// The attribute inode that holds the value, if one does.
    pub(crate) fn value_inode(&self) -> Option<u32> {
        match self.value {
            Value::Inode { ino, .. } => Some(ino),
            Value::Here(_) => None,
        }
    }

    pub(crate) fn is(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && self.name == name
    }

    fn size(&self) -> usize {
        let value = match &self.value {
            Value::Here(value) => value.len().next_multiple_of(4),
            Value::Inode { .. } => 0,
        };
        (ENTRY + self.name.len()).next_multiple_of(4) + value
    }

    /// `e_hash` over name and value. The hash of a value in another inode stays as its writer computed it.
    fn computed_hash(&self) -> u32 {
        let Value::Here(value) = &self.value else { return self.hash };
        value.chunks(4).fold(name_hash(&self.name), |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// The kind of table; the kinds differ in the offset of entries and the base of value offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// In the inode's body.
    Body,
    /// In a block.
    Block,
}

impl Table {
    fn first(self) -> usize {
        match self {
            Table::Body => 4,
            Table::Block => 32,
        }
    }

    fn base(self) -> usize {
        match self {
            Table::Body => 4,
            Table::Block => 0,
        }
    }

    /// Visits the entries: offset of each, and the range of its value if the table holds that.
    fn walk(
        self,
        area: &[u8],
        mut visit: impl FnMut(usize, Option<Range<usize>>),
    ) -> Result<(), &'static str> {
        if area.len() < self.first() + 4 || le32(area, 0) != MAGIC {
            // A body without the magic number has no attributes; a block was checked by its reader.
            return Ok(());
        }
        let mut at = self.first();
        loop {
            let Some(head) = area.get(at..at + 4) else { return Err("the attribute table has no end") };
            if head == [0; 4] {
                return Ok(());
            }
            let name_len = usize::from(head[0]);
            let end = at + (ENTRY + name_len).next_multiple_of(4);
            if end > area.len() {
                return Err("an attribute's name exceeds the table");
            }
            let size = le32(area, at + 8) as usize;
            let range = if le32(area, at + 4) != 0 {
                None
            } else if size == 0 {
                Some(0..0)
            } else {
                let start = self.base() + usize::from(le16(area, at + 2));
                let stop = start.checked_add(size).filter(|&stop| stop <= area.len() && start >= end);
                Some(start..stop.ok_or("an attribute's value exceeds the table")?)
            };
            visit(at, range);
            at = end;
        }
    }

    /// Decodes a table.
    pub(crate) fn parse(self, area: &[u8]) -> Result<Vec<Attribute>, &'static str> {
        let mut attributes = Vec::new();
        self.walk(area, |at, range| {
            let name_len = usize::from(area[at]);
            attributes.push(Attribute {
                index: area[at + 1],
                name: area[at + ENTRY..at + ENTRY + name_len].to_vec(),
                value: match range {
                    Some(range) => Value::Here(area[range].to_vec()),
                    None => Value::Inode { ino: le32(area, at + 4), size: le32(area, at + 8) },
                },
                hash: le32(area, at + 12),
            });
        })?;
        // Encoding stores values one after another: values that share bytes would not fit again.
        if !attributes.is_empty() && !self.fits(area.len(), &attributes) {
            return Err("attribute values overlap");
        }
        Ok(attributes)
    }

    /// Changes the inode number of values in an attribute inode. No hash contains it. Returns whether it was
    /// found.
    pub(crate) fn renumber(self, area: &mut [u8], old: u32, new: u32) -> Result<bool, &'static str> {
        let mut found = Vec::new();
        self.walk(area, |at, range| {
            if range.is_none() && le32(area, at + 4) == old {
                found.push(at + 4);
            }
        })?;
        found.iter().for_each(|&at| put32(area, at, new));
        Ok(!found.is_empty())
    }

    /// Whether the attributes fit a table of this many bytes.
    pub(crate) fn fits(self, len: usize, attributes: &[Attribute]) -> bool {
        self.first() + 4 + attributes.iter().map(Attribute::size).sum::<usize>() <= len
    }

    /// Encodes attributes that fit. Sorts and hashes a block's entries; the caller writes its header.
    pub(crate) fn encode(self, len: usize, attributes: &[Attribute]) -> Vec<u8> {
        let mut area = vec![0; len];
        let mut order: Vec<&Attribute> = attributes.iter().collect();
        if self == Table::Block {
            order.sort_by_key(|a| (a.index, a.name.len(), a.name.clone()));
        } else if order.is_empty() {
            return area;
        }
        put32(&mut area, 0, MAGIC);
        let (mut at, mut back) = (self.first(), len & !3);
        for attribute in order {
            area[at] = attribute.name.len() as u8;
            area[at + 1] = attribute.index;
            match &attribute.value {
                Value::Here(value) => {
                    back -= value.len().next_multiple_of(4);
                    if !value.is_empty() {
                        put16(&mut area, at + 2, (back - self.base()) as u16);
                        area[back..back + value.len()].copy_from_slice(value);
                    }
                    put32(&mut area, at + 8, value.len() as u32);
                }
                Value::Inode { ino, size } => {
                    put32(&mut area, at + 4, *ino);
                    put32(&mut area, at + 8, *size);
                }
            }
            let hashed = self == Table::Block || matches!(attribute.value, Value::Inode { .. });
            put32(&mut area, at + 12, if hashed { attribute.computed_hash() } else { 0 });
            area[at + ENTRY..at + ENTRY + attribute.name.len()].copy_from_slice(&attribute.name);
            at += (ENTRY + attribute.name.len()).next_multiple_of(4);
        }
        area
    }
}

/// The part of `e_hash` that depends on the name.
pub(crate) fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte))
}

/// `h_hash` of a block: over its entries' hashes, or 0 if one of them has none.
pub(crate) fn block_hash(block: &[u8]) -> u32 {
    let mut hash = Some(0u32);
    let _ = Table::Block.walk(block, |at, _| {
        let entry = le32(block, at + 12);
        hash = hash.filter(|_| entry != 0).map(|hash| hash.rotate_left(16) ^ entry);
    });
    hash.unwrap_or(0)
}

/// The range of the inode's body that continues inline data.
pub(crate) fn inline_data_range(body: &[u8]) -> Result<Option<Range<usize>>, &'static str> {
    let mut found = None;
    Table::Body.walk(body, |at, range| {
        let name = &body[at + ENTRY..at + ENTRY + usize::from(body[at])];
        if body[at + 1] == INDEX_SYSTEM && name == INLINE_DATA {
            found = range;
        }
    })?;
    Ok(found)
}

/// The body without the attribute of inline data.
pub(crate) fn without_inline_data(body: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut attributes = Table::Body.parse(body)?;
    attributes.retain(|a| !a.is(INDEX_SYSTEM, INLINE_DATA));
    Ok(Table::Body.encode(body.len(), &attributes))
}
