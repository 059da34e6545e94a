//! Checkpoints: write committed blocks in place and empty the log.

use std::sync::Arc;

use ivers_block::{BlockNo, write_in_place};

use crate::engine::{Inner, count};
use crate::{LogFormat, Result};

impl Inner {
    /// Writes every active item in place and empties the log.
    pub fn checkpoint(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut log = log.lock();
        let done = self.checkpoint_locked(log.as_mut());
        self.or_abort(done)
    }

    /// As [`Inner::checkpoint`]. The caller holds the lock of the log: commits wait, handles do not.
    pub fn checkpoint_locked(&self, log: &mut dyn LogFormat) -> Result<()> {
        // The active items change only under the log's lock: those collected here are the ones cleared below.
        let blocks: Vec<(BlockNo, Arc<[u8]>)> = {
            let state = self.state.lock();
            state.check()?;
            state.active.iter().map(|(&block, item)| (block, item.data.clone())).collect()
        };
        if blocks.is_empty() && log.free_blocks() == log.capacity_blocks() {
            return Ok(());
        }
        write_in_place(&**self.cache.device(), self.cache.block_size(), &blocks)?;
        self.cache.device().flush()?;
        log.release_all()?;
        count(&self.counters.checkpoints, 1);
        count(&self.counters.checkpoint_blocks, blocks.len() as u64);
        self.state.lock().active.clear();
        Ok(())
    }
}
