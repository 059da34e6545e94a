//! Editing of blocks of attributes.

use crate::attr::{Attribute, Value, attribute_table};
use crate::layout::attribute::{LEAF_MAGICS, attr_entries_start, flags};
use crate::layout::bytes::number;
use crate::layout::raw::{RawAttrLeafEntry, RawDaHeader};
use crate::layout::superblock::Superblock;
use std::mem::{offset_of, size_of};

const ENTRY_BYTES: usize = size_of::<RawAttrLeafEntry>();
/// Offset of the counts.
const COUNTS: usize = size_of::<RawDaHeader>();
/// Names and values start at multiples of this.
const ALIGNMENT: usize = 4;

/// An attribute of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) hash: u32,
    pub(super) attribute: Attribute,
    /// The offset of name and value; `None` for a new one.
    at: Option<usize>,
}

impl Item {
    pub(super) fn new(hash: u32, attribute: Attribute) -> Self {
        Self { hash, attribute, at: None }
    }

    /// Bytes of name and value in the block.
    fn body_bytes(&self) -> usize {
        match &self.attribute.value {
            Value::Here(value) => (3 + self.attribute.name.len() + value.len()).next_multiple_of(ALIGNMENT),
            // The structure was padded once: the name counts two bytes more.
            Value::Remote { .. } => (11 + self.attribute.name.len()).next_multiple_of(ALIGNMENT),
        }
    }

    /// Bytes that it takes in the block.
    pub(super) fn bytes(&self) -> usize {
        ENTRY_BYTES + self.body_bytes()
    }
}

/// Whether a value is stored beside its name in a block of attributes: then a block takes any one attribute.
pub(super) fn is_local(block_size: u32, name_len: usize, value_len: usize) -> bool {
    (3 + name_len + value_len).next_multiple_of(ALIGNMENT) < block_size as usize / 4 * 3
}

/// A block of attributes that is being changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AttrLeaf {
    /// In the order of hashes.
    pub(super) items: Vec<Item>,
}

impl AttrLeaf {
    /// Decodes a block, and checks it.
    pub(super) fn decode(sb: &Superblock, bytes: &[u8]) -> Result<Self, String> {
        let magic = number(bytes, offset_of!(RawDaHeader, magic), 2).unwrap_or(0) as u16;
        if magic != LEAF_MAGICS[0] {
            return Err(format!("a block of attributes has the magic {magic:#06x}"));
        }
        let table = attribute_table(sb, bytes)?;
        let mut leaf = Self { items: Vec::with_capacity(table.count) };
        for index in 0..table.count {
            let at = table.entry(index).map_or(0, |entry| usize::from(entry.nameidx.get()));
            leaf.items.push(Item {
                hash: table.hash(index),
                attribute: table.attribute(index)?,
                at: Some(at),
            });
        }
        let mut spans = leaf.spans();
        spans.sort_unstable();
        let overlap = spans.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        let past = spans.last().is_some_and(|(at, len)| at + len > bytes.len());
        let aligned = spans.iter().all(|(at, _)| at.is_multiple_of(ALIGNMENT));
        if overlap || past || !aligned || !leaf.items.is_sorted_by_key(|item| item.hash) {
            return Err("attributes of a block overlap or are out of order".into());
        }
        Ok(leaf)
    }

    /// Offset and length of the names and values that have a place.
    fn spans(&self) -> Vec<(usize, usize)> {
        self.items.iter().filter_map(|item| Some((item.at?, item.body_bytes()))).collect()
    }

    /// Whether attributes fit in one block.
    pub(super) fn fits(sb: &Superblock, items: &[Item]) -> bool {
        let bytes: usize = items.iter().map(Item::bytes).sum();
        attr_entries_start(sb) + bytes <= sb.block_size as usize
    }

    /// The place of a hash among the items: before all of that hash.
    pub(super) fn first_with(&self, hash: u32) -> usize {
        self.items.partition_point(|item| item.hash < hash)
    }

    /// Adds an attribute in its place. The caller checks that they fit.
    pub(super) fn insert(&mut self, item: Item) {
        let at = self.first_with(item.hash);
        self.items.insert(at, item);
    }

    pub(super) fn last_hash(&self) -> u32 {
        self.items.last().map_or(0, |item| item.hash)
    }

    /// Gives places to all items, and returns the free ranges: first the one after the entries.
    fn place_all(&mut self, sb: &Superblock) -> Vec<(usize, usize)> {
        let end = attr_entries_start(sb) + self.items.len() * ENTRY_BYTES;
        if self.items.iter().any(|item| item.at.is_some_and(|at| at < end)) {
            self.items.iter_mut().for_each(|item| item.at = None);
        }
        let mut gaps = self.gaps(sb, end);
        for index in 0..self.items.len() {
            let need = self.items[index].body_bytes();
            if self.items[index].at.is_some() {
                continue;
            }
            let Some(gap) = gaps.iter_mut().rfind(|(_, len)| *len >= need) else {
                self.compact(sb);
                break;
            };
            gap.1 -= need;
            self.items[index].at = Some(gap.0 + gap.1);
        }
        self.gaps(sb, end)
    }

    fn gaps(&self, sb: &Superblock, end: usize) -> Vec<(usize, usize)> {
        let mut spans = self.spans();
        spans.sort_unstable();
        spans.push((sb.block_size as usize, 0));
        let mut from = end;
        let mut gaps = Vec::new();
        for (at, len) in spans {
            if at > from || gaps.is_empty() {
                gaps.push((from, at.saturating_sub(from)));
            }
            from = at + len;
        }
        gaps
    }

    fn compact(&mut self, sb: &Superblock) {
        let mut at = sb.block_size as usize;
        for item in &mut self.items {
            at -= item.body_bytes();
            item.at = Some(at);
        }
    }

    /// Writes it into its block; its neighbours, and what a block says of itself, stay. The items must fit.
    pub(super) fn encode(&mut self, sb: &Superblock, bytes: &mut [u8]) {
        let mut free = self.place_all(sb);
        bytes[8..10].copy_from_slice(&LEAF_MAGICS[0].to_be_bytes());
        bytes[10..12].fill(0);
        let start = attr_entries_start(sb);
        for (nth, item) in self.items.iter().enumerate() {
            let at = item.at.unwrap_or_default();
            let Attribute { flags: set, name, value } = &item.attribute;
            let set = set & !flags::LOCAL;
            let (set, body) = match value {
                Value::Here(value) => {
                    let head = [&(value.len() as u16).to_be_bytes()[..], &[name.len() as u8], name];
                    (set | flags::LOCAL, [&head.concat()[..], value].concat())
                }
                Value::Remote { block, len } => {
                    let head = [(block.0 as u32).to_be_bytes(), len.to_be_bytes()].concat();
                    (set, [&head[..], &[name.len() as u8], name].concat())
                }
            };
            bytes[at..at + item.body_bytes()].fill(0);
            bytes[at..at + body.len()].copy_from_slice(&body);
            let entry = &mut bytes[start + nth * ENTRY_BYTES..][..ENTRY_BYTES];
            entry[..4].copy_from_slice(&item.hash.to_be_bytes());
            entry[4..6].copy_from_slice(&(at as u16).to_be_bytes());
            entry[6..].copy_from_slice(&[set, 0]);
        }
        let spans = self.spans();
        let used: usize = spans.iter().map(|(_, len)| len).sum();
        let first = spans.iter().map(|(at, _)| *at).min().unwrap_or(sb.block_size as usize);
        // The one after the entries, and the two largest others. More are found by compacting.
        free[1..].sort_by_key(|(_, len)| usize::MAX - len);
        // Without this mark Linux expects all free space before the first name. When it joins such a block
        // with another one, names overwrite entries.
        let has_gaps = first + used < sb.block_size as usize;
        free.resize(3, (0, 0));
        let mut header = Vec::new();
        // 65536 is stored as 0.
        for number in [self.items.len(), used, first] {
            header.extend((number as u16).to_be_bytes());
        }
        header.extend([u8::from(has_gaps), 0]);
        for (at, len) in free {
            header.extend((at as u16).to_be_bytes());
            header.extend((len as u16).to_be_bytes());
        }
        bytes[COUNTS..COUNTS + header.len()].copy_from_slice(&header);
        bytes[COUNTS + header.len()..start].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::da::hash_name;
    use crate::write::tests::samples::superblock;
    use ivers_block::FileBlock;
    use rand::{Rng, SeedableRng};

    fn item(name: &str, value: Value) -> Item {
        Item::new(hash_name(name.as_bytes()), Attribute { flags: 0, name: name.into(), value })
    }

    #[test]
    fn random_changes_leave_a_valid_block() {
        let sb = superblock();
        let mut random = rand::rngs::StdRng::seed_from_u64(11);
        let mut bytes = vec![0; 4096];
        AttrLeaf::default().encode(&sb, &mut bytes);
        let mut model = std::collections::BTreeMap::new();
        let mut full = 0;
        for round in 0..3000 {
            let mut leaf = AttrLeaf::decode(&sb, &bytes).unwrap();
            let name = format!("name-{}", random.random_range(0..60));
            leaf.items.retain(|item| item.attribute.name != name.as_bytes());
            model.remove(&name);
            if random.random_bool(0.6) {
                let value = match random.random_range(0..8) {
                    0 => Value::Remote { block: FileBlock(round + 1), len: 9000 },
                    _ => Value::Here(vec![round as u8; random.random_range(0..200)]),
                };
                let new = item(&name, value.clone());
                if AttrLeaf::fits(&sb, &[&leaf.items[..], std::slice::from_ref(&new)].concat()) {
                    leaf.insert(new);
                    model.insert(name, value);
                } else {
                    full += 1;
                }
            }
            leaf.encode(&sb, &mut bytes);
            let again = AttrLeaf::decode(&sb, &bytes).unwrap();
            let found = again
                .items
                .into_iter()
                .map(|item| (String::from_utf8(item.attribute.name).unwrap(), item.attribute.value));
            assert_eq!(found.collect::<std::collections::BTreeMap<_, _>>(), model, "round {round}");
            let field =
                |at: usize| usize::from(u16::from_be_bytes([bytes[COUNTS + at], bytes[COUNTS + at + 1]]));
            let (used, first) = (field(2), field(4));
            assert_eq!(bytes[COUNTS + 6] == 1, first + used < bytes.len(), "round {round}: gaps");
        }
        assert!(full > 10, "{full}");
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let sb = superblock();
        let mut leaf = AttrLeaf::default();
        (0..20).for_each(|nth| leaf.insert(item(&format!("n{nth}"), Value::Here(vec![7; 20]))));
        let mut bytes = vec![0; 4096];
        leaf.encode(&sb, &mut bytes);
        for at in 0..4096 {
            let mut copy = bytes.clone();
            copy[at] ^= 0xFF;
            if let Ok(mut leaf) = AttrLeaf::decode(&sb, &copy) {
                leaf.encode(&sb, &mut copy);
            }
        }
        assert!(AttrLeaf::decode(&sb, &[0; 4096]).is_err());
    }

    #[test]
    fn long_values_have_blocks_of_their_own() {
        assert!(is_local(4096, 10, 3000) && !is_local(4096, 10, 3072));
    }
}
