//! Allocation of inode slots: directories are spread over the groups, files stay near their directory.

use crate::fs::{Ext4, Handle, core_of, private_of};
use crate::groups::next_clear;
use crate::layout::features::{Incompat, RoCompat};
use crate::layout::inode::{FL_EXTENTS, FL_INHERITED, InodeImage, StoredVersion};
use ivers_block::{BlockNo, Buffer};
use ivers_vfs::{
    Attr, FileType, InitialCounter, Inode, InodeFlags, LoadedInode, NameError, NewInode, Result,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Groups that are examined for a new directory before the best of them is chosen.
const ORLOV_PROBES: u32 = 16;

/// A slot that is marked as used and not written yet.
pub(crate) struct ClaimedSlot {
    pub ino: u32,
    pub buffer: Arc<Buffer>,
    /// Its first byte in the buffer.
    pub byte: usize,
    /// What it contains.
    pub old: Vec<u8>,
    /// Whether it held an inode before; else `old` is arbitrary.
    pub ever_used: bool,
}

impl Ext4 {
    /// Whether a new inode starts a separate tree.
    fn starts_tree(&self, dir: &Inode, kind: FileType) -> bool {
        let spread = dir.ino.0 as u32 == crate::fs::ROOT_INO || dir.attr().flags.contains(InodeFlags::TOPDIR);
        kind == FileType::Directory && spread && self.sb.groups() > 1
    }

    /// Returns the group to try first.
    fn inode_group(&self, dir: &Inode, kind: FileType) -> Result<u32> {
        let parent = self.sb.group_of_inode(dir.ino.0 as u32).0;
        if !self.starts_tree(dir, kind) {
            // A large directory fills many groups: do not search those again for each inode.
            return Ok(private_of(dir).alloc.lock().inode_group.unwrap_or(parent));
        }
        // A directory in the root starts a separate tree: find a group with free space and few directories.
        let start = self.next_generation.load(Ordering::Relaxed) % self.sb.groups();
        let mut best = (u32::MAX, parent);
        for step in 0..ORLOV_PROBES.min(self.sb.groups()) {
            let number = ((u64::from(start) + u64::from(step)) % u64::from(self.sb.groups())) as u32;
            let desc = self.groups.get(number)?.lock().desc;
            let roomy = desc.free_inodes > self.sb.inodes_per_group / 4
                && desc.free_blocks > self.sb.group_blocks(number) / 4;
            if roomy && desc.used_dirs < best.0 {
                best = (desc.used_dirs, number);
            }
        }
        Ok(best.1)
    }

    /// Allocates a slot for a new inode with one name (a directory: two) and writes it. The caller adds what
    /// the file type needs (a directory's first block, a link's target) and logs the inode again.
    pub fn alloc_inode(&self, h: &mut Handle, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        let first = self.inode_group(dir, new.kind)?;
        for step in 0..self.sb.groups() {
            let number = ((u64::from(first) + u64::from(step)) % u64::from(self.sb.groups())) as u32;
            if let Some(loaded) = self.alloc_in(h, number, dir, new)? {
                if !self.starts_tree(dir, new.kind) {
                    private_of(dir).alloc.lock().inode_group = Some(number);
                }
                return Ok(loaded);
            }
        }
        Err(NameError::NoSpace.into())
    }

    fn alloc_in(
        &self,
        h: &mut Handle,
        number: u32,
        dir: &Inode,
        new: &NewInode,
    ) -> Result<Option<LoadedInode>> {
        let Some(claimed) = self.claim_slot(h, number, new.kind)? else { return Ok(None) };
        let ClaimedSlot { ino, old, .. } = &claimed;
        let version = if claimed.ever_used { self.fresh_version(*ino, old) } else { 1 };
        let mut generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        if claimed.ever_used && generation == crate::layout::inode::slot_state(old).generation {
            generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        }
        let inherited = (core_of(dir).read().flags | dir.attr().flags.bits()) & FL_INHERITED;
        let image = self.new_image(inherited, new, generation, version);
        h.modify(&claimed.buffer, |bytes| {
            let slot = &mut bytes[claimed.byte..claimed.byte + self.sb.inode_size as usize];
            slot.fill(0);
            image.encode(&self.sb, *ino, slot);
        })?;
        let mut loaded = self.loaded(*ino, image);
        if loaded.counter != InitialCounter::NotStored {
            loaded.counter = InitialCounter::Fresh(version);
        }
        Ok(Some(loaded))
    }

    /// Marks the first free slot of a group as used; `None` if the group has none. The caller writes it.
    pub(crate) fn claim_slot(
        &self,
        h: &mut Handle,
        number: u32,
        kind: FileType,
    ) -> Result<Option<ClaimedSlot>> {
        let group = self.groups.get(number)?;
        let mut group = group.lock();
        if group.desc.free_inodes == 0 {
            return Ok(None);
        }
        let per = self.sb.inodes_per_group;
        let from = (self.sb.first_ino - 1).saturating_sub(number.saturating_mul(per)).min(per);
        let from = if number == 0 { from } else { from.min(per) };
        let bit = match self.groups.inode_bitmap(&group)? {
            Some(bitmap) => next_clear(&bitmap.read(), from, per),
            None => from,
        };
        if bit >= per {
            return Ok(None);
        }
        let used = if self.sb.has_group_csum() { per - group.desc.itable_unused } else { per };
        let ever_used = bit < used && group.desc.flags & crate::layout::group::INODE_UNINIT == 0;
        self.groups.change_inode(h, &mut group, bit, true)?;
        group.desc.free_inodes -= 1;
        if kind == FileType::Directory {
            group.desc.used_dirs += 1;
        }
        if self.sb.has_group_csum() {
            group.desc.itable_unused = group.desc.itable_unused.min(per - bit - 1);
        }
        self.groups.store(h, &group)?;
        let table = group.desc.inode_table;
        drop(group);
        self.groups.free_inodes.fetch_sub(1, Ordering::Relaxed);
        let ino = number * per + bit + 1;
        let size = self.sb.inode_size as usize;
        let buffer = self.block(table + u64::from(bit / self.sb.inodes_per_block))?;
        let byte = (bit % self.sb.inodes_per_block) as usize * size;
        let old = buffer.read()[byte..byte + size].to_vec();
        Ok(Some(ClaimedSlot { ino, buffer, byte, old, ever_used }))
    }

    /// Marks a slot as free in the bitmap and the counts.
    pub(crate) fn release_slot(&self, h: &mut Handle, ino: u32, kind: FileType) -> Result<()> {
        let (number, bit) = self.sb.group_of_inode(ino);
        let group = self.groups.get(number)?;
        let mut group = group.lock();
        self.groups.change_inode(h, &mut group, bit, false)?;
        group.desc.free_inodes += 1;
        if kind == FileType::Directory {
            group.desc.used_dirs = group.desc.used_dirs.saturating_sub(1);
        }
        self.groups.store(h, &group)?;
        self.groups.free_inodes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The initial contents of a new inode's slot.
    pub(crate) fn new_image(
        &self,
        inherited: u32,
        new: &NewInode,
        generation: u32,
        version: u64,
    ) -> InodeImage {
        let mut flags = inherited;
        match new.kind {
            FileType::Directory => {}
            // DIRSYNC and PROJINHERIT have no meaning for a file.
            FileType::Regular => flags &= !(0x1_0000 | 0x2000_0000),
            // Only NODUMP and NOATIME apply to the other types.
            _ => flags &= 0x40 | 0x80,
        }
        let mut i_block = [0; 60];
        if self.sb.incompat.contains(Incompat::EXTENTS)
            && matches!(new.kind, FileType::Regular | FileType::Directory)
        {
            flags |= FL_EXTENTS;
            // An empty root: magic, no entries of four, depth 0.
            i_block[..8].copy_from_slice(&[0x0A, 0xF3, 0, 0, 4, 0, 0, 0]);
        }
        let has_projects = self.sb.ro_compat.contains(RoCompat::PROJECT);
        let extra = self.sb.want_extra_isize;
        let room = self.sb.inode_size as usize - 128;
        let stored = if self.sb.hurd {
            StoredVersion::None
        } else if extra >= 28 {
            StoredVersion::Wide(version)
        } else {
            StoredVersion::Narrow(version as u32)
        };
        InodeImage {
            generation,
            attr: Attr {
                project: if has_projects { new.project } else { 0 },
                btime: (extra >= 20).then_some(new.now),
                flags: InodeFlags::from_bits_truncate(flags),
                ..new.attr(if new.kind == FileType::Directory { 2 } else { 1 })
            },
            version: stored,
            flags,
            i_block,
            file_acl: BlockNo(0),
            extra_isize: extra,
            body: vec![0; room - usize::from(extra)].into(),
            dtime: 0,
        }
    }

    /// Frees a slot whose blocks and attributes are gone. Raises the stored counter for the next generation.
    pub fn free_inode(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let ino = inode.ino.0 as u32;
        if ino < self.sb.first_ino {
            return Err(self.corrupt_inode("freeing a reserved inode", inode));
        }
        inode.counter.inc();
        {
            let mut core = core_of(inode).write();
            core.disk_size = 0;
            core.i_block = [0; 60];
            core.file_acl = BlockNo(0);
            core.body_xattrs.clear();
            core.flags &= !FL_EXTENTS & !crate::layout::inode::FL_INLINE_DATA;
        }
        inode.with_attr(|attr| {
            attr.nlink = 0;
            attr.size = 0;
        });
        self.log(h, inode)?;
        // An attribute inode stores no time there, and a small number would be read as the next orphan.
        let ctime = inode.attr().ctime.sec;
        let smallest = i64::from(self.sb.inodes_count()) + 1;
        let now = if ctime >= smallest { ctime } else { self.now().sec.max(smallest) } as u32;
        self.modify_slot(h, ino, |slot| slot[0x14..0x18].copy_from_slice(&now.to_le_bytes()))?;
        self.release_slot(h, ino, inode.kind)?;
        private_of(inode).alloc.lock().next = BlockNo(0);
        Ok(())
    }
}
