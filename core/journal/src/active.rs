//! The active items: what is durable in the log and not yet written in place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ivers_block::{BlockNo, Buffer, Contents};

use crate::{LogObject, Lsn, ObjectId, Patch, Tid};

/// A committed block, with its newest committed contents.
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
    pub patch: Option<Patch>,
    pub lsn: Lsn,
    pub tid: Tid,
}

/// The active items of a log. They change only under the lock of the log.
#[derive(Default)]
pub(crate) struct Active {
    pub buffers: BTreeMap<BlockNo, ActiveBuffer>,
    objects: BTreeMap<ObjectId, ActiveObject>,
    /// The objects that have a place, by block.
    places: BTreeSet<(BlockNo, ObjectId)>,
    /// Blocks that are in place, with the newest LSN at which the log after its tail still holds them.
    in_log: BTreeMap<BlockNo, Lsn>,
    /// Intents that recovery found and the driver has not adopted.
    pub unadopted: BTreeMap<ObjectId, Lsn>,
}

impl Active {
    /// The items that recovery left in the log.
    pub fn after_recovery(intents: Vec<(ObjectId, Lsn)>, blocks: Vec<(BlockNo, Lsn)>) -> Self {
        let mut in_log = BTreeMap::new();
        for (block, lsn) in blocks {
            let newest = in_log.entry(block).or_insert(lsn);
            *newest = lsn.max(*newest);
        }
        Self { in_log, unadopted: intents.into_iter().collect(), ..Self::default() }
    }

    pub fn has_object(&self, id: ObjectId) -> bool {
        self.objects.contains_key(&id)
    }

    /// True if the log holds contents of `block` that a replay would restore.
    pub fn log_holds(&self, block: BlockNo) -> bool {
        self.buffers.contains_key(&block)
            || self.in_log.contains_key(&block)
            || self.objects_in(block).next().is_some()
    }

    /// The objects that lie in `block`.
    pub fn objects_in(&self, block: BlockNo) -> impl Iterator<Item = (ObjectId, &ActiveObject)> {
        let first = (block, ObjectId { kind: 0, number: 0 });
        let last = (block, ObjectId { kind: u32::MAX, number: u64::MAX });
        self.places.range(first..=last).map(|&(_, id)| (id, &self.objects[&id]))
    }

    /// True if no object has a place.
    pub fn has_no_places(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds an object in place of its earlier record.
    pub fn insert_object(&mut self, id: ObjectId, object: ActiveObject) {
        self.finish_object(id);
        if let Some(patch) = &object.patch {
            self.places.insert((patch.block, id));
        }
        self.objects.insert(id, object);
    }

    /// Removes an object that need not be written in place. Its records stay in the log.
    pub fn finish_object(&mut self, id: ObjectId) -> Option<ActiveObject> {
        self.unadopted.remove(&id);
        let object = self.remove_object(id)?;
        if let Some(patch) = &object.patch {
            let newest = self.in_log.entry(patch.block).or_insert(object.lsn);
            *newest = object.lsn.max(*newest);
        }
        Some(object)
    }

    fn remove_object(&mut self, id: ObjectId) -> Option<ActiveObject> {
        let object = self.objects.remove(&id)?;
        if let Some(patch) = &object.patch {
            self.places.remove(&(patch.block, id));
        }
        Some(object)
    }

    /// Removes a block that a committed transaction freed: it is not written.
    pub fn revoke(&mut self, block: BlockNo) {
        self.buffers.remove(&block);
        self.in_log.remove(&block);
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

    /// The blocks to write in place so that no item that has a place is older than `target`; all of them if
    /// `target` is `None`.
    pub fn blocks_before(&self, target: Option<Lsn>) -> BTreeSet<BlockNo> {
        let older = |lsn| target.is_none_or(|target| lsn < target);
        let buffers = self.buffers.iter().filter(|(_, b)| older(b.lsn)).map(|(&block, _)| block);
        let objects =
            self.places.iter().filter(|(_, id)| older(self.objects[id].lsn)).map(|&(block, _)| block);
        buffers.chain(objects).collect()
    }

    /// The smallest LSN of the items, not counting those in `in_place`.
    pub fn tail_without(&self, in_place: &BTreeSet<BlockNo>) -> Option<Lsn> {
        let buffers = self.buffers.iter().filter(|(block, _)| !in_place.contains(block)).map(|(_, b)| b.lsn);
        let objects = self
            .objects
            .values()
            .filter(|o| o.patch.as_ref().is_none_or(|p| !in_place.contains(&p.block)))
            .map(|o| o.lsn);
        buffers.chain(objects).chain(self.unadopted.values().copied()).min()
    }

    /// Removes the items of blocks that were written in place, after the tail moved to `tail`. Returns the
    /// objects among them.
    pub fn remove_written(&mut self, blocks: &BTreeSet<BlockNo>, tail: Option<Lsn>) -> Vec<ActiveObject> {
        let mut objects = Vec::new();
        for &block in blocks {
            let ids: Vec<ObjectId> = self.objects_in(block).map(|(id, _)| id).collect();
            let first = objects.len();
            objects.extend(ids.into_iter().filter_map(|id| self.remove_object(id)));
            let newest = objects[first..].iter().map(|o| o.lsn).max();
            let newest = newest.max(self.buffers.remove(&block).map(|b| b.lsn));
            if let (Some(tail), Some(lsn)) = (tail, newest)
                && lsn >= tail
            {
                self.in_log.insert(block, lsn);
            }
        }
        self.in_log.retain(|_, lsn| tail.is_some_and(|tail| *lsn >= tail));
        objects
    }
}
