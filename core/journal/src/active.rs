//! The active items: what is durable in the log and not yet written in place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ivers_block::{Buffer, Contents, Unit};

use crate::engine::object_memory;
use crate::places::Places;
use crate::{LogObject, Lsn, ObjectId, Patch, Tid};

/// A committed buffer, with its newest committed contents.
pub(crate) struct ActiveBuffer {
    /// Pins the buffer: the block on the device is stale.
    pub _buffer: Arc<Buffer>,
    pub data: Contents,
    /// The bytes that changed since the block was last written in place.
    pub ranges: Vec<Range<u32>>,
    pub lsn: Lsn,
}

/// A committed object, with its newest committed record.
pub(crate) struct ActiveObject {
    pub object: Arc<dyn LogObject>,
    /// `None` for an intent.
    pub patch: Option<Arc<Patch>>,
    pub lsn: Lsn,
    pub tid: Tid,
}

impl ActiveObject {
    /// See [`object_memory`].
    fn memory_bytes(&self) -> u64 {
        object_memory(self.patch.as_ref().map_or(&[], |patch| &patch.bytes))
    }
}

/// The active items of a log. They change only under the lock of the log.
#[derive(Default)]
pub(crate) struct Active {
    buffers: BTreeMap<Unit, ActiveBuffer>,
    /// The memory of the contents of all buffers, and of the objects.
    kept_bytes: u64,
    objects: BTreeMap<ObjectId, ActiveObject>,
    /// The objects that have a place, by unit.
    places: Places,
    /// Units that are in place, with the newest LSN at which the log after its tail still holds them.
    in_log: BTreeMap<Unit, Lsn>,
    /// Intents that recovery found and the driver has not adopted.
    pub unadopted: BTreeMap<ObjectId, Lsn>,
}

impl Active {
    /// The items that recovery left in the log.
    pub fn after_recovery(intents: Vec<(ObjectId, Lsn)>, units: Vec<(Unit, Lsn)>) -> Self {
        let mut in_log = BTreeMap::new();
        for (unit, lsn) in units {
            let newest = in_log.entry(unit).or_insert(lsn);
            *newest = lsn.max(*newest);
        }
        Self { in_log, unadopted: intents.into_iter().collect(), ..Self::default() }
    }

    pub fn buffer(&self, unit: &Unit) -> Option<&ActiveBuffer> {
        self.buffers.get(unit)
    }

    /// The memory of all items, in bytes, about.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Adds a buffer in place of its earlier contents.
    pub fn insert_buffer(&mut self, unit: Unit, buffer: ActiveBuffer) {
        self.kept_bytes += buffer.data.len() as u64;
        if let Some(older) = self.buffers.insert(unit, buffer) {
            self.kept_bytes -= older.data.len() as u64;
        }
    }

    fn remove_buffer(&mut self, unit: &Unit) -> Option<ActiveBuffer> {
        let buffer = self.buffers.remove(unit)?;
        self.kept_bytes -= buffer.data.len() as u64;
        Some(buffer)
    }

    pub fn has_object(&self, id: ObjectId) -> bool {
        self.objects.contains_key(&id)
    }

    /// The bytes of an object with a place.
    pub fn patch(&self, id: ObjectId) -> Option<Arc<Patch>> {
        self.objects.get(&id)?.patch.clone()
    }

    /// True if the log holds contents of `unit` that a replay would restore.
    pub fn log_holds(&self, unit: &Unit) -> bool {
        self.buffers.contains_key(unit)
            || self.in_log.contains_key(unit)
            || !self.places.objects_in(unit).is_empty()
    }

    /// The objects that lie in `unit`.
    pub fn objects_in(&self, unit: &Unit) -> impl Iterator<Item = (ObjectId, &ActiveObject)> {
        self.places.objects_in(unit).iter().map(|id| (*id, &self.objects[id]))
    }

    /// True if no object has a place.
    pub fn has_no_places(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds an object. Returns the earlier record that it replaces.
    pub fn insert_object(&mut self, id: ObjectId, object: ActiveObject) -> Option<ActiveObject> {
        let older = self.finish_object(id);
        if let Some(patch) = &object.patch {
            self.places.insert(&patch.unit, id);
        }
        self.kept_bytes += object.memory_bytes();
        self.objects.insert(id, object);
        older
    }

    /// Removes an object that need not be written in place. Its records stay in the log.
    pub fn finish_object(&mut self, id: ObjectId) -> Option<ActiveObject> {
        self.unadopted.remove(&id);
        let object = self.remove_object(id)?;
        if let Some(patch) = &object.patch {
            let newest = self.in_log.entry(patch.unit.clone()).or_insert(object.lsn);
            *newest = object.lsn.max(*newest);
        }
        Some(object)
    }

    fn remove_object(&mut self, id: ObjectId) -> Option<ActiveObject> {
        let object = self.objects.remove(&id)?;
        self.kept_bytes -= object.memory_bytes();
        if let Some(patch) = &object.patch {
            self.places.remove(&patch.unit, id);
        }
        Some(object)
    }

    /// Removes a unit that a committed transaction freed: it is not written.
    pub fn revoke(&mut self, unit: &Unit) {
        self.remove_buffer(unit);
        self.in_log.remove(unit);
    }

    /// The smallest LSN of the intents, and one of the intents that have it.
    pub fn oldest_intent(&self) -> Option<(Lsn, ObjectId)> {
        let intents = self.objects.iter().filter(|(_, o)| o.patch.is_none()).map(|(&id, o)| (o.lsn, id));
        intents.chain(self.unadopted.iter().map(|(&id, &lsn)| (lsn, id))).min()
    }

    /// The LSNs of the items that a push can write in place, in ascending order.
    pub fn lsns(&self) -> Vec<Lsn> {
        let objects = self.objects.values().filter(|o| o.patch.is_some()).map(|o| o.lsn);
        let mut lsns: Vec<Lsn> = self.buffers.values().map(|b| b.lsn).chain(objects).collect();
        lsns.sort_unstable();
        lsns.dedup();
        lsns
    }

    /// The units to write in place so that no item that has a place is older than `target`; all of them if
    /// `target` is `None`.
    pub fn units_before(&self, target: Option<Lsn>) -> Vec<Unit> {
        let older = |lsn| target.is_none_or(|target| lsn < target);
        let buffers = self.buffers.iter().filter(|(_, b)| older(b.lsn)).map(|(unit, _)| unit);
        let has_older = |ids: &[ObjectId]| ids.iter().any(|id| older(self.objects[id].lsn));
        let objects = self.places.iter().filter(|(_, ids)| has_older(ids)).map(|(unit, _)| unit);
        buffers.chain(objects).cloned().collect()
    }

    /// The smallest LSN of the items, not counting those in `in_place`.
    pub fn tail_without(&self, in_place: &BTreeSet<Unit>) -> Option<Lsn> {
        let buffers = self.buffers.iter().filter(|(unit, _)| !in_place.contains(*unit)).map(|(_, b)| b.lsn);
        let objects = self
            .objects
            .values()
            .filter(|o| o.patch.as_ref().is_none_or(|p| !in_place.contains(&p.unit)))
            .map(|o| o.lsn);
        buffers.chain(objects).chain(self.unadopted.values().copied()).min()
    }

    /// Removes the items of a unit that was written in place, after the tail moved to `tail`. Returns them.
    pub fn remove_written(
        &mut self,
        unit: &Unit,
        tail: Option<Lsn>,
    ) -> (Vec<ActiveObject>, Option<ActiveBuffer>) {
        let ids: Vec<ObjectId> = self.objects_in(unit).map(|(id, _)| id).collect();
        let objects: Vec<_> = ids.into_iter().filter_map(|id| self.remove_object(id)).collect();
        let buffer = self.remove_buffer(unit);
        let newest = objects.iter().map(|o| o.lsn).chain(buffer.as_ref().map(|b| b.lsn)).max();
        if let (Some(tail), Some(lsn)) = (tail, newest)
            && lsn >= tail
        {
            self.in_log.insert(unit.clone(), lsn);
        }
        (objects, buffer)
    }

    /// The tail moved to `tail`: forgets the units that are in place and no longer in the log.
    pub fn tail_moved(&mut self, tail: Option<Lsn>) {
        self.in_log.retain(|_, lsn| tail.is_some_and(|tail| *lsn >= tail));
    }
}
