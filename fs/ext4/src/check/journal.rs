//! The journal: where it is, whether it must be replayed, and the replay in memory.

use super::map::{self, Met};
use super::state::{Checker, Slot};
use crate::layout::features::{Compat, Incompat};
use crate::layout::inode::FL_EXTENTS;
use crate::map::node;
use ivers_block::{Device, OverlayDevice};
use ivers_journal::JournalError;
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options, LogExtent, LogMap};
use ivers_vfs::check::Place;
use ivers_vfs::{Error, Result};
use std::collections::HashSet;
use std::sync::Arc;

/// Runs of the journal's map; far more than a journal needs.
const MAX_RUNS: usize = 1 << 20;

/// The state of the journal.
pub(super) enum Journal {
    /// There is nothing to replay.
    Idle,
    /// It was replayed onto this device, which keeps the changes in memory.
    Replayed(Arc<dyn Device>),
}

/// Returns what is wrong with a journal. An error if the check cannot be done.
fn damage(error: JournalError) -> Result<String> {
    match error {
        JournalError::Block(error) => Err(error.into()),
        JournalError::Incompatible { .. } | JournalError::FastCommitPending { .. } => {
            Err(Error::Incompatible(error.to_string()))
        }
        error => Ok(error.to_string()),
    }
}

impl Checker {
    /// Looks at the journal; replays it in memory if the superblock says that it must be.
    pub(super) fn check_journal(&mut self) -> Result<Journal> {
        let sb = self.sb();
        if !sb.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(Journal::Idle);
        }
        if sb.journal_dev != 0 {
            self.found.note("the journal is on another device and is not checked");
            return Ok(Journal::Idle);
        }
        let ino = sb.journal_inum;
        let place = Place::inode(ino);
        if ino == 0 || ino > sb.inodes_count() {
            self.bad("journal-invalid", Place::filesystem(), format!("s_journal_inum is {ino}"));
            return Ok(Journal::Idle);
        }
        let Some(slot) = self.slot(ino)? else {
            self.bad("journal-invalid", place, "the inode of the journal cannot be read");
            return Ok(Journal::Idle);
        };
        let slot = match self.journal_copy(&slot) {
            Some(copy) => {
                let what = "the inode of the journal is no regular file in use; the copy of its map is used";
                self.bad("journal-invalid", place.clone(), what);
                copy
            }
            None => slot,
        };
        let map = match self.journal_map(&slot)? {
            Ok(map) => map,
            Err(what) => {
                self.bad("journal-invalid", place, what);
                return Ok(Journal::Idle);
            }
        };
        let options = Jbd2Options { block_size: sb.block_size, fs_blocks: sb.blocks_count(), uuid: None };
        let overlay: Arc<dyn Device> = Arc::new(OverlayDevice::new(self.reader.dev.clone()));
        let mut log = match Jbd2Log::open(overlay.clone(), map, options) {
            Ok(log) => log,
            Err(error) => {
                self.bad("journal-invalid", place, damage(error)?);
                return Ok(Journal::Idle);
            }
        };
        if log.recorded_error() != 0 {
            let what = format!("the journal records the error {}", log.recorded_error());
            self.bad("journal-error-recorded", place.clone(), what);
        }
        if !log.needs_recovery() {
            return Ok(Journal::Idle);
        }
        if !sb.incompat.contains(Incompat::RECOVER) {
            let what = "the journal holds transactions, but needs_recovery is not set";
            self.bad("journal-not-announced", place, what);
            return Ok(Journal::Idle);
        }
        match log.recover() {
            Ok(recovered) => {
                self.found.note(format!(
                    "the journal was replayed in memory ({} transactions, {} blocks); the result is checked, \
                     the image is unchanged",
                    recovered.transactions, recovered.blocks
                ));
                if let Some(damage) = recovered.damaged {
                    let what = format!(
                        "transaction {} at log block {}: {}",
                        damage.sequence, damage.log_block, damage.what
                    );
                    self.bad("journal-damaged", place, what);
                }
                Ok(Journal::Replayed(overlay))
            }
            Err(error) => {
                self.bad("journal-damaged", place, damage(error)?);
                Ok(Journal::Idle)
            }
        }
    }

    /// Returns the inode that the superblock keeps a copy of, if that of the journal is destroyed.
    fn journal_copy(&self, slot: &Slot) -> Option<Slot> {
        let copy = &self.raw.s_jnl_blocks;
        if slot.is_regular() && slot.raw.i_links_count.get() > 0 || self.raw.s_jnl_backup_type != 1 {
            return None;
        }
        let mut slot = Slot::new(slot.ino, slot.bytes.clone());
        for (bytes, word) in slot.raw.i_block.chunks_exact_mut(4).zip(copy) {
            bytes.copy_from_slice(&word.get().to_le_bytes());
        }
        let extents = node::u16_at(&slot.raw.i_block, 0) == node::MAGIC;
        slot.raw.i_flags.set(if extents { FL_EXTENTS } else { 0 });
        slot.raw.i_mode.set(0o100600);
        slot.raw.i_links_count.set(1);
        slot.raw.i_size_high.set(copy[15].get());
        slot.raw.i_size_lo.set(copy[16].get());
        (slot.size() > 0).then_some(slot)
    }

    /// Returns the map of the journal's inode, or why it has none.
    fn journal_map(&self, slot: &Slot) -> Result<std::result::Result<LogMap, String>> {
        let sb = self.sb();
        if !slot.is_regular() || slot.raw.i_links_count.get() == 0 {
            return Ok(Err("the inode of the journal is no regular file in use".into()));
        }
        let (mut found, mut wrong) = (Vec::new(), None);
        let mut nodes = HashSet::new();
        map::walk(&self.reader, slot, &mut |met| {
            match met {
                Met::Node(block) => return nodes.insert(block),
                Met::Run { unwritten: true, .. } => wrong = Some("it has unwritten extents".to_owned()),
                Met::Run { .. } if found.len() == MAX_RUNS => wrong = Some("its map is too large".to_owned()),
                Met::Run { logical, block, len, .. } => found.push(LogExtent {
                    log_block: logical as u32,
                    fs_block: ivers_block::BlockNo(block),
                    len: len as u32,
                }),
                Met::Bad(_, _, what) => wrong = Some(what),
            }
            true
        })?;
        if let Some(wrong) = wrong {
            return Ok(Err(format!("the map of the journal: {wrong}")));
        }
        found.sort_by_key(|run| run.log_block);
        let mut next = 0u64;
        for run in &found {
            if u64::from(run.log_block) != next {
                return Ok(Err(format!("the journal has a hole at its block {next}")));
            }
            next += u64::from(run.len);
        }
        if next < (slot.size() >> sb.block_bits).min(1024) || next == 0 {
            return Ok(Err(format!("the journal has {next} blocks and {} bytes", slot.size())));
        }
        Ok(Ok(LogMap::new(found)))
    }
}
