//! One connection: what arrives on it, and what is sent over it.
//!
//! Locks, from the outside in: `inbound` (held by the one thread that reads), `wire`, `arm`. A connection is closed while none of them is held.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ivers_linger::Rhythm;
use parking_lot::{Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustls::ServerConnection;

use super::assemble::{Assembler, Broken, Message};
use super::brief;
use super::budget::{Account, Charge, ClientKey};
use super::hub::Hub;
use super::tls::{TlsPeer, sealed};
use super::{Action, Limits};

mod stay;

pub(super) use stay::Stay;
use stay::{Round, Stays, TURNS};

/// After so many bytes the others get their turn, and another thread may go on here while this one works on what came.
const ROUND_BYTES: usize = 256 << 10;

struct Inbound {
    assembler: Assembler,
    tls: bool,
    /// Jobs of this round of reading, and whether they are all brief.
    jobs: usize,
    brief: bool,
}

struct Wire {
    queue: VecDeque<Vec<u8>>,
    /// Of the first in the queue.
    sent: usize,
    unsent: usize,
    charge: Charge,
    tls: Option<Box<ServerConnection>>,
    /// Since when nothing could be written.
    stuck: Option<Instant>,
    choked: bool,
    /// The other side has not answered yet.
    connecting: bool,
}

/// What the poller is to tell about. It tells once, then it must be told again.
struct Arm {
    /// A thread reads.
    reading: bool,
    /// It stays with the connection while it works on what it has read.
    stays: Option<Stays>,
    /// How often one has.
    stays_total: u64,
    /// Something waits to be written.
    out: bool,
}

/// A connection.
pub struct Connection {
    id: u64,
    hub: Arc<Hub>,
    stream: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    /// We called.
    dialled: bool,
    account: Arc<Account>,
    inbound: Mutex<Inbound>,
    wire: Mutex<Wire>,
    arm: Mutex<Arm>,
    /// So many messages in a row came when nothing was under way.
    turns: AtomicU8,
    rhythm: Rhythm,
    closed: AtomicBool,
    kept: AtomicBool,
    under_way: AtomicUsize,
    /// Milliseconds of the hub's clock at which a message was last complete.
    heard_ms: AtomicU64,
    /// Milliseconds of the hub's clock at which a message began that has not ended; 0 if none has.
    begun_ms: AtomicU64,
    tls_begun: OnceLock<Instant>,
    tls_peer: OnceLock<TlsPeer>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection {} of {}", self.id, self.peer)
    }
}

impl Connection {
    pub(super) fn new(
        id: u64,
        hub: &Arc<Hub>,
        stream: TcpStream,
        peer: SocketAddr,
        account: Arc<Account>,
        dialled: bool,
    ) -> std::io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
        let local = stream.local_addr()?;
        let assembler = Assembler::new(account.clone(), hub.limits.record_bytes);
        let inbound = Inbound { assembler, tls: false, jobs: 0, brief: true };
        let wire = Wire {
            queue: VecDeque::new(),
            sent: 0,
            unsent: 0,
            charge: account.nothing(),
            tls: None,
            stuck: None,
            choked: false,
            connecting: dialled,
        };
        Ok(Arc::new(Self {
            id,
            hub: hub.clone(),
            stream,
            peer,
            local,
            dialled,
            account,
            inbound: Mutex::new(inbound),
            wire: Mutex::new(wire),
            arm: Mutex::new(Arm { reading: false, stays: None, stays_total: 0, out: dialled }),
            turns: AtomicU8::new(0),
            rhythm: Rhythm::default(),
            closed: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            heard_ms: AtomicU64::new(hub.now_ms()),
            begun_ms: AtomicU64::new(0),
            tls_begun: OnceLock::new(),
            tls_peer: OnceLock::new(),
        }))
    }

    /// A number that no other connection of this server has, or will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whom its bounds are for.
    pub fn client(&self) -> ClientKey {
        self.account.client()
    }

    /// Whether we called.
    pub fn dialled(&self) -> bool {
        self.dialled
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Who TLS says is there, once the handshake is over; nothing without TLS.
    pub fn tls(&self) -> Option<&TlsPeer> {
        self.tls_peer.get()
    }

    /// The socket, to be shown to somebody.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Somebody has made a session over it, or is known to be there in another way: silence is no reason to close it any more, nor is a lack of room for new
    /// connections.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// The server that it belongs to.
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// A call has come that will be answered.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.hub.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// It was answered.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.hub.under_way.fetch_sub(1, Ordering::Release);
    }

    /// Whether TLS may start: nothing is worked on, everything was sent, and it has not been started.
    pub(crate) fn is_quiet(&self) -> bool {
        let wire = self.wire.lock();
        self.under_way.load(Ordering::Acquire) == 0 && wire.unsent == 0 && wire.tls.is_none()
    }

    /// Whether replies pile up because nobody reads them.
    pub(crate) fn is_choked(&self) -> bool {
        self.wire.lock().choked
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.wire.lock().connecting
    }

    pub(super) fn unsent(&self) -> usize {
        self.wire.lock().unsent
    }

    /// Send a record, mark included. It is kept until the other side takes it; if the connection ends, it is lost.
    pub fn send(self: &Arc<Self>, record: Vec<u8>) {
        if let Some(record) = brief::keep(self, record) {
            self.send_at_once(record);
        }
    }

    /// The same, of several, without waiting for more.
    pub(super) fn send_at_once(self: &Arc<Self>, record: Vec<u8>) {
        if self.is_closed() {
            return;
        }
        let mut wire = self.wire.lock();
        let bytes = match &mut wire.tls {
            None => Ok(record),
            Some(tls) => tls.writer().write_all(&record).and_then(|()| sealed(tls)),
        };
        match bytes {
            Ok(bytes) => self.put(wire, bytes),
            Err(error) => {
                drop(wire);
                self.close(&format!("cannot encrypt: {error}"));
            }
        }
    }

    /// Write what can be written, and keep the rest.
    fn put(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>, bytes: Vec<u8>) {
        let mut written = 0;
        if wire.queue.is_empty() && !wire.connecting {
            match self.write(&bytes) {
                Ok(len) => written = len,
                Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot send: {error}"));
                }
            }
        }
        if written < bytes.len() {
            if wire.queue.is_empty() {
                wire.sent = written;
                wire.stuck = Some(Instant::now());
            }
            let more = bytes.len() - written;
            wire.unsent += more;
            wire.charge.grow_anyway(more);
            wire.queue.push_back(bytes);
        }
        self.settle(wire);
    }

    /// As many bytes as the system takes.
    fn write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match (&self.stream).write(&bytes[written..]) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(len) => written += len,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.hub.counters.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    /// The poller says that there is room again.
    fn flush(self: &Arc<Self>) {
        let mut wire = self.wire.lock();
        if wire.connecting {
            match self.stream.take_error() {
                Ok(None) => wire.connecting = false,
                Ok(Some(error)) | Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot connect: {error}"));
                }
            }
        }
        while let Some(first) = wire.queue.front() {
            let (left, len) = (first.len() - wire.sent, self.write(&first[wire.sent..]));
            match len {
                Ok(0) => break,
                Ok(len) => {
                    wire.unsent -= len;
                    wire.charge.shrink(len);
                    wire.stuck = Some(Instant::now());
                    if len < left {
                        wire.sent += len;
                        break;
                    }
                    wire.queue.pop_front();
                    wire.sent = 0;
                }
                Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot send: {error}"));
                }
            }
        }
        if wire.queue.is_empty() {
            wire.stuck = None;
        }
        self.settle(wire);
    }

    /// What follows from how much is unsent now.
    fn settle(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>) {
        let Limits { choke_bytes, unsent_bytes, .. } = self.hub.limits;
        let choked = wire.unsent > if wire.choked { choke_bytes / 2 } else { choke_bytes };
        if choked != wire.choked {
            wire.choked = choked;
            self.hub.choke(self, choked);
        }
        let out = !wire.queue.is_empty() || wire.connecting;
        {
            let mut arm = self.arm.lock();
            if arm.out != out {
                arm.out = out;
                // A thread that reads arms when it is done, but replies must not wait for that.
                if out {
                    self.rearm(&arm);
                }
            }
        }
        let too_much = wire.unsent > unsent_bytes;
        drop(wire);
        if too_much {
            self.close("the other side does not read");
        }
    }

    fn interest(arm: &Arm) -> EventFlags {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, !arm.reading);
        flags.set(EventFlags::OUT, arm.out);
        flags
    }

    fn rearm(&self, arm: &Arm) {
        // It fails for what was closed meanwhile, which needs no events.
        let _ =
            epoll::modify(&self.hub.epoll, &self.stream, EventData::new_u64(self.id), Self::interest(arm));
    }

    pub(super) fn register(&self) -> std::io::Result<()> {
        let arm = self.arm.lock();
        epoll::add(&self.hub.epoll, &self.stream, EventData::new_u64(self.id), Self::interest(&arm))?;
        Ok(())
    }

    /// The poller has something to tell. The calling thread may be asked to stay: then it works on what came, and
    /// [`Stay::go_on`]s.
    pub(super) fn ready(self: &Arc<Self>, flags: EventFlags, scratch: &mut [u8]) -> Option<Stay> {
        if flags.contains(EventFlags::OUT) {
            self.flush();
        }
        let readable =
            flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        {
            let mut arm = self.arm.lock();
            match (readable, arm.reading) {
                // Whoever reads will see the end, and arms then; armed now, it would be told over and over.
                (true, true) => return None,
                (true, false) => {
                    arm.reading = true;
                    if arm.out {
                        self.rearm(&arm);
                    }
                }
                (false, _) => {
                    self.rearm(&arm);
                    return None;
                }
            }
        }
        let read = self.read(scratch);
        let mut arm = self.arm.lock();
        if (self.turns.load(Ordering::Relaxed) >= TURNS || read == Round::Brief) && !self.is_closed() {
            let number = arm.stays_total;
            arm.stays_total += 1;
            arm.stays = Some(Stays { number, looks: 0 });
            return Some(Stay::with(self.clone(), number));
        }
        arm.reading = false;
        self.rearm(&arm);
        None
    }

    fn read(self: &Arc<Self>, scratch: &mut [u8]) -> Round {
        let mut inbound = self.inbound.lock();
        (inbound.jobs, inbound.brief) = (0, true);
        let ended = self.read_round(&mut inbound, scratch);
        let begun = inbound.assembler.begun().map_or(0, |begun| self.hub.ms(begun).max(1));
        self.begun_ms.store(begun, Ordering::Relaxed);
        if ended.is_err() || self.is_closed() {
            inbound.assembler = Assembler::new(self.account.clone(), 0);
        }
        let round = match (inbound.jobs, inbound.brief) {
            (0, _) => Round::Nothing,
            (_, true) => Round::Brief,
            (_, false) => Round::Other,
        };
        drop(inbound);
        if let Err(why) = ended {
            self.close(&why);
        }
        round
    }

    fn read_round(self: &Arc<Self>, inbound: &mut Inbound, scratch: &mut [u8]) -> Result<(), String> {
        let mut taken = 0;
        while taken < ROUND_BYTES && !self.is_closed() {
            let direct = if inbound.tls { None } else { inbound.assembler.direct() };
            let (direct, asked, len) = match direct {
                Some(room) => {
                    let asked = room.capacity() - room.len();
                    (true, asked, rustix::io::read(&self.stream, spare_capacity(room)))
                }
                None => (false, scratch.len(), rustix::io::read(&self.stream, &mut *scratch)),
            };
            let len = match len {
                Ok(0) => return Err("the other side has closed it".into()),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(format!("cannot receive: {error}")),
            };
            self.hub.counters.bytes_in.fetch_add(len as u64, Ordering::Relaxed);
            if direct {
                if let Some(message) = inbound.assembler.took(len) {
                    self.deliver(inbound, message, &[])?;
                }
            } else if inbound.tls {
                let plain = self.unseal(&scratch[..len])?;
                self.feed(inbound, &plain)?;
            } else {
                self.feed(inbound, &scratch[..len])?;
            }
            taken += len;
            if len < asked {
                return Ok(());
            }
        }
        Ok(())
    }

    fn feed(self: &Arc<Self>, inbound: &mut Inbound, mut bytes: &[u8]) -> Result<(), String> {
        loop {
            match inbound.assembler.feed(&mut bytes) {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => self.deliver(inbound, message, bytes)?,
                Err(Broken) => return Err("a record that is too large or makes no sense".into()),
            }
        }
    }

    fn deliver(
        self: &Arc<Self>,
        inbound: &mut Inbound,
        message: Message,
        behind: &[u8],
    ) -> Result<(), String> {
        self.heard_ms.store(self.hub.now_ms(), Ordering::Relaxed);
        let overlaps = self.under_way.load(Ordering::Relaxed) > 0;
        let turns = if overlaps { 0 } else { self.turns.load(Ordering::Relaxed) + 1 };
        self.turns.store(turns.min(TURNS), Ordering::Relaxed);
        let action = self.hub.handler.message(self, message);
        inbound.jobs += 1;
        inbound.brief &= matches!(action, Action::Nothing | Action::Brief(_));
        match action {
            Action::Nothing => {}
            Action::Work(job) => self.hub.push(self, job, false),
            Action::Brief(job) => self.hub.push(self, job, true),
            Action::Urgent(job) => self.hub.push_urgent_read(job),
            Action::Close(why) => return Err(why.into()),
            Action::StartTls(reply) => {
                // [RFC9289 4.1] What came behind the question was not protected, and would be taken for what is: somebody may have put it there.
                if !behind.is_empty() {
                    return Err("bytes before the TLS handshake".into());
                }
                let Some(tls) = &self.hub.tls else { return Err("TLS is not configured".into()) };
                let connection = tls.connection().map_err(|error| format!("cannot start TLS: {error}"))?;
                let _ = self.tls_begun.set(Instant::now());
                inbound.tls = true;
                // One step, so that nothing else goes out in the clear behind the reply.
                let mut wire = self.wire.lock();
                wire.tls = Some(connection);
                self.put(wire, reply);
            }
        }
        Ok(())
    }

    /// Decrypt, and answer what belongs to TLS itself.
    fn unseal(self: &Arc<Self>, mut bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut plain = Vec::new();
        let mut wire = self.wire.lock();
        let Some(tls) = &mut wire.tls else { return Err("TLS was not started".into()) };
        let mut ended = Ok(());
        while !bytes.is_empty() && ended.is_ok() {
            ended = tls.read_tls(&mut bytes).map_err(|error| error.to_string()).and_then(|_| {
                let state = tls.process_new_packets().map_err(|error| format!("TLS: {error}"))?;
                let at = plain.len();
                plain.resize(at + state.plaintext_bytes_to_read(), 0);
                tls.reader().read_exact(&mut plain[at..]).map_err(|error| error.to_string())?;
                if state.peer_has_closed() { Err("the other side has ended TLS".into()) } else { Ok(()) }
            });
        }
        if ended.is_ok() && !tls.is_handshaking() && self.tls_peer.get().is_none() {
            let _ = self.tls_peer.set(TlsPeer::of(tls));
        }
        if let Ok(bytes) = sealed(tls)
            && !bytes.is_empty()
        {
            self.put(wire, bytes);
        }
        ended.map(|()| plain)
    }

    /// Whether it has been of no use for too long, and in which way.
    pub(super) fn overdue(&self, now_ms: u64) -> Option<&'static str> {
        let Limits { record_time, idle_time, unread_time, handshake_time, .. } = self.hub.limits;
        let past = |since_ms: u64, time: Duration| now_ms.saturating_sub(since_ms) > time.as_millis() as u64;
        let begun = self.begun_ms.load(Ordering::Relaxed);
        if begun != 0 && past(begun, record_time) {
            return Some("a record does not end");
        }
        if self.tls_begun.get().is_some_and(|at| at.elapsed() > handshake_time) && self.tls().is_none() {
            return Some("the TLS handshake does not end");
        }
        if self.wire.lock().stuck.is_some_and(|at| at.elapsed() > unread_time) {
            return Some("replies are not read");
        }
        if self.is_spare() && past(self.heard_ms.load(Ordering::Relaxed), idle_time) {
            return Some("nothing is done over it");
        }
        None
    }

    /// Whether nobody would miss it.
    pub(super) fn is_spare(&self) -> bool {
        !self.kept.load(Ordering::Relaxed) && self.under_way.load(Ordering::Relaxed) == 0
    }

    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Say that nothing more will be sent, and take what still comes.
    pub(super) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// End it. What is worked on goes on, and its replies are lost.
    pub fn close(self: &Arc<Self>, why: &str) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        log::debug!("{self:?} ends: {why}");
        let _ = epoll::delete(&self.hub.epoll, &self.stream);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.hub.forget(self);
        self.account.leave();
        {
            let mut wire = self.wire.lock();
            wire.queue.clear();
            wire.unsent = 0;
            wire.stuck = None;
            wire.charge.shrink(usize::MAX);
        }
        if let Some(mut inbound) = self.inbound.try_lock() {
            inbound.assembler = Assembler::new(self.account.clone(), 0);
        }
        self.hub.handler.closed(self);
    }
}
