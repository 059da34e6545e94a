//! Transactions as the driver's modules see them: the journal's handles with the driver's errors.

use ivers_block::{Buffer, BufferCache};
use ivers_vfs::Result;
use std::sync::Arc;

/// The journal, or its absence.
pub(crate) struct Tx {
    cache: Arc<BufferCache>,
}

/// One transaction. Dropping it ends it; what was changed commits with the journal's next commit.
pub struct Handle {
    cache: Arc<BufferCache>,
}

impl Tx {
    pub(crate) fn new(cache: Arc<BufferCache>) -> Self {
        Self { cache }
    }

    pub(crate) fn begin(&self, _credits: u32) -> Result<Handle> {
        Ok(Handle { cache: self.cache.clone() })
    }
}

impl Handle {
    /// Change a block within this transaction.
    pub fn modify<R>(&mut self, buffer: &Arc<Buffer>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let result = buffer.modify(f);
        buffer.mark_dirty();
        Ok(result)
    }

    /// A metadata block is given up: it is no longer written, and replay does not bring it back.
    pub fn forget(&mut self, block: u64) -> Result<()> {
        self.cache.forget(block);
        Ok(())
    }

    /// Make room for `credits` more blocks, in a new transaction if need be: call it only where the filesystem is consistent.
    pub fn ensure(&mut self, _credits: u32) -> Result<()> {
        Ok(())
    }
}
