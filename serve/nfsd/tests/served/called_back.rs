//! NFSv4.0: callbacks over connections that the server opens.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ivers_nfs_test::client::*;
use ivers_nfs4::PROC_NULL;
use ivers_nfs4::callback::{CbCompoundArgs, CbCompoundRes, CbOp, CbRecallArgs, CbResult};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult, SetClientIdRes};
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{CallHeader, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};

use crate::{ext4, serve};

/// The program number that the client passed to SETCLIENTID.
const PROGRAM: u32 = 0x4000_3039;

/// The callback service of a client.
struct Back {
    listener: TcpListener,
    stream: Option<TcpStream>,
    records: Records,
}

impl Back {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, stream: None, records: Records::new(1 << 20) }
    }

    /// The address in the format of SETCLIENTID.
    fn location(&self, host: &str) -> NetAddr {
        let [high, low] = self.listener.local_addr().unwrap().port().to_be_bytes();
        NetAddr { netid: b"tcp".to_vec(), addr: format!("{host}.{high}.{low}").into_bytes() }
    }

    /// Returns whether the server connects.
    fn accept(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while self.stream.is_none() && Instant::now() < until {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    self.stream = Some(stream);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        self.stream.is_some()
    }

    /// Receives the next call and answers it.
    fn answer(&mut self, results: impl FnOnce(&CallHeader, &mut Decoder<'_>) -> Option<CbCompoundRes>) {
        let stream = self.stream.as_mut().unwrap();
        let message = loop {
            let mut bytes = [0; 4096];
            let len = stream.read(&mut bytes).unwrap();
            assert_ne!(len, 0, "the server closed the connection");
            let mut rest = &bytes[..len];
            if let Some(message) = self.records.feed(&mut rest).unwrap() {
                assert!(rest.is_empty());
                break message;
            }
        };
        let mut from = Decoder::new(&message);
        let header = CallHeader::take(&mut from).unwrap();
        assert_eq!(header.program, PROGRAM);
        let mut reply = Encoder::default();
        Reply::SUCCESS.put(header.xid, &mut reply);
        if let Some(res) = results(&header, &mut from) {
            res.put(&mut reply);
        }
        let framed = [&mark(reply.len())[..], reply.as_bytes()].concat();
        stream.write_all(&framed).unwrap();
    }

    fn answer_null(&mut self) {
        self.answer(|header, _| {
            assert_eq!(header.procedure, PROC_NULL);
            None
        });
    }

    /// Receives a recall. Returns it with its `callback_ident`.
    fn answer_recall(&mut self) -> (u32, CbRecallArgs) {
        let mut found = None;
        self.answer(|_, from| {
            let args = CbCompoundArgs::take(from).unwrap();
            assert_eq!(args.minor_version, 0);
            let [CbOp::Recall(recall)] = &args.ops.0[..] else { panic!("{args:?}") };
            found = Some((args.ident, recall.clone()));
            let results = List(vec![CbResult::Recall(Ok(()))]);
            Some(CbCompoundRes { status: NfsStat::Ok, tag: args.tag, results })
        });
        found.unwrap()
    }
}

fn introduce(address: SocketAddr, name: &str, location: NetAddr) -> (Client, ClientId) {
    let mut client = Client::connect(address, name);
    let set = SetClientIdArgs {
        client: ClientOwner { verifier: [1; 8], id: Opaque(name.as_bytes().to_vec()) },
        callback: CallbackClient { program: PROGRAM, location },
        callback_ident: 77,
    };
    let (_, results) = client.compound(0, vec![Op::SetClientId(set)]);
    let Some(OpResult::SetClientId(SetClientIdRes::Ok(confirm))) = results.last() else {
        panic!("{results:?}")
    };
    assert_eq!(client.compound(0, vec![Op::SetClientIdConfirm(confirm.clone())]).0, NfsStat::Ok);
    (client, confirm.clientid)
}

/// Opens a file with an owner that a first open has confirmed.
fn open_twice(client: &mut Client, id: ClientId, access: u32, name: &str) -> (Opened, FileHandle) {
    let open = |seqid| {
        let open = open_v40(seqid, id, name, access, unchecked(), named(name));
        [data(), vec![open, Op::GetFh(())]].concat()
    };
    let (first, handle) = opened(&client.compound(0, open(1)));
    assert_eq!(first.delegation, OpenDelegation::None, "its owner is not confirmed");
    let confirm = Op::OpenConfirm(OpenConfirmArgs { stateid: first.stateid, seqid: 2 });
    assert_eq!(client.compound(0, vec![Op::PutFh(handle), confirm]).0, NfsStat::Ok);
    opened(&client.compound(0, open(3)))
}

/// [RFC7530 16.33.5] [RFC7530 10.2.1]
#[test]
fn a_delegation_is_recalled_over_a_connection_of_the_server() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let mut back = Back::new();
    let (mut holder, id) = introduce(address, "hold", back.location("127.0.0.1"));
    assert!(back.accept(Duration::from_secs(10)));
    back.answer_null();
    // The server knows that callbacks work when it has read the reply.
    let delegated = (0..100).find_map(|at| {
        std::thread::sleep(Duration::from_millis(20));
        let (open, handle) = open_twice(&mut holder, id, share::READ, &format!("f{at}"));
        let OpenDelegation::Read(delegation) = open.delegation else { return None };
        Some((delegation.stateid, handle, format!("f{at}")))
    });
    let (stateid, handle, name) = delegated.expect("a delegation");
    let (written, _) = open_twice(&mut holder, id, share::BOTH, "w");
    assert_eq!(written.delegation, OpenDelegation::None, "none for writing");

    let mut other = Client::new(address, "other");
    let open = open("x", share::WRITE | share::WANT_NO_DELEG, OpenHow::NoCreate, named(&name));
    let open = [data(), vec![open]].concat();
    assert_eq!(other.call(open.clone()).0, NfsStat::Delay);
    let (ident, recall) = back.answer_recall();
    assert_eq!((ident, recall.stateid, recall.file), (77, stateid, handle.clone()));
    assert_eq!(holder.compound(0, vec![Op::PutFh(handle), Op::DelegReturn(stateid)]).0, NfsStat::Ok);
    assert_eq!(other.call_with_retry(&open).0, NfsStat::Ok);
    server.stop().unwrap();
}

/// [RFC7530 16.33.5]
#[test]
fn the_server_connects_only_to_the_host_of_the_client() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), ext4());
    let (server, address) = serve(dir.path(), &vfs);
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut back = Back { listener, ..Back::new() };
    let (mut client, id) = introduce(address, "liar", back.location("127.0.0.2"));
    assert!(!back.accept(Duration::from_millis(500)));
    let (open, _) = open_twice(&mut client, id, share::READ, "f");
    assert_eq!(open.delegation, OpenDelegation::None);
    server.stop().unwrap();
}
