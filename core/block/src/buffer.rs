//! One block in memory.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::BlockNo;

/// The data was read from the device, or set.
const UPTODATE: u32 = 1;
/// Must be written home by the cache (no-journal mode only: a journal writes its own blocks home).
const DIRTY: u32 = 1 << 1;
/// The format's verifier has passed these contents since they were loaded.
const VERIFIED: u32 = 1 << 2;
/// Used since the eviction clock last came by.
const REFERENCED: u32 = 1 << 3;
/// The cache is writing it. Set before DIRTY is taken away by a write, so that whoever clears DIRTY (`forget`) and then finds
/// no WRITING knows that no write will follow: both sides use SeqCst.
const WRITING: u32 = 1 << 4;

/// One block of a device in memory.
///
/// Its contents are an `Arc<[u8]>` that a change replaces if anybody still holds it (copy on write): a snapshot costs one reference
/// count and never changes. Reading therefore never blocks a writer, nor the other way round.
pub struct Buffer {
    block: BlockNo,
    data: RwLock<Arc<[u8]>>,
    flags: AtomicU32,
}

/// The contents of a buffer at one moment; see [`Buffer::read`].
#[derive(Clone, Debug)]
pub struct BufferRead(Arc<[u8]>);

impl Deref for BufferRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for BufferRead {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("block", &self.block)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

impl Buffer {
    pub(crate) fn unloaded(block: BlockNo) -> Self {
        Self { block, data: RwLock::new(Arc::from([])), flags: AtomicU32::new(REFERENCED) }
    }

    /// The block's number on its device.
    pub fn block(&self) -> BlockNo {
        self.block
    }

    /// The contents as they are now. Drop it before changing the buffer, or the change has to copy the block.
    pub fn read(&self) -> BufferRead {
        BufferRead(self.snapshot())
    }

    /// The contents as they are now, to keep: later changes do not show in it.
    pub fn snapshot(&self) -> Arc<[u8]> {
        self.data.read().clone()
    }

    /// Changes the contents in memory **and nothing else**: neither the cache nor a journal learns of it.
    ///
    /// This is for the journal engine. Drivers change buffers through a journal handle (`ivers_journal::Handle::modify`).
    pub fn modify<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(Arc::make_mut(&mut self.data.write()))
    }

    /// Marks the buffer to be written home by [`crate::BufferCache::sync`]. For the journal engine in no-journal mode.
    pub fn mark_dirty(&self) {
        self.flags.fetch_or(DIRTY, Ordering::SeqCst);
    }

    /// True if [`crate::BufferCache::sync`] would write it.
    pub fn is_dirty(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & DIRTY != 0
    }

    /// True if [`set_verified`](Self::set_verified) was called since the contents were loaded: checksums are checked once a load.
    pub fn is_verified(&self) -> bool {
        self.flags.load(Ordering::Acquire) & VERIFIED != 0
    }

    /// Notes that the contents passed the format's verifier.
    pub fn set_verified(&self) {
        self.flags.fetch_or(VERIFIED, Ordering::Release);
    }

    pub(crate) fn is_uptodate(&self) -> bool {
        self.flags.load(Ordering::Acquire) & UPTODATE != 0
    }

    /// Loads the contents unless somebody else has: the others wait here for the one who reads.
    /// Returns whether it was this call that loaded.
    pub(crate) fn load<E>(&self, read: impl FnOnce() -> Result<Arc<[u8]>, E>) -> Result<bool, E> {
        let mut data = self.data.write();
        if self.is_uptodate() {
            return Ok(false);
        }
        *data = read()?;
        self.flags.fetch_and(!VERIFIED, Ordering::AcqRel);
        self.flags.fetch_or(UPTODATE, Ordering::AcqRel);
        Ok(true)
    }

    /// Replaces the contents by fresh ones that need no verification.
    pub(crate) fn replace(&self, contents: Arc<[u8]>) {
        let mut data = self.data.write();
        *data = contents;
        self.flags.fetch_or(UPTODATE | VERIFIED, Ordering::AcqRel);
    }

    pub(crate) fn touch(&self) {
        if self.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears and returns the clock's mark.
    pub(crate) fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// Starts a write if the buffer is dirty: gives the contents to be written.
    pub(crate) fn start_write(&self) -> Option<Arc<[u8]>> {
        self.flags.fetch_or(WRITING, Ordering::SeqCst);
        if self.flags.fetch_and(!DIRTY, Ordering::SeqCst) & DIRTY == 0 {
            self.flags.fetch_and(!WRITING, Ordering::SeqCst);
            return None;
        }
        Some(self.snapshot())
    }

    /// Ends a write; a failed one leaves the buffer dirty.
    pub(crate) fn end_write(&self, ok: bool) {
        if !ok {
            self.mark_dirty();
        }
        self.flags.fetch_and(!WRITING, Ordering::SeqCst);
    }

    /// Gives up what was to be written. True if a write is under way, which the caller has to wait for.
    pub(crate) fn clear_dirty(&self) -> bool {
        self.flags.fetch_and(!DIRTY, Ordering::SeqCst) & WRITING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_stay() {
        let b = Buffer::unloaded(BlockNo(3));
        b.replace(Arc::from(vec![1; 16]));
        let before = b.snapshot();
        b.modify(|d| d[0] = 9);
        assert_eq!(before[0], 1);
        assert_eq!(b.read()[0], 9);
        assert!(b.is_verified());
        assert!(b.start_write().is_none());
        b.mark_dirty();
        assert_eq!(b.start_write().unwrap()[0], 9);
        assert!(b.clear_dirty());
        b.end_write(true);
        assert!(!b.is_dirty());
    }
}
