//! Checkpointing: committed blocks go home, the log becomes empty.

use std::sync::Arc;

use crate::engine::{Inner, count};
use crate::{LogFormat, Result};

/// At most this much is written in one write.
const RUN_BYTES: usize = 1 << 20;

impl Inner {
    /// Writes every committed block home and empties the log.
    pub fn checkpoint(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut log = log.lock();
        let done = self.checkpoint_locked(log.as_mut());
        self.or_abort(done)
    }

    /// The same with the log locked already. Commits wait; handles do not.
    pub fn checkpoint_locked(&self, log: &mut dyn LogFormat) -> Result<()> {
        // The list changes only under the log's lock, so what is collected here is what is removed below.
        let blocks: Vec<(u64, Arc<[u8]>)> = {
            let state = self.state.lock();
            state.check()?;
            state.pending.iter().map(|(&block, pending)| (block, pending.data.clone())).collect()
        };
        if blocks.is_empty() && log.free_blocks() == log.capacity_blocks() {
            return Ok(());
        }
        self.write_home(&blocks)?;
        self.cache.device().flush()?;
        log.release_all()?;
        count(&self.counters.checkpoints, 1);
        count(&self.counters.checkpoint_blocks, blocks.len() as u64);
        self.state.lock().pending.clear();
        Ok(())
    }

    /// Writes blocks, sorted by number, neighbours together.
    fn write_home(&self, blocks: &[(u64, Arc<[u8]>)]) -> Result<()> {
        let device = self.cache.device();
        let size = self.cache.block_size() as usize;
        let mut rest = blocks;
        while let Some((first, _)) = rest.first() {
            let mut run = 1;
            while run < rest.len() && rest[run].0 == first + run as u64 && run * size < RUN_BYTES {
                run += 1;
            }
            let (now, later) = rest.split_at(run);
            let offset = first * size as u64;
            if let [(_, data)] = now {
                device.write_at(offset, data)?;
            } else {
                let mut bytes = Vec::with_capacity(run * size);
                now.iter().for_each(|(_, data)| bytes.extend_from_slice(data));
                device.write_at(offset, &bytes)?;
            }
            rest = later;
        }
        Ok(())
    }
}
