//! Orphans: inodes without names that are still in use, and files whose truncation is unfinished.
//!
//! The orphan file (`orphan_file`), if there is one, is used first: concurrent deletions share nothing in it.
//! If it is full or absent, orphans go to the list that starts in the superblock and continues through
//! `i_dtime`.
//!
//! The lock of [`Orphans`] is taken inside a handle, below the locks of inodes and above those of groups and
//! buffers.

use crate::fs::{Ext4, Handle};
use crate::layout::features::{Compat, RoCompat};
use crate::layout::inode::slot_state;
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{Error, FileType, Inode, NameError, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Magic number at the end of each block of the orphan file.
const FILE_MAGIC: u32 = 0x0B10_CA04;
/// Bytes of the tail of a block: magic number and checksum.
const FILE_TAIL: usize = 8;
/// Limit of the blocks of the orphan file. mke2fs makes at most 512.
const MAX_FILE_BLOCKS: u64 = 1 << 16;
/// Limit of the orphans that a crash leaves; more are reported as corruption.
const MAX_ORPHANS: usize = 1 << 20;

/// Where an orphan is recorded.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// On the list, between these inodes.
    List { newer: Option<u32>, older: Option<u32> },
    /// In a block of the orphan file, at a byte offset.
    File { block: usize, byte: usize },
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<u32, Place>,
    /// The newest orphan of the list, which the superblock refers to.
    head: Option<u32>,
    /// The orphan file, after its first use.
    file: Option<OrphanFile>,
}

/// The orphan file's blocks, read at their first use.
#[derive(Debug)]
struct OrphanFile {
    /// Checksum seed of its blocks.
    seed: u32,
    /// Block numbers.
    blocks: Vec<BlockNo>,
    /// Slots in use.
    used: usize,
    /// The block that had a free slot last.
    hint: usize,
}

/// The recorded orphans.
#[derive(Debug, Default)]
pub(crate) struct Orphans(RankedMutex<rank::Driver<0>, State>);

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Ext4 {
    /// Whether new orphans go to the orphan file.
    pub(crate) fn has_orphan_file(&self) -> bool {
        self.sb.compat.contains(Compat::ORPHAN_FILE) && self.sb.orphan_file_inum != 0
    }

    /// The orphan file's inode, which may have moved since the open.
    pub(crate) fn orphan_file_ino(&self) -> Result<u32> {
        Ok(self.raw_super()?.s_orphan_file_inum.get())
    }

    /// Whether the orphan file is empty as far as this mount knows: it has read the orphans of the last
    /// session.
    pub(crate) fn orphan_file_is_empty(&self) -> bool {
        self.orphans.0.lock().file.as_ref().is_none_or(|file| file.used == 0)
    }

    fn set_next_orphan(&self, h: &mut Handle, ino: u32, next: Option<u32>) -> Result<()> {
        let next = next.unwrap_or(0);
        self.modify_slot(h, ino, |slot| slot[0x14..0x18].copy_from_slice(&next.to_le_bytes()))
    }

    fn set_first_orphan(&self, h: &mut Handle, first: Option<u32>) -> Result<()> {
        self.modify_super(h, |raw| raw.s_last_orphan = first.unwrap_or(0).into())
    }

    /// Records an inode as an orphan, unless it is recorded.
    pub fn orphan_add(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let ino = inode.ino.0 as u32;
        let mut state = self.orphans.0.lock();
        if state.places.contains_key(&ino) {
            return Ok(());
        }
        if self.has_orphan_file()
            && let Some(place) = self.take_file_slot(h, &mut state, ino)?
        {
            state.places.insert(ino, place);
            return Ok(());
        }
        let older = state.head;
        self.set_next_orphan(h, ino, older)?;
        self.set_first_orphan(h, Some(ino))?;
        if let Some(Place::List { newer, .. }) = older.and_then(|older| state.places.get_mut(&older)) {
            *newer = Some(ino);
        }
        state.places.insert(ino, Place::List { newer: None, older });
        state.head = Some(ino);
        Ok(())
    }

    /// Removes an inode from the orphans, if it is recorded.
    pub fn orphan_del(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        self.forget_orphan(h, inode.ino.0 as u32)
    }

    fn forget_orphan(&self, h: &mut Handle, ino: u32) -> Result<()> {
        let mut state = self.orphans.0.lock();
        match state.places.get(&ino).copied() {
            None => return Ok(()),
            Some(Place::File { block, byte }) => {
                let file = state.file.as_mut().expect("a slot was taken");
                let buffer = self.orphan_block(file, block)?;
                self.put_file_slot(h, file, &buffer, byte, 0)?;
                file.used -= 1;
                file.hint = block;
            }
            Some(Place::List { newer, older }) => {
                match newer {
                    Some(newer) => self.set_next_orphan(h, newer, older)?,
                    None => self.set_first_orphan(h, older)?,
                }
                self.set_next_orphan(h, ino, None)?;
                let mut link = |other: Option<u32>, f: &dyn Fn(&mut Option<u32>, &mut Option<u32>)| {
                    if let Some(Place::List { newer, older }) =
                        other.and_then(|other| state.places.get_mut(&other))
                    {
                        f(newer, older);
                    }
                };
                link(newer, &|_, its_older| *its_older = older);
                link(older, &|its_newer, _| *its_newer = newer);
                if newer.is_none() {
                    state.head = older;
                }
            }
        }
        state.places.remove(&ino);
        Ok(())
    }

    fn open_orphan_file(&self) -> Result<OrphanFile> {
        let inode = Inode::detached(self.load(self.sb.orphan_file_inum, true)?);
        let count = inode.attr().size >> self.sb.block_bits;
        let mut blocks = Vec::new();
        for file_block in FileBlock(0).run(count.min(MAX_FILE_BLOCKS)) {
            match self.map_block(&inode, file_block)? {
                mapping if mapping.kind == ivers_vfs::RangeKind::Data => blocks.push(mapping.block),
                _ => return Err(self.corrupt_inode("the orphan file has holes", &inode)),
            }
        }
        let seed = self.inode_seed(self.sb.orphan_file_inum, inode.generation);
        Ok(OrphanFile { seed, blocks, used: 0, hint: 0 })
    }

    fn orphan_csum(&self, file: &OrphanFile, block: BlockNo, bytes: &[u8]) -> u32 {
        self.orphan_block_csum(file.seed, block, bytes)
    }

    fn orphan_block_csum(&self, seed: u32, block: BlockNo, bytes: &[u8]) -> u32 {
        self.csum(self.csum(seed, &block.0.to_le_bytes()), &bytes[..bytes.len() - FILE_TAIL])
    }

    /// Sets the checksum of a block of the orphan file that has another block number now.
    pub(crate) fn seal_moved_orphan_block(&self, file: &Inode, block: BlockNo, bytes: &mut [u8]) {
        if self.has_csum() {
            let seed = self.inode_seed(file.ino.0 as u32, file.generation);
            let csum = self.orphan_block_csum(seed, block, bytes);
            let tail = bytes.len() - 4;
            bytes[tail..].copy_from_slice(&csum.to_le_bytes());
        }
    }

    /// Returns a block of the orphan file, checked.
    fn orphan_block(&self, file: &OrphanFile, index: usize) -> Result<Arc<Buffer>> {
        let block = file.blocks[index];
        let buffer = self.block(block)?;
        if !buffer.is_verified() {
            let bytes = buffer.read();
            if word(&bytes, bytes.len() - FILE_TAIL) != FILE_MAGIC {
                return Err(self.corrupt_block("a block of the orphan file has no magic number", block));
            }
            if self.has_csum() && word(&bytes, bytes.len() - 4) != self.orphan_csum(file, block, &bytes) {
                return Err(self.corrupt_block("a block of the orphan file has a bad checksum", block));
            }
            drop(bytes);
            buffer.set_verified();
        }
        Ok(buffer)
    }

    fn put_file_slot(
        &self,
        h: &mut Handle,
        file: &OrphanFile,
        buffer: &Arc<Buffer>,
        byte: usize,
        ino: u32,
    ) -> Result<()> {
        h.modify(buffer, |bytes| {
            bytes[byte..byte + 4].copy_from_slice(&ino.to_le_bytes());
            if self.has_csum() {
                let csum = self.orphan_csum(file, buffer.block(), bytes);
                let tail = bytes.len() - 4;
                bytes[tail..].copy_from_slice(&csum.to_le_bytes());
            }
        })
    }

    /// Stores an inode in a free slot of the orphan file; `None` if there is none.
    fn take_file_slot(&self, h: &mut Handle, state: &mut State, ino: u32) -> Result<Option<Place>> {
        let file = match &mut state.file {
            Some(file) => file,
            none => none.insert(self.open_orphan_file()?),
        };
        let slots = (self.sb.block_size as usize - FILE_TAIL) / 4;
        if file.used >= slots * file.blocks.len() {
            return Ok(None);
        }
        for step in 0..file.blocks.len() {
            let block = (file.hint + step) % file.blocks.len();
            let buffer = self.orphan_block(file, block)?;
            let free = {
                let bytes = buffer.read();
                (0..slots).map(|slot| slot * 4).find(|&byte| word(&bytes, byte) == 0)
            };
            if let Some(byte) = free {
                self.put_file_slot(h, file, &buffer, byte, ino)?;
                file.used += 1;
                file.hint = block;
                return Ok(Some(Place::File { block, byte }));
            }
        }
        Ok(None)
    }

    /// Processes the orphans of the last session: deletes inodes without names, finishes truncations. `first`
    /// is the head of the list in the superblock.
    pub(crate) fn process_orphans(&self, first: u32) -> Result<u32> {
        let mut state = State::default();
        let mut left = Vec::new();
        let mut note = |state: &mut State, ino: u32, place: Place| {
            let valid = (self.sb.first_ino..=self.sb.inodes_count()).contains(&ino);
            if !valid || state.places.insert(ino, place).is_some() || left.len() >= MAX_ORPHANS {
                return Err(Error::corrupt(
                    format!("the orphan list refers to the invalid inode {ino}"),
                    format!("{}, superblock", self.place),
                ));
            }
            left.push(ino);
            Ok(())
        };
        let (mut newer, mut next) = (None, (first != 0).then_some(first));
        state.head = next;
        while let Some(ino) = next {
            note(&mut state, ino, Place::List { newer, older: None })?;
            let dtime = slot_state(&self.raw_inode(ino)?).dtime;
            next = (dtime != 0).then_some(dtime);
            state.places.insert(ino, Place::List { newer, older: next });
            newer = Some(ino);
        }
        if self.sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT) && self.has_orphan_file() {
            let mut file = self.open_orphan_file()?;
            for block in 0..file.blocks.len() {
                let buffer = self.orphan_block(&file, block)?;
                let bytes = buffer.read();
                for byte in (0..bytes.len() - FILE_TAIL).step_by(4) {
                    let ino = word(&bytes, byte);
                    if ino != 0 {
                        note(&mut state, ino, Place::File { block, byte })?;
                        file.used += 1;
                    }
                }
            }
            state.file = Some(file);
        }
        *self.orphans.0.lock() = state;
        for &ino in &left {
            let in_file = matches!(self.orphans.0.lock().places.get(&ino), Some(Place::File { .. }));
            if in_file && !self.groups.is_inode_used(ino)? {
                // e2fsck 1.47.0 -p frees an orphan and leaves its entry, and the block count in its slot.
                log::info!("{}: orphan {ino} is already freed", self.place);
                let mut h = self.begin(4)?;
                self.forget_orphan(&mut h, ino)?;
                continue;
            }
            let inode = match self.load(ino, true) {
                Ok(loaded) => Inode::detached(loaded),
                Err(Error::Name(NameError::Stale)) => {
                    return Err(Error::corrupt(
                        format!("orphan {ino} is not an inode in use"),
                        format!("{}, superblock", self.place),
                    ));
                }
                Err(error) => return Err(error),
            };
            if inode.attr().nlink == 0 {
                self.delete_unused(&inode)?;
            } else {
                self.finish_truncation(&inode)?;
                let mut h = self.begin(16)?;
                self.orphan_del(&mut h, &inode)?;
            }
        }
        Ok(left.len() as u32)
    }

    fn finish_truncation(&self, inode: &Inode) -> Result<()> {
        if inode.kind == FileType::Regular {
            self.remove_blocks(
                inode,
                FileBlock(inode.attr().size.div_ceil(u64::from(self.sb.block_size))),
                FileBlock(u64::from(u32::MAX)),
            )?;
            let mut h = self.begin(16)?;
            self.log(&mut h, inode)?;
        }
        Ok(())
    }
}
