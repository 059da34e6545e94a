//! Free space as stored: the free-space tree, and its parts that a transaction changed.

use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::layout::bytes::read;
use crate::layout::key::{Key, kind, object};
use crate::layout::raw::RawFreeSpaceInfo;
use crate::live::groups::{Group, Groups};
use crate::ranges::Ranges;
use ivers_vfs::{Error, Result};
use std::ops::ControlFlow;
use zerocopy::IntoBytes;

/// The free space of a group is stored as bitmaps (`flags` of its FREE_SPACE_INFO).
const USES_BITMAPS: u32 = 1;

fn info_key(group: &Group) -> Key {
    Key::new(group.start, kind::FREE_SPACE_INFO, group.len)
}

impl Btrfs {
    /// Reads the free space of a group from the free-space tree.
    pub(super) fn stored_free_space(&self, group: &mut Group) -> Result<Ranges> {
        let missing = || self.damaged_group(group.start, "it has no tree of free space");
        let tree = self.tree(object::FREE_SPACE_TREE)?.ok_or_else(missing)?;
        let info = self.forest.get(&tree, info_key(group), |data| {
            read::<RawFreeSpaceInfo>(data, 0).ok_or_else(|| "it is too short".into())
        })?;
        let info = info.ok_or_else(|| self.damaged_group(group.start, "its free space is not stored"))?;
        group.has_bitmaps = info.flags.get() & USES_BITMAPS != 0;
        let sector = u64::from(self.forest.volume.sb.sector_size);
        let mut free = Ranges::default();
        let last = Key::new(group.end() - 1, u8::MAX, u64::MAX);
        self.forest.scan(&tree, Key::new(group.start, 0, 0), last, |key, data| {
            let end = key.objectid.checked_add(key.offset).filter(|end| *end <= group.end());
            let end = end.ok_or_else(|| self.damaged_group(group.start, "its free space is outside"))?;
            match key.kind {
                kind::FREE_SPACE_EXTENT => {
                    free.add(key.objectid, end);
                }
                kind::FREE_SPACE_BITMAP => {
                    let sectors = (end - key.objectid) / sector;
                    if (data.len() as u64) < sectors.div_ceil(8) {
                        return Err(self.damaged_group(group.start, "a bitmap is too short"));
                    }
                    for index in (0..sectors).filter(|index| bit(data, *index)) {
                        let at = key.objectid + index * sector;
                        free.add(at, at + sector);
                    }
                }
                _ => {}
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(free)
    }

    pub(super) fn damaged_group(&self, start: u64, what: &str) -> Error {
        Error::corrupt(what, format!("{}, block group {start}", self.forest.volume.place))
    }
}

fn bit(bitmap: &[u8], index: u64) -> bool {
    bitmap.get((index / 8) as usize).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

impl Tx<'_> {
    /// Stores what a new group has.
    pub(super) fn insert_free_space(&mut self, group: &Group) -> Result<()> {
        let info = RawFreeSpaceInfo { extent_count: 1.into(), flags: 0.into() };
        self.insert(object::FREE_SPACE_TREE, info_key(group), info.as_bytes())?;
        let extent = Key::new(group.start, kind::FREE_SPACE_EXTENT, group.len);
        self.insert(object::FREE_SPACE_TREE, extent, &[])
    }

    /// Brings the free-space tree up to date with what was allocated and freed so far.
    pub(super) fn store_free_space(&mut self) -> Result<()> {
        let Groups { removed, added, .. } = &mut self.live.groups;
        let (removed, added) = (removed.take(), added.take());
        if !self.live.has_free_space_tree {
            return Ok(());
        }
        for (ranges, is_free) in [(removed, false), (added, true)] {
            for (start, end) in ranges.iter() {
                self.store_range(start, end, is_free)?;
            }
        }
        Ok(())
    }

    /// Stores that a range, which may lie in several groups, is free or not.
    fn store_range(&mut self, start: u64, end: u64, is_free: bool) -> Result<()> {
        let mut at = start;
        while at < end {
            let group = self.live.groups.at(at).cloned();
            let group = group.ok_or_else(|| self.broken(format!("address {at} is in no block group")))?;
            let stop = end.min(group.end());
            let more = match (group.has_bitmaps, is_free) {
                (true, _) => self.store_bits(&group, at, stop, is_free)?,
                (false, true) => self.store_freed(&group, at, stop)?,
                (false, false) => self.store_taken(&group, at, stop)?,
            };
            self.count_extents(&group, more)?;
            at = stop;
        }
        Ok(())
    }

    fn count_extents(&mut self, group: &Group, more: i64) -> Result<()> {
        if more == 0 {
            return Ok(());
        }
        let tree = self.tree(object::FREE_SPACE_TREE)?;
        let key = info_key(group);
        let info = self.fs.forest.get(&tree, key, |data| {
            read::<RawFreeSpaceInfo>(data, 0).ok_or_else(|| "it is too short".into())
        })?;
        let mut info =
            info.ok_or_else(|| self.fs.damaged_group(group.start, "its free space is not stored"))?;
        let count = i64::from(info.extent_count.get()) + more;
        let count = u32::try_from(count);
        let count =
            count.map_err(|_| self.fs.damaged_group(group.start, "its count of free extents is wrong"))?;
        info.extent_count = count.into();
        self.put(object::FREE_SPACE_TREE, key, info.as_bytes())
    }

    /// The free extent that has an address or ends there.
    fn free_extent_before(&self, group: &Group, at: u64) -> Result<Option<(u64, u64)>> {
        let tree = self.tree(object::FREE_SPACE_TREE)?;
        let key = Key::new(at, kind::FREE_SPACE_EXTENT, u64::MAX);
        let found = self.fs.forest.last_at_most(&tree, key, |found, _| Ok(found))?;
        let found = found.filter(|key| key.kind == kind::FREE_SPACE_EXTENT && key.objectid >= group.start);
        Ok(found.map(|key| (key.objectid, key.objectid + key.offset)))
    }

    fn remove_free_extent(&mut self, start: u64, end: u64) -> Result<()> {
        self.remove(object::FREE_SPACE_TREE, Key::new(start, kind::FREE_SPACE_EXTENT, end - start))
    }

    fn insert_free_extent(&mut self, start: u64, end: u64) -> Result<()> {
        self.insert(object::FREE_SPACE_TREE, Key::new(start, kind::FREE_SPACE_EXTENT, end - start), &[])
    }

    fn store_taken(&mut self, group: &Group, start: u64, end: u64) -> Result<i64> {
        let found = self.free_extent_before(group, start)?;
        let (from, to) = found.filter(|(_, to)| *to >= end).ok_or_else(|| {
            self.fs
                .damaged_group(group.start, &format!("address {start} is allocated and not stored as free"))
        })?;
        self.remove_free_extent(from, to)?;
        let mut more = -1;
        if from < start {
            self.insert_free_extent(from, start)?;
            more += 1;
        }
        if end < to {
            self.insert_free_extent(end, to)?;
            more += 1;
        }
        Ok(more)
    }

    fn store_freed(&mut self, group: &Group, start: u64, end: u64) -> Result<i64> {
        let (mut from, mut to, mut more) = (start, end, 1);
        if let Some((before, stop)) = self.free_extent_before(group, start)? {
            if stop > start {
                return Err(self.fs.damaged_group(group.start, &format!("address {start} is free twice")));
            }
            if stop == start {
                self.remove_free_extent(before, stop)?;
                (from, more) = (before, more - 1);
            }
        }
        if let Some((after, stop)) = self.free_extent_before(group, end)?
            && after == end
            && end < group.end()
        {
            self.remove_free_extent(after, stop)?;
            (to, more) = (stop, more - 1);
        }
        self.insert_free_extent(from, to)?;
        Ok(more)
    }

    /// The bitmap that has an address: its key and its bytes.
    fn bitmap_at(&self, group: &Group, at: u64) -> Result<Option<(Key, Vec<u8>)>> {
        let tree = self.tree(object::FREE_SPACE_TREE)?;
        let key = Key::new(at, kind::FREE_SPACE_BITMAP, u64::MAX);
        let found = self.fs.forest.last_at_most(&tree, key, |key, data| Ok((key, data.to_vec())))?;
        Ok(found.filter(|(key, _)| {
            key.kind == kind::FREE_SPACE_BITMAP
                && key.objectid >= group.start
                && at - key.objectid < key.offset
        }))
    }

    fn is_free_bit(&self, group: &Group, at: u64) -> Result<bool> {
        let sector = u64::from(self.sb().sector_size);
        let found = self.bitmap_at(group, at)?;
        Ok(found.is_some_and(|(key, bytes)| bit(&bytes, (at - key.objectid) / sector)))
    }

    /// Sets or clears bits. Returns how many more runs of free sectors there are.
    fn store_bits(&mut self, group: &Group, start: u64, end: u64, is_free: bool) -> Result<i64> {
        let sector = u64::from(self.sb().sector_size);
        let before = start > group.start && self.is_free_bit(group, start - sector)?;
        let after = end < group.end() && self.is_free_bit(group, end)?;
        let mut at = start;
        while at < end {
            let found = self.bitmap_at(group, at)?;
            let (key, mut bytes) = found
                .ok_or_else(|| self.fs.damaged_group(group.start, "a bitmap of free space is missing"))?;
            let stop = end.min(key.objectid.saturating_add(key.offset));
            while at < stop {
                let index = (at - key.objectid) / sector;
                let wrong = self.fs.damaged_group(group.start, &format!("the bit of address {at} is wrong"));
                let byte = bytes.get_mut((index / 8) as usize);
                let byte = byte.filter(|byte| (**byte & (1 << (index % 8)) != 0) != is_free).ok_or(wrong)?;
                *byte ^= 1 << (index % 8);
                at += sector;
            }
            self.put(object::FREE_SPACE_TREE, key, &bytes)?;
        }
        let more = 1 - i64::from(before) - i64::from(after);
        Ok(if is_free { more } else { -more })
    }
}
