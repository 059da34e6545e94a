//! An RPC program, and a client that sends raw bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{AuthSys, CallHeader, Kind, OpaqueAuth, Reply};
use ivers_nfs4::xdr::{Decoder, Encoder, List};
use ivers_nfsd::net::connection::Connection;
use ivers_nfsd::net::tls::Tls;
use ivers_nfsd::net::{Limits, listen};
use ivers_nfsd::rpc::{Call, Callbacks, Credential, Procedure, Program, ReplyHandle, Server, Workers};

pub const PROGRAM: u32 = 400_000;
pub const VERSION: u32 = 4;

/// Returns its arguments.
pub const ECHO: u32 = 1;
/// Returns its arguments after the number of milliseconds in the first word, and blocks a thread meanwhile.
pub const SLEEP: u32 = 2;
/// Panics.
pub const PANIC: u32 = 3;
/// Replies after 50 ms, without a thread.
pub const LATER: u32 = 4;
/// Calls the caller back with the arguments. Returns the reply, or nothing after 300 ms.
pub const CALL_BACK: u32 = 5;
/// Returns the number of bytes in the first word.
pub const LARGE: u32 = 6;
/// An unknown procedure.
pub const UNKNOWN: u32 = 7;
/// Returns the caller: flavor, uid, number of groups, and the TLS names.
pub const WHO: u32 = 8;
/// Calls the port of 127.0.0.1 in the first word. Returns the reply.
pub const DIAL: u32 = 9;
/// Keeps the connection, even if it is idle.
pub const KEEP: u32 = 10;

/// The reply when the limits are exceeded.
pub const BUSY: &[u8] = b"busy";
/// The reply when a callback failed.
pub const NO_ANSWER: &[u8] = b"none";

pub struct Echo {
    pub callbacks: Arc<Callbacks>,
    pub running: AtomicUsize,
    pub most_running: AtomicUsize,
    pub closed: AtomicUsize,
    pub workers: OnceLock<Workers>,
}

fn first_word(bytes: &[u8]) -> u32 {
    Decoder::new(bytes).word().unwrap_or(0)
}

impl Program for Echo {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn call(&self, call: Call, reply: ReplyHandle) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        self.work(&call, reply);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    fn busy(&self, _: &Call) -> Option<Vec<u8>> {
        Some(BUSY.to_vec())
    }

    fn closed(&self, _: &Arc<Connection>) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Echo {
    fn work(&self, call: &Call, reply: ReplyHandle) {
        let arguments = call.arguments().to_vec();
        match call.procedure {
            ECHO => reply.send_encoded(&arguments),
            SLEEP => {
                std::thread::sleep(Duration::from_millis(first_word(&arguments).into()));
                reply.send_encoded(&arguments);
            }
            PANIC => {
                self.running.fetch_sub(1, Ordering::SeqCst);
                panic!("requested by the test");
            }
            LATER => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    reply.send_encoded(&arguments);
                });
            }
            CALL_BACK => self.call_back(&call.caller.connection, &arguments, reply),
            LARGE => {
                let mut results = reply.start(first_word(&arguments) as usize);
                results.fixed(&vec![7; first_word(&arguments) as usize]);
                reply.send(results);
            }
            WHO => {
                let mut results = reply.start(64);
                match &call.caller.credential {
                    Credential::None => results.word(0),
                    Credential::Sys(sys) => {
                        [1, sys.uid, sys.gids.0.len() as u32].iter().for_each(|word| results.word(*word));
                    }
                }
                if let Some(tls) = call.caller.connection.tls() {
                    results.opaque(tls.names.join(",").as_bytes());
                }
                reply.send(results);
            }
            DIAL => {
                let to = SocketAddr::from(([127, 0, 0, 1], first_word(&arguments) as u16));
                let workers = self.workers.get().expect("set at the start");
                match workers.dial(to, Duration::from_millis(300)) {
                    Ok(connection) => self.call_back(&connection, &arguments, reply),
                    Err(_) => reply.send_encoded(NO_ANSWER),
                }
            }
            KEEP => {
                call.caller.connection.keep();
                reply.send_encoded(&[]);
            }
            _ => reply.refuse(&Reply::ProcedureUnavailable),
        }
    }

    fn call_back(&self, connection: &Arc<Connection>, arguments: &[u8], reply: ReplyHandle) {
        let procedure =
            Procedure { program: 0x4000_0000, version: 1, procedure: 1, credential: OpaqueAuth::NONE };
        let time = Duration::from_millis(300);
        self.callbacks.call(connection, &procedure, arguments, time, move |outcome| match outcome {
            Ok(answer) => reply.send_encoded(answer.results()),
            Err(_) => reply.send_encoded(NO_ANSWER),
        });
    }
}

/// A server on its own port.
pub struct Served {
    pub server: Server,
    pub echo: Arc<Echo>,
    pub address: SocketAddr,
}

pub fn serve(limits: Limits, tls: Option<Tls>) -> Served {
    let callbacks = Callbacks::new();
    let echo = Arc::new(Echo {
        callbacks: callbacks.clone(),
        running: AtomicUsize::new(0),
        most_running: AtomicUsize::new(0),
        closed: AtomicUsize::new(0),
        workers: OnceLock::new(),
    });
    let listeners = vec![listen::on("127.0.0.1:0".parse().unwrap()).unwrap()];
    let server = Server::start(limits, listeners, tls, vec![echo.clone()], callbacks).unwrap();
    let _ = echo.workers.set(server.workers());
    let address = server.addresses()[0];
    Served { server, echo, address }
}

/// A stream of records.
pub struct Peer<S> {
    pub stream: S,
    records: Records,
    pending: Vec<u8>,
}

pub fn call_to(xid: u32, procedure: u32, cred: OpaqueAuth, arguments: &[u8]) -> Vec<u8> {
    call_of(
        CallHeader { xid, program: PROGRAM, version: VERSION, procedure, cred, verf: OpaqueAuth::NONE },
        arguments,
    )
}

pub fn call_of(header: CallHeader, arguments: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    header.put(&mut encoder);
    encoder.fixed(arguments);
    framed(encoder.as_bytes())
}

pub fn framed(message: &[u8]) -> Vec<u8> {
    [&mark(message.len())[..], message].concat()
}

pub fn sys(uid: u32) -> OpaqueAuth {
    let gids = List(vec![4, 5]);
    OpaqueAuth::sys(&AuthSys { stamp: 0, machine: b"here".to_vec(), uid, gid: 100, gids })
}

pub fn connect(address: SocketAddr) -> Peer<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    Peer::new(stream)
}

impl<S: Read + Write> Peer<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, records: Records::new(64 << 20), pending: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns the next record, or `None` at the end of the connection.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut rest = &self.pending[..];
            let found = self.records.feed(&mut rest).unwrap();
            let rest = rest.to_vec();
            self.pending = rest;
            if found.is_some() {
                return found;
            }
            let mut bytes = vec![0; 64 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(len) => self.pending.extend(&bytes[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
                Err(_) => return None,
            }
        }
    }

    /// Returns the next reply: xid, status and results.
    pub fn reply(&mut self) -> (u32, Reply, Vec<u8>) {
        let message = self.receive().expect("a reply");
        assert!(matches!(Kind::of(&message), Ok(Kind::Reply(_))));
        let mut from = Decoder::new(&message);
        let (xid, reply) = Reply::take(&mut from).unwrap();
        let results = message[message.len() - from.remaining()..].to_vec();
        (xid, reply, results)
    }

    /// Makes a call and waits for the results.
    pub fn call(&mut self, procedure: u32, arguments: &[u8]) -> Vec<u8> {
        self.send(&call_to(77, procedure, sys(1000), arguments));
        let (xid, reply, results) = self.reply();
        assert_eq!((xid, reply), (77, Reply::SUCCESS));
        results
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}
