//! A volume of pointers and units, changed at random and cut off at every write: what a pointer leads to is whole and nobody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ivers_block::{Budget, BufferCache, Device, FaultDevice, MemDevice, Recorded};
use ivers_ordered::{Change, Mirror, Ordered, OrderedError, OrderedOptions, Result, Stage, Volume};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: u64 = 512;
/// The dirty mark, the marks of allocation and their copy, the pointers, the units.
const MARK: u64 = 0;
const MARKS: u64 = 1;
const COPY: u64 = 2;
const POINTERS: Range<u64> = 3..6;
const UNITS: Range<u64> = 8..40;
/// Pointers in a block: which unit, and what must be in it.
const SLOTS: u64 = 8;

struct Units {
    cache: Arc<BufferCache>,
    taken: Mutex<BTreeSet<u64>>,
}

impl Units {
    fn set(&self, change: &Change<'_>, unit: u64, taken: bool) -> Result<()> {
        let marks = self.cache.get(MARKS)?;
        change.put(&marks, Stage::Fresh, |bytes| bytes[unit as usize] = u8::from(taken));
        Ok(())
    }
}

impl Volume for Units {
    fn mark(&self, change: &Change<'_>, at_work: bool) -> Result<()> {
        change.put(&self.cache.get(MARK)?, Stage::Fresh, |bytes| bytes[0] = u8::from(at_work));
        Ok(())
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> Result<()> {
        for unit in freed.iter().cloned().flatten() {
            self.set(change, unit, false)?;
            assert!(self.taken.lock().remove(&unit), "freed twice");
        }
        Ok(())
    }
}

struct World {
    device: Arc<FaultDevice>,
    units: Arc<Units>,
    ordered: Ordered,
    /// What each slot points to.
    slots: BTreeMap<u64, (u64, u8)>,
    tag: u8,
}

impl World {
    fn new() -> Self {
        let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(UNITS.end * BLOCK))));
        let cache = Arc::new(BufferCache::new(device.clone(), BLOCK as u32, Arc::new(Budget::new(4 << 10))));
        let units = Arc::new(Units { cache: cache.clone(), taken: Mutex::default() });
        let options = OrderedOptions {
            interval: Duration::from_secs(3600),
            mirror: Some(Mirror { first: MARKS..MARKS + 1, copies: 1 }),
            ..OrderedOptions::default()
        };
        let ordered = Ordered::new(cache, units.clone(), options).unwrap();
        Self { device, units, ordered, slots: BTreeMap::new(), tag: 0 }
    }

    fn point(&self, change: &Change<'_>, stage: Stage, slot: u64, to: (u64, u8)) {
        let buffer = self.units.cache.get(POINTERS.start + slot / SLOTS).unwrap();
        let at = (slot % SLOTS * 2) as usize;
        change.put(&buffer, stage, |bytes| bytes[at..at + 2].copy_from_slice(&[to.0 as u8, to.1]));
    }

    /// Put something new behind a slot; what was there goes.
    fn fill(&mut self, slot: u64) -> bool {
        let change = self.ordered.change().unwrap();
        let Some(unit) = UNITS.into_iter().find(|unit| !self.units.taken.lock().contains(unit)) else {
            drop(change);
            return self.ordered.release().unwrap();
        };
        self.tag = self.tag % 250 + 1;
        self.units.taken.lock().insert(unit);
        self.device.write_at(unit * BLOCK, &[self.tag; BLOCK as usize]).unwrap();
        self.units.set(&change, unit, true).unwrap();
        self.point(&change, Stage::Attach, slot, (unit, self.tag));
        if let Some((old, _)) = self.slots.insert(slot, (unit, self.tag)) {
            change.free(old..old + 1);
        }
        true
    }

    fn empty(&mut self, slot: u64) {
        let change = self.ordered.change().unwrap();
        if let Some((unit, _)) = self.slots.remove(&slot) {
            self.point(&change, Stage::Detach, slot, (0, 0));
            change.free(unit..unit + 1);
        }
    }

    fn rename(&mut self, from: u64, to: u64) {
        let change = self.ordered.change().unwrap();
        let Some(moved) = self.slots.remove(&from) else { return };
        self.point(&change, Stage::Detach, from, (0, 0));
        self.point(&change, Stage::Attach, to, moved);
        if let Some((old, _)) = self.slots.insert(to, moved) {
            change.free(old..old + 1);
        }
    }
}

/// What a crash may leave: every pointer leads to a unit that is marked as taken in both copies or as lost in one, is its own and holds what it should.
fn check(image: &dyn Device, written: bool) -> BTreeMap<u64, (u64, u8)> {
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        image.read_at(block * BLOCK, &mut bytes).unwrap();
        bytes
    };
    assert!(!written || read(MARK)[0] == 1, "written to without the dirty mark");
    let (marks, copy) = (read(MARKS), read(COPY));
    let mut found = BTreeMap::new();
    let mut owned = BTreeSet::new();
    for slot in 0..(POINTERS.end - POINTERS.start) * SLOTS {
        let block = read(POINTERS.start + slot / SLOTS);
        let at = (slot % SLOTS * 2) as usize;
        let (unit, tag) = (u64::from(block[at]), block[at + 1]);
        if unit == 0 {
            continue;
        }
        assert!(owned.insert(unit), "unit {unit} is behind two pointers");
        assert!(marks[unit as usize] == 1 && copy[unit as usize] == 1, "unit {unit} is not marked as taken");
        assert!(read(unit).iter().all(|byte| *byte == tag), "unit {unit} holds what is another's");
        found.insert(slot, (unit, tag));
    }
    found
}

fn explore(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new();
    // What was synced, at which length of the record.
    let mut synced = vec![(0, BTreeMap::new())];
    for _ in 0..60 {
        let slot = rng.random_range(0..24);
        match rng.random_range(0..12) {
            0..5 => drop(world.fill(slot)),
            5..7 => world.empty(slot),
            7..9 => {
                let to = rng.random_range(0..24);
                if to != slot {
                    // A slot that was filled from another may be emptied and filled within one batch.
                    world.rename(slot, to);
                }
            }
            9 => {
                world.ordered.sync().unwrap();
                synced.push((world.device.len(), world.slots.clone()));
            }
            _ => drop(world.ordered.release().unwrap()),
        }
    }
    world.ordered.close().unwrap();
    assert!(matches!(world.ordered.change(), Err(OrderedError::Closed)));
    let end = world.device.image(world.device.len()).unwrap();
    assert_eq!(check(&end, false), world.slots);
    let mut byte = [9];
    end.read_at(MARK * BLOCK, &mut byte).unwrap();
    assert_eq!(byte[0], 0, "the dirty mark goes at the end");
    let mut marks = vec![0; BLOCK as usize];
    end.read_at(MARKS * BLOCK, &mut marks).unwrap();
    let marked: BTreeSet<u64> = (0..BLOCK).filter(|unit| marks[*unit as usize] == 1).collect();
    assert_eq!(marked, world.slots.values().map(|(unit, _)| *unit).collect(), "all that was freed is free");

    let record = world.device.record();
    let last_flush = record.iter().rposition(|entry| matches!(entry, Recorded::Flush)).unwrap();
    // The first write is that of the mark, and the last one takes it away.
    let first = record.iter().position(|entry| matches!(entry, Recorded::Write { .. })).unwrap();
    let marked = first + record[first..].iter().position(|entry| matches!(entry, Recorded::Flush)).unwrap();
    for at in 0..last_flush {
        for _ in 0..3 {
            let salt: u64 = rng.random();
            let image =
                world.device.image_where(at, |nth| salt.rotate_left(nth as u32 % 64) & 1 == 0).unwrap();
            check(&image, at > marked && at < last_flush - 1);
        }
    }
    for (at, slots) in synced {
        let image = world.device.image(at).unwrap();
        assert_eq!(check(&image, false), slots, "what was synced is there");
    }
}

#[test]
fn whatever_a_crash_leaves_points_to_what_is_its_own() {
    (0..40).for_each(explore);
}

#[test]
fn a_failed_write_ends_it() {
    let mut world = World::new();
    world.fill(1);
    world.ordered.sync().unwrap();
    world.fill(2);
    world.device.fail_writes_from(Some(world.device.writes()));
    assert!(world.ordered.sync().is_err());
    world.device.fail_writes_from(None);
    assert!(matches!(world.ordered.change().map(drop), Err(OrderedError::Stopped { .. })));
    assert!(world.ordered.sync().is_err() && world.ordered.close().is_err());
    assert!(world.ordered.stopped().is_some());
}

#[test]
fn the_timer_brings_changes_home() {
    let device = Arc::new(MemDevice::new(UNITS.end * BLOCK));
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK as u32, Arc::new(Budget::unlimited())));
    let units = Arc::new(Units { cache: cache.clone(), taken: Mutex::default() });
    let options = OrderedOptions { interval: Duration::from_millis(20), ..OrderedOptions::default() };
    let ordered = Ordered::new(cache.clone(), units, options).unwrap();
    let change = ordered.change().unwrap();
    change.put(&cache.get(7).unwrap(), Stage::Attach, |bytes| bytes[3] = 9);
    let ticket = change.ticket();
    drop(change);
    let mut byte = [0];
    for _ in 0..500 {
        device.read_at(7 * BLOCK + 3, &mut byte).unwrap();
        if byte[0] == 9 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(byte[0], 9);
    let runs = ordered.figures().runs;
    ordered.settle(ticket).unwrap();
    assert!(ordered.figures().runs <= runs + 1);
}
