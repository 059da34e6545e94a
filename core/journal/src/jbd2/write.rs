//! Writes transactions to the log.

use ivers_block::{BlockNo, Contents};

use super::records::{JBD2_MAGIC, Layout, TAG_ESCAPED, Tag, crc32_be};
use super::{Jbd2Log, LiveTransaction};
use crate::{Costs, JournalError, LogFormat, LogTransaction, LogWritten, Lsn, Result};

/// The longest write in bytes.
const RUN_BYTES: usize = 1 << 20;

impl Jbd2Log {
    /// Sets the features that writing requires: revokes always, 64-bit block numbers if `is_64bit`, checksums
    /// of version 3 if `checksums` and the log has none of version 2. Keeps the features that are set.
    ///
    /// Fails if the log needs recovery.
    pub fn prepare(&mut self, checksums: bool, is_64bit: bool) -> Result<()> {
        if self.needs_recovery() || self.used_blocks > 0 {
            return Err(JournalError::NeedsRecovery);
        }
        let new = self.sb.with_features(checksums, is_64bit);
        if new != self.sb {
            self.sb = new;
            self.store_superblock(self.sb.start(), self.sb.sequence())?;
        }
        Ok(())
    }

    /// Writes the superblock durably. All changed fields lie in its first 512 bytes, so a medium with sectors
    /// does not tear it.
    pub(super) fn store_superblock(&mut self, start: u32, sequence: u32) -> Result<()> {
        self.set_position(start, sequence);
        Ok(self.device.write_fua(self.map.offset(0, self.options.block_size)?, self.sb.bytes())?)
    }

    fn set_position(&mut self, start: u32, sequence: u32) {
        self.sb = self.sb.with_position(start, sequence);
        self.start_recorded = start != 0;
    }

    /// Writes blocks at the head. Log blocks that are adjacent on the device are written together.
    fn append(&mut self, blocks: &[Contents]) -> Result<()> {
        let size = self.options.block_size as usize;
        let mut rest = blocks;
        while let [first, ..] = rest {
            let offset = self.map.offset(self.head, self.options.block_size)?;
            let mut next = self.next_log_block(self.head);
            let mut run = 1;
            while run < rest.len()
                && run * size < RUN_BYTES
                && self.map.offset(next, self.options.block_size)? == offset + (run * size) as u64
            {
                next = self.next_log_block(next);
                run += 1;
            }
            if run == 1 {
                self.device.write_at(offset, first)?;
            } else {
                let mut bytes = Vec::with_capacity(run * size);
                rest[..run].iter().for_each(|b| bytes.extend_from_slice(b));
                self.device.write_at(offset, &bytes)?;
            }
            self.head = next;
            self.used_blocks += run as u64;
            rest = &rest[run..];
        }
        Ok(())
    }

    fn written(&self, blocks: u64) -> LogWritten {
        let lsn = self.live.back().map_or(0, |transaction| transaction.lsn);
        LogWritten { lsn, blocks, bytes: blocks * u64::from(self.options.block_size) }
    }
}

/// The blocks of all items. This log has a tag for each block, so a unit is taken apart.
fn logged_blocks(transaction: &LogTransaction) -> Vec<(BlockNo, Contents)> {
    let mut blocks = Vec::with_capacity(transaction.items.len());
    for item in &transaction.items {
        match &item.unit[..] {
            [block] => blocks.push((*block, item.data.clone())),
            _ => {
                blocks.extend(item.unit.split(&item.data).map(|(block, part)| (block, part.to_vec().into())))
            }
        }
    }
    blocks
}

impl LogFormat for Jbd2Log {
    fn name(&self) -> &'static str {
        "jbd2"
    }

    fn needs_recovery(&self) -> bool {
        Self::needs_recovery(self)
    }

    fn costs(&self) -> Costs {
        Costs::WHOLE_BLOCKS
    }

    fn capacity(&self) -> u64 {
        // One block stays free, so that a full log differs from an empty one.
        self.ring_blocks() - 1
    }

    fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.used_blocks)
    }

    fn space_for(&self, transaction: &LogTransaction) -> u64 {
        let layout = Layout::of(&self.sb);
        let items: u64 = transaction.items.iter().map(|item| item.unit.len() as u64).sum();
        let revokes: u64 = transaction.revokes.iter().map(|unit| unit.len() as u64).sum();
        items
            + items.div_ceil(layout.tags_per_descriptor() as u64)
            + revokes.div_ceil(layout.revokes_per_block() as u64)
            + 1
    }

    fn space_for_charge(&self, charge: u64) -> u64 {
        // Items cost most: revokes share blocks.
        charge + charge.div_ceil(Layout::of(&self.sb).tags_per_descriptor() as u64) + 1
    }

    fn used_from(&self, lsn: Lsn) -> u64 {
        let first = self.live.partition_point(|transaction| transaction.lsn < lsn);
        self.live.iter().skip(first).map(|transaction| transaction.blocks).sum()
    }

    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten> {
        if self.needs_recovery() {
            return Err(JournalError::NeedsRecovery);
        }
        let layout = Layout::of(&self.sb);
        let sequence = self.next_sequence;
        let revokes: Vec<BlockNo> =
            transaction.revokes.iter().flat_map(|unit| unit.iter().copied()).collect();
        let items = logged_blocks(transaction);
        let widest = items.iter().map(|(block, _)| *block).chain(revokes.iter().copied()).max();
        if !layout.is_64bit && widest.is_some_and(|block| block > BlockNo(u64::from(u32::MAX))) {
            return Err(JournalError::Incompatible {
                features: "64bit, which blocks past 2^32 require".into(),
            });
        }
        if !self.start_recorded {
            // The start must be durable before the first commit record: the flush between the items and that
            // record does it. Recovery finds no whole transaction there before.
            self.set_position(self.head, sequence);
            self.device.write_at(self.map.offset(0, self.options.block_size)?, self.sb.bytes())?;
        }
        let mut blocks: Vec<Contents> = Vec::new();
        for part in revokes.chunks(layout.revokes_per_block()) {
            blocks.push(layout.revocation(sequence, part).into());
        }
        let mut sum_v1 = !0;
        for part in items.chunks(layout.tags_per_descriptor()) {
            let mut tags = Vec::with_capacity(part.len());
            let mut data = Vec::with_capacity(part.len());
            for (block, contents) in part {
                let mut bytes = contents.clone();
                let mut flags = 0;
                if bytes.starts_with(&JBD2_MAGIC.to_be_bytes()) {
                    bytes.make_mut()[..4].fill(0);
                    flags = TAG_ESCAPED;
                }
                let checksum = if layout.has_tail() { layout.data_checksum(sequence, &bytes) } else { 0 };
                tags.push(Tag { block: *block, flags, checksum });
                data.push(bytes);
            }
            let first = blocks.len();
            blocks.push(layout.descriptor(sequence, &tags).into());
            blocks.append(&mut data);
            if layout.has_csum_v1 {
                sum_v1 = blocks[first..].iter().fold(sum_v1, |sum, block| crc32_be(sum, block));
            }
        }
        if blocks.len() as u64 + 1 > self.free() {
            return Err(JournalError::TooLarge { charge: blocks.len() as u64 + 1, limit: self.free() });
        }
        let lsn = self.next_lsn;
        self.next_lsn += 1;
        self.live.push_back(LiveTransaction {
            lsn,
            start: self.head,
            sequence,
            blocks: blocks.len() as u64 + 1,
        });
        self.append(&blocks)?;
        self.body_checksum = Some(sum_v1);
        Ok(self.written(blocks.len() as u64))
    }

    fn write_commit(&mut self) -> Result<LogWritten> {
        let Some(sum_v1) = self.body_checksum.take() else { return Ok(LogWritten::default()) };
        let block = Layout::of(&self.sb).commit(self.next_sequence, sum_v1, (self.clock)());
        self.device.write_fua(self.map.offset(self.head, self.options.block_size)?, &block)?;
        self.head = self.next_log_block(self.head);
        self.used_blocks += 1;
        self.next_sequence = self.next_sequence.wrapping_add(1);
        Ok(self.written(1))
    }

    fn move_tail(&mut self, tail: Option<Lsn>) -> Result<()> {
        let stay = tail.map_or(0, |tail| self.live.iter().filter(|t| t.lsn >= tail).count());
        if stay < self.live.len() {
            let first = self.live.len() - stay;
            // A log without transactions is clean.
            let (start, sequence) =
                self.live.get(first).map_or((0, self.next_sequence), |t| (t.start, t.sequence));
            self.store_superblock(start, sequence)?;
            self.used_blocks -= self.live.drain(..first).map(|t| t.blocks).sum::<u64>();
        }
        Ok(())
    }

    fn mark_clean(&mut self) -> Result<()> {
        if self.start_recorded {
            self.store_superblock(0, self.next_sequence)?;
        }
        self.live.clear();
        self.used_blocks = 0;
        Ok(())
    }
}
