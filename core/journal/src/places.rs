//! The objects that lie in each unit.

use ivers_block::{NumberMap, Unit};

use crate::ObjectId;

/// The objects of a set that have a place, by the unit that they lie in.
#[derive(Default)]
pub(crate) struct Places(NumberMap<Unit, Vec<ObjectId>>);

impl Places {
    pub fn insert(&mut self, unit: &Unit, id: ObjectId) {
        match self.0.get_mut(unit) {
            Some(ids) if ids.contains(&id) => (),
            Some(ids) => ids.push(id),
            None => _ = self.0.insert(unit.clone(), vec![id]),
        }
    }

    pub fn remove(&mut self, unit: &Unit, id: ObjectId) {
        let Some(ids) = self.0.get_mut(unit) else { return };
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            self.0.remove(unit);
        }
    }

    /// Returns the objects in a unit, in no particular order.
    pub fn objects_in(&self, unit: &Unit) -> &[ObjectId] {
        self.0.get(unit).map_or(&[], Vec::as_slice)
    }

    /// Returns the units that have objects, with these, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Unit, &[ObjectId])> {
        self.0.iter().map(|(unit, ids)| (unit, ids.as_slice()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
