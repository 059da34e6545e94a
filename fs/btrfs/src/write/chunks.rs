//! New chunks: more space for data or for trees, from the unallocated parts of the devices.
//!
//! A chunk is usable at once in memory. Its items are stored in the commit of the transaction that made it.

use super::tx::Tx;
use crate::layout::bytes::read;
use crate::layout::chunk::{Chunk, Profile, Stripe};
use crate::layout::key::{Key, kind, object};
use crate::layout::raw::{RawBlockGroupItem, RawChunk, RawDevExtent, RawDevItem, RawKey, RawStripe};
use crate::layout::superblock::SYS_CHUNK_ARRAY_BYTES;
use crate::live::NewChunk;
use crate::live::groups::{Group, Use};
use crate::ranges::Ranges;
use ivers_vfs::Result;
use zerocopy::IntoBytes;

/// The start of a device, which no chunk has.
const FIRST_BYTE: u64 = 1 << 20;
const STRIPE_LEN: u64 = 64 << 10;
/// The smallest and the largest part of a device that a chunk gets.
const LEAST_STRIPE: u64 = 1 << 20;
const MOST_DATA: u64 = 1 << 30;
const MOST_METADATA: u64 = 256 << 20;
const MOST_SYSTEM: u64 = 32 << 20;
/// The part of all devices that one chunk gets at most.
const MOST_PART: u64 = 10;

impl Tx<'_> {
    /// Unallocated parts of each device: number, UUID, ranges.
    fn unallocated(&self) -> Vec<(u64, [u8; 16], Ranges)> {
        let volume = &self.fs.forest.volume;
        let chunks = volume.chunks();
        let mut found = Vec::new();
        for (devid, member) in volume.members() {
            let mut free = Ranges::default();
            free.add(FIRST_BYTE, member.bytes);
            for chunk in &chunks {
                for stripe in chunk.stripes.iter().filter(|stripe| stripe.devid == devid) {
                    free.remove(stripe.offset, stripe.offset + chunk.bytes_per_device());
                }
            }
            found.push((devid, member.uuid, free));
        }
        found.sort_by_key(|(devid, ..)| *devid);
        found
    }

    /// Bytes of data that more chunks could have, about.
    pub(crate) fn bytes_of_more_chunks(&self) -> u64 {
        let free: u64 = self.unallocated().iter().map(|(_, _, free)| free.total()).sum();
        let flags = self.live.groups.of(Use::Data).last().map_or(0, |group| group.flags);
        free / Profile::of(flags).map_or(1, |profile| profile.copies as u64)
    }

    /// Finds places for the parts of a chunk. Returns the bytes of each as well.
    fn place_stripes(&self, flags: u64, most: u64) -> Option<(u64, Vec<Stripe>)> {
        let mut devices = self.unallocated();
        let on_each = if Profile::is_dup(flags) { 2 } else { 1 };
        let longest = |free: &Ranges| free.longest(u64::MAX).map_or(0, |(_, len)| len);
        devices.retain(|(_, _, free)| longest(free) >= LEAST_STRIPE * on_each);
        devices.sort_by_key(|(devid, _, free)| (std::cmp::Reverse(longest(free)), *devid));
        let wanted = Profile::devices(flags, devices.len())?;
        devices.truncate(wanted);
        let shortest = devices.iter().map(|(_, _, free)| longest(free) / on_each).min()?;
        let len = shortest.min(most.max(LEAST_STRIPE)) / STRIPE_LEN * STRIPE_LEN;
        let mut stripes = Vec::new();
        for (devid, uuid, mut free) in devices {
            for _ in 0..on_each {
                let (start, found) = free.longest(u64::MAX)?;
                let aligned = start.next_multiple_of(STRIPE_LEN);
                if len == 0 || aligned + len > start + found {
                    return None;
                }
                free.remove(aligned, aligned + len);
                stripes.push(Stripe { devid, device_uuid: uuid, offset: aligned });
            }
        }
        Some((len, stripes))
    }

    /// Makes a chunk. Returns false if the devices have no space for one.
    pub(super) fn add_chunk(&mut self, purpose: Use) -> Result<bool> {
        let Some(flags) = self.live.groups.of(purpose).last().map(|group| group.flags) else {
            return Err(self.broken("there is no block group of a kind"));
        };
        let Some(profile) = Profile::of(flags) else { return Ok(false) };
        let all: u64 = self.fs.forest.volume.members().map(|(_, member)| member.bytes).sum();
        let most = match purpose {
            Use::Data => MOST_DATA,
            Use::Metadata => MOST_METADATA,
            Use::System => MOST_SYSTEM,
        };
        let most = most.min(all / MOST_PART);
        let Some((len, stripes)) = self.place_stripes(flags, most) else { return Ok(false) };
        let columns = (stripes.len() / profile.copies) as u64;
        let start = self.live.groups.by_start.values().map(Group::end).max().unwrap_or(FIRST_BYTE);
        let start = start.checked_next_multiple_of(STRIPE_LEN);
        // A chunk ends at an address.
        let Some(start) = start.filter(|start| start.checked_add(len * columns).is_some()) else {
            return Ok(false);
        };
        let is_raid10 = profile.name == "RAID10";
        let raw = RawChunk {
            length: (len * columns).into(),
            owner: object::EXTENT_TREE.into(),
            stripe_len: STRIPE_LEN.into(),
            kind: flags.into(),
            io_align: (STRIPE_LEN as u32).into(),
            io_width: (STRIPE_LEN as u32).into(),
            sector_size: self.sb().sector_size.into(),
            num_stripes: (stripes.len() as u16).into(),
            sub_stripes: (if is_raid10 { 2 } else { 1 }).into(),
        };
        let mut item = raw.as_bytes().to_vec();
        for Stripe { devid, device_uuid, offset } in stripes {
            let raw = RawStripe { devid: devid.into(), offset: offset.into(), dev_uuid: device_uuid };
            item.extend(raw.as_bytes());
        }
        if purpose == Use::System {
            let key = RawKey::from(Key::new(object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, start));
            if self.live.sys_chunks.len() + key.as_bytes().len() + item.len() > SYS_CHUNK_ARRAY_BYTES {
                return Ok(false);
            }
            self.live.sys_chunks.extend(key.as_bytes());
            self.live.sys_chunks.extend(&item);
        }
        let volume = &self.fs.forest.volume;
        volume.add_chunk(start, &item)?;
        let mut group = Group::new(start, len * columns, flags);
        group.free.add(start, group.end());
        for chunk in volume.chunks().iter().filter(|chunk| chunk.start == start) {
            for (from, to) in self.fs.superblocks_in(chunk) {
                group.free.remove(from, to);
            }
        }
        self.live.groups.by_start.insert(start, group);
        self.live.new_chunks.push(NewChunk { start, item });
        Ok(true)
    }

    /// Stores the items of new chunks.
    pub(super) fn store_chunks(&mut self) -> Result<()> {
        while !self.live.new_chunks.is_empty() {
            // The tree of chunks may need blocks itself.
            let least = 16 * u64::from(self.sb().node_size);
            if self.live.groups.free_bytes(Use::System) < least {
                self.add_chunk(Use::System)?;
            }
            let NewChunk { start, item } = self.live.new_chunks.remove(0);
            let key = Key::new(object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, start);
            self.insert(object::CHUNK_TREE, key, &item)?;
            let chunk = Chunk::decode(start, &item, self.sb().sector_size);
            let chunk = chunk.map_err(|bad| self.broken(format!("a new chunk is wrong: {bad:?}")))?;
            let bytes = chunk.bytes_per_device();
            for stripe in &chunk.stripes {
                let extent = RawDevExtent {
                    chunk_tree: object::CHUNK_TREE.into(),
                    chunk_objectid: object::FIRST_CHUNK_TREE.into(),
                    chunk_offset: start.into(),
                    length: bytes.into(),
                    chunk_tree_uuid: self.live.chunk_uuid,
                };
                let key = Key::new(stripe.devid, kind::DEV_EXTENT, stripe.offset);
                self.insert(object::DEV_TREE, key, extent.as_bytes())?;
                self.count_device_bytes(stripe.devid, bytes)?;
            }
            self.store_new_group(start)?;
        }
        Ok(())
    }

    fn store_new_group(&mut self, start: u64) -> Result<()> {
        let group = self.live.groups.by_start.get(&start).cloned();
        let group = group.ok_or_else(|| self.broken("a new chunk has no block group"))?;
        let key = Key::new(group.start, kind::BLOCK_GROUP_ITEM, group.len);
        self.insert(self.live.group_tree, key, group_item(&group).as_bytes())?;
        if self.live.has_free_space_tree {
            self.insert_free_space(&group)?;
        }
        Ok(())
    }

    fn count_device_bytes(&mut self, devid: u64, more: u64) -> Result<()> {
        let tree = self.tree(object::CHUNK_TREE)?;
        let key = Key::new(object::DEV_ITEMS, kind::DEV_ITEM, devid);
        let item = self
            .fs
            .forest
            .get(&tree, key, |data| read::<RawDevItem>(data, 0).ok_or_else(|| "it is too short".into()))?;
        let mut item = item.ok_or_else(|| self.broken(format!("device {devid} has no item")))?;
        item.bytes_used = item.bytes_used.get().saturating_add(more).into();
        self.put(object::CHUNK_TREE, key, item.as_bytes())?;
        self.set_device_item(devid, &item);
        Ok(())
    }

    /// Stores how much of each group is used.
    pub(super) fn store_groups(&mut self) -> Result<()> {
        let changed: Vec<u64> = self
            .live
            .groups
            .by_start
            .values()
            .filter(|group| group.changed)
            .map(|group| group.start)
            .collect();
        for start in changed {
            let Some(group) = self.live.groups.by_start.get_mut(&start) else { continue };
            group.changed = false;
            let key = Key::new(group.start, kind::BLOCK_GROUP_ITEM, group.len);
            let raw = group_item(group);
            self.put(self.live.group_tree, key, raw.as_bytes())?;
        }
        Ok(())
    }
}

fn group_item(group: &Group) -> RawBlockGroupItem {
    RawBlockGroupItem {
        used: group.used.into(),
        chunk_objectid: object::FIRST_CHUNK_TREE.into(),
        flags: group.flags.into(),
    }
}
