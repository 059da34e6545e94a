//! Directory caches: in `DOS\4` and `DOS\5`, a list of blocks beside each directory has a copy of its
//! entries' headers, one record for each. A program can list the directory without reading every header
//! (FAQ 4.7).
//!
//! This driver lists directories by the headers, and maintains the caches for other systems:
//!
//! - The *blocks* of a cache are valid at any time. A new block is complete before anything leads to it
//!   ([`Stage::Fresh`]). A removed block is freed after the batch that removed it. Everything else in a
//!   cache changes in [`Stage::Detach`], before the entry is added.
//! - The *records* must be valid where the bitmap must be: on a cleanly closed volume. A change that may
//!   need space (a name, a comment) changes its record first. Dates, sizes, protection and owners do not
//!   change the length of a record: their entries are noted ([`DirCaches::stale`]), and copied when the
//!   volume is closed.
//! - After a crash, the first mount for writing compares every cache with the headers and repairs it before
//!   it writes anything else.

use crate::bitmap::AllocSource;
use crate::layout::{
    Block, T_DIRCACHE, cache_record, cache_records, dirc, get_block, get32, head, put_block, put_tail_block,
    put32, record, tail, tail_block,
};
use crate::volume::{Affs, CycleCheck, Header};
use ivers_block::BufferRead;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, NameError, Result};
use ivers_write_ordering::{Change, Stage};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// The state of the directory caches in memory.
#[derive(Default)]
pub(crate) struct DirCaches {
    /// Held while a cache is changed. Taken under [`Affs::chain_lock`].
    update_lock: RankedMutex<rank::Driver<10>, ()>,
    /// Headers that have changed and Drops the note on a block whose header was deleted.s have not.
    stale: RankedMutex<rank::Leaf, BTreeSet<Block>>,
}

/// A block of a cache.
pub(crate) struct CacheBlock {
    pub block: Block,
    bytes: BufferRead,
}

/// The planned contents of a cache block.
struct PlannedBlock<'a> {
    block: Block,
    /// The current contents. `None` for a new block.
    old_bytes: Option<&'a [u8]>,
    records: Vec<Cow<'a, [u8]>>,
}

impl PlannedBlock<'_> {
    fn len(&self) -> usize {
        self.records.iter().map(|record| record.len()).sum()
    }

    fn is_unchanged(&self, next: Block) -> bool {
        let Some(old_bytes) = self.old_bytes else { return false };
        let mut rest = &old_bytes[dirc::LIST..];
        get32(old_bytes, dirc::RECORDS) as usize == self.records.len()
            && get_block(old_bytes, dirc::NEXT) == next
            && self.records.iter().all(|record| match rest.split_at_checked(record.len()) {
                Some((first, remaining)) => {
                    rest = remaining;
                    *first == **record
                }
                None => false,
            })
    }
}

/// Records by header block.
type Records = BTreeMap<Block, Vec<u8>>;

impl Affs {
    /// Returns the blocks of a directory's cache.
    pub(crate) fn cache_blocks(&self, dir: Block) -> Result<Vec<CacheBlock>> {
        let mut blocks = Vec::new();
        if !self.geometry.variant.cached {
            return Ok(blocks);
        }
        let mut cycle = CycleCheck::new();
        let mut next = tail_block(&self.header(dir)?.bytes, tail::EXTENSION);
        while next != Block::NONE {
            let bytes = self.checked_buffer(next, "a directory cache block")?.read();
            let is_cache_block =
                get32(&bytes, head::TYPE) == T_DIRCACHE && get_block(&bytes, head::OWN_KEY) == next;
            if !is_cache_block || get_block(&bytes, dirc::PARENT) != dir {
                return Err(self.geometry.corrupt(next, format!("not a cache block of directory {dir}")));
            }
            if !cycle.step(next) {
                return Err(self
                    .geometry
                    .corrupt(next, format!("the cache blocks of directory {dir} form a cycle")));
            }
            let block = std::mem::replace(&mut next, get_block(&bytes, dirc::NEXT));
            blocks.push(CacheBlock { block, bytes });
        }
        Ok(blocks)
    }

    /// Returns the record of an entry. `name` replaces the name in the header, if given.
    pub(crate) fn record_of(&self, entry: &Header, name: Option<&[u8]>) -> Result<Vec<u8>> {
        let comment = self.comment_of(entry)?;
        let own = self.name_of(entry)?;
        Ok(cache_record(entry.block, &entry.bytes, name.unwrap_or(own), &comment))
    }

    /// Notes that a header has changed without changing the length of its record.
    pub(crate) fn mark_record_stale(&self, block: Block) {
        if self.geometry.variant.cached && block != self.geometry.root {
            self.caches.stale.lock().insert(block);
        }
    }

    /// Drops the note on a block whose header was deleted.
    pub(crate) fn forget_stale_record(&self, block: Block) {
        self.caches.stale.lock().remove(&block);
    }

    /// Removes the records of the entries `removed` from a directory's cache and adds `new`. On `NoSpace`
    /// nothing has changed.
    pub(crate) fn update_cache(
        &self,
        change: &Change<'_>,
        dir: Block,
        removed: &[Block],
        new: Option<Vec<u8>>,
        source: AllocSource,
    ) -> Result<()> {
        let new = new.map(|record| (get_block(&record, record::HEADER), record));
        self.write_records(change, dir, new.into_iter().collect(), |entry| !removed.contains(&entry), source)
    }

    /// Does the same for a change that can no longer be undone. Without space, the volume stays marked as
    /// dirty, and the next mount repairs the cache.
    pub(crate) fn update_cache_anyway(
        &self,
        change: &Change<'_>,
        dir: Block,
        removed: &[Block],
        new: Option<Vec<u8>>,
    ) -> Result<()> {
        match self.update_cache(change, dir, removed, new, AllocSource::ReservePool) {
            Err(Error::Name(NameError::NoSpace)) => {
                log::warn!(
                    "{}: no space for the cache of directory {dir}; the next mount repairs it",
                    self.geometry.place
                );
                self.bitmap.keep_dirty_mark();
                Ok(())
            }
            result => result,
        }
    }

    /// Compares the cache of a directory with the headers and repairs it.
    pub(crate) fn repair_cache(&self, change: &Change<'_>, dir: Block) -> Result<()> {
        let wanted = self.records_of_headers(dir)?;
        self.write_records(change, dir, wanted, |_| false, AllocSource::ReservePool)
    }

    fn records_of_headers(&self, dir: Block) -> Result<Records> {
        let mut wanted = Records::new();
        for slot in 0..self.geometry.table_len() {
            self.walk_chain(dir, slot, |_, entry| {
                wanted.insert(entry.block, self.record_of(&entry, None)?);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(wanted)
    }

    /// Copies the noted changes into the caches, before the dirty mark is removed.
    pub(crate) fn write_stale_records(&self) -> Result<()> {
        let stale = std::mem::take(&mut *self.caches.stale.lock());
        let mut by_directory: BTreeMap<Block, Records> = BTreeMap::new();
        for block in stale {
            let header = self.header(block)?;
            let record = self.record_of(&header, None)?;
            by_directory.entry(header.parent()).or_default().insert(block, record);
        }
        for (dir, wanted) in by_directory {
            self.write_records(&self.change()?, dir, wanted, |_| true, AllocSource::ReservePool)?;
        }
        Ok(())
    }

    /// Gives a directory's cache the records `wanted`, and keeps those of the others for which `keeps` is
    /// true.
    fn write_records(
        &self,
        change: &Change<'_>,
        dir: Block,
        mut wanted: Records,
        mut keeps: impl FnMut(Block) -> bool,
        source: AllocSource,
    ) -> Result<()> {
        if !self.geometry.variant.cached {
            return Ok(());
        }
        let _update = self.caches.update_lock.lock();
        let blocks = self.cache_blocks(dir)?;
        let readable = blocks.iter().all(|block| cache_records(&block.bytes).is_some());
        let mut others = if readable { Records::new() } else { self.records_of_headers(dir)? };
        let mut to_place = Vec::new();
        let mut plans: Vec<PlannedBlock<'_>> = Vec::new();
        for block in &blocks {
            let mut plan =
                PlannedBlock { block: block.block, old_bytes: Some(&block.bytes), records: Vec::new() };
            // If a block is damaged, all are filled again from the headers.
            for old in if readable { cache_records(&block.bytes).unwrap_or_default() } else { Vec::new() } {
                let entry = get_block(old, record::HEADER);
                match wanted.remove(&entry) {
                    Some(new) if new.len() <= old.len() => plan.records.push(Cow::Owned(new)),
                    Some(longer) => to_place.push(longer),
                    None if keeps(entry) => plan.records.push(Cow::Borrowed(old)),
                    None => {}
                }
            }
            plans.push(plan);
        }
        others.retain(|entry, _| !wanted.contains_key(entry) && keeps(*entry));
        to_place.extend(others.into_values().chain(wanted.into_values()));
        self.place_records(&mut plans, to_place);
        let mut removed: Vec<Block> =
            plans.iter().filter(|plan| plan.records.is_empty()).map(|plan| plan.block).collect();
        if removed.len() == plans.len() {
            // A directory has at least one cache block.
            removed.remove(0);
        }
        plans.retain(|plan| !removed.contains(&plan.block));
        let new: Vec<&mut PlannedBlock<'_>> =
            plans.iter_mut().filter(|plan| plan.old_bytes.is_none()).collect();
        let blocks = self.bitmap.allocate(change, dir, new.len() as u64, source)?;
        for (plan, &block) in new.into_iter().zip(&blocks) {
            plan.block = block;
            self.write_empty_cache_block(change, block, dir)?;
        }
        self.write_plans(change, dir, &plans)?;
        self.bitmap.free(change, &removed)
    }

    /// Adds each record to the first block with space for it, at or after the block of the record before
    /// it. So one pass through the cache is enough.
    fn place_records<'a>(&self, plans: &mut Vec<PlannedBlock<'a>>, records: Vec<Vec<u8>>) {
        let capacity = self.geometry.block_size as usize - dirc::LIST;
        let new = || PlannedBlock { block: Block::NONE, old_bytes: None, records: Vec::new() };
        if plans.is_empty() {
            plans.push(new());
        }
        let (mut at, mut len) = (0, plans[0].len());
        for record in records {
            while len + record.len() > capacity {
                at += 1;
                if at == plans.len() {
                    plans.push(new());
                }
                len = plans[at].len();
            }
            len += record.len();
            plans[at].records.push(Cow::Owned(record));
        }
    }

    /// Writes a cache block without records that nothing leads to yet.
    pub(crate) fn write_empty_cache_block(
        &self,
        change: &Change<'_>,
        block: Block,
        dir: Block,
    ) -> Result<()> {
        self.write_fresh(change, block, |bytes| {
            put32(bytes, head::TYPE, T_DIRCACHE);
            put_block(bytes, head::OWN_KEY, block);
            put_block(bytes, dirc::PARENT, dir);
        })
    }

    fn write_plans(&self, change: &Change<'_>, dir: Block, plans: &[PlannedBlock<'_>]) -> Result<()> {
        let next_blocks = plans.iter().skip(1).map(|plan| plan.block).chain([Block::NONE]);
        for (plan, next) in plans.iter().zip(next_blocks) {
            if plan.is_unchanged(next) {
                continue;
            }
            let list = plan.records.concat();
            self.edit(change, plan.block, Stage::Detach, |bytes| {
                put32(bytes, dirc::RECORDS, plan.records.len() as u32);
                put_block(bytes, dirc::NEXT, next);
                bytes[dirc::LIST..].fill(0);
                bytes[dirc::LIST..dirc::LIST + list.len()].copy_from_slice(&list);
            })?;
        }
        let first = plans.first().map_or(Block::NONE, |plan| plan.block);
        if tail_block(&self.header(dir)?.bytes, tail::EXTENSION) == first {
            return Ok(());
        }
        self.edit(change, dir, Stage::Detach, |bytes| put_tail_block(bytes, tail::EXTENSION, first))
    }
}
