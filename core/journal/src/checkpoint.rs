//! Checkpointing: committed blocks go home, the log becomes empty.

use std::sync::Arc;

use ivers_block::{BlockNo, write_in_place};

use crate::engine::{Inner, count};
use crate::{LogFormat, Result};

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
        let blocks: Vec<(BlockNo, Arc<[u8]>)> = {
            let state = self.state.lock();
            state.check()?;
            state.pending.iter().map(|(&block, pending)| (block, pending.data.clone())).collect()
        };
        if blocks.is_empty() && log.free_blocks() == log.capacity_blocks() {
            return Ok(());
        }
        write_in_place(&**self.cache.device(), self.cache.block_size(), &blocks)?;
        self.cache.device().flush()?;
        log.release_all()?;
        count(&self.counters.checkpoints, 1);
        count(&self.counters.checkpoint_blocks, blocks.len() as u64);
        self.state.lock().pending.clear();
        Ok(())
    }
}
