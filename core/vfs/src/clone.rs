//! Copies without moving bytes: shared extents, and copies that the driver makes.

use crate::driver::CloneOps;
use crate::error::{Error, NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::pages::PAGE64;
use crate::requests::*;
use crate::sync::RankedMutexGuard;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

/// Byte ranges of two files, of one length.
#[derive(Clone, Copy)]
pub(crate) struct Ranges<'a> {
    pub(crate) source: &'a InodeRef,
    pub(crate) source_offset: u64,
    pub(crate) target: &'a InodeRef,
    pub(crate) target_offset: u64,
    pub(crate) len: u64,
}

impl Ranges<'_> {
    /// Whether they overlap within one file.
    pub(crate) fn overlap(&self) -> bool {
        let apart = self.source_offset.saturating_add(self.len) <= self.target_offset
            || self.target_offset.saturating_add(self.len) <= self.source_offset;
        self.source.ino == self.target.ino && !apart && self.len > 0
    }

    /// Whether blocks can be shared: both ranges begin at a block, and end at one or, the target's as well,
    /// with the source.
    fn are_whole(&self, block: u64) -> bool {
        let to_end = self.source_offset + self.len == self.source.size()
            && self.target_offset + self.len >= self.target.size();
        self.source_offset.is_multiple_of(block)
            && self.target_offset.is_multiple_of(block)
            && (self.len.is_multiple_of(block) || to_end)
    }

    /// As many bytes from the start on as can be shared.
    fn whole_len(&self, block: u64) -> u64 {
        if self.are_whole(block) {
            return self.len;
        }
        let whole = self.len - self.len % block;
        if (Self { len: whole, ..*self }).are_whole(block) { whole } else { 0 }
    }
}

/// The write-back locks of two files, or of one, in ascending order of inode number.
fn lock_writeback<'a>(a: &'a Inode, b: &'a Inode) -> Vec<RankedMutexGuard<'a, ()>> {
    let mut files = vec![a, b];
    files.sort_by_key(|file| file.ino);
    files.dedup_by_key(|file| file.ino);
    files.into_iter().map(|file| file.writeback_lock.lock_with_key(file.ino.0)).collect()
}

impl Vfs {
    /// Lets a range of one file share the bytes of another, without copying them. `len` 0 means to the end of
    /// the source. `NotSupported` if the format cannot share, `Invalid` if the ranges are not whole blocks,
    /// overlap, or exceed the source: then nothing is done. After other errors a part may be shared.
    pub fn clone_range(
        &self,
        cred: &Cred,
        source: &InodeRef,
        source_offset: u64,
        target: &InodeRef,
        target_offset: u64,
        len: u64,
    ) -> Result<()> {
        let ranges = Ranges { source, source_offset, target, target_offset, len };
        self.transfer(cred, ranges, true).map(drop)
    }

    /// Has the driver copy up to the end of the source; it shares blocks where it can. Returns how many
    /// bytes. `NotSupported`: it cannot, and nothing is done.
    pub(crate) fn copy_by_driver(&self, cred: &Cred, ranges: Ranges<'_>) -> Result<u64> {
        self.transfer(cred, ranges, false)
    }

    /// Clones if `exact`, otherwise copies.
    fn transfer(&self, cred: &Cred, mut ranges: Ranges<'_>, exact: bool) -> Result<u64> {
        let clones = self.fs.clones().ok_or(NameError::NotSupported)?;
        let Ranges { source, source_offset, target, target_offset, .. } = ranges;
        for file in [source, target] {
            file.require_regular()?;
        }
        self.reclaim();
        let done = {
            let _locks = self.lock_all(&[source, target])?;
            self.begin_change()?;
            let flags = target.with_attr(|attr| attr.flags);
            if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
                return Err(NameError::NotPermitted.into());
            }
            let rest = source.size().saturating_sub(source_offset);
            if exact && (source_offset > source.size() || ranges.len > rest) {
                return Err(NameError::Invalid.into());
            }
            ranges.len = if exact && ranges.len == 0 { rest } else { ranges.len.min(rest) };
            let whole = ranges.whole_len(u64::from(self.info.block_size));
            if ranges.overlap() || (exact && whole < ranges.len) {
                return Err(NameError::Invalid.into());
            }
            if ranges.len == 0 {
                return Ok(0);
            }
            let end = target_offset.checked_add(ranges.len).filter(|end| *end <= self.info.max_file_size);
            let end = end.ok_or(NameError::TooLarge)?;
            self.remove_privileges(cred, target, !cred.keeps_set_id())?;
            self.release_lost_reservations(target);
            // Nobody dirties either file under its lock, so both stay written.
            let _writeback = lock_writeback(source, target);
            self.write_pages(source, source_offset, source_offset + ranges.len)?;
            self.write_pages(target, target_offset, end)?;
            target.pages.drop_pages(target_offset / PAGE64, end.div_ceil(PAGE64), &self.memory);
            self.call_clones(cred, clones, &ranges, whole, exact).inspect_err(|error| {
                // Some of it may be done, unless the driver cannot do this at all.
                if !matches!(error, Error::Name(NameError::NotSupported)) {
                    let _ = self.changed(target, Touch::Data, Logged::IfNeeded);
                }
            })?
        };
        self.accessed(source);
        self.notify(target, ChangeKind::Data);
        self.sync_if_required(target, InodeFlags::SYNC)?;
        Ok(done)
    }

    fn call_clones(
        &self,
        cred: &Cred,
        clones: &dyn CloneOps,
        ranges: &Ranges<'_>,
        whole: u64,
        exact: bool,
    ) -> Result<u64> {
        let Ranges { source, source_offset, target, target_offset, len } = *ranges;
        let (from, to) = ((&**source, source_offset), (&**target, target_offset));
        let pool = self.block_pool(cred);
        // If the last block of a copy is not whole, the blocks before it are shared. The caller asks for the
        // rest.
        if whole > 0 {
            match self.with_space(|| clones.clone_range(cred, from, to, whole, pool)) {
                Err(Error::Name(NameError::NotSupported)) if !exact => {}
                shared => return shared.map(|()| whole),
            }
        }
        self.with_space(|| clones.copy_range(cred, from, to, len, pool))
    }
}
