//! A run of pages under write-back, and how its write-back ends.

use crate::driver::Written;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::memory::Memory;
use crate::pages::{Pages, Run};
use crate::sync::atomic::Ordering;
use crate::vfs::Vfs;

/// A run of pages under write-back. If it is dropped, because the driver fails or panics, its pages are dirty
/// again.
pub(crate) struct RunGuard<'a> {
    inode: &'a Inode,
    memory: &'a Memory,
    run: Run,
    bytes: u64,
    ended: bool,
}

impl<'a> RunGuard<'a> {
    /// Takes the next run of dirty pages of a byte range.
    pub(crate) fn begin(inode: &'a Inode, from: u64, to: u64, memory: &'a Memory) -> Option<Self> {
        let run = inode.pages.begin_run(from, to, memory, || inode.size())?;
        let bytes = run.data.len() as u64;
        Some(Self { inode, memory, run, bytes, ended: false })
    }

    pub(crate) fn offset(&self) -> u64 {
        self.run.offset
    }

    /// Where its data ends.
    pub(crate) fn end(&self) -> u64 {
        self.run.offset + self.bytes
    }

    /// Whether the file has ended within its last unit.
    pub(crate) fn is_short(&self) -> bool {
        !self.end().is_multiple_of(self.memory.unit_bytes())
    }

    /// Where the next run begins. After a short run: there, and only if the file has grown. Then its last
    /// page is taken again, so what is appended is written in order: the size on the device covers no byte
    /// that only the cache has. What a writer overwrites in that page is left to the next write-back.
    pub(crate) fn next(&self) -> Option<u64> {
        let end = self.end();
        (!self.is_short() || self.inode.size() > end).then_some(end)
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.run.data
    }

    pub(crate) fn take_data(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.run.data)
    }

    fn finish<T>(mut self, how: impl FnOnce(&Pages, &Run, &Memory) -> T) -> T {
        self.ended = true;
        how(&self.inode.pages, &self.run, self.memory)
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.inode.pages.end_run(&self.run, None, self.memory);
        }
    }
}

impl Vfs {
    /// Ends the write-back of a run with the result of the driver. Returns the error if its data is lost.
    /// Fails if its pages stay dirty.
    pub(crate) fn end_write_back(&self, run: RunGuard<'_>, result: Result<Written>) -> Result<Result<()>> {
        let (inode, bytes) = (run.inode, run.bytes);
        match result {
            Ok(written) => {
                run.finish(|pages, run, memory| pages.end_run(run, Some(written), memory));
                if written == Written::Unstable {
                    self.list_dirty(inode);
                }
                let stats = self.policy.stats.mine();
                stats.written_back_bytes.fetch_add(bytes, Ordering::Relaxed);
                Ok(Ok(()))
            }
            Err(error @ (Error::FileData(_) | Error::DataRefused(_))) => {
                let lost = run.finish(Pages::lose_run);
                self.note_data_loss(inode, lost, &error);
                Ok(Err(error))
            }
            // Nothing is lost: the pages are written later.
            Err(error @ Error::Server(_)) => {
                drop(run);
                self.list_dirty(inode);
                Err(error)
            }
            Err(error) => {
                drop(run);
                self.note_writeback_error(inode, &error);
                self.list_dirty(inode);
                self.guarded(|| Err(error))
            }
        }
    }
}
