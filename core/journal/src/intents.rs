//! Objects and intents in the running transaction, and the log space that intents need.

use std::sync::Arc;

use ivers_block::Unit;
use ivers_sync::{Held, rank};

use crate::active::ActiveObject;
use crate::engine::{Inner, LoggedObject, Running, State, running_of};
use crate::{Handle, Journal, JournalError, LogObject, ObjectId, Patch, Result, Tid};

/// The log space that the journal keeps for an intent.
pub(crate) struct FinishReservation {
    /// The transaction that logged the intent last; 0 if recovery found it.
    pub tid: Tid,
    /// The most space of a transaction that finishes it or replaces it.
    pub space: u64,
}

impl State {
    /// The objects in `unit` that are in the log or in a transaction.
    pub fn objects_in(&self, unit: &Unit) -> Vec<ObjectId> {
        let running = self.running.iter().flat_map(|running| running.places.objects_in(unit));
        let committing = self.committing_places.objects_in(unit);
        let active = self.active.objects_in(unit).map(|(id, _)| id);
        active.chain(committing.iter().chain(running).copied()).collect()
    }

    /// True if a transaction that is not durable yet finishes the object.
    pub fn is_finishing(&self, id: ObjectId) -> bool {
        self.committing_finished.contains(&id)
            || self.running.as_ref().is_some_and(|running| running.finished.contains_key(&id))
    }

    /// Log space to keep for finishing every intent.
    pub fn reserved_for_intents(&self) -> u64 {
        self.intents.values().map(|reservation| reservation.space).sum()
    }
}

impl Journal {
    /// The number of intents that a transaction may log, if finishing each of them takes up to `credits`:
    /// half of the log has space to finish them all. A handle that continues more of them could wait for
    /// ever.
    pub fn max_intents(&self, credits: u32) -> u64 {
        let space = u64::from(credits).saturating_add(self.inner.overhead);
        self.inner.capacity / 2 / space.max(1)
    }

    /// Takes over an intent that recovery found, so that it can be finished. Returns false if recovery
    /// reported no such intent. [`begin`](Self::begin) fails until every one is adopted.
    pub fn adopt(&self, object: Arc<dyn LogObject>) -> bool {
        let id = object.id();
        let mut state = self.inner.state.lock();
        let Some(&lsn) = state.active.unadopted.get(&id) else { return false };
        let space = u64::from(object.finish_credits()) + self.inner.overhead;
        state.intents.insert(id, FinishReservation { tid: 0, space });
        state.active.insert_object(id, ActiveObject { object, patch: None, lsn, tid: 0 });
        true
    }

    /// Returns the bytes of the newest version of an object that was logged and is not in place: the cached
    /// buffer of its unit may hold an older one. `None` if the buffer holds the newest one.
    pub fn newest_patch(&self, id: ObjectId) -> Option<Arc<Patch>> {
        self.inner.newest_patch(id)
    }

    /// As [`begin`](Self::begin), for work that finishes the intent `id`. It does not wait for newer intents,
    /// and has log space as long as `credits` are not more than the intent's
    /// [`finish_credits`](LogObject::finish_credits). If the log has no space to finish what recovery found,
    /// it fails.
    pub fn begin_finishing(&self, id: ObjectId, credits: u32) -> Result<Handle> {
        let held = Held::before_waiting::<rank::Handle>();
        let tid = self.join(credits, &[id])?;
        Ok(Handle::new(self.clone(), tid, credits.into(), vec![id], held))
    }
}

impl Inner {
    /// The patch of the newest version of an object that is not in place.
    fn newest_patch(&self, id: ObjectId) -> Option<Arc<Patch>> {
        let state = self.state.lock();
        let running = state.running.as_ref().and_then(|running| running.objects.get(&id)?.patch.clone());
        running
            .or_else(|| state.committing_objects.get(&id)?.patch.clone())
            .or_else(|| state.active.patch(id))
    }

    /// True if the log has space for a handle with `credits`, and after it for finishing each intent that is
    /// older than `own`, the intents that the handle continues. Everything but the intents can be pushed.
    ///
    /// So the oldest intent can always be finished, which moves the tail to the next one.
    pub fn has_log_space(&self, state: &State, credits: u64, own: &[ObjectId]) -> bool {
        if state.intents.is_empty() {
            return true;
        }
        let own = || own.iter().filter_map(|id| state.intents.get(id));
        let newest = own().map(|reservation| reservation.tid).min().unwrap_or(Tid::MAX);
        let due = state.intents.values().filter(|reservation| reservation.tid <= newest);
        let due: u64 = due.map(|reservation| reservation.space).sum();
        let own: u64 =
            own().filter(|reservation| reservation.tid <= newest).map(|reservation| reservation.space).sum();
        let running = state.running.as_ref().map_or(0, |r| r.charge + r.reserved) + self.overhead;
        state.pinned + state.committing_space + running + due + credits.saturating_sub(own) <= self.capacity
    }

    /// True if a handle that continues `own` would wait for log space for ever: recovery found these intents,
    /// and nothing is open or uncommitted.
    pub fn waits_in_vain(&self, state: &State, own: &[ObjectId]) -> bool {
        let is_found = |id| state.intents.get(id).is_some_and(|reservation| reservation.tid == 0);
        let is_idle = |running: &Running| running.handles == 0 && running.charge == 0;
        !own.is_empty()
            && own.iter().all(is_found)
            && state.running.as_ref().is_none_or(is_idle)
            && state.committing_space == 0
    }

    /// Adds an object to the running transaction `tid`, in which the caller has a handle. Returns whether it
    /// is an intent.
    pub fn log_object(&self, tid: Tid, object: &Arc<dyn LogObject>) -> Result<bool> {
        if self.log.is_none() || self.costs.object.is_none() {
            return Err(JournalError::ObjectsUnsupported);
        }
        let (id, record, patch) = (object.id(), object.record(), object.patch());
        if let Some(patch) = &patch {
            let len = self.cache.len_of(&patch.unit) as usize;
            assert!(patch.fits(len), "an object does not lie inside its unit");
        }
        let is_intent = patch.is_none();
        let mut state = self.state.lock();
        if is_intent {
            let space = u64::from(object.finish_credits()) + self.overhead;
            state.intents.insert(id, FinishReservation { tid, space });
        }
        let running = running_of(&mut state, tid);
        running.charge += self.costs.of_object(record.len());
        let place = patch.clone();
        let logged = LoggedObject { object: object.clone(), record, patch };
        running.object_bytes += logged.memory_bytes();
        let older = running.objects.insert(id, logged);
        running.move_place(id, older.as_ref().and_then(|older| older.patch.as_deref()), place.as_deref());
        if let Some(older) = older {
            running.charge -= self.costs.of_object(older.record.len());
            running.object_bytes -= older.memory_bytes();
        }
        if let Some(done) = running.finished.remove(&id) {
            running.charge -= self.costs.of_object(done.map_or(0, |done| done.len()));
        }
        Ok(is_intent)
    }

    /// Finishes an object in the running transaction `tid`, in which the caller has a handle.
    pub fn finish_object(&self, tid: Tid, id: ObjectId, record: Option<Vec<u8>>) {
        self.finish_in(&mut self.state.lock(), tid, id, record.map(Into::into));
    }

    pub fn finish_in(&self, state: &mut State, tid: Tid, id: ObjectId, record: Option<Arc<[u8]>>) {
        let in_log = state.active.has_object(id) || state.committing_objects.contains_key(&id);
        let is_intent = state.intents.contains_key(&id);
        assert!(record.is_some() || !(in_log && is_intent), "an intent needs a done record");
        let running = running_of(state, tid);
        if let Some(object) = running.objects.remove(&id) {
            running.charge -= self.costs.of_object(object.record.len());
            running.object_bytes -= object.memory_bytes();
            running.move_place(id, object.patch.as_deref(), None);
        }
        if in_log {
            let charge = |record: &Option<Arc<[u8]>>| {
                self.costs.of_object(record.as_ref().map_or(0, |record| record.len()))
            };
            running.charge += charge(&record);
            running.charge -= running.finished.insert(id, record).map_or(0, |older| charge(&older));
        } else {
            // Neither the intent nor its done record is logged.
            state.intents.remove(&id);
        }
    }
}
