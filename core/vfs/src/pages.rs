//! The page cache of one file.
//!
//! A page is clean, dirty, under write-back, or both of the latter: a page that is written again during its
//! write-back is dirty again and is written back again. Write-back copies pages first, so that a writer never
//! waits for the device.
//!
//! The map has one lock; no driver is called under it. `Attr::size` grows under it together with the page
//! that contains the new bytes: a write-back that sees the page sees the size.
//!
//! The driver reads and writes units of one or more pages ([`FsInfo::io_unit`](crate::FsInfo::io_unit)). The
//! pages of a unit below the end of the file become dirty together, and are written together. So a page of a
//! dirty unit that is not in the map was past the end when the unit became dirty: it consists of zeros.
//!
//! A server may keep written bytes in its memory only ([`Written::Unstable`](crate::Written)). Such a page
//! stays, and counts as dirty, until a commit; if the server restarts before, the page is dirty again.

use crate::driver::Written;
use crate::memory::Memory;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

/// Page size in bytes.
pub(crate) const PAGE: usize = 4096;
pub(crate) const PAGE64: u64 = PAGE as u64;
/// Longest run of pages that one write-back call gets.
pub(crate) const RUN_PAGES: usize = 256;
const READAHEAD_MAX_PAGES: u32 = 256;

#[derive(Debug)]
struct Page {
    data: Box<[u8; PAGE]>,
    dirty: bool,
    writeback: bool,
    referenced: bool,
    /// Whether the driver may lose what it was given: then it is in [`Map::unstable`].
    unstable: bool,
}

/// A write that is not committed. It lies beside the map of pages, because few pages have one.
#[derive(Debug, Clone, Copy)]
struct UnstableWrite {
    /// The position of its run among all unstable ones of the file.
    run: u64,
    /// [`Map::generation`] at its end.
    generation: u64,
}

impl Page {
    fn new(data: Box<[u8; PAGE]>, referenced: bool) -> Self {
        Self { data, dirty: false, writeback: false, referenced, unstable: false }
    }

    /// Whether it is the only durable or newest copy of its bytes: it must stay in memory.
    fn must_stay(&self) -> bool {
        self.dirty || self.writeback || self.unstable
    }
}

#[derive(Debug, Default)]
struct Map {
    pages: BTreeMap<u64, Page>,
    dirty: BTreeSet<u64>,
    /// Pages with [`Page::unstable`].
    unstable: BTreeMap<u64, UnstableWrite>,
    /// How many unstable runs have ended.
    unstable_runs: u64,
    /// How many pages are under write-back.
    writeback: u64,
    /// If false, every page must stay: no search finds a clean one. A writer of a large file has many pages.
    has_clean: bool,
    /// Raised when clean pages became outdated: what was read from the driver before is not added after.
    generation: u64,
    hand: u64,
    readahead_next: u64,
    readahead_pages: u32,
}

/// A map that is made when it is first changed: most cached inodes have no pages.
#[derive(Debug, Default)]
struct LazyMap(Option<Box<Map>>);

static EMPTY: Map = Map {
    pages: BTreeMap::new(),
    dirty: BTreeSet::new(),
    unstable: BTreeMap::new(),
    unstable_runs: 0,
    writeback: 0,
    has_clean: false,
    generation: 0,
    hand: 0,
    readahead_next: 0,
    readahead_pages: 0,
};

impl Deref for LazyMap {
    type Target = Map;
    fn deref(&self) -> &Map {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl DerefMut for LazyMap {
    fn deref_mut(&mut self) -> &mut Map {
        self.0.get_or_insert_default()
    }
}

/// The page cache of one inode.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    map: RankedMutex<rank::PageMap, LazyMap>,
    /// Whether the map has pages: checked without its lock.
    has_pages: AtomicBool,
    /// Whether pages are unstable: checked without the lock of the map.
    has_unstable: AtomicBool,
    /// See [`Pages::take_outdated`].
    outdated: AtomicBool,
    /// How often unstable pages became dirty again.
    redirtied: AtomicU64,
}

/// A run of pages under write-back.
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
    pages: Vec<u64>,
}

/// What to read from the driver.
pub(crate) struct ReadPlan {
    /// Start of the first unit.
    pub(crate) offset: u64,
    /// Whole units, in bytes.
    pub(crate) len: usize,
    /// Pages from this offset on were cached, perhaps with newer bytes.
    pub(crate) missing_until: u64,
    /// See [`Pages::fill`].
    pub(crate) generation: u64,
}

/// Pages that were read for a write which covers only a part of their units.
#[derive(Default)]
pub(crate) struct Loaded {
    pages: Vec<(u64, Box<[u8; PAGE]>)>,
    generation: u64,
}

impl Loaded {
    /// Adds a unit that was read as [`Step::NeedsRead`] requested.
    pub(crate) fn add(&mut self, offset: u64, generation: u64, data: &[u8]) {
        self.generation = generation;
        self.pages
            .extend((index(offset)..).zip(data.chunks_exact(PAGE)).map(|(at, bytes)| (at, page_of(bytes))));
    }

    fn has(&self, page: u64) -> bool {
        self.pages.iter().any(|(at, _)| *at == page)
    }

    fn take(&mut self, page: u64) -> Option<Box<[u8; PAGE]>> {
        let found = self.pages.iter().position(|(at, _)| *at == page)?;
        Some(self.pages.swap_remove(found).1)
    }
}

/// Result of a write into the cache.
pub(crate) enum Step {
    /// All bytes are in the cache. `newly_dirty`: a clean page became dirty.
    Done { newly_dirty: bool },
    /// Read the unit at `offset` first, and add it to what is loaded: the write covers only a part of it.
    NeedsRead { offset: u64, generation: u64 },
}

fn index(offset: u64) -> u64 {
    offset / PAGE64
}

/// A page with these bytes, as many as a page has. It is not zeroed before.
fn page_of(bytes: &[u8]) -> Box<[u8; PAGE]> {
    Box::<[u8]>::from(bytes).try_into().expect("the length of a page")
}

impl Pages {
    /// Overwrites bytes below the size within one page that is already dirty: the path that must cost
    /// nothing.
    #[inline]
    pub(crate) fn overwrite_dirty(&self, offset: u64, data: &[u8]) -> bool {
        let start = (offset % PAGE64) as usize;
        if start + data.len() > PAGE {
            return false;
        }
        let mut map = self.map.lock();
        let Some(page) = map.pages.get_mut(&index(offset)) else { return false };
        if !page.dirty {
            return false;
        }
        page.data[start..start + data.len()].copy_from_slice(data);
        page.referenced = true;
        true
    }

    /// Whether every page of the range is dirty, and so has its reservation.
    pub(crate) fn all_dirty(&self, offset: u64, len: u64) -> bool {
        let map = self.map.lock();
        (index(offset)..=index(offset + len - 1)).all(|at| map.pages.get(&at).is_some_and(|page| page.dirty))
    }

    /// Writes into the cache. Pages of units that the write covers in part must be cached, be in `loaded`, or
    /// be past `size` (then they are zeros). `grow` runs under the map's lock once the bytes are there.
    pub(crate) fn write(
        &self,
        offset: u64,
        data: &[u8],
        size: u64,
        loaded: &mut Loaded,
        memory: &Memory,
        grow: impl FnOnce(),
    ) -> Step {
        let end = offset + data.len() as u64;
        let (first, last) = (index(offset), index(end - 1));
        let (begin, behind) = (memory.unit_start(first), memory.next_unit(last + 1));
        let mut map = self.map.lock();
        if loaded.generation != map.generation {
            *loaded = Loaded { pages: Vec::new(), generation: map.generation };
        }
        for at in (begin..=first).chain(last..behind) {
            let (start, page_end) = (at * PAGE64, (at + 1) * PAGE64);
            let partial = offset > start || end < page_end;
            if partial && start < size && !map.pages.contains_key(&at) && !loaded.has(at) {
                let offset = memory.unit_start(at) * PAGE64;
                return Step::NeedsRead { offset, generation: map.generation };
            }
        }
        let mut newly_dirty = 0u64;
        let mut added = 0u64;
        for at in begin..behind.min(size.max(end).div_ceil(PAGE64)) {
            let map = &mut **map;
            let (from, to) = (offset.max(at * PAGE64), end.min((at + 1) * PAGE64));
            let bytes = if from < to { &data[(from - offset) as usize..(to - offset) as usize] } else { &[] };
            let page = match map.pages.entry(at) {
                Entry::Vacant(vacant) if bytes.len() == PAGE => {
                    added += 1;
                    vacant.insert(Page::new(page_of(bytes), true))
                }
                entry => {
                    let page = entry.or_insert_with(|| {
                        added += 1;
                        Page::new(loaded.take(at).unwrap_or_else(|| Box::new([0; PAGE])), true)
                    });
                    let start = (from % PAGE64) as usize;
                    page.data[start..start + bytes.len()].copy_from_slice(bytes);
                    page
                }
            };
            page.referenced = true;
            if !page.dirty {
                if !page.must_stay() {
                    newly_dirty += 1;
                }
                page.dirty = true;
                map.dirty.insert(at);
            }
        }
        memory.budget.charge(added * PAGE64);
        memory.newly_dirty(newly_dirty);
        self.has_pages.store(true, Ordering::Relaxed);
        grow();
        Step::Done { newly_dirty: newly_dirty > 0 }
    }

    /// Copies cached bytes up to the first missing page. Returns how many.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let mut map = self.map.lock();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let Some(page) = map.pages.get_mut(&index(at)) else { break };
            page.referenced = true;
            let start = (at % PAGE64) as usize;
            let len = (PAGE - start).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&page.data[start..start + len]);
            done += len;
        }
        if done > 0 {
            map.readahead_next = index(offset + done as u64 - 1) + 1;
        }
        done
    }

    /// How many of the `wanted` bytes at `offset` precede the first cached page.
    pub(crate) fn missing_from(&self, offset: u64, wanted: usize) -> usize {
        if !self.has_pages() {
            return wanted;
        }
        let end = offset + wanted as u64;
        let next = self.map.lock().pages.range(index(offset)..end.div_ceil(PAGE64)).next().map(|(at, _)| *at);
        next.map_or(wanted, |at| (at * PAGE64).saturating_sub(offset) as usize)
    }

    /// What to read for a miss at `offset` when `wanted` bytes remain: the units of those, more if the file
    /// is read in order, fewer if a page in between is cached.
    pub(crate) fn plan_read(&self, offset: u64, wanted: usize, size: u64, memory: &Memory) -> ReadPlan {
        let first = index(offset);
        let last_wanted = index(offset + wanted.max(1) as u64 - 1);
        let wanted_pages = last_wanted - first + 1;
        let mut map = self.map.lock();
        let in_order = first == map.readahead_next || (first == 0 && map.readahead_pages == 0);
        map.readahead_pages =
            if in_order { (map.readahead_pages * 2).clamp(8, READAHEAD_MAX_PAGES) } else { 1 };
        let plan = wanted_pages.max(u64::from(map.readahead_pages)).min(u64::from(READAHEAD_MAX_PAGES));
        let file_pages = size.div_ceil(PAGE64).saturating_sub(first).max(1);
        let plan = plan.min(file_pages);
        let next_cached = map.pages.range(first + 1..).next().map_or(u64::MAX, |(at, _)| *at);
        let begin = memory.unit_start(first);
        let end = memory.next_unit(first + plan.min(next_cached - first));
        ReadPlan {
            offset: begin * PAGE64,
            len: (end - begin) as usize * PAGE,
            missing_until: next_cached.min(end) * PAGE64,
            generation: map.generation,
        }
    }

    /// The generation, to be taken before a read whose pages are added later.
    pub(crate) fn generation(&self) -> u64 {
        self.map.lock().generation
    }

    /// Adds pages that were read from the driver, except those added meanwhile. Adds nothing if clean pages
    /// became outdated after `generation` was taken: these may be as old.
    pub(crate) fn fill(&self, offset: u64, data: &[u8], generation: u64, memory: &Memory) {
        let mut map = self.map.lock();
        if map.generation != generation {
            return;
        }
        let mut added = 0;
        for (at, bytes) in (index(offset)..).zip(data.chunks_exact(PAGE)) {
            map.pages.entry(at).or_insert_with(|| {
                added += 1;
                Page::new(page_of(bytes), false)
            });
        }
        map.has_clean |= added > 0;
        memory.budget.charge(added * PAGE64);
        self.has_pages.store(true, Ordering::Relaxed);
    }

    /// Takes the next run of dirty units that overlap `from..to`. `size` is called under the map's lock;
    /// pages past it stay.
    pub(crate) fn begin_run(
        &self,
        from: u64,
        to: u64,
        memory: &Memory,
        size: impl FnOnce() -> u64,
    ) -> Option<Run> {
        let unit = memory.unit_pages;
        let mut map = self.map.lock();
        let size = size();
        // Looked up before the map is made: unmounting calls this for each inode.
        let begin = memory.unit_start(*map.dirty.range(memory.unit_start(index(from))..).next()?);
        let map = &mut **map;
        let behind = to.min(size).div_ceil(PAGE64).min(begin + RUN_PAGES as u64);
        if begin >= behind {
            return None;
        }
        let is_dirty = |first: &u64| map.dirty.range(*first..*first + unit).next().is_some();
        let units = (begin..behind).step_by(unit as usize).take_while(is_dirty).count() as u64;
        let end = begin + units * unit;
        let bytes = size.min(end * PAGE64) - begin * PAGE64;
        let data = Vec::with_capacity(bytes as usize);
        let mut run = Run { offset: begin * PAGE64, data, pages: Vec::new() };
        for at in begin..end.min(size.div_ceil(PAGE64)) {
            let len = (size - at * PAGE64).min(PAGE64) as usize;
            match map.pages.get_mut(&at) {
                Some(page) => {
                    run.data.extend_from_slice(&page.data[..len]);
                    if page.dirty {
                        page.dirty = false;
                        page.writeback = true;
                        map.dirty.remove(&at);
                        if std::mem::take(&mut page.unstable) {
                            map.unstable.remove(&at);
                        }
                        run.pages.push(at);
                    }
                }
                None => run.data.resize(run.data.len() + len, 0),
            }
        }
        map.writeback += run.pages.len() as u64;
        Some(run)
    }

    /// Ends the write-back of a run. If it failed (`None`), its pages are dirty again.
    pub(crate) fn end_run(&self, run: &Run, written: Option<Written>, memory: &Memory) {
        let mut map = self.map.lock();
        let map = &mut **map;
        let mut cleaned = 0;
        let unstable = UnstableWrite { run: map.unstable_runs, generation: map.generation };
        if written == Some(Written::Unstable) {
            map.unstable_runs += 1;
            self.has_unstable.store(true, Ordering::Release);
        }
        for at in &run.pages {
            let Some(page) = map.pages.get_mut(at) else { continue };
            map.writeback -= u64::from(std::mem::take(&mut page.writeback));
            match written {
                _ if page.dirty => {}
                Some(Written::Durable) => {}
                Some(Written::Unstable) => {
                    page.unstable = true;
                    map.unstable.insert(*at, unstable);
                }
                None => {
                    page.dirty = true;
                    map.dirty.insert(*at);
                }
            }
            if !page.must_stay() {
                cleaned += 1;
            }
        }
        map.has_clean |= cleaned > 0;
        memory.no_longer_dirty(cleaned);
    }

    /// Ends the write-back of a run whose data is lost: drops its pages, except those written again
    /// meanwhile. Returns the dropped ranges in bytes.
    pub(crate) fn lose_run(&self, run: &Run, memory: &Memory) -> Vec<(u64, u64)> {
        let mut map = self.map.lock();
        let mut lost: Vec<(u64, u64)> = Vec::new();
        let mut pages = 0;
        for at in &run.pages {
            let map = &mut **map;
            let Some(page) = map.pages.get_mut(at) else { continue };
            map.writeback -= u64::from(std::mem::take(&mut page.writeback));
            if page.dirty {
                continue;
            }
            map.pages.remove(at);
            pages += 1;
            match lost.last_mut() {
                Some((start, len)) if *start + *len == at * PAGE64 => *len += PAGE64,
                _ => lost.push((at * PAGE64, PAGE64)),
            }
        }
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        }
        memory.no_longer_dirty(pages);
        memory.budget.uncharge(pages * PAGE64);
        lost
    }

    /// Drops everything from `size` on and zeroes the rest of its page. Returns the dirty ranges in bytes
    /// that were dropped, without the rest of a unit that is kept.
    pub(crate) fn truncate(&self, size: u64, memory: &Memory) -> Vec<(u64, u64)> {
        let tail = (size % PAGE64) as usize;
        if tail != 0 {
            let mut map = self.map.lock();
            if let Some(page) = map.pages.get_mut(&index(size)) {
                page.data[tail..].fill(0);
            }
        }
        let kept = size.next_multiple_of(memory.unit_bytes());
        let mut dropped = self.drop_pages(size.div_ceil(PAGE64), u64::MAX, memory);
        dropped.retain_mut(|(start, len)| {
            let cut = kept.saturating_sub(*start).min(*len);
            (*start, *len) = (*start + cut, *len - cut);
            *len > 0
        });
        dropped
    }

    /// Drops the pages `first..end`, also dirty ones. Returns the dropped dirty ranges in bytes.
    pub(crate) fn drop_pages(&self, first: u64, end: u64, memory: &Memory) -> Vec<(u64, u64)> {
        if !self.has_pages.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut map = self.map.lock();
        // Not by splitting the map: putting back what follows would cost as much as all of it.
        let dropped = if end == u64::MAX {
            map.pages.split_off(&first)
        } else {
            let within: Vec<u64> = map.pages.range(first..end.max(first)).map(|(at, _)| *at).collect();
            within.into_iter().filter_map(|at| map.pages.remove_entry(&at)).collect()
        };
        let mut dirty: Vec<(u64, u64)> = Vec::new();
        let mut uncounted = 0;
        for (at, page) in &dropped {
            if page.must_stay() {
                uncounted += 1;
            }
            map.writeback -= u64::from(page.writeback);
            if page.unstable {
                map.unstable.remove(at);
            }
            if page.dirty {
                map.dirty.remove(at);
                match dirty.last_mut() {
                    Some((start, len)) if *start + *len == at * PAGE64 => *len += PAGE64,
                    _ => dirty.push((at * PAGE64, PAGE64)),
                }
            }
        }
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        }
        memory.no_longer_dirty(uncounted);
        memory.budget.uncharge(dropped.len() as u64 * PAGE64);
        dirty
    }

    /// Drops all clean pages, which are outdated.
    pub(crate) fn drop_clean(&self, memory: &Memory) {
        let mut map = self.map.lock();
        map.generation += 1;
        let before = map.pages.len();
        if std::mem::take(&mut map.has_clean) {
            map.pages.retain(|_, page| page.must_stay());
        }
        debug_assert!(map.pages.values().all(Page::must_stay));
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        } else {
            self.outdated.store(true, Ordering::Release);
        }
        memory.budget.uncharge((before - map.pages.len()) as u64 * PAGE64);
    }

    /// Evicts clean pages by second chance, looking at up to `scan` pages. Returns how many.
    pub(crate) fn shrink(&self, scan: usize, memory: &Memory) -> u64 {
        if !self.has_pages.load(Ordering::Relaxed) {
            return 0;
        }
        let mut map = self.map.lock();
        let map = &mut **map;
        let mut victims = Vec::new();
        let mut next = None;
        for (seen, (at, page)) in map.pages.range_mut(map.hand..).enumerate() {
            if seen == scan {
                next = Some(*at);
                break;
            }
            if page.referenced {
                page.referenced = false;
            } else if !page.must_stay() {
                victims.push(*at);
            }
        }
        map.hand = next.unwrap_or(0);
        for at in &victims {
            map.pages.remove(at);
        }
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        }
        memory.budget.uncharge(victims.len() as u64 * PAGE64);
        victims.len() as u64
    }

    /// Whether a page is dirty or unstable.
    pub(crate) fn is_dirty(&self) -> bool {
        if !self.has_pages.load(Ordering::Relaxed) {
            return false;
        }
        let map = self.map.lock();
        !map.dirty.is_empty() || !map.unstable.is_empty()
    }

    /// How many unstable runs have ended: a commit that begins after this call covers these.
    pub(crate) fn unstable_runs(&self) -> u64 {
        if !self.has_unstable.load(Ordering::Acquire) {
            return 0;
        }
        self.map.lock().unstable_runs
    }

    /// Whether pages may be unstable.
    pub(crate) fn has_unstable(&self) -> bool {
        self.has_unstable.load(Ordering::Acquire)
    }

    /// Whether pages that must stay may be older than the server's since the last call. They can be dropped
    /// once they are committed.
    pub(crate) fn take_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire) && self.outdated.swap(false, Ordering::AcqRel)
    }

    /// What [`Pages::take_outdated`] returned still holds.
    pub(crate) fn note_outdated(&self) {
        self.outdated.store(true, Ordering::Release);
    }

    /// How often unstable pages became dirty again.
    pub(crate) fn redirtied(&self) -> u64 {
        self.redirtied.load(Ordering::Acquire)
    }

    /// The first `runs` unstable runs are durable. Pages that became outdated meanwhile are dropped.
    pub(crate) fn committed(&self, runs: u64, memory: &Memory) {
        if !self.has_unstable.load(Ordering::Acquire) {
            return;
        }
        let mut map = self.map.lock();
        let map = &mut **map;
        let (mut cleaned, mut dropped) = (0, 0);
        map.unstable.retain(|at, write| {
            let Some(page) = map.pages.get_mut(at) else { return false };
            if write.run >= runs {
                return true;
            }
            page.unstable = false;
            if !page.must_stay() {
                cleaned += 1;
                if write.generation != map.generation {
                    map.pages.remove(at);
                    dropped += 1;
                }
            }
            false
        });
        map.has_clean |= cleaned > dropped;
        self.has_unstable.store(!map.unstable.is_empty(), Ordering::Release);
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        }
        memory.no_longer_dirty(cleaned);
        memory.budget.uncharge(dropped * PAGE64);
    }

    /// Makes the unstable pages of `from..to` dirty again. Returns whether there were any.
    pub(crate) fn redirty(&self, from: u64, to: u64) -> bool {
        let mut map = self.map.lock();
        let map = &mut **map;
        let range = index(from)..to.div_ceil(PAGE64).max(index(from));
        let again: Vec<u64> = map.unstable.range(range).map(|(at, _)| *at).collect();
        for at in &again {
            map.unstable.remove(at);
            if let Some(page) = map.pages.get_mut(at) {
                (page.unstable, page.dirty) = (false, true);
                map.dirty.insert(*at);
            }
        }
        if !again.is_empty() {
            self.redirtied.fetch_add(1, Ordering::Release);
        }
        !again.is_empty()
    }

    /// Runs `f` under the map's lock, with whether a page is dirty, under write-back or unstable.
    pub(crate) fn with_unwritten<T>(&self, f: impl FnOnce(bool) -> T) -> T {
        let map = self.map.lock();
        f(!map.dirty.is_empty() || map.writeback > 0 || !map.unstable.is_empty())
    }

    /// Runs `f` under the map's lock, with whether a page is dirty or under write-back.
    pub(crate) fn with_unsent<T>(&self, f: impl FnOnce(bool) -> T) -> T {
        let map = self.map.lock();
        f(!map.dirty.is_empty() || map.writeback > 0)
    }

    /// Whether there is any page.
    pub(crate) fn has_pages(&self) -> bool {
        self.has_pages.load(Ordering::Relaxed)
    }

    /// The first byte from `offset` on and before `end` in a page that is dirty, under write-back or
    /// unstable.
    pub(crate) fn next_dirty(&self, offset: u64, end: u64) -> Option<u64> {
        let map = self.map.lock();
        let (_, at) = map
            .pages
            .range(index(offset)..end.div_ceil(PAGE64).max(index(offset)))
            .find(|(_, page)| page.must_stay())
            .map(|(at, page)| (page, *at))?;
        Some(offset.max(at * PAGE64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_block::Budget;
    use std::sync::Arc;

    /// Write-back and eviction visit each cached inode.
    #[test]
    fn a_file_without_pages_gets_no_map() {
        let memory = Memory::new(Arc::new(Budget::unlimited()), 1 << 20, PAGE64);
        let pages = Pages::default();
        assert!(pages.begin_run(0, u64::MAX, &memory, || 0).is_none());
        assert!(pages.drop_pages(0, u64::MAX, &memory).is_empty());
        assert_eq!(pages.shrink(100, &memory), 0);
        assert!(!pages.with_unwritten(|unwritten| unwritten));
        assert!(pages.map.lock().0.is_none());
    }

    /// A short last page that a writer changes while it is written back.
    #[test]
    fn a_short_page_is_taken_again_if_the_file_has_grown() {
        for unit in [PAGE64, 4 * PAGE64] {
            let memory = Memory::new(Arc::new(Budget::unlimited()), 1 << 20, unit);
            let pages = Pages::default();
            let write = |data: &[u8]| {
                pages.write(unit, data, unit, &mut Loaded::default(), &memory, || ());
            };
            let next = |from, size| pages.begin_run(from, u64::MAX, &memory, || size);
            let taken = |run: &Run| (run.offset, run.data.len());
            write(b"again");
            let first = next(0, unit + 5).expect("a dirty page");
            assert_eq!(taken(&first), (unit, 5));
            write(b"again");
            pages.end_run(&first, Some(Written::Durable), &memory);
            assert_eq!(memory.dirty_bytes(), PAGE64, "what was written last is still to be sent");
            write(b"and again");
            let second = next(unit + 5, unit + 9).expect("a dirty page");
            assert_eq!(taken(&second), (unit, 9));
            pages.end_run(&second, Some(Written::Durable), &memory);
            assert_eq!(memory.dirty_bytes(), 0);
        }
    }
}
