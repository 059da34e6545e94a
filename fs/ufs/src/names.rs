//! Names: adding them to directories, and removing them.
//!
//! An entry stays where it is for as long as it exists. A name is removed by clearing the inode of its entry:
//! in [`Stage::Detach`] by an unlink, in [`Stage::Cut`] by a rename. An entry that the batch itself added is
//! cleared in [`Stage::Attach`], and so is one whose new name is in the same unit. A name is added in
//! [`Stage::Attach`], in free space of a unit. So a unit is valid after every stage.

use crate::alloc::order_error;
use crate::layout::dinode::{Dinode, set_links, stored_links};
use crate::layout::directory::{
    DOT_BYTES, Entry, KIND_AT, LENGTH_AT, NAME_MAX, UNIT_BYTES, entry, entry_bytes, put_entry,
};
use crate::layout::{Fields, FieldsMut};
use crate::volume::{State, Ufs, private_of};
use ivers_block::BlockNo;
use ivers_vfs::{Error, FileType, Ino, Inode, Logged, NameError, Result, Touch};
use ivers_write_ordering::{Change, Stage};
use std::collections::{BTreeSet, HashSet};
use std::ops::{ControlFlow, Range};

/// Free space in a unit: an entry with more bytes than it uses, perhaps with free entries after it.
pub(crate) struct Space {
    /// The byte of the directory at which the entry is.
    at: u64,
    /// Bytes that the entry uses; 0 if it is free.
    used: usize,
    /// Bytes of the entry, with those of the free entries after it.
    total: usize,
}

/// An entry to add or to change.
#[derive(Clone, Copy)]
pub(crate) struct NewName<'a> {
    pub name: &'a [u8],
    pub ino: u32,
    pub kind: FileType,
}

impl NewName<'_> {
    fn entry(&self) -> Entry<'_> {
        Entry { ino: self.ino, kind: (self.kind.mode_bits() >> 12) as u8, name: self.name }
    }
}

/// When the device loses a name of an inode. The link count falls after that.
#[derive(Clone, Copy)]
pub(crate) enum NameGoes {
    /// Before [`Stage::Cut`].
    BeforeCut,
    /// In [`Stage::Cut`].
    InCut,
}

/// Checks a name before it is added.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX { Err(NameError::NameTooLong.into()) } else { Ok(()) }
}

impl Ufs {
    /// Finds space for an entry in units of a directory. Entries in `kept` are treated as in use.
    pub(crate) fn find_space(
        &self,
        state: &State,
        units: Range<u64>,
        need: usize,
        kept: &HashSet<u64>,
        freed: Option<u64>,
    ) -> Result<Option<Space>> {
        for start in (units.start..units.end).step_by(UNIT_BYTES) {
            let (fragment, in_fragment) = self.directory_place(&state.dinode, start)?;
            let bytes = self.fragment(state.dinode.ino, fragment)?;
            let unit = &bytes[in_fragment..in_fragment + UNIT_BYTES];
            let (mut at, mut space) = (0, None::<Space>);
            while at < UNIT_BYTES {
                let (found, next) = entry(unit, at, &self.sb).map_err(|what| {
                    self.corrupt(state.dinode.ino, format!("{what}, at byte {}", start + at as u64))
                })?;
                let (byte, len) = (start + at as u64, next - at);
                let is_free = Fields::new(unit, self.sb.order).u32(at) == 0 || freed == Some(byte);
                let used = match found {
                    _ if kept.contains(&byte) => len,
                    _ if is_free => 0,
                    Some(found) => entry_bytes(found.name.len()).min(len),
                    None => len,
                };
                match &mut space {
                    Some(space) if used == 0 => space.total += len,
                    _ => space = Some(Space { at: byte, used, total: len }),
                }
                if space.as_ref().is_some_and(|space| space.total - space.used >= need) {
                    return Ok(space);
                }
                at = next;
            }
        }
        Ok(None)
    }

    /// Makes a directory ready for a new name: waits for the batch if changes in it forbid the name, or keep
    /// the directory from moving. The caller holds no change.
    pub(crate) fn prepare_add(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        let ticket = {
            let state = private_of(dir).state.read();
            let pending = &state.pending;
            let must_move = state.dinode.size.is_multiple_of(self.sb.fragment_size.into())
                && !pending.cut.is_empty()
                && {
                    let (from, need) = (state.space_from, entry_bytes(name.len()));
                    self.find_space(&state, from..state.dinode.size, need, &pending.cut, None)?.is_none()
                };
            if !must_move && !pending.removed.contains(name) {
                return Ok(());
            }
            pending.ticket
        };
        self.wait_for_batch(|ordered| ordered.settle(ticket))
    }

    /// Adds a name. Returns whether the directory became longer.
    pub(crate) fn add_name(&self, change: &Change<'_>, state: &mut State, new: NewName<'_>) -> Result<bool> {
        state.pending.of_batch(change);
        let (old, need) = (state.dinode.size, entry_bytes(new.name.len()));
        let space = self.find_space(state, state.space_from..old, need, &state.pending.cut, None)?;
        let space = match space {
            Some(space) => space,
            None => {
                self.grow_directory(change, state)?;
                Space { at: old, used: 0, total: UNIT_BYTES }
            }
        };
        state.space_from = space.at - space.at % UNIT_BYTES as u64;
        self.put_name(change, state, &space, new)?;
        Ok(state.dinode.size > old)
    }

    /// Writes an entry into free space.
    pub(crate) fn put_name(
        &self,
        change: &Change<'_>,
        state: &mut State,
        space: &Space,
        new: NewName<'_>,
    ) -> Result<()> {
        let (used, order) = (space.used, self.sb.order);
        self.put_in_directory(change, Stage::Attach, &state.dinode, space.at, |bytes| {
            if used > 0 {
                FieldsMut::new(bytes, order).u16(LENGTH_AT, used as u16);
            }
            put_entry(&mut bytes[used..], new.entry(), space.total - used, order);
        })?;
        let place = space.at + used as u64;
        state.pending.of_batch(change).added.insert(place);
        self.names.add(Ino(state.dinode.ino.into()), new.name, place);
        Ok(())
    }

    /// Changes bytes of a unit, from a byte on. `edit` runs once for each version that includes the stage.
    fn put_in_directory(
        &self,
        change: &Change<'_>,
        stage: Stage,
        dir: &Dinode,
        at: u64,
        edit: impl Fn(&mut [u8]),
    ) -> Result<()> {
        let (fragment, in_fragment) = self.directory_place(dir, at)?;
        self.check_writable(dir.ino, fragment, 1)?;
        let buffer = self.cache.get(BlockNo(fragment))?;
        change.put(&buffer, stage, |bytes| edit(&mut bytes[in_fragment..]));
        Ok(())
    }

    /// Makes an entry refer to another inode, in one write.
    pub(crate) fn replace_name(
        &self,
        change: &Change<'_>,
        state: &mut State,
        new: NewName<'_>,
    ) -> Result<()> {
        let (_, bytes) = self.find_existing(state, new.name)?;
        let order = self.sb.order;
        self.put_in_directory(change, Stage::Attach, &state.dinode, bytes.start, |bytes| {
            FieldsMut::new(bytes, order).u32(0, new.ino);
            bytes[KIND_AT] = new.entry().kind;
        })
    }

    /// Sets `..` of a directory.
    pub(crate) fn set_parent(&self, change: &Change<'_>, state: &State, parent: u32) -> Result<()> {
        let (_, bytes) = self.find_existing(state, b"..")?;
        let order = self.sb.order;
        self.put_in_directory(change, Stage::Turn, &state.dinode, bytes.start, |bytes| {
            FieldsMut::new(bytes, order).u32(0, parent);
        })
    }

    pub(crate) fn find_existing(&self, state: &State, name: &[u8]) -> Result<(u32, Range<u64>)> {
        self.find_entry(&state.dinode, name)?.ok_or_else(|| NameError::NotFound.into())
    }

    /// Removes a name that refers to an inode. With [`Stage::Cut`], its space and the name can be used again
    /// only when the batch is durable. Returns whether the device may have the name when other names are
    /// added.
    pub(crate) fn remove_name(
        &self,
        change: &Change<'_>,
        state: &mut State,
        (name, ino): (&[u8], u32),
        stage: Stage,
    ) -> Result<bool> {
        let (found, bytes) = self.find_existing(state, name)?;
        if found != ino {
            let what = format!("{} refers to inode {found}, not to {ino}", name.escape_ascii());
            return Err(self.corrupt(state.dinode.ino, what));
        }
        let pending = state.pending.of_batch(change);
        // The batch added the entry: it is cleared in the stage that writes it.
        let is_new = pending.added.contains(&bytes.start);
        let stage = if is_new { Stage::Attach } else { stage };
        if stage == Stage::Cut {
            pending.cut.insert(bytes.start);
        }
        let stays = !is_new && (stage >= Stage::Attach || pending.moved);
        if stays {
            pending.removed.insert(name.to_vec());
        }
        state.space_from = state.space_from.min(bytes.start - bytes.start % UNIT_BYTES as u64);
        self.clear_entry(change, stage, &state.dinode, bytes.start)?;
        self.names.remove(Ino(state.dinode.ino.into()), name, bytes.start);
        Ok(stays)
    }

    /// Makes an entry free space.
    pub(crate) fn clear_entry(&self, change: &Change<'_>, stage: Stage, dir: &Dinode, at: u64) -> Result<()> {
        let order = self.sb.order;
        self.put_in_directory(change, stage, dir, at, |bytes| FieldsMut::new(bytes, order).u32(0, 0))
    }

    /// Adds an empty unit to a directory.
    fn grow_directory(&self, change: &Change<'_>, state: &mut State) -> Result<()> {
        let (old, block_size) = (state.dinode.size, u64::from(self.sb.block_size));
        let block = old / block_size;
        let size = old + UNIT_BYTES as u64;
        let plan = self.plan(change, state, &BTreeSet::from([block]), size)?;
        if let Some((start, moved)) = plan.place_of(block) {
            let frags = self.sb.frags_of_block(size, block);
            let has = self.sb.frags_of_block(old, block).min(frags);
            let has = if old.is_multiple_of(block_size) { 0 } else { has };
            let first_new = if moved.is_some() { 0 } else { has };
            for nth in first_new..frags {
                let buffer = change.fresh(BlockNo(start + nth)).map_err(order_error)?;
                let Some(from) = moved.as_ref().map(|old| old.start + nth).filter(|_| nth < has) else {
                    continue;
                };
                let kept = self.fragment(state.dinode.ino, from)?;
                change.put(&buffer, Stage::Fresh, |bytes| bytes.copy_from_slice(&kept));
            }
        }
        state.pending.of_batch(change).moved |= plan.place_of(block).is_some_and(|(_, old)| old.is_some());
        self.attach(change, state, plan)?;
        self.put_unit(change, state, old, &[(Entry { ino: 0, kind: 0, name: b"" }, UNIT_BYTES)])
    }

    /// Writes the entries of a unit that nothing leads to yet.
    fn put_unit(
        &self,
        change: &Change<'_>,
        state: &State,
        at: u64,
        entries: &[(Entry<'_>, usize)],
    ) -> Result<()> {
        let order = self.sb.order;
        self.put_in_directory(change, Stage::Fresh, &state.dinode, at, |bytes| {
            let mut at = 0;
            for &(entry, len) in entries {
                put_entry(&mut bytes[at..], entry, len, order);
                at += len;
            }
        })
    }

    /// Writes the first unit of a new directory.
    pub(crate) fn make_directory(&self, change: &Change<'_>, state: &mut State, parent: u32) -> Result<()> {
        // An inode that had this number may have left an index.
        self.names.forget(Ino(state.dinode.ino.into()));
        self.grow_directory(change, state)?;
        let kind = FileType::Directory;
        let dot = NewName { name: b".", ino: state.dinode.ino, kind };
        let dotdot = NewName { name: b"..", ino: parent, kind };
        let entries = [(dot.entry(), DOT_BYTES), (dotdot.entry(), UNIT_BYTES - DOT_BYTES)];
        self.put_unit(change, state, 0, &entries)
    }

    /// Returns `NotEmpty` if a directory has names.
    pub(crate) fn check_removable(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        let state = private_of(inode).state.read();
        let mut is_empty = true;
        self.for_each_entry(&state.dinode, 0..state.dinode.size, |entry, _| {
            is_empty = matches!(entry.name, b"." | b"..");
            if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if is_empty { Ok(()) } else { Err(NameError::NotEmpty.into()) }
    }

    /// Updates a directory whose names changed. `links` is added to its link count. The caller holds the
    /// change with which the names changed, and no lock.
    pub(crate) fn names_changed(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        links: i32,
        grew: bool,
    ) -> Result<()> {
        let (size, blocks_512) = {
            let state = private_of(dir).state.read();
            (state.dinode.size, state.dinode.blocks_512)
        };
        dir.with_attr(|attr| {
            attr.nlink = attr.nlink.saturating_add_signed(links);
            (attr.size, attr.blocks_512) = (size, blocks_512);
        });
        let logged = if links != 0 || grew { Logged::Anyway } else { Logged::IfNeeded };
        self.log_changed(change, dir, Touch::Data, logged)
    }

    /// Calls [`Inode::changed`], and puts the inode into the batch if the answer requires it.
    pub(crate) fn log_changed(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        touch: Touch,
        logged: Logged,
    ) -> Result<()> {
        match inode.changed(touch, logged).must_log() {
            true => self.log_state(change, inode, &mut private_of(inode).state.write()),
            false => Ok::<_, Error>(()),
        }
    }

    /// As [`Ufs::log_changed`], but stores one link more at first: the device may have one name more.
    pub(crate) fn log_with_links(&self, change: &Change<'_>, inode: &Inode, name: NameGoes) -> Result<()> {
        inode.changed(Touch::Metadata, Logged::Anyway);
        let is_dir = inode.kind == FileType::Directory;
        let links = |more: u32| stored_links(is_dir, inode.attr().nlink.saturating_add(more));
        let mut state = private_of(inode).state.write();
        self.log_state(change, inode, &mut state)?;
        state.ticket = change.ticket();
        let ino = state.dinode.ino;
        let put = |stage, links| self.put_slot(change, stage, ino, |bytes| set_links(bytes, &self.sb, links));
        put(Stage::Attach, links(1))?;
        match name {
            NameGoes::BeforeCut => put(Stage::Cut, links(0)),
            NameGoes::InCut => {
                self.alloc()?.lower_links(change, ino, links(0));
                Ok(())
            }
        }
    }
}
