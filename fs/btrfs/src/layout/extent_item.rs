//! Items of the extent tree: how often an extent is used, and by whom.

use super::bytes::{read, slice};
use super::checksum::raw_crc;
use super::key::{Key, kind};
use super::raw::{RawExtentDataRef, RawExtentItem, RawTreeBlockInfo};
use std::mem::size_of;
use zerocopy::IntoBytes;

/// Who refers to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ref {
    /// A block of this tree.
    TreeBlock { root: u64 },
    /// The block at this address, which several trees share.
    SharedBlock { parent: u64 },
    /// A file of this tree.
    Data { root: u64, objectid: u64, offset: u64 },
    /// Items of the leaf at this address, which several trees share.
    SharedData { parent: u64 },
}

/// The extent has data of files (`flags` of its item).
const FLAG_DATA: u64 = 1;
/// The extent is a block of a tree.
const FLAG_TREE_BLOCK: u64 = 2;
/// References to what is below a block name the block.
const FLAG_FULL_BACKREF: u64 = 1 << 8;

/// An extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtentItem {
    /// All references, also those with items of their own.
    pub refs: u64,
    pub generation: u64,
    flags: u64,
    /// First key and level of a block, without the feature skinny-metadata.
    block: Option<(Key, u8)>,
    /// The references in the item, and how often each counts.
    pub inline: Vec<(Ref, u32)>,
}

/// The type of a reference.
pub(crate) fn kind_of(by: &Ref) -> u8 {
    match by {
        Ref::TreeBlock { .. } => kind::TREE_BLOCK_REF,
        Ref::Data { .. } => kind::EXTENT_DATA_REF,
        Ref::SharedBlock { .. } => kind::SHARED_BLOCK_REF,
        Ref::SharedData { .. } => kind::SHARED_DATA_REF,
    }
}

/// The number by which references of one type are ordered, and found if they have items of their own.
pub(crate) fn number_of(by: &Ref) -> u64 {
    match *by {
        Ref::TreeBlock { root } => root,
        Ref::SharedBlock { parent } | Ref::SharedData { parent } => parent,
        Ref::Data { root, objectid, offset } => {
            let high = raw_crc(u32::MAX, &root.to_le_bytes());
            let low = raw_crc(raw_crc(u32::MAX, &objectid.to_le_bytes()), &offset.to_le_bytes());
            (u64::from(high) << 31) ^ u64::from(low)
        }
    }
}

fn data_ref(by: &Ref, count: u32) -> Option<RawExtentDataRef> {
    let Ref::Data { root, objectid, offset } = *by else { return None };
    let (root, objectid, offset) = (root.into(), objectid.into(), offset.into());
    Some(RawExtentDataRef { root, objectid, offset, count: count.into() })
}

/// The data of an item for one reference.
pub(crate) fn keyed_data(by: &Ref, count: u32) -> Vec<u8> {
    match by {
        Ref::TreeBlock { .. } | Ref::SharedBlock { .. } => Vec::new(),
        Ref::SharedData { .. } => count.to_le_bytes().to_vec(),
        Ref::Data { .. } => data_ref(by, count).map_or(Vec::new(), |raw| raw.as_bytes().to_vec()),
    }
}

/// Decodes the item for one reference.
pub(crate) fn decode_keyed(key: Key, data: &[u8]) -> Result<(Ref, u32), String> {
    let short = || format!("the reference {key} is too short");
    Ok(match key.kind {
        kind::TREE_BLOCK_REF => (Ref::TreeBlock { root: key.offset }, 1),
        kind::SHARED_BLOCK_REF => (Ref::SharedBlock { parent: key.offset }, 1),
        kind::SHARED_DATA_REF => {
            let count: zerocopy::little_endian::U32 = read(data, 0).ok_or_else(short)?;
            (Ref::SharedData { parent: key.offset }, count.get())
        }
        kind::EXTENT_DATA_REF => {
            let raw: RawExtentDataRef = read(data, 0).ok_or_else(short)?;
            data_of(&raw)
        }
        other => return Err(format!("an extent has a reference of type {other}")),
    })
}

fn data_of(raw: &RawExtentDataRef) -> (Ref, u32) {
    let (root, objectid, offset) = (raw.root.get(), raw.objectid.get(), raw.offset.get());
    (Ref::Data { root, objectid, offset }, raw.count.get())
}

impl ExtentItem {
    /// An extent with data.
    pub(crate) fn of_data(generation: u64) -> Self {
        Self { refs: 0, generation, flags: FLAG_DATA, block: None, inline: Vec::new() }
    }

    /// A block of a tree. `block` is its first key and its level, without the feature skinny-metadata.
    pub(crate) fn of_block(generation: u64, block: Option<(Key, u8)>) -> Self {
        Self { refs: 0, generation, flags: FLAG_TREE_BLOCK, block, inline: Vec::new() }
    }

    /// The extent has data of files.
    pub(crate) fn is_data(&self) -> bool {
        self.flags & FLAG_DATA != 0
    }

    /// Returns whether the extent has either data or a block of a tree, and not both.
    pub(crate) fn has_one_kind(&self) -> bool {
        [FLAG_DATA, FLAG_TREE_BLOCK].contains(&(self.flags & (FLAG_DATA | FLAG_TREE_BLOCK)))
    }

    /// The level of a block, without the feature skinny-metadata.
    pub(crate) fn level(&self) -> Option<u8> {
        self.block.map(|(_, level)| level)
    }

    pub(crate) fn is_full_backref(&self) -> bool {
        self.flags & FLAG_FULL_BACKREF != 0
    }

    pub(crate) fn set_full_backref(&mut self) {
        self.flags |= FLAG_FULL_BACKREF;
    }

    /// Decodes an item. `is_skinny`: its key is that of a METADATA_ITEM.
    pub(crate) fn decode(data: &[u8], is_skinny: bool) -> Result<Self, String> {
        let short = || "an extent item is cut off".to_owned();
        let raw: RawExtentItem = read(data, 0).ok_or_else(short)?;
        let flags = raw.flags.get();
        let mut at = size_of::<RawExtentItem>();
        let mut block = None;
        if flags & FLAG_TREE_BLOCK != 0 && !is_skinny {
            let info: RawTreeBlockInfo = read(data, at).ok_or_else(short)?;
            block = Some((Key::from(&info.key), info.level));
            at += size_of::<RawTreeBlockInfo>();
        }
        let mut inline = Vec::new();
        while at < data.len() {
            let kind = data[at];
            at += 1;
            let number = |at: usize| -> Result<u64, String> {
                let number: zerocopy::little_endian::U64 = read(data, at).ok_or_else(short)?;
                Ok(number.get())
            };
            let (by, count, len) = match kind {
                kind::TREE_BLOCK_REF => (Ref::TreeBlock { root: number(at)? }, 1, 8),
                kind::SHARED_BLOCK_REF => (Ref::SharedBlock { parent: number(at)? }, 1, 8),
                kind::SHARED_DATA_REF => {
                    let count: zerocopy::little_endian::U32 = read(data, at + 8).ok_or_else(short)?;
                    (Ref::SharedData { parent: number(at)? }, count.get(), 12)
                }
                kind::EXTENT_DATA_REF => {
                    let raw: RawExtentDataRef = read(data, at).ok_or_else(short)?;
                    let (by, count) = data_of(&raw);
                    (by, count, size_of::<RawExtentDataRef>())
                }
                other => return Err(format!("an extent has a reference of type {other}")),
            };
            slice(data, at, len).ok_or_else(short)?;
            at += len;
            inline.push((by, count));
        }
        Ok(Self { refs: raw.refs.get(), generation: raw.generation.get(), flags, block, inline })
    }

    /// The bytes to store. References are in the order that Linux expects.
    pub(crate) fn encode(&mut self) -> Vec<u8> {
        let raw = RawExtentItem {
            refs: self.refs.into(),
            generation: self.generation.into(),
            flags: self.flags.into(),
        };
        let mut bytes = raw.as_bytes().to_vec();
        if let Some((key, level)) = self.block {
            bytes.extend(RawTreeBlockInfo { key: key.into(), level }.as_bytes());
        }
        self.inline.sort_by_key(|(by, _)| (kind_of(by), std::cmp::Reverse(number_of(by))));
        for (by, count) in &self.inline {
            bytes.push(kind_of(by));
            match data_ref(by, *count) {
                Some(raw) => bytes.extend(raw.as_bytes()),
                None => {
                    bytes.extend(number_of(by).to_le_bytes());
                    if matches!(by, Ref::SharedData { .. }) {
                        bytes.extend(count.to_le_bytes());
                    }
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_round_trip() {
        let mut item = ExtentItem::of_data(9);
        item.refs = 6;
        item.inline.push((Ref::SharedData { parent: 1 << 30 }, 3));
        item.inline.push((Ref::Data { root: 5, objectid: 257, offset: 0 }, 1));
        item.inline.push((Ref::Data { root: 5, objectid: 258, offset: 4096 }, 2));
        let bytes = item.encode();
        assert_eq!(bytes.len(), 24 + 13 + 2 * 29);
        assert_eq!(ExtentItem::decode(&bytes, false).unwrap(), item);
        for len in 0..bytes.len() {
            let _ = ExtentItem::decode(&bytes[..len], false);
        }
        let mut block = ExtentItem::of_block(3, Some((Key::new(256, 1, 0), 1)));
        block.inline.push((Ref::TreeBlock { root: 5 }, 1));
        block.set_full_backref();
        let bytes = block.encode();
        assert_eq!(ExtentItem::decode(&bytes, false).unwrap(), block);
        assert!(block.is_full_backref());
    }
}
