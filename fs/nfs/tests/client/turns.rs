//! Requests that wait for others: I/O beside locks, and beside a slow OPEN of NFSv4.0.

use super::callbacks::{self, SOON, honest};
use super::hostile::{asked, attrs, root_options, truth};
use super::recovery::READ_WRITE;
use super::*;
use std::cell::RefCell;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Condvar, Mutex};

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v42::*;
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::List;
use ivers_vfs::{FileOps, LockOps, LockOwner, LockRequest, OpenMode};

/// How long the server waits for the next lock before it executes a request.
const LULL: Duration = Duration::from_millis(300);

/// A server on which each LOCK ends the stateid of the one before. It executes READ, WRITE and COPY only if
/// no LOCK arrives meanwhile.
#[derive(Default)]
struct Locks {
    /// The number of LOCKs so far.
    count: Mutex<u32>,
    changed: Condvar,
}

impl Locks {
    fn next(&self) -> StateId {
        let mut count = self.count.lock().unwrap();
        *count += 1;
        self.changed.notify_all();
        StateId { seqid: 1, other: [100 + *count as u8 % 100; 12] }
    }

    /// Returns why a request is not executed.
    fn refusal(&self) -> Option<NfsStat> {
        let count = self.count.lock().unwrap();
        let before = *count;
        let (_count, wait) = self.changed.wait_timeout_while(count, LULL, |count| *count == before).unwrap();
        (!wait.timed_out()).then_some(NfsStat::BadStateid)
    }
}

/// A program locks and unlocks a file in a loop. READ, WRITE and COPY of other programs get through.
#[test]
fn requests_with_stateids_get_through_between_locks() {
    let locks = Arc::new(Locks::default());
    let theirs = locks.clone();
    let (address, _replies) = callbacks::start(Box::new(move |op, _| {
        Some(match op {
            Op::Lock(_) => OpResult::Lock(Locked::Ok(theirs.next())),
            Op::LockU(args) => OpResult::LockU(Ok(args.stateid)),
            Op::FreeStateId(_) => OpResult::FreeStateId(Ok(())),
            Op::TestStateId(list) => {
                let states = list.0.iter().map(|_| NfsStat::BadStateid as u32).collect();
                OpResult::TestStateId(Ok(List(states)))
            }
            Op::Commit(_) => OpResult::Commit(Ok([0; 8])),
            Op::Read(_) => return theirs.refusal().map(|status| OpResult::Read(Err(status))),
            Op::Write(args) => OpResult::Write(match theirs.refusal() {
                Some(status) => Err(status),
                None => {
                    let (count, verifier) = (args.data.len() as u32, [0; 8]);
                    Ok(WriteOk { count, committed: StableHow::FileSync, verifier })
                }
            }),
            Op::Copy(args) => OpResult::Copy(match theirs.refusal() {
                Some(status) => CopyRes::Failed(status),
                None => CopyRes::Ok(CopyOk {
                    response: WriteResponse {
                        callback: List(Vec::new()),
                        count: args.count,
                        committed: StableHow::FileSync,
                        verifier: [0; 8],
                    },
                    requirements: CopyRequirements { consecutive: true, synchronous: true },
                }),
            }),
            _ => return None,
        })
    }));
    let client = mount(address, &NfsOptions { patience: Patience::default(), ..root_options() }).unwrap();
    let cred = Cred::root();
    let file = client.vfs.lookup(&cred, &client.vfs.root().unwrap(), b"f").unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    let owner = LockOwner(1);
    let lock = |range| {
        let lock = LockRequest { owner, range, exclusive: true, waits: false };
        client.nfs.lock(&cred, &file, &lock)
    };
    lock(0..10).unwrap();
    let over = AtomicBool::new(false);
    let (read, written, copied) = std::thread::scope(|scope| {
        let locker = scope.spawn(|| {
            while !over.load(SeqCst) {
                let locked = lock(20..30);
                let unlocked = client.nfs.unlock(&cred, &file, owner, 20..30);
                if let Err(error) = locked.and(unlocked) {
                    return Some(error.to_string());
                }
            }
            None
        });
        let nfs = &client.nfs;
        let read = nfs.read(&cred, &file, 0, &mut [0; 100]);
        let written = nfs.write_back(&file, 0, &[7; 100]).map(drop);
        let copied = client.vfs.copy_range(&cred, &file, 0, &file, 50_000, 1000);
        over.store(true, SeqCst);
        assert_eq!(locker.join().unwrap(), None);
        (read, written, copied)
    });
    read.unwrap();
    written.unwrap();
    assert_eq!(copied.unwrap(), 1000);
    client.vfs.stop_waiting();
}

/// Copies between two files in both directions, beside locks of both: no thread waits for another one for
/// ever.
#[test]
fn copies_in_both_directions_end() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let cred = Cred::root();
    let files = ["a", "b"].map(|name| {
        let file = client.put(name, &[7; 100_000]).unwrap();
        client.vfs.open(&cred, &file, READ_WRITE).unwrap();
        client.vfs.fsync(&file, false).unwrap();
        file
    });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (nth, file) in files.iter().enumerate() {
            let (client, cred, over) = (&client, &cred, &over);
            scope.spawn(move || {
                let (owner, range) = (LockOwner(nth as u64), 0..10);
                while !over.load(Relaxed) {
                    let lock = LockRequest { owner, range: range.clone(), exclusive: true, waits: false };
                    client.vfs.lock(cred, file, &lock).unwrap();
                    client.vfs.unlock(cred, file, owner, range.clone()).unwrap();
                }
            });
        }
        let copiers = [0, 1].map(|nth| {
            let (client, cred, files) = (&client, &cred, &files);
            scope.spawn(move || {
                for round in 0..20 {
                    let (from, to) = (&files[nth], &files[1 - nth]);
                    let copied = client.vfs.copy_range(cred, from, 0, to, 50_000 + round * 100, 1000);
                    assert_eq!(copied.unwrap(), 1000);
                }
            })
        });
        let ended = copiers.map(|copier| copier.join().is_ok());
        over.store(true, Relaxed);
        assert_eq!(ended, [true; 2]);
    });
    files.iter().for_each(|file| client.vfs.close(file, READ_WRITE));
    drop(files);
    client.vfs.unmount().unwrap();
}

thread_local! {
    /// The current filehandle of a request: `/`, or the name of a file.
    static AT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns what a server of NFSv4.0 answers, with a file under each name.
fn version_40(op: &Op) -> Option<OpResult> {
    match op {
        Op::PutRootFh(()) => AT.set(b"/".to_vec()),
        Op::PutFh(handle) => AT.set(handle.0.clone()),
        Op::Lookup(name) => AT.set(name.clone()),
        Op::Open(OpenArgs { claim: OpenClaim::Null(name), .. }) => AT.set(name.clone()),
        _ => {}
    }
    let at = AT.with_borrow(Clone::clone);
    let number = at.iter().fold(0, |number, byte| number * 256 + u64::from(*byte));
    let kind = if at == b"/" { Ftype::Dir } else { Ftype::Reg };
    Some(match op {
        Op::SetClientId(_) => {
            OpResult::SetClientId(SetClientIdRes::Ok(ConfirmArgs { clientid: 1, confirm: [1; 8] }))
        }
        Op::SetClientIdConfirm(_) => OpResult::SetClientIdConfirm(Ok(())),
        Op::Renew(_) => OpResult::Renew(Ok(())),
        Op::GetFh(()) => OpResult::GetFh(Ok(Opaque(at))),
        Op::GetAttr(wanted) => OpResult::GetAttr(Ok(asked(attrs(number, kind), wanted))),
        Op::Open(_) => match honest(op) {
            Some(OpResult::Open(Ok(opened))) => {
                let stateid = StateId { seqid: 1, other: [at.last().copied().unwrap_or(0); 12] };
                OpResult::Open(Ok(Opened { stateid, delegation: OpenDelegation::None, ..opened }))
            }
            other => return other,
        },
        op => truth(op),
    })
}

/// With NFSv4.0 only one OPEN is in flight at a time. While the server takes its time for it, and more
/// threads than there are slots wait for their turn, another thread reads.
#[test]
fn reads_do_not_wait_for_a_slow_open() {
    const FILES: u64 = 40;
    VERSION.set(Some(0));
    let opens = Arc::new((AtomicBool::new(false), AtomicU32::new(0)));
    let read: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let (their_opens, their_read) = (opens.clone(), read.clone());
    let (address, _replies) = callbacks::start(Box::new(move |op, _| {
        match op {
            Op::Open(_) if their_opens.0.load(SeqCst) => {
                their_opens.1.fetch_add(1, SeqCst);
                let (done, changed) = &*their_read;
                let wait = changed.wait_timeout_while(done.lock().unwrap(), SOON, |done| !*done);
                assert!(!wait.unwrap().1.timed_out(), "no READ during OPEN");
            }
            Op::Read(_) => {
                *their_read.0.lock().unwrap() = true;
                their_read.1.notify_all();
            }
            _ => {}
        }
        version_40(op)
    }));
    let patience = Patience { request: Some(SOON * 2), ..Patience::default() };
    let client = mount(address, &NfsOptions { patience, ..root_options() }).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let find = |name: String| client.vfs.lookup(&cred, &root, name.as_bytes()).unwrap();
    let first = find("first".into());
    client.vfs.open(&cred, &first, OpenMode::READ).unwrap();
    let files: Vec<_> = (0..FILES).map(|nth| find(format!("f{nth}"))).collect();
    opens.0.store(true, SeqCst);
    std::thread::scope(|scope| {
        for file in &files {
            let (client, cred) = (&client, &cred);
            scope.spawn(move || client.vfs.open(cred, file, OpenMode::READ).unwrap());
        }
        while client.count("server_open") < FILES + 1 || opens.1.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(opens.1.load(SeqCst), 1, "one at a time");
        // A client that is wrong takes all slots in this time.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(client.vfs.read(&cred, &first, 0, &mut [0; 100]).unwrap(), 100);
    });
    client.vfs.stop_waiting();
}
