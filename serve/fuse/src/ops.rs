//! The requests of the kernel, one by one.

use crate::convert::{file_attr, file_type, negative_attr, time_set, timestamp};
use crate::cookie::{self, Asked};
use crate::errno::errno;
use crate::flusher::Flush;
use crate::serving::{ENODATA, Handle, O_DIRECT, O_DSYNC, O_TRUNC, OrErrno, Serving};
use fuser::*;
use ivers_vfs::{
    CreateSpec, Cred, Error, FallocateMode, Ino, NameError, RenameFlags as VfsRename, SetAttr,
    WriteFlags as VfsWrite, XattrMode,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type Reply<T> = std::result::Result<T, Errno>;

/// How long one copy_file_range may run before it hands back what it has done.
const COPY_BYTES_MAX: u64 = 64 << 20;

const WRITE_BYTES_MAX: u32 = 1 << 20;

thread_local! {
    /// One buffer a serving thread for READ: never larger than the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves the requests of one mount.
pub(crate) struct Ops(pub(crate) Arc<Serving>);

impl Ops {
    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        spec: &CreateSpec,
    ) -> Reply<(FileAttr, Generation)> {
        let s = &*self.0;
        let dir = s.node(parent)?;
        let (inode, _) =
            s.vfs.create(&s.cred(request), &dir.inode, name.as_bytes(), spec, false).or_errno()?;
        let (_, attr, generation) = s.entry(inode, parent, name.as_bytes())?;
        Ok((attr, generation))
    }

    fn reply_entry(&self, made: Reply<(FileAttr, Generation)>, reply: ReplyEntry) {
        match made {
            Ok((attr, generation)) => reply.entry(&self.0.ttl, &attr, generation),
            Err(error) => reply.error(error),
        }
    }

    fn open_file(&self, request: &Request, ino: INodeNo, flags: i32) -> Reply<Handle> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let cred = s.cred(request);
        s.vfs.access(&cred, &node.inode, Serving::open_mask(flags)).or_errno()?;
        let handle = s.handle(request, flags);
        if flags & O_TRUNC != 0 {
            let set = SetAttr { size: Some(0), kill_priv: cred.uid != 0, ..SetAttr::default() };
            s.vfs.set_attr(&cred, &node.inode, &set).or_errno()?;
            s.drop_capabilities(&node).or_errno()?;
        }
        // Before the reply: from then on the kernel may hold back.
        if handle.holds_back {
            node.writer_opens();
        }
        Ok(handle)
    }

    fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        spec: &CreateSpec,
        flags: i32,
    ) -> Reply<(FileAttr, Generation, Handle)> {
        let s = &*self.0;
        let dir = s.node(parent)?;
        let cred = s.cred(request);
        let (inode, _) = s.vfs.create(&cred, &dir.inode, name.as_bytes(), spec, false).or_errno()?;
        let (node, attr, generation) = s.entry(inode, parent, name.as_bytes())?;
        node.set_no_capabilities(true);
        let handle = s.handle(request, flags);
        if handle.holds_back {
            node.writer_opens();
        }
        Ok((attr, generation, handle))
    }

    fn set(&self, request: &Request, ino: INodeNo, mut set: SetAttr) -> Reply<FileAttr> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let cred = s.cred(request);
        set.kill_priv = set.size.is_some() && cred.uid != 0;
        let kills_capabilities = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        match s.vfs.set_attr(&cred, &node.inode, &set) {
            Ok(_) => {}
            Err(Error::Name(NameError::NotPermitted | NameError::Access))
                if s.is_times_flush(&node, &set) =>
            {
                s.vfs.set_attr(&Cred::trusted(), &node.inode, &set).or_errno()?;
            }
            Err(error) => return Err(errno(error)),
        }
        if kills_capabilities {
            s.drop_capabilities(&node).or_errno()?;
        }
        Ok(s.shown_attr(&node))
    }

    fn do_rename(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (newparent, newname): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Reply<()> {
        let s = &*self.0;
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || flags == known {
            return Err(Errno::EINVAL);
        }
        let mut how = VfsRename::empty();
        how.set(VfsRename::NOREPLACE, flags.contains(RenameFlags::RENAME_NOREPLACE));
        how.set(VfsRename::EXCHANGE, flags.contains(RenameFlags::RENAME_EXCHANGE));
        let (old, new) = (s.node(parent)?, s.node(newparent)?);
        let (name, newname) = (name.as_bytes(), newname.as_bytes());
        s.vfs.rename(&s.cred(request), &old.inode, name, &new.inode, newname, how, false).or_errno()?;
        s.moved(&new, newname);
        if how.contains(VfsRename::EXCHANGE) {
            s.moved(&old, name);
        }
        Ok(())
    }

    /// The entries from a cursor on that a reply of `bytes` can hold, in the smallest form an entry has on the wire.
    fn entries(&self, ino: INodeNo, offset: u64, bytes: usize, entry_bytes: usize) -> Reply<Vec<Entry>> {
        let s = &*self.0;
        let node = s.node(ino)?;
        let mut entries = Vec::new();
        let mut used = 0;
        s.vfs
            .readdir(&node.inode, offset, &mut |entry| {
                used += (entry_bytes + entry.name.len()).next_multiple_of(8);
                entries.push(Entry {
                    ino: entry.ino,
                    name: entry.name.into(),
                    kind: entry.kind.map_or(fuser::FileType::RegularFile, file_type),
                    next: entry.next,
                });
                if used >= bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .or_errno()?;
        Ok(entries)
    }

    fn cookie_attribute(&self, ino: INodeNo, asked: Asked, size: u32, reply: ReplyXattr) {
        let s = &self.0;
        let node = match s.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let none = Errno::from_i32(ENODATA);
        match asked {
            Asked::Semantics => reply_value(cookie::semantics(&s.vfs).as_bytes(), size, reply),
            Asked::Stats => reply_value(cookie::stats(&s.vfs).as_bytes(), size, reply),
            Asked::Mount => reply_value(cookie::mount(&s.vfs).as_bytes(), size, reply),
            Asked::Generation => reply_value(node.inode.generation.to_string().as_bytes(), size, reply),
            Asked::Unknown => reply.error(none),
            Asked::Change | Asked::Stored if cookie::missing(&s.vfs).is_some() => reply.error(none),
            // A caller that only wants room is not one who looks: the longest number there is.
            Asked::Change if size == 0 => reply.size(cookie::DECIMAL_MAX),
            Asked::Change => s.query(node, move |change| match change {
                Some(change) => reply_value(change.to_string().as_bytes(), size, reply),
                None => reply.error(none),
            }),
            Asked::Stored => {
                reply_value(s.vfs.stored_version(&node.inode).to_string().as_bytes(), size, reply)
            }
        }
    }
}

struct Entry {
    ino: Ino,
    name: Box<[u8]>,
    kind: fuser::FileType,
    next: u64,
}

fn reply_value(value: &[u8], size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

fn reply_empty(result: Reply<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn spec(kind: ivers_vfs::FileType, mode: u32, umask: u32) -> CreateSpec {
    CreateSpec { kind, perm: mode & 0o7777, rdev: 0, target: Vec::new(), umask: umask & 0o777 }
}

impl Filesystem for Ops {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let s = &self.0;
        let mut wanted = InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if s.options.kernel_checks() {
            // Also makes the kernel check modes; without that it would be wrong to take it.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if s.options.writeback_cache {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let offered = config.capabilities();
        s.set_no_opendir(offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT));
        if let Err(missing) = config.add_capabilities(wanted & offered) {
            log::warn!("the kernel takes back {missing:?}");
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        let granule = u64::from(s.vfs.info().time_granularity_ns).clamp(1, 1_000_000_000);
        // Refused unless a power of ten: then the VFS does the cutting alone.
        let _ = config.set_time_granularity(Duration::from_nanos(granule));
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.flusher.close();
        self.0.nodes.clear();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let s = &*self.0;
        let name = name.as_bytes();
        let found = match s.node(parent) {
            Ok(dir) if name == b"." => Ok(dir.inode.clone()),
            Ok(dir) => s.vfs.lookup(&s.cred(request), &dir.inode, name),
            // A file handle of an inode that the kernel has forgotten (open_by_handle_at, export).
            Err(_) if name == b"." => s.vfs.get(Ino(s.nodes.ino(parent.0))),
            Err(error) => return reply.error(error),
        };
        match found {
            Ok(inode) => match s.entry(inode, parent, name) {
                Ok((_, attr, generation)) => reply.entry(&s.ttl, &attr, generation),
                Err(error) => reply.error(error),
            },
            Err(Error::Name(NameError::NotFound)) if !s.ttl.is_zero() => {
                reply.entry(&s.ttl, &negative_attr(), Generation(0));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.0.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.node(ino) {
            Ok(node) => reply.attr(&self.0.ttl, &self.0.shown_attr(&node)),
            Err(error) => reply.error(error),
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
        _fh: Option<FileHandle>,
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
        match self.set(request, ino, set) {
            Ok(attr) => reply.attr(&self.0.ttl, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.0.node(ino).and_then(|node| self.0.vfs.read_link(&node.inode).or_errno()) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
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
        let made = match ivers_vfs::FileType::from_mode(mode) {
            Some(kind) => self.make(request, parent, name, &CreateSpec { rdev, ..spec(kind, mode, umask) }),
            None => Err(Errno::EINVAL),
        };
        self.reply_entry(made, reply);
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
        self.reply_entry(self.make(request, parent, name, &spec), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let s = &*self.0;
        let done = s.node(parent).and_then(|dir| {
            s.vfs.unlink(&s.cred(request), &dir.inode, name.as_bytes(), false).or_errno().map(drop)
        });
        reply_empty(done, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let s = &*self.0;
        let done = s.node(parent).and_then(|dir| {
            s.vfs.rmdir(&s.cred(request), &dir.inode, name.as_bytes(), false).or_errno().map(drop)
        });
        reply_empty(done, reply);
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
        self.reply_entry(self.make(request, parent, link_name, &spec), reply);
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
        reply_empty(self.do_rename(request, (parent, name), (newparent, newname), flags), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let s = &*self.0;
        let linked = || {
            let (node, dir) = (s.node(ino)?, s.node(newparent)?);
            s.vfs.link(&s.cred(request), &node.inode, &dir.inode, newname.as_bytes(), false).or_errno()?;
            let (_, attr, generation) = s.entry(node.inode.clone(), newparent, newname.as_bytes())?;
            Ok((attr, generation))
        };
        self.reply_entry(linked(), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(request, ino, flags.0) {
            Ok(handle) => reply.opened(handle.pack(), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let node = match self.0.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.0.vfs.read(&node.inode, offset, &mut buffer[..size]) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let s = &*self.0;
        let mut how = VfsWrite::empty();
        how.set(VfsWrite::KILL_PRIV, write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        // From the page cache: whose flags and identity these are is a guess. O_APPEND needs nothing: only the kernel
        // moves the end of the file, and it has placed the write.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if !from_cache {
            how.set(VfsWrite::SYNC, flags.0 & O_DSYNC != 0);
            how.set(VfsWrite::DIRECT, flags.0 & O_DIRECT != 0);
        }
        let cred = if from_cache { Cred::trusted() } else { s.cred(request) };
        let written = s.node(ino).and_then(|node| {
            let written = s.vfs.write(&cred, &node.inode, offset, data, how).or_errno()?;
            s.drop_capabilities(&node).or_errno()?;
            Ok(written)
        });
        match written {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(error),
        }
    }

    /// Nothing is ours to do when a descriptor closes: the kernel has written its pages back before it asks, and keeps
    /// locks itself. ENOSYS tells it to save the round trip from now on.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if Handle::unpack(fh).holds_back
            && let Ok(node) = self.0.node(ino)
        {
            node.writer_closes();
        }
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        if Handle::unpack(fh).ours {
            return reply.ok();
        }
        let done = self.0.node(ino).and_then(|node| self.0.vfs.fsync(&node.inode, datasync).or_errno());
        reply_empty(done, reply);
    }

    /// Directories need no handle: reading goes on from a cursor. ENOSYS tells the kernel not to ask again, where it
    /// understands that and checks permissions itself.
    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let s = &*self.0;
        if s.no_opendir.load(std::sync::atomic::Ordering::Relaxed) {
            return reply.error(Errno::ENOSYS);
        }
        let allowed = s.node(ino).and_then(|node| s.vfs.access(&s.cred(request), &node.inode, 4).or_errno());
        match allowed {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        // fuser keeps the size of the reply to itself; the kernel asks for a page or, lately, more.
        match self.entries(ino, offset, 32 << 10, 24) {
            Ok(entries) => {
                for entry in entries {
                    let id = self.0.nodes.id(entry.ino.0);
                    if reply.add(INodeNo(id), entry.next, entry.kind, OsStr::from_bytes(&entry.name)) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let s = &*self.0;
        let entries = match self.entries(ino, offset, 4096, 152) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for entry in entries {
            let name = OsStr::from_bytes(&entry.name);
            // An entry whose inode is damaged is shown all the same; asking for it brings the error.
            let Ok(inode) = s.vfs.get(entry.ino) else {
                let mut attr = negative_attr();
                attr.kind = entry.kind;
                if reply.add(INodeNo(0), entry.next, name, &Duration::ZERO, &attr, Generation(0)) {
                    break;
                }
                continue;
            };
            let generation = Generation(u64::from(inode.generation));
            let id = s.nodes.id(inode.ino.0);
            let attr = file_attr(id, &s.vfs.stat(&inode), s.vfs.info().block_size.max(4096));
            // The kernel counts no lookup for these two.
            let is_dot = matches!(&*entry.name, b"." | b"..");
            if !is_dot && s.nodes.remember(inode, ino.0, &entry.name).is_none() {
                break;
            }
            if reply.add(INodeNo(id), entry.next, name, &s.ttl, &attr, generation) {
                // It did not fit: the kernel never hears of it.
                if !is_dot {
                    s.nodes.forget(id, 1);
                }
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let done = self.0.node(ino).and_then(|node| self.0.vfs.fsync(&node.inode, datasync).or_errno());
        reply_empty(done, reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.0.vfs.stat_fs() {
            Ok(f) => reply.statfs(
                f.blocks,
                f.blocks_free,
                f.blocks_available,
                f.files,
                f.files_free,
                f.block_size,
                f.name_max,
                f.block_size,
            ),
            Err(error) => reply.error(errno(error)),
        }
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
        let s = &*self.0;
        let name = name.as_bytes();
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        if cookie::asked(name).is_some() {
            return reply.error(Errno::EPERM);
        }
        let done = s.node(ino).and_then(|node| {
            if name == b"security.capability" {
                node.set_no_capabilities(false);
            }
            s.vfs.set_xattr(&s.cred(request), &node.inode, name, value, mode).or_errno()?;
            if name == b"system.posix_acl_access" {
                s.acl_kills_set_gid(request, &node).or_errno()?;
            }
            Ok(())
        });
        reply_empty(done, reply);
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes();
        if let Some(asked) = cookie::asked(name) {
            return self.cookie_attribute(ino, asked, size, reply);
        }
        let s = &*self.0;
        let value =
            s.node(ino).and_then(|node| s.vfs.get_xattr(&s.cred(request), &node.inode, name).or_errno());
        match value {
            Ok(value) => reply_value(&value, size, reply),
            Err(error) => reply.error(error),
        }
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let s = &*self.0;
        match s.node(ino).and_then(|node| s.vfs.list_xattr(&s.cred(request), &node.inode).or_errno()) {
            Ok(names) => {
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                reply_value(&list, size, reply);
            }
            Err(error) => reply.error(error),
        }
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let s = &*self.0;
        let name = name.as_bytes();
        if cookie::asked(name).is_some() {
            return reply.error(Errno::EPERM);
        }
        let done =
            s.node(ino).and_then(|node| s.vfs.remove_xattr(&s.cred(request), &node.inode, name).or_errno());
        reply_empty(done, reply);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let s = &*self.0;
        let mask = mask.bits() as u32 & 7;
        let done = s.node(ino).and_then(|node| s.vfs.access(&s.cred(request), &node.inode, mask).or_errno());
        reply_empty(done, reply);
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
        match self.create_file(request, parent, name, &spec, flags) {
            Ok((attr, generation, handle)) => {
                reply.created(&self.0.ttl, &attr, generation, handle.pack(), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(error),
        }
    }

    // Locks are the kernel's own as long as nobody asks for FUSE_POSIX_LOCKS.
    fn getlk(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _typ: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        reply.error(Errno::ENOSYS);
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
        let s = &*self.0;
        let done = s.node(ino).and_then(|node| {
            let mode = FallocateMode::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP)?;
            s.vfs.fallocate(&s.cred(request), &node.inode, mode, offset, length).or_errno()?;
            s.drop_capabilities(&node).or_errno()
        });
        reply_empty(done, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let node = match self.0.node(ino) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let serving = self.0.clone();
        let seek = move |node: &crate::nodes::Node| {
            let found = match whence {
                SEEK_DATA => serving.vfs.seek_data(&node.inode, offset),
                SEEK_HOLE => serving.vfs.seek_hole(&node.inode, offset),
                _ => return reply.error(Errno::EINVAL),
            };
            match found {
                Ok(at) => reply.offset(at as i64),
                Err(error) => reply.error(errno(error)),
            }
        };
        // The kernel asks with dirty pages still in its cache: where they lie we would say "hole". It holds the inode's
        // lock while it asks, which fsync would wait for.
        if node.is_held_back() {
            self.0.flusher.flush(node.clone(), Flush::Mount, move |_| seek(&node));
        } else {
            seek(&node);
        }
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
        let s = &*self.0;
        let len = len.min(COPY_BYTES_MAX);
        let copied = (|| -> Reply<u64> {
            let (from, to) = (s.node(ino_in)?, s.node(ino_out)?);
            let cred = s.cred(request);
            let copied =
                s.vfs.copy_range(&cred, &from.inode, offset_in, &to.inode, offset_out, len).or_errno()?;
            s.drop_capabilities(&to).or_errno()?;
            Ok(copied)
        })();
        match copied {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(error),
        }
    }
}
