//! Directories: their entries in memory, and adding and removing some.
//!
//! An entry is a run of slots, the parts of a long name and then the short one. What is written for one name at one time should lie in one sector, which is written whole or
//! not at all: so room for a name is looked for within sectors. Only names of more parts than a sector holds straddle; the parts apart from the
//! short entry are written before it and removed after it, and a crash between leaves parts that belong to nothing, which everybody skips.

use crate::cluster::Cluster;
use crate::fat::{Fat, Node, State};
use crate::layout::{END, FREE, MOST_SLOTS, RawEntry, RawLong, SLOT, attr};
use crate::names::{self, LongName};
use crate::places::Place;
use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::{Error, Inode, NameError, Result};
use ivers_write_ordering::{Change, Stage};
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// A name in a directory.
pub(crate) struct Named {
    /// The slot of its first part.
    pub first: u32,
    pub is_dir: bool,
    /// As it is shown.
    pub name: Box<str>,
    /// All spellings of its short name.
    short: Box<str>,
}

/// What a directory holds, by slot of the short entries and by all spellings.
pub(crate) struct Index {
    pub names: HashMap<String, u32>,
    pub entries: BTreeMap<u32, Named>,
    used: Vec<bool>,
    /// Where room was found last: what lies before it is mostly full.
    hint: u32,
    /// The first slot that was never used; what lies behind it says nothing.
    end: u32,
}

impl Index {
    fn insert(&mut self, first: u32, slot: u32, is_dir: bool, name: &str, short: &str) {
        let key = |name: &str| names::folded(name.as_bytes()).unwrap_or_default();
        let named = Named { first, is_dir, name: name.into(), short: key(short).into() };
        for key in [key(name), key(short)] {
            // Of two files with one name the first is found.
            self.names.entry(key).or_insert(slot);
        }
        self.use_slots(first..slot + 1);
        self.entries.insert(slot, named);
    }

    fn use_slots(&mut self, slots: Range<u32>) {
        self.end = self.end.max(slots.end);
        slots.for_each(|slot| self.used[slot as usize] = true);
    }

    fn remove(&mut self, slot: u32) -> Option<Named> {
        self.disown(slot);
        let named = self.entries.remove(&slot)?;
        self.hint = self.hint.min(named.first);
        (named.first..=slot).for_each(|slot| self.used[slot as usize] = false);
        Some(named)
    }

    /// Free slots one behind the other, within a sector if so many fit one.
    fn room(&mut self, count: u32, per_sector: u32) -> Option<u32> {
        let total = self.used.len() as u32;
        for from in [self.hint - self.hint % per_sector, 0] {
            let mut run = 0;
            for slot in from..total {
                if count <= per_sector && slot.is_multiple_of(per_sector) {
                    run = 0;
                }
                run = if self.used[slot as usize] { 0 } else { run + 1 };
                if run == count {
                    self.hint = slot + 1 - count;
                    return Some(self.hint);
                }
            }
        }
        None
    }

    /// Forget the spellings of a name that will go.
    fn disown(&mut self, slot: u32) {
        let Some(named) = self.entries.get(&slot) else { return };
        let long = names::folded(named.name.as_bytes()).unwrap_or_default();
        for key in [&long[..], &named.short] {
            if self.names.get(key) == Some(&slot) {
                self.names.remove(key);
            }
        }
    }

    pub fn subdirs(&self) -> u32 {
        self.entries.values().filter(|named| named.is_dir).count() as u32
    }
}

impl Fat {
    /// How many slots a directory has; its chain is known from then on.
    pub(crate) fn slots(&self, state: &mut State) -> Result<u32> {
        if state.fixed_root {
            return Ok(self.geometry.root_entries);
        }
        let most = u64::from(MOST_SLOTS) * SLOT / u64::from(self.geometry.cluster);
        state.chain.know(&self.table, most + 1)?;
        if state.chain.len() > most {
            return Err(Error::corrupt(
                "a directory of more than 65536 entries, or a loop",
                self.name_of(state),
            ));
        }
        let slots = state.chain.len() * u64::from(self.geometry.cluster) / SLOT;
        if slots == 0 {
            return Err(Error::corrupt("a directory without clusters", self.name_of(state)));
        }
        Ok(slots as u32)
    }

    /// Where a slot that there is lies.
    fn place_of_slot(&self, state: &State, slot: u32) -> Result<Place> {
        let byte = u64::from(slot) * SLOT;
        if state.fixed_root {
            return Ok((self.geometry.root_byte + byte).0 / SLOT);
        }
        let pieces = state.chain.pieces(&self.geometry, byte, SLOT)?;
        Ok(pieces[0].0.0 / SLOT)
    }

    /// The sector of a place, and the byte in it.
    fn sector_of(&self, place: Place) -> (BlockNo, usize) {
        let (byte, sector) = (place * SLOT, self.geometry.sector);
        (ByteOffset(byte).block(sector), (byte % u64::from(sector)) as usize)
    }

    pub(crate) fn entry(&self, place: Place) -> Result<RawEntry> {
        let (sector, at) = self.sector_of(place);
        let buffer = self.cache.get(sector)?.read();
        RawEntry::read_from_bytes(&buffer[at..at + SLOT as usize])
            .map_err(|_| Error::corrupt("an entry that is cut short", format!("sector {sector}")))
    }

    pub(crate) fn put_entry(
        &self,
        change: &Change<'_>,
        stage: Stage,
        place: Place,
        bytes: &[u8],
    ) -> Result<()> {
        let (sector, at) = self.sector_of(place);
        let buffer = self.cache.get(sector)?;
        change.put(&buffer, stage, |sector| sector[at..at + bytes.len()].copy_from_slice(bytes));
        Ok(())
    }

    /// Every slot of a directory up to its end, which is where it breaks.
    pub(crate) fn each_slot(
        &self,
        state: &mut State,
        mut look: impl FnMut(u32, &RawEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let slots = self.slots(state)?;
        let per_sector = self.geometry.sector / SLOT as u32;
        for start in (0..slots).step_by(per_sector as usize) {
            let (sector, _) = self.sector_of(self.place_of_slot(state, start)?);
            let buffer = self.cache.get(sector)?.read();
            for (slot, bytes) in (start..slots).zip(buffer.chunks_exact(SLOT as usize)) {
                let Ok(entry) = RawEntry::read_from_bytes(bytes) else { continue };
                if entry.dir_name[0] == END || look(slot, &entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The index of a directory, made if it is not there.
    pub(crate) fn index<'a>(&self, node: &Arc<Node>, state: &'a mut State) -> Result<&'a mut Index> {
        if state.index.is_none() {
            let slots = self.slots(state)?;
            let mut index = Index {
                names: HashMap::new(),
                entries: BTreeMap::new(),
                used: vec![false; slots as usize],
                hint: 0,
                end: 0,
            };
            let mut long = LongName::default();
            self.each_slot(state, |slot, entry| {
                index.end = slot + 1;
                index.used[slot as usize] = entry.dir_name[0] != FREE;
                if entry.dir_name[0] != FREE && entry.dir_attr & attr::LONG_NAME_MASK == attr::LONG_NAME {
                    if let Ok(part) = RawLong::read_from_bytes(entry.as_bytes()) {
                        long.take(slot, &part);
                    }
                    return ControlFlow::Continue(());
                }
                let long = std::mem::take(&mut long).finish(&entry.dir_name);
                let short = names::shown(&entry.dir_name, entry.dir_nt_res);
                let dots = matches!(&entry.dir_name, b".          " | b"..         ");
                if entry.is_in_use() && !dots && !short.is_empty() {
                    let (name, first) = long.unwrap_or((short.clone(), slot));
                    index.insert(first, slot, entry.is_directory(), &name, &short);
                }
                ControlFlow::Continue(())
            })?;
            self.indexed(node, index.entries.len() + slots as usize / 16);
            state.index = Some(index);
        }
        Ok(state.index.as_mut().expect("made above"))
    }

    /// The place of a name.
    pub(crate) fn find_name(
        &self,
        node: &Arc<Node>,
        state: &mut State,
        name: &[u8],
    ) -> Result<Option<Place>> {
        let Some(key) = names::folded(name) else { return Ok(None) };
        match self.index(node, state)?.names.get(&key).copied() {
            Some(slot) => self.place_of_slot(state, slot).map(Some),
            None => Ok(None),
        }
    }

    /// The places of all names from a slot on, until `look` breaks.
    pub(crate) fn each_name(
        &self,
        node: &Arc<Node>,
        state: &mut State,
        from: u32,
        mut look: impl FnMut(u32, Place, &Named) -> ControlFlow<()>,
    ) -> Result<()> {
        self.index(node, state)?;
        let Some(index) = &state.index else { return Ok(()) };
        for (slot, named) in index.entries.range(from..) {
            if look(*slot, self.place_of_slot(state, *slot)?, named).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The directory of this first cluster that is named in the directory of that one.
    pub(crate) fn find_directory(&self, state: &mut State, cluster: Cluster) -> Result<Option<Place>> {
        let mut found = None;
        self.each_slot(state, |slot, entry| {
            let dots = entry.dir_name[0] == b'.';
            let is_it = entry.is_in_use() && entry.is_directory() && !dots;
            if is_it && entry.first_cluster(self.geometry.bits) == cluster {
                found = Some(slot);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        found.map(|slot| self.place_of_slot(state, slot)).transpose()
    }

    /// One more cluster, of zeros.
    fn grow(&self, change: &Change<'_>, state: &mut State) -> Result<()> {
        let slots = self.slots(state)?;
        if state.fixed_root || slots >= MOST_SLOTS {
            return Err(NameError::NoSpace.into());
        }
        state.chain.know_all(&self.table)?;
        let tail = state.chain.tail();
        let runs = self.table.pick(1, 0, tail.map_or(Cluster::NONE, |tail| tail + 1))?;
        self.zeroed(change, runs[0].start)?;
        self.table.chain_up(change, &runs, tail)?;
        state.chain.append(&runs);
        let slots = self.slots(state)?;
        if let Some(index) = &mut state.index {
            index.used.resize(slots as usize, false);
        }
        Ok(())
    }

    /// A cluster for a directory: nothing in it is an entry.
    pub(crate) fn zeroed(&self, change: &Change<'_>, cluster: Cluster) -> Result<()> {
        let first = self.geometry.cluster_byte(cluster).block(self.geometry.sector);
        for sector in first.run(u64::from(self.geometry.cluster / self.geometry.sector)) {
            change.fresh(sector).map_err(crate::table::order_error)?;
        }
        Ok(())
    }

    /// Put a name into a directory; says where its short entry is. `instead`: the slot of a name that will go for it.
    pub(crate) fn add_name(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        name: &[u8],
        mut entry: RawEntry,
        instead: Option<u32>,
    ) -> Result<Place> {
        let units = names::checked(name)?;
        let per_sector = self.geometry.sector / SLOT as u32;
        let mut state = node.state.lock();
        let index = self.index(node, &mut state)?;
        let taken = |key: &str| index.names.get(key).is_some_and(|slot| Some(*slot) != instead);
        let (short, long) = names::written(&units, taken)?;
        let count = long.len() as u32 + 1;
        let in_place = instead.and_then(|slot| {
            let first = index.entries.get(&slot)?.first;
            let fits = count <= slot + 1 - first && first / per_sector == slot / per_sector;
            fits.then_some((first, slot))
        });
        let (start, slot) = match in_place {
            Some((first, slot)) => {
                index.remove(slot);
                // What the old name had more is given up with the same write.
                for freed in first..slot + 1 - count {
                    let place = self.place_of_slot(&state, freed)?;
                    self.put_entry(change, Stage::Attach, place, &[FREE])?;
                }
                (slot + 1 - count, slot)
            }
            None => {
                let start = loop {
                    match self.index(node, &mut state)?.room(count, per_sector) {
                        Some(start) => break start,
                        None => self.grow(change, &mut state)?,
                    }
                };
                (start, start + count - 1)
            }
        };
        let (end, slots) = {
            let index = self.index(node, &mut state)?;
            (index.end, index.used.len() as u32)
        };
        // Nothing behind a slot of zeros is an entry: no such slot may stay before this one, and one must follow.
        for skipped in end..start {
            let place = self.place_of_slot(&state, skipped)?;
            self.put_entry(change, Stage::Fresh, place, &[FREE])?;
        }
        if slot + 1 > end && slot + 1 < slots {
            let place = self.place_of_slot(&state, slot + 1)?;
            if self.entry(place)?.dir_name[0] != END {
                self.put_entry(change, Stage::Fresh, place, &[END])?;
            }
        }
        let sector_of = |slot: u32| slot / per_sector;
        for (at, part) in (start..).zip(&long) {
            let stage = if sector_of(at) == sector_of(slot) { Stage::Attach } else { Stage::Turn };
            let place = self.place_of_slot(&state, at)?;
            self.put_entry(change, stage, place, part.as_bytes())?;
        }
        (entry.dir_name, entry.dir_nt_res) = (short, 0);
        let place = self.place_of_slot(&state, slot)?;
        self.put_entry(change, Stage::Attach, place, entry.as_bytes())?;
        let shown = names::shown(&short, 0);
        let long_shown = String::from_utf8_lossy(names::stripped(name));
        let name = if long.is_empty() { shown.as_str() } else { &long_shown };
        let index = self.index(node, &mut state)?;
        if let Some(old) = instead.filter(|old| *old != slot) {
            index.disown(old);
        }
        index.insert(start, slot, entry.is_directory(), name, &shown);
        Ok(place)
    }

    /// The slot of a name that there is.
    pub(crate) fn slot_of(&self, node: &Arc<Node>, name: &[u8]) -> Result<u32> {
        let key = names::folded(name).ok_or(NameError::NotFound)?;
        let mut state = node.state.lock();
        Ok(self.index(node, &mut state)?.names.get(&key).copied().ok_or(NameError::NotFound)?)
    }

    /// The sectors that a name's slots are in, the first and the last.
    pub(crate) fn sectors_of(&self, node: &Arc<Node>, slot: u32) -> Result<(BlockNo, BlockNo)> {
        let mut state = node.state.lock();
        let first = self.index(node, &mut state)?.entries.get(&slot).map_or(slot, |named| named.first);
        let sector = |slot| Ok::<_, Error>(self.sector_of(self.place_of_slot(&state, slot)?).0);
        Ok((sector(first)?, sector(slot)?))
    }

    /// Take a name out of a directory, at this stage: what of it lies in other sectors later.
    pub(crate) fn remove_name(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        slot: u32,
        stage: Stage,
    ) -> Result<()> {
        let mut state = node.state.lock();
        let named = self.index(node, &mut state)?.remove(slot).ok_or(NameError::NotFound)?;
        let (own, _) = self.sector_of(self.place_of_slot(&state, slot)?);
        for at in named.first..=slot {
            let place = self.place_of_slot(&state, at)?;
            let stage = if self.sector_of(place).0 == own { stage } else { Stage::Attach };
            self.put_entry(change, stage, place, &[FREE])?;
        }
        Ok(())
    }

    /// Another file is behind a name from now on.
    pub(crate) fn repoint(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        slot: u32,
        mut entry: RawEntry,
    ) -> Result<Place> {
        let mut state = node.state.lock();
        let named = self.index(node, &mut state)?.entries.get_mut(&slot).ok_or(NameError::NotFound)?;
        named.is_dir = entry.is_directory();
        let place = self.place_of_slot(&state, slot)?;
        let old = self.entry(place)?;
        (entry.dir_name, entry.dir_nt_res) = (old.dir_name, old.dir_nt_res);
        self.put_entry(change, Stage::Attach, place, entry.as_bytes())?;
        Ok(place)
    }

    pub(crate) fn check_empty(&self, dir: &Inode) -> Result<()> {
        let node = crate::fat::node(dir);
        let mut state = node.state.lock();
        if self.index(node, &mut state)?.entries.is_empty() {
            Ok(())
        } else {
            Err(NameError::NotEmpty.into())
        }
    }
}
