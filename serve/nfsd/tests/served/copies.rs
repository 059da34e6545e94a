//! Asynchronous copies.

use std::time::Duration;

use ivers_nfs_test::client::*;
use ivers_nfs4::callback::OffloadInfo;
use ivers_nfs4::ops::v40::{ReadArgs, SeqState, WriteArgs};
use ivers_nfs4::ops::v42::{CopyArgs, CopyOk, CopyRes, OffloadStatusOk};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::List;

use crate::{ext4, make, serve};

const MIB: u64 = 1 << 20;

fn byte(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

type Handle = (StateId, FileHandle);

/// Creates a file of this size without repeated blocks.
fn fill(client: &mut Client, name: &str, len: u64) -> Handle {
    let (stateid, handle) = make(client, name);
    for from in (0..len).step_by(MIB as usize) {
        let data: Vec<u8> = (from..len.min(from + MIB)).map(byte).collect();
        let args = WriteArgs { stateid, offset: from, stable: StableHow::Unstable, data: data.into() };
        assert_eq!(client.call(vec![Op::PutFh(handle.clone()), Op::Write(args)]).0, NfsStat::Ok);
    }
    (stateid, handle)
}

fn copy(from: &Handle, to: &Handle, synchronous: bool) -> Vec<Op> {
    let args = CopyArgs {
        source: from.0,
        target: to.0,
        source_offset: 0,
        target_offset: 0,
        count: 0,
        consecutive: true,
        synchronous,
        source_server: List(Vec::new()),
    };
    vec![Op::PutFh(from.1.clone()), Op::SaveFh(()), Op::PutFh(to.1.clone()), Op::Copy(args)]
}

fn copied(answer: (NfsStat, Vec<OpResult>)) -> CopyOk {
    match answer.1.into_iter().next_back() {
        Some(OpResult::Copy(CopyRes::Ok(ok))) => ok,
        other => panic!("{other:?}"),
    }
}

fn status(client: &mut Client, to: &Handle, copy: StateId) -> Result<OffloadStatusOk, NfsStat> {
    let (_, results) = client.call(vec![Op::PutFh(to.1.clone()), Op::OffloadStatus(copy)]);
    match results.into_iter().next_back() {
        Some(OpResult::OffloadStatus(result)) => result,
        other => panic!("{other:?}"),
    }
}

fn is_copied(client: &mut Client, to: &Handle, len: u64) {
    assert_eq!(client.attrs(&to.1).size, Some(len));
    for from in (0..len).step_by(MIB as usize) {
        let read = Op::Read(ReadArgs { stateid: to.0, offset: from, count: MIB as u32 });
        let (_, results) = client.call(vec![Op::PutFh(to.1.clone()), read]);
        let Some(OpResult::Read(Ok(read))) = results.last() else { panic!("{results:?}") };
        assert!((from..).zip(&*read.data).all(|(at, found)| *found == byte(at)), "at {from}");
    }
}

fn hear(client: &mut Client) {
    for _ in 0..100 {
        client.serve(Duration::from_millis(200));
        if !client.offloaded.is_empty() {
            return;
        }
    }
    panic!("the copy does not end");
}

/// [RFC7862 15.2.3] [RFC7862 16.1.3]
#[test]
fn a_long_copy_is_asynchronous() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut client = Client::with_minor(address, "a", 2);
    let len = 6 * MIB + 77;
    let (from, to) = (fill(&mut client, "from", len), make(&mut client, "to"));
    let begun = copied(client.call(copy(&from, &to, false)));
    let [stateid] = begun.response.callback.0[..] else { panic!("{begun:?}") };
    assert!(!begun.requirements.synchronous && begun.requirements.consecutive && stateid.seqid != 0);
    assert_eq!(begun.response.count, 0);
    hear(&mut client);
    let [ended] = &client.offloaded[..] else { panic!() };
    assert_eq!((ended.stateid, &ended.file), (stateid, &to.1));
    let OffloadInfo::Ok(response) = &ended.info else { panic!("{ended:?}") };
    assert_eq!((response.count, response.verifier), (len, begun.response.verifier));
    // The client has acknowledged the result. After that, the copy is unknown.
    let forgotten = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        status(&mut client, &to, stateid) == Err(NfsStat::BadStateid)
    });
    assert!(forgotten);
    is_copied(&mut client, &to, len);

    // Synchronous, if the client requests it or the copy is short.
    let other = make(&mut client, "other");
    let done = copied(client.call(copy(&from, &other, true)));
    assert!(done.response.callback.0.is_empty() && done.requirements.synchronous);
    assert_eq!(done.response.count, len);
    is_copied(&mut client, &other, len);
    let (short, third) = (fill(&mut client, "short", MIB), make(&mut client, "third"));
    let done = copied(client.call(copy(&short, &third, false)));
    assert!(done.requirements.synchronous && done.response.count == MIB);
    server.stop().unwrap();
    vfs.unmount().unwrap();
}

/// [RFC7862 15.8.3] [RFC7862 15.9.3]
#[test]
fn copies_are_queried_and_cancelled() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut client = Client::with_minor(address, "a", 2);
    let from = fill(&mut client, "from", 9 * MIB);
    let to = make(&mut client, "to");
    let mut cancelled = 0;
    for _ in 0..5 {
        let begun = copied(client.call(copy(&from, &to, false)));
        let stateid = begun.response.callback.0[0];
        let known = status(&mut client, &to, stateid);
        assert!(known.is_err() || known.is_ok_and(|known| known.count <= 9 * MIB));
        let (ended, _) = client.call(vec![Op::PutFh(to.1.clone()), Op::OffloadCancel(stateid)]);
        // The copy may have ended already.
        assert!(ended == NfsStat::Ok || ended == NfsStat::BadStateid, "{ended:?}");
        cancelled += usize::from(ended == NfsStat::Ok);
        assert_eq!(status(&mut client, &to, stateid), Err(NfsStat::BadStateid));
        // Nothing more is written.
        let change = client.attrs(&to.1).change;
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(client.attrs(&to.1).change, change);
    }
    println!("{cancelled} of 5 in time");
    // The file is closed during the copy, which ends with an error.
    let begun = copied(client.call(copy(&from, &to, false)));
    let close = Op::Close(SeqState { seqid: 0, stateid: to.0 });
    assert_eq!(client.call_with_retry(&[Op::PutFh(to.1.clone()), close]).0, NfsStat::Ok);
    client.offloaded.retain(|ended| ended.stateid == begun.response.callback.0[0]);
    if client.offloaded.is_empty() {
        hear(&mut client);
    }
    server.stop().unwrap();
    vfs.unmount().unwrap();
}

/// The server stops during copies, and a client with many copies gets all of them.
#[test]
fn many_copies_and_a_server_that_stops() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut client = Client::with_minor(address, "a", 2);
    let from = fill(&mut client, "from", 5 * MIB);
    let targets = ["1", "2", "3"].map(|name| make(&mut client, name));
    for to in &targets {
        assert_eq!(copied(client.call(copy(&from, to, false))).response.callback.0.len(), 1);
    }
    while client.offloaded.len() < targets.len() {
        client.serve(Duration::from_secs(5));
    }
    for to in &targets {
        is_copied(&mut client, to, 5 * MIB);
    }
    for to in &targets {
        copied(client.call(copy(&from, to, false)));
    }
    server.stop().unwrap();
    vfs.unmount().unwrap();
}
