//! A block in memory, or several that belong together.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{RwLock, RwLockWriteGuard};

use crate::{BlockNo, Contents, Unit};

/// The contents were read from the device or set.
const UPTODATE: u32 = 1;
/// The cache must write the block in place. Without a journal only: a journal writes its own blocks.
const DIRTY: u32 = 1 << 1;
/// The contents passed the format's verifier since they were loaded.
const VERIFIED: u32 = 1 << 2;
/// Used since the eviction clock last passed.
const REFERENCED: u32 = 1 << 3;
/// The cache is writing the block. A write sets this before it clears DIRTY, so that `forget`, which clears
/// DIRTY and then finds WRITING clear, knows that no write follows. Both sides use SeqCst.
const WRITING: u32 = 1 << 4;

const LOADED: &str = "the cache gives out loaded buffers only";

/// A block of a device in memory, or a [`Unit`] of several.
///
/// A change copies the [`Contents`] if there are other references to them (copy on write): a snapshot costs
/// one reference count and never changes. Readers and writers do not block each other.
pub struct Buffer {
    unit: Unit,
    /// `None` until they are loaded. The cache gives out loaded buffers only.
    data: RwLock<Option<Contents>>,
    flags: AtomicU32,
}

/// The contents of a buffer at one time; see [`Buffer::read`].
#[derive(Clone, Debug)]
pub struct BufferRead(Contents);

impl BufferRead {
    /// Returns the contents.
    pub fn into_contents(self) -> Contents {
        self.0
    }
}

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
        f.debug_struct("Buffer").field("unit", &self.unit).field("flags", &self.flags).finish_non_exhaustive()
    }
}

impl Buffer {
    pub(crate) fn unloaded(unit: Unit) -> Self {
        Self { unit, data: RwLock::new(None), flags: AtomicU32::new(REFERENCED) }
    }

    /// The number of the first block on its device.
    pub fn block(&self) -> BlockNo {
        self.unit.first()
    }

    /// The blocks, in the order of the bytes.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Returns the current contents. Drop them before you change the buffer, or the change copies the block.
    pub fn read(&self) -> BufferRead {
        BufferRead(self.snapshot())
    }

    /// Returns the current contents, which later changes do not affect.
    pub fn snapshot(&self) -> Contents {
        self.data.read().clone().expect(LOADED)
    }

    /// Changes the contents in memory **and nothing else**: neither the cache nor a journal is told.
    ///
    /// For `ivers_journal` and `ivers_write_ordering` only: drivers change buffers through a handle or a
    /// change of those.
    pub fn modify<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(self.data.write().as_mut().expect(LOADED).make_mut())
    }

    /// Replaces the contents `before` by `new`, of the same length, in memory **and nothing else**: see
    /// [`modify`](Self::modify). If the contents have changed since `before` was read, it does nothing and
    /// gives `new` back.
    pub fn replace_if_unchanged(
        &self,
        before: &BufferRead,
        new: Contents,
    ) -> std::result::Result<(), Contents> {
        let mut data = self.data.write();
        let current = data.as_mut().expect(LOADED);
        if !current.is_same(&before.0) {
            return Err(new);
        }
        *current = new;
        Ok(())
    }

    /// Marks the buffer for [`crate::BufferCache::sync`], which writes it in place. For a journal in
    /// no-journal mode.
    pub fn mark_dirty(&self) {
        self.flags.fetch_or(DIRTY, Ordering::SeqCst);
    }

    /// True if [`crate::BufferCache::sync`] would write the buffer.
    pub fn is_dirty(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & DIRTY != 0
    }

    /// True if [`set_verified`](Self::set_verified) was called since the contents were loaded. Drivers
    /// check a checksum once per load.
    pub fn is_verified(&self) -> bool {
        self.flags.load(Ordering::Acquire) & VERIFIED != 0
    }

    /// Records that the contents passed the format's verifier.
    pub fn set_verified(&self) {
        self.flags.fetch_or(VERIFIED, Ordering::Release);
    }

    pub(crate) fn is_uptodate(&self) -> bool {
        self.flags.load(Ordering::Acquire) & UPTODATE != 0
    }

    /// Loads the contents unless they are loaded already. Concurrent calls wait for the one that reads.
    /// Returns whether this call read.
    pub(crate) fn load<E>(&self, read: impl FnOnce() -> Result<Contents, E>) -> Result<bool, E> {
        let data = self.data.write();
        if self.is_uptodate() {
            return Ok(false);
        }
        let contents = read()?;
        Unloaded { buffer: self, data }.load(contents);
        Ok(true)
    }

    /// Locks a buffer that is not loaded, to load it. `None` if it is loaded, or locked by another thread.
    pub(crate) fn try_lock_unloaded(&self) -> Option<Unloaded<'_>> {
        let data = self.data.try_write()?;
        (!self.is_uptodate()).then_some(Unloaded { buffer: self, data })
    }

    /// Replaces the contents by new ones that need no verification.
    pub(crate) fn replace(&self, contents: Contents) {
        let mut data = self.data.write();
        *data = Some(contents);
        self.flags.fetch_or(UPTODATE | VERIFIED, Ordering::AcqRel);
    }

    pub(crate) fn touch(&self) {
        if self.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears REFERENCED and returns whether it was set.
    pub(crate) fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// Starts a write if the buffer is dirty; returns the contents to write.
    pub(crate) fn start_write(&self) -> Option<Contents> {
        self.flags.fetch_or(WRITING, Ordering::SeqCst);
        if self.flags.fetch_and(!DIRTY, Ordering::SeqCst) & DIRTY == 0 {
            self.flags.fetch_and(!WRITING, Ordering::SeqCst);
            return None;
        }
        Some(self.snapshot())
    }

    /// Ends a write. After a failed one the buffer is dirty again.
    pub(crate) fn end_write(&self, ok: bool) {
        if !ok {
            self.mark_dirty();
        }
        self.flags.fetch_and(!WRITING, Ordering::SeqCst);
    }

    /// Clears DIRTY. Returns true if a write is in progress, for which the caller must wait.
    pub(crate) fn clear_dirty(&self) -> bool {
        self.flags.fetch_and(!DIRTY, Ordering::SeqCst) & WRITING != 0
    }
}

/// A locked buffer that is not loaded. Other threads that want it wait.
pub(crate) struct Unloaded<'a> {
    buffer: &'a Buffer,
    data: RwLockWriteGuard<'a, Option<Contents>>,
}

impl Unloaded<'_> {
    /// Stores the contents, which are not verified.
    pub(crate) fn load(mut self, contents: Contents) {
        *self.data = Some(contents);
        self.buffer.flags.fetch_and(!VERIFIED, Ordering::AcqRel);
        self.buffer.flags.fetch_or(UPTODATE, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_never_changes() {
        let b = Buffer::unloaded(BlockNo(3).into());
        b.replace(vec![1; 16].into());
        let before = b.snapshot();
        b.modify(|d| d[0] = 9);
        assert_eq!(before[0], 1);
        assert_eq!(b.read()[0], 9);
        assert!(b.is_verified());
        assert!(b.start_write().is_none());
        b.mark_dirty();
        assert_eq!(b.start_write().unwrap()[0], 9);
        assert_eq!(b.replace_if_unchanged(&BufferRead(before), vec![2; 16].into()).unwrap_err()[0], 2);
        b.replace_if_unchanged(&b.read(), vec![3; 16].into()).unwrap();
        assert_eq!(*b.read(), [3; 16]);
        assert!(b.clear_dirty());
        b.end_write(true);
        assert!(!b.is_dirty());
    }
}
