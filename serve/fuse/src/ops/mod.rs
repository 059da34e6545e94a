//! The requests of the kernel. Each is passed to the module of its kind.

mod attributes;
mod dirs;
mod files;
mod init;
mod locks;
mod names;
mod reply;

use crate::change_attr;
use crate::connection::{Connection, Found, Handle, OrErrno};
use crate::convert::{time_set, timestamp};
pub(crate) use dirs::PlusBytes;
use fuser::*;
use ivers_vfs::{CreateSpec, SetAttr};
use names::spec;
use reply::Reply;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Serves the requests of one mount.
pub(crate) struct Ops(pub(crate) Arc<Connection>);

impl Ops {
    fn entry(&self, request: &Request, reply: ReplyEntry, found: Reply<Found>) {
        self.answer(request, reply, found, |reply, Found { attr, generation, ttl }| {
            reply.entry_with_ttls(&ttl, &self.0.ttl, &attr, generation)
        });
    }
}

impl Filesystem for Ops {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.lock_waits.close();
        self.0.flusher.close();
        self.0.nodes.clear();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(request, reply, self.find(request, parent, name));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.0.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.0.heard(request);
        let node = self.0.node(ino).and_then(|node| match self.0.failed_write(&node, fh) {
            Some(error) => Err(error),
            None => Ok(node),
        });
        let shown = node.and_then(|node| {
            let shown = (self.0.current_attr(request, &node)?, self.0.attr_ttl(&node));
            let are_old = node.pages_are_old(&shown.0);
            Ok((shown, are_old.then_some(node)))
        });
        match shown {
            // The kernel asks before it reads the pages, and before it writes, with a lock of the inode.
            Ok(((attr, ttl), Some(node))) => {
                let drop_pages = self.0.drops_pages(&node);
                self.0.flusher.soon(move || {
                    drop_pages();
                    reply.attr(&ttl, &attr);
                });
            }
            shown => self.answer(request, reply, shown, |reply, ((attr, ttl), _)| reply.attr(&ttl, &attr)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(time_set),
            mtime: mtime.map(time_set),
            ctime: ctime.map(timestamp),
            ..SetAttr::default()
        };
        self.answer(request, reply, self.set(request, ino, fh, set), |reply, attr| {
            reply.attr(&self.0.ttl, &attr)
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self
            .0
            .node(ino)
            .and_then(|node| self.0.vfs.read_link(&self.0.opened_by(request), &node.inode).or_errno());
        self.answer(request, reply, target, |reply, target| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(request, reply, self.make_node(request, (parent, name), mode, umask, rdev));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let spec = spec(ivers_vfs::FileType::Directory, mode, umask);
        self.entry(request, reply, self.make_dir(request, parent, name, &spec));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(request, reply, self.remove(request, parent, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(request, reply, self.remove_dir(request, parent, name));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let spec = CreateSpec {
            target: target.as_os_str().as_bytes().into(),
            ..spec(ivers_vfs::FileType::Symlink, 0o777, 0)
        };
        self.entry(request, reply, self.make(request, parent, link_name, &spec));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(request, reply, self.move_name(request, (parent, name), (newparent, newname), flags));
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.entry(request, reply, self.make_link(request, ino, newparent, newname));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.answer(request, reply, self.open_file(request, ino, flags.0), |reply, handle| {
            reply.opened(handle.pack(), self.0.open_flags());
        });
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_file(request, ino, offset, size, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let handle = Handle::unpack(fh);
        let how = self.write_how(handle, write_flags, flags.0, data.len());
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = self.write_file(request, (ino, handle), offset, data, how, from_cache);
        self.answer(request, reply, written, |reply, written| reply.written(written));
    }

    /// Writes back a server's file and releases its locks when a descriptor closes. A local format needs
    /// neither: the kernel has written its pages back and keeps the locks. ENOSYS tells the kernel to skip
    /// this request from then on.
    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flushed = match self.0.vfs.fs().server() {
            Some(_) => {
                let flushed = self.flush_file(ino, Handle::unpack(fh));
                flushed.and(self.unlock_all(ino, lock_owner))
            }
            // The kernel does not ask again.
            None => Err(Errno::ENOSYS),
        };
        self.empty(request, reply, flushed);
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(Err(error)) = lock_owner.map(|owner| self.unlock_all(ino, owner)) {
            log::info!("inode {ino}: cannot release the locks at the last close: {error:?}");
        }
        self.release_file(ino, Handle::unpack(fh));
        self.empty(request, reply, Ok(()));
    }

    fn fsync(&self, request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.0.heard(request);
        let done =
            if Handle::unpack(fh).ours { Ok(()) } else { self.sync(ino, Handle::unpack(fh), datasync) };
        self.empty(request, reply, done);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.0.heard(request);
        self.answer(request, reply, self.open_dir(request, ino), |reply, ()| {
            let flags = self.0.open_flags();
            let caches = if flags.is_empty() { flags } else { flags | FopenFlags::FOPEN_CACHE_DIR };
            reply.opened(FileHandle(0), caches);
        });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.0.heard(request);
        let listed = self.list(&self.0.opened_by(request), ino, offset, &mut reply);
        self.answer(request, reply, listed, |reply, ()| reply.ok());
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.0.heard(request);
        let listed = self.list_with_attributes(&self.0.opened_by(request), ino, offset, &mut reply);
        self.answer(request, reply, listed, |reply, ()| reply.ok());
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.0.heard(request);
        // A flusher only needs the lock of the file.
        let is_ours = self.0.flusher.helper().is_ours(request.pid());
        let done = if is_ours { Ok(()) } else { self.sync_dir(ino, datasync) };
        self.empty(request, reply, done);
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.0.heard(request);
        self.answer(request, reply, self.0.vfs.stat_fs().or_errno(), |reply, f| {
            reply.statfs(
                f.blocks,
                f.blocks_free,
                f.blocks_available,
                f.files,
                f.files_free,
                f.block_size,
                f.name_max,
                f.block_size,
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes();
        self.answer_named(request, ino, name, reply, self.set_named(request, ino, name, value, flags));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes();
        if let Some(asked) = change_attr::asked(name) {
            return self.virtual_xattr(request, ino, asked, size, reply);
        }
        self.answer(request, reply, self.get_named(request, ino, name), |reply, value| {
            reply::value(&value, size, reply)
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(request, reply, self.list_named(request, ino), |reply, list| {
            reply::value(&list, size, reply)
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        self.answer_named(request, ino, name, reply, self.remove_named(request, ino, name));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let s = &*self.0;
        s.heard(request);
        let mask = mask.bits() as u32 & 7;
        let done = s.node(ino).and_then(|node| s.vfs.access(&s.cred(request), &node.inode, mask).or_errno());
        self.empty(request, reply, done);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let spec = spec(ivers_vfs::FileType::Regular, mode, umask);
        let created = self.create_file(request, parent, name, &spec, flags);
        self.answer(request, reply, created, |reply, (found, handle)| {
            let Found { attr, generation, .. } = found;
            reply.created(&self.0.ttl, &attr, generation, handle.pack(), self.0.open_flags());
        });
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let found = self.test_lock(request, ino, lock_owner, (start, end), typ);
        self.answer(request, reply, found, |reply, (start, end, typ, pid)| {
            reply.locked(start, end, typ, pid);
        });
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.set_lock(request, (ino, fh), lock_owner, (start, end), (typ, sleep), reply);
    }

    fn bmap(&self, _request: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        crate::ioctl::serve(&self.0, request, ino, cmd, in_data, out_size, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.empty(request, reply, self.allocate(request, ino, offset, length, mode));
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.seek(request, ino, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.copy(request, (ino_in, offset_in), (ino_out, offset_out), len);
        self.answer(request, reply, copied, |reply, copied| reply.written(copied));
    }
}
