//! Random changes of a volume of pointers and units, with a crash at every write: each pointer leads to a
//! complete unit that belongs to no other pointer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ivers_block::{BlockNo, Budget, BufferCache, ByteOffset, Device, FaultDevice, MemDevice, Recorded};
use ivers_write_ordering::{Change, Mirror, Ordered, OrderedError, OrderedOptions, Result, Stage, Volume};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: u64 = 512;
/// The blocks of the dirty mark, the allocation marks and their copy, the pointers, the units.
const MARK: u64 = 0;
const MARKS: u64 = 1;
const COPY: u64 = 2;
const POINTERS: Range<u64> = 3..6;
const UNITS: Range<u64> = 8..40;
/// Pointers in a block. A pointer has a unit and the byte that the unit holds.
const SLOTS: u64 = 8;

struct Units {
    cache: Arc<BufferCache>,
    taken: Mutex<BTreeSet<u64>>,
}

impl Units {
    fn set(&self, change: &Change<'_>, unit: u64, taken: bool) -> Result<()> {
        let marks = self.cache.get(BlockNo(MARKS))?;
        change.put(&marks, Stage::Fresh, |bytes| bytes[unit as usize] = u8::from(taken));
        Ok(())
    }
}

impl Volume for Units {
    fn mark(&self, change: &Change<'_>, dirty: bool) -> Result<()> {
        change.put(&self.cache.get(BlockNo(MARK))?, Stage::Fresh, |bytes| bytes[0] = u8::from(dirty));
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

struct Fixture {
    device: Arc<FaultDevice>,
    units: Arc<Units>,
    ordered: Ordered,
    /// What each slot points to.
    slots: BTreeMap<u64, (u64, u8)>,
    tag: u8,
}

impl Fixture {
    fn new() -> Self {
        let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(UNITS.end * BLOCK))));
        let cache = Arc::new(BufferCache::new(device.clone(), BLOCK as u32, Arc::new(Budget::new(4 << 10))));
        let units = Arc::new(Units { cache: cache.clone(), taken: Mutex::default() });
        let options = OrderedOptions {
            interval: Duration::from_secs(3600),
            mirror: Some(Mirror { first: BlockNo(MARKS)..BlockNo(MARKS + 1), copies: 1 }),
            ..OrderedOptions::default()
        };
        let ordered = Ordered::new(cache, units.clone(), options).unwrap();
        Self { device, units, ordered, slots: BTreeMap::new(), tag: 0 }
    }

    fn point(&self, change: &Change<'_>, stage: Stage, slot: u64, to: (u64, u8)) {
        let buffer = self.units.cache.get(BlockNo(POINTERS.start + slot / SLOTS)).unwrap();
        let at = (slot % SLOTS * 2) as usize;
        change.put(&buffer, stage, |bytes| bytes[at..at + 2].copy_from_slice(&[to.0 as u8, to.1]));
    }

    /// Makes a slot point to a new unit and frees the old one.
    fn fill(&mut self, slot: u64) -> bool {
        let change = self.ordered.change().unwrap();
        let Some(unit) = UNITS.into_iter().find(|unit| !self.units.taken.lock().contains(unit)) else {
            drop(change);
            return self.ordered.release().unwrap();
        };
        self.tag = self.tag % 250 + 1;
        self.units.taken.lock().insert(unit);
        self.device.write_at(ByteOffset(unit * BLOCK), &[self.tag; BLOCK as usize]).unwrap();
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

/// Asserts what holds after a crash: each unit that a pointer leads to is marked as used in both copies,
/// belongs to one pointer and holds the byte of that pointer. Returns the pointers.
fn check(image: &dyn Device, written: bool) -> BTreeMap<u64, (u64, u8)> {
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        image.read_at(ByteOffset(block * BLOCK), &mut bytes).unwrap();
        bytes
    };
    assert!(!written || read(MARK)[0] == 1, "written without the dirty mark");
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
        assert!(owned.insert(unit), "two pointers lead to unit {unit}");
        assert!(marks[unit as usize] == 1 && copy[unit as usize] == 1, "unit {unit} is not marked as used");
        assert!(read(unit).iter().all(|byte| *byte == tag), "unit {unit} holds the bytes of another");
        found.insert(slot, (unit, tag));
    }
    found
}

fn explore(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut fixture = Fixture::new();
    // The slots at each sync, with the length of the record.
    let mut synced = vec![(0, BTreeMap::new())];
    for _ in 0..60 {
        let slot = rng.random_range(0..24);
        match rng.random_range(0..12) {
            0..5 => drop(fixture.fill(slot)),
            5..7 => fixture.empty(slot),
            7..9 => {
                let to = rng.random_range(0..24);
                if to != slot {
                    // A slot may be moved, emptied and filled within one batch.
                    fixture.rename(slot, to);
                }
            }
            9 => {
                fixture.ordered.sync().unwrap();
                synced.push((fixture.device.len(), fixture.slots.clone()));
            }
            _ => drop(fixture.ordered.release().unwrap()),
        }
    }
    fixture.ordered.close().unwrap();
    assert!(matches!(fixture.ordered.change(), Err(OrderedError::Closed)));
    let end = fixture.device.image(fixture.device.len()).unwrap();
    assert_eq!(check(&end, false), fixture.slots);
    let mut byte = [9];
    end.read_at(ByteOffset(MARK * BLOCK), &mut byte).unwrap();
    assert_eq!(byte[0], 0, "the dirty mark is removed at the end");
    let mut marks = vec![0; BLOCK as usize];
    end.read_at(ByteOffset(MARKS * BLOCK), &mut marks).unwrap();
    let marked: BTreeSet<u64> = (0..BLOCK).filter(|unit| marks[*unit as usize] == 1).collect();
    assert_eq!(
        marked,
        fixture.slots.values().map(|(unit, _)| *unit).collect(),
        "all freed units are marked as free"
    );

    let record = fixture.device.record();
    let last_flush = record.iter().rposition(|entry| matches!(entry, Recorded::Flush)).unwrap();
    // The first write sets the dirty mark and the last one removes it.
    let first = record.iter().position(|entry| matches!(entry, Recorded::Write { .. })).unwrap();
    let marked = first + record[first..].iter().position(|entry| matches!(entry, Recorded::Flush)).unwrap();
    for at in 0..last_flush {
        for _ in 0..3 {
            let salt: u64 = rng.random();
            let image =
                fixture.device.image_where(at, |nth| salt.rotate_left(nth as u32 % 64) & 1 == 0).unwrap();
            check(&image, at > marked && at < last_flush - 1);
        }
    }
    for (at, slots) in synced {
        let image = fixture.device.image(at).unwrap();
        assert_eq!(check(&image, false), slots, "synced changes survive");
    }
}

#[test]
fn after_a_crash_each_pointer_leads_to_its_own_complete_unit() {
    (0..40).for_each(explore);
}

#[test]
fn a_failed_write_stops_all_writing() {
    let mut fixture = Fixture::new();
    fixture.fill(1);
    fixture.ordered.sync().unwrap();
    fixture.fill(2);
    fixture.device.fail_writes_from(Some(fixture.device.writes()));
    assert!(fixture.ordered.sync().is_err());
    fixture.device.fail_writes_from(None);
    assert!(matches!(fixture.ordered.change().map(drop), Err(OrderedError::Stopped { .. })));
    assert!(fixture.ordered.sync().is_err() && fixture.ordered.close().is_err());
    assert!(fixture.ordered.stopped().is_some());
}

#[test]
fn the_timer_writes_changes() {
    let device = Arc::new(MemDevice::new(UNITS.end * BLOCK));
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK as u32, Arc::new(Budget::unlimited())));
    let units = Arc::new(Units { cache: cache.clone(), taken: Mutex::default() });
    let options = OrderedOptions { interval: Duration::from_millis(20), ..OrderedOptions::default() };
    let ordered = Ordered::new(cache.clone(), units, options).unwrap();
    let change = ordered.change().unwrap();
    change.put(&cache.get(BlockNo(7)).unwrap(), Stage::Attach, |bytes| bytes[3] = 9);
    let ticket = change.ticket();
    drop(change);
    let mut byte = [0];
    for _ in 0..500 {
        device.read_at(ByteOffset(7 * BLOCK + 3), &mut byte).unwrap();
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
