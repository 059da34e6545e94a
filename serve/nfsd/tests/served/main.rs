//! The complete server over a socket, with clients that use the wire protocol only.

mod called_back;
mod copies;
mod many_files;
mod v40;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ivers_block::{Device, MemDevice};
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_nfs_test::client::*;
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{List, Xdr};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::listen;
use ivers_nfsd::server::{Exported, NfsServer, Setup};
use ivers_nfsd::stable::StableStorage;
use ivers_vfs::{DriverOptions, MountOptions, Vfs};

fn ext4() -> Arc<Vfs> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    let fs = Ext4::open(
        device,
        OpenOptions::from(DriverOptions { place: "a test".into(), ..DriverOptions::default() }),
    )
    .unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn serve(state: &Path, vfs: &Arc<Vfs>) -> (NfsServer, SocketAddr) {
    let config = ExportConfig::from_flag("image,name=/data,no_root_squash").unwrap();
    let exports = vec![Exported { config, vfs: vfs.clone(), device: Some(b"image".to_vec()) }];
    let listeners = vec![listen::on("127.0.0.1:0".parse().unwrap()).unwrap()];
    let setup = Setup::new(StableStorage::open(state).unwrap(), listeners, exports);
    let server = NfsServer::start(Setup { lease_seconds: 2, ..setup }).unwrap();
    let address = server.addresses()[0];
    (server, address)
}

const NO_DELEGATION: u32 = share::WANT_NO_DELEG;

fn make(client: &mut Client, name: &str) -> (StateId, FileHandle) {
    let open = open("o", share::BOTH | NO_DELEGATION, guarded(), named(name));
    let (opened, handle) = opened(&client.call([data(), vec![open, Op::GetFh(())]].concat()));
    (opened.stateid, handle)
}

fn write(handle: &FileHandle, stateid: StateId, text: &[u8]) -> Vec<Op> {
    let args = WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: text.to_vec().into() };
    vec![Op::PutFh(handle.clone()), Op::Write(args)]
}

#[test]
fn a_file_is_created_written_read_and_closed() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut client = Client::new(address, "a");
    let (status, results) = client.call([data(), vec![change_and_size()]].concat());
    assert_eq!(status, NfsStat::Ok);
    let before = decoded(results.last()).change.unwrap();

    let open = open("o", share::BOTH, guarded(), named("f"));
    let made = client.call([data(), vec![open.clone(), Op::GetFh(())]].concat());
    let (opened, handle) = opened(&made);
    assert!(opened.cinfo.atomic && opened.cinfo.before == before && opened.cinfo.after > before);
    assert_eq!(client.call([data(), vec![open]].concat()).0, NfsStat::Exist);

    let (status, results) = client.call(
        [
            write(&handle, opened.stateid, b"hello"),
            vec![Op::Commit(CommitArgs { offset: 0, count: 0 }), change_and_size()],
        ]
        .concat(),
    );
    assert_eq!(status, NfsStat::Ok, "{results:?}");
    let [_, OpResult::Write(Ok(written)), OpResult::Commit(Ok(verifier)), _] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!((written.count, written.verifier), (5, *verifier));
    assert_eq!(decoded(results.last()).size, Some(5));

    let read = Op::Read(ReadArgs { stateid: opened.stateid, offset: 0, count: 100 });
    let (_, results) = client.call(vec![Op::PutFh(handle.clone()), read]);
    let Some(OpResult::Read(Ok(read))) = results.last() else { panic!("{results:?}") };
    assert_eq!((read.eof, &read.data[..]), (true, &b"hello"[..]));

    // A retry gets the same reply and is executed once.
    let close = vec![Op::PutFh(handle.clone()), Op::Close(SeqState { seqid: 0, stateid: opened.stateid })];
    let first = client.call(close.clone());
    assert_eq!(first.0, NfsStat::Ok, "{first:?}");
    client.resend(close.clone());
    assert_eq!(client.reply().0, NfsStat::Ok);
    assert_eq!(client.call(close).0, NfsStat::BadStateid);
    server.stop().unwrap();
}

/// [RFC8881 18.36.3] The limit of a session includes the header of the call.
#[test]
fn request_size_includes_the_header() {
    const MOST: u32 = 1000;
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    let mut client = Client::connect(address, "a");
    let (_, results) = client.compound(1, vec![exchange([7; 8], "a")]);
    let Some(OpResult::ExchangeId(Ok(known))) = results.last() else { panic!("{results:?}") };
    let channel = ChannelAttrs {
        header_pad_size: 0,
        max_request: MOST,
        max_response: 4096,
        max_response_cached: 1024,
        max_operations: 8,
        max_requests: 1,
        rdma_ird: List(Vec::new()),
    };
    let (_, results) = client.compound(1, vec![create_session(known.clientid, known.sequenceid, channel)]);
    let Some(OpResult::CreateSession(Ok(made))) = results.last() else { panic!("{results:?}") };
    assert_eq!(made.fore.max_request, MOST);
    let sessionid = made.sessionid;
    let sequence = SequenceArgs { sessionid, sequenceid: 1, slotid: 0, highest_slotid: 0, cache_this: false };
    let named =
        |bytes: usize| vec![Op::Sequence(sequence.clone()), Op::PutRootFh(()), Op::Lookup(vec![b'x'; bytes])];
    let header = CompoundHeader { tag: b"t".to_vec(), minor_version: 1 };
    let arguments = CompoundArgs { header, ops: named(0) }.to_bytes();
    let room = MOST as usize - (request(1, 0, &arguments).len() - ivers_nfs4::record::mark(0).len());
    assert_eq!(client.compound(1, named(room + 4)).0, NfsStat::ReqTooBig);
    let (status, results) = client.compound(1, named(room));
    assert_eq!((status, results.len()), (NfsStat::Nametoolong, 3));
}

/// [RFC8881 18.16.3]
#[test]
fn files_are_created_once_and_truncated() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    let mut client = Client::new(address, "a");
    let exclusive = |verifier: u8| {
        let attrs = Attrs { mode: Some(0o600), ..Attrs::default() }.encode();
        let how = CreateHow::Exclusive41(CreateVerfAttr { verifier: [verifier; 8], attrs });
        let open = open("o", share::BOTH | NO_DELEGATION, OpenHow::Create(how), named("once"));
        [data(), vec![open, Op::GetFh(())]].concat()
    };
    let (made, handle) = opened(&client.call(exclusive(1)));
    assert!(made.attrset.contains(attr::MODE) && made.attrset.contains(attr::TIME_MODIFY));
    let (again, same) = opened(&client.call(exclusive(1)));
    assert_eq!(
        (again.stateid.other, same),
        (made.stateid.other, handle.clone()),
        "a repeated exclusive OPEN"
    );
    // The first reply may be lost. This one also reports that the times were not set.
    assert_eq!(again.attrset, made.attrset);
    assert_eq!(client.call(exclusive(2)).0, NfsStat::Exist);
    assert_eq!(client.call(write(&handle, again.stateid, b"12345")).0, NfsStat::Ok);
    assert_eq!(client.call(exclusive(1)).0, NfsStat::Exist, "the file is not new");

    let before = client.attrs(&handle);
    assert_eq!(before.size, Some(5));
    let empty = Attrs { size: Some(0), mode: Some(0o777), ..Attrs::default() }.encode();
    let how = OpenHow::Create(CreateHow::Unchecked(empty));
    let truncate = open("o", share::WRITE | NO_DELEGATION, how, named("once"));
    let (emptied, same) = opened(&client.call([data(), vec![truncate, Op::GetFh(())]].concat()));
    assert_eq!((emptied.attrset, &same), (Bitmap::of([attr::SIZE]), &handle));
    assert_eq!(emptied.cinfo.before, emptied.cinfo.after, "the directory did not change");
    let after = client.attrs(&handle);
    assert!(after.size == Some(0) && after.change > before.change);

    let missing = open("o", share::READ, OpenHow::NoCreate, named("nothing"));
    assert_eq!(client.call([data(), vec![missing]].concat()).0, NfsStat::Noent);
    let directory = open("o", share::READ, OpenHow::NoCreate, named("lost+found"));
    assert_eq!(client.call([data(), vec![directory]].concat()).0, NfsStat::Isdir);
    let outside = open("o", share::READ, unchecked(), named("x"));
    assert_ne!(client.call(vec![Op::PutRootFh(()), outside]).0, NfsStat::Ok);
}

#[test]
fn sessions_see_each_others_changes() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    let (mut a, mut b) = (Client::new(address, "a"), Client::new(address, "b"));
    let (stateid, handle) = make(&mut a, "f");
    let mut last = b.attrs(&handle).change.unwrap();
    for round in 0..20u8 {
        assert_eq!(a.call(write(&handle, stateid, &[round; 10])).0, NfsStat::Ok);
        let now = b.attrs(&handle).change.unwrap();
        assert!(now > last, "round {round}");
        assert_eq!(b.attrs(&handle).change, Some(now), "nothing changed");
        last = now;
    }
}

#[test]
fn share_modes_and_locks_are_enforced() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    let (mut a, mut b) = (Client::new(address, "a"), Client::new(address, "b"));
    let (mine, handle) = make(&mut a, "f");
    let open = open("o", share::BOTH | NO_DELEGATION, OpenHow::NoCreate, named("f"));
    let (theirs, _) = opened(&b.call([data(), vec![open, Op::GetFh(())]].concat()));
    let lock = |stateid, kind| {
        let lock_owner = Owner { clientid: 0, owner: Opaque(b"l".to_vec()) };
        let new = OpenToLockOwner { open_seqid: 0, open_stateid: stateid, lock_seqid: 0, lock_owner };
        let args = LockArgs { kind, reclaim: false, offset: 0, length: 10, locker: Locker::New(new) };
        vec![Op::PutFh(handle.clone()), Op::Lock(args)]
    };
    let (_, results) = a.call(lock(mine, LockType::Write));
    let Some(OpResult::Lock(Locked::Ok(held))) = results.last() else { panic!("{results:?}") };
    let (status, results) = b.call(lock(theirs.stateid, LockType::WriteW));
    assert_eq!(status, NfsStat::Denied);
    let Some(OpResult::Lock(Locked::Denied(denied))) = results.last() else { panic!("{results:?}") };
    assert_eq!((denied.offset, denied.length, &denied.owner.owner.0[..]), (0, 10, &b"l"[..]));
    let unlock = UnlockArgs { kind: LockType::Write, seqid: 0, stateid: *held, offset: 0, length: 10 };
    assert_eq!(a.call(vec![Op::PutFh(handle.clone()), Op::LockU(unlock)]).0, NfsStat::Ok);
    // The client is notified that the lock may be free.
    assert!(b.serve(Duration::from_secs(5)));
    assert_eq!(b.notified, 1);
    assert_eq!(b.call(lock(theirs.stateid, LockType::WriteW)).0, NfsStat::Ok);
}

#[test]
fn a_delegation_is_granted_queried_and_recalled() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    // Callbacks use the minor version of the session.
    let (mut a, mut b) = (Client::with_minor(address, "a", 2), Client::new(address, "b"));
    let open_a = open("o", share::BOTH, guarded(), named("f"));
    let made = a.call([data(), vec![open_a, Op::GetFh(()), change_and_size()]].concat());
    let base = decoded(made.1.last());
    let (opened_a, handle) = opened(&(made.0, made.1[..made.1.len() - 1].to_vec()));
    let OpenDelegation::Write(delegation) = opened_a.delegation else { panic!("{opened_a:?}") };

    // Queried without changes of the holder: the change attribute stays.
    let ask = vec![Op::PutFh(handle.clone()), change_and_size()];
    a.delegated_attrs = Some((base.change.unwrap(), 0));
    b.send(ask.clone());
    assert!(a.serve(Duration::from_secs(5)), "no CB_GETATTR");
    let (status, results) = b.reply();
    assert_eq!((status, decoded(results.last()).change), (NfsStat::Ok, base.change));
    // Queried after changes: another change attribute each time, and the holder's size.
    a.delegated_attrs = Some((base.change.unwrap() + 1, 77));
    let mut last = base.change.unwrap();
    for _ in 0..3 {
        b.send(ask.clone());
        assert!(a.serve(Duration::from_secs(5)), "no CB_GETATTR");
        let (status, results) = b.reply();
        let shown = decoded(results.last());
        assert_eq!((status, shown.size), (NfsStat::Ok, Some(77)));
        assert!(shown.change.unwrap() > last);
        last = shown.change.unwrap();
    }

    // Another open recalls the delegation and succeeds after its return.
    let open_b = open("o", share::READ, OpenHow::NoCreate, named("f"));
    let open_b = [data(), vec![open_b, Op::GetFh(())]].concat();
    assert_eq!(b.call(open_b.clone()).0, NfsStat::Delay);
    assert!(a.serve(Duration::from_secs(5)), "no CB_RECALL");
    assert_eq!((a.recalled[0].stateid, &a.recalled[0].file), (delegation.stateid, &handle));
    assert_eq!(b.call(open_b.clone()).0, NfsStat::Delay);
    let back = vec![Op::PutFh(handle.clone()), Op::DelegReturn(delegation.stateid)];
    assert_eq!(a.call(back).0, NfsStat::Ok);
    opened(&b.call_with_retry(&open_b));
    assert!(b.attrs(&handle).change.unwrap() > last, "no bump after reported changes that never arrived");
}

#[test]
fn a_silent_holder_loses_its_delegation() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (_server, address) = serve(dir.path(), &vfs);
    let (mut a, mut b) = (Client::new(address, "a"), Client::new(address, "b"));
    let open_a = open("o", share::BOTH, guarded(), named("f"));
    let made = a.call([data(), vec![open_a, Op::GetFh(())]].concat());
    assert!(matches!(opened(&made).0.delegation, OpenDelegation::Write(_)));
    let open_b = open("o", share::READ, OpenHow::NoCreate, named("f"));
    let open_b = [data(), vec![open_b, Op::GetFh(())]].concat();
    let mut got = false;
    for _ in 0..150 {
        got = b.call(open_b.clone()).0 == NfsStat::Ok;
        if got {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(got, "the silent holder keeps its delegation");
}

#[test]
fn opens_are_reclaimed_after_a_restart() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut a = Client::new(address, "a");
    let (stateid, handle) = make(&mut a, "f");
    let before = a.attrs(&handle).change;
    let (_, results) = a.call(write(&handle, stateid, b"x"));
    let Some(OpResult::Write(Ok(first))) = results.last() else { panic!("{results:?}") };
    assert!(a.attrs(&handle).change > before);
    // A crash.
    drop(server);

    let (server, address) = serve(dir.path(), &vfs);
    let mut b = Client::connect(address, "b");
    b.create_session();
    assert_eq!(b.call(vec![Op::ReclaimComplete(false)]).0, NfsStat::Ok);
    let open_b = open("o", share::READ | NO_DELEGATION, OpenHow::NoCreate, named("f"));
    let open_b = [data(), vec![open_b, Op::GetFh(())]].concat();
    assert_eq!(b.call(open_b.clone()).0, NfsStat::Grace, "new state was granted in the grace period");
    let mut a = Client::connect(address, "a");
    a.create_session();
    let claim = open("o", share::BOTH, OpenHow::NoCreate, OpenClaim::Previous(0));
    let claim = vec![Op::PutFh(handle.clone()), claim, Op::GetFh(())];
    let (claimed, same) = opened(&a.call(claim));
    assert_eq!(same, handle, "the filehandle changed with the restart");
    assert_eq!(a.call(vec![Op::ReclaimComplete(false)]).0, NfsStat::Ok);
    opened(&b.call_with_retry(&open_b));
    assert_eq!(a.call(write(&handle, stateid, b"y")).0, NfsStat::BadStateid);
    let (_, results) = a.call(write(&handle, claimed.stateid, b"y"));
    let Some(OpResult::Write(Ok(second))) = results.last() else { panic!("{results:?}") };
    assert_ne!(first.verifier, second.verifier, "a crash must change the verifier");
    server.stop().unwrap();

    let (_server, address) = serve(dir.path(), &vfs);
    let mut a = Client::connect(address, "a");
    a.create_session();
    let claim = open("o", share::BOTH, OpenHow::NoCreate, OpenClaim::Previous(0));
    let (claimed, _) = opened(&a.call(vec![Op::PutFh(handle.clone()), claim, Op::GetFh(())]));
    let (_, results) = a.call(write(&handle, claimed.stateid, b"z"));
    let Some(OpResult::Write(Ok(third))) = results.last() else { panic!("{results:?}") };
    assert_eq!(second.verifier, third.verifier, "a clean end must keep the verifier");
}

/// Opens with delegations, changes and queries of several clients on one file: all make progress.
#[test]
fn several_clients_contend_for_one_file() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut first = Client::new(address, "first");
    let (_, handle) = make(&mut first, "f");
    let work = &|number: u8| {
        let mut client = Client::new(address, &format!("client {number}"));
        client.delegated_attrs = Some((0, 0));
        let put = Op::PutFh(handle.clone());
        for round in 0..15u8 {
            let open = open("o", share::BOTH, OpenHow::NoCreate, OpenClaim::Fh);
            let (opened, _) = opened(&client.call_with_retry(&[put.clone(), open, Op::GetFh(())]));
            let text = [number, round];
            let written = client.call_with_retry(&write(&handle, opened.stateid, &text));
            assert_eq!(written.0, NfsStat::Ok);
            let close = Op::Close(SeqState { seqid: 0, stateid: opened.stateid });
            assert_eq!(client.call_with_retry(&[put.clone(), close]).0, NfsStat::Ok);
            if let OpenDelegation::Write(it) = opened.delegation {
                let back = client.call_with_retry(&[put.clone(), Op::DelegReturn(it.stateid)]);
                assert_eq!(back.0, NfsStat::Ok);
            }
            assert_eq!(client.call_with_retry(&[put.clone(), change_and_size()]).0, NfsStat::Ok);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|number| drop(scope.spawn(move || work(number))));
    });
    assert_eq!(first.call_with_retry(&[Op::PutFh(handle.clone()), change_and_size()]).0, NfsStat::Ok);
    server.stop().unwrap();
}

#[test]
fn an_open_file_stays_without_a_name() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let (mut a, mut b) = (Client::new(address, "a"), Client::new(address, "b"));
    let (stateid, handle) = make(&mut a, "f");
    assert_eq!(a.call(write(&handle, stateid, b"still here")).0, NfsStat::Ok);
    assert_eq!(b.call([data(), vec![Op::Remove(b"f".to_vec())]].concat()).0, NfsStat::Ok);
    let read = vec![Op::PutFh(handle.clone()), Op::Read(ReadArgs { stateid, offset: 0, count: 100 })];
    let (_, results) = a.call(read.clone());
    let Some(OpResult::Read(Ok(read_back))) = results.last() else { panic!("{results:?}") };
    assert_eq!(*read_back.data, *b"still here");
    let change = b.attrs(&handle).change;
    assert_eq!(a.call(write(&handle, stateid, b"and written")).0, NfsStat::Ok);
    assert!(b.attrs(&handle).change > change);
    let close = Op::Close(SeqState { seqid: 0, stateid });
    assert_eq!(a.call(vec![Op::PutFh(handle.clone()), close]).0, NfsStat::Ok);
    // The file is deleted shortly after its last close.
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        a.call(vec![Op::PutFh(handle.clone()), change_and_size()]).0 == NfsStat::Stale
    });
    assert!(gone, "the file was not deleted after its last close");
    let (_, another) = make(&mut a, "g");
    assert_eq!(b.call([data(), vec![Op::Remove(b"g".to_vec())]].concat()).0, NfsStat::Ok);
    assert_eq!(a.attrs(&another).size, Some(0));
    server.stop().unwrap();
    vfs.unmount().unwrap();
}

/// [RFC8881 18.35.3]
#[test]
fn flags_of_later_versions_are_refused_in_earlier_ones() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut client = Client::connect(address, "a");
    let exchange = Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: [1; 8], id: Opaque(b"a".to_vec()) },
        flags: exchgid::SUPP_FENCE_OPS,
        protect: StateProtect::None,
        implementation: List(Vec::new()),
    });
    assert_eq!(client.compound(1, vec![exchange.clone()]).0, NfsStat::Inval);
    assert_eq!(client.compound(2, vec![exchange]).0, NfsStat::Ok);
    server.stop().unwrap();
}
