//! The extent tree: storing the delayed references of `Refs`.

use super::tx::Tx;
use crate::layout::extent_item::Ref;
use crate::layout::extent_item::{ExtentItem, decode_keyed, keyed_data, kind_of, number_of};
use crate::layout::key::{Key, kind, object};
use crate::layout::node::{HEADER_BYTES, ITEM_BYTES};
use crate::live::refs::{Kind, Pending};
use ivers_vfs::Result;
use std::ops::ControlFlow;

/// References of files with the same hash that are searched.
const SAME_HASH_MAX: u64 = 256;

/// An item of the extent tree, and where it is.
struct Found {
    key: Key,
    item: ExtentItem,
}

impl Tx<'_> {
    fn key_of_new(&self, bytenr: u64, kind: Kind) -> Key {
        match kind {
            Kind::Data { bytes } => Key::new(bytenr, kind::EXTENT_ITEM, bytes),
            Kind::Block { level } if self.live.is_skinny => {
                Key::new(bytenr, kind::METADATA_ITEM, level.into())
            }
            Kind::Block { .. } => Key::new(bytenr, kind::EXTENT_ITEM, self.sb().node_size.into()),
        }
    }

    fn find_extent(&self, bytenr: u64, kind: Kind) -> Result<Option<Found>> {
        let tree = self.tree(object::EXTENT_TREE)?;
        let bytes = match kind {
            Kind::Data { bytes } => bytes,
            Kind::Block { .. } => self.sb().node_size.into(),
        };
        let whole = Key::new(bytenr, kind::EXTENT_ITEM, bytes);
        if let Kind::Block { level } = kind {
            let key = Key::new(bytenr, kind::METADATA_ITEM, level.into());
            let found = self.fs.forest.get(&tree, key, |data| ExtentItem::decode(data, true))?;
            if let Some(item) = found {
                return Ok(Some(Found { key, item }));
            }
        }
        let found = self.fs.forest.get(&tree, whole, |data| ExtentItem::decode(data, false))?;
        Ok(found.map(|item| Found { key: whole, item }))
    }

    /// Whether an extent of data has an item.
    pub(super) fn has_extent(&self, bytenr: u64, bytes: u64) -> Result<bool> {
        Ok(self.find_extent(bytenr, Kind::Data { bytes })?.is_some_and(|found| found.item.is_data()))
    }

    /// How often a block is used, and whether references to what is below name it.
    pub(super) fn block_refs(&self, bytenr: u64, level: u8) -> Result<(u64, bool)> {
        let kind = Kind::Block { level };
        let found = self.find_extent(bytenr, kind)?;
        let found = found.ok_or_else(|| self.broken(format!("block {bytenr} has no extent item")))?;
        let (mut refs, mut is_full) = (found.item.refs, found.item.is_full_backref());
        if let Some(pending) = self.live.refs.get(bytenr) {
            refs = refs.saturating_add_signed(pending.total());
            is_full |= pending.full_backref;
        }
        Ok((refs, is_full))
    }

    /// Stores all delayed references, including those that storing them adds.
    pub(super) fn run_refs(&mut self) -> Result<()> {
        while let Some((bytenr, pending)) = self.live.refs.pop() {
            if pending.is_new {
                self.store_new(bytenr, pending)?;
            } else {
                self.store_change(bytenr, pending)?;
            }
        }
        Ok(())
    }

    fn bytes_of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Data { bytes } => bytes,
            Kind::Block { .. } => self.sb().node_size.into(),
        }
    }

    fn store_new(&mut self, bytenr: u64, pending: Pending) -> Result<()> {
        let bytes = self.bytes_of(pending.kind);
        let total = pending.total();
        if total == 0 {
            return self.release(bytenr, pending.kind);
        }
        let mut item = match pending.kind {
            Kind::Data { .. } => ExtentItem::of_data(self.live.transid),
            Kind::Block { level } => {
                let first = self.fs.forest.dirty_node(bytenr).and_then(|node| node.first_key());
                let first = first.unwrap_or(Key::new(0, 0, 0));
                let block = (!self.live.is_skinny).then_some((first, level));
                ExtentItem::of_block(self.live.transid, block)
            }
        };
        if pending.full_backref {
            item.set_full_backref();
        }
        let mut keyed = Vec::new();
        for (by, delta) in &pending.deltas {
            let count = self.count_of(bytenr, *delta)?;
            self.add_ref(&mut item, *by, count, false, &mut keyed);
        }
        item.refs = total as u64;
        let key = self.key_of_new(bytenr, pending.kind);
        self.insert(object::EXTENT_TREE, key, &item.encode())?;
        for (by, count) in keyed {
            self.insert_keyed(bytenr, by, count)?;
        }
        if !self.live.groups.count_used(bytenr, bytes) {
            return Err(self.broken(format!("extent {bytenr} is in no block group")));
        }
        Ok(())
    }

    fn count_of(&self, bytenr: u64, count: i64) -> Result<u32> {
        let fits = u32::try_from(count).ok().filter(|count| *count > 0);
        fits.ok_or_else(|| self.broken(format!("extent {bytenr} would have {count} references")))
    }

    /// The largest item with references in it.
    fn most_item_bytes(&self) -> usize {
        ((self.sb().node_size as usize - HEADER_BYTES) >> 4).saturating_sub(ITEM_BYTES)
    }

    /// Adds a reference to an item, or to `keyed` if the item becomes too large.
    fn add_ref(
        &self,
        item: &mut ExtentItem,
        by: Ref,
        count: u32,
        has_keyed: bool,
        keyed: &mut Vec<(Ref, u32)>,
    ) {
        item.inline.push((by, count));
        let is_first = item.inline.len() == 1;
        if has_keyed || !keyed.is_empty() || (!is_first && item.encode().len() > self.most_item_bytes()) {
            item.inline.retain(|(other, _)| *other != by);
            keyed.push((by, count));
        }
    }

    /// Finds the item of its own that a reference has, or the key for one.
    pub(super) fn find_keyed(&self, bytenr: u64, by: Ref) -> Result<(Key, Option<u32>)> {
        let tree = self.tree(object::EXTENT_TREE)?;
        let hash = number_of(&by);
        let key = |number| Key::new(bytenr, kind_of(&by), number);
        let (first, last) = (key(hash), key(hash.saturating_add(SAME_HASH_MAX)));
        // One in the middle may have been removed: the search goes on behind the first place that is free.
        let mut free = first;
        let found = self.fs.forest.scan(&tree, first, last, |at, data| {
            let (other, count) = decode_keyed(at, data).map_err(|what| self.broken(what))?;
            if other == by {
                return Ok(ControlFlow::Break((at, count)));
            }
            if at == free {
                free.offset = free.offset.saturating_add(1);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match found {
            Some((at, count)) => Ok((at, Some(count))),
            None if free < last => Ok((free, None)),
            None => Err(self.broken(format!("extent {bytenr} has too many references with one hash"))),
        }
    }

    fn insert_keyed(&mut self, bytenr: u64, by: Ref, count: u32) -> Result<()> {
        let (key, found) = self.find_keyed(bytenr, by)?;
        if found.is_some() {
            return Err(self.broken(format!("extent {bytenr} has a reference twice")));
        }
        self.insert(object::EXTENT_TREE, key, &keyed_data(&by, count))
    }

    /// Whether an extent has references with items of their own.
    fn has_keyed(&self, bytenr: u64) -> Result<bool> {
        let tree = self.tree(object::EXTENT_TREE)?;
        let first = Key::new(bytenr, kind::TREE_BLOCK_REF, 0);
        let last = Key::new(bytenr, kind::SHARED_DATA_REF, u64::MAX);
        Ok(self.fs.forest.scan(&tree, first, last, |_, _| Ok(ControlFlow::Break(())))?.is_some())
    }

    fn store_change(&mut self, bytenr: u64, pending: Pending) -> Result<()> {
        let found = self.find_extent(bytenr, pending.kind)?;
        let Found { key, mut item } =
            found.ok_or_else(|| self.broken(format!("extent {bytenr} has no item")))?;
        let has_keyed = self.has_keyed(bytenr)?;
        if pending.full_backref {
            item.set_full_backref();
        }
        let mut keyed = Vec::new();
        // More references first: an extent is free only if none is left at the end.
        let mut deltas: Vec<_> = pending.deltas.iter().map(|(by, delta)| (*by, *delta)).collect();
        deltas.sort_by_key(|(_, delta)| std::cmp::Reverse(*delta));
        for (by, delta) in deltas {
            if let Some(place) = item.inline.iter().position(|(other, _)| *other == by) {
                let count = i64::from(item.inline[place].1) + delta;
                if count == 0 {
                    item.inline.remove(place);
                } else {
                    item.inline[place].1 = self.count_of(bytenr, count)?;
                }
                continue;
            }
            let (key, count) = match has_keyed {
                true => self.find_keyed(bytenr, by)?,
                false => (Key::new(bytenr, 0, 0), None),
            };
            match count {
                Some(count) if i64::from(count) + delta == 0 => self.remove(object::EXTENT_TREE, key)?,
                Some(count) => {
                    let count = self.count_of(bytenr, i64::from(count) + delta)?;
                    self.put(object::EXTENT_TREE, key, &keyed_data(&by, count))?;
                }
                None => {
                    let count = self.count_of(bytenr, delta)?;
                    self.add_ref(&mut item, by, count, has_keyed, &mut keyed);
                }
            }
        }
        let refs = item.refs.checked_add_signed(pending.total());
        item.refs = refs.ok_or_else(|| self.broken(format!("extent {bytenr} has too few references")))?;
        if item.refs > 0 {
            self.put(object::EXTENT_TREE, key, &item.encode())?;
            for (by, count) in keyed {
                self.insert_keyed(bytenr, by, count)?;
            }
            return Ok(());
        }
        if !item.inline.is_empty() || !keyed.is_empty() || (has_keyed && self.has_keyed(bytenr)?) {
            return Err(self.broken(format!("extent {bytenr} has more references than it counts")));
        }
        self.remove(object::EXTENT_TREE, key)?;
        if !self.live.groups.count_unused(bytenr, self.bytes_of(pending.kind)) {
            return Err(self.broken(format!("the block group of extent {bytenr} uses too little")));
        }
        self.release(bytenr, pending.kind)
    }

    /// Nothing refers to an extent.
    fn release(&mut self, bytenr: u64, kind: Kind) -> Result<()> {
        let bytes = self.bytes_of(kind);
        match kind {
            Kind::Data { .. } => {
                self.remove_checksums(bytenr, bytes)?;
                self.live.groups.pin(bytenr, bytes);
            }
            Kind::Block { .. } if self.live.fresh.remove(&bytenr) => {
                self.fs.forest.dirty.remove(bytenr);
                self.live.groups.give_back(bytenr, bytes);
            }
            Kind::Block { .. } => self.live.groups.pin(bytenr, bytes),
        }
        Ok(())
    }
}
