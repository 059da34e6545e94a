//! What the requests have in common: nodes, identities, attributes, and the queries that may have to wait for a flush.

use crate::company::{Company, Then};
use crate::convert::file_attr;
use crate::errno::errno;
use crate::flusher::Flusher;
use crate::nodes::{Node, Nodes, ROOT};
use crate::options::FuseOptions;
use crate::session::Server;
use crate::unfinished::{Caller, Callers, Noted, Unfinished};
use fuser::{Errno, FileAttr, FileHandle, Generation, INodeNo, Notifier, ReplyIoctl, Request};
use ivers_linger::{Linger, Rhythm};
use ivers_vfs::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Nobody but this mount changes the filesystem, so what the kernel knows stays true.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a query waits for what the kernel holds back of a file. What takes longer, on a slow disk say, costs a number that is unlike all
/// before, which is never wrong.
const HAND_OVER: Duration = Duration::from_secs(30);
/// And for a lock under which the kernel digests an answer, or a program does something else with the inode.
const DIGEST: Duration = Duration::from_secs(5);

/// So many free bytes are no full filesystem any more: the largest request takes one MiB.
const ROOM_AGAIN: u64 = 2 << 20;

const ESTALE: i32 = 116;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const O_TRUNC: i32 = 0o1000;
pub(crate) const O_APPEND: i32 = 0o2000;
pub(crate) const O_DSYNC: i32 = 0o10000;
pub(crate) const O_DIRECT: i32 = 0o40000;
pub(crate) const O_ACCMODE: i32 = 3;
pub(crate) const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
/// `__FMODE_EXEC` of the kernel, among the flags of an OPEN for execve(2).
const FMODE_EXEC: i32 = 0o40;

/// An open file is known by three facts, which its handle carries: no table to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Counted as one through which the kernel may hold back.
    pub(crate) holds_back: bool,
    /// Opened by a thread of ours to flush the file: its FSYNC commits nothing.
    pub(crate) ours: bool,
    /// Opened by somebody who may not use the reserve: who a write comes from cannot be told later.
    pub(crate) open_room: bool,
    /// What it was opened for, as the VFS was told; nothing, if it was not.
    pub(crate) mode: OpenMode,
}

/// Where in a handle the mode begins.
const MODE_SHIFT: u32 = 8;

impl Handle {
    pub(crate) fn pack(self) -> FileHandle {
        let facts = u64::from(self.holds_back) | u64::from(self.ours) << 1 | u64::from(self.open_room) << 2;
        FileHandle(facts | u64::from(self.mode.bits()) << MODE_SHIFT)
    }

    pub(crate) fn unpack(handle: FileHandle) -> Self {
        let is = |bit: u64| handle.0 & bit != 0;
        let mode = OpenMode::from_bits_truncate((handle.0 >> MODE_SHIFT) as u32);
        Self { holds_back: is(1), ours: is(2), open_room: is(4), mode }
    }
}

/// What the kernel is told of an inode that it learns by a name.
pub(crate) struct Found {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
    /// How long it may trust the attributes. A name holds until it is told otherwise.
    pub(crate) ttl: Duration,
}

/// Everything that serves one mount.
pub(crate) struct Serving {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) flusher: Flusher,
    pub(crate) options: FuseOptions,
    pub(crate) server: Server,
    pub(crate) company: Arc<Company>,
    callers: Callers,
    linger: Linger,
    rhythm: Rhythm,
    /// Where requests come from. Until it is known nobody lingers.
    pub(crate) device: OnceLock<OwnedFd>,
    /// The kernel takes ENOSYS at OPENDIR for "no need to ask".
    pub(crate) no_opendir: AtomicBool,
    /// The kernel keeps the times of regular files and hands them over by SETATTR.
    pub(crate) kernel_keeps_times: AtomicBool,
    mounter: u32,
    block_size: u32,
    pub(crate) ttl: Duration,
    /// To tell the kernel what changed behind its back.
    pub(crate) kernel: OnceLock<Notifier>,
}

impl Serving {
    pub(crate) fn new(
        vfs: Arc<Vfs>,
        nodes: Arc<Nodes>,
        flusher: Flusher,
        company: Arc<Company>,
        options: FuseOptions,
        server: Server,
    ) -> Self {
        // The kernel wants a power of two here.
        let block_size = vfs.info().block_size.max(4096).checked_next_power_of_two().unwrap_or(4096);
        // Where we check, every user's lookups must reach us, or one would walk through another's directories.
        let shared_and_unchecked = options.allow_other && !options.kernel_checks();
        // Where several spellings are one name, what is done to one of them is done to others that the kernel would not ask about.
        let asks_each_time = shared_and_unchecked || vfs.fs().names_alias();
        Self {
            vfs,
            nodes,
            flusher,
            no_opendir: AtomicBool::new(false),
            kernel_keeps_times: AtomicBool::new(false),
            mounter: rustix::process::geteuid().as_raw(),
            block_size,
            ttl: if asks_each_time { Duration::ZERO } else { FOREVER },
            company,
            callers: Callers::new(),
            linger: Linger::new(options.longest_linger()),
            rhythm: Rhythm::default(),
            device: OnceLock::new(),
            options,
            server,
            kernel: OnceLock::new(),
        }
    }

    /// Send an answer to `caller`, and look out for the next request, unless that has been in vain of late.
    pub(crate) fn answer(&self, caller: u32, send: impl FnOnce()) {
        let device = self.device.get();
        if self.company.answer(caller, device, send) == Then::GoOn {
            return;
        }
        if let Some(device) = device {
            self.linger.until_readable(device, &self.rhythm);
        }
    }

    pub(crate) fn node(&self, id: INodeNo) -> std::result::Result<Arc<Node>, Errno> {
        self.nodes.get(id.0).ok_or(Errno::from_i32(ESTALE))
    }

    /// On whose behalf a request comes.
    pub(crate) fn cred(&self, request: &Request) -> Cred {
        let (uid, gid) = (request.uid(), request.gid());
        if self.options.kernel_checks() {
            return Cred { uid, gid, groups: Vec::new(), checked: true };
        }
        if self.options.fakeroot && uid == self.mounter {
            return Cred::root();
        }
        Cred { uid, gid, groups: self.groups_of(request), checked: false }
    }

    pub(crate) fn groups_of(&self, request: &Request) -> Vec<u32> {
        self.flusher.outside().groups_of(request.pid())
    }

    pub(crate) fn attr(&self, node: &Node, attr: &Attr) -> FileAttr {
        file_attr(node.id, attr, self.block_size)
    }

    /// Attributes for GETATTR, where the root may show its real number.
    pub(crate) fn shown_attr(&self, node: &Node) -> FileAttr {
        let mut shown = self.attr(node, &self.vfs.stat(&node.inode));
        if node.id == ROOT {
            shown.ino = INodeNo(self.nodes.ino(ROOT));
        }
        shown
    }

    /// Count a lookup and describe what was found.
    pub(crate) fn entry(
        &self,
        inode: InodeRef,
        parent: INodeNo,
        name: &[u8],
    ) -> std::result::Result<(Arc<Node>, Found), Errno> {
        let generation = Generation(u64::from(inode.generation));
        let node = self.nodes.remember(inode, parent.0, name).ok_or(Errno::EIO)?;
        let attr = self.attr(&node, &self.vfs.stat(&node.inode));
        let ttl = self.attr_ttl(&node);
        Ok((node, Found { attr, generation, ttl }))
    }

    /// What an OPEN with these flags holds, on behalf of `cred`.
    pub(crate) fn handle(&self, request: &Request, cred: &Cred, flags: i32) -> Handle {
        let holds_back = match flags & O_ACCMODE {
            O_RDONLY => false,
            // Without the write-back cache only mappings hold back, and those need O_RDWR.
            O_WRONLY => self.options.writeback_cache,
            _ => true,
        };
        let ours = self.flusher.outside().is_ours(request.pid());
        Handle {
            holds_back,
            ours,
            // A flush is no use of the file.
            mode: if ours { OpenMode::empty() } else { Self::open_mode(flags) },
            open_room: flags & O_ACCMODE != O_RDONLY
                && self.vfs.room(&self.cred_for_room(request, cred.clone())) == Room::Open,
        }
    }

    /// What [`Serving::cred`] gave, with the groups also where the kernel checks permissions, if a group may use the reserve.
    pub(crate) fn cred_for_room(&self, request: &Request, cred: Cred) -> Cred {
        match self.vfs.info().reserve {
            Some(Reserve { gid: Some(_), .. }) if cred.checked => {
                Cred { groups: self.groups_of(request), ..cred }
            }
            _ => cred,
        }
    }

    /// The same for who changes data or an access control list: whether he is in the file's group decides about set-gid. The kernel has a flag for that where a
    /// list is set, but the wire format that fuser speaks has not.
    pub(crate) fn cred_for_set_gid(&self, request: &Request, node: &Node) -> Cred {
        let cred = self.cred(request);
        let depends = cred.checked && cred.uid != 0 && node.inode.with_attr(|attr| attr.perm & 0o2000 != 0);
        if depends { Cred { groups: self.groups_of(request), ..cred } } else { cred }
    }

    /// The permissions an OPEN asks for, as [`Vfs::access`] counts them.
    pub(crate) fn open_mask(flags: i32) -> u32 {
        let mask = match flags & O_ACCMODE {
            O_RDONLY => 4,
            O_WRONLY => 2,
            _ => 6,
        };
        if flags & O_TRUNC != 0 { mask | 2 } else { mask }
    }

    /// The VFS hears of an OPEN; it may refuse it.
    pub(crate) fn tell_open(
        &self,
        cred: &Cred,
        node: &Node,
        handle: Handle,
    ) -> std::result::Result<(), Errno> {
        if handle.mode.is_empty() {
            return Ok(());
        }
        self.vfs.open(cred, &node.inode, handle.mode).or_errno()
    }

    /// And of its end.
    pub(crate) fn tell_close(&self, node: &Node, handle: Handle) {
        if !handle.mode.is_empty() {
            self.vfs.close(&node.inode, handle.mode);
        }
    }

    fn open_mode(flags: i32) -> OpenMode {
        let mut mode = match flags & O_ACCMODE {
            O_RDONLY => OpenMode::READ,
            O_WRONLY => OpenMode::WRITE,
            _ => OpenMode::READ | OpenMode::WRITE,
        };
        mode.set(OpenMode::EXECUTE, flags & FMODE_EXEC != 0);
        mode.set(OpenMode::APPEND, flags & O_APPEND != 0);
        if flags & O_TRUNC != 0 {
            mode |= OpenMode::WRITE;
        }
        mode
    }

    /// The thread behind a request has begun a system call. Every request says so but those that a system call may make behind a change
    /// which it has asked for before.
    pub(crate) fn heard(&self, request: &Request) {
        if self.options.strict_queries {
            self.callers.heard(request.pid());
        }
    }

    /// Something about these inodes is about to change, and the kernel will show it before it lets go of its lock of `lock`, which nobody else has
    /// meanwhile; `None`: it may do so without one. Before the change is made.
    pub(crate) fn changes(&self, request: &Request, lock: Option<&Node>, of: &[&Node]) {
        if self.options.strict_queries {
            self.note(self.callers.heard(request.pid()), lock, of);
        }
    }

    /// The same for data that is written, where a system call makes several requests.
    pub(crate) fn data_changes(&self, request: &Request, of: &Node) {
        if self.options.strict_queries {
            self.note(self.callers.in_one_call(request.pid()), Some(of), &[of]);
        }
    }

    fn note(&self, caller: Caller, lock: Option<&Node>, of: &[&Node]) {
        let change = Unfinished { caller, lock: lock.map(|lock| lock.id), takes_link: false };
        of.iter().for_each(|node| node.changes.note(&self.callers, change));
    }

    /// The same where a name is about to come into a directory.
    pub(crate) fn names_change(&self, request: &Request, dir: &Node, of: &[&Node]) {
        self.drop_listing(dir);
        self.changes(request, Some(dir), of);
    }

    /// Takes away what the kernel has kept of a listing, before names come or go. By itself it looks at the directory's changes only where a reader begins: one
    /// that has begun with us would go on in what another reader had left there before the change. To be called while the kernel has locked the directory for
    /// that change, so that nobody is reading it.
    pub(crate) fn drop_listing(&self, dir: &Node) {
        if dir.take_listed()
            && let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(INodeNo(dir.id), 0, 0)
        {
            log::debug!("the kernel keeps a listing of inode {}: {error}", dir.inode.ino);
        }
    }

    /// The same where this file, if it is known, is about to lose a name.
    pub(crate) fn name_goes(&self, request: &Request, lock: &Node, of: &[&Node], file: Option<&Node>) {
        self.drop_listing(lock);
        if self.options.strict_queries {
            let caller = self.callers.heard(request.pid());
            self.note(caller, Some(lock), of);
            let change = Unfinished { caller, lock: Some(lock.id), takes_link: true };
            file.inspect(|file| file.changes.note(&self.callers, change));
        }
    }

    /// The file behind a name that is about to change.
    pub(crate) fn named(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        if !self.options.strict_queries {
            return None;
        }
        self.node_behind(dir, name)
    }

    /// Whether the kernel may not show yet what the number of a node counts.
    pub(crate) fn has_unfinished(&self, node: &Node) -> bool {
        !node.changes.unfinished(&self.callers).is_empty()
    }

    /// Answer a query of the change attribute: at once, or after the kernel has handed over what it holds back, and shows all that the answer
    /// counts; or when that has taken too long.
    pub(crate) fn query(
        self: &Arc<Self>,
        node: Arc<Node>,
        answer: impl FnOnce(Option<u64>) + Send + 'static,
    ) {
        if !node.is_held_back() || self.vfs.no_cookie().is_some() {
            return self.query_flushed(node, answer);
        }
        let serving = self.clone();
        self.flusher.flush(node.clone(), Instant::now() + HAND_OVER, move |flushed| {
            if flushed {
                serving.query_flushed(node, answer);
            } else {
                answer(serving.ahead(&node));
            }
        });
    }

    fn query_flushed(self: &Arc<Self>, node: Arc<Node>, answer: impl FnOnce(Option<u64>) + Send + 'static) {
        if node.has_diverged() {
            return answer(self.ahead(&node));
        }
        // The number first: every change that it counts was noted before.
        let change = node.changes.number(|| self.vfs.change(&node.inode));
        let unfinished = node.changes.unfinished(&self.callers);
        if unfinished.is_empty() {
            return answer(change);
        }
        let serving = self.clone();
        self.wait_for_locks(node.id, unfinished.clone(), Instant::now() + DIGEST, move |were_free| {
            if were_free || serving.have_ended(&unfinished) {
                node.changes.are_over(&unfinished);
                answer(change);
            } else {
                answer(serving.ahead(&node));
            }
        });
    }

    /// Whether all these changes are over because their threads are.
    fn have_ended(&self, changes: &[Noted]) -> bool {
        changes.iter().all(|noted| self.flusher.outside().has_ended(noted.change.caller.thread))
    }

    /// The answer where it is not known what the kernel shows.
    fn ahead(&self, node: &Node) -> Option<u64> {
        node.changes.number_ahead(|| self.vfs.force_change(&node.inode, Touch::Nothing))
    }

    /// Until the lock of each of these changes of a node has been free. Told whether that was seen of all of them in time.
    fn wait_for_locks(
        self: &Arc<Self>,
        of: u64,
        mut changes: Vec<Noted>,
        until: Instant,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        let Some(Noted { change, .. }) = changes.pop() else { return then(true) };
        let Some(lock) = change.lock else { return then(false) };
        let serving = self.clone();
        let then: Box<dyn FnOnce(bool) + Send> = Box::new(then);
        match self.nodes.get(lock) {
            // Nobody holds the lock of an inode that the kernel has forgotten; nor, because of names, of a directory that it has removed. That
            // itself may be changed still.
            None => self.wait_for_locks(of, changes, until, then),
            Some(dir)
                if dir.id != of && dir.inode.kind == FileType::Directory && dir.inode.attr().nlink == 0 =>
            {
                self.wait_for_locks(of, changes, until, then)
            }
            Some(locked) => self.flusher.flush(locked, until, move |flushed| {
                if flushed { serving.wait_for_locks(of, changes, until, then) } else { then(false) }
            }),
        }
    }

    /// How large a file is whose data the kernel may hold back, told to one who holds the kernel's lock of it: a flush would wait for that.
    pub(crate) fn size_held_back(&self, node: Arc<Node>, then: impl FnOnce(Option<u64>) + Send + 'static) {
        if self.options.writeback_cache {
            self.flusher.size_held_back(node, then);
        } else {
            then(Some(node.inode.size()));
        }
    }

    /// A call of the format's own that changes a file's data behind the kernel's back: it hands over what mappings hold back before,
    /// and drops its pages afterwards. On the flushers' thread: a serving thread must not wait for either.
    pub(crate) fn format_call(self: &Arc<Self>, cred: Cred, node: Arc<Node>, number: u32, reply: ReplyIoctl) {
        if self.options.writeback_cache {
            // Such a kernel takes no size of a file from us, ever.
            log::warn!("ioctl {number:#x} changes sizes: mount with no_writeback_cache for it");
            return reply.error(Errno::EOPNOTSUPP);
        }
        let serving = self.clone();
        self.flusher.flush(node.clone(), Instant::now() + HAND_OVER, move |flushed| {
            if !flushed {
                // In use, without a name, or not ours to open: what the kernel holds back would come after the call.
                return reply.error(Errno::EBUSY);
            }
            let done = serving.vfs.format_call(&cred, &node.inode, number);
            if let Some(kernel) = serving.kernel.get()
                && let Err(error) = kernel.inval_inode(INodeNo(node.id), 0, 0)
            {
                log::warn!("the kernel keeps old pages of inode {}: {error}", node.inode.ino);
            }
            match done {
                Ok(()) => reply.ioctl(0, &[]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Data that the kernel shows since a program wrote them cannot be stored, and will be gone when the kernel drops them: no number counts
    /// them, nor that. So the file has none that stays, until it is cut to nothing or the kernel forgets it.
    pub(crate) fn cannot_store(&self, node: &Node) {
        node.diverges();
        self.ahead(node);
    }

    /// A program wrote this long ago, as it believes. Its kernel tells it at fsync or close, and a program that only ever writes
    /// would fill its cache for ever. But before each write(2) it asks for attributes that it no longer trusts, and an error there is that
    /// write's: see [`Serving::failed_write`].
    pub(crate) fn report_at_next_write(&self, node: &Arc<Node>, errno: i32) {
        if !node.is_held_back() {
            return;
        }
        node.note_failed_write(errno);
        self.flusher.later(self.outdates(node.id));
    }

    /// What the kernel knows of the attributes of a node is outdated; no page is touched. To be called on a flushers' thread: the kernel may
    /// wait for the inode, and that for us.
    pub(crate) fn outdates(&self, node: u64) -> impl FnOnce() + Send + use<> {
        let kernel = self.kernel.get().cloned();
        move || {
            if let Some(kernel) = kernel {
                let _ = kernel.inval_inode(INodeNo(node), -1, 0);
            }
        }
    }

    /// Does what may take the set-id bits from a file that is open. The kernel takes it that such a call changes nothing but size, times and
    /// blocks, and would go on showing the bits, and honouring them at execve(2).
    pub(crate) fn telling_of_set_id<T>(&self, node: &Node, change: impl FnOnce() -> T) -> T {
        let set_id = || node.inode.with_attr(|attr| attr.perm & 0o6000);
        let before = set_id();
        let done = change();
        if before != 0 && set_id() != before {
            // On this thread, since an inode with an open file is not being evicted: nothing to wait for.
            self.outdates(node.id)();
        }
        done
    }

    /// The error that a GETATTR has to return because it comes with a handle to write through.
    pub(crate) fn failed_write(&self, node: &Node, handle: Option<FileHandle>) -> Option<Errno> {
        let handle = handle.map(Handle::unpack).filter(|handle| handle.holds_back)?;
        let error = Errno::from_i32(node.take_failed_write()?);
        // An fsync may have told it before, and somebody may have made room since.
        let has_room = || {
            let free = self.vfs.stat_fs().ok()?;
            let blocks = if handle.open_room { free.blocks_available } else { free.blocks_free };
            Some(blocks.saturating_mul(u64::from(free.block_size)) >= ROOM_AGAIN)
        };
        (error.code() != Errno::ENOSPC.code() || !has_room().unwrap_or(false)).then_some(error)
    }

    /// How long the kernel may trust the attributes of a node. To be asked for behind them: a change that they count was noted before. Not
    /// for who has the kernel's lock of the inode (SETATTR): nobody else changes anything then.
    pub(crate) fn attr_ttl(&self, node: &Node) -> Duration {
        if node.has_failed_write() || self.may_lose_link(node) { Duration::ZERO } else { self.ttl }
    }

    /// Whether the kernel may be about to count down the links of a file for a name that is gone already: what it is told in between it
    /// makes one too few.
    fn may_lose_link(&self, node: &Node) -> bool {
        let mut losses = node.changes.unfinished(&self.callers);
        losses.retain(|noted| noted.change.takes_link);
        if losses.is_empty() {
            return false;
        }
        let are_over = self.have_ended(&losses);
        if are_over {
            node.changes.are_over(&losses);
        }
        !are_over
    }

    /// After a rename, find the node by its new name.
    pub(crate) fn moved(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let node = self.node_behind(dir, name)?;
        node.set_place(dir.id, name);
        Some(node)
    }

    /// The file behind a name, if the kernel knows it.
    fn node_behind(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let inode = self.vfs.lookup(&Cred::trusted(), &dir.inode, name).ok()?;
        self.nodes.get(self.nodes.id(inode.ino.0))
    }

    /// A SETATTR as the kernel sends it to hand over the times that it keeps of a regular file: it comes on behalf of
    /// whoever happened to be running, so it is no user's wish.
    pub(crate) fn is_times_flush(&self, node: &Node, set: &SetAttr) -> bool {
        let only_times = SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() } == *set;
        let (Some(TimeSet::At(mtime)), Some(ctime)) = (set.mtime, set.ctime) else { return false };
        let now = self.vfs.policy().now();
        let is_recent = |time: Timestamp| now.sec.abs_diff(time.sec) <= 60;
        only_times
            && self.options.writeback_cache
            && node.inode.kind == FileType::Regular
            && is_recent(ctime)
            && (node.is_held_back() || is_recent(mtime) || mtime == self.vfs.stat(&node.inode).mtime)
    }

    pub(crate) fn set_no_opendir(&self, offered: bool) {
        self.no_opendir.store(offered && self.options.kernel_checks(), Ordering::Relaxed);
    }
}

/// Turn a VFS result into what a reply takes.
pub(crate) trait OrErrno<T> {
    fn or_errno(self) -> std::result::Result<T, Errno>;
}

impl<T> OrErrno<T> for Result<T> {
    fn or_errno(self) -> std::result::Result<T, Errno> {
        self.map_err(errno)
    }
}
