//! State shared by all requests: nodes, identities, attributes, and the queries that may have to wait for a
//! flush.

use crate::caller_affinity::{CallerAffinity, Then};
use crate::convert::file_attr;
use crate::errno::errno;
use crate::flusher::Flusher;
use crate::inflight_changes::{Caller, InflightChange, Noted};
use crate::lock_waits::LockWaits;
use crate::nodes::{Node, Nodes, ROOT};
use crate::ops::PlusBytes;
use crate::options::FuseOptions;
use crate::prune::Pruning;
use crate::session::Server;
use crate::subvolumes::Announcements;
use fuser::{Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, Notifier, ReplyIoctl, Request};
use ivers_busy_poll::{BusyPoller, PollHistory};
use ivers_vfs::*;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Validity of names and attributes in the kernel: only this mount changes the filesystem, so they stay true.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a query waits for data that the kernel holds back. After that, for example on a slow disk, it
/// returns a change attribute that differs from all earlier ones, which is never wrong.
const HAND_OVER: Duration = Duration::from_secs(30);
/// How long a query waits for a lock under which the kernel processes an answer, or a program does something
/// else with the inode.
const DIGEST: Duration = Duration::from_secs(5);

/// With this many free bytes the filesystem is no longer full: the largest request takes one MiB.
const ROOM_AGAIN: u64 = 2 << 20;

pub(crate) const ENODATA: i32 = 61;
pub(crate) const O_EXCL: i32 = 0o200;
pub(crate) const O_TRUNC: i32 = 0o1000;
pub(crate) const O_APPEND: i32 = 0o2000;
pub(crate) const O_DSYNC: i32 = 0o10000;
pub(crate) const O_DIRECT: i32 = 0o40000;
pub(crate) const O_ACCMODE: i32 = 3;
pub(crate) const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
/// `__FMODE_EXEC` of the kernel, in the flags of an OPEN for execve(2).
const FMODE_EXEC: i32 = 0o40;

/// The state of an open file, encoded in its handle: no table is needed, except for write-back errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Counts as a handle through which the kernel may hold back data.
    pub(crate) holds_back: bool,
    /// Opened by a flusher: its FSYNC commits nothing.
    pub(crate) ours: bool,
    /// Opened by a caller that may not use reserved blocks: a later write does not say which caller it comes
    /// from.
    pub(crate) open_room: bool,
    /// The open mode reported to the VFS; empty if none was.
    pub(crate) mode: OpenMode,
    /// Distinguishes the open files of a mount.
    pub(crate) id: u32,
}

/// The bit at which the mode begins in a handle.
const MODE_SHIFT: u32 = 8;
/// The bit at which the id begins.
const ID_SHIFT: u32 = 32;

impl Handle {
    pub(crate) fn pack(self) -> FileHandle {
        let facts = u64::from(self.holds_back) | u64::from(self.ours) << 1 | u64::from(self.open_room) << 2;
        FileHandle(facts | u64::from(self.mode.bits()) << MODE_SHIFT | u64::from(self.id) << ID_SHIFT)
    }

    pub(crate) fn unpack(handle: FileHandle) -> Self {
        let is = |bit: u64| handle.0 & bit != 0;
        let mode = OpenMode::from_bits_truncate((handle.0 as u32) >> MODE_SHIFT);
        Self { holds_back: is(1), ours: is(2), open_room: is(4), mode, id: (handle.0 >> ID_SHIFT) as u32 }
    }
}

/// The reply about an inode that the kernel looks up by name.
pub(crate) struct Found {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
    /// How long the kernel may trust the attributes. A name holds until it is invalidated.
    pub(crate) ttl: Duration,
}

/// The state that serves one mount.
pub(crate) struct Connection {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) flusher: Flusher,
    pub(crate) pruning: Pruning,
    pub(crate) lock_waits: LockWaits,
    pub(crate) plus_bytes: PlusBytes,
    pub(crate) announcements: Announcements,
    pub(crate) options: FuseOptions,
    pub(crate) server: Server,
    pub(crate) caller_affinity: Arc<CallerAffinity>,
    poller: BusyPoller,
    poll_history: PollHistory,
    /// The device that requests come from. Threads poll only once it is known.
    pub(crate) device: OnceLock<OwnedFd>,
    /// The kernel accepts ENOSYS at OPENDIR as "no need to ask".
    pub(crate) no_opendir: AtomicBool,
    /// The kernel keeps the times of regular files and hands them over by SETATTR.
    pub(crate) kernel_keeps_times: AtomicBool,
    mounter: u32,
    block_size: u32,
    pub(crate) ttl: Duration,
    next_handle: AtomicU32,
    /// The write-back errors that open files were told of, by handle. Only of files that were synced, or had
    /// an error when they were opened.
    error_cursors: Mutex<HashMap<u32, Arc<ErrorCursor>>>,
    /// Notifies the kernel of changes that it did not request.
    pub(crate) kernel: OnceLock<Notifier>,
}

impl Connection {
    pub(crate) fn new(
        vfs: Arc<Vfs>,
        nodes: Arc<Nodes>,
        flusher: Flusher,
        caller_affinity: Arc<CallerAffinity>,
        options: FuseOptions,
        server: Server,
    ) -> Self {
        // The kernel requires a power of two here.
        let block_size = vfs.info().block_size.max(4096).checked_next_power_of_two().unwrap_or(4096);
        // Without `default_permissions` every lookup of every user must come to the VFS, or a user could
        // traverse the cached directories of another.
        let shared_and_unchecked = options.allow_other && !options.kernel_checks();
        // Where several spellings are one name, a change of one spelling affects others, about which the
        // kernel would not ask. A server changes files without asking anybody.
        let asks_each_time = shared_and_unchecked || vfs.info().names_alias || vfs.fs().server().is_some();
        Self {
            vfs,
            nodes,
            flusher,
            pruning: Pruning::default(),
            lock_waits: LockWaits::default(),
            plus_bytes: PlusBytes::default(),
            announcements: Announcements::default(),
            next_handle: AtomicU32::new(0),
            error_cursors: Mutex::default(),
            no_opendir: AtomicBool::new(false),
            kernel_keeps_times: AtomicBool::new(false),
            mounter: rustix::process::geteuid().as_raw(),
            block_size,
            ttl: if asks_each_time { Duration::ZERO } else { FOREVER },
            caller_affinity,
            poller: BusyPoller::new(options.longest_busy_poll()),
            poll_history: PollHistory::default(),
            device: OnceLock::new(),
            options,
            server,
            kernel: OnceLock::new(),
        }
    }

    /// Sends an answer to `caller`, then polls for the next request, unless recent polls found none.
    pub(crate) fn answer(&self, caller: u32, send: impl FnOnce()) {
        let device = self.device.get();
        if self.caller_affinity.answer(caller, device, send) == Then::GoOn {
            return;
        }
        if let Some(device) = device {
            self.poller.poll_readable(device, &self.poll_history);
        }
    }

    pub(crate) fn node(&self, id: INodeNo) -> std::result::Result<Arc<Node>, Errno> {
        self.nodes.find(id.0).or_errno()
    }

    /// Returns the user of a request on an open file: permission was checked when it was opened.
    pub(crate) fn opened_by(&self, request: &Request) -> Cred {
        Cred { uid: request.uid(), gid: request.gid(), ..Cred::trusted() }
    }

    /// Returns the caller of a request.
    pub(crate) fn cred(&self, request: &Request) -> Cred {
        let (uid, gid) = (request.uid(), request.gid());
        if self.options.kernel_checks() {
            return Cred { uid, gid, ..Cred::trusted() };
        }
        if self.options.fakeroot && uid == self.mounter {
            return Cred::root();
        }
        Cred { uid, gid, groups: self.groups_of(request), ..Cred::root() }
    }

    /// Returns the caller of a request that changes nothing. Its groups are not read if they do not matter.
    pub(crate) fn reader(&self, request: &Request) -> Cred {
        match self.vfs.fs().server() {
            Some(server) if !server.sends_callers() => {
                Cred { uid: request.uid(), gid: request.gid(), ..Cred::root() }
            }
            _ => self.cred(request),
        }
    }

    /// Returns the supplementary groups of the caller, which the protocol does not carry.
    pub(crate) fn groups_of(&self, request: &Request) -> Vec<u32> {
        self.flusher.helper().groups_of(request.pid())
    }

    pub(crate) fn attr(&self, node: &Node, attr: &Attr) -> FileAttr {
        file_attr(node.id, attr, self.block_size)
    }

    /// Returns the attributes for GETATTR, as [`Connection::shown_attr`]. A server is asked for them as the
    /// caller; local ones cost no look at the caller's groups.
    pub(crate) fn current_attr(
        &self,
        request: &Request,
        node: &Node,
    ) -> std::result::Result<FileAttr, Errno> {
        if node.inode.is_server_managed() {
            self.vfs.get_attr(&self.reader(request), &node.inode).or_errno()?;
        }
        Ok(self.shown_attr(node))
    }

    /// Returns how a file is opened: the kernel keeps its pages unless a server may have changed them.
    pub(crate) fn open_flags(&self) -> FopenFlags {
        match self.vfs.fs().server() {
            Some(_) => FopenFlags::empty(),
            None => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    /// Returns the attributes as the kernel may see them: the root shows its real inode number.
    pub(crate) fn shown_attr(&self, node: &Node) -> FileAttr {
        let mut shown = self.attr(node, &self.vfs.stat(&node.inode));
        if node.id == ROOT {
            shown.ino = INodeNo(self.nodes.ino(ROOT));
        }
        shown
    }

    /// Counts a lookup and describes what was found.
    pub(crate) fn entry(
        self: &Arc<Self>,
        inode: InodeRef,
        parent: INodeNo,
        name: &[u8],
    ) -> std::result::Result<(Arc<Node>, Found), Errno> {
        let generation = Generation(u64::from(inode.generation));
        let node = self.nodes.remember(inode, parent.0, name).ok_or(Errno::EIO)?;
        self.prune_if_needed();
        let attr = self.attr(&node, &self.vfs.stat(&node.inode));
        node.note_shown(&attr);
        let ttl = self.attr_ttl(&node);
        Ok((node, Found { attr, generation, ttl }))
    }

    /// Returns the handle of an OPEN by `cred` with these flags.
    pub(crate) fn handle(&self, request: &Request, cred: &Cred, flags: i32) -> Handle {
        let holds_back = match flags & O_ACCMODE {
            O_RDONLY => false,
            // Without the write-back cache only mappings hold back data, and those require O_RDWR.
            O_WRONLY => self.options.writeback_cache,
            _ => true,
        };
        let ours = self.flusher.helper().is_ours(request.pid());
        Handle {
            id: self.next_handle.fetch_add(1, Ordering::Relaxed),
            holds_back,
            ours,
            // A flush does not count as an open.
            mode: if ours { OpenMode::empty() } else { Self::open_mode(flags) },
            open_room: flags & O_ACCMODE != O_RDONLY
                && self.vfs.block_pool(&self.cred_for_room(request, cred.clone())) == BlockPool::Unreserved,
        }
    }

    /// The cursor of an open file that is being synced.
    pub(crate) fn error_cursor(&self, handle: Handle) -> Arc<ErrorCursor> {
        self.error_cursors.lock().entry(handle.id).or_default().clone()
    }

    /// Adds groups to a [`Connection::cred`] also if the kernel checks permissions, when a group may use
    /// reserved blocks.
    pub(crate) fn cred_for_room(&self, request: &Request, cred: Cred) -> Cred {
        match self.vfs.info().reserved {
            Some(ReservedBlocks { gid: Some(_), .. }) if cred.access_checked => {
                Cred { groups: self.groups_of(request), ..cred }
            }
            _ => cred,
        }
    }

    /// Returns the caller, with its groups if they matter, for a change of data or of an access control list:
    /// membership of the file's group decides about set-gid. The kernel sends a flag for that with an ACL,
    /// which fuser does not pass on.
    pub(crate) fn cred_for_set_gid(&self, request: &Request, node: &Node) -> Cred {
        let cred = self.cred(request);
        let depends =
            cred.access_checked && cred.uid != 0 && node.inode.with_attr(|attr| attr.perm & 0o2000 != 0);
        if depends { Cred { groups: self.groups_of(request), ..cred } } else { cred }
    }

    /// Returns the permissions that an OPEN requests, as [`Vfs::access`] counts them.
    pub(crate) fn open_mask(flags: i32) -> u32 {
        let mask = match flags & O_ACCMODE {
            O_RDONLY => 4,
            O_WRONLY => 2,
            _ => 6,
        };
        if flags & O_TRUNC != 0 { mask | 2 } else { mask }
    }

    /// Reports an OPEN to the VFS, which may refuse it.
    pub(crate) fn tell_open(
        &self,
        cred: &Cred,
        node: &Node,
        handle: Handle,
    ) -> std::result::Result<(), Errno> {
        if handle.mode.is_empty() {
            node.handle_opens();
            return Ok(());
        }
        self.vfs.open(cred, &node.inode, handle.mode).or_errno()?;
        node.handle_opens();
        let cursor = self.vfs.error_cursor(&node.inode);
        if !cursor.is_initial() {
            self.error_cursors.lock().insert(handle.id, Arc::new(cursor));
        }
        Ok(())
    }

    /// Reports the close to the VFS.
    pub(crate) fn tell_close(&self, node: &Node, handle: Handle) {
        self.error_cursors.lock().remove(&handle.id);
        if !handle.mode.is_empty() {
            self.vfs.close(&node.inode, handle.mode);
        }
        node.handle_closes();
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

    /// Records that the requesting thread has begun a system call. Every request does so, except those that a
    /// system call may make after a change that it requested before.
    pub(crate) fn heard(&self, request: &Request) {
        if self.options.strict_queries {
            self.nodes.callers.heard(request.pid());
        }
    }

    /// Notes an upcoming change of these inodes. The kernel will show it before it releases its exclusive
    /// lock of `lock`; `None`: it may do so without a lock. Call it before the change is made.
    pub(crate) fn changes(&self, request: &Request, lock: Option<&Node>, of: &[&Node]) {
        if self.options.strict_queries {
            self.note(self.nodes.callers.heard(request.pid()), lock, of);
        }
    }

    /// As [`Connection::changes`], for written data: one system call makes several requests.
    pub(crate) fn data_changes(&self, request: &Request, of: &Node) {
        if self.options.strict_queries {
            self.note(self.nodes.callers.in_one_call(request.pid()), Some(of), &[of]);
        }
    }

    fn note(&self, caller: Caller, lock: Option<&Node>, of: &[&Node]) {
        let change = InflightChange { caller, lock: lock.map(|lock| lock.id), takes_link: false };
        of.iter().for_each(|node| node.changes.note(&self.nodes.callers, change));
    }

    /// As [`Connection::changes`], for a name that is about to be added to a directory.
    pub(crate) fn names_change(&self, request: &Request, dir: &Node, of: &[&Node]) {
        self.drop_listing(dir);
        self.changes(request, Some(dir), of);
    }

    /// Invalidates the kernel's cached listing of a directory before names are added or removed.
    ///
    /// The kernel itself checks for changes of the directory only when a reader starts. A reader that started
    /// with our answers would continue in the cached part that another reader left before the change. Call it
    /// while the kernel has locked the directory for the change, so that nobody is reading it.
    pub(crate) fn drop_listing(&self, dir: &Node) {
        if dir.take_listed()
            && let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(INodeNo(dir.id), 0, 0)
        {
            log::debug!("cannot invalidate the listing of inode {}: {error}", dir.inode.ino);
        }
    }

    /// As [`Connection::changes`], for a file (if known) that is about to lose a name.
    pub(crate) fn name_goes(&self, request: &Request, lock: &Node, of: &[&Node], file: Option<&Node>) {
        self.drop_listing(lock);
        if self.options.strict_queries {
            let caller = self.nodes.callers.heard(request.pid());
            self.note(caller, Some(lock), of);
            let change = InflightChange { caller, lock: Some(lock.id), takes_link: true };
            file.inspect(|file| file.changes.note(&self.nodes.callers, change));
        }
    }

    /// Returns the file whose name is about to change.
    pub(crate) fn named(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        if !self.options.strict_queries {
            return None;
        }
        self.node_behind(dir, name)
    }

    /// Returns whether the kernel may not show yet what the change attribute of a node counts.
    pub(crate) fn has_inflight(&self, node: &Node) -> bool {
        !node.changes.inflight(&self.nodes.callers).is_empty()
    }

    /// Answers a query of the change attribute: at once, or after the kernel has handed over what it holds
    /// back and shows every change that the answer counts, or after a timeout.
    pub(crate) fn query(
        self: &Arc<Self>,
        node: Arc<Node>,
        answer: impl FnOnce(Option<u64>) + Send + 'static,
    ) {
        if !node.is_held_back() {
            return self.query_flushed(node, answer);
        }
        let connection = self.clone();
        self.flush_in_time(node.clone(), move |flushed| {
            if flushed {
                connection.query_flushed(node, answer);
            } else {
                answer(connection.ahead(&node));
            }
        });
    }

    /// Makes the kernel hand over what it holds back of a file, or tells `then` that this took too long.
    pub(crate) fn flush_in_time(&self, node: Arc<Node>, then: impl FnOnce(bool) + Send + 'static) {
        self.flusher.flush(node, Instant::now() + HAND_OVER, then);
    }

    /// The user who mounted.
    pub(crate) fn mounter(&self) -> u32 {
        self.mounter
    }

    fn query_flushed(self: &Arc<Self>, node: Arc<Node>, answer: impl FnOnce(Option<u64>) + Send + 'static) {
        if node.has_diverged() {
            return answer(self.ahead(&node));
        }
        // Query first: every change that the answer counts was noted before.
        let change = node.changes.number(|| self.vfs.change(&node.inode));
        let inflight = node.changes.inflight(&self.nodes.callers);
        if inflight.is_empty() {
            return answer(change);
        }
        let connection = self.clone();
        self.wait_for_locks(node.id, inflight.clone(), Instant::now() + DIGEST, move |were_free| {
            if were_free || connection.have_ended(&inflight) {
                node.changes.are_over(&inflight);
                answer(change);
            } else {
                answer(connection.ahead(&node));
            }
        });
    }

    /// Returns whether all these changes are over because their threads continued or ended.
    fn have_ended(&self, changes: &[Noted]) -> bool {
        changes.iter().all(|noted| self.flusher.helper().has_ended(noted.change.caller.thread))
    }

    /// Returns the answer if it is unknown what the kernel shows: a change attribute that differs from all
    /// earlier ones.
    fn ahead(&self, node: &Node) -> Option<u64> {
        node.changes.number_ahead(|| self.vfs.force_change(&node.inode, Touch::Nothing))
    }

    /// Waits until the lock of each of these changes of a node has been free. `then` is told whether all
    /// locks were seen free in time.
    fn wait_for_locks(
        self: &Arc<Self>,
        of: u64,
        mut changes: Vec<Noted>,
        until: Instant,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        let Some(Noted { change, .. }) = changes.pop() else { return then(true) };
        let Some(lock) = change.lock else { return then(false) };
        let connection = self.clone();
        let then: Box<dyn FnOnce(bool) + Send> = Box::new(then);
        match self.nodes.find(lock) {
            // Nobody holds the lock of an inode that the kernel has forgotten. Nor does a change of names
            // hold that of a removed directory; the directory itself may still change.
            Err(Error::Name(NameError::Stale)) => self.wait_for_locks(of, changes, until, then),
            Err(_) => then(false),
            Ok(dir)
                if dir.id != of && dir.inode.kind == FileType::Directory && dir.inode.attr().nlink == 0 =>
            {
                self.wait_for_locks(of, changes, until, then)
            }
            Ok(locked) => self.flusher.flush(locked, until, move |flushed| {
                if flushed { connection.wait_for_locks(of, changes, until, then) } else { then(false) }
            }),
        }
    }

    /// Finds the size of a file whose data the kernel may hold back, for a caller that holds the kernel's
    /// lock of it. A flush would wait for that lock.
    pub(crate) fn size_held_back(&self, node: Arc<Node>, then: impl FnOnce(Option<u64>) + Send + 'static) {
        if self.options.writeback_cache {
            self.flusher.size_held_back(node, then);
        } else {
            then(Some(node.inode.size()));
        }
    }

    /// Returns a job that makes the kernel write back the mapped pages of a file and drop all its pages. It
    /// must not run on a serving thread, which has to serve these writes. It waits for pages that are being
    /// read or written, but for no lock of an inode.
    pub(crate) fn drops_pages(&self, node: &Arc<Node>) -> impl FnOnce() + Send + use<> {
        let (kernel, node) = (self.kernel.get().cloned(), node.clone());
        move || {
            if let Some(kernel) = kernel
                && let Err(error) = kernel.inval_inode(INodeNo(node.id), 0, 0)
            {
                log::debug!("cannot drop the pages of inode {}: {error}", node.inode.ino);
            }
        }
    }

    /// Runs an ioctl of the format that changes the data of a file without the kernel's knowledge. The kernel
    /// hands over held-back data of mappings before, and drops its pages afterwards. Runs on a flusher: a
    /// serving thread must not wait for either.
    pub(crate) fn format_ioctl(
        self: &Arc<Self>,
        cred: Cred,
        node: Arc<Node>,
        argument: crate::ioctl::Argument,
        reply: ReplyIoctl,
    ) {
        let crate::ioctl::Argument { number, input, output_bytes } = argument;
        if self.options.writeback_cache {
            // A kernel with the write-back cache ignores the sizes that we report.
            log::warn!(
                "ioctl {number:#x}: not supported with the write-back cache; mount with -o no_writeback_cache"
            );
            return reply.error(Errno::EOPNOTSUPP);
        }
        let connection = self.clone();
        self.flush_in_time(node.clone(), move |flushed| {
            if !flushed {
                // The file is in use, has no name, or may not be opened: held-back data would arrive after
                // the call.
                return reply.error(Errno::EBUSY);
            }
            let done = connection.vfs.ioctl(&cred, &node.inode, number, &input);
            if let Some(kernel) = connection.kernel.get()
                && let Err(error) = kernel.inval_inode(INodeNo(node.id), 0, 0)
            {
                log::warn!("cannot invalidate the pages of inode {}: {error}", node.inode.ino);
            }
            match done {
                Ok(mut output) => {
                    output.truncate(output_bytes as usize);
                    reply.ioctl(0, &output);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Notes that data of a completed write(2) cannot be stored. The kernel shows the data until it drops the
    /// pages, without a request. No change attribute counts either step, so the file has no stable one until
    /// it is truncated to nothing or the kernel forgets it.
    pub(crate) fn cannot_store(&self, node: &Node, bytes: Range<u64>, why: &Error) {
        node.diverges();
        self.ahead(node);
        self.vfs.note_refused_data(&node.inode, bytes, || node.shown_name(), why);
    }

    /// Write-back has lost data of a file. Returns its name. Called under the write-back lock of the file.
    pub(crate) fn loses_data(&self, inode: &Inode, why: &Error) -> String {
        let Some(node) = self.nodes.get(self.nodes.id(inode.ino.0)) else { return String::new() };
        if node.is_held_back() {
            self.report_at_next_write(&node, errno(why.clone()).code());
        }
        node.shown_name()
    }

    /// Notes that a file was truncated. If nothing is left of it, the kernel shows what the filesystem has.
    pub(crate) fn is_truncated(&self, node: &Node, size: u64) {
        if size == 0 {
            node.agrees_again();
        }
    }

    /// Reports a failed write from the kernel's cache at the next write(2). The kernel reports it at fsync or
    /// close only, and a program that only writes would fill its cache. But before each write(2) the kernel
    /// asks for attributes that it no longer trusts, and an error of that request is returned by the write:
    /// see [`Connection::failed_write`].
    pub(crate) fn report_at_next_write(&self, node: &Arc<Node>, errno: i32) {
        if !node.is_held_back() {
            return;
        }
        node.note_failed_write(errno);
        self.flusher.later(self.outdates(node.id));
    }

    /// Returns a job that invalidates the kernel's attributes of a node, without its pages. Run it on a
    /// flusher: the kernel may wait for the inode, and its holder for us.
    pub(crate) fn outdates(&self, node: u64) -> impl FnOnce() + Send + use<> {
        let kernel = self.kernel.get().cloned();
        move || {
            if let Some(kernel) = kernel {
                let _ = kernel.inval_inode(INodeNo(node), -1, 0);
            }
        }
    }

    /// Makes a change that may remove set-id bits of an open file. The kernel assumes that such a call
    /// changes only size, times and blocks. It would continue to show the bits, and honour them at execve(2),
    /// so a removal invalidates its attributes.
    pub(crate) fn telling_of_set_id<T>(&self, node: &Node, change: impl FnOnce() -> T) -> T {
        let set_id = || node.inode.with_attr(|attr| attr.perm & 0o6000);
        let before = set_id();
        let done = change();
        if before != 0 && set_id() != before {
            // On this thread: an inode with an open file is not being evicted, so nothing can block.
            self.outdates(node.id)();
        }
        done
    }

    /// Returns the error for a GETATTR with a handle that is open for writing.
    pub(crate) fn failed_write(&self, node: &Node, handle: Option<FileHandle>) -> Option<Errno> {
        let handle = handle.map(Handle::unpack).filter(|handle| handle.holds_back)?;
        let error = Errno::from_i32(node.take_failed_write()?);
        // An fsync may have reported it already, and space may be free again.
        let has_room = || {
            let free = self.vfs.stat_fs().ok()?;
            let blocks = if handle.open_room { free.blocks_available } else { free.blocks_free };
            Some(blocks.saturating_mul(u64::from(free.block_size)) >= ROOM_AGAIN)
        };
        (error.code() != Errno::ENOSPC.code() || !has_room().unwrap_or(false)).then_some(error)
    }

    /// Returns how long the kernel may trust the attributes of a node. Call it after reading them: a change
    /// that they count was noted before. Not for SETATTR, whose caller has the kernel's lock of the inode:
    /// nobody else can change anything then.
    pub(crate) fn attr_ttl(&self, node: &Node) -> Duration {
        if node.has_failed_write() || self.may_lose_link(node) { Duration::ZERO } else { self.ttl }
    }

    /// Returns whether the kernel may still decrement the link count of a file for a name that is removed
    /// already. A count reported in between would end up one too low.
    fn may_lose_link(&self, node: &Node) -> bool {
        let mut losses = node.changes.inflight(&self.nodes.callers);
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

    /// Finds the node of a renamed file by its new name.
    pub(crate) fn moved(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let node = self.node_behind(dir, name)?;
        self.nodes.moved(&node, dir.id, name);
        Some(node)
    }

    /// Returns the file with a name, if the kernel knows it.
    fn node_behind(&self, dir: &Node, name: &[u8]) -> Option<Arc<Node>> {
        let inode = self.vfs.lookup(&Cred::trusted(), &dir.inode, name).ok()?;
        self.nodes.known(inode)
    }

    /// Returns whether a SETATTR is one by which the kernel hands over times that it keeps of a regular file.
    /// It runs as an arbitrary user, so it is no user's request.
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

/// Converts a VFS result into one for a reply.
pub(crate) trait OrErrno<T> {
    fn or_errno(self) -> std::result::Result<T, Errno>;
}

impl<T> OrErrno<T> for Result<T> {
    fn or_errno(self) -> std::result::Result<T, Errno> {
        self.map_err(errno)
    }
}
