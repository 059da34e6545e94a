//! File data: reading and writing through the page cache or around it.

use crate::driver::BlockPool;
use crate::error::{Error, NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::pages::{Loaded, PAGE, PAGE64, RUN_PAGES, Step};
use crate::requests::*;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::sync::atomic::Ordering;

/// A write bumps at least once per this many bytes (contract C6).
const BUMP_BYTES: usize = 1 << 20;
const _: () = assert!(BUMP_BYTES <= RUN_PAGES * PAGE, "a piece of a write is one run");

/// What a write around the cache does if the driver fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnError {
    /// Returns the error.
    Return,
    /// Writes into the cache. Write-back then tries again, and every descriptor is told of its error once.
    UseCache,
}

/// Ensures that visible bytes are followed by a bump, also if the write fails or panics.
struct Visible<'a> {
    vfs: &'a Vfs,
    cred: &'a Cred,
    inode: &'a Inode,
    touch: Touch,
    pending: bool,
}

impl Visible<'_> {
    fn bump(&mut self) -> Result<()> {
        if std::mem::take(&mut self.pending) {
            self.vfs.changed(self.inode, self.touch, Logged::IfNeeded)?;
        }
        Ok(())
    }
}

impl Drop for Visible<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.bump() {
            log::warn!("inode {} must be logged again: {error}", self.inode.ino);
        }
    }
}

/// What a read does with data that is not in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Adds it, with what will probably be read next.
    Keep,
    /// Only passes it on: the caller caches it.
    PassOn,
}

/// The pages of a read that begin before the end of the file.
fn in_file(data: &[u8], offset: u64, size: u64) -> &[u8] {
    let len = size.saturating_sub(offset).next_multiple_of(PAGE64);
    &data[..usize::try_from(len).unwrap_or(usize::MAX).min(data.len())]
}

impl Vfs {
    /// Reads. Permission was checked at open. Returns fewer bytes than asked for only at the end of the file.
    pub fn read(&self, cred: &Cred, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_with(cred, inode, offset, buf, Missing::Keep)
    }

    /// [`Vfs::read`] for a caller that caches what it reads: what is not in the page cache is not added to
    /// it, where alignment allows.
    pub fn read_for_cache(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.read_with(cred, inode, offset, buf, Missing::PassOn)
    }

    fn read_with(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        offset: u64,
        buf: &mut [u8],
        missing: Missing,
    ) -> Result<usize> {
        self.reclaim();
        inode.require_regular()?;
        self.replace_outdated(inode);
        let done = {
            let _lock = self.shared(inode)?;
            self.read_locked(cred, inode, offset, buf, inode.size(), missing)?
        };
        if done > 0 {
            self.accessed(inode);
        }
        Ok(done)
    }

    /// Reads a regular file of this size. The caller holds its lock.
    pub(crate) fn read_locked(
        &self,
        cred: &Cred,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        size: u64,
        missing: Missing,
    ) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64).min(size);
        let want = end.saturating_sub(offset) as usize;
        let mut done = 0;
        while done < want {
            let at = offset + done as u64;
            done += inode.pages.read(at, &mut buf[done..want]);
            let at = offset + done as u64;
            let whole =
                if missing == Missing::PassOn { self.whole_units_missing(inode, at, want - done) } else { 0 };
            if whole > 0 {
                self.fs.read(cred, inode, at, &mut buf[done..done + whole])?;
                done += whole;
            } else if done < want {
                done += self.read_missing(cred, inode, at, &mut buf[done..want], size)?;
            }
        }
        Ok(done)
    }

    /// How many of the `wanted` bytes at `offset` are whole units that are not in the cache and that a local
    /// driver can read at any time.
    fn whole_units_missing(&self, inode: &Inode, offset: u64, wanted: usize) -> usize {
        let unit = self.memory.unit_bytes();
        if inode.is_server_managed() || !offset.is_multiple_of(unit) || (wanted as u64) < unit {
            return 0;
        }
        let missing = inode.pages.missing_from(offset, wanted);
        missing - missing % unit as usize
    }

    /// Reads the page at `offset`, and the following ones if the file is read in order, into the cache, and
    /// copies what was asked for.
    fn read_missing(
        &self,
        cred: &Cred,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        size: u64,
    ) -> Result<usize> {
        let plan = inode.pages.plan_read(offset, buf.len(), size, &self.memory);
        let mut data = vec![0; plan.len];
        self.fs.read(cred, inode, plan.offset, &mut data)?;
        inode.pages.fill(plan.offset, in_file(&data, plan.offset, size), plan.generation, &self.memory);
        // Copy from what was read and not from the cache: a page may be evicted already, and must not be read
        // for ever. No writer runs, so both are the same, except pages that were cached before: stop there.
        let skip = (offset - plan.offset) as usize;
        let bytes = buf.len().min((plan.missing_until - offset) as usize);
        buf[..bytes].copy_from_slice(&data[skip..skip + bytes]);
        self.reclaim();
        Ok(bytes)
    }

    /// Reads the unit that contains `offset` from the driver.
    fn read_unit(&self, cred: &Cred, inode: &Inode, offset: u64) -> Result<(u64, Vec<u8>)> {
        let unit = self.memory.unit_bytes();
        let (start, mut data) = (offset - offset % unit, vec![0; unit as usize]);
        self.fs.read(cred, inode, start, &mut data)?;
        Ok((start, data))
    }

    /// Loads the page at `offset` into the cache, with the rest of its unit.
    pub(crate) fn load_page(&self, cred: &Cred, inode: &Inode, offset: u64, size: u64) -> Result<()> {
        let mut probe = [0];
        if offset < size && inode.pages.read(offset, &mut probe) == 0 {
            let generation = inode.pages.generation();
            let (start, data) = self.read_unit(cred, inode, offset)?;
            inode.pages.fill(start, in_file(&data, start, size), generation, &self.memory);
        }
        Ok(())
    }

    /// Writes, and returns how many bytes were written, as write(2) does. For what ended a short write, see
    /// [`Vfs::write_with_outcome`].
    #[inline]
    pub fn write(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.write_with_outcome(cred, inode, offset, data, flags)?.count()
    }

    /// Writes. Permission was checked at open; only inode flags are checked here. Returns `Err` if nothing
    /// was written, or if it could not be logged or made durable as required.
    pub fn write_with_outcome(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<WriteOutcome> {
        inode.require_regular()?;
        self.reclaim();
        self.begin_change()?;
        self.throttle(data.len().min(BUMP_BYTES) as u64)?;
        let mut failed = None;
        let mut done = 0;
        let mut wrote_back_for_space = false;
        let is_sent = flags.contains(WriteFlags::DIRECT) && inode.is_server_managed();
        let earlier_errors = if is_sent { inode.writeback_errors.count() } else { 0 };
        {
            // One hold for the whole call: a write is atomic, and nobody appends between its pieces.
            // Throttling and eviction are safe under it, since write-back never takes this lock.
            let _lock = self.exclusive(inode)?;
            let (mut size, inode_flags) = inode.with_attr(|attr| (attr.size, attr.flags));
            let append = flags.contains(WriteFlags::APPEND);
            let forbidden = inode_flags.contains(InodeFlags::IMMUTABLE)
                || (inode_flags.contains(InodeFlags::APPEND) && !append);
            if forbidden && !flags.contains(WriteFlags::ALREADY_ACCEPTED) {
                return Err(NameError::NotPermitted.into());
            }
            if data.is_empty() {
                return Ok(WriteOutcome { bytes: 0, error: None });
            }
            let offset = if append { size } else { offset };
            let room = self.info.max_file_size.saturating_sub(offset);
            if room == 0 {
                return Err(NameError::TooLarge.into());
            }
            let total = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
            let kill_set_id = flags.contains(WriteFlags::KILL_SET_ID) || !cred.privileged();
            if kill_set_id || inode.may_have_capability() {
                self.remove_privileges(cred, inode, kill_set_id)?;
            }
            self.release_lost_reservations(inode);
            let pool = if flags.contains(WriteFlags::UNRESERVED_POOL) {
                BlockPool::Unreserved
            } else {
                self.block_pool(cred)
            };
            let touch =
                if flags.contains(WriteFlags::TIMES_SET_BY_CALLER) { Touch::Nothing } else { Touch::Data };
            while done < total {
                let at = offset + done as u64;
                // Pieces end at the boundaries of units. One that begins at such a boundary has the full
                // length: a large request of the kernel is one piece.
                let piece = (total - done).min(BUMP_BYTES - self.memory.offset_in_unit(at) as usize);
                if done > 0 {
                    self.reclaim();
                    if let Err(error) = self.throttle(piece as u64) {
                        failed = Some(error);
                        break;
                    }
                }
                let bytes = &data[done..done + piece];
                let mut visible = Visible { vfs: self, cred, inode, touch, pending: false };
                let wrote = if flags.contains(WriteFlags::DIRECT) {
                    self.write_direct(&mut visible, at, bytes, size, pool)
                } else if flags.contains(WriteFlags::CACHED_BY_CALLER)
                    && self.may_go_around_cache(inode, at, piece, size)
                {
                    self.write_around_cache(&mut visible, at, bytes, size, pool, OnError::UseCache)
                } else {
                    self.write_cached(&mut visible, at, bytes, size, pool)
                };
                let bumped = visible.bump();
                match wrote {
                    Err(Error::Name(NameError::NoSpace))
                        if !std::mem::replace(&mut wrote_back_for_space, true)
                            && self.write_back_for_space() =>
                    {
                        bumped?;
                        continue;
                    }
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                    Ok(()) => bumped?,
                }
                self.lost_data.forget(inode.ino, at..at + piece as u64);
                done += piece;
                size = size.max(at + piece as u64);
            }
            if failed.is_none() && total < data.len() {
                failed = Some(NameError::TooLarge.into());
            }
        }
        self.policy.stats.mine().data_bytes.fetch_add(done as u64, Ordering::Relaxed);
        if done > 0 {
            self.notify(inode, ChangeKind::Data);
        }
        let outcome = WriteOutcome { bytes: done, error: failed };
        if done == 0 {
            return outcome.complete().map(|bytes| WriteOutcome { bytes, error: None });
        }
        if is_sent {
            // Without the lock: other threads write into the cache meanwhile, and the next request carries
            // what all of them wrote.
            self.write_back_durably(inode)?;
            // Another thread may have sent these bytes, and the server refused them.
            if let Some(error) = inode.writeback_errors.since(earlier_errors) {
                return Err(error);
            }
        }
        if flags.contains(WriteFlags::SYNC) {
            self.fsync(inode, false)?;
        } else {
            self.sync_if_required(inode, InodeFlags::SYNC)?;
        }
        Ok(outcome)
    }

    fn write_cached(
        &self,
        visible: &mut Visible<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
        pool: BlockPool,
    ) -> Result<()> {
        let inode = visible.inode;
        let end = offset + data.len() as u64;
        if end <= size && inode.pages.overwrite_dirty(offset, data) {
            visible.pending = true;
            return Ok(());
        }
        // A dirty page has the reservation that it needed up to the old end of the file.
        let more = || {
            let step = self.info.reserve_granularity;
            end > size && end.div_ceil(step) > size.div_ceil(step)
        };
        if !inode.pages.all_dirty(offset, data.len() as u64) || more() {
            self.retry_without_space(|| self.fs.reserve(inode, offset, data.len() as u64, pool))?;
        }
        let mut loaded = Loaded::default();
        loop {
            let grow = || {
                if end > size {
                    inode.with_attr(|attr| attr.size = attr.size.max(end));
                }
            };
            match inode.pages.write(offset, data, size, &mut loaded, &self.memory, grow) {
                Step::Done { newly_dirty } => {
                    visible.pending = true;
                    if newly_dirty || !inode.dirty_listed.load(Ordering::Acquire) {
                        self.list_dirty(inode);
                    }
                    return Ok(());
                }
                Step::NeedsRead { offset, generation } => {
                    let (start, data) = self.read_unit(visible.cred, inode, offset)?;
                    loaded.add(start, generation, &data);
                }
            }
        }
    }

    /// Whether a piece consists of whole units or reaches the end of the file, and no server may lose it.
    /// What a server may lose must be in the cache until it is committed.
    fn may_go_around_cache(&self, inode: &Inode, offset: u64, len: usize, size: u64) -> bool {
        let unit = self.memory.unit_bytes();
        let end = offset + len as u64;
        !inode.is_server_managed() && offset.is_multiple_of(unit) && (end.is_multiple_of(unit) || end >= size)
    }

    /// Writes around the cache where possible. Otherwise writes into the cache, and then writes the pages
    /// back. For a file of a server, the caller writes them back.
    fn write_direct(
        &self,
        visible: &mut Visible<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
        pool: BlockPool,
    ) -> Result<()> {
        if self.may_go_around_cache(visible.inode, offset, data.len(), size) {
            return self.write_around_cache(visible, offset, data, size, pool, OnError::Return);
        }
        self.write_cached(visible, offset, data, size, pool)?;
        if visible.inode.is_server_managed() {
            return Ok(());
        }
        let _writeback = visible.inode.writeback_lock.lock();
        self.write_pages(visible.inode, offset, offset + data.len() as u64)
    }

    /// Writes a piece that may go around the cache to the device, and drops its pages.
    fn write_around_cache(
        &self,
        visible: &mut Visible<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
        pool: BlockPool,
        on_error: OnError,
    ) -> Result<()> {
        let inode = visible.inode;
        let end = offset + data.len() as u64;
        let _writeback = inode.writeback_lock.lock();
        self.retry_without_space(|| self.fs.reserve(inode, offset, data.len() as u64, pool))?;
        // Dirty pages of the range are overwritten completely: drop them, and use their reservations.
        inode.pages.drop_pages(offset / PAGE64, end.div_ceil(PAGE64), &self.memory);
        visible.pending = true;
        if end > size {
            inode.with_attr(|attr| attr.size = end);
        }
        let mut wrote = self.retry_without_space(|| self.fs.write_back(inode, offset, data).map(drop));
        if wrote.is_ok() {
            self.policy.stats.mine().written_back_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            return wrote;
        }
        if on_error == OnError::UseCache {
            // The piece replaces all that the file has from `offset` to its end or to the end of a unit, so
            // nothing needs to be read.
            wrote = self.write_cached(visible, offset, data, size.min(offset), pool);
        }
        let Err(error) = wrote else { return Ok(()) };
        // The size does not run ahead of the data. Older writes to these pages that were not written back
        // are lost too: the next fsync reports that.
        inode.with_attr(|attr| attr.size = size);
        self.fs.unreserve(inode, offset, end - offset);
        if matches!(error, Error::FileData(_) | Error::DataRefused(_)) {
            self.note_data_loss(inode, Vec::new(), &error);
            return Err(error);
        }
        self.note_writeback_error(inode, &error);
        self.guarded(|| Err(error))
    }

    /// Reads around the cache. Dirty pages are written back first.
    pub fn read_direct(&self, cred: &Cred, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if inode.kind != FileType::Regular {
            return self.read(cred, inode, offset, buf);
        }
        let unit = self.memory.unit_bytes();
        if !offset.is_multiple_of(unit) {
            return self.read(cred, inode, offset, buf);
        }
        let want = {
            // No writer runs between the write-back and the read.
            let _lock = self.shared(inode)?;
            let size = inode.size();
            let want = offset.saturating_add(buf.len() as u64).min(size).saturating_sub(offset) as usize;
            if !self.policy.read_only {
                let _writeback = inode.writeback_lock.lock();
                self.write_pages(inode, offset, offset + want as u64)?;
            }
            let whole = want - want % unit as usize;
            self.fs.read(cred, inode, offset, &mut buf[..whole])?;
            if whole < want {
                let (_, tail) = self.read_unit(cred, inode, offset + whole as u64)?;
                buf[whole..want].copy_from_slice(&tail[..want - whole]);
            }
            want
        };
        if want > 0 {
            self.accessed(inode);
        }
        Ok(want)
    }

    /// Writes around the cache: [`Vfs::write`] with [`WriteFlags::DIRECT`].
    pub fn write_direct_at(&self, cred: &Cred, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(cred, inode, offset, data, WriteFlags::DIRECT)
    }
}
