//! Byte-range locks of several clients of one server.

use super::faults::proxy;
use super::recovery::{Crashing, READ_WRITE, patient};
use super::*;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use ivers_vfs::{Error, LockConflict, LockOwner, LockRequest, NameError};

fn wanted(owner: u64, range: Range<u64>, exclusive: bool) -> LockRequest {
    LockRequest { owner: LockOwner(owner), range, exclusive, waits: false }
}

fn is<T>(result: Result<T>, expected: NameError) -> bool {
    matches!(result, Err(Error::Name(error) | Error::DataRefused(error)) if error == expected)
}

/// A file that is open for reading and writing.
struct Opened<'a> {
    client: &'a Mounted,
    file: InodeRef,
}

impl<'a> Opened<'a> {
    fn new(client: &'a Mounted, path: &str) -> Self {
        let file = client.find(path).unwrap();
        client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
        Self { client, file }
    }

    fn lock(&self, owner: u64, range: Range<u64>, exclusive: bool) -> Result<()> {
        self.client.vfs.lock(&Cred::root(), &self.file, &wanted(owner, range, exclusive))
    }

    fn in_the_way(&self, owner: u64, range: Range<u64>, exclusive: bool) -> Option<LockConflict> {
        let lock = wanted(owner, range, exclusive);
        self.client.vfs.test_lock(&Cred::root(), &self.file, &lock).unwrap()
    }

    fn unlock(&self, owner: u64, range: Range<u64>) -> Result<()> {
        self.client.vfs.unlock(&Cred::root(), &self.file, LockOwner(owner), range)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize> {
        self.client.vfs.write(&Cred::root(), &self.file, 0, bytes, WriteFlags::empty())
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 100];
        let read = self.client.vfs.read(&Cred::root(), &self.file, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn close(self) {
        self.client.vfs.close(&self.file, READ_WRITE);
    }
}

#[test]
pub fn locks_of_two_clients_conflict_and_are_split() {
    let served = Served::new(mem());
    let (one, two) =
        (mount(served.address(), &options()).unwrap(), mount(served.address(), &options()).unwrap());
    one.put("f", b"contents").unwrap();
    let (a, b) = (Opened::new(&one, "/f"), Opened::new(&two, "/f"));
    a.lock(1, 0..100, true).unwrap();
    assert_eq!(b.in_the_way(1, 50..60, false), Some(LockConflict { range: 0..100, exclusive: true }));
    assert!(is(b.lock(1, 50..60, false), NameError::Busy));
    assert!(is(a.lock(2, 99..u64::MAX, false), NameError::Busy), "another owner of the same client");
    b.lock(1, 100..u64::MAX, true).unwrap();

    a.unlock(1, 40..70).unwrap();
    b.lock(1, 50..60, false).unwrap();
    a.lock(2, 50..60, false).unwrap();
    assert!(is(b.lock(1, 50..60, true), NameError::Busy), "others share it");
    assert!(is(b.lock(1, 39..40, true), NameError::Busy) && is(b.lock(1, 70..71, true), NameError::Busy));
    a.unlock(2, 0..u64::MAX).unwrap();
    b.lock(1, 50..60, true).unwrap();
    a.unlock(1, 0..u64::MAX).unwrap();
    assert_eq!(b.in_the_way(1, 0..u64::MAX, true), None);
    let shared = LockConflict { range: 50..60, exclusive: true };
    assert_eq!(a.in_the_way(1, 0..70, false), Some(shared));
    // A close without an unlock: the locks go with the open.
    b.close();
    a.lock(1, 0..u64::MAX, true).unwrap();
    a.unlock(1, 0..u64::MAX).unwrap();
    a.lock(1, 0..1, true).unwrap();
    let before = one.nfs.requests();
    a.unlock(7, 0..u64::MAX).unwrap();
    assert_eq!(one.nfs.requests(), before, "an owner without locks");
    a.close();
    for client in [one, two] {
        client.vfs.unmount().unwrap();
    }
}

/// [`N15`] The next owner of a lock sees what was written under it, however long attributes count otherwise.
#[test]
pub fn a_lock_shows_what_was_written_under_it() {
    let served = Served::new(ext4());
    let options = NfsOptions { attribute_timeout: Duration::from_secs(1000), ..options() };
    let clients = [(); 2].map(|()| mount(served.address(), &options).unwrap());
    clients[0].put("counter", b"0").unwrap();
    let opened = [0, 1].map(|nth| Opened::new(&clients[nth], "/counter"));
    const ROUNDS: u64 = 60;
    std::thread::scope(|scope| {
        for at in &opened {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    while is(at.lock(1, 0..u64::MAX, true), NameError::Busy) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let text = String::from_utf8(at.read().unwrap()).unwrap();
                    let count: u64 = text.parse().unwrap();
                    at.write((count + 1).to_string().as_bytes()).unwrap();
                    at.unlock(1, 0..u64::MAX).unwrap();
                }
            });
        }
    });
    opened[0].lock(1, 0..1, false).unwrap();
    assert_eq!(opened[0].read().unwrap(), (2 * ROUNDS).to_string().as_bytes());
}

/// [`N14`] A restarted server gets all locks again before anyone else can take them.
#[test]
pub fn locks_are_reclaimed_after_a_restart() {
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &patient()).unwrap();
    client.put("f", b"contents").unwrap();
    let a = Opened::new(&client, "/f");
    a.lock(1, 0..100, true).unwrap();
    a.unlock(1, 40..60).unwrap();
    a.lock(2, 45..50, false).unwrap();
    for round in 0..2 {
        crashing.crash();
        crashing.start();
        // The first request after the restart reclaims.
        a.write(b"under the lock").unwrap();
        client.vfs.fsync(&a.file, false).unwrap();
        let other = mount(crashing.address, &patient()).unwrap();
        let b = Opened::new(&other, "/f");
        for held in [0..1, 39..40, 60..61, 99..100, 45..46] {
            assert!(is(b.lock(1, held.clone(), true), NameError::Busy), "{held:?} after restart {round}");
        }
        b.lock(1, 40..45, true).unwrap();
        b.lock(1, 45..46, false).unwrap();
        assert_eq!(b.read().unwrap(), b"under the lock");
        b.close();
        other.vfs.unmount().unwrap();
    }
    a.unlock(1, 0..u64::MAX).unwrap();
    a.unlock(2, 0..u64::MAX).unwrap();
    assert_eq!(a.in_the_way(9, 0..u64::MAX, true), None);
    a.close();
    client.vfs.unmount().unwrap();
}

/// [`N14`] A client that was silent for too long has lost its locks: it neither reads nor writes as if it had
/// them.
#[test]
pub fn a_lost_lock_stops_its_owner() {
    let served = Served::new(ext4());
    let (address, plan) = proxy(served.address());
    let client = mount(address, &patient()).unwrap();
    client.put("f", b"first").unwrap();
    let a = Opened::new(&client, "/f");
    a.lock(1, 0..10, true).unwrap();
    a.write(b"mine").unwrap();
    plan.swallow.store(true, Relaxed);
    // The lease is 3 s. Another client takes the lock.
    std::thread::sleep(Duration::from_secs(7));
    let other = mount(served.address(), &patient()).unwrap();
    let b = Opened::new(&other, "/f");
    while is(b.lock(1, 0..10, true), NameError::Busy) {
        std::thread::sleep(Duration::from_millis(50));
    }
    b.write(b"theirs").unwrap();
    b.unlock(1, 0..10).unwrap();
    plan.swallow.store(false, Relaxed);

    assert!(is(client.vfs.fsync(&a.file, false), NameError::LockLost), "written under the lock");
    assert!(is(a.read(), NameError::LockLost));
    assert!(is(a.lock(1, 20..30, true), NameError::LockLost));
    a.unlock(1, 0..10).unwrap();
    a.lock(1, 0..10, true).unwrap();
    assert_eq!(a.read().unwrap(), b"theirs");
    a.write(b"mine").unwrap();
    a.unlock(1, 0..10).unwrap();
    b.lock(1, 0..10, false).unwrap();
    assert_eq!(b.read().unwrap(), b"miners");
    a.close();
    client.vfs.unmount().unwrap();
}

/// The server tells waiting clients when a lock may be free.
#[test]
fn a_server_says_when_a_lock_may_be_free() {
    let served = Served::new(mem());
    let clients = [(); 2].map(|()| mount(served.address(), &options()).unwrap());
    clients[0].put("f", b"contents").unwrap();
    let [a, b] = [0, 1].map(|nth| Opened::new(&clients[nth], "/f"));
    let (to, from) = std::sync::mpsc::channel();
    clients[1].vfs.on_lock_available(Box::new(move |ino| to.send(ino).unwrap()));
    a.lock(1, 0..100, true).unwrap();
    let waits = LockRequest { waits: true, ..wanted(2, 50..60, true) };
    assert!(is(clients[1].vfs.lock(&Cred::root(), &b.file, &waits), NameError::Busy));
    assert!(from.try_recv().is_err());
    a.unlock(1, 0..100).unwrap();
    assert_eq!(from.recv_timeout(Duration::from_secs(20)), Ok(b.file.ino));
    clients[1].vfs.lock(&Cred::root(), &b.file, &waits).unwrap();
    assert_eq!(clients[1].count("server_callbacks"), 1);
    for client in &clients {
        client.vfs.unmount().unwrap();
    }
}
