//! RPC over TCP with raw bytes.

use std::io::Write;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::common::*;
use ivers_nfs4::rpc::{AUTH_TLS, AuthStat, CallHeader, Kind, OpaqueAuth, RPCSEC_GSS, Reply, Versions};
use ivers_nfs4::xdr::{Decoder, Encoder};
use ivers_nfsd::net::{Limits, listen};

fn header(procedure: u32) -> CallHeader {
    let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    CallHeader { xid: 5, program: PROGRAM, version: VERSION, procedure, cred, verf }
}

fn flavor(flavor: u32, body: &[u8]) -> OpaqueAuth {
    OpaqueAuth { flavor, body: body.to_vec() }
}

/// [RFC5531 9]
#[test]
fn a_call_is_answered_as_rfc_5531_says() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    let auth = |why| Reply::AuthError(why);
    let cases = [
        (header(0), Reply::SUCCESS),
        (CallHeader { cred: sys(0), ..header(0) }, Reply::SUCCESS),
        (header(ECHO), Reply::SUCCESS),
        (header(UNKNOWN), Reply::ProcedureUnavailable),
        (CallHeader { program: 1, ..header(0) }, Reply::ProgramUnavailable),
        (
            CallHeader { version: 3, ..header(0) },
            Reply::ProgramMismatch(Versions { low: VERSION, high: VERSION }),
        ),
        (CallHeader { cred: flavor(1, b"\0\0\0\0\0\0\0\x05abc"), ..header(ECHO) }, auth(AuthStat::BadCred)),
        (CallHeader { cred: flavor(RPCSEC_GSS, b""), ..header(ECHO) }, auth(AuthStat::BadCred)),
        (CallHeader { cred: flavor(RPCSEC_GSS, b""), ..header(0) }, auth(AuthStat::BadCred)),
        (CallHeader { cred: flavor(AUTH_TLS, b""), ..header(0) }, auth(AuthStat::BadCred)),
        (CallHeader { cred: flavor(99, b""), ..header(0) }, auth(AuthStat::BadCred)),
        (header(PANIC), Reply::SystemError),
        (header(ECHO), Reply::SUCCESS),
    ];
    for (header, expected) in cases {
        peer.send(&call_of(header.clone(), b""));
        let (xid, reply, results) = peer.reply();
        assert_eq!((xid, reply, results), (5, expected, Vec::new()), "{header:?}");
    }
    // Another version of RPC, and a credential that is too long.
    let mut encoder = Encoder::default();
    [5, 0, 3, PROGRAM, VERSION, 0].iter().for_each(|word| encoder.word(*word));
    peer.send(&framed(encoder.as_bytes()));
    assert_eq!(peer.reply().1, Reply::RpcMismatch(Versions { low: 2, high: 2 }));
    let mut encoder = Encoder::default();
    [5, 0, 2, PROGRAM, VERSION, 0, 1, 401].iter().for_each(|word| encoder.word(*word));
    peer.send(&framed(encoder.as_bytes()));
    assert_eq!(peer.reply().1, auth(AuthStat::BadCred));
    let panics = || served.server.counters().panics.load(std::sync::atomic::Ordering::Relaxed);
    until("the panic is counted", || panics() == 1);
}

#[test]
fn callers_are_identified() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    assert_eq!(peer.call(WHO, b""), [0, 0, 0, 1, 0, 0, 3, 232, 0, 0, 0, 2]);
    peer.send(&call_to(1, WHO, OpaqueAuth::NONE, b""));
    assert_eq!(peer.reply().2, [0; 4]);
}

#[test]
fn replies_come_in_any_order_and_large_ones_complete() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    // In one write: a call that blocks a thread, one with a reply from another thread, and one with an
    // immediate reply.
    let calls = [(1, SLEEP, 150u32), (2, LATER, 0), (3, ECHO, 0)];
    let bytes: Vec<u8> =
        calls.iter().flat_map(|(xid, what, ms)| call_to(*xid, *what, sys(0), &ms.to_be_bytes())).collect();
    peer.send(&bytes);
    let order: Vec<u32> = (0..3).map(|_| peer.reply().0).collect();
    assert_eq!(order, [3, 2, 1]);
    let large: Vec<u8> = (0..1 << 20).map(|at| (at * 31 % 251) as u8).collect();
    assert_eq!(peer.call(ECHO, &large), large);
    // Byte by byte, and in fragments.
    for byte in call_to(9, ECHO, sys(0), b"slow") {
        peer.send(&[byte]);
    }
    assert_eq!(peer.reply().2, b"slow");
    let call = &call_to(9, ECHO, sys(0), b"abcd")[4..];
    for piece in call.chunks(7) {
        let last = piece.as_ptr_range().end == call.as_ptr_range().end;
        peer.send(&(piece.len() as u32 | u32::from(last) << 31).to_be_bytes());
        peer.send(piece);
    }
    assert_eq!(peer.reply().2, b"abcd");
    until("no bytes are held", || served.server.held().1 == 0);
}

fn answer(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    Reply::SUCCESS.put(xid, &mut encoder);
    encoder.fixed(results);
    framed(encoder.as_bytes())
}

fn call_in<S: std::io::Read + Write>(peer: &mut Peer<S>) -> (u32, Vec<u8>) {
    let message = peer.receive().unwrap();
    assert_eq!(Kind::of(&message), Ok(Kind::Call));
    let mut from = Decoder::new(&message);
    let header = CallHeader::take(&mut from).unwrap();
    (header.xid, message[message.len() - from.remaining()..].to_vec())
}

#[test]
fn a_client_is_called_back_over_its_own_connection() {
    // Three threads, of which one client may occupy one. More requests wait for replies than there are
    // threads.
    let served = serve(Limits { threads: 3, ..Limits::default() }, None);
    let mut peer = connect(served.address);
    for xid in 1..=20u32 {
        peer.send(&call_to(xid, CALL_BACK, sys(0), &xid.to_be_bytes()));
    }
    let mut calls: Vec<_> = (0..20).map(|_| call_in(&mut peer)).collect();
    // An unexpected reply is ignored, and so is the reply of another client.
    peer.send(&answer(calls[0].0 ^ 0x8000_0000, b"????"));
    connect(served.address).send(&answer(calls[0].0, b"????"));
    calls.reverse();
    for (xid, arguments) in &calls {
        peer.send(&answer(*xid, &[arguments.as_slice(), b"seen"].concat()));
    }
    for _ in 0..20 {
        let (xid, _, results) = peer.reply();
        assert_eq!(results, [&xid.to_be_bytes()[..], b"seen"].concat());
    }
    // A client without a reply delays only its own request.
    peer.send(&call_to(1, CALL_BACK, sys(0), b"void"));
    call_in(&mut peer);
    assert_eq!(peer.call(ECHO, b"mean"), b"mean");
    let begun = Instant::now();
    assert_eq!(peer.reply().2, NO_ANSWER);
    assert!(begun.elapsed() < Duration::from_secs(5));
    // Refused calls, and replies that are too short.
    for bad in [&Reply::ProgramUnavailable, &Reply::GarbageArgs] {
        peer.send(&call_to(1, CALL_BACK, sys(0), b"what"));
        let mut encoder = Encoder::default();
        bad.put(call_in(&mut peer).0, &mut encoder);
        peer.send(&framed(encoder.as_bytes()));
        assert_eq!(peer.reply().2, NO_ANSWER);
    }
    peer.send(&call_to(1, CALL_BACK, sys(0), b"what"));
    let xid = call_in(&mut peer).0;
    peer.send(&framed(&[xid.to_be_bytes(), 1u32.to_be_bytes()].concat()));
    assert_eq!(peer.reply().2, NO_ANSWER);
}

#[test]
fn a_disconnected_client_is_not_waited_for() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    for xid in 0..50 {
        peer.send(&call_to(xid, CALL_BACK, sys(0), b"stay"));
    }
    call_in(&mut peer);
    drop(peer);
    until("the connection is closed and holds no bytes", || served.server.held() == (0, 0));
    assert_eq!(served.echo.closed.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_client_is_called_back_over_a_connection_to_it() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u32::from(listener.local_addr().unwrap().port());
    peer.send(&call_to(1, DIAL, sys(0), &port.to_be_bytes()));
    let mut back = Peer::new(listener.accept().unwrap().0);
    let (xid, arguments) = call_in(&mut back);
    back.send(&answer(xid, &arguments));
    assert_eq!(peer.reply().2, port.to_be_bytes());
    // This connection takes no calls.
    back.send(&call_to(1, ECHO, sys(0), b"wait"));
    assert_eq!(back.receive(), None);
    // Nothing listens there.
    drop(listener);
    assert_eq!(peer.call(DIAL, &port.to_be_bytes()), NO_ANSWER);
}

#[test]
fn stopping_completes_running_calls() {
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    let mut other = connect(served.address);
    assert_eq!(other.call(ECHO, b"here"), b"here");
    peer.send(&call_to(1, SLEEP, sys(0), &300u32.to_be_bytes()));
    peer.send(&call_to(2, LARGE, sys(0), &(8u32 << 20).to_be_bytes()));
    let calls = || served.server.counters().calls.load(std::sync::atomic::Ordering::Relaxed);
    until("both calls run", || calls() == 3);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| served.server.drain(Duration::from_secs(10), Duration::from_secs(1)));
        std::thread::sleep(Duration::from_millis(50));
        // No new connections and no new calls.
        assert!(std::net::TcpStream::connect(served.address).is_err());
        other.send(&call_to(3, ECHO, sys(0), b"late"));
        let mut replies = [peer.reply(), peer.reply()];
        replies.sort_by_key(|reply| reply.0);
        assert_eq!(replies[0].2, 300u32.to_be_bytes());
        assert_eq!(replies[1].2.len(), 8 << 20);
        assert_eq!(peer.receive(), None);
        assert_eq!(other.receive(), None);
        assert!(drain.join().unwrap());
    });
    // Calls that take too long are not waited for.
    let served = serve(Limits::default(), None);
    let mut peer = connect(served.address);
    peer.send(&call_to(1, SLEEP, sys(0), &5000u32.to_be_bytes()));
    until("the call runs", || served.server.counters().calls.load(std::sync::atomic::Ordering::Relaxed) == 1);
    assert!(!served.server.drain(Duration::from_millis(5), Duration::ZERO));
}

/// Runs this program again, with the environment that systemd would set.
#[test]
fn inherited_sockets_are_used() {
    if std::env::var_os("LISTEN_FDS").is_some() {
        let listeners = listen::inherited().unwrap();
        let callbacks = ivers_nfsd::rpc::Callbacks::new();
        let server =
            ivers_nfsd::rpc::Server::start(Limits::default(), listeners, None, Vec::new(), callbacks)
                .unwrap();
        assert_eq!(server.addresses().len(), 1);
        until("the call was made", || {
            server.counters().calls.load(std::sync::atomic::Ordering::Relaxed) == 1
        });
        assert!(server.drain(Duration::from_secs(5), Duration::from_secs(1)));
        return;
    }
    let run = |script: &str, stdin: std::process::Stdio| {
        let mut command = std::process::Command::new("sh");
        let program = std::env::current_exe().unwrap();
        command.args(["-c", script, "sh"]).arg(program).args(["--exact", "rpc::inherited_sockets_are_used"]);
        command.stdin(stdin).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    const HAND_OVER: &str = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = run(HAND_OVER, std::os::fd::OwnedFd::from(listener).into());
    let mut peer = connect(address);
    peer.send(&call_of(header(0), b""));
    assert_eq!(peer.reply().1, Reply::ProgramUnavailable);
    assert_eq!(peer.receive(), None);
    assert!(server.wait().unwrap().success());
    // Anything but a listening socket is refused.
    let mut server = run(HAND_OVER, std::process::Stdio::null());
    assert!(!server.wait().unwrap().success());
}

#[test]
fn both_address_families_are_served_separately() {
    let v6 = listen::on("[::1]:0".parse().unwrap()).unwrap();
    let port = v6.local_addr().unwrap().port();
    let v4 = listen::on(([127, 0, 0, 1], port).into()).unwrap();
    assert_eq!(v4.local_addr().unwrap().port(), port);
    let taken = listen::on(([127, 0, 0, 1], port).into()).unwrap_err().to_string();
    assert!(taken.contains(&format!("127.0.0.1:{port}")), "{taken}");
    assert!(listen::loopback().iter().all(|address| address.ip().is_loopback() && address.port() == 2049));
}
