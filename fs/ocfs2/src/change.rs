//! Changes: one transaction handle, and the lock that makes them one at a time.

use crate::layout::blockcheck::{self, CHECK_BYTES};
use crate::layout::dinode::Dinode;
use crate::layout::shape::{DINODE, Shape};
use crate::layout::superblock::incompat;
use crate::space::Space;
use crate::volume::{Ocfs2, Writer};
use ivers_block::{BlockNo, Buffer};
use ivers_journal::{Handle, JournalError};
use ivers_vfs::sync::{RankedMutexGuard, RankedWriteGuard};
use ivers_vfs::{Error, Inode, Logged, NameError, Result, Touch};
use std::ops::Range;
use std::sync::Arc;

/// Converts an error of the journal: a damaged log to `Corrupt`, anything else to `Io`.
pub(crate) fn journal_error(error: JournalError) -> Error {
    match error {
        JournalError::Corrupt { what, log_block } => {
            Error::corrupt(what, format!("the journal, block {log_block}"))
        }
        error => Error::io(error),
    }
}

/// A change that is being made.
pub(crate) struct Change<'a> {
    pub fs: &'a Ocfs2,
    pub writer: &'a Writer,
    /// Declared before `space`, so that it ends before the lock is released.
    handle: Handle,
    pub space: RankedMutexGuard<'a, Space>,
    /// Whether an error leaves it half done.
    pub changed: bool,
}

impl Ocfs2 {
    /// The state of a mount that writes.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| NameError::ReadOnly.into())
    }

    /// Takes the lock of changes.
    pub(crate) fn space(&self) -> Result<RankedMutexGuard<'_, Space>> {
        let writer = self.writer()?;
        let mut space = writer.space.lock();
        for range in std::mem::take(&mut *writer.released.lock()) {
            space.busy.remove(range);
        }
        Ok(space)
    }

    /// Makes a change of at most `credits` blocks. The caller holds no lock of this driver. An error after
    /// something was changed stops all writing: nothing of the change becomes durable.
    pub(crate) fn change<R>(
        &self,
        credits: u32,
        make: impl FnOnce(&mut Change<'_>) -> Result<R>,
    ) -> Result<R> {
        self.planned_change(|| Ok((credits, ())), |change, ()| make(change))
    }

    /// As [`change`](Self::change). `plan` returns the credits, and what `make` needs. It runs under
    /// the lock of `Space`, so what it reads does not change before `make`.
    pub(crate) fn planned_change<P, R>(
        &self,
        plan: impl FnOnce() -> Result<(u32, P)>,
        make: impl FnOnce(&mut Change<'_>, P) -> Result<R>,
    ) -> Result<R> {
        let (writer, space) = (self.writer()?, self.space()?);
        let (credits, plan) = plan()?;
        let journal = writer.commits.journal();
        let handle = journal.begin(credits).map_err(journal_error)?;
        let mut change = Change { fs: self, writer, handle, space, changed: false };
        let made = make(&mut change, plan);
        let made = match made {
            Err(error) if change.changed => {
                journal.abort(&error);
                let what = format!("a change failed half-way, and writing stops: {error}");
                Err(Error::corrupt(what, self.place.clone()))
            }
            made => made,
        };
        let tid = change.handle.tid();
        drop(change);
        writer.commits.changes().transaction_ends(tid, []);
        made
    }
}

impl Change<'_> {
    /// Changes a structure, and computes its checksum.
    pub fn put<R>(&mut self, number: u64, check_at: usize, edit: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        drop(self.fs.block(number, check_at)?);
        let buffer = self.fs.cache.get(BlockNo(number))?;
        Ok(self.put_buffer(&buffer, check_at, edit))
    }

    /// Writes a new structure, which begins as zeros.
    pub fn put_new(&mut self, number: u64, check_at: usize, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        if number >= self.fs.sb.blocks() {
            return Err(self.fs.corrupt_block(number, "a new block is outside the filesystem"));
        }
        let buffer = self.fs.cache.get_zeroed(BlockNo(number))?;
        self.put_buffer(&buffer, check_at, |bytes| {
            bytes.fill(0);
            edit(bytes);
        });
        Ok(())
    }

    fn put_buffer<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        check_at: usize,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        self.changed = true;
        let has_checks = self.fs.sb.has(incompat::META_ECC);
        self.handle.modify(buffer, |bytes| {
            let result = edit(bytes);
            if has_checks {
                let check = blockcheck::compute(bytes, check_at);
                bytes[check_at..check_at + CHECK_BYTES].copy_from_slice(&check);
            }
            result
        })
    }

    /// Changes a structure whose signature, number and generation are checked first.
    pub fn put_shape<R>(
        &mut self,
        number: u64,
        shape: &Shape,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        drop(self.fs.structure(number, shape)?);
        self.put(number, shape.check_at, edit)
    }

    /// Changes the block of an inode, and decodes it again.
    pub fn put_inode<R>(&mut self, dinode: &mut Dinode, edit: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let result = self.put_shape(dinode.ino, &DINODE, edit)?;
        *dinode = self.fs.any_dinode(dinode.ino)?.0;
        Ok(result)
    }

    /// Drops blocks of structures whose clusters are freed: a replay must not restore them.
    pub fn forget(&mut self, blocks: Range<u64>) {
        self.changed = true;
        blocks.for_each(|block| self.handle.forget(BlockNo(block)));
    }

    /// Lets clusters be taken again when the transaction is durable.
    pub fn release_on_commit(&mut self, range: Range<u64>) {
        let released = self.writer.released.clone();
        self.handle.on_commit(Box::new(move || released.lock().push(range)));
    }

    /// Stores the attributes of an inode.
    pub fn log(&mut self, inode: &Inode, dinode: &mut Dinode) -> Result<()> {
        let attr = inode.attr();
        self.put_inode(dinode, |bytes| crate::layout::dinode::put_attr(bytes, &attr))
    }

    /// Calls [`Inode::changed`], and stores the attributes if the answer requires it.
    pub fn log_changed(
        &mut self,
        inode: &Inode,
        mut dinode: RankedWriteGuard<'_, Dinode>,
        touch: Touch,
        logged: Logged,
    ) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log(inode, &mut dinode) } else { Ok(()) }
    }
}
