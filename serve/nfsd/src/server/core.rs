//! The mutex around clients' state, and the execution of effects.
//!
//! Lock order: `effects_lock`, then `state`, then `queue`. Every other lock is taken alone. `state` is never
//! held while the VFS is called or something is sent.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::status::NfsStat;
use ivers_vfs::{Ino, InodeRef, Touch, Vfs};
use parking_lot::Mutex;

use super::copy_queue::Copies;
use super::runtime::{Clock, Dial, ReplySink, Runtime};
use super::suspended::{SuspendedRequest, SuspendedRequests};
use crate::compound::{EndPermit, PermitGuard, Service, WakeReason};
use crate::executor::Progress;
use crate::exports::handle::Target;
use crate::net::connection::Connection;
use crate::ops::open::is_stale;
use crate::rpc::Callbacks;
use crate::stable::StableStorage;
use crate::state::{
    Callback, ConnId, Effect, FileId, Millis, Permit, StateManager, Step, Stop, Ticket, Time,
};

/// What all parts of the server share.
pub(super) struct Core {
    pub clock: Clock,
    state: Mutex<StateManager>,
    /// Effects that `state` has requested, in order.
    queue: Mutex<VecDeque<Effect>>,
    /// Held by the thread that runs effects.
    effects_lock: Mutex<()>,
    pub stable: Arc<StableStorage>,
    pub lease: Millis,
    /// Whether the server grants delegations.
    pub delegations: bool,
    pub callbacks: Arc<Callbacks>,
    /// Set when the threads have started.
    pub runtime: OnceLock<Runtime>,
    /// Set when the exports are known.
    pub service: OnceLock<Weak<Service>>,
    pub suspended: SuspendedRequests,
    /// CB_GETATTR calls to send when the request that needs the answer has been suspended. Otherwise the
    /// answer could arrive before that.
    pub holder_queries: Mutex<HashMap<Ticket, (u64, Callback)>>,
    /// Callbacks that found no free slot.
    pub deferred: Mutex<Vec<(u64, Callback)>>,
    /// Copies that continue after their reply.
    pub copies: Arc<Copies>,
    connections: Mutex<HashMap<u64, Weak<Connection>>>,
    /// Files that clients have open, with their filesystems. They exist until they are closed, even without a
    /// name: the VFS remembers them. Their inodes may leave memory, so an open file takes little of it.
    open: Mutex<HashMap<FileId, Arc<Vfs>>>,
    /// Connections that this server has made to NFSv4.0 clients.
    pub v40_connections: Mutex<HashMap<SocketAddr, Weak<Connection>>>,
    /// Makes connections, if this process may not.
    pub dial: Option<Dial>,
    /// Whether the end of the grace period is recorded on stable storage.
    grace_end_recorded: AtomicBool,
    /// Whether the last write to stable storage succeeded.
    pub stable_ok: AtomicBool,
    /// The time of the last check of stable storage.
    stable_checked_at: Mutex<Time>,
}

/// Time for a client to answer a callback.
pub(super) const CALLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that a request waits, before NFS4ERR_DELAY.
const SUSPEND_MAX: Duration = Duration::from_secs(8);
/// Interval between checks of the state directory.
const STABLE_CHECK_INTERVAL: Millis = Millis::seconds(2);

impl Core {
    pub fn new(
        clock: Clock,
        state: StateManager,
        stable: Arc<StableStorage>,
        lease: Millis,
        delegations: bool,
        callbacks: Arc<Callbacks>,
        dial: Option<Dial>,
    ) -> Self {
        let grace_end_recorded = AtomicBool::new(!state.in_grace());
        Self {
            clock,
            state: Mutex::new(state),
            queue: Mutex::default(),
            effects_lock: Mutex::default(),
            stable,
            lease,
            delegations,
            callbacks,
            runtime: OnceLock::new(),
            service: OnceLock::new(),
            suspended: SuspendedRequests::default(),
            holder_queries: Mutex::default(),
            deferred: Mutex::default(),
            copies: Arc::default(),
            connections: Mutex::default(),
            open: Mutex::default(),
            v40_connections: Mutex::default(),
            dial,
            grace_end_recorded,
            stable_ok: AtomicBool::new(true),
            stable_checked_at: Mutex::default(),
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub fn service(&self) -> Option<Arc<Service>> {
        self.service.get()?.upgrade()
    }

    /// Runs a critical section, and then the effects that it requested.
    pub fn with<R>(self: &Arc<Self>, section: impl FnOnce(&mut StateManager, Time) -> R) -> R {
        let (result, asked) = self.section(section);
        if asked {
            self.run_effects();
        }
        result
    }

    pub(super) fn section<R>(&self, section: impl FnOnce(&mut StateManager, Time) -> R) -> (R, bool) {
        let now = self.now();
        let mut state = self.state.lock();
        let result = section(&mut state, now);
        let (effects, notes) = (state.take_effects(), state.take_log_events());
        let asked = !effects.is_empty();
        // Before the mutex is released, so that effects keep the order of the critical sections.
        self.queue.lock().extend(effects);
        drop(state);
        super::event_log::log_notes(notes);
        (result, asked)
    }

    /// Runs effects until none is left. Waits for another thread that runs them, as one may be the caller's.
    pub(super) fn run_effects(self: &Arc<Self>) {
        let _one = self.effects_lock.lock();
        loop {
            let Some(effect) = self.queue.lock().pop_front() else { return };
            match effect {
                Effect::Persist { ticket, change } => {
                    let kept = self.stable.change_clients(&change);
                    self.stable_ok.store(kept.is_ok(), Ordering::Relaxed);
                    if let Err(error) = &kept {
                        log::error!("{error}");
                    }
                    self.ended(ticket, kept.is_ok());
                }
                Effect::Bump { ticket, file } => {
                    self.bump(file);
                    self.ended(ticket, true);
                }
                Effect::Wake { ticket } => self.resume(ticket, &WakeReason::Retry),
                Effect::Pin { file } => {
                    // The request that opens the file holds it until this effect has run.
                    if let Some((vfs, inode)) = self.file(file) {
                        vfs.remember(&inode, inode.ino);
                        self.open.lock().insert(file, vfs);
                    }
                }
                Effect::Unpin { file } => self.release(file),
                Effect::Callback { client, call: call @ Callback::GetAttr { ticket, .. } } => {
                    self.holder_queries.lock().insert(ticket, (client, call));
                }
                Effect::Callback { client, call } => self.call(client, call),
            }
        }
    }

    fn ended(self: &Arc<Self>, ticket: Ticket, done: bool) {
        self.section(|state, _| if done { state.effect_done(ticket) } else { state.effect_failed(ticket) });
        self.resume(ticket, &WakeReason::Retry);
    }

    /// A file that a client holds state of, unless it no longer exists.
    pub fn file(&self, file: FileId) -> Option<(Arc<Vfs>, InodeRef)> {
        let vfs = self.service()?.filesystem(file.export)?.vfs;
        match vfs.get_generation(Ino(file.inode), file.generation) {
            Ok(inode) => Some((vfs, inode)),
            Err(error) => {
                // A file that cannot be read shows nobody a change attribute either.
                if !is_stale(&error) {
                    log::error!(
                        "cannot read inode {} of export {}, which a client has open: {error}",
                        file.inode,
                        file.export
                    );
                }
                None
            }
        }
    }

    fn release(&self, file: FileId) {
        let Some(vfs) = self.open.lock().remove(&file) else { return };
        let ino = Ino(file.inode);
        // An orphan is always in memory.
        let inode = if vfs.is_in_memory(ino) { vfs.get_generation(ino, file.generation).ok() } else { None };
        if !vfs.forget(ino, 1) {
            return;
        }
        match (self.runtime.get(), inode) {
            // The last reference to a file without a name deletes it, which may take long.
            (Some(runtime), Some(inode)) if inode.attr().nlink == 0 => runtime.run(move || drop(inode)),
            (_, inode) => {
                drop(inode);
                vfs.release_forgotten(ino);
            }
        }
    }

    /// Drops all open files, before the filesystems are unmounted.
    pub fn release_all(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        for (file, vfs) in open {
            if vfs.forget(Ino(file.inode), 1) {
                vfs.release_forgotten(Ino(file.inode));
            }
        }
    }

    fn bump(&self, file: FileId) {
        if let Some((vfs, inode)) = self.file(file) {
            vfs.force_change(&inode, Touch::Nothing);
        }
    }

    /// The filehandle of a file.
    pub fn handle(&self, file: FileId) -> Option<ivers_nfs4::types::FileHandle> {
        let service = self.service()?;
        let FileId { export, inode, generation } = file;
        let generation = service.filesystem(export)?.handle_generation(inode, generation);
        Some(service.handles.encode(Target::Object { export, inode, generation }))
    }

    /// Resumes the requests that wait for a ticket.
    pub fn resume(self: &Arc<Self>, ticket: Ticket, reason: &WakeReason) {
        let Some(runtime) = self.runtime.get() else { return };
        for suspended in self.suspended.take(ticket) {
            let (core, reason) = (self.clone(), reason.clone());
            runtime.run(move || core.resume_request(suspended, reason));
        }
    }

    /// A guard that ends the permit when it is dropped.
    pub fn guard(self: &Arc<Self>, permit: Permit) -> PermitGuard {
        PermitGuard::new(permit, self.clone())
    }

    pub fn is_pending(&self, ticket: Ticket) -> bool {
        self.state.lock().is_pending(ticket)
    }

    /// Decides what an operation does that must not be suspended. `Ok`: what it waited for is done, try
    /// again. Error: NFS4ERR_DELAY while it is not.
    pub fn retry_now(&self, stop: Stop) -> Step<()> {
        match stop {
            Stop::Wait(ticket) if !self.is_pending(ticket) => Ok(()),
            Stop::Wait(_) | Stop::AskHolder(_) => Err(NfsStat::Delay.into()),
            stop => Err(stop),
        }
    }

    // ---- requests ----

    /// Sends the reply of a request, or suspends it.
    pub fn proceed(self: &Arc<Self>, progress: Progress, reply: ReplySink) {
        self.advance(progress, reply, Instant::now() + SUSPEND_MAX);
    }

    /// Resumes a request.
    pub fn resume_request(self: &Arc<Self>, suspended: SuspendedRequest, reason: WakeReason) {
        let SuspendedRequest { request, reply, until } = suspended;
        self.advance(request.resume(reason), reply, until);
    }

    fn advance(self: &Arc<Self>, progress: Progress, reply: ReplySink, until: Instant) {
        let (ticket, request) = match progress {
            Progress::Done(results) => return reply.send(results),
            Progress::Waits(ticket, request) => (ticket, request),
        };
        self.suspended.push(ticket, SuspendedRequest { request, reply, until });
        let query = self.holder_queries.lock().remove(&ticket);
        if let Some((client, call)) = query {
            return self.call(client, call);
        }
        // The event may have happened before the request was in the table.
        if self.is_pending(ticket) {
            return;
        }
        // While stable storage fails, waiting is useless.
        let late = Instant::now() >= until || !self.stable_ok.load(Ordering::Relaxed);
        self.resume(ticket, &if late { WakeReason::TimedOut } else { WakeReason::Retry });
    }

    // ---- connections ----

    /// Registers the connection of a request.
    pub fn connected(self: &Arc<Self>, connection: &Arc<Connection>) {
        let id = connection.id();
        if self.connections.lock().insert(id, Arc::downgrade(connection)).is_none() && connection.is_closed()
        {
            self.disconnected(id);
        }
    }

    /// Handles the end of a connection.
    pub fn disconnected(self: &Arc<Self>, id: u64) {
        self.connections.lock().remove(&id);
        self.with(|state, _| state.disconnected(ConnId(id)));
    }

    pub fn connection(&self, conn: ConnId) -> Option<Arc<Connection>> {
        self.connections.lock().get(&conn.0)?.upgrade()
    }

    /// An open connection that a host has made to this server.
    pub fn connection_of(&self, host: IpAddr) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        let open = |connection: &Arc<Connection>| {
            !connection.is_closed() && connection.peer().ip().to_canonical() == host
        };
        connections.values().filter_map(Weak::upgrade).find(open)
    }

    // ---- time ----

    /// Writes the records again if the state directory was removed and exists again. Until then, a client
    /// that must be recorded gets NFS4ERR_DELAY.
    fn check_stable(&self) {
        let now = self.now();
        {
            let mut stable_checked_at = self.stable_checked_at.lock();
            if now.since(*stable_checked_at) < STABLE_CHECK_INTERVAL {
                return;
            }
            *stable_checked_at = now;
        }
        let settled = self.stable.ensure_in_place();
        let was = self.stable_ok.swap(settled.is_ok(), Ordering::Relaxed);
        match settled {
            Ok(true) if was => {}
            Ok(true) => log::info!("{:?} is accessible again", self.stable),
            Ok(false) => log::warn!("{:?} was removed; its records are written again", self.stable),
            Err(error) if was => log::error!("{error}"),
            Err(_) => {}
        }
    }

    /// Does what is due, and schedules the next tick.
    pub fn tick(self: &Arc<Self>) {
        let next = self.with(|state, now| state.tick(now));
        let over =
            !self.grace_end_recorded.load(Ordering::Relaxed) && !self.with(|state, _| state.in_grace());
        if over {
            match self.stable.set_lease(self.lease, true) {
                Ok(()) => self.grace_end_recorded.store(true, Ordering::Relaxed),
                Err(error) => log::error!("{error}"),
            }
        }
        self.check_stable();
        for suspended in self.suspended.overdue() {
            self.resume_request(suspended, WakeReason::TimedOut);
        }
        self.call_deferred();
        self.retry_stalled_copies();
        let wait = next.since(self.now()).0.clamp(20, 250);
        let again = Arc::downgrade(self);
        if let Some(runtime) = self.runtime.get() {
            runtime.after(Duration::from_millis(wait), move || {
                if let Some(core) = again.upgrade() {
                    core.tick();
                }
            });
        }
    }
}

impl EndPermit for Core {
    fn end_permit(self: Arc<Self>, permit: Permit) {
        self.with(|state, now| state.end_permit(now, permit));
    }
}
