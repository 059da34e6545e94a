//! What it costs to make bytes durable, and what the server is asked for.

use super::hostile::{OneFile, liar, root_options};
use super::recovery::READ_WRITE;
use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_vfs::{Error, NameError};

const PAGE: u64 = 4096;

/// Changes an open file without making it durable.
fn write(client: &Mounted, file: &InodeRef, offset: u64, bytes: &[u8]) {
    let written = client.vfs.write(&Cred::root(), file, offset, bytes, WriteFlags::empty());
    assert_eq!(written.unwrap(), bytes.len());
}

/// Sends the dirty pages of a file, which the server may then lose.
fn send(client: &Mounted, file: &InodeRef) {
    client.vfs.flush_descriptor(file, &client.vfs.error_cursor(file)).unwrap();
}

/// Whatever is dirty: one request if it fits into one.
#[test]
fn bytes_become_durable_in_one_request() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &NfsOptions { delegations: false, ..options() }).unwrap();
    let file = client.put("f", &vec![1; 100 * PAGE as usize]).unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    let there = served.vfs.resolve(&Cred::root(), "/f", false).unwrap();
    client.vfs.fsync(&file, false).unwrap();
    let mut expected = vec![1; 100 * PAGE as usize];
    let mut change = |page: u64, byte: u8| {
        write(&client, &file, page * PAGE, &[byte; PAGE as usize]);
        expected[(page * PAGE) as usize..][..PAGE as usize].fill(byte);
    };
    let costs = |sync: &dyn Fn()| {
        let before = ["server_write", "server_commit"].map(|name| client.count(name));
        let requests = client.nfs.requests();
        sync();
        let after = ["server_write", "server_commit"].map(|name| client.count(name));
        (client.nfs.requests() - requests, after[0] - before[0], after[1] - before[1])
    };
    let fsync = || client.vfs.fsync(&file, false).unwrap();
    change(3, 2);
    assert_eq!(costs(&fsync), (1, 1, 0));
    assert_eq!(costs(&fsync), (0, 0, 0), "nothing is left");
    change(3, 3);
    assert_eq!(costs(&|| client.vfs.fsync(&file, true).unwrap()), (1, 1, 0));
    (0..40).for_each(|nth| change(nth * 2, 4));
    assert_eq!(costs(&fsync), (1, 40, 1));
    (0..50).for_each(|nth| change(nth * 2, 5));
    change(99, 5);
    assert_eq!(costs(&|| send(&client, &file)), (1, 50, 0), "two pages are one run");
    assert_eq!(costs(&fsync), (1, 0, 1));
    change(7, 6);
    send(&client, &file);
    change(9, 6);
    assert_eq!(costs(&fsync), (1, 1, 1), "the bytes that were sent before, too");
    change(11, 7);
    let flags = [WriteFlags::DIRECT, WriteFlags::SYNC];
    let page = |flag| {
        let bytes = [7; PAGE as usize];
        client.vfs.write(&Cred::root(), &file, 12 * PAGE, &bytes, flag).map(drop).unwrap();
    };
    fsync();
    for flag in flags {
        assert_eq!(costs(&|| page(flag)), (1, 1, 0));
    }
    change(12, 7);
    fsync();
    assert!(served.vfs.stat(&there).size == expected.len() as u64);
    assert!(client.contents("/f").unwrap() == expected);
    let mut bytes = vec![0; expected.len()];
    served.vfs.read(&Cred::root(), &there, 0, &mut bytes).unwrap();
    assert!(bytes == expected, "the server has the bytes");
    client.vfs.close(&file, READ_WRITE);
    client.vfs.unmount().unwrap();
}

#[test]
fn direct_writes_of_several_threads_are_durable() {
    const THREADS: u64 = 8;
    const WRITES: u64 = 50;
    let served = Served::new(mem());
    let client = mount(served.address(), &NfsOptions { delegations: false, ..options() }).unwrap();
    let file = client.put("f", &vec![0; (THREADS * WRITES * PAGE) as usize]).unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    client.vfs.fsync(&file, false).unwrap();
    let before = client.nfs.requests();
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (client, file) = (&client, &file);
            threads.spawn(move || {
                for nth in 0..WRITES {
                    let at = (nth * THREADS + thread) * PAGE;
                    let bytes = [thread as u8 + 1; PAGE as usize];
                    client.vfs.write(&Cred::root(), file, at, &bytes, WriteFlags::DIRECT).unwrap();
                }
            });
        }
    });
    let requests = client.nfs.requests() - before;
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(client.nfs.requests() - before, requests, "everything is durable");
    let there = served.vfs.resolve(&Cred::root(), "/f", false).unwrap();
    let mut bytes = vec![0; (THREADS * WRITES * PAGE) as usize];
    served.vfs.read(&Cred::root(), &there, 0, &mut bytes).unwrap();
    for (page, bytes) in bytes.chunks(PAGE as usize).enumerate() {
        assert!(bytes.iter().all(|byte| u64::from(*byte) == page as u64 % THREADS + 1), "page {page}");
    }
    client.vfs.close(&file, READ_WRITE);
    client.vfs.unmount().unwrap();
}

/// What a server was asked for, and how it answers.
struct Script {
    seen: Mutex<Vec<String>>,
    verifier: AtomicU8,
    /// WRITE at this offset gets this status.
    refused: Mutex<Option<(u64, NfsStat)>>,
    /// Whether WRITE makes bytes durable if it is asked to.
    is_honest: AtomicBool,
    file: OneFile,
    /// WRITE waits while this is locked.
    held: Mutex<()>,
}

impl Script {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::default(),
            verifier: AtomicU8::new(1),
            refused: Mutex::default(),
            is_honest: AtomicBool::new(true),
            file: OneFile::default(),
            held: Mutex::default(),
        })
    }

    fn note(&self, what: String) {
        self.seen.lock().unwrap().push(what);
    }

    /// Returns what was asked for since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    fn answer(&self, op: &Op) -> Option<OpResult> {
        if let Some(answer) = self.file.answer(op) {
            return Some(answer);
        }
        let verifier = [self.verifier.load(Relaxed); 8];
        Some(match op {
            Op::Write(args) => {
                self.note(format!("{:?} {}+{}", args.stable, args.offset / PAGE, args.data.len()));
                drop(self.held.lock().unwrap());
                if let Some((_, status)) = self.refused.lock().unwrap().filter(|it| it.0 == args.offset) {
                    return Some(OpResult::failure(op.number(), status));
                }
                let honest = self.is_honest.load(Relaxed);
                let committed = if honest { args.stable } else { StableHow::Unstable };
                OpResult::Write(Ok(WriteOk { count: args.data.len() as u32, committed, verifier }))
            }
            Op::Commit(_) => {
                self.note("COMMIT".into());
                OpResult::Commit(Ok(verifier))
            }
            _ => return None,
        })
    }
}

/// A client of a server with this script, and an open file of it.
fn scripted() -> (Arc<Script>, Mounted, InodeRef) {
    let script = Script::new();
    let answers = script.clone();
    // A thread waits until others have run.
    let patience = Patience {
        reply: Duration::from_secs(30),
        request: Some(Duration::from_secs(60)),
        ..Patience::default()
    };
    let options = NfsOptions { patience, ..root_options() };
    let client = mount(liar(move |op| answers.answer(op)), &options).unwrap();
    let root = client.vfs.root().unwrap();
    let file = client.make(&root, "f", &CreateSpec::file(0o644)).unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    (script, client, file)
}

/// Writes these pages.
fn dirty(client: &Mounted, file: &InodeRef, pages: &[u64]) {
    pages.iter().for_each(|page| write(client, file, page * PAGE, &[1; PAGE as usize]));
}

#[test]
fn the_server_is_asked_for_what_the_program_asked_for() {
    let (script, client, file) = scripted();
    dirty(&client, &file, &[3]);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(script.take(), ["FileSync 3+4096"]);
    dirty(&client, &file, &[3, 4]);
    client.vfs.fsync(&file, true).unwrap();
    assert_eq!(script.take(), ["DataSync 3+8192"]);
    dirty(&client, &file, &[1, 5]);
    client.vfs.fsync(&file, true).unwrap();
    assert_eq!(script.take(), ["Unstable 1+4096", "Unstable 5+4096", "COMMIT"]);
    dirty(&client, &file, &[1]);
    send(&client, &file);
    assert_eq!(script.take(), ["Unstable 1+4096"], "nobody asked for more");
    dirty(&client, &file, &[2]);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(script.take(), ["Unstable 2+4096", "COMMIT"]);
    // A server that did not make the bytes durable.
    script.is_honest.store(false, Relaxed);
    dirty(&client, &file, &[3]);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(script.take(), ["FileSync 3+4096", "COMMIT"]);
    client.vfs.stop_waiting();
}

/// [`N11`] The server lost what was sent before, and says so in the reply that makes newer bytes durable.
#[test]
fn bytes_that_the_server_lost_are_sent_again() {
    let (script, client, file) = scripted();
    dirty(&client, &file, &[1, 2, 7]);
    send(&client, &file);
    assert_eq!(script.take(), ["Unstable 1+8192", "Unstable 7+4096"]);
    script.verifier.store(2, Relaxed);
    dirty(&client, &file, &[5]);
    client.vfs.fsync(&file, false).unwrap();
    let again = ["Unstable 5+4096", "COMMIT", "COMMIT", "Unstable 1+8192", "Unstable 7+4096", "COMMIT"];
    assert_eq!(script.take(), again);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(script.take(), [""; 0], "nothing is left");
    client.vfs.stop_waiting();
}

/// The error of one WRITE in a request belongs to its bytes.
#[test]
fn bytes_that_the_server_refuses_do_not_keep_others() {
    let (script, client, file) = scripted();
    *script.refused.lock().unwrap() = Some((3 * PAGE, NfsStat::Nospc));
    dirty(&client, &file, &[1, 3, 5]);
    let failed = client.vfs.fsync(&file, false);
    assert!(matches!(failed, Err(Error::DataRefused(NameError::NoSpace))), "{failed:?}");
    let seen = script.take();
    assert_eq!(seen[..3], ["Unstable 1+4096", "Unstable 3+4096", "Unstable 3+4096"]);
    assert!(seen.contains(&"Unstable 5+4096".to_owned()) && !seen.contains(&"FileSync 5+4096".to_owned()));
    // What was refused is gone; the rest becomes durable.
    client.vfs.fsync(&file, false).unwrap();
    assert!(script.take().iter().all(|what| what == "COMMIT"));
    // A direct write reports the error itself.
    let direct = client.vfs.write(&Cred::root(), &file, 3 * PAGE, &[1; PAGE as usize], WriteFlags::DIRECT);
    assert!(matches!(direct, Err(Error::DataRefused(NameError::NoSpace))), "{direct:?}");
    client.vfs.stop_waiting();
}

/// A server that asks for a pause within a request gets the rest of it later.
#[test]
fn a_pause_within_a_request_keeps_the_rest() {
    let (script, client, file) = scripted();
    *script.refused.lock().unwrap() = Some((3 * PAGE, NfsStat::Delay));
    dirty(&client, &file, &[1, 3]);
    std::thread::scope(|threads| {
        let synced = threads.spawn(|| client.vfs.fsync(&file, false));
        let refused = "Unstable 3+4096".to_owned();
        while script.seen.lock().unwrap().iter().filter(|what| **what == refused).count() < 2 {
            std::thread::yield_now();
        }
        *script.refused.lock().unwrap() = None;
        synced.join().unwrap().unwrap();
    });
    let seen = script.take();
    assert_eq!(seen.iter().filter(|what| *what == "Unstable 1+4096").count(), 1, "{seen:?}");
    assert_eq!(seen[seen.len() - 2..], ["Unstable 3+4096", "COMMIT"]);
    client.vfs.stop_waiting();
}

/// While one thread waits for the server, others write into the cache. The next request carries what all of
/// them wrote.
#[test]
fn direct_writes_of_several_threads_share_a_request() {
    let (script, client, file) = scripted();
    dirty(&client, &file, &[1, 3, 5]);
    client.vfs.fsync(&file, false).unwrap();
    script.take();
    let direct = &|page: u64| {
        client.vfs.write(&Cred::root(), &file, page * PAGE, &[2; PAGE as usize], WriteFlags::DIRECT).unwrap();
    };
    let shows = |page: u64| {
        let mut byte = [0];
        client.vfs.read(&Cred::root(), &file, page * PAGE, &mut byte).unwrap();
        byte == [2]
    };
    std::thread::scope(|threads| {
        let held = script.held.lock().unwrap();
        threads.spawn(|| direct(1));
        while script.seen.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }

        for page in [3, 5] {
            threads.spawn(move || direct(page));
        }
        while !shows(3) || !shows(5) {
            std::thread::yield_now();
        }
        drop(held);
    });
    let seen = script.take();
    assert_eq!(seen[..3], ["DataSync 1+4096", "Unstable 3+4096", "Unstable 5+4096"]);
    assert!(matches!(seen.len() - 3, 1..=2) && seen[3..].iter().all(|what| what == "COMMIT"), "{seen:?}");
    client.vfs.stop_waiting();
}
