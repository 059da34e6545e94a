//! A server that lies to writers: errors, in bounded time and memory.

use super::hostile::{OneFile, liar, root_options};
use super::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_vfs::{Error, OpenMode, ServerError};

/// What a server says to WRITE and COMMIT.
#[derive(Clone, Copy)]
struct Writes {
    count: fn(usize) -> u32,
    verifier: fn() -> Verifier,
    status: NfsStat,
}

fn steady() -> Verifier {
    [1; 8]
}

fn another_each_time() -> Verifier {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed).to_be_bytes()
}

/// A server with a directory, and a file that an OPEN creates.
fn server(writes: Writes) -> SocketAddr {
    let file = OneFile::default();
    liar(move |op| {
        if let Some(answer) = file.answer(op) {
            return Some(answer);
        }
        Some(match op {
            Op::Write(args) if writes.status == NfsStat::Ok => OpResult::Write(Ok(WriteOk {
                count: (writes.count)(args.data.len()),
                committed: StableHow::Unstable,
                verifier: (writes.verifier)(),
            })),
            Op::Write(_) => OpResult::failure(op.number(), writes.status),
            Op::Commit(_) => OpResult::Commit(Ok((writes.verifier)())),
            _ => return None,
        })
    })
}

/// Writes and syncs a file.
fn write(writes: Writes) -> (Result<()>, Duration) {
    let client = mount(server(writes), &root_options()).unwrap();
    let cred = Cred::root();
    let root = client.vfs.root().unwrap();
    let started = Instant::now();
    let file = client.vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false);
    let synced = file.and_then(|(file, _)| {
        client.vfs.open(&cred, &file, OpenMode::WRITE)?;
        let written = client.vfs.write(&cred, &file, 0, &[1; 10_000], WriteFlags::empty());
        let synced = written.and_then(|_| client.vfs.fsync(&file, false));
        client.vfs.close(&file, OpenMode::WRITE);
        synced
    });
    client.vfs.stop_waiting();
    (synced, started.elapsed())
}

#[test]
fn lies_about_writes_are_errors() {
    let whole: fn(usize) -> u32 = |len| len as u32;
    let honest = Writes { count: whole, verifier: steady, status: NfsStat::Ok };
    write(honest).0.unwrap();
    write(Writes { count: |len| len.min(1000) as u32, ..honest }).0.unwrap();
    for (what, writes) in [
        ("nothing is written", Writes { count: |_| 0, ..honest }),
        ("more than was sent", Writes { count: |len| len as u32 + 1, ..honest }),
        ("everything is lost", Writes { verifier: another_each_time, ..honest }),
        ("no stateid is good enough", Writes { status: NfsStat::BadStateid, ..honest }),
        ("no space", Writes { status: NfsStat::Nospc, ..honest }),
    ] {
        let (result, took) = write(writes);
        assert!(result.is_err(), "{what}");
        assert!(took < Duration::from_secs(20), "{what}: {took:?}");
        if what == "everything is lost" {
            assert!(matches!(result, Err(Error::Server(ServerError::StateLost))), "{result:?}");
        }
    }
}
