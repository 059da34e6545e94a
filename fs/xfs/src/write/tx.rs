//! Transactions: changes that nobody sees until all of them are made.

use super::busy::{Busy, Freed};
use super::deferred::Deferred;
use super::space::{GroupsGuard, Space, journal_error};
use crate::layout::checksum::{Expected, SelfDescription};
use crate::layout::superblock::Superblock;
use crate::source::Source;
use crate::unit::{self, Whose};
use ivers_block::{BlockNo, Buffer, BufferRead, Unit};
use ivers_journal::{Handle, JournalError, LogObject, Tid};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The unit in which the log records changes of a buffer.
const CHUNK_BYTES: usize = 128;
const WORD_BYTES: usize = 4;

/// A transaction.
///
/// Changes are collected in copies. [`Tx::finish`] publishes them all at once; dropping the transaction
/// forgets them. So after an error nothing is half done, and the caller drops the transaction. The exception
/// are rolls, which [`Tx::finish`] describes.
///
/// The first use of a group takes the lock of all groups, which is held until the changes are published. A
/// caller holds no lock that a commit needs, and has no second transaction.
pub(crate) struct Tx<'s> {
    space: &'s Space,
    // Before the handle: released first.
    groups: Option<GroupsGuard<'s>>,
    handle: Handle,
    pub(super) credits: u32,
    units: BTreeMap<BlockNo, Changed>,
    forgotten: BTreeSet<Unit>,
    objects: Vec<Arc<dyn LogObject>>,
    /// Runs that were freed since the last roll.
    pub(super) freed: Vec<Freed>,
    /// Runs that are no longer shared since the last roll.
    pub(super) unshared: Vec<Freed>,
    pub(super) deferred: Deferred,
}

/// What stands between a transaction and readers of what it changes.
pub(crate) trait Publish {
    /// The changes become visible now: keeps readers of several blocks away. It takes only locks that come
    /// after that of the groups.
    fn begin(&mut self) {}

    /// All blocks are visible. It may change which inodes are logged in this transaction, and lets readers
    /// in. Called again, with nothing left to do, if the transaction rolls.
    fn end(&mut self, _tid: Tid, _inodes: &mut Vec<Arc<dyn LogObject>>) {}
}

/// A changed unit.
struct Changed {
    unit: Unit,
    /// The buffer, and its contents before the change. `None` if the unit is new.
    base: Option<(Arc<Buffer>, BufferRead)>,
    bytes: Rc<Vec<u8>>,
}

impl Space {
    /// Begins a transaction that may log `credits`.
    pub(crate) fn begin(&self, credits: u32) -> Result<Tx<'_>> {
        let handle = self.journal.begin(credits).map_err(journal_error)?;
        Ok(Tx::new(self, handle, credits))
    }
}

impl<'s> Tx<'s> {
    /// A transaction that uses a handle, which may log `credits`.
    pub(super) fn new(space: &'s Space, handle: Handle, credits: u32) -> Self {
        Self {
            space,
            groups: None,
            handle,
            credits,
            units: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            objects: Vec::new(),
            freed: Vec::new(),
            unshared: Vec::new(),
            deferred: Deferred::default(),
        }
    }

    pub(crate) fn space(&self) -> &'s Space {
        self.space
    }

    /// Takes the lock of the groups.
    pub(super) fn groups(&mut self) -> &mut GroupsGuard<'s> {
        self.groups.get_or_insert_with(|| self.space.lock_groups())
    }

    /// Reads a unit: a structure of one or several blocks. A structure with a description is checked against
    /// it, but for its magic. Inode clusters have none.
    pub(crate) fn read_unit(
        &self,
        blocks: &[BlockNo],
        kind: Option<&SelfDescription>,
        whose: Whose,
    ) -> Result<unit::Unit> {
        let bytes = match self.find(blocks, whose)? {
            Some(changed) => unit::Unit::Changed(changed.bytes.clone()),
            None => unit::Unit::Cached(self.load(blocks, kind, whose)?.1),
        };
        self.check_place(blocks, &bytes, kind, whose)?;
        Ok(bytes)
    }

    /// A new unit of zeros, whatever its blocks were before. The caller fills it in the same transaction.
    pub(crate) fn new_unit(&mut self, blocks: &[BlockNo]) {
        if let Some(first) = blocks.first() {
            let bytes = vec![0; blocks.len() << self.space.sb.block_bits];
            let changed = Changed { unit: Unit::new(blocks), base: None, bytes: Rc::new(bytes) };
            self.units.insert(*first, changed);
        }
    }

    /// A new unit that says what it is; `fill` writes the rest.
    pub(super) fn new_described(
        &mut self,
        blocks: &[BlockNo],
        kind: &SelfDescription,
        whose: Whose,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let expected = self.expected(blocks.first().copied().unwrap_or_default(), whose);
        self.new_unit(blocks);
        self.modify(blocks, None, whose, |bytes| {
            fill(bytes);
            kind.describe(bytes, &expected);
        })
    }

    /// The self-describing fields that a unit must have.
    fn expected(&self, first: BlockNo, whose: Whose) -> Expected {
        let sb = &self.space.sb;
        Expected { uuid: sb.meta_uuid, blkno: sb.sector_of(first), owner: whose.number() }
    }

    /// Changes a unit, which is read and checked as by [`Tx::read_unit`].
    pub(crate) fn modify<R>(
        &mut self,
        blocks: &[BlockNo],
        kind: Option<&SelfDescription>,
        whose: Whose,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let Some(first) = blocks.first() else {
            return Err(self.space.corrupt("a structure without blocks", whose));
        };
        if self.find(blocks, whose)?.is_none() {
            let (buffer, before) = self.load(blocks, kind, whose)?;
            self.check_place(blocks, &before, kind, whose)?;
            let bytes = Rc::new(before.to_vec());
            let changed = Changed { unit: buffer.unit().clone(), base: Some((buffer, before)), bytes };
            self.units.insert(*first, changed);
        }
        let changed = self.units.get_mut(first);
        let changed = changed.ok_or_else(|| self.space.corrupt("a structure without blocks", whose))?;
        let bytes: &mut Vec<u8> = Rc::make_mut(&mut changed.bytes);
        Ok(f(bytes))
    }

    /// Frees the buffer of a unit whose blocks are no longer a structure.
    pub(crate) fn forget_unit(&mut self, blocks: &[BlockNo]) {
        let Some(first) = blocks.first() else { return };
        let was_new = self.units.remove(first).is_some_and(|changed| changed.base.is_none());
        if !was_new {
            self.forgotten.insert(Unit::new(blocks));
        }
    }

    /// Logs an inode. A later version in the same transaction replaces it.
    pub(crate) fn log_inode(&mut self, inode: Arc<dyn LogObject>) {
        self.objects.retain(|object| object.id() != inode.id());
        self.objects.push(inode);
    }

    /// Whether the transaction has its own version of a unit.
    pub(super) fn has_changed(&self, first: BlockNo) -> bool {
        self.units.contains_key(&first)
    }

    fn find(&self, blocks: &[BlockNo], whose: Whose) -> Result<Option<&Changed>> {
        let Some(first) = blocks.first() else { return Ok(None) };
        let corrupt = |what| Err(self.space.corrupt_block(what, whose, *first));
        match self.units.get(first) {
            Some(changed) if *changed.unit == *blocks => Ok(Some(changed)),
            Some(_) => corrupt("a block belongs to two structures"),
            None if self.is_forgotten(*first) => corrupt("a structure refers to a block that was freed"),
            None => Ok(None),
        }
    }

    fn is_forgotten(&self, first: BlockNo) -> bool {
        let from = Unit::from(first);
        self.forgotten.range(from..).next().is_some_and(|unit| unit.first() == first)
    }

    /// Loads a unit from the cache, and checks its checksum once.
    fn load(
        &self,
        blocks: &[BlockNo],
        kind: Option<&SelfDescription>,
        whose: Whose,
    ) -> Result<(Arc<Buffer>, BufferRead)> {
        let buffer = self.space.cache.get_unit(blocks)?;
        let bytes = buffer.read();
        if let Some(kind) = kind.filter(|_| !buffer.is_verified()) {
            if !kind.has_valid_crc(&bytes) {
                let what = "bad checksum; run xfs_repair";
                return Err(self.space.corrupt_block(what, whose, buffer.block()));
            }
            buffer.set_verified();
        }
        Ok((buffer, bytes))
    }

    fn check_place(
        &self,
        blocks: &[BlockNo],
        bytes: &[u8],
        kind: Option<&SelfDescription>,
        whose: Whose,
    ) -> Result<()> {
        let (Some(kind), Some(first)) = (kind, blocks.first()) else { return Ok(()) };
        let expected = self.expected(*first, whose);
        kind.check_place(bytes, &expected).map_err(|what| self.space.corrupt_block(what, whose, *first))
    }

    /// Makes the changes visible to all, and releases the groups.
    pub(super) fn publish(&mut self, publisher: &mut dyn Publish) -> Result<()> {
        let charge = self.charge();
        let missing = charge.saturating_sub(self.credits.into());
        if missing > 0 && !self.extend(u32::try_from(missing).unwrap_or(u32::MAX))? {
            let limit = self.credits.into();
            return Err(journal_error(JournalError::TooLarge { charge, limit }));
        }
        let units = std::mem::take(&mut self.units);
        self.handle.check().map_err(journal_error)?;
        let published = self.publish_all(units, publisher);
        if published.is_err() {
            self.space.journal.abort("a transaction was published in part");
        }
        self.groups = None;
        published
    }

    fn publish_all(&mut self, units: BTreeMap<BlockNo, Changed>, publisher: &mut dyn Publish) -> Result<()> {
        let forgotten = std::mem::take(&mut self.forgotten);
        forgotten.iter().for_each(|unit| self.handle.forget_unit(unit));
        self.count_heads(&units);
        publisher.begin();
        for changed in units.into_values() {
            self.publish_unit(&changed)?;
        }
        publisher.end(self.handle.tid(), &mut self.objects);
        for object in std::mem::take(&mut self.objects) {
            self.handle.log_object(&object).map_err(journal_error)?;
        }
        for (id, record) in self.deferred.take_done() {
            self.handle.finish_object(id, Some(record));
        }
        self.keep_busy(&self.space.busy, &self.freed);
        self.keep_busy(&self.space.unshared, &self.unshared);
        self.freed.clear();
        self.unshared.clear();
        Ok(())
    }

    /// Keeps runs busy until the transaction is durable.
    fn keep_busy(&self, busy: &Busy, runs: &[Freed]) {
        if !runs.is_empty() {
            let (keys, busy) = (busy.add(runs), busy.clone());
            self.handle.on_commit(Box::new(move || busy.remove(&keys)));
        }
    }

    fn publish_unit(&self, changed: &Changed) -> Result<()> {
        let Some((buffer, before)) = &changed.base else {
            let buffer = self.space.cache.new_unit(&changed.unit)?;
            self.handle.modify(&buffer, |bytes| bytes.copy_from_slice(&changed.bytes));
            return Ok(());
        };
        // Of a cluster only the links of unlinked inodes are logged, and the inodes around them are not ours.
        let step = if before.starts_with(b"IN") { WORD_BYTES } else { CHUNK_BYTES };
        for run in changed_runs(before, &changed.bytes, step) {
            self.handle.modify_range(buffer, run.clone(), |bytes| {
                // Others may have changed other words of these chunks.
                copy_changed_words(bytes, &before[run.clone()], &changed.bytes[run]);
            });
        }
        Ok(())
    }

    /// Adds what the changed heads of groups say to the sums.
    fn count_heads(&mut self, units: &BTreeMap<BlockNo, Changed>) {
        let Some(groups) = &mut self.groups else { return };
        let sb = &self.space.sb;
        for (block, changed) in units {
            let Some((_, before)) = &changed.base else { continue };
            let (old, new) = (sb.counts_in_heads(*block, before), sb.counts_in_heads(*block, &changed.bytes));
            let counts = &mut groups.counts;
            let add = |sum: &mut u64, old: u64, new: u64| *sum = sum.wrapping_add(new).wrapping_sub(old);
            add(&mut counts.inodes, old.inodes, new.inodes);
            add(&mut counts.free_inodes, old.free_inodes, new.free_inodes);
            add(&mut counts.free_blocks, old.free_blocks, new.free_blocks);
        }
    }

    /// Logs an intent when the transaction is published.
    pub(super) fn log_intent(&mut self, intent: Arc<dyn LogObject>) {
        self.objects.push(intent);
    }

    /// Reserves more credits; false if the transaction cannot have them.
    pub(super) fn extend(&mut self, credits: u32) -> Result<bool> {
        let extended = self.handle.extend(credits).map_err(journal_error)?;
        self.credits += if extended { credits } else { 0 };
        Ok(extended)
    }

    /// The credits that publishing would take.
    pub(super) fn charge(&self) -> u64 {
        let costs = &self.space.costs;
        let of_unit = |changed: &Changed| {
            let whole = 0..changed.bytes.len();
            let runs = match &changed.base {
                Some((_, before)) => changed_runs(before, &changed.bytes, CHUNK_BYTES),
                None => Vec::from([whole]),
            };
            let ranges: Vec<_> = runs.iter().map(|run| run.start as u32..run.end as u32).collect();
            costs.of_buffer(changed.unit.len(), &ranges)
        };
        let objects = self.objects.iter().map(|object| costs.of_object(object.record().len()));
        let revokes = self.forgotten.iter().map(|unit| costs.of_revoke(unit)).sum::<u64>();
        self.units.values().map(of_unit).sum::<u64>() + objects.sum::<u64>() + revokes
    }

    /// Continues in another transaction, which may log `credits`. The changes are published.
    pub(super) fn restart(&mut self, credits: u32) -> Result<()> {
        self.credits = credits;
        self.handle.restart(credits).map_err(journal_error)
    }
}

impl Source for Tx<'_> {
    fn sb(&self) -> &Superblock {
        &self.space().sb
    }

    fn unit(&self, blocks: &[BlockNo], kind: &SelfDescription, whose: Whose) -> Result<unit::Unit> {
        self.read_unit(blocks, Some(kind), whose)
    }

    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        self.space().corrupt(what, whose)
    }

    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        self.space().corrupt_block(what, whose, block)
    }
}

/// The runs of pieces of `step` bytes that differ.
fn changed_runs(before: &[u8], after: &[u8], step: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pieces = before.chunks(step).zip(after.chunks(step));
    for (index, (before, _)) in pieces.enumerate().filter(|(_, (before, after))| before != after) {
        let start = index * step;
        match runs.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end = start + before.len(),
            None => runs.push(start..start + before.len()),
        }
    }
    runs
}

fn copy_changed_words(to: &mut [u8], before: &[u8], after: &[u8]) {
    let words = before.chunks(WORD_BYTES).zip(after.chunks(WORD_BYTES));
    let changed = to.chunks_mut(WORD_BYTES).zip(words).filter(|(_, (before, after))| before != after);
    changed.for_each(|(to, (_, after))| to.copy_from_slice(after));
}
