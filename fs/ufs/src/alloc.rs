//! Free space and inodes: which are taken, reserved, or wait to be freed; and the mark of an open session.
//!
//! Descriptors of groups are changed in memory and go into the batch at once, so that what is taken is marked
//! before a pointer leads to it. The summary area and the counts of the superblock are valid only while the
//! filesystem is marked as clean: they are written when it is closed.

use crate::layout::Fields;
use crate::layout::dinode::set_links;
use crate::layout::group_map::{GroupMap, INITEDIBLK};
use crate::layout::superblock::{Counts, Superblock};
use ivers_block::{BlockNo, BufferCache, ByteOffset};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, NameError, Result, Timestamp};
use ivers_write_ordering::{Change, OrderedError, Stage, Volume};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Filesystems with more groups are only read: their counts would take more than 32 MiB of memory.
pub(crate) const GROUPS_MAX: u32 = 1 << 20;
/// Descriptors of groups that are kept in memory.
const KEPT_GROUPS: usize = 64;
/// In lists of what is freed, inodes count from here on, and directories from twice as much: so they differ
/// from fragments.
const FREED_INODES: u64 = 1 << 62;
/// From here on, a number is that of an inode whose link count falls, with a turn above it.
const LOWERED_LINKS: u64 = 3 << 62;

struct State {
    /// Descriptors, as they are in the cache.
    groups: HashMap<u32, GroupMap>,
    counts: Vec<Counts>,
    total: Counts,
    /// Free blocks that are reserved for dirty pages.
    reserved: u64,
    /// Fragments that become free when the batch is durable.
    freed: u64,
    /// The bytes of the superblock.
    superblock: Vec<u8>,
    last_change: Option<Timestamp>,
    /// Link counts that fall when the batch is durable, with the turn of the change.
    lowered: HashMap<u32, (u32, u16)>,
    /// The turn of the last such change.
    turn: u32,
}

/// Space and inodes of a filesystem.
pub(crate) struct Allocator {
    sb: Superblock,
    cache: Arc<BufferCache>,
    place: String,
    state: RankedMutex<rank::Driver<10>, State>,
    keep_dirty_mark: AtomicBool,
}

impl Allocator {
    /// Reads the counts of all groups.
    pub fn load(sb: &Superblock, cache: &Arc<BufferCache>, place: &str) -> Result<Self> {
        let device = cache.device();
        let mut superblock = vec![0; sb.superblock_bytes as usize];
        device.read_at(ByteOffset(sb.at), &mut superblock)?;
        let mut summary = vec![0; sb.summary_bytes as usize];
        device.read_at(BlockNo(sb.summary_start).offset(sb.fragment_size), &mut summary)?;
        let fields = Fields::new(&summary, sb.order);
        let counts = (0..sb.groups as usize).map(|group| Counts::parse(&fields, group * 16));
        let state = State {
            groups: HashMap::new(),
            counts: counts.collect(),
            total: Counts::default(),
            reserved: 0,
            freed: 0,
            superblock,
            last_change: None,
            lowered: HashMap::new(),
            turn: 0,
        };
        let allocator = Self {
            sb: sb.clone(),
            cache: cache.clone(),
            place: place.to_owned(),
            state: RankedMutex::new(state),
            keep_dirty_mark: AtomicBool::new(false),
        };
        allocator.add_up(&mut allocator.state.lock());
        Ok(allocator)
    }

    fn add_up(&self, state: &mut State) {
        state.total = Counts::sum(&state.counts);
    }

    fn group_corrupt(&self, group: u32, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, group {group}", self.place))
    }

    /// Drops all descriptors from memory if there are many, and that of the group is none of them.
    fn make_room(&self, state: &mut State, group: u32) {
        if state.groups.len() >= KEPT_GROUPS && !state.groups.contains_key(&group) {
            // They are in the cache, too.
            state.groups.clear();
        }
    }

    fn read_group(&self, group: u32) -> Result<GroupMap> {
        let mut bytes = Vec::with_capacity(self.sb.block_size as usize);
        for nth in 0..u64::from(self.sb.frags_per_block) {
            let fragment = self.sb.structure(group, 1) + nth;
            bytes.extend_from_slice(&self.cache.get(BlockNo(fragment))?.read());
        }
        let parsed = GroupMap::parse(bytes, &self.sb, group);
        parsed.map_err(|what| self.group_corrupt(group, what))
    }

    /// Sets what is in use in a group.
    pub fn rebuild(
        &self,
        change: &Change<'_>,
        group: u32,
        is_free: impl Fn(u64) -> bool,
        is_used: impl Fn(u32) -> Option<bool>,
    ) -> Result<()> {
        let mut map = self.read_group(group)?;
        map.rebuild(is_free, is_used);
        let mut state = self.state.lock();
        self.make_room(&mut state, group);
        state.groups.insert(group, map);
        self.put_group(change, &mut state, group)
    }

    /// Adds the counts up after all groups were rebuilt.
    pub fn rebuilt(&self) {
        self.add_up(&mut self.state.lock());
    }

    /// Returns the descriptor of a group.
    fn group<'a>(&self, state: &'a mut State, group: u32) -> Result<&'a mut GroupMap> {
        self.make_room(state, group);
        match state.groups.entry(group) {
            std::collections::hash_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::hash_map::Entry::Vacant(free) => {
                let map = self.read_group(group)?;
                if state.counts.get(group as usize) != Some(&map.counts()) {
                    let what = "the counts of the group and of the summary area differ; run ivers check";
                    return Err(self.group_corrupt(group, what));
                }
                Ok(free.insert(map))
            }
        }
    }

    /// Puts the changed bytes of a descriptor into the batch, and takes over its counts.
    fn put_group(&self, change: &Change<'_>, state: &mut State, group: u32) -> Result<()> {
        let map = self.group(state, group)?;
        let (counts, changed) = (map.counts(), map.take_changed());
        let bytes = map.hashed_bytes();
        let size = self.sb.fragment_size as usize;
        for nth in changed {
            let buffer = self.cache.get(BlockNo(self.sb.structure(group, 1) + nth as u64))?;
            let part = &bytes[nth * size..(nth + 1) * size];
            if nth > 0 {
                change.put(&buffer, Stage::Fresh, |to| to.copy_from_slice(part));
                continue;
            }
            // Zeroed inodes are written in the first stage, and then this field counts them.
            change.put(&buffer, Stage::Fresh, |to| {
                to[..INITEDIBLK.start].copy_from_slice(&part[..INITEDIBLK.start]);
                to[INITEDIBLK.end..].copy_from_slice(&part[INITEDIBLK.end..]);
            });
            if buffer.read()[INITEDIBLK] != part[INITEDIBLK] {
                change.put(&buffer, Stage::Detach, |to| to[INITEDIBLK].copy_from_slice(&part[INITEDIBLK]));
            }
        }
        let known = &mut state.counts[group as usize];
        state.total = state.total.minus(known).plus(&counts);
        *known = counts;
        Ok(())
    }

    /// The groups, from one on.
    fn groups_from(&self, group: u32) -> impl Iterator<Item = u32> + use<> {
        let (first, groups) = (group.min(self.sb.groups - 1), self.sb.groups);
        (first..groups).chain(0..first)
    }

    /// Marks fragments of one group.
    fn mark(&self, state: &mut State, range: Range<u64>, free: bool) -> Result<u32> {
        let group = self.sb.group_of(range.start);
        let base = self.sb.group_base(group);
        let marked = self.group(state, group)?.mark_frags(range.start - base..range.end - base, free);
        marked.map_err(|what| self.group_corrupt(group, format!("{what}; run ivers check")))?;
        Ok(group)
    }

    /// Takes blocks, near a fragment if possible. `credit` of them are reserved.
    pub fn blocks(&self, change: &Change<'_>, near: u64, count: u64, credit: u64) -> Result<Vec<u64>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let others = state.reserved.saturating_sub(credit);
        if count == 0 || state.total.free_blocks < others.saturating_add(count) {
            return if count == 0 { Ok(Vec::new()) } else { Err(NameError::NoSpace.into()) };
        }
        let per_block = u64::from(self.sb.frags_per_block);
        let mut taken: Vec<u64> = Vec::new();
        let mut from = near;
        for group in self.groups_from(self.sb.group_of(near)) {
            let base = self.sb.group_base(group);
            let mut changed = false;
            while (taken.len() as u64) < count && state.counts[group as usize].free_blocks > 0 {
                let map = self.group(state, group)?;
                let nth = from.saturating_sub(base).min(u64::from(self.sb.frags_per_group));
                let Some(found) = map.find_block(nth) else { break };
                self.mark(state, base + found..base + found + per_block, false)?;
                taken.push(base + found);
                (from, changed) = (base + found + per_block, true);
            }
            if changed {
                self.put_group(change, state, group)?;
            }
            if taken.len() as u64 == count {
                state.reserved = others;
                return Ok(taken);
            }
            from = 0;
        }
        let what = "the groups have fewer free blocks than they count; run ivers check";
        Err(Error::corrupt(what, self.place.clone()))
    }

    /// Takes fewer fragments than a block has. `credit` blocks are reserved for them.
    pub fn frags(&self, change: &Change<'_>, near: u64, count: u64, credit: u64) -> Result<u64> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let others = state.reserved.saturating_sub(credit);
        let may_break = state.total.free_blocks > others;
        for group in self.groups_from(self.sb.group_of(near)) {
            let counts = state.counts[group as usize];
            let base = self.sb.group_base(group);
            let mut found = None;
            if counts.free_frags >= count {
                found = self.group(state, group)?.find_frags(count);
            }
            if found.is_none() && may_break && counts.free_blocks > 0 {
                found = self.group(state, group)?.find_block(near.saturating_sub(base));
            }
            let Some(found) = found else { continue };
            self.mark(state, base + found..base + found + count, false)?;
            self.put_group(change, state, group)?;
            state.reserved = others;
            return Ok(base + found);
        }
        Err(NameError::NoSpace.into())
    }

    /// Takes the fragments after others, if they are free. Returns whether they were.
    pub fn extend(&self, change: &Change<'_>, more: Range<u64>) -> Result<bool> {
        let per_block = u64::from(self.sb.frags_per_block);
        if more.start.is_multiple_of(per_block) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        let group = self.sb.group_of(more.start);
        let base = self.sb.group_base(group);
        if !self.group(&mut state, group)?.are_free(more.start - base..more.end - base) {
            return Ok(false);
        }
        self.mark(&mut state, more, false)?;
        self.put_group(change, &mut state, group)?;
        Ok(true)
    }

    /// Frees what was taken, and what nothing led to.
    pub fn cancel(&self, change: &Change<'_>, taken: &[Range<u64>], credit: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.reserved += credit;
        for range in taken {
            let group = self.mark(&mut state, range.clone(), true)?;
            self.put_group(change, &mut state, group)?;
        }
        Ok(())
    }

    /// Frees fragments that a durable pointer may still lead to.
    pub fn free(&self, change: &Change<'_>, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if range.clone().any(|fragment| self.sb.is_structure(fragment)) {
            let what = format!("an inode has fragments {range:?} of the filesystem itself");
            return Err(self.group_corrupt(self.sb.group_of(range.start), what));
        }
        self.state.lock().freed += range.end - range.start;
        change.free(range);
        Ok(())
    }

    /// Reserves blocks for dirty pages. `keep`: fragments that must stay free.
    pub fn reserve(&self, blocks: u64, keep: u64) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.reserved.saturating_add(blocks);
        let frags = wanted.saturating_mul(self.sb.frags_per_block.into()).saturating_add(keep);
        if blocks > 0 && (wanted > state.total.free_blocks || frags > self.free_frags(&state)) {
            return Err(NameError::NoSpace.into());
        }
        state.reserved = wanted;
        Ok(())
    }

    /// Releases reserved blocks.
    pub fn unreserve(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(blocks);
    }

    fn free_frags(&self, state: &State) -> u64 {
        let blocks = state.total.free_blocks.saturating_mul(self.sb.frags_per_block.into());
        blocks.saturating_add(state.total.free_frags)
    }

    /// Free fragments with those that become free soon, those that are not reserved, and free inodes.
    pub fn free_counts(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        let free = self.free_frags(&state).saturating_add(state.freed);
        let reserved = state.reserved.saturating_mul(self.sb.frags_per_block.into());
        (free, free.saturating_sub(reserved), state.total.free_inodes)
    }

    /// Takes an inode: of a file near its directory, of a directory in the group with the most free blocks.
    pub fn inode(&self, change: &Change<'_>, parent: u32, is_dir: bool) -> Result<u32> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let has_inodes = |group: &u32| state.counts[*group as usize].free_inodes > 0;
        let near = parent / self.sb.inodes_per_group;
        let group = match is_dir {
            false => self.groups_from(near).find(has_inodes),
            true => {
                let groups = self.groups_from(near).filter(has_inodes);
                // The first of several groups with as much space.
                groups.reduce(|best, other| {
                    let free = |group: u32| state.counts[group as usize].free_blocks;
                    if free(other) > free(best) { other } else { best }
                })
            }
        };
        let group = group.ok_or(NameError::NoSpace)?;
        let first = if group == 0 { crate::layout::superblock::ROOT } else { 0 };
        let map = self.group(state, group)?;
        let Some(nth) = map.find_inode(first) else {
            return Err(self.group_corrupt(group, "the group has fewer free inodes than it counts"));
        };
        let marked = map.mark_inode(nth, true, is_dir);
        let initialized = map.initialized_inodes();
        marked.map_err(|what| self.group_corrupt(group, what))?;
        if nth >= initialized {
            let per_block = self.sb.block_size / self.sb.inode_size();
            let end = (nth + 1).next_multiple_of(per_block).min(self.sb.inodes_per_group);
            if (initialized..end).any(|other| other != nth && map.is_inode_used(other)) {
                let what = format!("cg_initediblk is {initialized}, but a later inode is in use");
                return Err(self.group_corrupt(group, format!("{what}; run ivers check")));
            }
            map.set_initialized_inodes(end);
            self.initialize(change, group, initialized..end)?;
        }
        self.put_group(change, state, group)?;
        Ok(group * self.sb.inodes_per_group + nth)
    }

    /// Writes zeros to inodes that were never written. They fill whole blocks.
    fn initialize(&self, change: &Change<'_>, group: u32, inodes: Range<u32>) -> Result<()> {
        let per_block = self.sb.block_size / self.sb.inode_size();
        let first = inodes.start.next_multiple_of(per_block);
        for nth in (first..inodes.end).step_by(per_block as usize) {
            let (start, _) = self.sb.inode_place(group * self.sb.inodes_per_group + nth);
            for fragment in start..start + u64::from(self.sb.frags_per_block) {
                change.fresh(BlockNo(fragment)).map_err(order_error)?;
            }
        }
        Ok(())
    }

    /// Frees an inode that nothing led to.
    pub fn cancel_inode(&self, change: &Change<'_>, ino: u32, is_dir: bool) -> Result<()> {
        let mut state = self.state.lock();
        self.release_inode(change, &mut state, ino, is_dir)
    }

    fn release_inode(&self, change: &Change<'_>, state: &mut State, ino: u32, is_dir: bool) -> Result<()> {
        let group = ino / self.sb.inodes_per_group;
        let map = self.group(state, group)?;
        let marked = map.mark_inode(ino % self.sb.inodes_per_group, false, is_dir);
        marked.map_err(|what| self.group_corrupt(group, what))?;
        self.put_group(change, state, group)
    }

    /// Frees an inode that a durable name may still lead to.
    pub fn free_inode(&self, change: &Change<'_>, ino: u32, is_dir: bool) {
        let number = FREED_INODES * if is_dir { 2 } else { 1 } + u64::from(ino);
        change.free(number..number + 1);
    }

    /// Stores a link count after the batch is durable: until then the device can have one name more.
    pub fn lower_links(&self, change: &Change<'_>, ino: u32, links: u16) {
        let mut state = self.state.lock();
        state.turn = (state.turn + 1) % (1 << 30);
        let turn = state.turn;
        state.lowered.insert(ino, (turn, links));
        drop(state);
        let number = LOWERED_LINKS | u64::from(turn) << 32 | u64::from(ino);
        change.free(number..number + 1);
    }

    /// Forgets a link count that was to be stored, because the inode is stored with a later one.
    pub fn keep_links(&self, ino: u32) {
        self.state.lock().lowered.remove(&ino);
    }

    /// Stores the link counts of a range of numbers.
    fn release_links(&self, change: &Change<'_>, state: &mut State, numbers: Range<u64>) -> Result<()> {
        for number in numbers {
            let (ino, turn) = (number as u32, (number >> 32) as u32 % (1 << 30));
            let Some((_, links)) = state.lowered.get(&ino).copied().filter(|known| known.0 == turn) else {
                continue;
            };
            state.lowered.remove(&ino);
            let (fragment, at) = self.sb.inode_place(ino);
            let buffer = self.cache.get(BlockNo(fragment))?;
            let end = at + self.sb.inode_size() as usize;
            change.put(&buffer, Stage::Fresh, |bytes| set_links(&mut bytes[at..end], &self.sb, links));
        }
        Ok(())
    }

    /// Records the time of a change, for the superblock.
    pub fn note_change_time(&self, time: Timestamp) {
        let mut state = self.state.lock();
        state.last_change = state.last_change.max(Some(time));
    }

    /// Keeps the dirty mark when the filesystem is closed.
    pub fn keep_dirty_mark(&self) {
        self.keep_dirty_mark.store(true, Ordering::Release);
    }

    fn release_range(&self, change: &Change<'_>, state: &mut State, range: &Range<u64>) -> Result<()> {
        if range.start >= LOWERED_LINKS {
            return self.release_links(change, state, range.clone());
        }
        if range.start >= FREED_INODES {
            let is_dir = range.start >= 2 * FREED_INODES;
            let first = range.start % FREED_INODES;
            let inodes = first..first + (range.end - range.start);
            return inodes
                .into_iter()
                .try_for_each(|ino| self.release_inode(change, state, ino as u32, is_dir));
        }
        state.freed = state.freed.saturating_sub(range.end - range.start);
        // The next user of a fragment must not find its old contents in the cache.
        range.clone().for_each(|fragment| self.cache.forget(BlockNo(fragment)));
        let mut start = range.start;
        while start < range.end {
            let group = self.sb.group_of(start);
            let end = range.end.min(self.sb.group_base(group + 1));
            self.mark(state, start..end, true)?;
            self.put_group(change, state, group)?;
            start = end;
        }
        Ok(())
    }

    /// Puts bytes of the device into the batch that may begin anywhere in a fragment.
    fn put_bytes(&self, change: &Change<'_>, stage: Stage, at: u64, bytes: &[u8]) -> Result<()> {
        let size = u64::from(self.sb.fragment_size);
        let mut done = 0;
        while done < bytes.len() {
            let byte = at + done as u64;
            let start = (byte % size) as usize;
            let len = (size as usize - start).min(bytes.len() - done);
            let part = &bytes[done..done + len];
            let buffer = self.cache.get(BlockNo(byte / size))?;
            change.put(&buffer, stage, |to| to[start..start + len].copy_from_slice(part));
            done += len;
        }
        Ok(())
    }

    /// Writes all counts.
    fn put_counts(&self, change: &Change<'_>, state: &mut State) -> Result<()> {
        let mut summary = vec![0; state.counts.len() * 16];
        Counts::put_all(&mut summary, self.sb.order, &state.counts);
        let byte = BlockNo(self.sb.summary_start).offset(self.sb.fragment_size);
        self.put_bytes(change, Stage::Fresh, byte.0, &summary)?;
        let seconds = state.last_change.map(|time| time.sec);
        self.sb.put_counts(&mut state.superblock, &state.total, seconds);
        Ok(())
    }

    fn put_mark(&self, change: &Change<'_>, dirty: bool) -> Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if !dirty {
            self.put_counts(change, state)?;
            self.sb.put_mark(&mut state.superblock, true);
            self.put_bytes(change, Stage::Fresh, self.sb.at, &state.superblock)?;
        }
        // The mark goes when the counts are durable.
        let stage = if dirty { Stage::Fresh } else { Stage::Cut };
        self.sb.put_mark(&mut state.superblock, dirty);
        self.put_bytes(change, stage, self.sb.at, &state.superblock)
    }
}

/// Converts an error of write ordering.
pub(crate) fn order_error(error: OrderedError) -> Error {
    match error {
        OrderedError::Block(error) => error.into(),
        other => Error::io(other),
    }
}

fn stopped(error: Error) -> OrderedError {
    OrderedError::Stopped { cause: error.to_string() }
}

impl Volume for Allocator {
    fn mark(&self, change: &Change<'_>, dirty: bool) -> ivers_write_ordering::Result<()> {
        if !dirty && self.keep_dirty_mark.load(Ordering::Acquire) {
            return Ok(());
        }
        self.put_mark(change, dirty).map_err(stopped)
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> ivers_write_ordering::Result<()> {
        let mut state = self.state.lock();
        let mut each = freed.iter();
        each.try_for_each(|range| self.release_range(change, &mut state, range)).map_err(stopped)
    }
}
