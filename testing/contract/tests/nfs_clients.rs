//! The contract through two NFS clients of ours, at close-to-open points: one changes files, the other
//! observes them. Also with write delegations, under which writes stay with the client that made them.

mod common;

use common::ganesha::Ganesha;
use common::serving::Serving;
use common::*;
use ivers_block::{Device, MemDevice};
use ivers_content_cache::{BYTES_MIN, ContentCache};
use ivers_contract::{
    Asked, ChangeSource, Clients, InProcess, Mounted, MountedVfs, Promise, Role, ServerValue, Subject,
    Tallies, observe,
};
use ivers_nfs::identity::Identity;
use ivers_nfs::target::ServerName;
use ivers_nfs::{Nfs, NfsOptions};
use ivers_vfs::{Cred, FileSystem};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How clients mount.
#[derive(Debug, Clone, Copy)]
struct Client {
    how: How,
    /// Read delegations, and write delegations.
    delegations: (bool, bool),
    connections: usize,
    /// With a persistent cache.
    keeps: bool,
    /// The attribute timeout in seconds.
    timeout: u64,
}

const PLAIN: Client =
    Client { how: LAZY, delegations: (false, false), connections: 1, keeps: false, timeout: 3 };
const READS: Client = Client { delegations: (true, false), ..PLAIN };
const WRITES: Client = Client { delegations: (true, true), ..PLAIN };
const KEEPS: Client = Client { keeps: true, ..PLAIN };
/// Everything at once, with little memory.
const ALL: Client = Client { how: TIGHT, connections: 4, keeps: true, ..WRITES };

impl Client {
    fn label(self) -> String {
        let words = [
            (self.delegations == (true, false), "read delegations"),
            (self.delegations.1, "write delegations"),
            (self.connections > 1, "several connections"),
            (self.keeps, "persistent cache"),
            (self.how.cache_bytes < 1 << 20, "small cache"),
        ];
        let words: Vec<_> = words.iter().filter(|(has, _)| *has).map(|(_, word)| *word).collect();
        if words.is_empty() { "no delegations".into() } else { words.join(", ") }
    }

    fn options(self) -> NfsOptions {
        NfsOptions {
            root: b"/data".to_vec(),
            delegations: self.delegations.0,
            write_delegations: self.delegations.1,
            connections: self.connections,
            attribute_timeout: Duration::from_secs(self.timeout),
            ..NfsOptions::new(Identity::of(Cred::root()))
        }
    }

    /// Returns a function that mounts this client.
    fn mounts(self, address: SocketAddr) -> impl FnMut() -> MountedVfs + Send + 'static {
        let kept = self.keeps.then(|| tempfile::tempdir().expect("a directory for the cache"));
        move || {
            // One mount at a time uses a cache: a remount finds what the mount before has stored.
            let contents = kept.as_ref().map(|dir| {
                Arc::new(ContentCache::open(&dir.path().join("cache"), 16 * BYTES_MIN).expect("the cache"))
            });
            let server = ServerName { host: address.ip().to_string(), port: address.port() };
            let dial = Box::new(move |timeout| ivers_nfs::connect(&server, timeout));
            let options = NfsOptions { contents, ..self.options() };
            let nfs = Nfs::open("nfs://contract", dial, &options).expect("the client");
            self.how.mount(nfs, self.how.budget())
        }
    }

    fn in_process(self, address: SocketAddr, role: Role, value: ServerValue) -> InProcess {
        InProcess::new("", false, true, self.mounts(address)).of_server(value, role)
    }

    fn through_fuse(self, address: SocketAddr, role: Role) -> Mounted {
        let mut mounts = self.mounts(address);
        let mut served = Ending(FuseMount::new(mounts()));
        let top = served.0.top();
        let remount = move || {
            served.0.end();
            served.0.serve(mounts().0);
            served.0.top()
        };
        Mounted::new("", &top, ChangeSource::Ivers, Some(Box::new(remount))).of_server(role)
    }

    /// Two of these clients.
    fn pair(self, name: &str, address: SocketAddr, asked: Asked, value: ServerValue) -> Clients {
        let make = Arc::new(move |role, crowded| {
            let client = self.in_process(address, role, value);
            Box::new(if crowded { client.crowded() } else { client }) as Box<dyn Subject + Send>
        });
        let asked_one = if asked == Asked::Same { ", own values" } else { "" };
        self.claiming(Clients::new(format!("clients of {name}, {}{asked_one}", self.label()), asked, make))
    }

    fn claiming(self, clients: Clients) -> Clients {
        if self.delegations.1 { clients.without_rest() } else { clients }
    }
}

/// A FUSE mount of a client. Its unmount tells the server.
struct Ending(FuseMount);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Two clients of a server on a filesystem.
fn served(client: Client, asked: Asked, base: Option<&Arc<Vec<u8>>>) -> Box<dyn Subject> {
    with_server(base, |name, address| client.pair(name, address, asked, ServerValue::Served))
}

/// Two mounts through FUSE of a server on a filesystem.
fn mounted(client: Client, base: &Arc<Vec<u8>>) -> Box<dyn Subject> {
    with_server(Some(base), |name, address| {
        let make =
            Arc::new(move |role, _| Box::new(client.through_fuse(address, role)) as Box<dyn Subject + Send>);
        let name = format!("mounts of {name} through FUSE, {}", client.label());
        client.claiming(Clients::new(name, Asked::Other, make))
    })
}

fn with_server(
    base: Option<&Arc<Vec<u8>>>,
    clients: impl FnOnce(&str, SocketAddr) -> Clients,
) -> Box<dyn Subject> {
    let state = tempfile::tempdir().expect("a directory for the server's state");
    let budget = LAZY.budget();
    let (name, fs): (_, Arc<dyn FileSystem>) = match base {
        Some(base) => {
            let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
            ("ext4", open_ext4(device, budget.clone()))
        }
        None => ("mem", Arc::new(ivers_mem::Mem::default())),
    };
    let serving = Serving::start(state.path(), LAZY, fs, budget);
    let address = serving.address();
    Box::new(clients(name, address).keeping((serving, state)))
}

fn base() -> Option<Arc<Vec<u8>>> {
    ivers_oracle::have_programs(&["mkfs.ext4"]).then(|| Arc::new(image("ext4", &["-b", "4096"])))
}

#[test]
fn two_clients_keep_the_contract() {
    let Some(base) = base() else { return };
    for client in [PLAIN, READS, KEEPS] {
        let report = hold(&mut || served(client, Asked::Other, Some(&base)), seed(), steps(500));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
        assert!(report.tallies.of(Promise::Rests).checked > 40, "{report:?}");
    }
    hold(&mut || served(PLAIN, Asked::Other, None), seed(), steps(500));
}

#[test]
fn two_clients_keep_the_contract_under_write_delegations() {
    let Some(base) = base() else { return };
    for client in [WRITES, ALL] {
        let report = hold(&mut || served(client, Asked::Other, Some(&base)), seed(), steps(500));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
        assert!(report.tallies.of(Promise::Rests).checked > 40, "{report:?}");
    }
}

/// A program asks for the change attribute of what it has written itself.
#[test]
fn own_writes_keep_the_contract() {
    let Some(base) = base() else { return };
    for client in [PLAIN, WRITES, ALL] {
        let report = hold(&mut || served(client, Asked::Same, Some(&base)), seed(), steps(500));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
    }
}

/// Several actors, each with two clients.
#[test]
fn concurrent_clients_keep_the_contract() {
    let Some(base) = base() else { return };
    for client in [PLAIN, READS, WRITES, ALL] {
        hold_together(&mut || served(client, Asked::Other, Some(&base)), seed(), phases(25));
    }
}

#[test]
fn reads_of_the_other_client_are_current() {
    let Some(base) = base() else { return };
    for client in [PLAIN, READS, WRITES, ALL] {
        let mut subject = served(client, Asked::Other, Some(&base));
        for pages in [1, 5] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            let found = observe(&*file, 2, pages, Duration::from_millis(600));
            hold_threads(&format!("{}, {pages} pages", subject.name()), &found);
            assert!(found.of(Promise::Monotonic).checked > 5);
        }
    }
}

/// Two mounts through FUSE, as programs use them.
#[test]
fn mounts_through_fuse_keep_the_contract() {
    let Some(base) = base().filter(|_| can_mount()) else { return };
    for client in [PLAIN, WRITES] {
        // The kernel asks for attributes whenever a program does.
        let client = Client { timeout: 0, ..client };
        let report = hold(&mut || mounted(client, &base), seed(), steps(500));
        assert!(report.tallies.of(Promise::Data).checked > 20, "{report:?}");
        hold_together(&mut || mounted(client, &base), seed(), phases(15));
    }
}

/// A server whose change attribute is the change time, and that does not say so: nothing is claimed, and
/// broken promises are counted.
#[test]
fn a_server_with_change_times_is_counted() {
    if !ivers_oracle::kernel::can_loop_mount() || !ivers_oracle::have_programs(&["ganesha.nfsd", "mkfs.ext4"])
    {
        return;
    }
    // What is cached may be old as long as the change time is the same, so nothing is cached here.
    let client = Client { timeout: 0, ..PLAIN };
    let make = || {
        let server = Ganesha::start();
        let name = "nfs-ganesha";
        let pair = client.pair(name, server.address, Asked::Other, ServerValue::Said);
        Box::new(pair.keeping(server)) as Box<dyn Subject>
    };
    println!("{}", Tallies::header());
    let report = hold(&mut || make(), seed(), steps(600));
    assert!(!report.claims.data && report.tallies.of(Promise::Data).checked > 40, "{report:?}");
    hold_together(&mut || make(), seed(), phases(30));
}
