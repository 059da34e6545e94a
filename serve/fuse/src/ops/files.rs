//! Requests on the contents of files and on open files.

use super::Ops;
use super::reply::Reply;
use crate::caller_affinity::LARGE;
use crate::connection::{
    Connection, Handle, O_ACCMODE, O_APPEND, O_DIRECT, O_DSYNC, O_RDONLY, O_TRUNC, OrErrno,
};
use crate::nodes::Node;
use fuser::*;
use ivers_vfs::{Cred, FallocateMode, InodeFlags, SetAttr, WriteFlags as VfsWrite, WriteOutcome};
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// The most bytes that one copy_file_range copies before it returns.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Requests of at least this many bytes bypass the page cache, because the kernel caches their data. Smaller
/// ones use it: it joins small writes, reads ahead, and holds what a program may remove soon.
const AROUND_CACHE: usize = 128 << 10;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// One READ buffer for each serving thread, at most as large as the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Ops {
    pub(super) fn open_file(&self, request: &Request, ino: INodeNo, flags: i32) -> Reply<Handle> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let cred = s.cred_for_set_gid(request, &node);
        s.vfs.access(&cred, &node.inode, Connection::open_mask(flags)).or_errno()?;
        let writes = flags & O_ACCMODE != O_RDONLY;
        // Checked here: writes arrive from the kernel's cache, too late to be refused.
        let overwrites = writes && (flags & O_APPEND == 0 || flags & O_TRUNC != 0);
        if overwrites && s.vfs.stat(&node.inode).flags.contains(InodeFlags::APPEND) {
            return Err(Errno::EPERM);
        }
        let handle = s.handle(request, &cred, flags);
        s.tell_open(&cred, &node, handle)?;
        s.heard(request);
        if flags & O_TRUNC != 0 {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            let emptied = s.telling_of_set_id(&node, || s.vfs.set_attr(&cred, &node.inode, &set));
            if let Err(error) = emptied.or_errno() {
                s.tell_close(&node, handle);
                return Err(error);
            }
            s.is_truncated(&node, 0);
        }
        // Before the reply: after it the kernel may hold back data.
        if handle.holds_back {
            node.writer_opens();
        }
        Ok(handle)
    }

    pub(super) fn read_file(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let node = match self.0.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if size >= LARGE {
                self.0.caller_affinity.large();
            }
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let (vfs, cred) = (&self.0.vfs, self.0.opened_by(request));
            let read = if size >= AROUND_CACHE {
                vfs.read_for_cache(&cred, &node.inode, offset, &mut buffer[..size])
            } else {
                vfs.read(&cred, &node.inode, offset, &mut buffer[..size])
            };
            let read = read.or_errno();
            self.answer(request, reply, read, |reply, read| reply.data(&buffer[..read]));
        });
    }

    /// Returns the flags of the VFS for a WRITE of `len` bytes.
    pub(super) fn write_how(
        &self,
        handle: Handle,
        write_flags: WriteFlags,
        flags: i32,
        len: usize,
    ) -> VfsWrite {
        let mut how = VfsWrite::empty();
        how.set(VfsWrite::KILL_SET_ID, write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        how.set(VfsWrite::UNRESERVED_POOL, handle.open_room);
        // The kernel sets the times by SETATTR, before or after the data. A write must not overwrite them.
        how.set(VfsWrite::TIMES_SET_BY_CALLER, self.0.kernel_keeps_times.load(Ordering::Relaxed));
        // From the page cache: the flags may be those of another open file. O_APPEND has no effect: only the
        // kernel knows the end of the file, and it has placed the write.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        how.set(VfsWrite::ALREADY_ACCEPTED, from_cache || flags & O_APPEND != 0);
        how.set(VfsWrite::CACHED_BY_CALLER, from_cache && len >= AROUND_CACHE);
        if !from_cache {
            how.set(VfsWrite::SYNC, flags & O_DSYNC != 0);
            how.set(VfsWrite::DIRECT, flags & O_DIRECT != 0);
        }
        how
    }

    pub(super) fn write_file(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, Handle),
        offset: u64,
        data: &[u8],
        how: VfsWrite,
        from_cache: bool,
    ) -> Reply<u32> {
        let s = &*self.0;
        if data.len() >= LARGE {
            s.caller_affinity.large();
        }
        let node = s.node(ino)?;
        if !from_cache && node.inode.has_lost_data() {
            s.vfs.take_writeback_error(&node.inode, &s.error_cursor(handle)).or_errno()?;
        }
        // From the page cache: the identity may also be that of another caller.
        let cred = if from_cache { Cred::trusted() } else { s.cred_for_set_gid(request, &node) };
        if !from_cache {
            s.data_changes(request, &node);
        }
        let write = || s.vfs.write_with_outcome(&cred, &node.inode, offset, data, how);
        let written = s.telling_of_set_id(&node, write);
        // The kernel ignores how much of its cached data was written: only an error reports a loss.
        let report = if from_cache { WriteOutcome::complete } else { WriteOutcome::count };
        let (end, mut stored_end) = (offset.saturating_add(data.len() as u64), offset);
        if let Ok(outcome) = &written {
            stored_end = offset.saturating_add(outcome.bytes as u64);
            node.note_written(stored_end);
        }
        let written = written.and_then(report);
        if let (true, Err(error)) = (from_cache, &written) {
            s.cannot_store(&node, stored_end..end, error);
        }
        let written = written.or_errno();
        if let (true, Err(error)) = (from_cache, &written) {
            s.report_at_next_write(&node, error.code());
        }
        Ok(written? as u32)
    }

    pub(super) fn release_file(&self, ino: INodeNo, handle: Handle) {
        let Ok(node) = self.0.node(ino) else { return };
        if handle.holds_back {
            node.writer_closes();
        }
        self.0.tell_close(&node, handle);
    }

    pub(super) fn sync(&self, ino: INodeNo, handle: Handle, datasync: bool) -> Reply<()> {
        let node = self.0.node(ino)?;
        let cursor = self.0.error_cursor(handle);
        self.0.vfs.fsync_descriptor(&node.inode, datasync, &cursor).or_errno()
    }

    /// A program closes a descriptor of a file of a server: the next opener, anywhere, must see its writes.
    pub(super) fn flush_file(&self, ino: INodeNo, handle: Handle) -> Reply<()> {
        if handle.ours {
            return Ok(());
        }
        let node = self.0.node(ino)?;
        let cursor = self.0.error_cursor(handle);
        self.0.vfs.flush_descriptor(&node.inode, &cursor).or_errno()
    }

    pub(super) fn sync_dir(&self, ino: INodeNo, datasync: bool) -> Reply<()> {
        let node = self.0.node(ino)?;
        self.0.vfs.fsync(&node.inode, datasync).or_errno()
    }

    pub(super) fn allocate(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Reply<()> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let mode = FallocateMode::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP)?;
        let cred = s.cred_for_room(request, s.cred_for_set_gid(request, &node));
        s.changes(request, Some(&node), &[&node]);
        let mut how = VfsWrite::empty();
        how.set(VfsWrite::TIMES_SET_BY_CALLER, s.kernel_keeps_times.load(Ordering::Relaxed));
        let allocate = || s.vfs.fallocate_as(&cred, &node.inode, mode, offset, length, how);
        s.telling_of_set_id(&node, allocate).or_errno()
    }

    /// Finds data or a hole. The kernel asks with its lock of the inode held and with dirty pages in its
    /// cache. Dirty data looks like a hole here, and the kernel cannot hand it over while the lock is held.
    /// So a file that may have such pages is reported as data from start to end, as lseek(2) allows.
    pub(super) fn seek(&self, request: &Request, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        let s = &*self.0;
        let found = |node: &Node| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            match whence {
                SEEK_DATA => s.vfs.seek_data(&node.inode, offset).or_errno(),
                SEEK_HOLE => s.vfs.seek_hole(&node.inode, offset).or_errno(),
                _ => Err(Errno::EINVAL),
            }
        };
        let node = match s.node(ino) {
            Ok(node) if node.is_held_back() => node,
            node => {
                let found = node.and_then(|node| found(&node));
                return self.answer(request, reply, found, |reply, at| reply.offset(at as i64));
            }
        };
        s.size_held_back(node, move |size| match (size, whence) {
            // As a filesystem without this call: programs then read the whole file. ENOSYS would apply to all
            // files of the mount.
            (None, _) => reply.error(Errno::EINVAL),
            (Some(size), _) if !(0..size as i64).contains(&offset) => reply.error(Errno::ENXIO),
            (Some(_), SEEK_DATA) => reply.offset(offset),
            (Some(size), SEEK_HOLE) => reply.offset(size as i64),
            _ => reply.error(Errno::EINVAL),
        });
    }

    pub(super) fn copy(
        &self,
        request: &Request,
        (ino_in, offset_in): (INodeNo, u64),
        (ino_out, offset_out): (INodeNo, u64),
        len: u64,
    ) -> Reply<u32> {
        let s = &*self.0;
        let len = len.min(COPY_BYTES_MAX);
        let (from, to) = (s.node(ino_in)?, s.node(ino_out)?);
        let cred = s.cred_for_set_gid(request, &to);
        s.changes(request, Some(&to), &[&to]);
        let copied = s.telling_of_set_id(&to, || {
            s.vfs.copy_range(&cred, &from.inode, offset_in, &to.inode, offset_out, len)
        });
        Ok(copied.or_errno()? as u32)
    }
}
