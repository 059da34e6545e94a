//! The one [`State`] behind its mutex, and what carries out what it asks for.
//!
//! Lock order: `carrying`, then `state`, then `queue`; `waiting`, `connections`, `copies` and `dialled` are taken alone. No call of the VFS is made, and nothing is sent, under
//! `state`.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ivers_nfs4::status::NfsStat;
use ivers_vfs::{Ino, InodeRef, Touch};
use parking_lot::Mutex;

use super::copies::Copies;
use super::outside::{Clock, Crew, Dial};
use super::waiting::Waiters;
use crate::compound::{Held, News, Service};
use crate::exports::handle::Target;
use crate::net::connection::Connection;
use crate::ops::open::is_gone;
use crate::rpc::Callbacks;
use crate::stable::Stable;
use crate::state::{Call, Conn, Effect, File, Permit, Span, State, Step, Stop, Ticket, Time};

/// What all that put the server together share.
pub(super) struct Core {
    pub clock: Clock,
    state: Mutex<State>,
    /// What `state` has asked for, in that order.
    queue: Mutex<VecDeque<Effect>>,
    /// Whoever has it carries out what is in the queue.
    carrying: Mutex<()>,
    pub stable: Arc<Stable>,
    pub lease: Span,
    /// Whether there may be delegations.
    pub delegations: bool,
    pub callbacks: Arc<Callbacks>,
    /// Known once there are threads.
    pub crew: OnceLock<Crew>,
    /// Known once there are exports.
    pub service: OnceLock<Weak<Service>>,
    pub waiting: Waiters,
    /// Questions to holders of delegations. Asked when whoever wants to know is booked: the answer may be faster than he.
    pub asks: Mutex<HashMap<Ticket, (u64, Call)>>,
    /// Calls to clients that found no free slot.
    pub deferred: Mutex<Vec<(u64, Call)>>,
    /// Copies that go on behind their reply.
    pub copies: Arc<Copies>,
    connections: Mutex<HashMap<u64, Weak<Connection>>>,
    /// Files that somebody has open: they are there until he closes them, also without a name.
    open: Mutex<HashMap<File, InodeRef>>,
    /// Connections that this server has made, to clients of NFSv4.0.
    pub dialled: Mutex<HashMap<SocketAddr, Weak<Connection>>>,
    /// By whom, if not by this process.
    pub dial: Option<Dial>,
    /// It is written down that grace is over.
    settled: AtomicBool,
    /// What was last to be written down is.
    pub recording: AtomicBool,
    /// When it was last looked whether it is still there.
    looked: Mutex<Time>,
}

/// So often.
const LOOK: Span = Span::seconds(2);

impl Core {
    pub fn new(
        clock: Clock,
        state: State,
        stable: Arc<Stable>,
        lease: Span,
        delegations: bool,
        callbacks: Arc<Callbacks>,
        dial: Option<Dial>,
    ) -> Self {
        let settled = AtomicBool::new(!state.in_grace());
        Self {
            clock,
            state: Mutex::new(state),
            queue: Mutex::default(),
            carrying: Mutex::default(),
            stable,
            lease,
            delegations,
            callbacks,
            crew: OnceLock::new(),
            service: OnceLock::new(),
            waiting: Waiters::default(),
            asks: Mutex::default(),
            deferred: Mutex::default(),
            copies: Arc::default(),
            connections: Mutex::default(),
            open: Mutex::default(),
            dialled: Mutex::default(),
            dial,
            settled,
            recording: AtomicBool::new(true),
            looked: Mutex::default(),
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub fn service(&self) -> Option<Arc<Service>> {
        self.service.get()?.upgrade()
    }

    /// One critical section; what it has asked for is carried out when this returns.
    pub fn with<R>(self: &Arc<Self>, section: impl FnOnce(&mut State, Time) -> R) -> R {
        let (result, asked) = self.section(section);
        if asked {
            self.carry_out();
        }
        result
    }

    pub(super) fn section<R>(&self, section: impl FnOnce(&mut State, Time) -> R) -> (R, bool) {
        let now = self.now();
        let mut state = self.state.lock();
        let result = section(&mut state, now);
        let (effects, notes) = (state.effects(), state.notes());
        let asked = !effects.is_empty();
        // Before the mutex is let go: the order is that of the critical sections.
        self.queue.lock().extend(effects);
        drop(state);
        super::stats::tell(notes);
        (result, asked)
    }

    /// Carry out what is asked for, until nothing is. What another thread carries out meanwhile is waited for: it may be this one's.
    pub(super) fn carry_out(self: &Arc<Self>) {
        let _one = self.carrying.lock();
        loop {
            let Some(effect) = self.queue.lock().pop_front() else { return };
            match effect {
                Effect::Persist { ticket, change } => {
                    let kept = self.stable.change_clients(&change);
                    self.recording.store(kept.is_ok(), Ordering::Relaxed);
                    if let Err(error) = &kept {
                        log::error!("{error}");
                    }
                    self.ended(ticket, kept.is_ok());
                }
                Effect::Bump { ticket, file } => {
                    self.bump(file);
                    self.ended(ticket, true);
                }
                Effect::Open { ticket } => self.resume(ticket, &News::Again),
                Effect::Keep { file } => {
                    // Whoever opens it holds it until this is done.
                    if let Some((_, inode)) = self.file(file) {
                        self.open.lock().insert(file, inode);
                    }
                }
                Effect::Release { file } => self.release(file),
                Effect::Call { client, call: call @ Call::GetAttr { ticket, .. } } => {
                    self.asks.lock().insert(ticket, (client, call));
                }
                Effect::Call { client, call } => self.call(client, call),
            }
        }
    }

    fn ended(self: &Arc<Self>, ticket: Ticket, done: bool) {
        self.section(|state, _| if done { state.done(ticket) } else { state.failed(ticket) });
        self.resume(ticket, &News::Again);
    }

    /// A file that somebody holds something of.
    pub fn file(&self, file: File) -> Option<(Arc<ivers_vfs::Vfs>, InodeRef)> {
        let vfs = self.service()?.filesystem(file.export)?.vfs;
        match vfs.get_generation(Ino(file.inode), file.generation) {
            Ok(inode) => Some((vfs, inode)),
            Err(error) => {
                // What cannot be read shows nobody a change attribute either.
                if !is_gone(&error) {
                    log::error!("a file that a client holds: {error}");
                }
                None
            }
        }
    }

    fn release(&self, file: File) {
        let Some(inode) = self.open.lock().remove(&file) else { return };
        // Without a name it is deleted now, and that may take long.
        match self.crew.get() {
            Some(crew) if inode.attr().nlink == 0 => crew.run(move || drop(inode)),
            _ => drop(inode),
        }
    }

    /// Nobody has anything open any more: the filesystems are going to be unmounted.
    pub fn release_all(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        drop(open);
    }

    fn bump(&self, file: File) {
        if let Some((vfs, inode)) = self.file(file) {
            vfs.force_change(&inode, Touch::Nothing);
        }
    }

    /// As clients know it.
    pub fn handle(&self, file: File) -> Option<ivers_nfs4::types::FileHandle> {
        let service = self.service()?;
        let File { export, inode, generation } = file;
        let generation = service.filesystem(export)?.in_handles(inode, generation);
        Some(service.handles.encode(Target::Object { export, inode, generation }))
    }

    /// Let those go on who wait for a ticket.
    pub fn resume(self: &Arc<Self>, ticket: Ticket, news: &News) {
        let Some(crew) = self.crew.get() else { return };
        for waiter in self.waiting.take(ticket) {
            let (core, news) = (self.clone(), news.clone());
            crew.run(move || core.go_on(waiter, news));
        }
    }

    /// It is ended when this is dropped.
    pub fn hold(self: &Arc<Self>, permit: Permit) -> Held {
        Held::new(Leave { core: self.clone(), permit: Some(permit) })
    }

    pub fn is_pending(&self, ticket: Ticket) -> bool {
        self.state.lock().is_pending(ticket)
    }

    /// What stopped an operation where nothing can be waited for. `Ok`: it is done by now, try again; what is under way still has the client come again.
    pub fn passed(&self, stop: Stop) -> Step<()> {
        match stop {
            Stop::Gate(ticket) if !self.is_pending(ticket) => Ok(()),
            Stop::Gate(_) | Stop::Ask(_) => Err(NfsStat::Delay.into()),
            stop => Err(stop),
        }
    }

    // ---- connections -----------------------------------------------------------------------------------------------

    /// Somebody asks over this connection.
    pub fn meet(self: &Arc<Self>, connection: &Arc<Connection>) {
        let id = connection.id();
        if self.connections.lock().insert(id, Arc::downgrade(connection)).is_none() && connection.is_closed()
        {
            self.part(id);
        }
    }

    /// It is gone.
    pub fn part(self: &Arc<Self>, id: u64) {
        self.connections.lock().remove(&id);
        self.with(|state, _| state.disconnected(Conn(id)));
    }

    pub fn connection(&self, conn: Conn) -> Option<Arc<Connection>> {
        self.connections.lock().get(&conn.0)?.upgrade()
    }

    /// One that a host has made.
    pub fn connection_of(&self, host: IpAddr) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        let open = |connection: &Arc<Connection>| {
            !connection.is_closed() && connection.peer().ip().to_canonical() == host
        };
        connections.values().filter_map(Weak::upgrade).find(open)
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    /// Somebody may have taken the state directory away. Whoever has to be written down then is told to come again; once it is back, all is written there that was.
    fn look_after_records(&self) {
        let now = self.now();
        {
            let mut looked = self.looked.lock();
            if now.since(*looked) < LOOK {
                return;
            }
            *looked = now;
        }
        let settled = self.stable.settle();
        let was = self.recording.swap(settled.is_ok(), Ordering::Relaxed);
        match settled {
            Ok(true) if was => {}
            Ok(true) => log::info!("{:?} is there again", self.stable),
            Ok(false) => log::warn!("{:?} was gone, and is written anew", self.stable),
            Err(error) if was => log::error!("{error}"),
            Err(_) => {}
        }
    }

    /// Do what is due, and come again.
    pub fn tick(self: &Arc<Self>) {
        let next = self.with(|state, now| state.tick(now));
        let over = !self.settled.load(Ordering::Relaxed) && !self.with(|state, _| state.in_grace());
        if over {
            match self.stable.lease(self.lease, true) {
                Ok(()) => self.settled.store(true, Ordering::Relaxed),
                Err(error) => log::error!("{error}"),
            }
        }
        self.look_after_records();
        for waiter in self.waiting.overdue() {
            self.go_on(waiter, News::Late);
        }
        self.call_deferred();
        self.copy_again();
        let wait = next.since(self.now()).0.clamp(20, 250);
        let again = Arc::downgrade(self);
        if let Some(crew) = self.crew.get() {
            crew.after(Duration::from_millis(wait), move || {
                if let Some(core) = again.upgrade() {
                    core.tick();
                }
            });
        }
    }
}

struct Leave {
    core: Arc<Core>,
    permit: Option<Permit>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.core.with(|state, now| state.end(now, permit));
        }
    }
}
