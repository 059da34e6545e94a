//! Transactions: changes that nobody sees until all of them are made.

use super::busy::{Busy, Freed};
use super::deferred::Deferred;
use super::space::{GroupsGuard, Space, journal_error};
use crate::layout::checksum::{Expected, SelfDescription};
use crate::layout::superblock::Superblock;
use crate::source::Source;
use crate::unit::{self, UnitPlace, Whose};
use ivers_block::{BlockNo, Buffer, BufferRead, Contents, Unit};
use ivers_journal::{Handle, JournalError, LogObject, Tid};
use ivers_vfs::{Error, Result};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// The unit in which the log records changes of a buffer.
const CHUNK_BYTES: usize = 128;
const WORD_BYTES: usize = 4;
const PART_BYTES: usize = 4 * CHUNK_BYTES;
/// Units that a transaction has read and not changed, of which it keeps so many at hand.
const RECENT_UNITS: usize = 16;
/// Units of forks of which it notes where they are.
const NOTED_UNITS: usize = 16;

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
    /// The last units that were read. Only transactions change them, and no other one does meanwhile.
    recent: RefCell<VecDeque<(BlockNo, Arc<Buffer>, BufferRead)>>,
    /// Where the units of forks are that were found last.
    noted: RefCell<VecDeque<(UnitPlace, Unit)>>,
    forgotten: BTreeSet<Unit>,
    objects: Vec<Arc<dyn LogObject>>,
    /// Changed inodes that the publisher logs; `None` if the transaction logs them itself.
    left_to_publisher: Option<Vec<u64>>,
    /// Runs that were freed since the last roll.
    pub(super) freed: Vec<Freed>,
    /// Runs that are no longer shared since the last roll.
    pub(super) unshared: Vec<Freed>,
    pub(super) deferred: Deferred,
}

/// The inodes that a change logs: seldom more than these.
pub(crate) type LoggedInodes = SmallVec<[Arc<dyn LogObject>; 4]>;

/// What stands between a transaction and readers of what it changes.
pub(crate) trait Publish {
    /// The changes become visible now: keeps readers of several blocks away. It takes only locks that come
    /// after that of the groups.
    fn begin(&mut self) {}

    /// Called when all blocks are visible. Returns the inodes to log in this transaction. If the transaction
    /// rolls, it is called again, and has nothing left to do.
    fn end(&mut self, _tid: Tid) -> LoggedInodes {
        LoggedInodes::new()
    }

    /// Called when the inodes are logged: lets readers in.
    fn release(&mut self) {}

    /// Whether it decides if an inode is logged.
    fn decides_about(&self, _ino: u64) -> bool {
        false
    }
}

/// The changed ranges of a unit: few, so that they need no memory of their own.
type Runs = SmallVec<[Range<u32>; 4]>;

/// A changed unit.
struct Changed {
    unit: Unit,
    /// The buffer, and its contents before the change. `None` if the unit is new.
    base: Option<(Arc<Buffer>, BufferRead)>,
    bytes: Contents,
    /// All changed bytes are in this range.
    touched: Range<usize>,
}

/// Returns whether a unit is an inode cluster. A transaction logs only the links of unlinked inodes in it.
/// Other threads change the inodes.
fn is_cluster(bytes: &[u8]) -> bool {
    bytes.starts_with(b"IN")
}

impl Changed {
    /// The runs of bytes that differ from the buffer. All of a new unit.
    fn runs(&self) -> Runs {
        let Some((_, before)) = &self.base else { return smallvec![0..self.bytes.len() as u32] };
        let step = if is_cluster(before) { WORD_BYTES } else { CHUNK_BYTES };
        let end = self.touched.end.next_multiple_of(CHUNK_BYTES).min(before.len());
        let start = (self.touched.start / CHUNK_BYTES * CHUNK_BYTES).min(end);
        debug_assert!(before[..start] == self.bytes[..start] && before[end..] == self.bytes[end..]);
        changed_runs(&before[start..end], &self.bytes[start..end], step, start as u32)
    }

    fn touch(&mut self, range: Range<usize>) {
        self.touched = match self.touched.is_empty() {
            true => range,
            false => self.touched.start.min(range.start)..self.touched.end.max(range.end),
        };
    }
}

impl Space {
    /// Begins a part of a transaction that logs one inode.
    pub(crate) fn begin_inode(&self) -> Result<Handle> {
        let credits = self.costs.of_object(self.sb.inode_size as usize);
        self.journal.begin(u32::try_from(credits).unwrap_or(u32::MAX)).map_err(journal_error)
    }

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
            recent: RefCell::default(),
            noted: RefCell::default(),
            forgotten: BTreeSet::new(),
            objects: Vec::new(),
            left_to_publisher: None,
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
            None => unit::Unit::Cached(match self.find_recent(blocks, |_, contents| contents.clone()) {
                Some(contents) => contents,
                None => self.load_new(blocks, kind, whose)?.1,
            }),
        };
        self.check_place(blocks, &bytes, kind, whose)?;
        Ok(bytes)
    }

    /// A new unit of zeros, whatever its blocks were before. The caller fills it in the same transaction.
    pub(crate) fn new_unit(&mut self, blocks: &[BlockNo]) {
        if let Some(first) = blocks.first() {
            let budget = self.space.cache.budget();
            let bytes = Contents::zeroed(blocks.len() << self.space.sb.block_bits, budget);
            let changed = Changed { unit: Unit::new(blocks), base: None, bytes, touched: 0..0 };
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
        let len = blocks.len() << self.space.sb.block_bits;
        self.modify_within(blocks, kind, whose, 0..len, f)
    }

    /// As [`Tx::modify`]; `f` changes nothing outside of a range. This saves comparing the rest.
    pub(super) fn modify_within<R>(
        &mut self,
        blocks: &[BlockNo],
        kind: Option<&SelfDescription>,
        whose: Whose,
        range: Range<usize>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let Some(first) = blocks.first() else {
            return Err(self.space.corrupt("a structure without blocks", whose));
        };
        if self.find(blocks, whose)?.is_none() {
            let (buffer, before) = self.load(blocks, kind, whose)?;
            self.check_place(blocks, &before, kind, whose)?;
            let bytes = self.space.spare.copy(&before);
            let unit = buffer.unit().clone();
            let changed = Changed { unit, base: Some((buffer, before)), bytes, touched: 0..0 };
            self.units.insert(*first, changed);
        }
        let changed = self.units.get_mut(first);
        let changed = changed.ok_or_else(|| self.space.corrupt("a structure without blocks", whose))?;
        changed.touch(range);
        Ok(f(changed.bytes.make_mut()))
    }

    /// Frees the buffer of a unit whose blocks are no longer a structure.
    pub(crate) fn forget_unit(&mut self, blocks: &[BlockNo]) {
        let Some(first) = blocks.first() else { return };
        let was_new = self.units.remove(first).is_some_and(|changed| changed.base.is_none());
        if !was_new {
            self.forgotten.insert(Unit::new(blocks));
        }
    }

    /// The map of a fork changes: units may be elsewhere.
    pub(super) fn forget_units(&self) {
        self.noted.take();
    }

    /// The inodes that change are logged by the publisher of [`Tx::finish_with`], as they are then.
    pub(crate) fn leave_inodes_to_publisher(&mut self) {
        self.left_to_publisher = Some(Vec::new());
    }

    /// Notes that an inode has changed. False: the caller must log it.
    pub(super) fn leave_to_publisher(&mut self, ino: u64) -> bool {
        let Some(inodes) = &mut self.left_to_publisher else { return false };
        if !inodes.contains(&ino) {
            inodes.push(ino);
        }
        true
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

    /// A unit that the transaction has read. Not of inode clusters: inodes are put into them at any time.
    fn find_recent<R>(&self, blocks: &[BlockNo], take: impl Fn(&Arc<Buffer>, &BufferRead) -> R) -> Option<R> {
        let (recent, wanted) = (self.recent.borrow(), *blocks.first()?);
        let found = recent.iter().find(|(first, buffer, _)| *first == wanted && **buffer.unit() == *blocks);
        found.map(|(_, buffer, contents)| take(buffer, contents))
    }

    /// Whether a block was read in this transaction, and checked then.
    pub(super) fn is_recent(&self, block: BlockNo) -> bool {
        self.find_recent(&[block], |_, _| ()).is_some()
    }

    /// A unit that the transaction has not changed.
    fn load(
        &self,
        blocks: &[BlockNo],
        kind: Option<&SelfDescription>,
        whose: Whose,
    ) -> Result<(Arc<Buffer>, BufferRead)> {
        match self.find_recent(blocks, |buffer, contents| (buffer.clone(), contents.clone())) {
            Some(found) => Ok(found),
            None => self.load_new(blocks, kind, whose),
        }
    }

    /// Loads a unit from the cache that is none of the recent ones, and checks its checksum once.
    pub(super) fn load_new(
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
        let is_cluster = kind.is_none() && matches!(whose, Whose::Inode(_));
        if !is_cluster {
            let read = (buffer.block(), buffer.clone(), bytes.clone());
            keep_newest(&mut self.recent.borrow_mut(), RECENT_UNITS, read);
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
        let runs: Vec<_> = self.units.values().map(Changed::runs).collect();
        let charge = self.charge_of(&runs);
        let missing = charge.saturating_sub(self.credits.into());
        if missing > 0 && !self.extend(u32::try_from(missing).unwrap_or(u32::MAX))? {
            let limit = self.credits.into();
            return Err(journal_error(JournalError::TooLarge { charge, limit }));
        }
        let units = std::mem::take(&mut self.units);
        self.recent.take();
        self.handle.check().map_err(journal_error)?;
        let published = self.publish_all(units, runs, publisher);
        if published.is_err() {
            self.space.journal.abort("a transaction was published in part");
        }
        self.groups = None;
        published
    }

    fn publish_all(
        &mut self,
        units: BTreeMap<BlockNo, Changed>,
        runs: Vec<Runs>,
        publisher: &mut dyn Publish,
    ) -> Result<()> {
        let forgotten = std::mem::take(&mut self.forgotten);
        forgotten.iter().for_each(|unit| self.handle.forget_unit(unit));
        self.count_heads(&units);
        publisher.begin();
        for (changed, runs) in units.into_values().zip(runs) {
            self.publish_unit(changed, runs)?;
        }
        let left = self.left_to_publisher.iter_mut().flat_map(std::mem::take);
        debug_assert!(left.into_iter().all(|ino| publisher.decides_about(ino)));
        let inodes = publisher.end(self.handle.tid());
        for object in std::mem::take(&mut self.objects).into_iter().chain(inodes) {
            self.handle.log_object(&object).map_err(journal_error)?;
        }
        publisher.release();
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

    fn publish_unit(&self, changed: Changed, runs: Runs) -> Result<()> {
        let Changed { unit, base, bytes, .. } = changed;
        let Some((buffer, before)) = base else {
            let buffer = self.space.cache.new_unit(&unit)?;
            self.handle.modify(&buffer, |new| new.copy_from_slice(&bytes));
            return Ok(());
        };
        if runs.is_empty() {
            return Ok(());
        }
        let bytes = match is_cluster(&before) {
            true => bytes,
            false => match self.handle.replace(&buffer, &before, bytes, &runs) {
                Ok(()) => {
                    self.space.spare.keep(before);
                    return Ok(());
                }
                Err(bytes) => bytes,
            },
        };
        for run in runs {
            let run = run.start as usize..run.end as usize;
            self.handle.modify_range(&buffer, run.clone(), |to| {
                // Others may have changed other words of these chunks.
                copy_changed_words(to, &before[run.clone()], &bytes[run]);
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
        let runs: Vec<_> = self.units.values().map(Changed::runs).collect();
        self.charge_of(&runs)
    }

    /// As [`Tx::charge`]; `runs` are those of the changed units in their order.
    fn charge_of(&self, runs: &[Runs]) -> u64 {
        let costs = &self.space.costs;
        let of_unit = |(changed, runs): (&Changed, &Runs)| costs.of_buffer(changed.unit.len(), runs);
        let left = self.left_to_publisher.as_ref().map_or(0, Vec::len) as u64;
        let inodes = left * costs.of_object(self.space.sb.inode_size as usize);
        let objects = self.objects.iter().map(|object| costs.of_object(object.record().len()));
        let revokes = self.forgotten.iter().map(|unit| costs.of_revoke(unit)).sum::<u64>();
        self.units.values().zip(runs).map(of_unit).sum::<u64>() + objects.sum::<u64>() + inodes + revokes
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

    fn noted_unit(&self, place: &UnitPlace) -> Option<Unit> {
        self.noted.borrow().iter().find(|(noted, _)| noted == place).map(|(_, blocks)| blocks.clone())
    }

    fn note_unit(&self, place: UnitPlace, blocks: &Unit) {
        keep_newest(&mut self.noted.borrow_mut(), NOTED_UNITS, (place, blocks.clone()));
    }

    fn corrupt(&self, what: impl Into<String>, whose: Whose) -> Error {
        self.space().corrupt(what, whose)
    }

    fn corrupt_block(&self, what: impl Into<String>, whose: Whose, block: BlockNo) -> Error {
        self.space().corrupt_block(what, whose, block)
    }
}

/// Adds the newest one, before the others. At most `most` stay.
fn keep_newest<T>(kept: &mut VecDeque<T>, most: usize, newest: T) {
    kept.truncate(most - 1);
    kept.reserve(most - kept.len());
    kept.push_front(newest);
}

/// The runs of pieces of `step` bytes that differ. The bytes are those of a unit from `start` on. Most of a
/// block does not differ: large parts are compared first.
fn changed_runs(before: &[u8], after: &[u8], step: usize, start: u32) -> Runs {
    let mut runs = Runs::new();
    for (nth, (before, after)) in before.chunks(PART_BYTES).zip(after.chunks(PART_BYTES)).enumerate() {
        if before == after {
            continue;
        }
        let pieces = before.chunks(step).zip(after.chunks(step)).enumerate();
        for (index, (before, _)) in pieces.filter(|(_, (before, after))| before != after) {
            let start = start + (nth * PART_BYTES + index * step) as u32;
            let end = start + before.len() as u32;
            match runs.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => runs.push(start..end),
            }
        }
    }
    runs
}

fn copy_changed_words(to: &mut [u8], before: &[u8], after: &[u8]) {
    let words = |bytes| <[u8]>::as_chunks::<WORD_BYTES>(bytes).0;
    let (to, _) = to.as_chunks_mut::<WORD_BYTES>();
    let pairs = words(before).iter().zip(words(after));
    let changed = to.iter_mut().zip(pairs).filter(|(_, (before, after))| before != after);
    changed.for_each(|(to, (_, after))| *to = *after);
}
