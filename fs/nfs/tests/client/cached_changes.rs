//! Changes under write delegations: what programs and other clients see of them, and sequences in which a
//! careless client serves old values, loses bytes, or waits forever.

use super::callbacks::{self, DELEGATION, Line, SOON, honest};
use super::deferred_closes::{holding, served_contents};
use super::hostile::root_options;
use super::recovery::READ_WRITE;
use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};

use ivers_nfs4::attr;
use ivers_nfs4::callback::{CbGetAttrArgs, CbOp, CbResult};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_vfs::{RenameFlags, SetAttr, TimeSet, Timestamp, XattrMode};

/// A file that is open with a write delegation.
fn delegated(client: &Mounted, name: &str) -> InodeRef {
    let file = client.make(&client.vfs.root().unwrap(), name, &CreateSpec::file(0o644)).unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    file
}

/// A client of a server that is not ours, with a file open.
fn open_on(address: SocketAddr) -> (Mounted, InodeRef) {
    let options = NfsOptions { write_delegations: true, patience: Patience::default(), ..root_options() };
    let client = mount(address, &options).unwrap();
    let file = client.vfs.lookup(&Cred::root(), &client.vfs.root().unwrap(), b"f").unwrap();
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    (client, file)
}

/// The delegation that a server grants which is not ours.
fn granted() -> WriteDelegation {
    let permissions = Ace { kind: 0, flags: 0, mask: 0, who: b"EVERYONE@".to_vec() };
    WriteDelegation {
        stateid: DELEGATION,
        recall: false,
        space_limit: SpaceLimit::Size(1 << 30),
        permissions,
    }
}

fn write(client: &Mounted, file: &InodeRef, bytes: &[u8]) {
    assert_eq!(client.vfs.write(&Cred::root(), file, 0, bytes, WriteFlags::empty()).unwrap(), bytes.len());
}

/// [`D10`] A write is cached and the value that counts it is queried. Then a request changes the file: the
/// server's value may still be below that one.
#[test]
fn a_request_that_changes_a_file_moves_a_raised_value() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let file = delegated(&client, "f");
    let set = |set: SetAttr| {
        client.vfs.set_attr(&cred, &file, &set).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 5] = [
        ("size", &|| set(SetAttr { size: Some(3), ..SetAttr::default() })),
        ("owner", &|| set(SetAttr { uid: Some(7), ..SetAttr::default() })),
        ("attribute", &|| client.vfs.set_xattr(&cred, &file, "user.x", b"x", XattrMode::Any).unwrap()),
        ("link", &|| {
            client.vfs.link(&cred, &file, &root, b"g", false).unwrap();
        }),
        ("name", &|| {
            client.vfs.rename(&cred, &root, b"g", &root, b"h", RenameFlags::empty(), false).unwrap();
        }),
    ];
    for (what, change) in changes {
        write(&client, &file, b"cached");
        let raised = client.vfs.change(&file).unwrap();
        change();
        let after = client.vfs.change(&file).unwrap();
        assert!(after > raised, "{what}: {raised}, then {after}");
        assert_eq!(client.vfs.change(&file), Some(after), "{what}: nothing has changed since");
    }
    client.vfs.close(&file, READ_WRITE);
    client.vfs.unmount().unwrap();
}

/// [`D10`] A write during a request that changes the file is not counted. If the server asks for the change
/// attribute then, the answer is not the old value, but none: the server recalls the delegation.
#[test]
fn a_write_that_is_not_counted_is_not_hidden_from_the_server() {
    let (arrived, arrives) = channel();
    let answer = Arc::new((Mutex::new(false), Condvar::new()));
    let their_answer = answer.clone();
    let (address, replies) = callbacks::start(Box::new(move |op, line| match (op, honest(op)) {
        (Op::Open(_), Some(OpResult::Open(Ok(opened)))) => {
            Some(OpResult::Open(Ok(Opened { delegation: OpenDelegation::Write(granted()), ..opened })))
        }
        (Op::SetAttr(_), _) => {
            arrived.send(line.clone()).unwrap();
            let (may, changed) = &*their_answer;
            let wait = changed.wait_timeout_while(may.lock().unwrap(), SOON, |may| !*may).unwrap();
            assert!(!wait.1.timed_out());
            Some(OpResult::SetAttr(SetAttrRes { status: NfsStat::Ok, attrset: Bitmap::default() }))
        }
        _ => None,
    }));
    let (client, file) = open_on(address);
    assert_eq!(client.count("server_delegations"), 1);
    let ask = |line: &Line, sequenceid: u32| {
        let file = Opaque(b"file".to_vec());
        let wanted = Bitmap::of([attr::CHANGE, attr::SIZE]);
        callbacks::call(line, sequenceid, CbOp::GetAttr(CbGetAttrArgs { file, attrs: wanted }));
        match replies.recv_timeout(SOON).unwrap().results.0.pop() {
            Some(CbResult::GetAttr(result)) => result.map(drop),
            other => panic!("{other:?}"),
        }
    };
    std::thread::scope(|scope| {
        // Attributes like these are not deferred.
        let set = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
        let setting = scope.spawn({
            let (client, file) = (&client, &file);
            move || drop(client.vfs.set_attr(&Cred::root(), file, &set))
        });
        let line: Line = arrives.recv_timeout(SOON).unwrap();
        assert_eq!(ask(&line, 1), Ok(()), "nothing is cached");
        write(&client, &file, &[1; 4096]);
        assert_eq!(ask(&line, 2), Err(NfsStat::Badhandle));
        *answer.0.lock().unwrap() = true;
        answer.1.notify_all();
        setting.join().unwrap();
    });
    client.vfs.stop_waiting();
}

/// [`D10`] Mode and times that are deferred while the file is open are what another client sees.
#[test]
fn another_client_sees_deferred_attributes() {
    let served = Served::new(ext4());
    let (a, b) = (mount(served.address(), &holding()).unwrap(), mount(served.address(), &options()).unwrap());
    let file = delegated(&a, "f");
    write(&a, &file, b"contents");
    let mtime = Timestamp { sec: 1_000_000_000, nsec: 0 };
    let set = SetAttr { perm: Some(0o640), mtime: Some(TimeSet::At(mtime)), ..SetAttr::default() };
    a.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
    assert_eq!(a.count("server_setattr"), 0, "deferred");
    let attr = b.vfs.get_attr(&Cred::root(), &b.find("/f").unwrap()).unwrap();
    assert_eq!((attr.perm, attr.mtime, attr.size), (0o640, mtime, 8));
    a.vfs.close(&file, READ_WRITE);
    a.vfs.unmount().unwrap();
    b.vfs.unmount().unwrap();
}

/// [`N13`] An open file that has other names loses one of them as any file does. Only its last one is hidden,
/// also if another client has removed the others.
#[test]
fn only_the_last_name_of_an_open_file_is_hidden() {
    let served = Served::new(ext4());
    let (a, b) = (mount(served.address(), &holding()).unwrap(), mount(served.address(), &options()).unwrap());
    let (cred, root) = (Cred::root(), a.vfs.root().unwrap());
    let file = delegated(&a, "f");
    write(&a, &file, b"contents");
    let hidden = || b.names("/").unwrap().into_iter().filter(|name| name.starts_with(".nfs")).count();
    let link = |name: &str| {
        a.vfs.link(&cred, &file, &root, name.as_bytes(), false).unwrap();
    };
    link("g");
    a.vfs.unlink(&cred, &root, b"g", false).unwrap();
    assert_eq!((hidden(), b.vfs.get_attr(&cred, &b.find("/f").unwrap()).unwrap().nlink), (0, 1));
    // A name that another file replaces.
    link("g");
    a.put("new", b"new").unwrap();
    a.vfs.rename(&cred, &root, b"new", &root, b"g", RenameFlags::empty(), false).unwrap();
    assert_eq!((hidden(), a.vfs.get_attr(&cred, &file).unwrap().nlink), (0, 1));
    // Another client removes the other name, and this one does not know it yet.
    link("h");
    assert_eq!(a.vfs.get_attr(&cred, &file).unwrap().nlink, 2);
    let theirs = b.vfs.root().unwrap();
    b.vfs.unlink(&cred, &theirs, b"f", false).unwrap();
    a.vfs.unlink(&cred, &root, b"h", false).unwrap();
    assert_eq!(hidden(), 1);
    let mut bytes = [0; 20];
    let read = a.vfs.read(&cred, &file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..read], b"contents");
    a.vfs.close(&file, READ_WRITE);
    drop(file);
    a.vfs.unmount().unwrap();
    assert_eq!(hidden(), 0);
    b.vfs.unmount().unwrap();
}

/// A new file replaces an old one, as editors do it, without fsync. After a crash of the client the name has
/// the old bytes or the new ones.
#[test]
fn a_file_that_replaces_another_one_is_sent_first() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    client.put("f", b"old").unwrap();
    client.vfs.sync().unwrap();
    client.put("new", b"new bytes").unwrap();
    assert_eq!(served_contents(&served, "/new"), b"", "the close has deferred them");
    client.vfs.rename(&cred, &root, b"new", &root, b"f", RenameFlags::empty(), false).unwrap();
    assert_eq!(served_contents(&served, "/f"), b"new bytes");
    client.vfs.unmount().unwrap();
}

/// The threads that send files together wait for each other. Programs sync, and use the files meanwhile.
#[test]
fn files_that_are_sent_together_do_not_wait_for_each_other_forever() {
    const FILES: usize = 3;
    const SYNCS: u64 = 300;
    let served = Served::new(mem());
    let client = mount(served.address(), &holding()).unwrap();
    let files: Vec<_> = (0..FILES).map(|nth| client.put(&format!("f{nth}"), b"x").unwrap()).collect();
    let (over, syncs) = (AtomicBool::new(false), AtomicU64::new(0));
    let (to, ended) = channel();
    std::thread::scope(|scope| {
        for file in &files {
            let (client, over) = (&client, &over);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    client.vfs.open(&Cred::root(), file, READ_WRITE).unwrap();
                    write(client, file, b"again");
                    client.vfs.close(file, READ_WRITE);
                }
            });
        }
        for _ in 0..3 {
            let (client, over, syncs, to) = (&client, &over, &syncs, to.clone());
            scope.spawn(move || {
                while syncs.fetch_add(1, SeqCst) < SYNCS {
                    client.vfs.sync().unwrap();
                }
                over.store(true, SeqCst);
                to.send(()).unwrap();
            });
        }
        if ended.recv_timeout(Duration::from_secs(120)).is_err() {
            // The threads can never end.
            eprintln!("after {} syncs: threads wait for each other", syncs.load(SeqCst));
            std::process::abort();
        }
    });
    drop(files);
    client.vfs.unmount().unwrap();
}

/// A server whose change attribute never moves: it can never reach the value that programs have seen. The
/// mount ends nevertheless.
#[test]
fn a_server_that_never_moves_the_change_attribute_does_not_keep_a_mount() {
    let (address, _replies) = callbacks::start(Box::new(|op, _| match (op, honest(op)) {
        (Op::Open(_), Some(OpResult::Open(Ok(opened)))) => {
            Some(OpResult::Open(Ok(Opened { delegation: OpenDelegation::Write(granted()), ..opened })))
        }
        (Op::SetAttr(_), _) => {
            Some(OpResult::SetAttr(SetAttrRes { status: NfsStat::Ok, attrset: Bitmap::default() }))
        }
        (Op::Commit(_), _) => Some(OpResult::Commit(Ok([0; 8]))),
        (Op::Write(args), _) => {
            let (count, verifier) = (args.data.len() as u32, [0; 8]);
            Some(OpResult::Write(Ok(WriteOk { count, committed: StableHow::FileSync, verifier })))
        }
        _ => None,
    }));
    let (client, file) = open_on(address);
    write(&client, &file, &[1; 4096]);
    client.vfs.close(&file, READ_WRITE);
    drop(file);
    let (to, ended) = channel();
    std::thread::spawn(move || to.send(client.vfs.unmount().is_err()));
    assert_eq!(ended.recv_timeout(SOON), Ok(true), "it ends, and says that something is wrong");
}
