//! Read delegations: which requests they save; recall, return and loss.

use super::faults::{Fault, proxy};
use super::recovery::{Crashing, READ_WRITE, patient};
use super::*;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Instant;

use ivers_vfs::{Error, OpenMode, ServerError, access};

/// A client with a delegated file.
struct Holder {
    client: Mounted,
    file: InodeRef,
}

impl Holder {
    /// Opens and closes the file once, so that the server delegates it.
    fn new(client: Mounted, path: &str) -> Self {
        let file = client.find(path).unwrap();
        let holder = Self { client, file };
        let before = holder.client.count("server_delegations");
        holder.open();
        holder.close();
        assert_eq!(holder.client.count("server_delegations"), before + 1);
        holder
    }

    fn open(&self) {
        self.client.vfs.open(&Cred::root(), &self.file, OpenMode::READ).unwrap();
    }

    fn close(&self) {
        self.client.vfs.close(&self.file, OpenMode::READ);
    }

    fn read(&self) -> Result<Vec<u8>> {
        let size = self.client.vfs.get_attr(&Cred::root(), &self.file)?.size as usize;
        let mut bytes = vec![0; size];
        let read = self.client.vfs.read(&Cred::root(), &self.file, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn change(&self) -> u64 {
        self.client.vfs.change(&self.file).unwrap()
    }

    fn requests(&self) -> u64 {
        self.client.nfs.requests()
    }
}

fn write(client: &Mounted, path: &str, bytes: &[u8]) {
    let file = client.find(path).unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    client.vfs.write(&Cred::root(), &file, 0, bytes, WriteFlags::empty()).unwrap();
    client.vfs.close(&file, READ_WRITE);
}

/// Waits until a condition holds. Fails after 20 seconds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Serves a filesystem with the file `f`.
fn served_file() -> Served {
    let served = Served::new(ext4());
    served.file(&served.root(), b"f", b"contents");
    served
}

#[test]
fn a_delegated_file_is_used_without_requests() {
    let served = Served::new(mem());
    served.file(&served.root(), b"f", b"contents");
    let a = Holder::new(mount(served.address(), &options()).unwrap(), "/f");
    assert_eq!(a.read().unwrap(), b"contents");
    a.client.vfs.access(&Cred::root(), &a.file, access::READ).unwrap();
    let before = a.requests();
    let change = a.change();
    for _ in 0..10 {
        a.client.vfs.access(&Cred::root(), &a.file, access::READ).unwrap();
        a.open();
        assert_eq!((a.read().unwrap(), a.change()), (b"contents".to_vec(), change));
        a.close();
    }
    assert_eq!(a.requests(), before, "not even attributes, whose timeout is 0");
    assert_eq!(a.client.count("server_local_opens"), 10);
    a.client.vfs.unmount().unwrap();
    assert_eq!(a.client.count("server_delegreturn"), 1);
    served.server.stop().unwrap();
}

/// [`D1`]
#[test]
fn a_writer_elsewhere_recalls_and_the_holder_sees_its_bytes() {
    let served = served_file();
    let a = Holder::new(mount(served.address(), &options()).unwrap(), "/f");
    let b = mount(served.address(), &options()).unwrap();
    assert_eq!(a.read().unwrap(), b"contents");
    let change = a.change();
    write(&b, "/f", b"CON");
    assert_eq!(a.client.count("server_recalls"), 1);
    assert!(a.change() > change);
    assert_eq!(a.read().unwrap(), b"CONtents");
    let before = a.requests();
    a.open();
    a.close();
    assert!(a.requests() > before, "it is no longer delegated");
    for client in [a.client, b] {
        client.vfs.unmount().unwrap();
    }
}

/// A recall voids what is known, however long attributes count otherwise.
#[test]
fn attributes_do_not_outlive_their_delegation() {
    let served = served_file();
    let long = NfsOptions { attribute_timeout: Duration::from_secs(1000), ..options() };
    let a = Holder::new(mount(served.address(), &long).unwrap(), "/f");
    let b = mount(served.address(), &options()).unwrap();
    a.open();
    assert_eq!(a.read().unwrap(), b"contents");
    write(&b, "/f", b"CONTENTS, more");
    assert_eq!(a.read().unwrap(), b"CONTENTS, more");
    a.close();
    a.client.vfs.unmount().unwrap();
}

/// [`D7`] An open under a delegation sends nothing. The recall sends OPEN and DELEGRETURN.
#[test]
fn a_recall_keeps_the_files_of_its_readers_open() {
    let served = served_file();
    let a = Holder::new(mount(served.address(), &options()).unwrap(), "/f");
    let b = mount(served.address(), &options()).unwrap();
    a.open();
    assert_eq!(a.client.count("server_open"), 1);
    write(&b, "/f", b"CON");
    assert_eq!((a.client.count("server_open"), a.client.count("server_delegreturn")), (2, 1));
    assert_eq!(a.read().unwrap(), b"CONtents");
    let close = a.client.count("server_close");
    a.close();
    assert_eq!(a.client.count("server_close"), close + 1, "the server had the open");
    a.client.vfs.unmount().unwrap();
}

#[test]
fn readers_share_and_an_attribute_recalls_them_all() {
    let served = served_file();
    let holders = [(); 3].map(|()| Holder::new(mount(served.address(), &options()).unwrap(), "/f"));
    let other = mount(served.address(), &options()).unwrap();
    let set = ivers_vfs::SetAttr { perm: Some(0o600), ..ivers_vfs::SetAttr::default() };
    let file = other.find("/f").unwrap();
    holders.iter().for_each(|it| assert_eq!(it.read().unwrap(), b"contents"));
    other.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
    for holder in holders {
        assert_eq!(holder.client.count("server_recalls"), 1);
        let attr = holder.client.vfs.get_attr(&Cred::root(), &holder.file).unwrap();
        assert_eq!(attr.perm, 0o600);
        holder.client.vfs.unmount().unwrap();
    }
}

/// A client sees its own changes under a read delegation at once, including those of names.
#[test]
fn own_changes_are_seen_under_a_delegation() {
    let served = served_file();
    let a = Holder::new(mount(served.address(), &options()).unwrap(), "/f");
    let (cred, root) = (Cred::root(), a.client.vfs.root().unwrap());
    let mut last = a.change();
    let mut moved = |what: &str| {
        let change = a.change();
        assert!(change > last, "{what}");
        last = change;
    };
    let set = ivers_vfs::SetAttr { perm: Some(0o600), ..ivers_vfs::SetAttr::default() };
    a.client.vfs.set_attr(&cred, &a.file, &set).unwrap();
    moved("mode");
    assert_eq!(a.client.vfs.get_attr(&cred, &a.file).unwrap().perm, 0o600);
    a.client.vfs.link(&cred, &a.file, &root, b"g", false).unwrap();
    moved("link");
    assert_eq!(a.client.vfs.get_attr(&cred, &a.file).unwrap().nlink, 2);
    write(&a.client, "/g", b"CON");
    moved("write");
    assert_eq!(a.read().unwrap(), b"CONtents");
    a.client.vfs.unlink(&cred, &root, b"g", false).unwrap();
    moved("unlink");
    let none = ivers_vfs::RenameFlags::empty();
    a.client.vfs.rename(&cred, &root, b"f", &root, b"h", none, false).unwrap();
    a.change();
    a.client.vfs.unlink(&cred, &root, b"h", false).unwrap();
    assert!(served.vfs.resolve(&cred, "/h", false).is_err());
    a.client.vfs.unmount().unwrap();
}

/// [`D3`]
#[test]
fn a_client_that_is_cut_off_does_not_count_on_delegations() {
    let served = served_file();
    let (address, plan) = proxy(served.address());
    let patience = Patience {
        reply: Duration::from_millis(500),
        request: Some(Duration::from_secs(1)),
        ..Patience::default()
    };
    let a = Holder::new(mount(address, &NfsOptions { patience, ..options() }).unwrap(), "/f");
    assert_eq!(a.read().unwrap(), b"contents");
    plan.swallow.store(true, Relaxed);
    assert_eq!(a.read().unwrap(), b"contents", "the delegation is still valid");
    // The lease is 3 s.
    std::thread::sleep(Duration::from_millis(3500));
    let read = a.read();
    assert!(matches!(read, Err(Error::Server(ServerError::Timeout))), "{read:?}");
    let b = mount(served.address(), &options()).unwrap();
    write(&b, "/f", b"CON");
    plan.swallow.store(false, Relaxed);
    until("it connects again", || a.read().is_ok());
    assert_eq!(a.read().unwrap(), b"CONtents");
    b.vfs.unmount().unwrap();
    a.client.vfs.unmount().unwrap();
}

/// Checks that a query waits until `release` is called. `why` says why it must.
fn query_waits(a: &Holder, why: &str, release: impl FnOnce()) {
    std::thread::scope(|scope| {
        let query = scope.spawn(|| a.change());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!query.is_finished(), "{why}");
        release();
        query.join().unwrap();
    });
}

/// [`D3`] The server restarts with a shorter lease. The client renews this one, and relies on it.
#[test]
fn a_server_that_restarts_may_have_a_shorter_lease() {
    let mut crashing = Crashing::with_lease(600);
    let (address, plan) = proxy(crashing.address);
    let client = mount(address, &patient()).unwrap();
    client.put("f", b"contents").unwrap();
    client.vfs.sync().unwrap();
    let a = Holder::new(client, "/f");
    a.open();
    crashing.lease_seconds = 3;
    crashing.crash();
    crashing.start();
    a.client.vfs.stat_fs().unwrap();
    let before = a.requests();
    a.change();
    a.change();
    assert!(a.requests() <= before + 1, "the delegation was reclaimed");
    let before = a.requests();
    until("the lease is renewed", || a.requests() > before);
    plan.swallow.store(true, Relaxed);
    std::thread::sleep(Duration::from_millis(3500));
    query_waits(&a, "the lease may have expired", || plan.swallow.store(false, Relaxed));
    a.close();
    a.client.vfs.unmount().unwrap();
}

/// [`D3`] The server restarts with a longer lease. Until the delegation is reclaimed, nothing relies on it:
/// the old lease may have expired.
#[test]
fn a_longer_lease_counts_only_after_the_reclaim() {
    let mut crashing = Crashing::new();
    let (address, plan) = proxy(crashing.address);
    let client = mount(address, &patient()).unwrap();
    client.put("f", b"contents").unwrap();
    client.vfs.sync().unwrap();
    let a = Holder::new(client, "/f");
    a.open();
    a.read().unwrap();
    crashing.lease_seconds = 600;
    // The client knows the lease time, and does not get the delegation again.
    crashing.restart_with(&plan, |counts| (counts("OPEN") > 0).then_some(Fault::Swallowed));
    std::thread::scope(|scope| {
        scope.spawn(|| a.client.vfs.stat_fs().unwrap());
        until("the reply to OPEN is lost", || plan.swallow.load(Relaxed));
        query_waits(&a, "the delegation is not reclaimed", || {
            *plan.fault.lock().unwrap() = None;
            plan.swallow.store(false, Relaxed);
        });
    });
    a.close();
    a.client.vfs.unmount().unwrap();
}

/// [`D4`] The connection of an idle client breaks when the server sends the recall over it.
#[test]
fn a_recall_over_a_connection_that_breaks_comes_again() {
    let served = served_file();
    let (address, plan) = proxy(served.address());
    let a = Holder::new(mount(address, &patient()).unwrap(), "/f");
    a.open();
    let b = mount(served.address(), &options()).unwrap();
    let sessions = a.client.count("server_sessions");
    plan.cut_after.store(1, Relaxed);
    write(&b, "/f", b"CON");
    assert_eq!(plan.cuts.load(Relaxed), 1);
    assert_eq!(a.client.count("server_sessions"), sessions, "the session is the same");
    assert_eq!(a.client.count("server_recalls"), 1);
    assert_eq!(a.read().unwrap(), b"CONtents");
    a.close();
    a.client.vfs.unmount().unwrap();
}

#[test]
fn delegations_of_open_files_are_reclaimed_after_a_restart() {
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &patient()).unwrap();
    for name in ["open", "closed"] {
        let file = client.put(name, b"contents").unwrap();
        client.vfs.fsync(&file, false).unwrap();
    }
    client.vfs.unmount().unwrap();
    let a = Holder::new(mount(crashing.address, &patient()).unwrap(), "/open");
    let closed = a.client.find("/closed").unwrap();
    a.client.vfs.open(&Cred::root(), &closed, OpenMode::READ).unwrap();
    a.client.vfs.close(&closed, OpenMode::READ);
    a.open();
    crashing.crash();
    crashing.start();
    assert_eq!(a.read().unwrap(), b"contents");
    assert_eq!(a.read().unwrap(), b"contents", "the first request was older than what was reclaimed");
    let (opens, requests) = (a.client.count("server_open"), a.requests());
    a.client.vfs.open(&Cred::root(), &a.file, OpenMode::READ).unwrap();
    a.close();
    assert_eq!((a.client.count("server_open"), a.requests()), (opens, requests), "still delegated");
    a.client.vfs.open(&Cred::root(), &closed, OpenMode::READ).unwrap();
    assert_eq!(a.client.count("server_open"), opens + 1, "dropped");
    a.client.vfs.close(&closed, OpenMode::READ);
    // The restarted server recalls the reclaimed delegation.
    let b = mount(crashing.address, &patient()).unwrap();
    write(&b, "/open", b"CON");
    assert_eq!(a.read().unwrap(), b"CONtents");
    a.close();
    a.client.vfs.unmount().unwrap();
}

#[test]
fn an_unmount_with_a_recall_pending_ends() {
    let served = served_file();
    let (address, plan) = proxy(served.address());
    let a = Holder::new(mount(address, &patient()).unwrap(), "/f");
    a.open();
    let b = mount(served.address(), &options()).unwrap();
    plan.swallow.store(true, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&b, "/f", b"CON"));
        std::thread::sleep(Duration::from_millis(500));
        a.close();
        let started = Instant::now();
        let Holder { client, file } = a;
        drop(file);
        let _ = client.vfs.unmount();
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    });
}

#[test]
fn there_are_not_too_many_delegations() {
    const FILES: usize = 1300;
    let served = Served::new(mem());
    let dir = served.directory(&served.root(), b"d");
    let names: Vec<_> = (0..FILES).map(|nth| format!("n{nth}")).collect();
    names.iter().for_each(|name| drop(served.file(&dir, name.as_bytes(), b"x")));
    let client = mount(served.address(), &options()).unwrap();
    let here = client.find("/d").unwrap();
    let mut files = Vec::new();
    for name in &names {
        let file = client.vfs.lookup(&Cred::root(), &here, name.as_bytes()).unwrap();
        client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap();
        client.vfs.close(&file, OpenMode::READ);
        files.push(file);
    }
    let returned = || client.count("server_delegreturn");
    until("some are returned", || FILES as u64 - returned() <= 1000);
    let before = client.nfs.requests();
    client.vfs.open(&Cred::root(), &files[FILES - 1], OpenMode::READ).unwrap();
    assert_eq!(client.nfs.requests(), before, "the newest stay");
    client.vfs.close(&files[FILES - 1], OpenMode::READ);
    drop(files);
    client.vfs.unmount().unwrap();
    assert_eq!(client.count("server_delegations"), returned(), "all of them in the end");
}

/// Four clients write, read and query one file at once. Bytes that are read between two equal queries are not
/// older than the first query (C6): they are those of the last write that had ended before it, or newer.
#[test]
fn what_is_read_between_two_equal_queries_is_current() {
    const ROUNDS: u64 = 40;
    let served = Served::new(ext4());
    served.file(&served.root(), b"f", b"00000000");
    let clients = [(); 4].map(|()| mount(served.address(), &options()).unwrap());
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let equal = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (begun, ended, equal) = (&begun, &ended, &equal);
        let (writer, readers) = clients.split_first().unwrap();
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                begun.store(round, SeqCst);
                write(writer, "/f", format!("{round:08}").as_bytes());
                ended.store(round, SeqCst);
                // Waits until this round was read several times. The readers end after the last round.
                let enough = equal.load(SeqCst) + 6;
                let is_enough = || round == ROUNDS || equal.load(SeqCst) >= enough;
                until("nobody reads between two equal queries", is_enough);
            }
        });
        for client in readers {
            scope.spawn(move || {
                let file = client.find("/f").unwrap();
                let cred = Cred::root();
                let mut last = 0;
                while ended.load(SeqCst) < ROUNDS || last < ROUNDS {
                    client.vfs.open(&cred, &file, OpenMode::READ).unwrap();
                    let oldest = ended.load(SeqCst);
                    let first = client.vfs.change(&file).unwrap();
                    let mut bytes = [0; 8];
                    assert_eq!(client.vfs.read(&cred, &file, 0, &mut bytes).unwrap(), 8);
                    let second = client.vfs.change(&file).unwrap();
                    let newest = begun.load(SeqCst);
                    client.vfs.close(&file, OpenMode::READ);
                    assert!(second >= first);
                    let round: u64 = std::str::from_utf8(&bytes).unwrap().parse().unwrap();
                    assert!(round <= newest, "{round} was not written");
                    if first == second {
                        assert!(round >= oldest, "read {round} between equal queries after {oldest}");
                        equal.fetch_add(1, SeqCst);
                        last = round;
                    }
                }
            });
        }
    });
    let last = served.vfs.resolve(&Cred::root(), "/f", false).unwrap();
    for client in clients {
        assert_eq!(client.contents("/f").unwrap(), b"00000040");
        assert_eq!(client.vfs.change(&client.find("/f").unwrap()), served.vfs.change(&last));
        client.vfs.unmount().unwrap();
    }
}
