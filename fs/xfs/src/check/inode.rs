//! The scan of all inodes: cores, forks, attributes, link targets.

use super::fork::Which;
use super::state::{Checker, Dir, Slot, kind};
use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO, number};
use crate::layout::checksum::checksum;
use crate::layout::chunk::CHUNK_INODES;
use crate::layout::dinode::{EXTENT_MAX, LINKS_MAX, NS_PER_SEC, TARGET_MAX, flags, flags2, format};
use crate::layout::features::{Incompat, RoCompat};
use crate::layout::raw::RawDinode;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::mem::offset_of;

/// The type of an inode as directory entries have it.
fn type_of(mode: u16) -> Option<u8> {
    Some(match mode >> 12 {
        0o10 => kind::REGULAR,
        0o04 => kind::DIRECTORY,
        0o02 => kind::CHAR,
        0o06 => 4,
        0o01 => 5,
        0o14 => 6,
        0o12 => kind::SYMLINK,
        _ => return None,
    })
}

impl Checker {
    /// Checks all inodes of all chunks.
    pub(super) fn check_inodes(&mut self) -> Result<()> {
        let firsts: Vec<u64> = self.chunks.keys().copied().collect();
        for (nth, first) in firsts.into_iter().enumerate() {
            self.check_chunk(first)?;
            if nth % 64 == 0 {
                self.charge(0)?;
            }
        }
        Ok(())
    }

    fn check_chunk(&mut self, first: u64) -> Result<()> {
        let (mut bytes, mut last) = (Vec::new(), u64::MAX);
        for index in 0..CHUNK_INODES {
            let ino = first + index;
            let Some((chunk, at)) = self.chunk(ino) else { break };
            let (is_hole, is_free) = (chunk.holes >> at & 1 != 0, chunk.free >> at & 1 != 0);
            let Some((block, offset)) = self.sb.inode_place(ino).filter(|_| !is_hole) else { continue };
            if block.0 != last {
                bytes = self.blocks(&[block.0])?;
                last = block.0;
            }
            let Some(slot) = Slot::new(&self.sb, ino, &bytes[offset..], block.0) else { continue };
            if !self.check_head_of(&slot) {
                if !is_free {
                    (self.maps_unsound, self.names_unsound) = (true, true);
                    self.add_flag(ino, kind::UNKNOWN);
                }
                continue;
            }
            if is_free {
                self.check_free_inode(&slot);
            } else {
                self.check_used_inode(&slot)?;
            }
        }
        Ok(())
    }

    /// Checks what each inode has, free or not. Returns whether it can be used.
    fn check_head_of(&mut self, slot: &Slot) -> bool {
        let (raw, place) = (&slot.raw, slot.place().at(slot.block));
        if raw.di_magic.get() != MAGIC_INODE {
            self.bad("inode-invalid", place, format!("the magic is {:#06x}", raw.di_magic.get()));
            return false;
        }
        let v3 = raw.di_version == 3;
        if v3 != self.sb.is_v5() || !(1..=3).contains(&raw.di_version) {
            self.bad("inode-invalid", place, format!("di_version is {}", raw.di_version));
            return false;
        }
        if v3 {
            if raw.di_crc.get() != checksum(&slot.bytes, offset_of!(RawDinode, di_crc)) {
                self.bad("checksum-wrong", place.clone(), "the checksum of the inode is wrong");
            }
            if raw.di_ino.get() != slot.ino || raw.di_uuid != self.sb.meta_uuid {
                let what = format!("the inode says that it is {}, or has another UUID", raw.di_ino.get());
                self.bad("identity-wrong", place.clone(), what);
            }
            self.check_lsn(raw.di_lsn.get(), "the inode", &place);
        }
        if raw.di_next_unlinked.get() != NULL_AGINO {
            self.add_flag(slot.ino, kind::HAS_NEXT);
        }
        true
    }

    fn check_free_inode(&mut self, slot: &Slot) {
        let raw = &slot.raw;
        if raw.di_mode.get() != 0 {
            let what = "the inode is in use, the inode B-tree says that it is free";
            // Its blocks have an owner that is not known.
            (self.maps_unsound, self.names_unsound) = (true, true);
            return self.bad("inode-in-use-marked-free", slot.place(), what);
        }
        let v3 = raw.di_version == 3;
        let hints =
            flags::EXTENT_SIZE | flags::EXTENT_SIZE_INHERITED | flags::REALTIME_BITMAP | flags::REALTIME;
        let wrong = [
            (raw.di_nlink.get() != 0, "di_nlink", u64::from(raw.di_nlink.get())),
            (raw.di_nblocks.get() != 0, "di_nblocks", raw.di_nblocks.get()),
            (raw.di_forkoff != 0, "di_forkoff", raw.di_forkoff.into()),
            (!matches!(raw.di_format, format::DEVICE | format::EXTENTS), "di_format", raw.di_format.into()),
            (slot.extents(Which::Data) != 0, "di_nextents", slot.extents(Which::Data)),
            (slot.extents(Which::Attributes) != 0, "di_anextents", slot.extents(Which::Attributes)),
            (
                !matches!(raw.di_aformat, format::DEVICE | format::EXTENTS),
                "di_aformat",
                raw.di_aformat.into(),
            ),
            (raw.di_size.get() > i64::MAX as u64, "di_size", raw.di_size.get()),
            (raw.di_flags.get() & hints != 0, "di_flags", raw.di_flags.get().into()),
            (slot.flags2() & (flags2::REFLINK | flags2::COW_EXTENT_SIZE) != 0, "di_flags2", slot.flags2()),
            (raw.di_extsize.get() > EXTENT_MAX, "di_extsize", raw.di_extsize.get().into()),
            (v3 && raw.di_cowextsize.get() > EXTENT_MAX, "di_cowextsize", raw.di_cowextsize.get().into()),
        ];
        for (_, name, value) in wrong.into_iter().filter(|(is_wrong, ..)| *is_wrong) {
            self.bad("free-inode-not-empty", slot.place(), format!("{name} of a free inode is {value}"));
        }
    }

    fn check_used_inode(&mut self, slot: &Slot) -> Result<()> {
        let raw = &slot.raw;
        let (mode, ino) = (raw.di_mode.get(), slot.ino);
        if mode == 0 {
            let what = "the inode is free, the inode B-tree says that it is in use";
            self.bad("inode-lost", slot.place(), what);
            self.maps_unsound |= raw.di_nblocks.get() != 0;
            if let Some((chunk, at)) = self.chunk_mut(ino) {
                chunk.free |= 1 << at;
            }
            return Ok(());
        }
        let links = if raw.di_version == 1 { raw.di_onlink.get().into() } else { raw.di_nlink.get() };
        let hidden = if self.hidden.contains(&ino) { kind::HIDDEN } else { 0 };
        let Some(file_type) = type_of(mode) else {
            self.bad("inode-mode-invalid", slot.place(), format!("di_mode is {mode:o}"));
            (self.maps_unsound, self.names_unsound) = (true, true);
            self.add_flag(ino, kind::UNKNOWN | hidden);
            return Ok(());
        };
        if let Some((chunk, at)) = self.chunk_mut(ino) {
            chunk.kinds[at] |= file_type | hidden;
            chunk.links[at] = links;
        }
        let realtime = [self.raw.sb_rbmino.get(), self.raw.sb_rsumino.get()];
        if realtime.contains(&ino) && self.sb.realtime_blocks == 0 && raw.di_size.get() != 0 {
            let what = format!("di_size of a file of the realtime device is {}", raw.di_size.get());
            self.bad("hidden-inode-invalid", slot.place(), what);
        }
        if file_type == kind::DIRECTORY {
            self.dirs.push(Dir { ino, parent: 0, dotdot: 0 });
        }
        self.check_core(slot, file_type);
        if !self.check_formats(slot, file_type) {
            self.maps_unsound = true;
            self.names_unsound |= file_type == kind::DIRECTORY;
            self.add_flag(ino, kind::UNSOUND);
            return Ok(());
        }
        let sound = self.check_forks(slot)?;
        if !sound {
            self.names_unsound |= file_type == kind::DIRECTORY;
            self.add_flag(ino, kind::UNSOUND);
            return Ok(());
        }
        self.count_usage(slot);
        if file_type == kind::SYMLINK {
            self.check_link(slot)?;
        }
        if raw.di_forkoff != 0 {
            self.check_attributes(slot)?;
        }
        Ok(())
    }

    fn check_core(&mut self, slot: &Slot, file_type: u8) {
        let raw = slot.raw.clone();
        let (place, v3) = (slot.place(), raw.di_version == 3);
        let field = |checker: &mut Self, is_wrong: bool, name: &str, value: u64| {
            if is_wrong {
                checker.bad(
                    "inode-field-wrong",
                    place.clone(),
                    format!("{name} is {value}, which is impossible"),
                );
            }
        };
        let is_file = file_type == kind::REGULAR;
        let (set, set2) = (raw.di_flags.get(), slot.flags2());
        let is_dir = file_type == kind::DIRECTORY;
        let links = if raw.di_version == 1 { raw.di_onlink.get().into() } else { raw.di_nlink.get() };
        field(self, links > LINKS_MAX, "di_nlink", links.into());
        field(self, raw.di_version > 1 && raw.di_onlink.get() != 0, "di_onlink", raw.di_onlink.get().into());
        let is_bitmap = slot.ino == self.raw.sb_rbmino.get();
        field(self, set & flags::REALTIME_BITMAP != 0 && !is_bitmap, "di_flags", set.into());
        field(self, set & !flags::ALL != 0, "di_flags", set.into());
        field(self, !is_dir && set & flags::OF_DIRECTORIES != 0, "di_flags", set.into());
        field(self, !is_file && set & flags::EXTENT_SIZE != 0, "di_flags", set.into());
        field(self, set & flags::REALTIME != 0 && self.sb.realtime_blocks == 0, "di_flags", set.into());
        let hinted = set & (flags::EXTENT_SIZE | flags::EXTENT_SIZE_INHERITED) != 0;
        let extent_size = raw.di_extsize.get();
        let group = u64::from(self.sb.ag_blocks);
        let is_size = |size: u32| {
            size > 0 && size <= EXTENT_MAX && (u64::from(size) <= group / 2 || set & flags::REALTIME != 0)
        };
        field(
            self,
            hinted != (extent_size != 0) || hinted && !is_size(extent_size),
            "di_extsize",
            extent_size.into(),
        );
        if v3 {
            let feature = |bit: u64, has: bool| set2 & bit != 0 && !has;
            let incompat = self.sb.incompat;
            let reflink = self.sb.ro_compat.contains(RoCompat::REFLINK);
            let wrong = set2 & !flags2::ALL != 0
                || feature(flags2::BIGTIME, incompat.contains(Incompat::BIGTIME))
                || feature(flags2::NREXT64, incompat.contains(Incompat::NREXT64))
                || feature(flags2::REFLINK, reflink && is_file && set & flags::REALTIME == 0)
                || feature(flags2::COW_EXTENT_SIZE, reflink && (is_file || is_dir))
                || feature(flags2::DAX, is_file || is_dir);
            field(self, wrong, "di_flags2", set2);
            let cow = raw.di_cowextsize.get();
            let hinted = set2 & flags2::COW_EXTENT_SIZE != 0;
            field(self, hinted != (cow != 0) || hinted && !is_size(cow), "di_cowextsize", cow.into());
            field(self, raw.di_pad2 != [0; 12], "di_pad2", 1);
            let pad = number(&slot.bytes, offset_of!(RawDinode, di_pad), 8).unwrap_or(0);
            field(self, set2 & flags2::NREXT64 == 0 && pad != 0, "di_v3_pad", pad);
            let pad = raw.di_anextents.get();
            field(self, set2 & flags2::NREXT64 != 0 && pad != 0, "di_nrext64_pad", pad.into());
        }
        if set2 & flags2::BIGTIME == 0 {
            let created = if v3 { raw.di_crtime.get() } else { 0 };
            for (name, time) in [
                ("di_atime", raw.di_atime.get()),
                ("di_mtime", raw.di_mtime.get()),
                ("di_ctime", raw.di_ctime.get()),
                ("di_crtime", created),
            ] {
                field(self, time as u32 >= NS_PER_SEC, name, time);
            }
        }
    }

    /// Checks formats and size; returns whether the forks can be read.
    fn check_formats(&mut self, slot: &Slot, file_type: u8) -> bool {
        let (raw, place) = (&slot.raw, slot.place());
        let (size, literal) = (raw.di_size.get(), slot.literal_bytes());
        let fits = |bytes: u64| bytes <= slot.space(Which::Data).len() as u64;
        if usize::from(raw.di_forkoff) * 8 >= literal {
            let what = format!("di_forkoff is {}, the inode has {literal} bytes for forks", raw.di_forkoff);
            self.bad("fork-offset-wrong", place, what);
            return false;
        }
        let is_format = match (file_type, raw.di_format) {
            (kind::REGULAR | kind::DIRECTORY | kind::SYMLINK, format::EXTENTS | format::BTREE) => true,
            (kind::DIRECTORY | kind::SYMLINK, format::LOCAL) => fits(size),
            (kind::CHAR | 4..=6, format::DEVICE) => true,
            _ => false,
        };
        let local_bytes = if raw.di_format == format::LOCAL { size } else { 0 };
        if !is_format {
            let what = format!("di_format is {} with {local_bytes} bytes in the inode", raw.di_format);
            self.bad("inode-format-wrong", place, what);
            return false;
        }
        let is_attribute_format = match raw.di_forkoff {
            0 => raw.di_aformat == format::EXTENTS && slot.extents(Which::Attributes) == 0,
            _ => (format::LOCAL..=format::BTREE).contains(&raw.di_aformat),
        };
        if !is_attribute_format {
            let what = format!("di_aformat is {} with di_forkoff {}", raw.di_aformat, raw.di_forkoff);
            self.bad("inode-format-wrong", place, what);
            return false;
        }
        if self.has_foreign_counters(slot) {
            return false;
        }
        let unit = u64::from(self.sb.dir_block_size);
        let is_size = match file_type {
            kind::REGULAR => size <= i64::MAX as u64,
            kind::DIRECTORY if raw.di_format == format::LOCAL => size >= 6,
            kind::DIRECTORY => size > 0 && size.is_multiple_of(unit) && size <= 1 << 35,
            kind::SYMLINK => (1..=TARGET_MAX).contains(&size),
            _ => size == 0,
        };
        if !is_size {
            self.bad("inode-size-wrong", place, format!("di_size is {size}"));
        }
        true
    }

    /// Checks that inodes without names are what they should be.
    pub(super) fn check_hidden(&mut self) {
        for ino in self.hidden.clone() {
            let (found, links) =
                self.chunk(ino).map_or((0, 0), |(chunk, at)| (chunk.kinds[at], chunk.links[at]));
            if found & kind::TYPE == kind::UNKNOWN || (found == 0 && self.may_exist(ino)) {
                continue;
            }
            if found & kind::TYPE != kind::REGULAR || links != 1 {
                let what = "an inode that the superblock names is no file in use with one link";
                self.bad("hidden-inode-invalid", Place::inode(ino), what);
            }
        }
    }
}
