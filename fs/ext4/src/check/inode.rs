//! The scan of all inodes: each field of an inode, its map, and who owns which blocks.

use super::map::{self, Met};
use super::state::{Checker, Dir, Slot, kind};
use super::xattr::Context;
use crate::layout::features::{Compat, Incompat, RoCompat};
use crate::layout::group::INODE_UNINIT;
use crate::layout::inode::{
    BAD_BLOCKS_INO, FL_CASEFOLD, FL_EA_INODE, FL_ENCRYPT, FL_EXTENTS, FL_HUGE_FILE, FL_INDEX, FL_INLINE_DATA,
    FL_VERITY, GOOD_OLD_SIZE, JOURNAL_INO, RESIZE_INO, ROOT_INO, verify_slot,
};
use crate::map::node;
use ivers_block::ByteOffset;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::HashSet;

const FL_IMMUTABLE: u32 = 0x10;
const FL_APPEND: u32 = 0x20;
const FL_IMAGIC: u32 = 0x2000;
/// Bytes of `i_block`: a shorter target of a symbolic link is stored there.
const I_BLOCK: u64 = 60;
/// Bad blocks that are respected.
const MAX_BAD_BLOCKS: usize = 1 << 16;
/// Bytes of the inode table that are read at once.
const CHUNK: u64 = 1 << 16;

/// What a walk of the map adds up to.
#[derive(Default)]
pub(super) struct Mapped {
    /// Clusters, those of the map included.
    clusters: u64,
    /// One more than the last file block.
    end: u64,
    /// The last written file block.
    last_written: Option<u64>,
    /// Whether there are unwritten extents.
    unwritten: bool,
}

/// The type of an inode as in directory entries.
pub(super) fn kind_of(mode: u16) -> u8 {
    match mode & 0o170000 {
        0o100000 => kind::REGULAR,
        0o040000 => kind::DIRECTORY,
        0o020000 => 3,
        0o060000 => 4,
        0o010000 => 5,
        0o140000 => 6,
        0o120000 => kind::SYMLINK,
        _ => kind::UNKNOWN,
    }
}

impl Checker {
    /// Scans all inode tables.
    pub(super) fn check_inodes(&mut self) -> Result<()> {
        let sb = self.sb();
        let bad_blocks = self.bad_blocks()?;
        for group in 0..sb.groups() {
            let desc = self.descs[group as usize];
            let mut count = sb.inodes_per_group;
            if sb.has_group_csum() && self.desc_sound[group as usize] {
                if desc.flags & INODE_UNINIT != 0 {
                    continue;
                }
                count = count.saturating_sub(desc.itable_unused);
            }
            if !sb.is_valid_run(desc.inode_table, sb.inode_table_blocks.into()) {
                continue;
            }
            let size = u64::from(sb.inode_size);
            let (table, per_chunk) = (desc.inode_table.offset(sb.block_size).0, (CHUNK / size).max(1));
            let mut index = 0;
            while index < u64::from(count) {
                let here = per_chunk.min(u64::from(count) - index);
                let mut bytes = vec![0; (here * size) as usize];
                self.reader.dev.read_at(ByteOffset(table + index * size), &mut bytes)?;
                for (nth, slot) in bytes.chunks_exact(size as usize).enumerate() {
                    let at = index + nth as u64;
                    if bad_blocks.contains(&(desc.inode_table.0 + at * size / u64::from(sb.block_size))) {
                        continue;
                    }
                    let ino = group * sb.inodes_per_group + at as u32 + 1;
                    self.check_slot(&Slot::new(ino, slot.to_vec()))?;
                }
                self.charge(0)?;
                index += here;
            }
        }
        Ok(())
    }

    /// The blocks that inode 1 lists. A part of an inode table there is not in use.
    fn bad_blocks(&self) -> Result<HashSet<u64>> {
        let Some(list) = self.slot(BAD_BLOCKS_INO)? else { return Ok(HashSet::new()) };
        let runs = map::run_list(&self.reader, &list, MAX_BAD_BLOCKS)?;
        let blocks = runs.into_iter().flat_map(|(_, first, len)| first..first + len);
        Ok(blocks.take(MAX_BAD_BLOCKS).collect())
    }

    fn is_special(&self, ino: u32) -> bool {
        let sb = self.sb();
        ino != ROOT_INO && ino < sb.first_ino
            || sb.compat.contains(Compat::ORPHAN_FILE) && ino == sb.orphan_file_inum
            || self.is_quota_file(ino)
    }

    fn check_slot(&mut self, inode: &Slot) -> Result<()> {
        let sb = self.sb();
        let (ino, links) = (inode.ino, inode.raw.i_links_count.get());
        let reserved = ino < sb.first_ino && ino != ROOT_INO;
        if inode.is_zero() {
            if reserved {
                self.inodes.add(ino, kind::UNKNOWN | kind::SPECIAL, 0);
            }
            return Ok(());
        }
        let place = || Place::inode(ino);
        if !verify_slot(&sb, ino, &inode.bytes) {
            self.bad("inode-checksum-wrong", place(), "the checksum of the inode is wrong");
        }
        let orphan = self.inodes.kind(ino) & kind::ORPHAN != 0;
        if reserved {
            self.inodes.add(ino, kind::UNKNOWN | kind::SPECIAL, links);
            return self.check_reserved(inode);
        }
        if links == 0 && !orphan {
            if inode.mode() != 0 && inode.raw.i_dtime.get() == 0 {
                let what = "a deleted inode has no time of deletion";
                self.bad("deleted-inode-without-dtime", place(), what);
            }
            return Ok(());
        }
        if links > 0 && inode.raw.i_dtime.get() != 0 && !orphan {
            self.bad("inode-dtime-set", place(), "the inode is in use, but has a time of deletion");
        }
        let mut found = kind_of(inode.mode());
        let is_dir = found == kind::DIRECTORY;
        if inode.flags() & FL_EA_INODE != 0 {
            if found == kind::REGULAR {
                found |= kind::EA_INODE;
            } else {
                let what = "the inode has the flag of an attribute's value, but is no regular file";
                self.bad("inode-flags-conflict", place(), what);
            }
        }
        if inode.flags() & FL_ENCRYPT != 0 {
            found |= kind::ENCRYPTED;
        }
        if self.is_special(ino) {
            found |= kind::SPECIAL;
        }
        self.inodes.add(ino, found, links);
        self.count_usage(inode, self.stored_blocks_512(inode));
        if found & kind::TYPE == kind::UNKNOWN {
            self.bad("inode-mode-invalid", place(), format!("i_mode is {:#o}", inode.mode()));
        }
        if is_dir {
            self.dirs.push(Dir { ino, parent: 0, dotdot: 0 });
        }
        self.check_fields(inode, found & kind::TYPE);
        self.check_contents(inode, found & kind::TYPE)
    }

    /// Inodes below `s_first_ino` other than the root.
    fn check_reserved(&mut self, inode: &Slot) -> Result<()> {
        let sb = self.sb();
        let place = Place::inode(inode.ino);
        match inode.ino {
            RESIZE_INO if sb.compat.contains(Compat::RESIZE_INODE) => return self.check_resize(inode),
            RESIZE_INO | JOURNAL_INO => {
                let wanted = inode.ino == JOURNAL_INO && sb.compat.contains(Compat::HAS_JOURNAL);
                let in_use = inode.raw.i_links_count.get() > 0 || inode.raw.i_block != [0; 60];
                if !wanted && in_use {
                    let what = "a reserved inode is in use, but its feature is off";
                    self.bad("reserved-inode-in-use", place, what);
                    return Ok(());
                }
            }
            _ => {}
        }
        let found = kind_of(inode.mode());
        if inode.mode() == 0 && inode.ino != BAD_BLOCKS_INO {
            return Ok(());
        }
        if found != kind::REGULAR && inode.ino != BAD_BLOCKS_INO {
            let what = format!("i_mode of a reserved inode is {:#o}", inode.mode());
            self.bad("reserved-inode-mode-invalid", place, what);
            if found != kind::UNKNOWN {
                return Ok(());
            }
        }
        self.check_contents(inode, kind::REGULAR)
    }

    fn check_fields(&mut self, inode: &Slot, found: u8) {
        let sb = self.sb();
        let (flags, raw, ino) = (inode.flags(), &inode.raw, inode.ino);
        let mut bad = |code, what: String| self.found.add(code, Place::inode(ino), what);
        for (flag, present, name) in [
            (FL_EXTENTS, sb.incompat.contains(Incompat::EXTENTS), "an extent tree"),
            (FL_INLINE_DATA, sb.incompat.contains(Incompat::INLINE_DATA), "inline data"),
            (FL_ENCRYPT, sb.incompat.contains(Incompat::ENCRYPT), "encryption"),
            (FL_CASEFOLD, sb.incompat.contains(Incompat::CASEFOLD), "case-insensitive names"),
            (FL_VERITY, sb.ro_compat.contains(RoCompat::VERITY), "verity"),
            (FL_EA_INODE, sb.incompat.contains(Incompat::EA_INODE), "an attribute's value"),
            (FL_IMAGIC, sb.compat.contains(Compat::IMAGIC_INODES), "the AFS mark"),
        ] {
            if flags & flag != 0 && !present {
                bad("inode-flag-without-feature", format!("the inode has {name} without that feature"));
            }
        }
        if flags & FL_INLINE_DATA != 0 && flags & FL_EXTENTS != 0 {
            bad("inode-flags-conflict", "the inode has inline data and an extent tree".into());
        }
        if flags & FL_INDEX != 0 && (found != kind::DIRECTORY || !sb.compat.contains(Compat::DIR_INDEX)) {
            bad("inode-index-flag-invalid", "the inode has an index that it cannot have".into());
        }
        if raw.i_obso_faddr.get() != 0 {
            bad("inode-field-not-zero", format!("i_faddr is {}", raw.i_obso_faddr.get()));
        }
        if raw.i_blocks_high.get() != 0 && !sb.ro_compat.contains(RoCompat::HUGE_FILE) && !sb.hurd {
            bad("inode-field-not-zero", format!("i_blocks_high is {}", raw.i_blocks_high.get()));
        }
        if raw.i_file_acl_lo.get() != 0 && !sb.compat.contains(Compat::EXT_ATTR) {
            let what = format!("i_file_acl is {} without the feature ext_attr", raw.i_file_acl_lo.get());
            bad("inode-field-not-zero", what);
        }
        if raw.i_file_acl_high.get() != 0 && !sb.incompat.contains(Incompat::BIT64) && !sb.hurd {
            bad("inode-field-not-zero", format!("i_file_acl_high is {}", raw.i_file_acl_high.get()));
        }
        if inode.bytes.len() > GOOD_OLD_SIZE {
            let extra = usize::from(raw.i_extra_isize.get());
            if extra != 0 && (extra < 4 || extra % 4 != 0 || GOOD_OLD_SIZE + extra > inode.bytes.len()) {
                bad("inode-extra-isize-invalid", format!("i_extra_isize is {extra}"));
            }
        }
        if matches!(found, 3..=6) {
            if flags & (FL_IMMUTABLE | FL_APPEND) != 0 {
                bad("special-file-flags", "a special file is immutable or append-only".into());
            }
            if flags & (FL_EXTENTS | FL_INLINE_DATA) != 0 {
                bad("special-file-flags", "a special file has a map of blocks".into());
            }
            if inode.size() != 0 {
                bad("special-file-size", format!("a special file has {} bytes", inode.size()));
            }
        }
        if found == kind::REGULAR
            && inode.size() >= 1 << 31
            && raw.i_size_high.get() != 0
            && !sb.ro_compat.contains(RoCompat::LARGE_FILE)
        {
            bad("large-file-feature-missing", format!("a file has {} bytes", inode.size()));
        }
    }

    fn check_contents(&mut self, inode: &Slot, found: u8) -> Result<()> {
        let sb = self.sb();
        let attributes = self.check_xattrs(inode)?;
        let flags = inode.flags();
        let inline = flags & FL_INLINE_DATA != 0 && sb.incompat.contains(Incompat::INLINE_DATA);
        let fast = found == kind::SYMLINK && inode.size() < I_BLOCK && flags & FL_EXTENTS == 0 && !inline;
        let mut mapped = Mapped::default();
        if inline {
            self.check_inline_size(inode, found, attributes.inline);
        } else if !fast && !matches!(found, 3..=6) {
            mapped = self.check_map(inode)?;
            self.check_size(inode, found, &mapped);
        }
        if found == kind::SYMLINK {
            self.check_symlink(inode, fast, inline, &mapped)?;
        }
        let counted =
            mapped.clusters * (u64::from(sb.block_size / 512) << self.cluster_bits) + attributes.blocks_512;
        if inode.ino != BAD_BLOCKS_INO {
            self.check_block_count(inode, counted);
        }
        if flags & FL_ENCRYPT != 0 && sb.incompat.contains(Incompat::ENCRYPT) {
            self.check_context(inode, attributes.context);
        }
        Ok(())
    }

    /// Checks the attribute that says how an inode is encrypted.
    fn check_context(&mut self, inode: &Slot, context: Context) {
        let what = match context {
            Context::Unknown | Context::Length(28 | 40) => return,
            Context::None => "the inode is encrypted, but has no encryption context".into(),
            Context::Length(len) => format!("the encryption context has {len} bytes"),
        };
        self.bad("encryption-context-invalid", Place::inode(inode.ino), what);
    }

    /// The value of `i_blocks`, in blocks of 512 bytes.
    fn stored_blocks_512(&self, inode: &Slot) -> u64 {
        let sb = self.sb();
        let mut stored = u64::from(inode.raw.i_blocks_lo.get());
        if sb.ro_compat.contains(RoCompat::HUGE_FILE) && !sb.hurd {
            stored |= u64::from(inode.raw.i_blocks_high.get()) << 32;
            if inode.flags() & FL_HUGE_FILE != 0 {
                stored <<= sb.block_bits - 9;
            }
        }
        stored
    }

    fn check_block_count(&mut self, inode: &Slot, counted: u64) {
        let stored = self.stored_blocks_512(inode);
        if stored != counted {
            let what = format!("i_blocks is {stored}, the inode has {counted} blocks of 512 bytes");
            self.bad("inode-block-count-wrong", Place::inode(inode.ino), what);
        }
    }

    /// Walks the map and claims its blocks.
    pub(super) fn check_map(&mut self, inode: &Slot) -> Result<Mapped> {
        let reader = self.reader.clone();
        let cluster_bits = self.cluster_bits;
        let mut mapped = Mapped::default();
        // The cluster of the last run and its offset in the file, in clusters.
        let mut last: Option<(u64, u64)> = None;
        map::walk(&reader, inode, &mut |met| {
            match met {
                Met::Node(block) => {
                    let fresh = !self.claimed.get(block >> cluster_bits);
                    self.claim(inode.ino, "a block of the map", block, 1, false);
                    mapped.clusters += 1;
                    last = None;
                    return fresh;
                }
                Met::Run { logical, block, len, unwritten } => {
                    let here = (block >> cluster_bits, logical >> cluster_bits);
                    let shares = cluster_bits > 0 && last == Some(here);
                    self.claim(inode.ino, "a block of the file", block, len, shares);
                    let (first, end) = (here.0, ((block + len - 1) >> cluster_bits) + 1);
                    mapped.clusters += end - first - u64::from(shares);
                    last = Some((end - 1, (logical + len - 1) >> cluster_bits));
                    mapped.end = mapped.end.max(logical + len);
                    if unwritten {
                        mapped.unwritten = true;
                    } else {
                        mapped.last_written = mapped.last_written.max(Some(logical + len - 1));
                    }
                }
                Met::Bad(code, block, what) => {
                    let place = Place { block, ..Place::inode(inode.ino) };
                    self.found.add(code, place, what);
                }
            }
            true
        })?;
        Ok(mapped)
    }

    fn check_size(&mut self, inode: &Slot, found: u8, mapped: &Mapped) {
        let sb = self.sb();
        if self.inodes.kind(inode.ino) & kind::ORPHAN != 0 {
            // Its truncation may be unfinished.
            return;
        }
        let (size, block_size) = (inode.size(), u64::from(sb.block_size));
        let place = Place::inode(inode.ino);
        match found {
            kind::DIRECTORY => {
                let blocks = size / block_size;
                let spare = u64::from(self.raw.s_prealloc_dir_blocks);
                if size % block_size != 0
                    || size == 0
                    || blocks > mapped.end
                    || mapped.end - blocks.min(mapped.end) > spare
                {
                    let what = format!("i_size is {size}, the directory has {} blocks", mapped.end);
                    self.bad("directory-size-wrong", place.clone(), what);
                }
                if mapped.unwritten {
                    self.bad("directory-unwritten", place, "a directory has unwritten blocks");
                }
            }
            kind::REGULAR if inode.ino != BAD_BLOCKS_INO && inode.ino != RESIZE_INO => {
                let beyond = mapped.last_written.is_some_and(|last| size < last * block_size);
                if beyond && inode.flags() & FL_VERITY == 0 {
                    let what = format!("i_size is {size}, but the file has {} blocks", mapped.end);
                    self.bad("file-size-wrong", place.clone(), what);
                }
                let pointers = block_size / 4;
                let limit = if inode.flags() & FL_EXTENTS != 0 {
                    1 << 32
                } else {
                    12 + pointers + pointers.pow(2) + pointers.pow(3)
                };
                if size.div_ceil(block_size) > limit {
                    self.bad("file-size-wrong", place, format!("i_size is {size}, more than a map can hold"));
                }
            }
            _ => {}
        }
    }

    fn check_inline_size(&mut self, inode: &Slot, found: u8, more: Option<u64>) {
        let size = inode.size();
        let wrong = match more {
            None => true,
            Some(more) if found == kind::DIRECTORY => size != I_BLOCK + more,
            Some(more) => size > I_BLOCK + more,
        };
        if wrong {
            let what = match more {
                None => "the inode has no attribute for its inline data".into(),
                Some(more) => format!("i_size is {size}, the inode stores {} bytes", I_BLOCK + more),
            };
            self.bad("inline-data-invalid", Place::inode(inode.ino), what);
        }
    }

    fn check_symlink(&mut self, inode: &Slot, fast: bool, inline: bool, mapped: &Mapped) -> Result<()> {
        let size = inode.size();
        let place = Place::inode(inode.ino);
        if inode.flags() & FL_ENCRYPT != 0 {
            return Ok(());
        }
        if inode.flags() & (FL_IMMUTABLE | FL_APPEND) != 0 {
            self.bad("special-file-flags", place.clone(), "a symbolic link is immutable or append-only");
        }
        let target = if fast {
            inode.raw.i_block.to_vec()
        } else if inline {
            return Ok(());
        } else {
            if mapped.end != 1 || size >= u64::from(self.sb().block_size) {
                let what = format!("a symbolic link of {size} bytes has {} blocks", mapped.end);
                self.bad("symlink-invalid", place, what);
                return Ok(());
            }
            let mut first = None;
            map::runs(&self.reader, inode, &mut |logical, block, _| {
                if logical == 0 {
                    first = Some(block);
                }
            })?;
            match first {
                Some(block) => self.reader.block(block)?.unwrap_or_default(),
                None => Vec::new(),
            }
        };
        let len = target.iter().position(|&byte| byte == 0).unwrap_or(target.len()) as u64;
        if size == 0 || len != size {
            let what = format!("i_size of a symbolic link is {size}, its target has {len} bytes");
            self.bad("symlink-invalid", place, what);
        }
        Ok(())
    }

    /// The inode that reserves blocks for more descriptors: two levels below the doubly indirect pointer.
    fn check_resize(&mut self, inode: &Slot) -> Result<()> {
        let sb = self.sb();
        let place = Place::inode(inode.ino);
        let words: Vec<u64> =
            (0..15).map(|nth| u64::from(node::u32_at(&inode.raw.i_block, nth * 4))).collect();
        let top = words[13];
        let others = words.iter().enumerate().any(|(nth, &word)| nth != 13 && word != 0);
        if kind_of(inode.mode()) != kind::REGULAR || others || inode.flags() & FL_EXTENTS != 0 {
            self.bad("resize-inode-invalid", place, "the resize inode has an invalid mode or map");
            return Ok(());
        }
        if top == 0 {
            self.check_block_count(inode, 0);
            if sb.reserved_gdt_blocks() > 0 {
                self.bad("resize-inode-invalid", place, "the resize inode has no map");
            }
            return Ok(());
        }
        if !self.reader.is_valid(top) {
            self.bad("resize-inode-invalid", place.at(top), "the map of the resize inode is out of range");
            return Ok(());
        }
        self.claim(inode.ino, "the map of the resize inode", top, 1, false);
        let pointers = u64::from(sb.block_size / 4);
        let first = sb.superblock_place().0.0 + 1 + u64::from(sb.first_meta_bg);
        let backups: Vec<u64> = sb
            .copies()
            .map(|group| u64::from(group) * u64::from(sb.blocks_per_group))
            .take(pointers as usize)
            .collect();
        let map = self.reader.block(top)?.unwrap_or_default();
        let mut count = 1;
        for nth in 0..u64::from(sb.reserved_gdt_blocks()) {
            let primary = first + nth;
            let slot = ((u64::from(sb.first_meta_bg) + nth) % pointers * 4) as usize;
            if u64::from(node::u32_at(&map, slot)) != primary {
                let what = format!("the resize inode does not refer to block {primary}");
                self.bad("resize-inode-invalid", place.clone().at(primary), what);
                return Ok(());
            }
            let list = self.reader.block(primary)?.unwrap_or_default();
            for (index, backup) in backups.iter().enumerate() {
                let found = u64::from(node::u32_at(&list, index * 4));
                if found != primary + backup {
                    let what = format!("the resize inode has {found} instead of block {}", primary + backup);
                    self.bad("resize-inode-invalid", place.clone().at(primary), what);
                    return Ok(());
                }
            }
            count += 1 + backups.len() as u64;
        }
        self.check_block_count(inode, count * (u64::from(sb.block_size / 512) << self.cluster_bits));
        Ok(())
    }
}
