//! Directories: their entries in memory, adding and removing names.
//!
//! A directory consists of slots of 32 bytes. A name occupies consecutive slots: the parts of the long name,
//! and then the short entry.
//!
//! A sector is written completely or not at all, so the slots of a name are in one sector if they fit. A
//! longer name spans sectors. Its parts in other sectors than the short entry are written before the short
//! entry and removed after it. A crash in between leaves parts without a short entry, which readers ignore.

use crate::cluster::Cluster;
use crate::fs::{Fat, FatInode, InodeState, fat_inode, order_error};
use crate::ino_map::EntryPos;
use crate::layout::{END, FREE, MAX_SLOTS, RawEntry, RawLong, SLOT_BYTES, attr};
use crate::names::{self, LongName};
use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::{Error, Inode, NameError, Result};
use ivers_write_ordering::{Change, Stage};
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// A name of a directory in memory. Its key is the slot of the short entry.
pub(crate) struct IndexedName {
    /// The first slot of the name.
    pub first: u32,
    pub is_dir: bool,
    /// The name that `readdir` returns.
    pub name: Box<str>,
    /// The folded short name.
    short: Box<str>,
}

/// The names of a directory in memory.
pub(crate) struct Index {
    /// The slot of the short entry, by folded name: that of the long name and of the short name.
    pub names: HashMap<String, u32>,
    /// The names by the slot of their short entry.
    pub entries: BTreeMap<u32, IndexedName>,
    /// Whether each slot is used.
    used: Vec<bool>,
    /// The slot at which free slots were found last. Most slots before it are used.
    hint: u32,
    /// The end of the used part of the directory. Slots from here on have undefined contents.
    end: u32,
}

impl Index {
    fn insert(&mut self, first: u32, slot: u32, is_dir: bool, name: &str, short: &str) {
        let key = |name: &str| names::folded(name.as_bytes()).unwrap_or_default();
        let named = IndexedName { first, is_dir, name: name.into(), short: key(short).into() };
        for key in [key(name), key(short)] {
            // If two files have the same name, the first is found.
            self.names.entry(key).or_insert(slot);
        }
        self.use_slots(first..slot + 1);
        self.entries.insert(slot, named);
    }

    fn use_slots(&mut self, slots: Range<u32>) {
        self.end = self.end.max(slots.end);
        slots.for_each(|slot| self.used[slot as usize] = true);
    }

    fn remove(&mut self, slot: u32) -> Option<IndexedName> {
        self.remove_spellings(slot);
        let named = self.entries.remove(&slot)?;
        self.hint = self.hint.min(named.first);
        (named.first..=slot).for_each(|slot| self.used[slot as usize] = false);
        Some(named)
    }

    /// Returns the first of `count` consecutive free slots. They are in one sector if they fit into one.
    fn find_free(&mut self, count: u32, per_sector: u32) -> Option<u32> {
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

    /// Removes a name from `names`. Its slots stay used.
    fn remove_spellings(&mut self, slot: u32) {
        let Some(named) = self.entries.get(&slot) else { return };
        let long = names::folded(named.name.as_bytes()).unwrap_or_default();
        for key in [&long[..], &named.short] {
            if self.names.get(key) == Some(&slot) {
                self.names.remove(key);
            }
        }
    }

    /// Returns the number of subdirectories.
    pub fn subdirs(&self) -> u32 {
        self.entries.values().filter(|named| named.is_dir).count() as u32
    }
}

impl Fat {
    /// Returns the number of slots of a directory. Loads its chain.
    pub(crate) fn slots(&self, state: &mut InodeState) -> Result<u32> {
        if state.fixed_root {
            return Ok(self.geometry.root_entries);
        }
        let max = u64::from(MAX_SLOTS) * SLOT_BYTES / u64::from(self.geometry.cluster_bytes);
        state.chain.load(&self.table, max + 1)?;
        if state.chain.len() > max {
            return Err(Error::corrupt(
                "a directory has more than 65536 slots, or its chain contains a loop",
                self.describe_inode(state),
            ));
        }
        let slots = state.chain.len() * u64::from(self.geometry.cluster_bytes) / SLOT_BYTES;
        if slots == 0 {
            return Err(Error::corrupt("a directory has no clusters", self.describe_inode(state)));
        }
        Ok(slots as u32)
    }

    /// Returns the position of an existing slot.
    fn pos_of_slot(&self, state: &InodeState, slot: u32) -> Result<EntryPos> {
        let byte = u64::from(slot) * SLOT_BYTES;
        if state.fixed_root {
            return Ok((self.geometry.root_offset + byte).0 / SLOT_BYTES);
        }
        let ranges = state.chain.device_ranges(&self.geometry, byte, SLOT_BYTES)?;
        Ok(ranges[0].0.0 / SLOT_BYTES)
    }

    /// Returns the sector of a position, and the byte in it.
    fn sector_of(&self, pos: EntryPos) -> (BlockNo, usize) {
        let (byte, sector) = (pos * SLOT_BYTES, self.geometry.sector_bytes);
        (ByteOffset(byte).block(sector), (byte % u64::from(sector)) as usize)
    }

    pub(crate) fn entry(&self, pos: EntryPos) -> Result<RawEntry> {
        let (sector, at) = self.sector_of(pos);
        let buffer = self.cache.get(sector)?.read();
        RawEntry::read_from_bytes(&buffer[at..at + SLOT_BYTES as usize])
            .map_err(|_| Error::corrupt("a directory entry is truncated", format!("sector {sector}")))
    }

    /// Writes the first bytes of an entry, or all of them.
    pub(crate) fn put_entry(
        &self,
        change: &Change<'_>,
        stage: Stage,
        pos: EntryPos,
        bytes: &[u8],
    ) -> Result<()> {
        let (sector, at) = self.sector_of(pos);
        let buffer = self.cache.get(sector)?;
        change.put(&buffer, stage, |sector| sector[at..at + bytes.len()].copy_from_slice(bytes));
        Ok(())
    }

    /// Calls `visit` for each slot up to the end of the directory, until it breaks.
    pub(crate) fn for_each_slot(
        &self,
        state: &mut InodeState,
        mut visit: impl FnMut(u32, &RawEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let slots = self.slots(state)?;
        let per_sector = self.geometry.sector_bytes / SLOT_BYTES as u32;
        for start in (0..slots).step_by(per_sector as usize) {
            let (sector, _) = self.sector_of(self.pos_of_slot(state, start)?);
            let buffer = self.cache.get(sector)?.read();
            for (slot, bytes) in (start..slots).zip(buffer.chunks_exact(SLOT_BYTES as usize)) {
                let Ok(entry) = RawEntry::read_from_bytes(bytes) else { continue };
                if entry.dir_name[0] == END || visit(slot, &entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the index of a directory. Creates it if it does not exist.
    pub(crate) fn index<'a>(&self, dir: &Arc<FatInode>, state: &'a mut InodeState) -> Result<&'a mut Index> {
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
            self.for_each_slot(state, |slot, entry| {
                index.end = slot + 1;
                index.used[slot as usize] = entry.dir_name[0] != FREE;
                if entry.dir_name[0] != FREE && entry.dir_attr & attr::LONG_NAME_MASK == attr::LONG_NAME {
                    if let Ok(part) = RawLong::read_from_bytes(entry.as_bytes()) {
                        long.add(slot, &part);
                    }
                    return ControlFlow::Continue(());
                }
                let long = std::mem::take(&mut long).finish(&entry.dir_name);
                let short = names::decode_short(&entry.dir_name, entry.dir_nt_res);
                let dots = matches!(&entry.dir_name, b".          " | b"..         ");
                if entry.is_in_use() && !dots && !short.is_empty() {
                    let (name, first) = long.unwrap_or((short.clone(), slot));
                    index.insert(first, slot, entry.is_directory(), &name, &short);
                }
                ControlFlow::Continue(())
            })?;
            self.index_created(dir, index.entries.len() + slots as usize / 16);
            state.index = Some(index);
        }
        Ok(state.index.as_mut().expect("created above"))
    }

    /// Returns the position of the short entry of a name.
    pub(crate) fn find_name(
        &self,
        dir: &Arc<FatInode>,
        state: &mut InodeState,
        name: &[u8],
    ) -> Result<Option<EntryPos>> {
        let Some(key) = names::folded(name) else { return Ok(None) };
        match self.index(dir, state)?.names.get(&key).copied() {
            Some(slot) => self.pos_of_slot(state, slot).map(Some),
            None => Ok(None),
        }
    }

    /// Calls `visit` for each name from slot `from` on, until it breaks.
    pub(crate) fn for_each_name(
        &self,
        dir: &Arc<FatInode>,
        state: &mut InodeState,
        from: u32,
        mut visit: impl FnMut(u32, EntryPos, &IndexedName) -> ControlFlow<()>,
    ) -> Result<()> {
        self.index(dir, state)?;
        let Some(index) = &state.index else { return Ok(()) };
        for (slot, named) in index.entries.range(from..) {
            if visit(*slot, self.pos_of_slot(state, *slot)?, named).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the position of the entry of the subdirectory that starts at `cluster`.
    pub(crate) fn find_directory(
        &self,
        state: &mut InodeState,
        cluster: Cluster,
    ) -> Result<Option<EntryPos>> {
        let mut found = None;
        self.for_each_slot(state, |slot, entry| {
            let dots = entry.dir_name[0] == b'.';
            let is_subdir = entry.is_in_use() && entry.is_directory() && !dots;
            if is_subdir && entry.first_cluster(self.geometry.bits) == cluster {
                found = Some(slot);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        found.map(|slot| self.pos_of_slot(state, slot)).transpose()
    }

    /// Adds a cluster of zeros to a directory. Returns `NoSpace` if the directory cannot grow.
    fn grow_directory(&self, change: &Change<'_>, state: &mut InodeState) -> Result<()> {
        let slots = self.slots(state)?;
        if state.fixed_root || slots >= MAX_SLOTS {
            return Err(NameError::NoSpace.into());
        }
        state.chain.load_all(&self.table)?;
        let tail = state.chain.tail();
        let runs = self.table.allocate(1, 0, tail.map_or(Cluster::NONE, |tail| tail + 1))?;
        self.zero_directory_cluster(change, runs[0].start)?;
        self.table.link_chain(change, &runs, tail)?;
        state.chain.append(&runs);
        let slots = self.slots(state)?;
        if let Some(index) = &mut state.index {
            index.used.resize(slots as usize, false);
        }
        Ok(())
    }

    /// Fills a cluster of a directory with zeros: it contains no entries.
    pub(crate) fn zero_directory_cluster(&self, change: &Change<'_>, cluster: Cluster) -> Result<()> {
        let first = self.geometry.cluster_offset(cluster).block(self.geometry.sector_bytes);
        for sector in first.run(u64::from(self.geometry.cluster_bytes / self.geometry.sector_bytes)) {
            change.fresh(sector).map_err(order_error)?;
        }
        Ok(())
    }

    /// Finds `count` free slots of a directory; makes it larger if it has none.
    fn find_slots(
        &self,
        change: &Change<'_>,
        dir: &Arc<FatInode>,
        state: &mut InodeState,
        count: u32,
    ) -> Result<u32> {
        let per_sector = self.geometry.sector_bytes / SLOT_BYTES as u32;
        loop {
            match self.index(dir, state)?.find_free(count, per_sector) {
                Some(start) => return Ok(start),
                None => self.grow_directory(change, state)?,
            }
        }
    }

    /// Prepares the slots around those from `start` to `slot`, which get entries.
    fn move_end(
        &self,
        change: &Change<'_>,
        dir: &Arc<FatInode>,
        state: &mut InodeState,
        start: u32,
        slot: u32,
    ) -> Result<()> {
        let (end, slots) = {
            let index = self.index(dir, state)?;
            (index.end, index.used.len() as u32)
        };
        // A zero slot ends the directory: there must be none before the new name and one after it.
        for skipped in end..start {
            let pos = self.pos_of_slot(state, skipped)?;
            self.put_entry(change, Stage::Fresh, pos, &[FREE])?;
        }
        if slot + 1 > end && slot + 1 < slots {
            let pos = self.pos_of_slot(state, slot + 1)?;
            if self.entry(pos)?.dir_name[0] != END {
                self.put_entry(change, Stage::Fresh, pos, &[END])?;
            }
        }
        Ok(())
    }

    /// Sets the label in the root directory, or removes it.
    pub(crate) fn put_label(
        &self,
        change: &Change<'_>,
        root: &Arc<FatInode>,
        label: Option<RawEntry>,
    ) -> Result<()> {
        let mut state = root.state.lock();
        let mut found = None;
        self.for_each_slot(&mut state, |slot, entry| {
            if entry.is_label() {
                found = Some(slot);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        match (found, label) {
            (None, None) => {}
            (Some(slot), Some(entry)) => {
                let pos = self.pos_of_slot(&state, slot)?;
                self.put_entry(change, Stage::Attach, pos, entry.as_bytes())?;
            }
            (Some(slot), None) => {
                let pos = self.pos_of_slot(&state, slot)?;
                self.put_entry(change, Stage::Detach, pos, &[FREE])?;
                self.index(root, &mut state)?.used[slot as usize] = false;
            }
            (None, Some(entry)) => {
                let slot = self.find_slots(change, root, &mut state, 1)?;
                self.move_end(change, root, &mut state, slot, slot)?;
                let pos = self.pos_of_slot(&state, slot)?;
                self.put_entry(change, Stage::Attach, pos, entry.as_bytes())?;
                self.index(root, &mut state)?.use_slots(slot..slot + 1);
            }
        }
        Ok(())
    }

    /// Adds a name to a directory. Returns the position of its short entry. `replaced_slot` is the slot of
    /// the old name of the same file, if this is a rename within the directory: the new name may use its
    /// slots.
    pub(crate) fn add_name(
        &self,
        change: &Change<'_>,
        dir: &Arc<FatInode>,
        name: &[u8],
        mut entry: RawEntry,
        replaced_slot: Option<u32>,
    ) -> Result<EntryPos> {
        let units = names::validate(name)?;
        let per_sector = self.geometry.sector_bytes / SLOT_BYTES as u32;
        let mut state = dir.state.lock();
        let index = self.index(dir, &mut state)?;
        let taken = |key: &str| index.names.get(key).is_some_and(|slot| Some(*slot) != replaced_slot);
        let (short, long) = names::encode(&units, taken)?;
        let count = long.len() as u32 + 1;
        let in_place = replaced_slot.and_then(|slot| {
            let first = index.entries.get(&slot)?.first;
            let fits = count <= slot + 1 - first && first / per_sector == slot / per_sector;
            fits.then_some((first, slot))
        });
        let (start, slot) = match in_place {
            Some((first, slot)) => {
                index.remove(slot);
                // The same write frees the other slots of the old name.
                for freed in first..slot + 1 - count {
                    let pos = self.pos_of_slot(&state, freed)?;
                    self.put_entry(change, Stage::Attach, pos, &[FREE])?;
                }
                (slot + 1 - count, slot)
            }
            None => {
                let start = self.find_slots(change, dir, &mut state, count)?;
                (start, start + count - 1)
            }
        };
        self.move_end(change, dir, &mut state, start, slot)?;
        let sector_of = |slot: u32| slot / per_sector;
        for (at, part) in (start..).zip(&long) {
            let stage = if sector_of(at) == sector_of(slot) { Stage::Attach } else { Stage::Turn };
            let pos = self.pos_of_slot(&state, at)?;
            self.put_entry(change, stage, pos, part.as_bytes())?;
        }
        (entry.dir_name, entry.dir_nt_res) = (short, 0);
        let pos = self.pos_of_slot(&state, slot)?;
        self.put_entry(change, Stage::Attach, pos, entry.as_bytes())?;
        let short_name = names::decode_short(&short, 0);
        let long_name = String::from_utf8_lossy(names::without_trailing_dots(name));
        let name = if long.is_empty() { short_name.as_str() } else { &long_name };
        let index = self.index(dir, &mut state)?;
        if let Some(old) = replaced_slot.filter(|old| *old != slot) {
            index.remove_spellings(old);
        }
        index.insert(start, slot, entry.is_directory(), name, &short_name);
        Ok(pos)
    }

    /// Returns the slot of the short entry of an existing name.
    pub(crate) fn slot_of(&self, dir: &Arc<FatInode>, name: &[u8]) -> Result<u32> {
        let key = names::folded(name).ok_or(NameError::NotFound)?;
        let mut state = dir.state.lock();
        Ok(self.index(dir, &mut state)?.names.get(&key).copied().ok_or(NameError::NotFound)?)
    }

    /// Returns the sectors of the first and the last slot of a name.
    pub(crate) fn sectors_of(&self, dir: &Arc<FatInode>, slot: u32) -> Result<(BlockNo, BlockNo)> {
        let mut state = dir.state.lock();
        let first = self.index(dir, &mut state)?.entries.get(&slot).map_or(slot, |named| named.first);
        let sector = |slot| Ok::<_, Error>(self.sector_of(self.pos_of_slot(&state, slot)?).0);
        Ok((sector(first)?, sector(slot)?))
    }

    /// Removes a name from a directory. `stage` applies to the sector of the short entry; slots in other
    /// sectors are freed in the stage `Attach`.
    pub(crate) fn remove_name(
        &self,
        change: &Change<'_>,
        dir: &Arc<FatInode>,
        slot: u32,
        stage: Stage,
    ) -> Result<()> {
        let mut state = dir.state.lock();
        let named = self.index(dir, &mut state)?.remove(slot).ok_or(NameError::NotFound)?;
        let (own, _) = self.sector_of(self.pos_of_slot(&state, slot)?);
        for at in named.first..=slot {
            let pos = self.pos_of_slot(&state, at)?;
            let stage = if self.sector_of(pos).0 == own { stage } else { Stage::Attach };
            self.put_entry(change, stage, pos, &[FREE])?;
        }
        Ok(())
    }

    /// Makes an existing name refer to another file. Returns the position of its short entry.
    pub(crate) fn set_target(
        &self,
        change: &Change<'_>,
        dir: &Arc<FatInode>,
        slot: u32,
        mut entry: RawEntry,
    ) -> Result<EntryPos> {
        let mut state = dir.state.lock();
        let named = self.index(dir, &mut state)?.entries.get_mut(&slot).ok_or(NameError::NotFound)?;
        named.is_dir = entry.is_directory();
        let pos = self.pos_of_slot(&state, slot)?;
        let old = self.entry(pos)?;
        (entry.dir_name, entry.dir_nt_res) = (old.dir_name, old.dir_nt_res);
        self.put_entry(change, Stage::Attach, pos, entry.as_bytes())?;
        Ok(pos)
    }

    /// Returns `NotEmpty` if a directory has names.
    pub(crate) fn check_empty(&self, dir: &Inode) -> Result<()> {
        let dir = fat_inode(dir);
        let mut state = dir.state.lock();
        if self.index(dir, &mut state)?.entries.is_empty() { Ok(()) } else { Err(NameError::NotEmpty.into()) }
    }
}
