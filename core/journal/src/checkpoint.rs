//! Checkpoints: push active items in place, and move the tail of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use ivers_block::{Buffer, Contents, Unit, write_units_in_place};

use crate::commit::in_parts;
use crate::engine::{Inner, count};
use crate::{JournalError, LogFormat, Lsn, ObjectId, Result};

/// Units that a push holds in memory at once. Neighbours in different parts are separate writes.
const PUSHED_AT_ONCE: usize = 512;

impl Inner {
    /// Writes active items in place so that `percent` of the log are free. Returns the intent that holds the
    /// tail, if the tail cannot move that far.
    pub fn checkpoint(&self, percent: u64) -> Result<Option<ObjectId>> {
        let Some(log) = &self.log else { return Ok(None) };
        let mut log = log.lock();
        let keep = log.capacity() - log.capacity() * percent.min(100) / 100;
        let done = self.push(log.as_mut(), keep).and_then(|intent| log.settle_tail().map(|()| intent));
        self.or_abort(done)
    }

    /// Writes all active items in place. The durable tail stays where it is.
    pub fn write_in_place(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut log = log.lock();
        let done = self.push(log.as_mut(), 0);
        self.or_abort(done).map(|_| ())
    }

    /// Writes active items in place and moves the tail, so that at most `keep` of the log stays in use. The
    /// caller holds the lock of the log: commits wait, handles do not.
    pub fn push(&self, log: &mut dyn LogFormat, keep: u64) -> Result<Option<ObjectId>> {
        // The active items change only under the log's lock: those of the units collected here are the ones
        // written and removed below.
        let units = {
            let state = self.state.lock();
            state.check()?;
            let active = &state.active;
            let target = if keep == 0 {
                None
            } else {
                active.lsns().into_iter().find(|&lsn| log.used_from(lsn) <= keep)
            };
            active.units_before(target)
        };
        let written: BTreeSet<Unit> = units.into_iter().collect();
        let tail = self.state.lock().active.tail_without(&written);
        if written.is_empty() && log.free() == log.capacity() {
            return Ok(None);
        }
        let mut blocks = 0;
        for part in written.iter().collect::<Vec<_>>().chunks(PUSHED_AT_ONCE) {
            blocks += self.write_part(part)?;
        }
        if blocks > 0 {
            self.cache.device().flush()?;
        }
        log.move_tail(tail)?;
        count(&self.counters.checkpoints, 1);
        count(&self.counters.checkpoint_blocks, blocks);
        let mut removed = Vec::with_capacity(written.len());
        let mut state = self.state.lock();
        in_parts(&mut state, &written, |state, unit| removed.push(state.active.remove_written(unit, tail)));
        state.active.tail_moved(tail);
        let intent = state.active.oldest_intent();
        drop(state);
        let clean = removed.into_iter().flat_map(|(objects, _)| objects);
        clean.for_each(|active| active.object.clean(active.tid));
        Ok(intent.filter(|(lsn, _)| log.used_from(*lsn) > keep).map(|(_, id)| id))
    }

    /// Writes active items of these units in place, without a flush. Returns the number of blocks.
    fn write_part(&self, part: &[&Unit]) -> Result<u64> {
        let (mut units, has_places) = {
            let active = &self.state.lock().active;
            let data = |unit: &Unit| active.buffer(unit).map(|b| (unit.clone(), b.lsn, b.data.clone()));
            (part.iter().filter_map(|unit| data(unit)).collect::<Vec<_>>(), !active.has_no_places())
        };
        // The buffers stay in memory until they are written: a reader must not load the older bytes.
        let mut _pinned = Vec::new();
        if has_places {
            _pinned = self.patch_units(part, &mut units)?;
        }
        if let Some(hook) = &self.options.write_hook {
            units.iter_mut().for_each(|(unit, lsn, data)| hook.0(unit, *lsn, data.make_mut()));
        }
        let in_place = units.iter().map(|(unit, _, data)| (unit, &**data));
        write_units_in_place(&**self.cache.device(), self.cache.block_size(), in_place)?;
        Ok(units.iter().map(|(unit, ..)| unit.len() as u64).sum())
    }

    /// Puts the newest committed version of each object in `part` into the bytes to write and into the cached
    /// buffer. Adds the units that have no active buffer. Returns buffers to keep during the write.
    fn patch_units(
        &self,
        part: &[&Unit],
        units: &mut Vec<(Unit, Lsn, Contents)>,
    ) -> Result<Vec<Arc<Buffer>>> {
        let mut pinned = Vec::new();
        for &unit in part {
            let (has_objects, all_end) = {
                let state = self.state.lock();
                let mut objects = state.active.objects_in(unit).peekable();
                (objects.peek().is_some(), objects.all(|(id, _)| state.is_finishing(id)))
            };
            if !has_objects {
                continue;
            }
            // If all objects end, the blocks may be part of another unit already.
            let buffer = if all_end { None } else { Some(self.cache.get_unit(unit)?) };
            let at = match units.binary_search_by(|(other, ..)| other.cmp(unit)) {
                Ok(at) => at,
                Err(at) => {
                    // The cached buffer may contain changes that are not committed. The device has the newest
                    // committed version.
                    let data = self.cache.read_device(unit)?;
                    units.insert(at, (unit.clone(), 0, data));
                    at
                }
            };
            let (_, lsn, data) = &mut units[at];
            let state = self.state.lock();
            for (id, object) in state.active.objects_in(unit) {
                let Some(patch) = &object.patch else { continue };
                patch.apply(data.make_mut());
                *lsn = object.lsn.max(*lsn);
                // The bytes of an object that ends may have a new use already.
                if let Some(buffer) = buffer.as_ref().filter(|_| !state.is_finishing(id)) {
                    buffer.modify(|bytes| patch.apply(bytes));
                }
            }
            drop(state);
            pinned.extend(buffer);
        }
        Ok(pinned)
    }

    /// Fails if an intent is active.
    pub fn check_finished(&self) -> Result<()> {
        let state = self.state.lock();
        let count = state.intents.len() + state.active.unadopted.len();
        if count == 0 { Ok(()) } else { Err(JournalError::UnfinishedIntents { count }) }
    }
}
