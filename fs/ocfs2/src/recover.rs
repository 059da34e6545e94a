//! Taking a filesystem over: what other mounts and crashes left, and how it is closed.
//!
//! After the journals were replayed, all slots are ours: no node has the filesystem mounted. The unused
//! clusters of their windows and the clusters in their truncate logs are freed, and their orphans are
//! deleted.

use crate::change::journal_error;
use crate::inode::orphan_name;
use crate::layout::blockcheck::{self, CHECK_BYTES};
use crate::layout::bytes::{put_u16, put_u32, put_u64, u8_at, u16_at, u32_at};
use crate::layout::dinode::{Dinode, FLAGS_AT, ID2_AT, flags};
use crate::layout::directory::Entry;
use crate::layout::shape::DINODE;
use crate::layout::superblock::incompat;
use crate::names::REMOVE_CREDITS;
use crate::system::JOURNAL_DIRTY;
use crate::volume::{Ocfs2, SystemFiles};
use crate::write::BATCH_CREDITS;
use ivers_block::{BlockNo, Device};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::{NameError, Result};
use std::ops::ControlFlow;

/// The offset of the flags of a journal, and of the number of its recoveries.
const JOURNAL_FLAGS_AT: usize = 0xB8;
/// The flag of a file with an unfinished append by direct I/O, and the start of its name among orphans.
const DIO_ORPHANED: u32 = 0x2000;
const DIO_PREFIX: &[u8] = b"dio-";
/// Runs of a window or a log that one transaction frees.
const RUNS_AT_ONCE: usize = 24;

impl Ocfs2 {
    /// Sets or clears the mark of a journal that holds changes, durably and past the journal.
    pub(crate) fn mark_journal(&self, device: &dyn Device, journal: u64, dirty: bool) -> Result<()> {
        let mut bytes = self.structure(journal, &DINODE)?.to_vec();
        let old = u32_at(&bytes, JOURNAL_FLAGS_AT);
        put_u32(&mut bytes, JOURNAL_FLAGS_AT, if dirty { old | JOURNAL_DIRTY } else { old & !JOURNAL_DIRTY });
        if self.sb.has(incompat::META_ECC) {
            let check = blockcheck::compute(&bytes, DINODE.check_at);
            bytes[DINODE.check_at..DINODE.check_at + CHECK_BYTES].copy_from_slice(&check);
        }
        device.write_fua(BlockNo(journal).offset(self.sb.block_size), &bytes)?;
        let buffer = self.cache.get(BlockNo(journal))?;
        let before = buffer.read();
        let contents = ivers_block::Contents::new(bytes, self.cache.budget());
        let _ = buffer.replace_if_unchanged(&before, contents);
        Ok(())
    }

    /// Frees the unused clusters of all windows and the clusters in all truncate logs, and deletes the
    /// orphans of all slots.
    pub(crate) fn take_over(&self, files: &SystemFiles) -> Result<()> {
        let slots = 0..self.sb.max_slots;
        for slot in slots.clone() {
            if let Some(ino) = files.of_slot("local_alloc", slot) {
                self.close_window(ino)?;
            }
            if let Some(ino) = files.of_slot("truncate_log", slot) {
                self.empty_truncate_log(ino)?;
            }
        }
        for slot in slots {
            if let Some(ino) = files.of_slot("orphan_dir", slot) {
                self.delete_orphans(ino, slot)?;
            }
        }
        Ok(())
    }

    /// Frees what a slot did not use of its window of clusters.
    fn close_window(&self, ino: u64) -> Result<()> {
        let (inode, block) = self.dinode(ino)?;
        let total = inode.id1 >> 32;
        if total == 0 {
            return Ok(());
        }
        let (start, size) = (u64::from(u32_at(&block, ID2_AT)), usize::from(u16_at(&block, ID2_AT + 4)));
        let bitmap = block.get(ID2_AT + 16..ID2_AT + 16 + size).unwrap_or_default().to_vec();
        drop(block);
        if total > bitmap.len() as u64 * 8 {
            return Err(self.corrupt(ino, format!("a window of {total} clusters is larger than its bitmap")));
        }
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for bit in (0..total).filter(|bit| u8_at(&bitmap, (bit / 8) as usize) >> (bit % 8) & 1 == 0) {
            match runs.last_mut() {
                Some((first, len)) if *first + *len == start + bit => *len += 1,
                _ => runs.push((start + bit, 1)),
            }
        }
        // What is freed is marked in the window, so that no part is freed twice after a crash.
        for runs in runs.chunks(RUNS_AT_ONCE) {
            self.change(BATCH_CREDITS, |change| {
                for &(first, len) in runs {
                    change.free_clusters(first..first + len)?;
                }
                change.put_shape(ino, &DINODE, |bytes| {
                    for bit in runs.iter().flat_map(|&(first, len)| first - start..first - start + len) {
                        bytes[ID2_AT + 16 + (bit / 8) as usize] |= 1 << (bit % 8);
                    }
                })
            })?;
        }
        self.change(1, |change| {
            change.put_shape(ino, &DINODE, |bytes| {
                put_u64(bytes, 0xB8, 0);
                put_u32(bytes, ID2_AT, 0);
                bytes[ID2_AT + 16..ID2_AT + 16 + size].fill(0);
            })
        })
    }

    /// Frees the clusters that wait in a log.
    fn empty_truncate_log(&self, ino: u64) -> Result<()> {
        loop {
            let (_, block) = self.dinode(ino)?;
            let used = usize::from(u16_at(&block, ID2_AT + 2));
            if used == 0 {
                return Ok(());
            }
            let keeps = used.saturating_sub(RUNS_AT_ONCE);
            let record = |nth: usize| {
                let at = ID2_AT + 8 + nth * 8;
                (u64::from(u32_at(&block, at)), u64::from(u32_at(&block, at + 4)))
            };
            if ID2_AT + 8 + used * 8 > block.len() {
                return Err(self.corrupt(ino, format!("a log of freed clusters has {used} records")));
            }
            let runs: Vec<(u64, u64)> = (keeps..used).map(record).collect();
            drop(block);
            self.change(BATCH_CREDITS, |change| {
                for &(first, len) in runs.iter().filter(|(first, len)| *first != 0 && *len != 0) {
                    change.free_clusters(first..first + len)?;
                }
                change.put_shape(ino, &DINODE, |bytes| put_u16(bytes, ID2_AT + 2, keeps as u16))
            })?;
        }
    }

    fn delete_orphans(&self, ino: u64, slot: u16) -> Result<()> {
        let dir = self.directory(ino, "a directory of orphans")?;
        let mut found = Vec::new();
        self.for_each_entry(&dir, 0..dir.size, |Entry { ino, name, .. }, _| {
            if !matches!(name, b"." | b"..") {
                found.push((ino, name.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        for (ino, name) in found {
            let mut orphan = self.dinode(ino)?.0;
            if name.starts_with(DIO_PREFIX) {
                self.end_append(&mut orphan, slot, &name)?;
                continue;
            }
            let is_right = name == orphan_name(ino).as_bytes()
                && orphan.flags & flags::ORPHANED != 0
                && (orphan.links == 0 || orphan.kind() == Some(ivers_vfs::FileType::Directory));
            if !is_right || orphan.orphaned_slot != slot {
                return Err(self.corrupt(
                    ino,
                    "an orphan directory has it, and it is no orphan of that slot; run fsck.ocfs2",
                ));
            }
            match self.delete(&mut orphan) {
                Err(ivers_vfs::Error::Name(NameError::NotSupported)) => {
                    log::warn!("{}: the orphan {ino} stays: see docs/limits.md", self.place);
                }
                deleted => deleted?,
            }
        }
        Ok(())
    }

    /// Frees what an append by direct I/O took past the end of a file.
    fn end_append(&self, file: &mut Dinode, slot: u16, name: &[u8]) -> Result<()> {
        let keep = file.size.div_ceil(self.sb.cluster_size().into()) as u32;
        self.check_not_shared(file)?;
        while file.has_extents() && self.change(BATCH_CREDITS, |change| change.cut(file, keep, file.size))? {}
        self.change(REMOVE_CREDITS + 4, |change| {
            let orphans = change.writer.files.of_slot("orphan_dir", slot).ok_or(NameError::NotFound)?;
            change.remove_name(&mut self.dinode(orphans)?.0, name, file.ino)?;
            change.put_inode(file, |bytes| {
                put_u32(bytes, FLAGS_AT, u32_at(bytes, FLAGS_AT) & !DIO_ORPHANED);
                put_u16(bytes, 0xA0, 0);
            })
        })
    }

    /// Makes everything durable, and marks the filesystem as cleanly closed.
    pub(crate) fn close(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        if writer.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        writer.commits.commit().map_err(journal_error)?;
        writer.commits.journal().shutdown().map_err(journal_error)?;
        let device = self.cache.device();
        device.flush()?;
        self.mark_journal(&**device, writer.journal, false)?;
        Ok(device.flush()?)
    }
}
