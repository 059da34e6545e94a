//! The loop over operations: versions, positions, sizes, waiting.

use std::sync::Arc;

use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v40::{ReadArgs, SeqState, WriteArgs};
use ivers_nfs4::ops::v41::BindConn;
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{StableHow, StateId};
use ivers_nfs4::xdr::{Encoder, Xdr};
use ivers_nfs4::{attr, ops};
use ivers_nfsd::compound::{ReportedAttrs, WakeReason};
use ivers_nfsd::executor::{Progress, Suspended};
use ivers_nfsd::state::{Access, Stop, Ticket};

use ivers_nfs_test::harness::*;

fn raw(server: &Server, bytes: Vec<u8>) -> Option<CompoundRes> {
    let begun = server.executor.begin(Server::origin(0, 0), bytes, Encoder::default());
    begun.ok().map(|compound| answer(compound.run()))
}

fn request(minor_version: u32, ops: &[Op]) -> Vec<u8> {
    let header = CompoundHeader { tag: b"\xff no text".to_vec(), minor_version };
    CompoundArgs { header, ops: ops.to_vec() }.to_bytes()
}

/// [RFC8881 16.2.3]
#[test]
fn unknown_versions_and_operations_are_refused() {
    let server = Server::new(mem(), "no_root_squash");
    let res = raw(&server, request(3, &[])).unwrap();
    assert_eq!((res.status, res.results.len()), (NfsStat::MinorVersMismatch, 0));
    assert_eq!(res.tag, b"\xff no text", "the tag is returned unchanged");
    let res = raw(&server, request(3, &[Op::PutRootFh(())])).unwrap();
    assert_eq!((res.status, res.results.len()), (NfsStat::MinorVersMismatch, 0));
    for minor in 0..3 {
        assert_eq!(raw(&server, request(minor, &[])).unwrap().status, NfsStat::Ok);
    }
    // An unknown number, one of a later version, and one of NFSv4.0 only.
    for (minor, number, status) in [
        (0, 2, NfsStat::OpIllegal),
        (0, 4711, NfsStat::OpIllegal),
        (0, number::SEQUENCE, NfsStat::OpIllegal),
        (1, number::SEEK, NfsStat::OpIllegal),
        (2, 76, NfsStat::OpIllegal),
    ] {
        let mut bytes = Encoder::default();
        CompoundHeader { tag: Vec::new(), minor_version: minor }.put(&mut bytes);
        if minor > 0 {
            bytes.word(2);
            sequence().put(&mut bytes);
        } else {
            bytes.word(1);
        }
        bytes.word(number);
        let res = raw(&server, bytes.into_bytes()).unwrap();
        assert_eq!(res.status, status, "{number} of {minor}");
        assert_eq!(res.results.last().unwrap().number(), number::ILLEGAL);
    }
    let renew = Op::Renew(5);
    let res = raw(&server, request(1, &[sequence(), renew])).unwrap();
    assert_eq!(res.results[1], OpResult::Renew(Err(NfsStat::Notsupp)));
}

#[test]
fn malformed_operation_fails_at_its_position() {
    let server = Server::new(mem(), "no_root_squash");
    assert!(raw(&server, vec![0, 0, 0, 9]).is_none(), "not a COMPOUND");
    let whole = request(0, &[Op::PutRootFh(()), lookup("deep"), Op::GetFh(())]);
    let full = raw(&server, whole.clone()).unwrap();
    assert_eq!((full.status, full.results.len()), (NfsStat::Ok, 3));
    let mut cut = whole.clone();
    cut.truncate(whole.len() - 8);
    let res = raw(&server, cut).unwrap();
    assert_eq!(res.results.len(), 2);
    assert_eq!((res.status, res.results[1].number()), (NfsStat::Badxdr, number::LOOKUP));
    // More operations than the request has bytes for.
    let mut more = whole;
    let at = 4 + 12 + 4;
    more[at..at + 4].copy_from_slice(&4u32.to_be_bytes());
    assert_eq!(raw(&server, more).unwrap().status, NfsStat::OpIllegal);
}

/// [RFC8881 2.10.2] [RFC8881 18.46.3] [RFC8881 18.34.3] [RFC8881 2.10.6.1.3]
#[test]
fn sequence_must_be_first() {
    let server = Server::new(mem(), "no_root_squash");
    let status = |ops: &[Op]| raw(&server, request(1, ops)).unwrap();
    assert_eq!(status(&[Op::PutRootFh(())]).status, NfsStat::OpNotInSession);
    let twice = status(&[sequence(), sequence()]);
    assert_eq!((twice.status, twice.results.len()), (NfsStat::SequencePos, 2));
    assert_eq!(status(&[Op::DestroyClientId(1), Op::PutRootFh(())]).status, NfsStat::NotOnlyOp);
    assert_eq!(
        status(&[Op::DestroyClientId(1)]).status,
        NfsStat::Notsupp,
        "the status of the state operation"
    );
    let bind = Op::BindConnToSession(BindConn { sessionid: [0; 16], direction: 1, rdma: false });
    assert_eq!(status(&[sequence(), bind]).status, NfsStat::NotOnlyOp);
    *server.clients.uncached.lock() = true;
    let res = status(&[sequence(), Op::PutRootFh(()), Op::GetFh(())]);
    assert_eq!((res.status, res.results.len()), (NfsStat::RetryUncachedRep, 2));
    assert_eq!(status(&[sequence()]).status, NfsStat::Ok);
    *server.clients.uncached.lock() = false;
    let kept = status(&[sequence(), Op::PutRootFh(())]).to_bytes();
    *server.clients.replay.lock() = Some(kept.clone().into());
    let replayed = status(&[sequence(), Op::GetFh(())]);
    assert_eq!(replayed.to_bytes(), kept);
    assert!(server.clients.finished.lock().iter().all(Option::is_some));
}

#[test]
fn v40_requests_have_an_operation_limit() {
    let server = Server::new(mem(), "no_root_squash");
    let most = server.service.limits.operations_max as usize;
    assert_eq!(server.call(0, vec![Op::PutRootFh(()); most]).0, NfsStat::Ok);
    assert_eq!(server.call(0, vec![Op::PutRootFh(()); most + 1]).0, NfsStat::Resource);
}

/// [RFC8881 2.10.6.4]
#[test]
fn operation_whose_result_may_not_fit_does_not_run() {
    let server = Server::new(mem(), "no_root_squash");
    let file = server.file("f", &[7; 4000]);
    let root = server.handle(&[]);
    let read = |count| Op::Read(ReadArgs { stateid: StateId::ANONYMOUS, offset: 0, count });
    *server.clients.sequence_reply.lock() = Some((600, false));
    let (status, _) = server.call(1, vec![put(&file), read(400)]);
    assert_eq!(status, NfsStat::Ok);
    let (status, results) = server.call(1, vec![put(&file), read(600)]);
    assert_eq!((status, results.len()), (NfsStat::RepTooBig, 2));
    // A change is refused before it runs whenever its result may not fit.
    for limit in 92..140 {
        *server.clients.sequence_reply.lock() = Some((limit, true));
        let before = server.vfs.lookup(&ivers_vfs::Cred::root(), &server.vfs.root().unwrap(), b"f").is_ok();
        assert!(before);
        let ops = vec![put(&root), Op::Remove(b"f".to_vec())];
        let res = answer(server.begin(Server::origin(0, 0), 1, ops));
        assert!(res.to_bytes().len() + 24 <= limit, "{limit}");
        let there = server.vfs.lookup(&ivers_vfs::Cred::root(), &server.vfs.root().unwrap(), b"f").is_ok();
        match res.status {
            NfsStat::Ok => {
                assert!(!there);
                server.file("f", &[]);
            }
            status => {
                assert_eq!((status, there), (NfsStat::RepTooBigToCache, true));
            }
        }
    }
}

/// [RFC8881 8.2.3] [RFC8881 16.2.3.1.2]
#[test]
fn current_stateid_requires_an_earlier_one() {
    let server = Server::new(mem(), "no_root_squash");
    let file = server.file("f", b"abc");
    let read = |stateid| Op::Read(ReadArgs { stateid, offset: 0, count: 1 });
    for minor in [1, 2] {
        let ends = |stateid| server.call(minor, vec![put(&file), read(stateid)]).0;
        assert_eq!(ends(StateId::CURRENT), NfsStat::BadStateid);
        assert_eq!(ends(StateId::INVALID), NfsStat::BadStateid);
        assert_eq!(ends(StateId::ANONYMOUS), NfsStat::Ok);
        assert_eq!(ends(StateId::READ_BYPASS), NfsStat::Ok);
    }
    // NFSv4.0 has no current stateid: clients' state decides.
    server.clients.requested.lock().clear();
    server.call(0, vec![put(&file), read(StateId::CURRENT)]);
    assert_eq!(*server.clients.requested.lock(), [(StateId::CURRENT, Access::Read)]);
}

fn waits(progress: Progress) -> (Ticket, Suspended) {
    let Progress::Waits(ticket, waiting) = progress else { panic!("the request is not suspended") };
    (ticket, waiting)
}

#[test]
fn suspended_request_runs_after_its_event() {
    let server = Server::new(mem(), "no_root_squash");
    let file = server.file("f", b"abc");
    let write = Op::Write(WriteArgs {
        stateid: StateId::ANONYMOUS,
        offset: 3,
        stable: StableHow::FileSync,
        data: b"def".to_vec().into(),
    });
    let begin = |ops: Vec<Op>| server.begin(Server::origin(0, 0), 1, ops);
    let ops = vec![put(&file), write.clone(), get_attr(&[attr::SIZE])];
    let stop = |stop: Stop| server.clients.stops.lock().push_back(stop);
    stop(Stop::Wait(Ticket(4)));
    stop(Stop::Wait(Ticket(5)));
    let (ticket, waiting) = waits(begin(ops.clone()));
    assert_eq!(ticket, Ticket(4));
    assert_eq!(server.vfs.stat(&server.vfs.resolve(&ivers_vfs::Cred::root(), "f", true).unwrap()).size, 3);
    let (ticket, waiting) = waits(waiting.resume(WakeReason::Retry));
    assert_eq!(ticket, Ticket(5));
    let res = answer(waiting.resume(WakeReason::Retry));
    assert_eq!((res.status, res.results.len()), (NfsStat::Ok, 4));
    let OpResult::GetAttr(Ok(size)) = &res.results[3] else { panic!("{res:?}") };
    assert_eq!(size.values, 6u64.to_be_bytes());

    stop(Stop::Wait(Ticket(6)));
    let res = answer(waits(begin(ops.clone())).1.resume(WakeReason::TimedOut));
    assert_eq!((res.status, res.results.len()), (NfsStat::Delay, 3));
    stop(Stop::Fail(NfsStat::Locked));
    assert_eq!(answer(begin(ops.clone())).status, NfsStat::Locked);
    // A request that is dropped while it waits is finished nevertheless.
    server.clients.finished.lock().clear();
    stop(Stop::Wait(Ticket(7)));
    drop(waits(begin(ops)).1);
    assert_eq!(*server.clients.finished.lock(), [None]);
    assert_eq!(server.clients.permits.outstanding(), 0);
}

/// Every operation checks the delegations and opens of a file before it changes the file.
#[test]
fn every_change_checks_delegations_first() {
    let server = Server::new(mem(), "no_root_squash");
    let (root, file, other) = (server.handle(&[]), server.file("f", b"abc"), server.file("g", b"def"));
    let attrs = attr::Attrs { mode: Some(0), ..attr::Attrs::default() }.encode();
    let stateid = StateId::ANONYMOUS;
    let range = ops::v42::RangeArgs { stateid, offset: 0, length: 2 };
    let write = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: vec![1].into() };
    let xattr = ops::v42::SetXattrArgs {
        option: ops::v42::SetXattrOption::Either,
        name: b"x".to_vec(),
        value: Vec::new(),
    };
    let copy = Op::Copy(ops::v42::CopyArgs {
        source: stateid,
        target: stateid,
        source_offset: 0,
        target_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_server: ivers_nfs4::xdr::List(Vec::new()),
    });
    let rename =
        |old: &[u8], new: &[u8]| Op::Rename(ops::v40::RenameArgs { old: old.to_vec(), new: new.to_vec() });
    // Source, target, operation, and number of checked files.
    let all = [
        (&file, &file, Op::SetAttr(ops::v40::SetAttrArgs { stateid, attrs }), 1),
        (&file, &file, Op::Write(write), 1),
        (&file, &file, Op::SetXattr(xattr), 1),
        (&file, &file, Op::RemoveXattr(b"x".to_vec()), 1),
        (&file, &file, Op::Allocate(range.clone()), 1),
        (&file, &file, Op::Deallocate(range), 1),
        (&other, &file, copy, 2),
        (&file, &root, Op::Link(b"x".to_vec()), 1),
        (&root, &root, Op::Remove(b"f".to_vec()), 1),
        (&root, &root, rename(b"f", b"x"), 1),
        (&root, &root, rename(b"f", b"g"), 2),
    ];
    let change = || [&root, &file, &other].map(|handle| server.change(handle));
    for (from, to, op, files) in all {
        for nth in 0..files {
            let before = change();
            server.clients.requested.lock().clear();
            server.clients.refuse_after(nth);
            let (status, _) = server.call(2, vec![put(from), Op::SaveFh(()), put(to), op.clone()]);
            assert_eq!(status, NfsStat::Delay, "{op:?}");
            assert_eq!(server.clients.requested.lock().len(), nth + 1);
            assert_eq!(change(), before, "{op:?}");
            assert_eq!(server.clients.permits.outstanding(), 0);
        }
    }
}

#[test]
fn getattr_reports_the_holders_changes() {
    let server = Server::new(mem(), "no_root_squash");
    let file = server.file("f", b"abc");
    let ask = || server.clients.stops.lock().push_back(Stop::AskHolder(Ticket(1)));
    let want = [attr::CHANGE, attr::SIZE, attr::MODE];
    let get = vec![put(&file), get_attr(&want)];
    let ends = |progress| {
        let res = answer(progress);
        let Some(OpResult::GetAttr(Ok(fattr))) = res.results.last() else { panic!("{res:?}") };
        attr::Attrs::decode(fattr).unwrap()
    };
    let begin = |ops: Vec<Op>| server.begin(Server::origin(0, 0), 0, ops);
    ask();
    let reported = ReportedAttrs { change: 1 << 60, size: 99 };
    let holder_answered = |reported| WakeReason::HolderAnswered(reported, Arc::new(server.clients.grant()));
    let attrs = ends(waits(begin(get.clone())).1.resume(holder_answered(Some(reported))));
    assert_eq!((attrs.change, attrs.size, attrs.mode), (Some(1 << 60), Some(99), Some(0o644)));
    ask();
    let attrs = ends(waits(begin(get.clone())).1.resume(holder_answered(None)));
    assert_eq!(attrs.size, Some(3));
    // The answer of the holder counts for that operation only.
    ask();
    ask();
    let twice = vec![put(&file), get_attr(&want), get_attr(&want)];
    let (_, waiting) = waits(begin(twice));
    let (_, waiting) = waits(waiting.resume(holder_answered(Some(reported))));
    assert_eq!(ends(waiting.resume(holder_answered(None))).size, Some(3));
    ask();
    assert_eq!(answer(waits(begin(get)).1.resume(WakeReason::TimedOut)).status, NfsStat::Delay);
    // An operation that does not read delegated attributes does not wait.
    ask();
    let attrs = ends(begin(vec![put(&file), get_attr(&[attr::MODE, attr::FILEID])]));
    assert_eq!(attrs.mode, Some(0o644));
    server.clients.stops.lock().clear();
    // READDIR returns entries before the delegated file, and waits if it is the first one.
    ask();
    let root = server.handle(&[]);
    let list = ops::v40::ReadDirArgs {
        cookie: 0,
        verifier: [0; 8],
        dircount: 0,
        maxcount: 4096,
        attrs: ivers_nfs4::types::Bitmap::of([attr::SIZE]),
    };
    let ops = vec![put(&root), Op::ReadDir(list)];
    let res = answer(waits(begin(ops)).1.resume(holder_answered(Some(reported))));
    let Some(OpResult::ReadDir(Ok(listed))) = res.results.last() else { panic!("{res:?}") };
    assert_eq!(listed.entries[0].attrs.values, 99u64.to_be_bytes());
    assert_eq!(server.clients.permits.outstanding(), 0, "the guard lives until the attributes are read");
    // CLOSE works on clients' state.
    let close = Op::Close(SeqState { seqid: 0, stateid: StateId::ANONYMOUS });
    assert_eq!(server.status_of(0, vec![close]), NfsStat::Notsupp);
}

/// [RFC7530 9.1.7]
#[test]
fn v40_namespace_changes_run_once() {
    on_each_filesystem(|server| {
        server.file("f", b"");
        let send = |xid: u32, uid: u32, ops: &[Op]| {
            let mut origin = Server::origin(uid, uid);
            origin.xid = xid;
            let request = request(0, &[data(), ops.to_vec()].concat());
            let begun = server.executor.begin(origin, request, Encoder::default());
            answer(begun.unwrap().run())
        };
        let remove = |name: &str| [Op::Remove(name.as_bytes().to_vec())];
        let first = send(9_000_000, 0, &remove("f"));
        assert_eq!(first.status, NfsStat::Ok);
        assert_eq!(send(9_000_000, 0, &remove("f")), first, "the cached reply");
        assert_eq!(send(9_000_001, 0, &remove("f")).status, NfsStat::Noent, "another request");
        assert_ne!(send(9_000_000, 1000, &remove("f")).status, NfsStat::Ok, "another user");
        assert_eq!(send(9_000_000, 0, &remove("g")).status, NfsStat::Noent, "another operation");
        // An operation that failed with NFS4ERR_DELAY has changed nothing.
        server.file("h", b"");
        server.clients.refuse_after(0);
        assert_eq!(send(9_000_002, 0, &remove("h")).status, NfsStat::Delay);
        assert_eq!(send(9_000_002, 0, &remove("h")).status, NfsStat::Ok);
    });
}
