//! Nodes of hash trees.

use crate::layout::bytes::number;
use crate::layout::directory::{MAX_DEPTH, NODE_MAGICS, hash_entries_start};
use crate::layout::raw::{RawDaHeader, RawDaNodeEntry};
use crate::layout::superblock::Superblock;
use crate::search::partition;
use std::mem::{offset_of, size_of};
use zerocopy::FromBytes;

const ENTRY_BYTES: usize = size_of::<RawDaNodeEntry>();
/// Offset of count and level.
const COUNTS: usize = size_of::<RawDaHeader>();

/// A node that is being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) level: u16,
    /// Of each child its largest hash, and its file block.
    pub(super) children: Vec<(u32, u32)>,
}

impl Node {
    /// The most children.
    pub(super) fn room(sb: &Superblock, size: usize) -> usize {
        (size - hash_entries_start(sb)) / ENTRY_BYTES
    }

    /// Finds the child that may have a hash: the last one if the hash is above all others. Returns the level
    /// of the node, the index of the child and its file block; `None` if the block has another magic.
    pub(super) fn child_for(
        sb: &Superblock,
        bytes: &[u8],
        hash: u32,
    ) -> Result<Option<(u16, usize, u32)>, String> {
        let Some((level, entries)) = Self::entries(sb, bytes)? else { return Ok(None) };
        let index = partition(entries.len(), |index| entries[index].hashval.get() < hash);
        let index = index.min(entries.len() - 1);
        Ok(Some((level, index, entries[index].before.get())))
    }

    /// Decodes a node. `None` if the block has another magic.
    pub(super) fn decode(sb: &Superblock, bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some((level, entries)) = Self::entries(sb, bytes)? else { return Ok(None) };
        let pair = |entry: &RawDaNodeEntry| (entry.hashval.get(), entry.before.get());
        let children: Vec<_> = entries.iter().map(pair).collect();
        if !children.is_sorted_by_key(|(hash, _)| *hash) {
            return Err("hashes in a node of a hash tree are out of order".into());
        }
        Ok(Some(Self { level, children }))
    }

    /// The level and the entries of a node, at least one. Their order is not checked.
    fn entries<'a>(sb: &Superblock, bytes: &'a [u8]) -> Result<Option<(u16, &'a [RawDaNodeEntry])>, String> {
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        if field(offset_of!(RawDaHeader, magic), 2) as u16 != NODE_MAGICS[0] {
            return Ok(None);
        }
        let (count, level) = (field(COUNTS, 2) as usize, field(COUNTS + 2, 2) as u16);
        let table = bytes.get(hash_entries_start(sb)..).unwrap_or_default();
        match <[RawDaNodeEntry]>::ref_from_prefix_with_elems(table, count) {
            Ok((entries, _)) if count > 0 && (1..=MAX_DEPTH as u16).contains(&level) => {
                Ok(Some((level, entries)))
            }
            _ => Err(format!("a node of a hash tree has {count} entries and level {level}")),
        }
    }

    /// Writes it into its block; its neighbours, and what a block says of itself, stay.
    pub(super) fn encode(&self, sb: &Superblock, bytes: &mut [u8]) {
        bytes[8..10].copy_from_slice(&NODE_MAGICS[0].to_be_bytes());
        bytes[10..12].fill(0);
        bytes[COUNTS..COUNTS + 2].copy_from_slice(&(self.children.len() as u16).to_be_bytes());
        bytes[COUNTS + 2..COUNTS + 4].copy_from_slice(&self.level.to_be_bytes());
        bytes[COUNTS + 4..COUNTS + 8].fill(0);
        let table = &mut bytes[hash_entries_start(sb)..];
        for (place, (hash, before)) in table.chunks_exact_mut(ENTRY_BYTES).zip(&self.children) {
            place[..4].copy_from_slice(&hash.to_be_bytes());
            place[4..].copy_from_slice(&before.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::tests::samples::superblock;

    #[test]
    fn nodes_decode_as_they_were_encoded() {
        let sb = superblock();
        let node = Node { level: 1, children: vec![(5, 3), (5, 9), (7, 4)] };
        let mut bytes = vec![0; 4096];
        node.encode(&sb, &mut bytes);
        assert_eq!(Node::decode(&sb, &bytes), Ok(Some(node)));
        assert_eq!(Node::room(&sb, 4096), 504);
        let damaged = |at: usize, value| {
            let mut copy = bytes.clone();
            copy[at] = value;
            Node::decode(&sb, &copy)
        };
        assert_eq!(damaged(8, 0), Ok(None));
        assert!(damaged(57, 0).is_err() && damaged(56, 9).is_err() && damaged(58, 1).is_err());
        assert!(damaged(64, 9).is_err());
    }
}
