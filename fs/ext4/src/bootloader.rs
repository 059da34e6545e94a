//! The boot-loader inode: reserved inode 5, a file without a name that users cannot open.
//!
//! A swap with an ordinary file puts data into it (kernel documentation, `EXT4_IOC_SWAP_BOOT`): the maps, the
//! sizes and the blocks change owners in one transaction; names, owners, modes and attributes stay.

use crate::fs::{Ext4, core_of, private_of};
use crate::layout::inode::{FL_EXTENTS, slot_state};
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::{
    Cred, Error, FileType, InitialCounter, Inode, IoctlOps, Logged, NameError, NewInode, Result, Touch,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `_IO('f', 17)`.
pub(crate) const SWAP_BOOT: u32 = 0x6611;
const BOOT_INO: u32 = 5;
/// Limit of the nodes of both extent trees together. All of them change owners, and so checksums, in one
/// transaction.
const MAX_NODES: usize = 64;

impl Ext4 {
    /// Swaps a file's data with the boot loader's. The first swap leaves the file empty.
    pub(crate) fn swap_boot_loader(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileType::Regular || inode.attr().nlink != 1 {
            return Err(NameError::Invalid.into());
        }
        // Inline data is stored in the slot, which does not move.
        self.inline_to_blocks(inode)?;
        let _one_at_a_time = self.boot.lock();
        let boot = self.boot_loader()?;
        self.inline_to_blocks(&boot)?;
        self.reservation_windows.remove(inode.ino);
        let (mine, its) = (self.nodes_of(inode)?, self.nodes_of(&boot)?);
        let mut h = self.begin((mine.len() + its.len()) as u32 + 8)?;
        {
            // In ascending order of inode number.
            let mut b = core_of(&boot).write();
            let mut a = core_of(inode).write();
            let (a, b) = (&mut *a, &mut *b);
            // No data is waiting for write-back: the remaining reservations are for the ends of pages.
            self.end_reservations(a, FileBlock(0), FileBlock(u64::MAX));
            std::mem::swap(&mut a.i_block, &mut b.i_block);
            std::mem::swap(&mut a.disk_size, &mut b.disk_size);
            let differ = (a.flags ^ b.flags) & FL_EXTENTS;
            a.flags ^= differ;
            b.flags ^= differ;
            // The attribute block is part of the block count and stays with its inode.
            let of_attributes =
                |file_acl| if file_acl == BlockNo(0) { 0 } else { 1 << (self.sb.block_bits - 9) };
            let (attributes_a, attributes_b) = (of_attributes(a.file_acl), of_attributes(b.file_acl));
            let (data_a, data_b) =
                (a.blocks_512.saturating_sub(attributes_a), b.blocks_512.saturating_sub(attributes_b));
            a.blocks_512 = data_b + attributes_a;
            b.blocks_512 = data_a + attributes_b;
            for (inode, core) in [(inode, &*a), (&boot, &*b)] {
                inode.with_attr(|attr| (attr.size, attr.blocks_512) = (core.disk_size, core.blocks_512));
                private_of(inode).alloc.lock().next = BlockNo(0);
            }
        }
        self.adopt_nodes(&mut h, inode, &its)?;
        self.adopt_nodes(&mut h, &boot, &mine)?;
        inode.changed(Touch::Data, Logged::Anyway);
        boot.changed(Touch::Data, Logged::Anyway);
        // `changed` moves the times only of inodes in the VFS's cache.
        let (mtime, ctime) = inode.with_attr(|attr| (attr.mtime, attr.ctime));
        boot.with_attr(|attr| (attr.mtime, attr.ctime) = (mtime, ctime));
        self.log(&mut h, inode)?;
        self.log(&mut h, &boot)
    }

    fn nodes_of(&self, inode: &Inode) -> Result<Vec<Arc<Buffer>>> {
        let core = core_of(inode).read();
        // Block maps carry no checksums.
        if core.flags & FL_EXTENTS == 0 {
            return Ok(Vec::new());
        }
        self.extent_nodes(inode, &core, MAX_NODES)?.ok_or_else(|| {
            Error::Incompatible(format!(
                "{}, inode {}: too fragmented for a boot loader (more than {MAX_NODES} extent blocks)",
                self.place, inode.ino
            ))
        })
    }

    /// Loads the boot-loader inode, or makes one if the slot holds none. It is not in the VFS's cache.
    fn boot_loader(&self) -> Result<Inode> {
        let old = match self.raw_inode(BOOT_INO) {
            Ok(slot) => slot,
            // Zeros without a checksum: mke2fs leaves the slot so.
            Err(Error::Name(NameError::Stale)) => vec![0; self.sb.inode_size as usize],
            Err(error) => return Err(error),
        };
        let state = slot_state(&old);
        if state.mode != 0 && state.links != 0 {
            let boot = Inode::detached(self.load(BOOT_INO, true)?);
            if boot.kind != FileType::Regular {
                return Err(self.corrupt_inode("the boot loader is not a regular file", &boot));
            }
            return Ok(boot);
        }
        let new = NewInode::new(FileType::Regular, self.now());
        let version = self.fresh_version(BOOT_INO, &old);
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let image = self.new_image(0, &new, generation, version);
        let mut h = self.begin(2)?;
        let (Some(buffer), byte) = self.slot_place(BOOT_INO)? else { return Err(NameError::Stale.into()) };
        h.modify(&buffer, |bytes| {
            let slot = &mut bytes[byte..byte + self.sb.inode_size as usize];
            slot.fill(0);
            image.encode(&self.sb, BOOT_INO, slot);
        })?;
        let mut loaded = self.loaded(BOOT_INO, image);
        loaded.counter = InitialCounter::Fresh(version);
        Ok(Inode::detached(loaded))
    }
}

impl IoctlOps for Ext4 {
    fn has_ioctl(&self, number: u32) -> bool {
        number == SWAP_BOOT
    }

    fn ioctl(&self, _caller: &Cred, inode: &Inode, number: u32, _input: &[u8]) -> Result<Vec<u8>> {
        match number {
            SWAP_BOOT => self.swap_boot_loader(inode).map(|()| Vec::new()),
            _ => Err(NameError::NotSupported.into()),
        }
    }
}
