//! Inodes: making, linking, renaming, unlinking and deleting them.
//!
//! An inode that lost its last name is in the directory of orphans of slot 0 until it is deleted.

use crate::alloc::Sub;
use crate::change::Change;
use crate::layout::bytes::{put_u16, put_u32, put_u64, u32_at};
use crate::layout::dinode::{
    DTIME_AT, Dinode, FLAGS_AT, ID2_AT, ORPHANED_SLOT_AT, SIZE_AT, flags, put_attr, put_links,
};
use crate::layout::extents::{Extent, ExtentList};
use crate::layout::shape::DINODE;
use crate::names::{ADD_CREDITS, NamePlace, REMOVE_CREDITS, check_name};
use crate::volume::{Ocfs2, Private, private_of};
use ivers_block::BlockNo;
use ivers_vfs::sync::RankedWriteGuard;
use ivers_vfs::{FileType, Inode, LoadedInode, Logged, NameError, NewInode, Rename, Result, Touch};
use std::ops::Range;

/// The slot that a mount uses.
const SLOT: u16 = 0;
/// Longest target of a symbolic link.
const LINK_TARGET_MAX: usize = 4095;
/// Most blocks of a change beside names: inodes, allocators, attributes.
const INODE_CREDITS: u32 = 24;

/// The name of an orphan.
pub(crate) fn orphan_name(ino: u64) -> String {
    format!("{ino:016x}")
}

impl Ocfs2 {
    fn orphan_dir(&self) -> Result<u64> {
        let missing = || self.corrupt(self.sb.system_dir, "there is no directory of orphans");
        self.writer()?.files.of_slot("orphan_dir", SLOT).ok_or_else(missing)
    }

    /// Writes the target of a symbolic link that does not fit into the inode.
    fn write_target(&self, target: &[u8]) -> Result<Range<u64>> {
        let clusters = (target.len() as u64).div_ceil(self.sb.cluster_size().into());
        let range = self.claim(&mut *self.space()?, 0, (clusters, clusters), 0)?;
        let mut bytes = target.to_vec();
        bytes.resize((clusters * u64::from(self.sb.cluster_size())) as usize, 0);
        let start = BlockNo(range.start * u64::from(self.sb.blocks_per_cluster));
        match self.cache.device().write_at(start.offset(self.sb.block_size), &bytes) {
            Ok(()) => Ok(range),
            Err(error) => {
                self.space()?.busy.remove(range);
                Err(error.into())
            }
        }
    }

    pub(crate) fn fs_create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        check_name(name)?;
        if new.kind == FileType::Directory && dir.with_attr(|attr| attr.nlink) >= self.links_max() {
            return Err(NameError::TooManyLinks.into());
        }
        self.make(Some((dir, name)), new)
    }

    /// Makes an unnamed file. It is in the directory of orphans until it gets a name.
    pub(crate) fn fs_create_unnamed(&self, new: &NewInode) -> Result<LoadedInode> {
        self.make(None, new)
    }

    fn make(&self, named: Option<(&Inode, &[u8])>, new: &NewInode) -> Result<LoadedInode> {
        let is_dir = new.kind == FileType::Directory;
        if new.target.len() > LINK_TARGET_MAX {
            return Err(NameError::NameTooLong.into());
        }
        let fast_max = self.sb.block_size as usize - ID2_AT;
        let target = match new.target.len() >= fast_max {
            true => Some(self.write_target(&new.target)?),
            false => None,
        };
        let values = match self.place_values(&new.xattrs) {
            Ok(values) => values,
            Err(error) => {
                self.unclaim(target)?;
                return Err(error);
            }
        };
        let plan = || {
            let credits = 2 * ADD_CREDITS + INODE_CREDITS;
            let Some((dir, name)) = named else {
                return Ok((credits + self.index_credits_max(&self.dinode(self.orphan_dir()?)?.0)?, None));
            };
            let place = self.name_place(&private_of(dir).state.read(), name)?;
            Ok((credits + place.credits, Some(place)))
        };
        let made = self.planned_change(plan, |change, place| {
            change.ensure(Sub::Inodes, 1, 0)?;
            let place = match place {
                Some(place) => place,
                None => self.orphan_place(change.next_block(Sub::Inodes)?.0.block)?,
            };
            change.prepare_add(&place, is_dir)?;
            self.check_attributes_fit(None, &values.attributes)?;
            values.claimed.iter().try_for_each(|range| change.take_claimed(range.clone()))?;
            let mut dinode = change.new_inode(new, named.is_some())?;
            if let Some((dir, _)) = named.filter(|_| is_dir) {
                change.make_directory(&mut dinode, dir.ino.0)?;
            }
            if let Some(range) = target.clone() {
                change.take_claimed(range.clone())?;
                let start = range.start * u64::from(self.sb.blocks_per_cluster);
                let clusters = (range.end - range.start) as u32;
                change.add_extent(&mut dinode, Extent { cpos: 0, clusters, start, flags: 0 })?;
            }
            if !values.attributes.is_empty() {
                change.put_attributes(&mut dinode, &values.attributes)?;
            }
            match named {
                Some((dir, name)) => {
                    let mut parent = private_of(dir).state.write();
                    change.add_name(&mut parent, place, name, dinode.ino, new.kind)?;
                    change.names_changed(dir, parent, is_dir.into())?;
                }
                None => {
                    let mut orphans = self.dinode(self.orphan_dir()?)?.0;
                    let name = orphan_name(dinode.ino);
                    change.add_name(&mut orphans, place, name.as_bytes(), dinode.ino, new.kind)?;
                }
            }
            Ok(dinode)
        });
        if made.is_err() {
            self.unclaim(target.into_iter().chain(values.claimed))?;
        }
        made.map(|dinode| self.loaded(dinode))
    }

    pub(crate) fn fs_link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        check_name(name)?;
        if inode.with_attr(|attr| attr.nlink) >= self.links_max() {
            return Err(NameError::TooManyLinks.into());
        }
        let plan = || {
            let place = self.name_place(&private_of(dir).state.read(), name)?;
            Ok((ADD_CREDITS + 2 * REMOVE_CREDITS + INODE_CREDITS + place.credits, place))
        };
        self.planned_change(plan, |change, place| {
            let mut parent = private_of(dir).state.write();
            change.prepare_add(&place, false)?;
            change.add_name(&mut parent, place, name, inode.ino.0, inode.kind)?;
            change.names_changed(dir, parent, 0)?;
            if inode.with_attr(|attr| attr.nlink) == 0 {
                change.leave_orphans(inode)?;
            }
            inode.with_attr(|attr| attr.nlink += 1);
            inode.changed(Touch::Metadata, Logged::Anyway);
            change.log(inode, &mut private_of(inode).state.write())
        })
    }

    /// Finds where an inode goes in the directory of orphans.
    fn orphan_place(&self, ino: u64) -> Result<NamePlace> {
        self.name_place(&self.dinode(self.orphan_dir()?)?.0, orphan_name(ino).as_bytes())
    }

    /// Refuses to remove the last name of an inode that could not be deleted.
    fn check_removable(&self, inode: &Inode) -> Result<()> {
        let dinode = private_of(inode).state.read();
        if inode.kind == FileType::Directory {
            self.check_empty(&dinode)?;
        } else if inode.with_attr(|attr| attr.nlink) > 1 {
            return Ok(());
        }
        self.check_not_shared(&dinode)?;
        self.check_attributes_removable(&dinode)
    }

    pub(crate) fn fs_unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.check_removable(inode)?;
        let is_dir = inode.kind == FileType::Directory;
        let plan = || {
            let place = self.orphan_place(inode.ino.0)?;
            Ok((ADD_CREDITS + 2 * REMOVE_CREDITS + INODE_CREDITS + place.credits, place))
        };
        self.planned_change(plan, |change, place| {
            let mut parent = private_of(dir).state.write();
            change.prepare_add(&place, false)?;
            change.remove_name(&mut parent, name, inode.ino.0)?;
            change.names_changed(dir, parent, if is_dir { -1 } else { 0 })?;
            change.forget_name(inode, place)
        })
    }

    pub(crate) fn fs_rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        check_name(new_name)?;
        let is_dir = inode.kind == FileType::Directory;
        let target_is_dir = target.is_some_and(|target| target.kind == FileType::Directory);
        let moves = old_dir.ino != new_dir.ino;
        // What the directories gain.
        let mut links = [0, 0];
        if moves {
            links[0] -= i32::from(is_dir);
            links[1] += i32::from(is_dir);
        }
        if exchange && moves {
            links[0] += i32::from(target_is_dir);
            links[1] -= i32::from(target_is_dir);
        } else if !exchange && let Some(target) = target {
            self.check_removable(target)?;
            links[1] -= i32::from(target_is_dir);
        }
        if links[1] > 0 && new_dir.with_attr(|attr| attr.nlink) >= self.links_max() {
            return Err(NameError::TooManyLinks.into());
        }
        // A new name, or one of the target among the orphans.
        let plan = || {
            let place = match target {
                None => Some(self.name_place(&private_of(new_dir).state.read(), new_name)?),
                Some(_) if exchange => None,
                Some(target) => Some(self.orphan_place(target.ino.0)?),
            };
            let more = place.as_ref().map_or(0, |place| place.credits);
            Ok((2 * ADD_CREDITS + 4 * REMOVE_CREDITS + INODE_CREDITS + more, place))
        };
        self.planned_change(plan, |change, mut place| {
            place.iter().try_for_each(|place| change.prepare_add(place, false))?;
            let ino = inode.ino.0;
            {
                let mut state = private_of(new_dir).state.write();
                match place.take_if(|_| target.is_none()) {
                    Some(place) => change.add_name(&mut state, place, new_name, ino, inode.kind)?,
                    None => change.redirect(&mut state, new_name, ino, inode.kind)?,
                }
            }
            {
                let mut state = private_of(old_dir).state.write();
                match target.filter(|_| exchange) {
                    Some(target) => change.redirect(&mut state, old_name, target.ino.0, target.kind)?,
                    None => change.remove_name(&mut state, old_name, ino)?,
                }
            }
            let moved =
                [(inode, new_dir, is_dir), (target.unwrap_or(inode), old_dir, exchange && target_is_dir)];
            for (child, parent, _) in moved.into_iter().filter(|(.., is_dir)| *is_dir && moves) {
                let mut state = private_of(child).state.write();
                change.redirect(&mut state, b"..", parent.ino.0, FileType::Directory)?;
            }
            if moves {
                change.names_changed(old_dir, private_of(old_dir).state.write(), links[0])?;
            }
            let links = if moves { links[1] } else { links[0] + links[1] };
            change.names_changed(new_dir, private_of(new_dir).state.write(), links)?;
            for child in [Some(inode), target.filter(|_| exchange)].into_iter().flatten() {
                let state = private_of(child).state.write();
                change.log_changed(child, state, Touch::Metadata, Logged::IfNeeded)?;
            }
            match (target, place) {
                (Some(target), Some(place)) => change.forget_name(target, place),
                _ => Ok(()),
            }
        })
    }

    pub(crate) fn fs_delete_inode(&self, inode: &Inode) -> Result<()> {
        self.release(private_of(inode), 0..u32::MAX)?;
        let mut dinode = private_of(inode).state.read().clone();
        self.delete(&mut dinode)
    }

    /// Frees an orphan and all that it has.
    pub(crate) fn delete(&self, dinode: &mut Dinode) -> Result<()> {
        self.check_not_shared(dinode)?;
        self.check_attributes_removable(dinode)?;
        let step = crate::write::BATCH_CREDITS;
        while dinode.has_extents() && self.change(step, |change| change.cut(dinode, 0, 0))? {}
        while self.change(step, |change| change.index_cut(dinode))? {}
        while self.change(step, |change| change.drop_attributes(dinode))? {}
        self.change(REMOVE_CREDITS + INODE_CREDITS, |change| {
            let slot = dinode.orphaned_slot;
            let missing =
                || self.corrupt(dinode.ino, format!("it is an orphan of slot {slot}, which does not exist"));
            let orphans = change.writer.files.of_slot("orphan_dir", slot).ok_or_else(missing)?;
            let mut orphans = self.dinode(orphans)?.0;
            let name = orphan_name(dinode.ino);
            change.remove_name(&mut orphans, name.as_bytes(), dinode.ino)?;
            if dinode.kind() == Some(FileType::Directory) {
                let links = orphans.links.saturating_sub(1);
                change.put_inode(&mut orphans, |bytes| put_links(bytes, links))?;
            }
            let now = ivers_vfs::Clock::now(&ivers_vfs::CoarseClock);
            let ((slot, bit), place) = (dinode.suballoc, dinode.suballoc_loc);
            change.put_shape(dinode.ino, &DINODE, |bytes| {
                let kept = u32_at(bytes, FLAGS_AT) & !(flags::VALID | flags::ORPHANED);
                put_u32(bytes, FLAGS_AT, kept);
                put_u64(bytes, DTIME_AT, now.sec as u64);
            })?;
            change.free_block(Sub::Inodes, dinode.ino, (slot, bit, place))
        })
    }
}

impl Change<'_> {
    /// Takes an inode and writes it. If it has no name, it is marked as an orphan.
    fn new_inode(&mut self, new: &NewInode, is_named: bool) -> Result<Dinode> {
        let fs = self.fs;
        let taken = self.block(Sub::Inodes)?;
        let ino = taken.block;
        let old = match fs.any_dinode(ino) {
            Ok((old, _)) if old.is_valid() => {
                return Err(fs.corrupt(ino, "the inode is in use, and marked as free; run ivers check"));
            }
            Ok((old, _)) => Some(old.generation),
            Err(_) => None,
        };
        self.space.generation = self.space.generation.wrapping_add(1);
        let generation = old.map_or(self.space.generation, |old| old.wrapping_add(1));
        let is_fast = new.kind == FileType::Symlink && new.target.len() < fs.sb.block_size as usize - ID2_AT;
        let size = if new.kind == FileType::Symlink { new.target.len() as u64 } else { new.size };
        let attr = new.attr(match new.kind {
            FileType::Directory => 2,
            _ => is_named.into(),
        });
        self.put_new(ino, DINODE.check_at, |bytes| {
            DINODE.put(bytes, ino, fs.sb.generation);
            put_u32(bytes, 0x08, generation);
            put_u16(bytes, 0x0C, SLOT);
            put_u16(bytes, 0x0E, taken.bit);
            put_u32(bytes, FLAGS_AT, flags::VALID | if is_named { 0 } else { flags::ORPHANED });
            if !is_named {
                put_u16(bytes, ORPHANED_SLOT_AT, SLOT);
            }
            put_attr(bytes, &attr);
            put_u64(bytes, SIZE_AT, size);
            match new.kind {
                FileType::CharDevice | FileType::BlockDevice => put_u64(bytes, 0xB8, new.rdev.into()),
                _ if is_fast => bytes[ID2_AT..ID2_AT + new.target.len()].copy_from_slice(&new.target),
                _ => {}
            }
            if !is_fast {
                ExtentList::encode_empty(&mut bytes[ID2_AT..]);
            }
        })?;
        Ok(fs.dinode(ino)?.0)
    }

    /// Updates a directory whose names changed. `links` is added to its link count.
    fn names_changed(&mut self, dir: &Inode, state: RankedWriteGuard<'_, Dinode>, links: i32) -> Result<()> {
        let stored = state.attr(&self.fs.sb);
        let grew = dir.with_attr(|attr| {
            let grew = attr.size != stored.size || attr.blocks_512 != stored.blocks_512;
            attr.nlink = attr.nlink.saturating_add_signed(links);
            (attr.size, attr.blocks_512) = (stored.size, stored.blocks_512);
            grew
        });
        let logged = if links != 0 || grew { Logged::Anyway } else { Logged::IfNeeded };
        self.log_changed(dir, state, Touch::Data, logged)
    }

    /// Removes an unnamed file from the directory of orphans, because it gets its first name.
    fn leave_orphans(&mut self, inode: &Inode) -> Result<()> {
        let mut orphans = self.fs.dinode(self.fs.orphan_dir()?)?.0;
        self.remove_name(&mut orphans, orphan_name(inode.ino.0).as_bytes(), inode.ino.0)?;
        self.put_inode(&mut private_of(inode).state.write(), |bytes| {
            put_u32(bytes, FLAGS_AT, u32_at(bytes, FLAGS_AT) & !flags::ORPHANED);
            put_u16(bytes, ORPHANED_SLOT_AT, 0);
        })
    }

    /// Lowers the link count of an inode that lost a name. Without a name it becomes an orphan, at `place`.
    fn forget_name(&mut self, inode: &Inode, place: NamePlace) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        let links = inode.with_attr(|attr| {
            attr.nlink = if is_dir { 0 } else { attr.nlink.saturating_sub(1) };
            attr.nlink
        });
        inode.changed(Touch::Metadata, Logged::Anyway);
        let private: &Private = private_of(inode);
        if links == 0 {
            let mut orphans = self.fs.dinode(self.fs.orphan_dir()?)?.0;
            let name = orphan_name(inode.ino.0);
            self.add_name(&mut orphans, place, name.as_bytes(), inode.ino.0, inode.kind)?;
            if is_dir {
                let links = orphans.links.saturating_add(1);
                self.put_inode(&mut orphans, |bytes| put_links(bytes, links))?;
            }
            self.put_inode(&mut private.state.write(), |bytes| {
                put_u32(bytes, FLAGS_AT, u32_at(bytes, FLAGS_AT) | flags::ORPHANED);
                put_u16(bytes, ORPHANED_SLOT_AT, SLOT);
            })?;
        }
        self.log(inode, &mut private.state.write())
    }
}
