//! What happens to the contents of a file, and to its descriptors.

use super::Ops;
use super::reply::Reply;
use crate::company::LARGE;
use crate::nodes::Node;
use crate::serving::{Handle, O_ACCMODE, O_APPEND, O_DIRECT, O_DSYNC, O_RDONLY, O_TRUNC, OrErrno, Serving};
use fuser::*;
use ivers_vfs::{Cred, FallocateMode, InodeFlags, SetAttr, WriteFlags as VfsWrite};
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// How long one copy_file_range may run before it hands back what it has done.
const COPY_BYTES_MAX: u64 = 64 << 20;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// One buffer a serving thread for READ: never larger than the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Ops {
    pub(super) fn open_file(&self, request: &Request, ino: INodeNo, flags: i32) -> Reply<Handle> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let cred = s.cred_for_set_gid(request, &node);
        s.vfs.access(&cred, &node.inode, Serving::open_mask(flags)).or_errno()?;
        // The writes themselves come from the kernel's cache, when it is too late to refuse them.
        let overwrites = flags & O_ACCMODE != O_RDONLY && (flags & O_APPEND == 0 || flags & O_TRUNC != 0);
        if overwrites && s.vfs.stat(&node.inode).flags.contains(InodeFlags::APPEND) {
            return Err(Errno::EPERM);
        }
        let handle = s.handle(request, &cred, flags);
        s.tell_open(&cred, &node, handle)?;
        s.heard(request);
        if flags & O_TRUNC != 0 {
            let set = SetAttr { size: Some(0), kill_priv: cred.uid != 0, ..SetAttr::default() };
            let emptied = s.telling_of_set_id(&node, || {
                s.vfs.set_attr(&cred, &node.inode, &set)?;
                s.vfs.drop_capability(&node.inode)
            });
            if let Err(error) = emptied.or_errno() {
                s.tell_close(&node, handle);
                return Err(error);
            }
            node.agrees_again();
        }
        // Before the reply: from then on the kernel may hold back.
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
                self.0.company.large();
            }
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.0.vfs.read(&node.inode, offset, &mut buffer[..size]).or_errno();
            self.answer(request, reply, read, |reply, read| reply.data(&buffer[..read]));
        });
    }

    /// How a WRITE with these flags is to be done.
    pub(super) fn write_how(&self, handle: Handle, write_flags: WriteFlags, flags: i32) -> VfsWrite {
        let mut how = VfsWrite::empty();
        how.set(VfsWrite::KILL_PRIV, write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        how.set(VfsWrite::OPEN_ROOM, handle.open_room);
        // Its times come by SETATTR, before or after the data: they must not be moved past those.
        how.set(VfsWrite::KEEP_TIMES, self.0.kernel_keeps_times.load(Ordering::Relaxed));
        // From the page cache: whose flags these are is a guess. O_APPEND moves nothing: only the kernel knows the end of the
        // file, and it has placed the write.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        how.set(VfsWrite::ACCEPTED, from_cache || flags & O_APPEND != 0);
        if !from_cache {
            how.set(VfsWrite::SYNC, flags & O_DSYNC != 0);
            how.set(VfsWrite::DIRECT, flags & O_DIRECT != 0);
        }
        how
    }

    pub(super) fn write_file(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        how: VfsWrite,
        from_cache: bool,
    ) -> Reply<u32> {
        let s = &*self.0;
        if data.len() >= LARGE {
            s.company.large();
        }
        let node = s.node(ino)?;
        // From the page cache: whose identity this is is a guess too.
        let cred = if from_cache { Cred::trusted() } else { s.cred_for_set_gid(request, &node) };
        if !from_cache {
            s.data_changes(request, &node);
        }
        let mut written = s.telling_of_set_id(&node, || s.vfs.write(&cred, &node.inode, offset, data, how));
        // The kernel does not look at how much of its cache's data was written: only an error tells it that some was not.
        while let (true, Ok(done @ 1..)) = (from_cache, &written) {
            let Some(rest) = data.get(*done..).filter(|rest| !rest.is_empty()) else { break };
            let done = *done;
            written =
                s.vfs.write(&cred, &node.inode, offset + done as u64, rest, how).map(|more| done + more);
        }
        let written = written.or_errno();
        if let (true, Err(error)) = (from_cache, &written) {
            s.cannot_store(&node);
            s.report_at_next_write(&node, error.code());
        }
        let written = written?;
        // By whomever (FUSE_HANDLE_KILLPRIV_V2); set-id bits go only if the kernel says so.
        s.vfs.drop_capability(&node.inode).or_errno()?;
        Ok(written as u32)
    }

    pub(super) fn release_file(&self, ino: INodeNo, handle: Handle) {
        let Ok(node) = self.0.node(ino) else { return };
        if handle.holds_back {
            node.writer_closes();
        }
        self.0.tell_close(&node, handle);
    }

    pub(super) fn sync(&self, ino: INodeNo, datasync: bool) -> Reply<()> {
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
        s.telling_of_set_id(&node, || s.vfs.fallocate(&cred, &node.inode, mode, offset, length))
            .or_errno()?;
        s.vfs.drop_capability(&node.inode).or_errno()
    }

    /// Where data or a hole begins. The kernel asks with its lock of the inode held, and with dirty pages still in its cache: what they cover
    /// looks like a hole from here, and nothing makes it hand them over while the lock is held. So a file that may have such pages is data
    /// from end to end, as the call allows (lseek(2)).
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
            // As from a filesystem that has no such call: programs read all of the file instead. ENOSYS would be for all files of the mount.
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
        let copied = copied.or_errno()?;
        s.vfs.drop_capability(&to.inode).or_errno()?;
        Ok(copied as u32)
    }
}
