//! Reuse of the memory of blocks.
//!
//! A transaction copies each block that it changes, and the copy replaces the block. The memory of the old
//! block holds the next copy, because it is still in the processor's caches. New memory is not.

use ivers_block::{Budget, BufferRead, Contents};
use ivers_sync::Mutex;
use std::sync::Arc;

/// The most blocks whose memory is kept. A small change makes fewer copies.
const KEPT: usize = 16;

/// The memory of former blocks, for new copies. All blocks have one size.
pub(super) struct Spare {
    block_bytes: usize,
    budget: Arc<Budget>,
    kept: Mutex<Vec<Contents>>,
}

impl Spare {
    pub fn new(block_bytes: usize, budget: Arc<Budget>) -> Self {
        Self { block_bytes, budget, kept: Mutex::default() }
    }

    /// Copies the contents of a unit, into kept memory if there is any of this size.
    pub fn copy(&self, from: &[u8]) -> Contents {
        let kept = if from.len() == self.block_bytes { self.kept.lock().pop() } else { None };
        match kept {
            Some(mut contents) => {
                contents.make_mut().copy_from_slice(from);
                contents
            }
            None => Contents::new(from, &self.budget),
        }
    }

    /// Keeps the memory of former contents, unless another thread still reads them.
    pub fn keep(&self, contents: BufferRead) {
        if contents.len() != self.block_bytes {
            return;
        }
        let mut contents = contents.into_contents();
        if contents.get_mut().is_none() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() < KEPT {
            kept.push(contents);
        }
    }
}
