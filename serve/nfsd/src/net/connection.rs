//! One connection: what arrives on it, and what is sent on it.
//!
//! Lock order: `inbound` (held by the one thread that reads), `wire`, `poll_state`. No lock is held while a
//! connection is closed.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ivers_busy_poll::PollHistory;
use parking_lot::{Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustls::ServerConnection;

use super::budget::{Account, Charge, ClientKey};
use super::reactor::Reactor;
use super::record_reader::{InvalidRecord, Message, RecordReader};
use super::reply_batch;
use super::tls::{TlsPeer, encrypted};
use super::{Action, Limits};

mod busy_poll;

pub(super) use busy_poll::BusyPoll;
use busy_poll::{MIN_TURNS, PollId, Round};

/// After this many bytes other connections get their turn, and another thread may read here while this one
/// executes requests.
const ROUND_BYTES: usize = 256 << 10;

struct Inbound {
    reader: RecordReader,
    tls: bool,
    /// Jobs that the current round of reading produced, and whether all of them are non-blocking.
    jobs: usize,
    all_non_blocking: bool,
}

struct Wire {
    queue: VecDeque<Vec<u8>>,
    /// Bytes sent of the first record in the queue.
    sent: usize,
    unsent: usize,
    charge: Charge,
    tls: Option<Box<ServerConnection>>,
    /// Since when the socket accepts no bytes.
    stuck: Option<Instant>,
    choked: bool,
    /// The connection is not established yet.
    connecting: bool,
}

/// Which events epoll reports. It reports once, then it must be re-armed.
struct PollState {
    /// A thread is reading.
    reading: bool,
    /// The reading thread keeps polling after it executed what it read.
    busy_poll: Option<PollId>,
    /// Number of busy polls so far; identifies each of them.
    busy_polls: u64,
    /// Bytes wait to be written.
    out: bool,
}

/// A connection.
pub struct Connection {
    id: u64,
    reactor: Arc<Reactor>,
    stream: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    /// The server opened the connection.
    dialled: bool,
    account: Arc<Account>,
    inbound: Mutex<Inbound>,
    wire: Mutex<Wire>,
    poll_state: Mutex<PollState>,
    /// Number of consecutive messages that arrived while no call was in progress; at most [`MIN_TURNS`].
    turns: AtomicU8,
    poll_history: PollHistory,
    closed: AtomicBool,
    is_kept: AtomicBool,
    calls_in_progress: AtomicUsize,
    /// When a message was last complete, in milliseconds of the reactor's clock.
    last_message_ms: AtomicU64,
    /// When the current, incomplete message started to arrive; 0 if there is none.
    message_start_ms: AtomicU64,
    tls_start: OnceLock<Instant>,
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
        reactor: &Arc<Reactor>,
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
        let reader = RecordReader::new(account.clone(), reactor.limits.record_bytes);
        let inbound = Inbound { reader, tls: false, jobs: 0, all_non_blocking: true };
        let wire = Wire {
            queue: VecDeque::new(),
            sent: 0,
            unsent: 0,
            charge: account.empty_charge(),
            tls: None,
            stuck: None,
            choked: false,
            connecting: dialled,
        };
        Ok(Arc::new(Self {
            id,
            reactor: reactor.clone(),
            stream,
            peer,
            local,
            dialled,
            account,
            inbound: Mutex::new(inbound),
            wire: Mutex::new(wire),
            poll_state: Mutex::new(PollState {
                reading: false,
                busy_poll: None,
                busy_polls: 0,
                out: dialled,
            }),
            turns: AtomicU8::new(0),
            poll_history: PollHistory::default(),
            closed: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            calls_in_progress: AtomicUsize::new(0),
            last_message_ms: AtomicU64::new(reactor.now_ms()),
            message_start_ms: AtomicU64::new(0),
            tls_start: OnceLock::new(),
            tls_peer: OnceLock::new(),
        }))
    }

    /// Returns a number that is unique in this server.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the local address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the client that the limits apply to.
    pub fn client(&self) -> ClientKey {
        self.account.client()
    }

    /// Returns whether the server opened the connection.
    pub fn dialled(&self) -> bool {
        self.dialled
    }

    /// Returns whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns the TLS peer after the handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&TlsPeer> {
        self.tls_peer.get()
    }

    /// Returns the socket, for passing it to another process.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Marks the connection as in use, because a session or a client belongs to it. It is not closed for
    /// idleness, nor to make room for new connections.
    pub fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Returns the reactor that it belongs to.
    pub(crate) fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// Counts a call in progress.
    pub(crate) fn call_started(&self) {
        self.calls_in_progress.fetch_add(1, Ordering::Relaxed);
        self.reactor.calls_in_progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a call.
    pub(crate) fn call_ended(&self) {
        self.calls_in_progress.fetch_sub(1, Ordering::Relaxed);
        self.reactor.calls_in_progress.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether TLS may start: no call is in progress, everything is sent, and TLS has not started.
    pub(crate) fn is_quiet(&self) -> bool {
        let wire = self.wire.lock();
        self.calls_in_progress.load(Ordering::Acquire) == 0 && wire.unsent == 0 && wire.tls.is_none()
    }

    /// Returns whether the peer does not read its replies.
    pub(crate) fn is_choked(&self) -> bool {
        self.wire.lock().choked
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.wire.lock().connecting
    }

    pub(super) fn unsent(&self) -> usize {
        self.wire.lock().unsent
    }

    /// Sends a record that includes its mark. Queues it until the peer accepts it. If the connection ends,
    /// the record is lost.
    pub fn send(self: &Arc<Self>, record: Vec<u8>) {
        if let Some(record) = reply_batch::add(self, record) {
            self.send_at_once(record);
        }
    }

    /// Sends one or more records without batching them.
    pub(super) fn send_at_once(self: &Arc<Self>, record: Vec<u8>) {
        if self.is_closed() {
            return;
        }
        let mut wire = self.wire.lock();
        let bytes = match &mut wire.tls {
            None => Ok(record),
            Some(tls) => tls.writer().write_all(&record).and_then(|()| encrypted(tls)),
        };
        match bytes {
            Ok(bytes) => self.write_or_queue(wire, bytes),
            Err(error) => {
                drop(wire);
                self.close(&format!("cannot encrypt: {error}"));
            }
        }
    }

    /// Writes as much as possible and queues the rest.
    fn write_or_queue(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>, bytes: Vec<u8>) {
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
        self.update_limits(wire);
    }

    /// Writes until the socket accepts no more bytes. Returns the number of bytes written.
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
        self.reactor.counters.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    /// Writes queued bytes: the socket is writable.
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
        self.update_limits(wire);
    }

    /// Updates choking and events after the number of unsent bytes changed.
    fn update_limits(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>) {
        let Limits { choke_bytes, unsent_bytes, .. } = self.reactor.limits;
        let choked = wire.unsent > if wire.choked { choke_bytes / 2 } else { choke_bytes };
        if choked != wire.choked {
            wire.choked = choked;
            self.reactor.set_choked(self, choked);
        }
        let out = !wire.queue.is_empty() || wire.connecting;
        {
            let mut state = self.poll_state.lock();
            if state.out != out {
                state.out = out;
                // The reading thread re-arms when it is done, but replies must not wait for that.
                if out {
                    self.rearm(&state);
                }
            }
        }
        let too_much = wire.unsent > unsent_bytes;
        drop(wire);
        if too_much {
            self.close("the peer does not read its replies");
        }
    }

    fn interest(state: &PollState) -> EventFlags {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, !state.reading);
        flags.set(EventFlags::OUT, state.out);
        flags
    }

    fn rearm(&self, state: &PollState) {
        // This fails if the connection was closed concurrently; then no events are needed.
        let _ = epoll::modify(
            &self.reactor.epoll,
            &self.stream,
            EventData::new_u64(self.id),
            Self::interest(state),
        );
    }

    pub(super) fn register(&self) -> std::io::Result<()> {
        let state = self.poll_state.lock();
        epoll::add(&self.reactor.epoll, &self.stream, EventData::new_u64(self.id), Self::interest(&state))?;
        Ok(())
    }

    /// Handles events. If it returns a [`BusyPoll`], the calling thread executes the queued jobs, and then
    /// calls [`BusyPoll::poll_next`].
    pub(super) fn ready(self: &Arc<Self>, flags: EventFlags, buffer: &mut [u8]) -> Option<BusyPoll> {
        if flags.contains(EventFlags::OUT) {
            self.flush();
        }
        let readable =
            flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        {
            let mut state = self.poll_state.lock();
            match (readable, state.reading) {
                // The reading thread sees the end and re-arms then. Re-arming now would report the event over
                // and over.
                (true, true) => return None,
                (true, false) => {
                    state.reading = true;
                    if state.out {
                        self.rearm(&state);
                    }
                }
                (false, _) => {
                    self.rearm(&state);
                    return None;
                }
            }
        }
        let read = self.read(buffer);
        let mut state = self.poll_state.lock();
        if (self.turns.load(Ordering::Relaxed) >= MIN_TURNS || read == Round::NonBlocking)
            && !self.is_closed()
        {
            let number = state.busy_polls;
            state.busy_polls += 1;
            state.busy_poll = Some(PollId { number, ticks: 0 });
            return Some(BusyPoll::new(self.clone(), number));
        }
        state.reading = false;
        self.rearm(&state);
        None
    }

    fn read(self: &Arc<Self>, buffer: &mut [u8]) -> Round {
        let mut inbound = self.inbound.lock();
        (inbound.jobs, inbound.all_non_blocking) = (0, true);
        let ended = self.read_round(&mut inbound, buffer);
        let start = inbound.reader.started().map_or(0, |start| self.reactor.ms(start).max(1));
        self.message_start_ms.store(start, Ordering::Relaxed);
        if ended.is_err() || self.is_closed() {
            inbound.reader = RecordReader::new(self.account.clone(), 0);
        }
        let round = match (inbound.jobs, inbound.all_non_blocking) {
            (0, _) => Round::Nothing,
            (_, true) => Round::NonBlocking,
            (_, false) => Round::Other,
        };
        drop(inbound);
        if let Err(why) = ended {
            self.close(&why);
        }
        round
    }

    fn read_round(self: &Arc<Self>, inbound: &mut Inbound, buffer: &mut [u8]) -> Result<(), String> {
        let mut taken = 0;
        while taken < ROUND_BYTES && !self.is_closed() {
            let direct = if inbound.tls { None } else { inbound.reader.read_buffer() };
            let (direct, asked, len) = match direct {
                Some(room) => {
                    let asked = room.capacity() - room.len();
                    (true, asked, rustix::io::read(&self.stream, spare_capacity(room)))
                }
                None => (false, buffer.len(), rustix::io::read(&self.stream, &mut *buffer)),
            };
            let len = match len {
                Ok(0) => return Err("the peer closed it".into()),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(format!("cannot receive: {error}")),
            };
            self.reactor.counters.bytes_in.fetch_add(len as u64, Ordering::Relaxed);
            if direct {
                if let Some(message) = inbound.reader.bytes_read(len) {
                    self.deliver(inbound, message, &[])?;
                }
            } else if inbound.tls {
                let plain = self.decrypt(&buffer[..len])?;
                self.feed(inbound, &plain)?;
            } else {
                self.feed(inbound, &buffer[..len])?;
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
            match inbound.reader.feed(&mut bytes) {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => self.deliver(inbound, message, bytes)?,
                Err(InvalidRecord) => return Err("invalid or oversized record".into()),
            }
        }
    }

    fn deliver(self: &Arc<Self>, inbound: &mut Inbound, message: Message, rest: &[u8]) -> Result<(), String> {
        self.last_message_ms.store(self.reactor.now_ms(), Ordering::Relaxed);
        let overlaps = self.calls_in_progress.load(Ordering::Relaxed) > 0;
        let turns = if overlaps { 0 } else { self.turns.load(Ordering::Relaxed) + 1 };
        self.turns.store(turns.min(MIN_TURNS), Ordering::Relaxed);
        let action = self.reactor.handler.message(self, message);
        inbound.jobs += 1;
        inbound.all_non_blocking &= matches!(action, Action::Done | Action::NonBlocking(_));
        match action {
            Action::Done => {}
            Action::Work(job) => self.reactor.push(self, job, false),
            Action::NonBlocking(job) => self.reactor.push(self, job, true),
            Action::Urgent(job) => self.reactor.push_urgent_read(job),
            Action::Close(why) => return Err(why.into()),
            Action::StartTls(reply) => {
                // [RFC9289 4.1] Bytes after the request were not protected, but would be taken for protected
                // ones: an attacker may have added them.
                if !rest.is_empty() {
                    return Err("unencrypted bytes after the request for TLS".into());
                }
                let Some(tls) = &self.reactor.tls else { return Err("TLS is not configured".into()) };
                let connection = tls.connection().map_err(|error| format!("cannot start TLS: {error}"))?;
                let _ = self.tls_start.set(Instant::now());
                inbound.tls = true;
                // One step under the lock, so that nothing else is sent unencrypted after the reply.
                let mut wire = self.wire.lock();
                wire.tls = Some(connection);
                self.write_or_queue(wire, reply);
            }
        }
        Ok(())
    }

    /// Decrypts bytes and answers messages of TLS itself.
    fn decrypt(self: &Arc<Self>, mut bytes: &[u8]) -> Result<Vec<u8>, String> {
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
                if state.peer_has_closed() { Err("the peer ended TLS".into()) } else { Ok(()) }
            });
        }
        if ended.is_ok() && !tls.is_handshaking() && self.tls_peer.get().is_none() {
            let _ = self.tls_peer.set(TlsPeer::of(tls));
        }
        if let Ok(bytes) = encrypted(tls)
            && !bytes.is_empty()
        {
            self.write_or_queue(wire, bytes);
        }
        ended.map(|()| plain)
    }

    /// Returns the reason to close the connection if a deadline has passed.
    pub(super) fn overdue(&self, now_ms: u64) -> Option<&'static str> {
        let Limits { record_time, idle_time, unread_time, handshake_time, .. } = self.reactor.limits;
        let past = |since_ms: u64, time: Duration| now_ms.saturating_sub(since_ms) > time.as_millis() as u64;
        let begun = self.message_start_ms.load(Ordering::Relaxed);
        if begun != 0 && past(begun, record_time) {
            return Some("timeout: incomplete record");
        }
        if self.tls_start.get().is_some_and(|at| at.elapsed() > handshake_time) && self.tls().is_none() {
            return Some("timeout: TLS handshake");
        }
        if self.wire.lock().stuck.is_some_and(|at| at.elapsed() > unread_time) {
            return Some("timeout: replies are not read");
        }
        if self.is_dispensable() && past(self.last_message_ms.load(Ordering::Relaxed), idle_time) {
            return Some("timeout: idle");
        }
        None
    }

    /// Returns whether the connection has no session and no call in progress.
    pub(super) fn is_dispensable(&self) -> bool {
        !self.is_kept.load(Ordering::Relaxed) && self.calls_in_progress.load(Ordering::Relaxed) == 0
    }

    pub(super) fn last_message_ms(&self) -> u64 {
        self.last_message_ms.load(Ordering::Relaxed)
    }

    /// Shuts down the sending direction. Reading goes on.
    pub(super) fn shut_down_writes(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection. Calls in progress continue, but their replies are lost.
    pub fn close(self: &Arc<Self>, why: &str) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        log::debug!("{self:?} closed: {why}");
        let _ = epoll::delete(&self.reactor.epoll, &self.stream);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.reactor.forget(self);
        self.account.close();
        {
            let mut wire = self.wire.lock();
            wire.queue.clear();
            wire.unsent = 0;
            wire.stuck = None;
            wire.charge.shrink(usize::MAX);
        }
        if let Some(mut inbound) = self.inbound.try_lock() {
            inbound.reader = RecordReader::new(self.account.clone(), 0);
        }
        self.reactor.handler.closed(self);
    }
}
