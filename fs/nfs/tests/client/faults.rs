//! Broken connections, restarts of the server, and servers that do not answer.

use super::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use ivers_vfs::{Error, RenameFlags, ServerError};

/// What happens to a reply.
pub enum Fault {
    /// It disappears, and so do all that follow.
    Swallowed,
    /// The connection is cut before it.
    Cut,
}

/// Decides what happens to the next reply.
pub type Decision = Box<dyn FnMut() -> Option<Fault> + Send>;

/// What the proxy does with replies.
#[derive(Default)]
pub struct Plan {
    /// Connections are cut after this many more bytes of replies; 0: never.
    pub cut_after: AtomicUsize,
    /// Replies disappear.
    pub swallow: AtomicBool,
    /// Is asked before each reply is forwarded.
    pub fault: Mutex<Option<Decision>>,
    /// So many more replies come late, by this many milliseconds.
    pub late: AtomicUsize,
    pub delay_ms: AtomicUsize,
    pub cuts: AtomicUsize,
    /// The number of connections so far.
    pub connections: AtomicUsize,
    /// How many connections are accepted: later ones are refused. 0: all are accepted.
    pub refused_from: AtomicUsize,
}

/// Forwards connections to a server.
pub fn proxy(server: SocketAddr) -> (SocketAddr, Arc<Plan>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, plan) = (listener.local_addr().unwrap(), Arc::new(Plan::default()));
    let theirs = plan.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, Ok(server)) = (client.unwrap(), TcpStream::connect(server)) else { continue };
            let nth = theirs.connections.fetch_add(1, Relaxed);
            let refused_from = theirs.refused_from.load(Relaxed);
            if refused_from > 0 && nth >= refused_from {
                continue;
            }
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let plan = theirs.clone();
            std::thread::spawn(move || replies(server, client, &plan));
        }
    });
    (address, plan)
}

fn replies(mut server: TcpStream, mut client: TcpStream, plan: &Plan) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = server.read(&mut buffer) {
        if plan.swallow.load(Relaxed) {
            continue;
        }
        let fault = plan.fault.lock().unwrap().as_mut().and_then(|fault| fault());
        match fault {
            Some(Fault::Swallowed) => {
                plan.swallow.store(true, Relaxed);
                continue;
            }
            Some(Fault::Cut) => {
                plan.cuts.fetch_add(1, Relaxed);
                break;
            }
            None => {}
        }
        if plan.late.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            std::thread::sleep(Duration::from_millis(plan.delay_ms.load(Relaxed) as u64));
        }
        let left = plan.cut_after.load(Relaxed);
        if left > 0 && left <= len {
            plan.cut_after.store(0, Relaxed);
            plan.cuts.fetch_add(1, Relaxed);
            let _ = client.write_all(&buffer[..left - 1]);
            break;
        }
        if left > 0 {
            plan.cut_after.store(left - len, Relaxed);
        }
        if client.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// [`N1`] A connection that is cut anywhere in a reply, also before its first byte, costs a repetition.
#[test]
pub fn lost_replies_are_asked_for_again() {
    let served = Served::new(mem());
    let root = served.root();
    let file = served.file(&root, b"f", b"");
    (0..50).for_each(|nth| drop(served.file(&root, format!("n{nth}").as_bytes(), b"")));
    let (address, plan) = proxy(served.address());
    let client = mount(address, &options()).unwrap();
    let cuts = [1, 2, 5, 30, 60, 100, 150, 200, 300, 1000, 5000, 100_000, 150_000];
    for (round, cut) in cuts.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..200_000).map(|at| ((at + round) % 253) as u8).collect();
        served.write(&file, &bytes);
        plan.cut_after.store(cut, Relaxed);
        assert_eq!(client.names("/").unwrap().len(), 53, "cut after {cut}");
        assert_eq!(client.contents("/f").unwrap(), bytes, "cut after {cut}");
        assert_eq!(plan.cuts.load(Relaxed), round + 1, "cut after {cut}: nothing was cut");
    }
    client.vfs.unmount().unwrap();
}

/// [`N1`] A reply that comes too late costs a repetition, and not a second execution.
#[test]
pub fn late_replies_do_not_repeat_changes() {
    let served = Served::new(ext4());
    let (address, plan) = proxy(served.address());
    let patience = Patience { reply: Duration::from_millis(300), request: None, ..Patience::default() };
    let client = mount(address, &NfsOptions { patience, ..options() }).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    plan.delay_ms.store(700, Relaxed);
    for round in 0..4 {
        plan.late.store(1 + round % 2, Relaxed);
        let dir = client.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
        plan.late.store(1 + round % 2, Relaxed);
        client.vfs.rename(&cred, &root, b"dir", &root, b"moved", RenameFlags::empty(), false).unwrap();
        plan.late.store(1, Relaxed);
        client.vfs.rmdir(&cred, &root, b"moved", false).unwrap();
        drop(dir);
    }
    plan.late.store(0, Relaxed);
    assert_eq!(client.names("/").unwrap().len(), 3, "`.`, `..` and lost+found");
    let counters = client.vfs.counters();
    let count = |name: &str| counters.iter().find(|(found, _)| *found == name).unwrap().1;
    assert!(count("server_retries") >= 8, "{counters:?}");
    assert!(count("server_connections") >= 8 && count("server_sessions") == 1, "{counters:?}");
    client.vfs.unmount().unwrap();
}

#[test]
pub fn threads_share_a_connection_that_breaks_again_and_again() {
    let served = Served::new(mem());
    let root = served.root();
    let contents = |nth: usize| vec![nth as u8; 10_000 + nth];
    (0..40).for_each(|nth| drop(served.file(&root, format!("f{nth}").as_bytes(), &contents(nth))));
    let (address, plan) = proxy(served.address());
    let client = mount(address, &options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for nth in (0..40).cycle().skip(thread * 5).take(60) {
                    assert_eq!(client.contents(&format!("/f{nth}")).unwrap(), contents(nth));
                }
            });
        }
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(40));
            plan.cut_after.store(777, Relaxed);
        }
    });
    assert!(plan.cuts.load(Relaxed) > 0);
}

/// Reads files in 8 threads while `disturb` runs.
fn read_in_threads(client: &Mounted, rounds: usize, disturb: impl FnOnce()) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for nth in (0..40).cycle().skip(thread * 5).take(rounds) {
                    let contents = client.contents(&format!("/f{nth}")).unwrap();
                    assert_eq!(contents, vec![nth as u8; 100_000 + nth]);
                }
            });
        }
        disturb();
    });
}

fn connected(address: SocketAddr, connections: usize) -> Mounted {
    let cache = MountOptions { cache_bytes: 1 << 20, ..quiet() };
    let options = NfsOptions { connections, ..options() };
    let nfs = Nfs::open("nfs://test", dial(address), &options).unwrap();
    Mounted { vfs: Vfs::mount(nfs.clone(), cache).unwrap(), nfs }
}

/// [`N16`] Parallel requests use several connections of one session. If a connection is cut, its requests are
/// sent again on another one.
#[test]
fn several_connections_carry_one_session() {
    let served = Served::new(mem());
    let root = served.root();
    (0..40).for_each(|nth| {
        drop(served.file(&root, format!("f{nth}").as_bytes(), &vec![nth as u8; 100_000 + nth]))
    });
    let (address, plan) = proxy(served.address());
    let client = connected(address, 4);
    let count = |name: &str| client.vfs.counters().iter().find(|(found, _)| *found == name).unwrap().1;
    assert_eq!(client.contents("/f0").unwrap().len(), 100_000);
    assert_eq!(plan.connections.load(Relaxed), 1, "one program needs one connection");
    // Replies that come late make requests of all threads wait at once.
    plan.delay_ms.store(30, Relaxed);
    plan.late.store(120, Relaxed);
    for _ in 0..20 {
        if plan.connections.load(Relaxed) < 4 {
            read_in_threads(&client, 20, || {});
        }
    }
    plan.late.store(0, Relaxed);
    assert_eq!(plan.connections.load(Relaxed), 4);
    read_in_threads(&client, 40, || {
        for _ in 0..12 {
            std::thread::sleep(Duration::from_millis(30));
            plan.cut_after.store(7777, Relaxed);
        }
    });
    assert!(plan.cuts.load(Relaxed) > 2 && plan.connections.load(Relaxed) > 5);
    assert!(count("server_retries") > 0 && count("server_sessions") == 1, "{:?}", client.vfs.counters());
    client.vfs.unmount().unwrap();
}

/// If a server accepts only one connection from a client, the mount works with one.
#[test]
fn refused_connections_do_not_stop_a_mount() {
    let served = Served::new(mem());
    let root = served.root();
    (0..40).for_each(|nth| {
        drop(served.file(&root, format!("f{nth}").as_bytes(), &vec![nth as u8; 100_000 + nth]))
    });
    let (address, plan) = proxy(served.address());
    plan.refused_from.store(1, Relaxed);
    let client = connected(address, 8);
    plan.delay_ms.store(30, Relaxed);
    plan.late.store(60, Relaxed);
    read_in_threads(&client, 20, || {});
    let tried = plan.connections.load(Relaxed);
    assert!((2..200).contains(&tried), "{tried}");
    client.vfs.unmount().unwrap();
}

/// [`N10`] Changes over several connections that are cut are executed once.
#[test]
pub fn changes_over_several_connections_are_executed_once() {
    let served = Served::new(ext4());
    let (address, plan) = proxy(served.address());
    let client = connected(address, 4);
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (client, cred, root) = (&client, &cred, &root);
            scope.spawn(move || {
                for nth in 0..60 {
                    let (one, other) = (format!("a{thread}-{nth}"), format!("b{thread}-{nth}"));
                    let spec = CreateSpec::directory(0o755);
                    // Each change fails if it is executed twice: the name exists, or no longer exists.
                    client.vfs.create(cred, root, one.as_bytes(), &spec, true).unwrap();
                    let (one, other) = (one.as_bytes(), other.as_bytes());
                    client.vfs.rename(cred, root, one, root, other, RenameFlags::empty(), false).unwrap();
                    client.vfs.rmdir(cred, root, other, false).unwrap();
                }
            });
        }
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(25));
            plan.cut_after.store(300, Relaxed);
        }
    });
    assert!(plan.cuts.load(Relaxed) > 3, "{} cuts", plan.cuts.load(Relaxed));
    assert_eq!(client.names("/").unwrap().len(), 3, "`.`, `..` and lost+found");
    client.vfs.unmount().unwrap();
}

#[test]
fn a_restarted_server_is_used_again() {
    let Served { vfs, mut server, state } = Served::new(ext4());
    let (root, cred) = (vfs.root().unwrap(), Cred::root());
    let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap();
    let address = server.addresses()[0];
    let client = mount(address, &options()).unwrap();
    let here = client.find("/f").unwrap();
    let mut last = client.vfs.change(&here).unwrap();
    for round in 0..4 {
        if round % 2 == 0 {
            server.stop().unwrap();
        } else {
            // As by a crash.
            drop(server);
        }
        let text = format!("round {round}");
        vfs.write(&cred, &file, 0, text.as_bytes(), WriteFlags::empty()).unwrap();
        server = serve_at(state.path(), &vfs, ",no_root_squash", address);
        assert_eq!(client.contents("/f").unwrap(), text.as_bytes());
        let change = client.vfs.change(&here).unwrap();
        assert!(change > last);
        last = change;
    }
    server.stop().unwrap();
}

#[test]
pub fn a_silent_client_keeps_its_lease() {
    let served = Served::new(mem());
    served.file(&served.root(), b"f", b"x");
    let client = mount(served.address(), &options()).unwrap();
    let before = client.nfs.requests();
    // The lease is 3 s.
    std::thread::sleep(Duration::from_millis(4500));
    assert!(client.nfs.requests() > before, "renewed");
    assert_eq!(client.contents("/f").unwrap(), b"x");
}

/// [`N4`]
#[test]
pub fn an_unmount_ends_when_the_server_does_not_answer() {
    let served = Served::new(mem());
    served.file(&served.root(), b"f", b"x");
    let (address, plan) = proxy(served.address());
    let client = mount(address, &options()).unwrap();
    let file = client.find("/f").unwrap();
    plan.swallow.store(true, Relaxed);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| client.vfs.get_attr(&Cred::root(), &file))).collect();
        std::thread::sleep(Duration::from_millis(300));
        assert!(readers.iter().all(|reader| !reader.is_finished()), "a patient client waits");
        client.vfs.stop_waiting();
        for reader in readers {
            let result = reader.join().unwrap();
            assert!(matches!(result, Err(Error::Server(ServerError::Timeout))), "{result:?}");
        }
    });
    drop(file);
    let _ = client.vfs.unmount();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());

    plan.swallow.store(false, Relaxed);
    let client = mount(address, &options()).unwrap();
    plan.swallow.store(true, Relaxed);
    let started = Instant::now();
    client.vfs.unmount().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "without being told to stop: {:?}",
        started.elapsed()
    );
}

#[test]
pub fn an_impatient_client_gives_up() {
    let served = Served::new(mem());
    served.file(&served.root(), b"f", b"x");
    let (address, plan) = proxy(served.address());
    let client = mount(address, &NfsOptions { patience: impatient(), ..options() }).unwrap();
    let file = client.find("/f").unwrap();
    plan.swallow.store(true, Relaxed);
    let started = Instant::now();
    let result = client.vfs.get_attr(&Cred::root(), &file);
    assert!(matches!(result, Err(Error::Server(ServerError::Timeout))), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    plan.swallow.store(false, Relaxed);
    assert_eq!(client.contents("/f").unwrap(), b"x", "the server is back");
}
