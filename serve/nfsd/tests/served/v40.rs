//! NFSv4.0: owners with sequence numbers.

use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;

use crate::{ext4, serve};
use ivers_nfs_test::client::*;

/// [RFC7530 16.16.5]
#[test]
fn a_client_without_sessions_is_served() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut old = Client::connect(address, "old");
    let location = NetAddr { netid: b"tcp".to_vec(), addr: b"127.0.0.1.0.0".to_vec() };
    let set = SetClientIdArgs {
        client: ClientOwner { verifier: [1; 8], id: Opaque(b"old".to_vec()) },
        callback: CallbackClient { program: 0x4000_0000, location },
        callback_ident: 1,
    };
    let (_, results) = old.compound(0, vec![Op::SetClientId(set)]);
    let Some(OpResult::SetClientId(SetClientIdRes::Ok(confirm))) = results.last() else {
        panic!("{results:?}")
    };
    let id = confirm.clientid;
    assert_eq!(old.compound(0, vec![Op::SetClientIdConfirm(confirm.clone())]).0, NfsStat::Ok);

    let open = open_v40(1, id, "o", share::BOTH, unchecked(), named("f"));
    let open = [data(), vec![open, Op::GetFh(())]].concat();
    let (made, handle) = opened(&old.compound(0, open.clone()));
    assert!(made.rflags & rflags::CONFIRM != 0);
    assert_eq!(made.delegation, OpenDelegation::None);
    // A retry: the cached reply and its current filehandle.
    assert_eq!(opened(&old.compound(0, open)), (made.clone(), handle.clone()));
    // [RFC7530 16.16.5]
    let fifo = CreateArgs { kind: CreateType::Fifo, name: b"p".to_vec(), attrs: Default::default() };
    assert_eq!(old.compound(0, [data(), vec![Op::Create(fifo)]].concat()).0, NfsStat::Ok);
    let open_fifo = open_v40(1, id, "p", share::READ, OpenHow::NoCreate, named("p"));
    assert_eq!(old.compound(0, [data(), vec![open_fifo]].concat()).0, NfsStat::Symlink);
    let put = || Op::PutFh(handle.clone());
    let confirm = Op::OpenConfirm(OpenConfirmArgs { stateid: made.stateid, seqid: 2 });
    let (_, results) = old.compound(0, vec![put(), confirm]);
    let Some(OpResult::OpenConfirm(Ok(stateid))) = results.last() else { panic!("{results:?}") };
    let stateid = *stateid;

    let write = WriteArgs { stateid, offset: 0, stable: StableHow::FileSync, data: b"old".to_vec().into() };
    assert_eq!(old.compound(0, vec![put(), Op::Write(write)]).0, NfsStat::Ok);
    let lock_owner = Owner { clientid: id, owner: Opaque(b"l".to_vec()) };
    let new = OpenToLockOwner { open_seqid: 3, open_stateid: stateid, lock_seqid: 1, lock_owner };
    let lock = LockArgs {
        kind: LockType::Write,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: Locker::New(new),
    };
    let lock = vec![put(), Op::Lock(lock)];
    let (_, first) = old.compound(0, lock.clone());
    let Some(OpResult::Lock(Locked::Ok(held))) = first.last() else { panic!("{first:?}") };
    // [RFC7530 16.10.5] The retry consumes no seqid of either owner.
    assert_eq!(old.compound(0, lock).1, first);
    let unlock = UnlockArgs { kind: LockType::Write, seqid: 2, stateid: *held, offset: 0, length: u64::MAX };
    assert_eq!(old.compound(0, vec![put(), Op::LockU(unlock)]).0, NfsStat::Ok);
    assert_eq!(old.compound(0, vec![Op::Renew(id)]).0, NfsStat::Ok);
    // [RFC8881 10.2.1]
    assert_eq!(old.compound(0, vec![Op::DelegPurge(id)]).0, NfsStat::Notsupp);

    let close = vec![put(), Op::Close(SeqState { seqid: 4, stateid })];
    assert_eq!(old.compound(0, close.clone()).0, NfsStat::Ok);
    assert_eq!(old.compound(0, close).0, NfsStat::Ok, "repeated");
    let late = SeqState { seqid: 9, stateid };
    assert_eq!(old.compound(0, vec![put(), Op::Close(late)]).0, NfsStat::BadSeqid);
    server.stop().unwrap();
}
