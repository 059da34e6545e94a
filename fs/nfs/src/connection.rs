//! A TCP connection, and the threads that wait for replies on it.
//!
//! One of the waiting threads reads the socket and passes each reply to the thread that waits for it. When it
//! has its own reply, it wakes another one, which takes its place. Each thread has its own condition
//! variable: a reply wakes only the thread that waits for it. The thread that executes callbacks
//! ([`Connection::calls`]) starts to read only if no thread waits. A connection that broke stays broken:
//! later bytes are ignored.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ivers_busy_poll::{BusyPoller, PollHistory};
use ivers_nfs4::record::Records;
use ivers_nfs4::rpc::Kind;
use ivers_nfs4::shared::Message;
use ivers_vfs::sync::{Condvar, RankedMutex, RankedMutexGuard, rank};

use crate::callbacks::BACK_BYTES;
use crate::target::ServerName;
use crate::wire::{Wire, is_pause};

/// How long a read of the socket waits before the thread looks at its time limit.
const READ_SLICE: Duration = Duration::from_millis(500);
/// How long the server may take to accept bytes of a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that a read of the socket takes.
const READ_BYTES: usize = 256 << 10;
/// How long the socket must not have been read before the callback thread reads it.
const IDLE: Duration = Duration::from_millis(10);
/// The most callbacks that wait to be executed.
const CALLS_MAX: usize = 64;
/// The most requests in flight whose replies no thread waits for.
const ABANDONED_MAX: usize = 64;

/// Connects to the first address of a server that answers, within a time limit for each. Sets the options of
/// the socket: a sandboxed process cannot.
pub fn connect(server: &ServerName, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(READ_SLICE))?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::new(ErrorKind::NotFound, "the server's name has no address")))
}

/// Why a request failed: its connection is broken, or its time is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// The receiving half; the thread that reads has it.
struct Reader {
    records: Records,
    buffer: Vec<u8>,
}

/// How long a thread waits for a reply, and what happens then.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// At this time the server counts as too slow, and the connection fails.
    Patience(Instant),
    /// At this time the request is given up. The connection fails only if no other request waits for a reply,
    /// or if too many requests were given up.
    Limit(Instant),
}

/// The state of the reply to a request.
enum Expected {
    /// A thread has sent the request, or sends it.
    Awaited(Waiter),
    /// It has arrived.
    Arrived(Vec<u8>),
    /// No thread waits for it: the request was given up.
    Abandoned,
}

/// A thread that sends a request and waits for its reply.
#[derive(Default)]
struct Waiter {
    woken: Arc<Condvar>,
    /// False while the thread still sends: the send can block until the server reads.
    is_waiting: bool,
}

impl Waiter {
    fn wake(&self) {
        self.woken.notify_all();
    }
}

struct Receiving {
    /// The requests in flight, and those whose replies have arrived and no thread has taken.
    replies: HashMap<u32, Expected>,
    /// `None` while a thread reads.
    reader: Option<Box<Reader>>,
    /// When the socket was read last.
    read_at: Instant,
    /// Callbacks that wait to be executed.
    calls: Vec<Vec<u8>>,
    /// Whether there is a callback thread.
    served: bool,
    broken: Option<Broken>,
}

/// A connection.
pub struct Connection {
    wire: Wire,
    poller: BusyPoller,
    poll_history: PollHistory,
    /// Held while a record is written.
    sending: RankedMutex<rank::Driver<3>, ()>,
    receiving: RankedMutex<rank::Driver<4>, Receiving>,
    /// Signalled when callbacks arrive.
    called: Condvar,
}

impl Connection {
    /// Uses a wire over a socket of [`connect`]. `reply_bytes_max` bounds each reply. A thread that waits for
    /// a reply polls for it for at most `busy_poll` before it sleeps.
    pub fn new(wire: Wire, reply_bytes_max: usize, busy_poll: Duration) -> Self {
        let reader = Reader { records: Records::new(reply_bytes_max), buffer: vec![0; READ_BYTES] };
        let receiving = Receiving {
            replies: HashMap::new(),
            reader: Some(Box::new(reader)),
            read_at: Instant::now(),
            calls: Vec::new(),
            served: false,
            broken: None,
        };
        Self {
            wire,
            poller: BusyPoller::new(busy_poll),
            poll_history: PollHistory::default(),
            sending: RankedMutex::new(()),
            receiving: RankedMutex::new(receiving),
            called: Condvar::new(),
        }
    }

    /// Ends the connection, for this reason unless it is broken already. All waiting calls fail.
    pub fn fail(&self, why: impl Into<String>) -> Broken {
        let mut receiving = self.receiving.lock();
        let broken = receiving.broken.get_or_insert_with(|| Broken(why.into())).clone();
        // Wakes the thread that reads.
        self.wire.shutdown();
        receiving.waiters().for_each(Waiter::wake);
        self.called.notify_all();
        broken
    }

    /// Returns whether calls can succeed.
    pub fn is_usable(&self) -> bool {
        self.receiving.lock().broken.is_none()
    }

    /// Sends a call, whose first four bytes are free for the record mark, and waits for its reply. No other
    /// call in flight may have this `xid`.
    pub fn call(&self, xid: u32, record: Message, until: Until) -> Result<Vec<u8>, Broken> {
        {
            let mut receiving = self.receiving.lock();
            if let Some(broken) = &receiving.broken {
                return Err(broken.clone());
            }
            receiving.replies.insert(xid, Expected::Awaited(Waiter::default()));
        }
        self.send(record)?;
        self.wait(xid, until)
    }

    /// Sends a record, whose first four bytes are free for the record mark.
    pub fn send(&self, mut record: Message) -> Result<(), Broken> {
        record.set_mark();
        let sent = {
            let _sending = self.sending.lock();
            self.wire.send(&record)
        };
        // After a part of a record, the server would take the next record for the rest of it.
        sent.map_err(|error| self.fail(format!("cannot send: {error}")))
    }

    /// Notes that there is a callback thread. Returns whether there was none.
    pub fn begin_serving(&self) -> bool {
        !std::mem::replace(&mut self.receiving.lock().served, true)
    }

    /// Waits for callbacks and returns them; an empty list after a while. Reads the socket if no other thread
    /// does.
    pub fn calls(&self) -> Result<Vec<Vec<u8>>, Broken> {
        let end = Instant::now() + READ_SLICE;
        let mut receiving = self.receiving.lock();
        loop {
            if !receiving.calls.is_empty() {
                return Ok(std::mem::take(&mut receiving.calls));
            }
            if let Some(broken) = &receiving.broken {
                return Err(broken.clone());
            }
            let now = Instant::now();
            if now >= end {
                return Ok(Vec::new());
            }
            let idle_at = receiving.read_at + IDLE;
            let idle = idle_at <= now && receiving.waiters().next().is_none();
            match receiving.reader.take_if(|_| idle) {
                Some(reader) => {
                    drop(receiving);
                    receiving = self.take_turn(reader)?;
                    receiving.wake_next_reader();
                }
                None => {
                    let left = idle_at.saturating_duration_since(now).max(IDLE / 2);
                    receiving.wait_for(&self.called, left);
                }
            }
        }
    }

    fn wait(&self, xid: u32, until: Until) -> Result<Vec<u8>, Broken> {
        let (Until::Patience(deadline) | Until::Limit(deadline)) = until;
        let mut receiving = self.receiving.lock();
        loop {
            if let Some(Expected::Arrived(reply)) = receiving.replies.get_mut(&xid) {
                let reply = std::mem::take(reply);
                receiving.replies.remove(&xid);
                receiving.wake_next_reader();
                return Ok(reply);
            }
            if let Some(broken) = &receiving.broken {
                return Err(broken.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.give_up(receiving, xid, until));
            }
            if let Some(reader) = receiving.reader.take() {
                drop(receiving);
                self.poller.poll_readable(self.wire.socket(), &self.poll_history);
                receiving = self.take_turn(reader)?;
                continue;
            }
            let Some(woken) = receiving.set_waiting(xid, true) else { continue };
            receiving.wait_for(&woken, left);
            receiving.set_waiting(xid, false);
        }
    }

    /// Gives a request up, because its time is over.
    fn give_up(&self, mut receiving: RankedMutexGuard<'_, Receiving>, xid: u32, until: Until) -> Broken {
        receiving.replies.insert(xid, Expected::Abandoned);
        let awaited = receiving.waiters().count();
        let abandoned = receiving.replies.values().filter(|it| matches!(it, Expected::Abandoned)).count();
        receiving.wake_next_reader();
        drop(receiving);
        match until {
            Until::Limit(_) if awaited > 0 && abandoned <= ABANDONED_MAX => {
                Broken("the time of the request is over".into())
            }
            _ => self.fail("no reply in time"),
        }
    }

    /// Reads the socket once, and hands over what arrived. The caller reads again, or
    /// [wakes the next reader](Receiving::wake_next_reader).
    fn take_turn(&self, mut reader: Box<Reader>) -> Result<RankedMutexGuard<'_, Receiving>, Broken> {
        let arrived = self.read(&mut reader);
        let mut receiving = self.receiving.lock();
        receiving.reader = Some(reader);
        receiving.read_at = Instant::now();
        let delivered = arrived.and_then(|messages| deliver(&mut receiving, messages));
        if let Err(why) = delivered {
            drop(receiving);
            return Err(self.fail(why));
        }
        if !receiving.calls.is_empty() {
            self.called.notify_all();
        }
        Ok(receiving)
    }

    /// Reads what has arrived. Returns complete messages, none if nothing arrives for a while.
    fn read(&self, reader: &mut Reader) -> Result<Vec<Vec<u8>>, String> {
        let direct = reader.records.read_buffer().filter(|_| !self.wire.is_secured());
        let is_direct = direct.is_some();
        let received = match direct {
            Some(room) => self.wire.receive_directly(room),
            None => self.wire.receive(&mut reader.buffer),
        };
        let len = match received {
            Ok(None) => return Err("the server closed the connection".into()),
            Ok(Some(len)) => len,
            Err(error) if is_pause(error.kind()) => return Ok(Vec::new()),
            Err(error) => return Err(format!("cannot receive: {error}")),
        };
        if is_direct {
            return Ok(reader.records.bytes_read(len).into_iter().collect());
        }
        let mut bytes = reader.buffer.get(..len).unwrap_or_default();
        let mut messages = Vec::new();
        while let Some(message) = reader.records.feed(&mut bytes).map_err(|error| error.to_string())? {
            messages.push(message);
        }
        Ok(messages)
    }
}

impl Receiving {
    /// The threads whose replies have not arrived.
    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.replies.values().filter_map(|expected| match expected {
            Expected::Awaited(waiter) => Some(waiter),
            _ => None,
        })
    }

    /// Notes whether a thread waits. `None`: its reply has arrived.
    fn set_waiting(&mut self, xid: u32, is_waiting: bool) -> Option<Arc<Condvar>> {
        let Some(Expected::Awaited(waiter)) = self.replies.get_mut(&xid) else { return None };
        waiter.is_waiting = is_waiting;
        Some(waiter.woken.clone())
    }

    /// Wakes a waiting thread if no thread reads. Each thread that could have read and does not must call it.
    fn wake_next_reader(&self) {
        if self.reader.is_some()
            && let Some(waiter) = self.waiters().find(|waiter| waiter.is_waiting)
        {
            waiter.wake();
        }
    }
}

fn deliver(receiving: &mut Receiving, messages: Vec<Vec<u8>>) -> Result<(), String> {
    for message in messages {
        match Kind::of(&message) {
            Ok(Kind::Reply(xid)) => match receiving.replies.get_mut(&xid) {
                Some(expected @ Expected::Awaited(_)) => {
                    let before = std::mem::replace(expected, Expected::Arrived(message));
                    if let Expected::Awaited(waiter) = before {
                        waiter.wake();
                    }
                }
                Some(Expected::Arrived(_)) => return Err("two replies to one request".into()),
                Some(Expected::Abandoned) => drop(receiving.replies.remove(&xid)),
                None => return Err("a reply to no request".into()),
            },
            Ok(Kind::Call) if message.len() > BACK_BYTES as usize => {
                return Err("a callback that is too long".into());
            }
            Ok(Kind::Call) if receiving.calls.len() >= CALLS_MAX => return Err("too many callbacks".into()),
            Ok(Kind::Call) => receiving.calls.push(message),
            Err(_) => return Err("a message that is neither a reply nor a callback".into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use ivers_nfs4::record::mark;
    use ivers_nfs4::rpc::Reply;
    use ivers_nfs4::xdr::Encoder;

    fn reply(xid: u32) -> Vec<u8> {
        let mut to = Encoder::default();
        Reply::SUCCESS.put(xid, &mut to);
        let message = to.into_bytes();
        [&mark(message.len())[..], &message].concat()
    }

    /// A reply wakes its thread, also if that thread does not read, and if the thread that read has left.
    #[test]
    fn replies_in_any_order_reach_their_threads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(READ_SLICE)).unwrap();
        let connection = Connection::new(stream.into(), 1000, Duration::ZERO);
        let mut server = listener.accept().unwrap().0;
        let until = Until::Patience(Instant::now() + Duration::from_secs(60));
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [2, 4, 1, 3]] {
            let (done, ended) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                for xid in 1..=4 {
                    let (connection, done) = (&connection, done.clone());
                    scope.spawn(move || {
                        assert!(connection.call(xid, vec![0; 8].into(), until).is_ok());
                        done.send(xid).unwrap();
                    });
                }
                server.read_exact(&mut [0; 4 * 8]).unwrap();
                for xid in order {
                    server.write_all(&reply(xid)).unwrap();
                    assert_eq!(ended.recv().unwrap(), xid);
                }
            });
        }
    }

    /// One thread gives its request up while another thread still waits.
    #[test]
    fn a_request_that_is_given_up_does_not_end_the_connection_of_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(READ_SLICE)).unwrap();
        let connection = Connection::new(stream.into(), 1000, Duration::ZERO);
        let mut server = listener.accept().unwrap().0;
        let now = Instant::now();
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| {
                connection.call(1, vec![0; 8].into(), Until::Patience(now + Duration::from_secs(60)))
            });
            server.read_exact(&mut [0; 8]).unwrap();
            assert!(connection.call(2, vec![0; 8].into(), Until::Limit(now)).is_err());
            server.write_all(&[reply(2), reply(1)].concat()).unwrap();
            assert!(patient.join().unwrap().is_ok());
        });
        assert!(connection.is_usable());
        assert!(connection.call(3, vec![0; 8].into(), Until::Patience(now)).is_err());
        assert!(!connection.is_usable(), "the server is too slow");
    }
}
