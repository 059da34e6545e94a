//! Attacks on NFS over sockets against the complete server, which must serve other clients all the time.
//! `tests/net/hostile.rs` covers attacks that concern only bytes and connections.

mod callbacks;
mod floods;
mod requests;
mod sockets;
mod stolen_state;

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ivers_nfs_test::client::*;
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::{Limits, listen};
use ivers_nfsd::server::{Exported, NfsServer, Setup};
use ivers_nfsd::stable::StableStorage;
use ivers_nfsd::state;

/// Time limit of a reply to a well-behaved client, also on a slow and busy machine.
const SLOWEST: Duration = Duration::from_secs(5);
/// Memory growth limit during an attack: running requests and replies (1.5 times the limit of `net`), and
/// state of clients.
const GROWTH_KIB: u64 = 768 << 10;
/// Minimum duration of each attack.
const LEAST: Duration = Duration::from_secs(1);
const LEASE_SECONDS: u32 = 3;

/// The attacked server.
struct Target {
    server: NfsServer,
    address: SocketAddr,
    /// The open file of the first well-behaved client.
    handle: FileHandle,
    stateid: StateId,
    session: SessionId,
}

fn serve(state: &std::path::Path) -> (NfsServer, SocketAddr) {
    let config = ExportConfig::from_flag("image,name=/data,no_root_squash").unwrap();
    let exports = vec![Exported { config, vfs: ivers_nfs_test::harness::mem(), device: None }];
    let listeners = vec![listen::on("127.0.0.1:0".parse().unwrap()).unwrap()];
    let server = NfsServer::start(Setup {
        lease_seconds: LEASE_SECONDS,
        limits: Limits {
            record_time: Duration::from_secs(3),
            idle_time: Duration::from_secs(3),
            unread_time: Duration::from_secs(3),
            ..Limits::default()
        },
        state_limits: state::Limits {
            stateids: (4_000, 12_000),
            ranges: (20_000, 40_000),
            ..state::Limits::default()
        },
        ..Setup::new(StableStorage::open(state).unwrap(), listeners, exports)
    })
    .unwrap();
    let address = server.addresses()[0];
    (server, address)
}

/// Connects from another address of this machine, which is another client for the server.
fn from_elsewhere(to: SocketAddr) -> TcpStream {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Creates a client when there is room.
fn newcomer(address: SocketAddr, name: &str) -> Client {
    let mut client = Client::over(from_elsewhere(address), name);
    client.start_session();
    client
}

fn make(client: &mut Client, name: &str) -> (StateId, FileHandle) {
    let access = share::BOTH | share::WANT_NO_DELEG;
    let open = open("o", access, unchecked(), named(name));
    let (opened, handle) = opened(&client.call_with_retry(&[data(), vec![open, Op::GetFh(())]].concat()));
    (opened.stateid, handle)
}

fn write(handle: &FileHandle, stateid: StateId, data: Vec<u8>) -> Vec<Op> {
    let args = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: data.into() };
    vec![Op::PutFh(handle.clone()), Op::Write(args)]
}

/// Returns the memory of the process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Observations during an attack.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    answers: AtomicU64,
    slowest_ms: AtomicU64,
    most_kib: AtomicU64,
}

impl Seen {
    /// Writes a little and reads it back, repeatedly.
    fn behave(&self, mut client: Client, stateid: StateId, handle: &FileHandle) -> Client {
        let mut last = 0;
        while !self.stop.load(Ordering::Relaxed) {
            for round in 0..2 {
                let begun = Instant::now();
                if round == 0 {
                    let (status, results) = client.call_with_retry(&write(handle, stateid, vec![7; 64]));
                    assert_eq!(status, NfsStat::Ok, "{results:?}");
                } else {
                    let change = client.attrs(handle).change.unwrap();
                    assert!(change > last, "the change attribute did not grow");
                    last = change;
                }
                let ms = u64::try_from(begun.elapsed().as_millis()).unwrap();
                self.slowest_ms.fetch_max(ms, Ordering::Relaxed);
                self.answers.fetch_add(1, Ordering::Relaxed);
            }
            self.most_kib.fetch_max(resident(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(3));
        }
        client
    }
}

type Attack = fn(&Target);

const ATTACKS: &[(&str, Attack)] = &[
    ("sequence numbers", requests::out_of_order),
    ("counts and tags", requests::huge),
    ("what is another's", stolen_state::steal),
    ("callbacks without answers", callbacks::say_nothing),
    ("a backchannel that dies", callbacks::die),
    ("names", floods::names),
    ("sessions", floods::sessions),
    ("opens", floods::opens),
    ("locks", floods::locks),
    ("deaf clients", sockets::deaf),
    ("halves and storms", sockets::storms),
];

#[test]
fn other_clients_are_served_during_attacks() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let mut neighbour = Client::new(address, "neighbour");
    let (stateid, handle) = make(&mut neighbour, "neighbour");
    let mut other = newcomer(address, "other");
    let (others, other_handle) = make(&mut other, "other");
    let target = Target { server, address, handle, stateid, session: neighbour.session };
    let before = resident();
    // Run all attacks even if one fails.
    let mut found = Vec::new();
    for (what, attack) in ATTACKS {
        let seen = Seen::default();
        let begun = Instant::now();
        (neighbour, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| seen.behave(neighbour, stateid, &target.handle));
            let two = scope.spawn(|| seen.behave(other, others, &other_handle));
            // End the attack in any case, so that the test does not hang.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(&target)));
            std::thread::sleep(LEAST.saturating_sub(begun.elapsed()));
            seen.stop.store(true, Ordering::Relaxed);
            if done.is_err() {
                found.push(format!("{what}: not as it should go"));
            }
            (one.join().unwrap(), two.join().unwrap())
        });
        let slowest = Duration::from_millis(seen.slowest_ms.into_inner());
        let grown = seen.most_kib.into_inner().saturating_sub(before);
        let answers = seen.answers.into_inner();
        println!(
            "{what}: {:.1} s, {answers} answers, the slowest {slowest:?}, {} MiB more memory, {} MiB after",
            begun.elapsed().as_secs_f32(),
            grown >> 10,
            resident().saturating_sub(before) >> 10,
        );
        let panics = target.server.counters().panics.load(Ordering::Relaxed);
        if slowest >= SLOWEST || answers < 10 || grown >= GROWTH_KIB || panics > 0 {
            found.push(format!(
                "{what}: {answers} answers, one in {slowest:?}, {grown} KiB more memory, {panics} panics"
            ));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    // A new client is served, too.
    let mut late = newcomer(address, "late");
    assert_eq!(late.attrs(&target.handle).size, Some(64));
}
