//! Reading inodes from the device and writing them.

use crate::fs::{Ext4, Ext4Inode, Handle, InodeCore, ROOT_INO, core_of};
use crate::layout::inode::{
    FL_CASEFOLD, FL_EA_INODE, FL_ENCRYPT, InodeImage, StoredVersion, seal_slot, slot_state, slot_version,
    verify_slot,
};
use ivers_block::Buffer;
use ivers_vfs::sync::{RankedMutex, RankedRwLock};
use ivers_vfs::{Error, FileType, InitialCounter, Ino, Inode, LoadedInode, NameError, Result};
use std::sync::Arc;

impl Ext4 {
    /// The inode table block that holds a slot, and the slot's first byte. `None` if the slot was never
    /// written.
    pub(crate) fn slot_place(&self, ino: u32) -> Result<(Option<Arc<Buffer>>, usize)> {
        if ino == 0 || ino > self.sb.inodes_count() {
            return Err(NameError::Stale.into());
        }
        let (group, index) = self.sb.group_of_inode(ino);
        let desc = self.groups.get(group)?.lock().desc;
        let byte = (index % self.sb.inodes_per_block * self.sb.inode_size) as usize;
        let used = self.sb.inodes_per_group - if self.sb.has_group_csum() { desc.itable_unused } else { 0 };
        if index >= used || desc.flags & crate::layout::group::INODE_UNINIT != 0 {
            return Ok((None, byte));
        }
        let block = desc.inode_table + u64::from(index / self.sb.inodes_per_block);
        let end = desc.inode_table + u64::from(used.div_ceil(self.sb.inodes_per_block));
        Ok((Some(self.block_in_range(block, desc.inode_table..end)?), byte))
    }

    /// Returns the raw bytes of a slot, checked. A slot that was never written is stale.
    pub fn raw_inode(&self, ino: u32) -> Result<Vec<u8>> {
        let (Some(buffer), byte) = self.slot_place(ino)? else { return Err(NameError::Stale.into()) };
        let slot = buffer.read()[byte..byte + self.sb.inode_size as usize].to_vec();
        if !verify_slot(&self.sb, ino, &slot) {
            // A zeroed slot has no checksum and holds no inode.
            if slot.iter().all(|&b| b == 0) {
                return Err(NameError::Stale.into());
            }
            return Err(Error::corrupt("bad inode checksum", format!("{}, inode {ino}", self.place)));
        }
        Ok(slot)
    }

    /// As [`Ext4::raw_inode`]; `None` for a slot that was never written.
    pub(crate) fn raw_inode_if_written(&self, ino: u32) -> Result<Option<Vec<u8>>> {
        match self.raw_inode(ino) {
            Err(Error::Name(NameError::Stale)) => Ok(None),
            slot => slot.map(Some),
        }
    }

    /// Changes the raw bytes of a slot in use and updates its checksum.
    pub fn modify_slot<R>(&self, h: &mut Handle, ino: u32, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let (Some(buffer), byte) = self.slot_place(ino)? else { return Err(NameError::Stale.into()) };
        h.modify(&buffer, |bytes| {
            let slot = &mut bytes[byte..byte + self.sb.inode_size as usize];
            let result = f(slot);
            seal_slot(&self.sb, ino, slot);
            result
        })
    }

    /// Decodes an inode; `any` also accepts reserved, unlinked and attribute inodes.
    pub fn load(&self, ino: u32, any: bool) -> Result<LoadedInode> {
        match self.load_if_in_use(ino, any) {
            Err(Error::Name(NameError::Stale)) if ino == ROOT_INO => Err(Error::corrupt(
                "the root directory is not in use",
                format!("{}, inode {ino}", self.place),
            )),
            loaded => loaded,
        }
    }

    fn load_if_in_use(&self, ino: u32, any: bool) -> Result<LoadedInode> {
        if !any && ino != ROOT_INO && ino < self.sb.first_ino {
            return Err(NameError::Stale.into());
        }
        let slot = self.raw_inode(ino)?;
        let state = slot_state(&slot);
        if state.mode == 0 || (state.links == 0 && !any) {
            return Err(NameError::Stale.into());
        }
        let place = || format!("{}, inode {ino}", self.place);
        let image = InodeImage::decode(&self.sb, &slot, &place)?;
        if !any && image.flags & FL_EA_INODE != 0 {
            return Err(NameError::Stale.into());
        }
        if image.flags & (FL_ENCRYPT | FL_CASEFOLD) != 0 {
            return Err(Error::Incompatible(format!(
                "{} is encrypted or case-insensitive, which is not supported",
                place()
            )));
        }
        if ino == ROOT_INO && image.attr.kind != FileType::Directory {
            return Err(Error::corrupt("the root is not a directory", place()));
        }
        Ok(self.loaded(ino, image))
    }

    /// Converts a decoded slot for the VFS.
    pub(crate) fn loaded(&self, ino: u32, image: InodeImage) -> LoadedInode {
        let counter = match image.version {
            StoredVersion::Wide(version) => InitialCounter::Stored(version & (u64::MAX >> 1)),
            StoredVersion::Narrow(version) => {
                let high = self.wrapped.lock().get(&ino).copied().unwrap_or(0);
                InitialCounter::Stored(u64::from(version) | high << 32)
            }
            StoredVersion::None => InitialCounter::NotStored,
        };
        let core = InodeCore {
            i_block: image.i_block,
            flags: image.flags,
            disk_size: image.attr.size,
            blocks_512: image.attr.blocks_512,
            file_acl: image.file_acl,
            extra_isize: image.extra_isize,
            body_xattrs: image.body,
            dtime: image.dtime,
            delayed: Default::default(),
        };
        let private = {
            let core = RankedRwLock::with_key(core, u64::from(ino));
            let last_change = self.journal.loaded();
            Arc::new(Ext4Inode { core, alloc: RankedMutex::default(), last_change })
        };
        let private = if ino == ROOT_INO { self.share_root(private) } else { private };
        LoadedInode {
            ino: Ino(u64::from(ino)),
            generation: image.generation,
            attr: image.attr,
            counter,
            private: Box::new(private),
        }
    }

    /// Makes every copy of the root share one private part, so that the epoch record and users' changes do
    /// not overwrite each other.
    fn share_root(&self, new: Arc<Ext4Inode>) -> Arc<Ext4Inode> {
        let mut shared = self.root_private.lock();
        if let Some(private) = shared.upgrade() {
            return private;
        }
        *shared = Arc::downgrade(&new);
        new
    }

    /// Logs an inode: attributes, map root, attributes in the slot, and stored counter.
    pub fn log(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let ino = inode.ino.0 as u32;
        h.belongs_to(inode);
        let (Some(buffer), byte) = self.slot_place(ino)? else { return Err(NameError::Stale.into()) };
        let core = core_of(inode).read();
        let extra = core.extra_isize;
        let counted = h.modify(&buffer, |bytes| {
            let slot = &mut bytes[byte..byte + self.sb.inode_size as usize];
            // Read attributes and counter here, under the buffer's lock: write-back and a request may log at
            // the same time, and the later store must not contain older values than the earlier one.
            let mut attr = inode.attr();
            if attr.kind == FileType::Regular {
                attr.size = core.disk_size;
            }
            attr.blocks_512 = core.blocks_512;
            let counted = inode.counter.peek();
            let version = if self.sb.hurd || core.flags & FL_EA_INODE != 0 {
                StoredVersion::None
            } else if extra >= 28 {
                StoredVersion::Wide(counted)
            } else {
                StoredVersion::Narrow(counted as u32)
            };
            let image = InodeImage {
                generation: inode.generation,
                attr,
                version,
                flags: core.flags,
                i_block: core.i_block,
                file_acl: core.file_acl,
                extra_isize: extra,
                body: core.body_xattrs.clone(),
                // The orphan list maintains this field separately.
                dtime: slot_state(slot).dtime,
            };
            image.encode(&self.sb, ino, slot);
            matches!(version, StoredVersion::Narrow(_)).then_some(counted)
        })?;
        // Release the lock: the epoch record is stored on the root, whose private part may be this one.
        drop(core);
        self.note_overflow(h, ino, counted.unwrap_or(0) >> 32)
    }

    /// Raises the stored epoch when a 32-bit stored counter overflows: the next mount must start above every
    /// value of this one.
    pub(crate) fn note_overflow(&self, h: &mut Handle, ino: u32, high: u64) -> Result<()> {
        if high == 0 {
            return Ok(());
        }
        let old = self.wrapped.lock().insert(ino, high);
        if old.unwrap_or(0) < high {
            self.raise_stored_epoch(h)?;
        }
        Ok(())
    }

    /// The first counter value that no earlier generation of a slot has shown. `used` says whether the slot
    /// was ever written.
    pub(crate) fn fresh_version(&self, ino: u32, slot: &[u8]) -> u64 {
        let stored = match slot_version(&self.sb, slot) {
            StoredVersion::Wide(version) => version,
            StoredVersion::Narrow(version) => {
                u64::from(version) | self.wrapped.lock().get(&ino).copied().unwrap_or(0) << 32
            }
            // An attribute inode's reference count is not a counter; to start above it does no harm.
            StoredVersion::None if !self.sb.hurd => {
                u64::from(u32::from_le_bytes([slot[0x24], slot[0x25], slot[0x26], slot[0x27]]))
            }
            StoredVersion::None => 0,
        };
        (stored + 1) & (u64::MAX >> 1)
    }
}

impl Ext4 {
    /// Logs only the attributes in the slot and the number of the attribute block. For copies of the root
    /// whose times and sizes may be older than those in the VFS.
    pub(crate) fn log_attributes(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let core = core_of(inode).read();
        let start = 128 + usize::from(core.extra_isize);
        let wide = self.sb.incompat.contains(crate::layout::Incompat::BIT64);
        self.modify_slot(h, inode.ino.0 as u32, |slot| {
            if slot.len() > 128 {
                // A slot without extra fields gets them here; the bytes were zeros.
                slot[0x80..0x82].copy_from_slice(&core.extra_isize.to_le_bytes());
                let len = core.body_xattrs.len().min(slot.len() - start);
                slot[start..start + len].copy_from_slice(&core.body_xattrs[..len]);
            }
            slot[0x68..0x6C].copy_from_slice(&(core.file_acl.0 as u32).to_le_bytes());
            if wide {
                slot[0x76..0x78].copy_from_slice(&((core.file_acl.0 >> 32) as u16).to_le_bytes());
            }
            let blocks = core.blocks_512;
            if blocks <= u64::from(u32::MAX) {
                slot[0x1C..0x20].copy_from_slice(&(blocks as u32).to_le_bytes());
            }
        })
    }
}
