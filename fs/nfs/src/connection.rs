//! A TCP connection, and the threads that wait for replies on it.
//!
//! There is no receiving thread. One of the threads that wait reads the socket and hands the replies of the
//! others over; when it has its own, another one takes its place. A connection that broke stays broken:
//! whatever arrives later is not looked at.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::Kind;
use ivers_vfs::sync::{Condvar, RankedMutex, rank};

use crate::target::ServerName;
use crate::wire::Wire;

/// How long a read of the socket waits before the thread looks at its time limit.
const READ_SLICE: Duration = Duration::from_millis(500);
/// How long the server may take to accept bytes of a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that a read of the socket takes.
const READ_BYTES: usize = 256 << 10;

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

/// Why a connection cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// The receiving half; the thread that reads has it.
struct Reader {
    records: Records,
    buffer: Vec<u8>,
}

struct Receiving {
    /// The requests in flight, with replies that their threads have not taken yet.
    replies: HashMap<u32, Option<Vec<u8>>>,
    /// `None` while a thread reads.
    reader: Option<Box<Reader>>,
    broken: Option<Broken>,
}

/// A connection.
pub struct Connection {
    wire: Wire,
    /// Held while a record is written.
    sending: RankedMutex<rank::Driver<3>, ()>,
    receiving: RankedMutex<rank::Driver<4>, Receiving>,
    changed: Condvar,
}

impl Connection {
    /// Uses a wire over a socket of [`connect`]. `reply_bytes_max` bounds each reply.
    pub fn new(wire: Wire, reply_bytes_max: usize) -> Self {
        let reader = Reader { records: Records::new(reply_bytes_max), buffer: vec![0; READ_BYTES] };
        let receiving = Receiving { replies: HashMap::new(), reader: Some(Box::new(reader)), broken: None };
        Self {
            wire,
            sending: RankedMutex::new(()),
            receiving: RankedMutex::new(receiving),
            changed: Condvar::new(),
        }
    }

    /// Ends the connection, for this reason unless it is broken already. All waiting calls fail.
    pub fn fail(&self, why: impl Into<String>) -> Broken {
        let broken = self.receiving.lock().broken.get_or_insert_with(|| Broken(why.into())).clone();
        // The thread that reads returns at once.
        self.wire.shutdown();
        self.changed.notify_all();
        broken
    }

    /// Returns whether calls can succeed.
    pub fn is_usable(&self) -> bool {
        self.receiving.lock().broken.is_none()
    }

    /// Sends a call, whose first four bytes are free for the record mark, and waits for its reply until
    /// `deadline`. No other call in flight may have this `xid`.
    pub fn call(&self, xid: u32, mut record: Vec<u8>, deadline: Instant) -> Result<Vec<u8>, Broken> {
        {
            let mut receiving = self.receiving.lock();
            if let Some(broken) = &receiving.broken {
                return Err(broken.clone());
            }
            receiving.replies.insert(xid, None);
        }
        let marked = mark(record.len() - 4);
        record[..4].copy_from_slice(&marked);
        let sent = {
            let _sending = self.sending.lock();
            self.wire.send(&record)
        };
        if let Err(error) = sent {
            // What is left of the record would be taken for the next one.
            return Err(self.fail(format!("cannot send: {error}")));
        }
        self.wait(xid, deadline)
    }

    fn wait(&self, xid: u32, deadline: Instant) -> Result<Vec<u8>, Broken> {
        let mut receiving = self.receiving.lock();
        loop {
            if let Some(Some(_)) = receiving.replies.get(&xid) {
                let reply = receiving.replies.remove(&xid).flatten();
                // Another thread must read for the others.
                self.changed.notify_all();
                return reply.ok_or_else(|| Broken("a reply disappeared".into()));
            }
            if let Some(broken) = &receiving.broken {
                return Err(broken.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(receiving);
                return Err(self.fail("no reply in time"));
            }
            let Some(mut reader) = receiving.reader.take() else {
                receiving.wait_for(&self.changed, left);
                continue;
            };
            drop(receiving);
            let arrived = self.read(&mut reader);
            receiving = self.receiving.lock();
            receiving.reader = Some(reader);
            let delivered = arrived.and_then(|messages| deliver(&mut receiving.replies, messages));
            if let Err(why) = delivered {
                drop(receiving);
                return Err(self.fail(why));
            }
            self.changed.notify_all();
        }
    }

    /// Reads what has arrived. Returns complete messages, none if nothing arrives for a while.
    fn read(&self, reader: &mut Reader) -> Result<Vec<Vec<u8>>, String> {
        let len = match self.wire.receive(&mut reader.buffer) {
            Ok(None) => return Err("the server closed the connection".into()),
            Ok(Some(len)) => len,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(error) => return Err(format!("cannot receive: {error}")),
        };
        let mut bytes = reader.buffer.get(..len).unwrap_or_default();
        let mut messages = Vec::new();
        while let Some(message) = reader.records.feed(&mut bytes).map_err(|error| error.to_string())? {
            messages.push(message);
        }
        Ok(messages)
    }
}

fn deliver(waiting: &mut HashMap<u32, Option<Vec<u8>>>, messages: Vec<Vec<u8>>) -> Result<(), String> {
    for message in messages {
        let Ok(Kind::Reply(xid)) = Kind::of(&message) else {
            return Err("a message that is no reply".into());
        };
        match waiting.get_mut(&xid) {
            Some(slot @ None) => *slot = Some(message),
            Some(Some(_)) => return Err("two replies to one request".into()),
            None => return Err("a reply to no request".into()),
        }
    }
    Ok(())
}
