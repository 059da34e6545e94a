//! Inodes without names that somebody still uses, and files whose truncation is under way: the list that starts in the
//! superblock and goes on through `i_dtime`.

use crate::ctx::{Ext4, Handle};
use crate::layout::features::RoCompat;
use crate::layout::inode::slot_state;
use ivers_vfs::{Error, FileType, Inode, Result};
use parking_lot::Mutex;
use std::collections::HashSet;

/// The list as it is on the device, first inode first.
#[derive(Debug, Default)]
pub(crate) struct Orphans(Mutex<Vec<u32>>);

impl Ext4 {
    fn set_next_orphan(&self, h: &mut Handle, ino: u32, next: u32) -> Result<()> {
        self.modify_slot(h, ino, |slot| slot[0x14..0x18].copy_from_slice(&next.to_le_bytes()))
    }

    /// Put an inode on the list, unless it is there.
    pub fn orphan_add(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let ino = inode.ino.0 as u32;
        let mut list = self.orphans.0.lock();
        if list.contains(&ino) {
            return Ok(());
        }
        // The newest is first on the device and last in memory.
        self.set_next_orphan(h, ino, list.last().copied().unwrap_or(0))?;
        self.modify_super(h, |raw| raw.s_last_orphan = ino.into())?;
        list.push(ino);
        Ok(())
    }

    /// Take an inode off the list, if it is there.
    pub fn orphan_del(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let ino = inode.ino.0 as u32;
        let mut list = self.orphans.0.lock();
        let Some(at) = list.iter().rposition(|&other| other == ino) else { return Ok(()) };
        let next = if at == 0 { 0 } else { list[at - 1] };
        match list.get(at + 1) {
            Some(&newer) => self.set_next_orphan(h, newer, next)?,
            None => self.modify_super(h, |raw| raw.s_last_orphan = next.into())?,
        }
        self.set_next_orphan(h, ino, 0)?;
        list.remove(at);
        Ok(())
    }

    /// Finish what the last mount left: delete what has no name, cut what was being cut. `first` is the superblock's head.
    pub(crate) fn clean_orphans(&self, first: u32) -> Result<u32> {
        let mut list = Vec::new();
        let mut known = HashSet::new();
        let mut ino = first;
        while ino != 0 {
            if ino < self.sb.first_ino
                || ino > self.sb.inodes_count
                || !known.insert(ino)
                || list.len() > 1 << 20
            {
                return Err(Error::corrupt(
                    format!("the orphan list leads to inode {ino}"),
                    format!("{}, superblock", self.place),
                ));
            }
            list.push(ino);
            ino = slot_state(&self.raw_inode(ino)?).dtime;
        }
        list.reverse();
        *self.orphans.0.lock() = list.clone();
        for &ino in list.iter().rev() {
            let inode = self.detached(self.load(ino, true)?);
            if inode.attr().nlink == 0 {
                self.fs_delete_inode(&inode)?;
            } else {
                self.cut_orphan(&inode)?;
                let mut h = self.begin(16)?;
                self.orphan_del(&mut h, &inode)?;
            }
        }
        let mut files = 0;
        if self.sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT) && self.sb.orphan_file_inum != 0 {
            files = self.clean_orphan_file()?;
        }
        Ok(list.len() as u32 + files)
    }

    fn cut_orphan(&self, inode: &Inode) -> Result<()> {
        if inode.kind == FileType::Regular {
            self.remove_blocks(
                inode,
                inode.attr().size.div_ceil(u64::from(self.sb.block_size)),
                u64::from(u32::MAX),
            )?;
            let mut h = self.begin(16)?;
            self.log(&mut h, inode)?;
        }
        Ok(())
    }

    /// The orphan file: blocks of inode numbers, each closed by a magic number and a checksum.
    fn clean_orphan_file(&self) -> Result<u32> {
        const MAGIC: u32 = 0x0B10_CA04;
        let file = self.detached(self.load(self.sb.orphan_file_inum, true)?);
        let bs = self.sb.block_size as usize;
        let blocks = file.attr().size >> self.sb.block_bits;
        let seed = self.inode_seed(file.ino.0 as u32, file.generation);
        let mut cleaned = 0;
        for lblk in 0..blocks.min(1 << 16) {
            let Some(buffer) = self.dir_block(&file, lblk)? else { continue };
            let bytes = buffer.read();
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            if word(bs - 8) != MAGIC {
                return Err(
                    self.corrupt_block("a block of the orphan file has no magic number", buffer.block())
                );
            }
            let numbers: Vec<u32> = (0..(bs - 8) / 4).map(|i| word(i * 4)).collect();
            drop(bytes);
            for &ino in numbers.iter().filter(|&&ino| ino != 0) {
                if ino < self.sb.first_ino || ino > self.sb.inodes_count {
                    return Err(
                        self.corrupt_block(format!("the orphan file names inode {ino}"), buffer.block())
                    );
                }
                let inode = self.detached(self.load(ino, true)?);
                if inode.attr().nlink == 0 {
                    self.fs_delete_inode(&inode)?;
                } else {
                    self.cut_orphan(&inode)?;
                }
                cleaned += 1;
            }
            if numbers.iter().any(|&ino| ino != 0) {
                let mut h = self.begin(4)?;
                let block = buffer.block();
                h.modify(&buffer, |bytes| {
                    bytes[..bs - 8].fill(0);
                    let crc = self.csum(self.csum(seed, &block.to_le_bytes()), &bytes[..bs - 8]);
                    if self.has_csum() {
                        bytes[bs - 4..].copy_from_slice(&crc.to_le_bytes());
                    }
                })?;
            }
        }
        let mut h = self.begin(4)?;
        self.modify_super(&mut h, |raw| {
            raw.s_feature_ro_compat =
                (raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits()).into();
        })?;
        Ok(cleaned)
    }
}
