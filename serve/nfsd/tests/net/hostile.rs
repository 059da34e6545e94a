//! Clients that try to crash the server, to make it hang, or to keep it from serving others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ivers_nfs4::rpc::{OpaqueAuth, Reply};
use ivers_nfsd::net::Limits;
use ivers_nfsd::net::budget::Bounds;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::common::*;

fn seed() -> u64 {
    let seed =
        std::env::var("IVERS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("IVERS_SEED={seed}");
    seed
}

fn served_still(served: &Served) {
    assert_eq!(connect(served.address).call(ECHO, b"well"), b"well");
    assert_eq!(served.server.counters().panics.load(Ordering::Relaxed), 0);
}

/// Returns whether the server closes the connection in time.
fn ended(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn random_bytes_are_harmless() {
    let served = serve(Limits { record_bytes: 1 << 16, ..Limits::default() }, None);
    let mut random = StdRng::seed_from_u64(seed());
    let valid = call_to(1, ECHO, sys(1000), b"some arguments...");
    for round in 0..600 {
        let mut stream = TcpStream::connect(served.address).unwrap();
        let mut bytes = match round % 3 {
            // Random bytes; random bytes in a record; a call with some bytes changed, cut or repeated.
            0 => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
            1 => framed(&(0..random.random_range(0..300)).map(|_| random.random()).collect::<Vec<u8>>()),
            _ => valid.repeat(random.random_range(1..4)),
        };
        if round % 3 == 2 {
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes.truncate(random.random_range(1..=bytes.len()));
        }
        let _ = stream.write_all(&bytes);
        if round % 2 == 0 {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            assert!(ended(&stream), "round {round}");
        }
    }
    served_still(&served);
    until("all connections are closed", || served.server.held() == (0, 0));
}

#[test]
fn a_huge_record_ends_the_connection() {
    let served = serve(Limits::default(), None);
    for word in [u32::MAX, i32::MAX as u32, (2 << 20) + 1, 0] {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.write_all(&word.to_be_bytes()).unwrap();
        assert!(ended(&stream), "{word}");
    }
    served_still(&served);
}

#[test]
fn incomplete_and_idle_connections_are_closed() {
    let limits = Limits {
        record_time: Duration::from_secs(1),
        idle_time: Duration::from_secs(2),
        ..Limits::default()
    };
    let served = serve(limits, None);
    let mut kept = connect(served.address);
    kept.call(KEEP, b"");
    let mut half_kept = connect(served.address);
    half_kept.call(KEEP, b"");
    half_kept.send(&call_to(1, ECHO, sys(0), b"half")[..30]);
    let silent = TcpStream::connect(served.address).unwrap();
    let mut halves: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    for (number, half) in halves.iter_mut().enumerate() {
        half.write_all(&call_to(1, ECHO, sys(0), b"done")[..number + 1]).unwrap();
    }
    // Single bytes at long intervals do not make a record either.
    let mut slow = TcpStream::connect(served.address).unwrap();
    let begun = Instant::now();
    let bytes = call_to(1, ECHO, sys(0), &[0; 1000]);
    let took = bytes.iter().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        slow.write_all(&[**byte]).is_ok()
    });
    assert!(took.count() < 500);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(halves.iter().all(ended) && ended(&silent) && ended(&half_kept.stream));
    assert_eq!(kept.call(ECHO, b"here"), b"here");
    until("one connection is left", || served.server.held().0 == 1);
}

#[test]
fn unread_replies_cost_little_and_the_connection_is_closed() {
    let limits = Limits { unread_time: Duration::from_secs(2), ..Limits::default() };
    let served = serve(limits, None);
    let mut deaf = connect(served.address);
    for xid in 0..200 {
        deaf.send(&call_to(xid, LARGE, sys(0), &(1u32 << 20).to_be_bytes()));
    }
    let mut most = 0;
    let mut other = connect(served.address);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(400) {
        most = most.max(served.server.held().1);
        assert_eq!(other.call(ECHO, b"here"), b"here");
    }
    // The limit of unread replies plus the running requests: less than 200 MiB.
    assert!(most > 1 << 20, "{most}");
    assert!(most < 16 << 20, "{most}");
    until("the connection is closed", || served.server.held() == (1, 0));
    // A slow reader gets everything.
    let mut slow = connect(served.address);
    for xid in 0..30 {
        slow.send(&call_to(xid, LARGE, sys(0), &(1u32 << 20).to_be_bytes()));
    }
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(slow.reply().2.len(), 1 << 20);
    }
}

#[test]
fn a_client_that_stops_sending_does_not_wait_for_itself() {
    let served = serve(Limits::default(), None);
    let mut client = connect(served.address);
    // Long enough for a thread to busy-poll the connection.
    for _ in 0..100 {
        assert_eq!(client.call(ECHO, b"turn"), b"turn");
    }
    client.send(&call_to(1, SLEEP, sys(0), &5000u32.to_be_bytes()));
    std::thread::sleep(Duration::from_millis(20));
    client.send(&call_to(2, ECHO, sys(0), b"late"));
    assert_eq!(client.reply().0, 2, "the slow call delayed this one");
    assert_eq!(client.reply().0, 1);
}

#[test]
fn a_flood_without_reading_is_closed() {
    let bounds = Bounds { connection_bytes: 100_000, ..Limits::default().bounds };
    let served = serve(Limits { bounds, choke_bytes: 1 << 16, ..Limits::default() }, None);
    let flood = TcpStream::connect(served.address).unwrap();
    let call = call_to(1, LARGE, sys(0), &(1u32 << 20).to_be_bytes());
    let mut sent = 0usize;
    while (&flood).write_all(&call).is_ok() {
        sent += 1;
        assert!(sent < 10_000_000);
    }
    served_still(&served);
    until("the connection is closed", || served.server.held().1 == 0);
}

#[test]
fn a_flood_of_requests_does_not_starve_others() {
    let served = serve(Limits { threads: 9, ..Limits::default() }, None);
    let mut floods: Vec<_> = (0..4).map(|_| connect(served.address)).collect();
    for xid in 0..2000 {
        for flood in &mut floods {
            flood.send(&call_to(xid, SLEEP, sys(0), &20u32.to_be_bytes()));
        }
    }
    // Another address of this machine, which is another client for the server.
    let other =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&other, &std::net::SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    rustix::net::connect(&other, &served.address).unwrap();
    let mut other = Peer::new(TcpStream::from(other));
    let mut neighbour = connect(served.address);
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(other.call(ECHO, b"here"), b"here");
        assert!(begun.elapsed() < Duration::from_millis(500), "a client at another address was delayed");
        // At most one request of each flood and the running ones come first.
        let begun = Instant::now();
        assert_eq!(neighbour.call(ECHO, b"here"), b"here");
        assert!(begun.elapsed() < Duration::from_secs(2), "a client at the same address was delayed");
    }
    assert!(
        served.echo.most_running.load(Ordering::SeqCst) <= 5,
        "half of the threads, and the other client's"
    );
    drop(floods);
    until("the flood is over", || served.server.held() == (2, 0));
}

#[test]
fn excess_bytes_get_a_retry_and_others_find_room() {
    let bounds = Bounds { connection_bytes: 1 << 20, client_bytes: 3 << 19, ..Limits::default().bounds };
    let served = serve(Limits { bounds, ..Limits::default() }, None);
    let mut greedy: Vec<_> = (0..2).map(|_| connect(served.address)).collect();
    let mut arguments = 100u32.to_be_bytes().to_vec();
    arguments.resize(30_000, 1);
    for peer in &mut greedy {
        for xid in 0..60 {
            peer.send(&call_to(xid, SLEEP, sys(0), &arguments));
        }
    }
    // Not enough is left for one more request, but the third client has none yet.
    assert_eq!(connect(served.address).call(ECHO, &[5; 40_000]).len(), 40_000);
    let mut counts = [0, 0];
    for peer in &mut greedy {
        for _ in 0..60 {
            let (_, reply, results) = peer.reply();
            assert_eq!(reply, Reply::SUCCESS);
            counts[usize::from(results == BUSY)] += 1;
            assert!(results == BUSY || results == arguments);
        }
    }
    assert!(counts[0] >= 40 && counts[1] >= 40, "{counts:?}");
    assert_eq!(served.server.counters().calls_refused.load(Ordering::Relaxed), counts[1] as u64);
}

#[test]
fn idle_connections_make_room_for_others() {
    let bounds = Bounds { total_connections: 20, client_connections: 20, ..Limits::default().bounds };
    let served = serve(Limits { bounds, ..Limits::default() }, None);
    let mut kept = connect(served.address);
    kept.call(KEEP, b"");
    let mut busy = connect(served.address);
    busy.send(&call_to(1, SLEEP, sys(0), &1000u32.to_be_bytes()));
    until("the call runs", || served.echo.running.load(Ordering::SeqCst) == 1);
    // The limit per address applies, because all clients here have the same address.
    let idle: Vec<_> = (0..18).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    until("all were accepted", || served.server.held().0 == 20);
    assert!(ended(&TcpStream::connect(served.address).unwrap()));
    drop(idle);
    let bounds = Bounds { total_connections: 5, ..bounds };
    let other = serve(Limits { bounds, ..Limits::default() }, None);
    let mut kept_open = connect(other.address);
    kept_open.call(KEEP, b"");
    for _ in 0..50 {
        let mut peer = connect(other.address);
        assert_eq!(peer.call(ECHO, b"here"), b"here");
        // While the connection is busy, it does not make room.
        until("the connection is idle", || other.server.held().1 == 0);
        std::mem::forget(peer);
    }
    assert_eq!(kept_open.call(ECHO, b"here"), b"here");
    assert_eq!(other.server.held().0, 5);
    assert_eq!(kept.call(ECHO, b"here"), b"here");
    assert_eq!(busy.reply().2, 1000u32.to_be_bytes());
}

#[test]
fn many_clients_at_once_lose_nothing() {
    let served = serve(Limits { threads: 6, choke_bytes: 1 << 17, ..Limits::default() }, None);
    let seed = seed();
    std::thread::scope(|scope| {
        for number in 0..12u64 {
            let address = served.address;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed + number);
                let mut peer = connect(address);
                for _ in 0..20 {
                    // Several requests at once, with replies in any order.
                    let mut expected = std::collections::HashMap::new();
                    let mut bytes = Vec::new();
                    for xid in 0..random.random_range(1..12u32) {
                        let mut arguments = vec![0; random.random_range(0..20_000) * 4];
                        random.fill_bytes(&mut arguments);
                        let procedure = [ECHO, LATER][random.random_range(0..2)];
                        bytes.extend(call_to(xid, procedure, OpaqueAuth::NONE, &arguments));
                        expected.insert(xid, arguments);
                    }
                    let mut writer = peer.stream.try_clone().unwrap();
                    std::thread::scope(|scope| {
                        scope.spawn(move || writer.write_all(&bytes).unwrap());
                        while !expected.is_empty() {
                            let (xid, _, results) = peer.reply();
                            assert!(expected.remove(&xid).unwrap() == results);
                        }
                    });
                }
            });
        }
    });
    until("all connections are closed", || served.server.held() == (0, 0));
    assert_eq!(served.server.counters().panics.load(Ordering::Relaxed), 0);
}
