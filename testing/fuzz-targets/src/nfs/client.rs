//! The NFS client on a hostile server: a simulated one, whose replies are changed on their way. Whatever
//! arrives, each call returns, soon.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | half of it: how many replies arrive as they are. Odd: the client asks for delegations |
//! | then, each reply: 1 | what happens to it: see [`Damage`] |
//! | more | its arguments |
//!
//! When the input is over, replies arrive as they are.

use super::session::simulated;
use crate::input::Input;
use ivers_nfs::identity::Identity;
use ivers_nfs::target::ServerName;
use ivers_nfs::{Dial, Nfs, NfsOptions, Patience};
use ivers_nfs_test::harness::Server;
use ivers_nfs4::compound::CompoundRes;
use ivers_nfs4::ops::OpResult;
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{CallHeader, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Decoder, Encoder, Xdr};
use ivers_nfsd::compound::Origin;
use ivers_nfsd::server::SimulatedServer;
use ivers_nfsd::state::{ConnId, Limits};
use ivers_vfs::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// More damage makes an input slow without covering more.
const DAMAGE_MAX: usize = 8;
/// How long a reply, and a request, may take.
const PATIENCE: Patience = Patience {
    reply: Duration::from_millis(100),
    request: Some(Duration::from_millis(150)),
    busy_poll: Duration::ZERO,
};

/// The server is given up after this time, as by a second SIGTERM to a mount: then every call ends.
const GIVE_UP: Duration = Duration::from_secs(1);

/// What the server answers instead.
const STATUSES: [NfsStat; 16] = [
    NfsStat::Delay,
    NfsStat::Grace,
    NfsStat::BadStateid,
    NfsStat::Expired,
    NfsStat::Stale,
    NfsStat::Badsession,
    NfsStat::SeqMisordered,
    NfsStat::RetryUncachedRep,
    NfsStat::ConnNotBoundToSession,
    NfsStat::Notsupp,
    NfsStat::Nospc,
    NfsStat::Access,
    NfsStat::Io,
    NfsStat::NoGrace,
    NfsStat::StaleClientid,
    NfsStat::RepTooBig,
];

/// What happens to a reply: a byte modulo 8.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Nothing.
    None,
    /// A byte is another one: its place (2), the value (1).
    Byte,
    /// Four bytes are others: their place (2), the value (4).
    Word,
    /// It is cut: its length (2).
    Cut,
    /// Bytes are inserted: place (2), number (1), value (1).
    Insert,
    /// An operation fails: which one (1), how (1).
    Status,
    /// It does not arrive, and the connection ends.
    Lost,
    /// It is the reply to the request before.
    Old,
}

const DAMAGES: [Damage; 8] = [
    Damage::None,
    Damage::Byte,
    Damage::Word,
    Damage::Cut,
    Damage::Insert,
    Damage::Status,
    Damage::Lost,
    Damage::Old,
];

/// What still happens to replies.
struct Plan<'a> {
    intact: u8,
    damages: usize,
    rest: Input<'a>,
    before: Vec<u8>,
}

impl Plan<'_> {
    /// Returns the bytes that arrive. `None`: the connection ends.
    fn deliver(&mut self, xid: u32, mut res: CompoundRes) -> Option<Vec<u8>> {
        let is_intact = self.intact > 0 || self.damages == DAMAGE_MAX || self.rest.is_empty();
        self.intact = self.intact.saturating_sub(1);
        let damage = if is_intact { Damage::None } else { DAMAGES[usize::from(self.rest.byte() % 8)] };
        self.damages += usize::from(!is_intact);
        if let Damage::Status = damage {
            let at = usize::from(self.rest.byte()) % res.results.len().max(1);
            let status = STATUSES[usize::from(self.rest.byte()) % STATUSES.len()];
            res.results.truncate(at + 1);
            if let Some(last) = res.results.last_mut() {
                *last = OpResult::failure(last.number(), status);
            }
            res.status = status;
        }
        let mut to = Encoder::default();
        Reply::SUCCESS.put(xid, &mut to);
        res.put(&mut to);
        let whole = to.into_bytes();
        let before = std::mem::replace(&mut self.before, whole.clone());
        let mut reply = whole;
        match damage {
            Damage::None | Damage::Status => {}
            Damage::Byte => {
                let (at, value) = (self.place(reply.len()), self.rest.byte());
                reply[at] = value;
            }
            Damage::Word => {
                let (at, value) = (self.place(reply.len() / 4) * 4, self.rest.bytes(4));
                reply[at..at + value.len()].copy_from_slice(value);
            }
            Damage::Cut => reply.truncate(self.place(reply.len())),
            Damage::Insert => {
                let (at, count, value) = (self.place(reply.len()), self.rest.byte(), self.rest.byte());
                reply.splice(at..at, std::iter::repeat_n(value, count.into()));
            }
            Damage::Lost => return None,
            Damage::Old if before.len() < 4 => {}
            Damage::Old => reply = [&xid.to_be_bytes()[..], &before[4..]].concat(),
        }
        Some(reply)
    }

    fn place(&mut self, len: usize) -> usize {
        usize::from(self.rest.word()) % len.max(1)
    }
}

/// Serves one connection after the other, until `over`.
fn serve(listener: &TcpListener, server: &SimulatedServer, plan: &Mutex<Plan<'_>>, over: &AtomicBool) {
    for (nth, stream) in (1..).zip(listener.incoming()) {
        if over.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(stream) = stream {
            let origin = Origin { conn: ConnId(nth), ..Server::origin(0, 0) };
            let _ = serve_connection(stream, server, &origin, plan);
            server.disconnect(ConnId(nth));
        }
    }
}

fn serve_connection(
    mut stream: TcpStream,
    server: &SimulatedServer,
    origin: &Origin,
    plan: &Mutex<Plan<'_>>,
) -> std::io::Result<()> {
    let (mut records, mut buffer) = (Records::new(2 << 20), vec![0; 64 << 10]);
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        let mut bytes = &buffer[..len];
        while let Some(message) = records.feed(&mut bytes).expect("the client's own records") {
            let mut from = Decoder::new(&message);
            let xid = CallHeader::take(&mut from).expect("the client's own calls").xid;
            let args = message[message.len() - from.remaining()..].to_vec();
            let reply = server.call(origin.clone(), args).expect("the client's own requests decode");
            let res = CompoundRes::from_bytes(&reply).expect("the server's own replies");
            let delivered = plan.lock().unwrap_or_else(PoisonError::into_inner).deliver(xid, res);
            let Some(reply) = delivered else { return stream.shutdown(Shutdown::Both) };
            stream.write_all(&[&mark(reply.len())[..], &reply].concat())?;
        }
    }
}

/// Does what programs do. Each call may fail. Returns the number of delegations.
fn work(address: SocketAddr, delegations: bool) -> Result<u64> {
    let name = ServerName { host: address.ip().to_string(), port: address.port() };
    let dial: Dial = Box::new(move |timeout| ivers_nfs::connect(&name, timeout));
    let options = NfsOptions {
        root: b"/data".to_vec(),
        patience: PATIENCE,
        attribute_timeout: Duration::ZERO,
        delegations,
        write_delegations: delegations,
        ..NfsOptions::new(Identity::of(Cred::root()))
    };
    let nfs = Nfs::open("nfs://fuzz", dial, &options)?;
    let vfs = Vfs::mount(nfs, MountOptions { background: false, ..MountOptions::default() })?;
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let vfs = &vfs;
        scope.spawn(move || {
            if is_done.recv_timeout(GIVE_UP).is_err_and(|why| why == RecvTimeoutError::Timeout) {
                vfs.stop_waiting();
            }
        });
        let used = use_everything(vfs);
        let _ = vfs.unmount();
        drop(done);
        used?;
        let counters = vfs.counters();
        let granted = counters.iter().find(|(name, _)| *name == "server_delegations");
        Ok(granted.map_or(0, |(_, count)| *count))
    })
}

fn use_everything(vfs: &Vfs) -> Result<()> {
    let (cred, root) = (Cred::root(), vfs.root()?);
    let none = RenameFlags::empty();
    let mut names = 0;
    let _ = vfs.readdir(&cred, &root, 0, &mut |_| {
        names += 1;
        if names < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let _ = vfs.create(&cred, &root, b"dir", &CreateSpec::directory(0o755), false);
    let dir = vfs.lookup(&cred, &root, b"dir").unwrap_or_else(|_| root.clone());
    let spec = CreateSpec { target: b"dir".to_vec(), ..CreateSpec::of(FileType::Symlink, 0o777) };
    let _ = vfs.create(&cred, &dir, b"link", &spec, false);
    let _ = vfs.resolve(&cred, "/dir/link", true);
    let _ = vfs.stat_fs();
    let (file, _) = vfs.create(&cred, &dir, b"file", &CreateSpec::file(0o644), false)?;
    let mode = OpenMode::READ | OpenMode::WRITE;
    vfs.open(&cred, &file, mode)?;
    work_on(vfs, &cred, &file);
    let _ = vfs.link(&cred, &file, &root, b"second", false);
    let _ = vfs.rename(&cred, &dir, b"file", &root, b"third", none, false);
    let _ = vfs.unlink(&cred, &root, b"third", false);
    let _ = vfs.unlink(&cred, &root, b"second", false);
    vfs.close(&file, mode);
    let _ = unpack(vfs, &cred, &dir);
    let _ = vfs.rmdir(&cred, &root, b"dir", false);
    Ok(())
}

/// Makes small files, whose closes may be deferred, then lists and replaces them.
fn unpack(vfs: &Vfs, cred: &Cred, dir: &InodeRef) -> Result<()> {
    let mode = OpenMode::READ | OpenMode::WRITE;
    for name in [b"s1", b"s2", b"s3"] {
        let (file, _) = vfs.create(cred, dir, name, &CreateSpec::file(0o600), false)?;
        vfs.open(cred, &file, mode)?;
        let _ = vfs.write(cred, &file, 0, name, WriteFlags::empty());
        let mtime = Some(TimeSet::At(Timestamp { sec: 1_000_000_000, nsec: 0 }));
        let _ = vfs.set_attr(cred, &file, &SetAttr { mtime, perm: Some(0o644), ..SetAttr::default() });
        let _ = vfs.change(&file);
        vfs.close(&file, mode);
    }
    let _ = vfs.rename(cred, dir, b"s1", dir, b"s2", RenameFlags::empty(), false);
    let _ = vfs.sync();
    let _ = vfs.access(cred, dir, access::READ);
    let _ = vfs.list(cred, dir, 0, 10);
    for name in [b"s2", b"s3"] {
        let _ = vfs.unlink(cred, dir, name, false);
    }
    Ok(())
}

fn work_on(vfs: &Vfs, cred: &Cred, file: &InodeRef) {
    let lock = LockRequest { owner: LockOwner(1), range: 0..100, exclusive: true, waits: false };
    let _ = vfs.lock(cred, file, &lock);
    let _ = vfs.write(cred, file, 5, &[7; 9000], WriteFlags::empty());
    let _ = vfs.test_lock(cred, file, &LockRequest { owner: LockOwner(2), ..lock });
    let _ = vfs.fsync(file, false);
    let _ = vfs.unlock(cred, file, LockOwner(1), 0..50);
    let _ = vfs.unlock(cred, file, LockOwner(1), 0..u64::MAX);
    let _ = vfs.change(file);
    let _ = vfs.read(cred, file, 0, &mut [0; 10_000]);
    let _ = vfs.seek_hole(file, 0);
    let _ = vfs.copy_range(cred, file, 0, file, 20_000, 3000);
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    let _ = vfs.fallocate(cred, file, punch, 0, 4096);
    let _ = vfs.fallocate(cred, file, FallocateMode::empty(), 0, 30_000);
    let _ = vfs.set_xattr(cred, file, "user.a", b"value", XattrMode::Any);
    let _ = vfs.list_xattr(cred, file);
    let _ = vfs.get_xattr(cred, file, "user.a");
    let set = SetAttr { size: Some(6000), mtime: Some(TimeSet::Now), ..SetAttr::default() };
    let _ = vfs.set_attr(cred, file, &set);
    let _ = vfs.read(cred, file, 4000, &mut [0; 4096]);
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let _ = run_counting(input);
}

/// Runs an input. Returns the number of delegations that the client got.
fn run_counting(input: &[u8]) -> u64 {
    let mut rest = Input::new(input);
    let first = rest.byte();
    let plan = Plan { intact: first / 2, damages: 0, rest, before: Vec::new() };
    let (server, _dir) = simulated(Limits::default(), Box::new(|_| None));
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return 0 };
    let address = listener.local_addr().expect("a bound listener has an address");
    let (plan, over) = (Mutex::new(plan), AtomicBool::new(false));
    let granted = std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &server, &plan, &over));
        let granted = work(address, first % 2 == 1);
        over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(address);
        granted
    });
    server.check_invariants();
    granted.unwrap_or(0)
}

/// Returns the fuzz inputs: each damage, at different requests.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = vec![vec![255]];
    for intact in (0..70_u8).step_by(2) {
        for damage in 1..8 {
            let argument = intact.wrapping_mul(37).wrapping_add(damage * 11);
            let first = intact * 2 + (intact / 2 + damage) % 2;
            inputs.push(vec![first, damage, argument, argument / 7, 0, argument, 1, argument]);
        }
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise nothing of delegations is fuzzed.
    #[test]
    fn an_honest_server_grants_delegations() {
        assert!(run_counting(&[255]) > 0);
        assert_eq!(run_counting(&[254]), 0);
    }
}
