//! File data: reading and writing through the page cache, and past it.

use crate::api::*;
use crate::driver::Room;
use crate::error::{NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::pages::{PAGE, RUN_PAGES, Step};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::sync::atomic::Ordering;

const PAGE64: u64 = PAGE as u64;
/// A write bumps at least once in so many bytes (contract C6).
const BUMP_BYTES: usize = 1 << 20;

/// Sees to it that bytes which became visible are followed by a bump, also when the write ends in an error or unwinds.
struct Visible<'a> {
    vfs: &'a Vfs,
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
            log::warn!("inode {} is to be logged again: {error}", self.inode.ino);
        }
    }
}

impl Vfs {
    /// Read; fewer bytes than asked for only at the end of the file.
    pub fn read(&self, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.balance();
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(NameError::IsDirectory.into()),
            _ => return Err(NameError::Invalid.into()),
        }
        let done = {
            let _lock = self.shared(inode)?;
            self.read_locked(inode, offset, buf, inode.size())?
        };
        if done > 0 {
            self.accessed(inode);
        }
        Ok(done)
    }

    /// Read of a regular file of this size, whose lock is held.
    pub(crate) fn read_locked(&self, inode: &Inode, offset: u64, buf: &mut [u8], size: u64) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64).min(size);
        let want = end.saturating_sub(offset) as usize;
        let mut done = 0;
        while done < want {
            let at = offset + done as u64;
            done += inode.pages.read(at, &mut buf[done..want]);
            if done < want {
                done += self.read_missing(inode, offset + done as u64, &mut buf[done..want], size)?;
            }
        }
        Ok(done)
    }

    /// Bring the page at `offset` and, when the file is read in order, those behind it into the cache, and hand out what was asked for.
    fn read_missing(&self, inode: &Inode, offset: u64, buf: &mut [u8], size: u64) -> Result<usize> {
        let (start, len) = inode.pages.plan_read(offset, buf.len(), size);
        let mut data = vec![0; len];
        self.fs.read(inode, start, &mut data)?;
        inode.pages.fill(start, &data, &self.memory);
        // From what was read, not from the cache: it may be gone already, and must not be read for ever. No writer
        // is inside, so the two are the same; a page that was here before was left out of the plan.
        let skip = (offset - start) as usize;
        let bytes = buf.len().min(len - skip);
        buf[..bytes].copy_from_slice(&data[skip..skip + bytes]);
        self.balance();
        Ok(bytes)
    }

    /// Have the page at a page-aligned offset in the cache.
    pub(crate) fn load_page(&self, inode: &Inode, offset: u64, size: u64) -> Result<()> {
        let mut probe = [0];
        if offset < size && inode.pages.read(offset, &mut probe) == 0 {
            let mut page = [0; PAGE];
            self.fs.read(inode, offset, &mut page)?;
            inode.pages.fill(offset, &page, &self.memory);
        }
        Ok(())
    }

    /// Write. Who opened the file was checked then: no permission is checked here but what the inode's flags forbid. Fewer
    /// bytes than given are written only if an error followed them; it shows at the next call.
    pub fn write(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(NameError::IsDirectory.into()),
            _ => return Err(NameError::Invalid.into()),
        }
        self.balance();
        self.begin_change()?;
        self.throttle(data.len().min(BUMP_BYTES) as u64)?;
        let mut failed = None;
        let mut done = 0;
        {
            // One hold for the whole call: a write is atomic, and nobody appends between its pieces. Throttling and
            // eviction are safe under it, since write-back never takes this lock.
            let _lock = self.exclusive(inode)?;
            let (mut size, perm, inode_flags) = inode.with_attr(|attr| (attr.size, attr.perm, attr.flags));
            let append = flags.contains(WriteFlags::APPEND);
            let forbidden = inode_flags.contains(InodeFlags::IMMUTABLE)
                || (inode_flags.contains(InodeFlags::APPEND) && !append);
            if forbidden && !flags.contains(WriteFlags::ACCEPTED) {
                return Err(NameError::NotPermitted.into());
            }
            if data.is_empty() {
                return Ok(0);
            }
            let offset = if append { size } else { offset };
            let room = self.info.max_file_size.saturating_sub(offset);
            if room == 0 {
                return Err(NameError::TooLarge.into());
            }
            let total = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
            let kills = flags.contains(WriteFlags::KILL_PRIV) || !cred.privileged();
            if kills && (perm & 0o6000 != 0 || !inode.no_capability.load(Ordering::Relaxed)) {
                self.kill_privileges(cred, inode)?;
            }
            let room = if flags.contains(WriteFlags::OPEN_ROOM) { Room::Open } else { self.room(cred) };
            let touch = if flags.contains(WriteFlags::KEEP_TIMES) { Touch::Nothing } else { Touch::Data };
            while done < total {
                let at = offset + done as u64;
                // Up to the next MiB of the file, so that pieces end where pages do.
                let piece = (total - done).min(BUMP_BYTES - (at % BUMP_BYTES as u64) as usize);
                if done > 0 {
                    self.balance();
                    if let Err(error) = self.throttle(piece as u64) {
                        failed = Some(error);
                        break;
                    }
                }
                let bytes = &data[done..done + piece];
                let mut visible = Visible { vfs: self, inode, touch, pending: false };
                let wrote = if flags.contains(WriteFlags::DIRECT) {
                    self.write_direct(&mut visible, at, bytes, size, room)
                } else {
                    self.write_cached(&mut visible, at, bytes, size, room)
                };
                let bumped = visible.bump();
                if let Err(error) = wrote {
                    failed = Some(error);
                    break;
                }
                bumped?;
                done += piece;
                size = size.max(at + piece as u64);
            }
        }
        self.policy.stats.mine().data_bytes.fetch_add(done as u64, Ordering::Relaxed);
        if done > 0 {
            self.notify(inode, ChangeKind::Data);
        }
        match failed {
            Some(error) if done == 0 => return Err(error),
            _ => {}
        }
        if flags.contains(WriteFlags::SYNC) {
            self.fsync(inode, false)?;
        } else {
            self.settle(inode, InodeFlags::SYNC)?;
        }
        Ok(done)
    }

    fn write_cached(
        &self,
        visible: &mut Visible<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
        room: Room,
    ) -> Result<()> {
        let inode = visible.inode;
        let end = offset + data.len() as u64;
        if end <= size && inode.pages.overwrite_dirty(offset, data) {
            visible.pending = true;
            return Ok(());
        }
        // A dirty page has the room that it needed as far as the file went.
        let more = || {
            let step = self.fs.room_step();
            end > size && end.div_ceil(step) > size.div_ceil(step)
        };
        if !inode.pages.all_dirty(offset, data.len() as u64) || more() {
            self.deletions.with_room(|| self.fs.reserve(inode, offset, data.len() as u64, room))?;
        }
        let mut loaded = Vec::new();
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
                Step::NeedsRead(page) => {
                    let mut bytes = Box::new([0; PAGE]);
                    self.fs.read(inode, page * PAGE64, &mut bytes[..])?;
                    loaded.push((page, bytes));
                }
            }
        }
    }

    /// Past the cache where the piece is made of whole pages (or reaches the end of the file); through it and on to the device otherwise.
    fn write_direct(
        &self,
        visible: &mut Visible<'_>,
        offset: u64,
        data: &[u8],
        size: u64,
        room: Room,
    ) -> Result<()> {
        let inode = visible.inode;
        let end = offset + data.len() as u64;
        let whole = offset.is_multiple_of(PAGE64) && (end.is_multiple_of(PAGE64) || end >= size);
        if !whole {
            self.write_cached(visible, offset, data, size, room)?;
            let _writeback = inode.writeback_lock.lock();
            return self.write_pages(inode, offset, end);
        }
        let _writeback = inode.writeback_lock.lock();
        self.deletions.with_room(|| self.fs.reserve(inode, offset, data.len() as u64, room))?;
        // Dirty pages of the range are overwritten as a whole: they need not travel, and their room is this write's now.
        let (first, behind) = (offset / PAGE64, end.div_ceil(PAGE64));
        inode.pages.drop_pages(first, behind, &self.memory);
        visible.pending = true;
        if end > size {
            inode.with_attr(|attr| attr.size = end);
        }
        for (nth, run) in data.chunks(RUN_PAGES * PAGE).enumerate() {
            let at = offset + (nth * RUN_PAGES * PAGE) as u64;
            if let Err(error) = self.fs.write_back(inode, at, run) {
                // What arrived stays; the size does not run ahead of it. Older writes to these pages, still on their way, are
                // lost with this one: the next fsync says so.
                inode.with_attr(|attr| attr.size = size.max(at));
                self.fs.unreserve(inode, at, end - at);
                self.note_loss(inode, &error);
                return Err(error);
            }
            self.policy.stats.mine().written_back_bytes.fetch_add(run.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Read past the cache: what is dirty goes to the device first.
    pub fn read_direct(&self, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if inode.kind != FileType::Regular {
            return self.read(inode, offset, buf);
        }
        if !offset.is_multiple_of(PAGE64) {
            return self.read(inode, offset, buf);
        }
        let want = {
            // No writer comes between the write-back and the read.
            let _lock = self.shared(inode)?;
            let size = inode.size();
            let want = offset.saturating_add(buf.len() as u64).min(size).saturating_sub(offset) as usize;
            if !self.policy.read_only {
                let _writeback = inode.writeback_lock.lock();
                self.write_pages(inode, offset, offset + want as u64)?;
            }
            let whole = want / PAGE * PAGE;
            self.fs.read(inode, offset, &mut buf[..whole])?;
            if whole < want {
                let mut tail = [0; PAGE];
                self.fs.read(inode, offset + whole as u64, &mut tail)?;
                buf[whole..want].copy_from_slice(&tail[..want - whole]);
            }
            want
        };
        if want > 0 {
            self.accessed(inode);
        }
        Ok(want)
    }

    /// Write past the cache: [`Vfs::write`] with [`WriteFlags::DIRECT`].
    pub fn write_direct_at(&self, cred: &Cred, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(cred, inode, offset, data, WriteFlags::DIRECT)
    }
}
