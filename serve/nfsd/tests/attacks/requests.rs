//! Requests that are out of order or too large.

use std::io::{Read, Write};

use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v41::SequenceArgs;
use ivers_nfs4::record::Records;
use ivers_nfs4::rpc::Reply;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};

use super::*;

fn sequence(sessionid: SessionId, sequenceid: u32, slotid: u32) -> Op {
    Op::Sequence(SequenceArgs { sessionid, sequenceid, slotid, highest_slotid: slotid, cache_this: true })
}

/// Sequence numbers that are skipped, repeated and made up.
pub fn out_of_order(target: &Target) {
    let mut client = Client::new(target.address, "out of order");
    let session = client.session;
    let put = || Op::PutRootFh(());
    for round in 1..300 {
        let mut ends = |ops: Vec<Op>| client.compound(1, ops);
        let first = ends(vec![sequence(session, round, 1), put(), Op::GetFh(())]);
        assert_eq!(first.0, NfsStat::Ok);
        assert_eq!(ends(vec![sequence(session, round + 2, 1), put()]).0, NfsStat::SeqMisordered);
        assert_eq!(ends(vec![sequence(session, round.wrapping_sub(2), 1), put()]).0, NfsStat::SeqMisordered);
        assert_eq!(ends(vec![sequence(session, u32::MAX, 1), put()]).0, NfsStat::SeqMisordered);
        assert_eq!(ends(vec![sequence(session, round, 1), put()]).0, NfsStat::SeqFalseRetry);
        let again = ends(vec![sequence(session, round, 1), put(), Op::GetFh(())]);
        assert_eq!(again, first, "the cached reply");
        assert_eq!(ends(vec![sequence(session, 1, 100_000), put()]).0, NfsStat::Badslot);
        assert_eq!(ends(vec![sequence([0xee; 16], 1, 0), put()]).0, NfsStat::Badsession);
        assert_eq!(ends(vec![put()]).0, NfsStat::OpNotInSession);
        let twice = ends(vec![sequence(session, round, 2), sequence(session, round, 3)]);
        assert_eq!(twice.0, NfsStat::SequencePos);
        assert_eq!(ends(vec![Op::DestroyClientId(u64::from(round))]).0, NfsStat::StaleClientid);
        assert_eq!(ends(vec![Op::DestroySession([round as u8; 16])]).0, NfsStat::Badsession);
    }
    assert_eq!(client.call(vec![put()]).0, NfsStat::Ok, "another slot was affected");
}

/// Sends a call with arbitrary arguments. Returns the status of the COMPOUND reply, if there is one.
struct Raw {
    stream: TcpStream,
    records: Records,
    xid: u32,
}

impl Raw {
    fn ask(&mut self, arguments: &[u8]) -> (Reply, Option<CompoundRes>) {
        self.xid += 1;
        self.stream.write_all(&request(self.xid, 0, arguments)).unwrap();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let len = self.stream.read(&mut buffer).unwrap();
            assert!(len > 0, "the server closed the connection");
            if let Some(message) = self.records.feed(&mut &buffer[..len]).unwrap() {
                let mut from = Decoder::new(&message);
                let (xid, reply) = Reply::take(&mut from).unwrap();
                assert_eq!(xid, self.xid);
                return (reply, CompoundRes::take(&mut from).ok());
            }
        }
    }

    fn ends(&mut self, minor: u32, tag: usize, ops: Vec<Op>) -> NfsStat {
        let header = CompoundHeader { tag: vec![b't'; tag], minor_version: minor };
        let (_, res) = self.ask(&CompoundArgs { header, ops }.to_bytes());
        let res = res.unwrap();
        assert_eq!(res.tag.len(), tag);
        res.status
    }
}

/// Counts that are too large, and requests of the maximum size.
pub fn huge(target: &Target) {
    let mut client = Client::new(target.address, "huge");
    let (stateid, handle) = make(&mut client, "huge");
    assert_eq!(client.call(write(&handle, stateid, vec![1; 1 << 20])).0, NfsStat::Ok);
    let put = || Op::PutFh(handle.clone());
    let stream = TcpStream::connect(target.address).unwrap();
    let mut raw = Raw { stream, records: Records::new(4 << 20), xid: 0 };
    for round in 0..8u64 {
        // The maximum count of operations, without any operation.
        for count in [u32::MAX, 1 << 30, 1000] {
            let mut arguments = Encoder::default();
            arguments.opaque(b"");
            arguments.word(0);
            arguments.word(count);
            assert_eq!(raw.ask(arguments.as_bytes()).0, Reply::GarbageArgs);
        }
        assert_eq!(
            raw.ends(0, 3 << 19, vec![Op::PutRootFh(())]),
            NfsStat::Resource,
            "no room beside the tag"
        );
        assert_eq!(raw.ends(0, 0, vec![Op::PutRootFh(()); 200_000]), NfsStat::Resource);
        let reads: Vec<Op> = (0..30).map(|_| read(u32::MAX, 0)).collect();
        let (status, results) = client.compound(0, [vec![put()], reads].concat());
        assert_eq!(
            (status, results.len()),
            (NfsStat::Resource, 3),
            "one of a MiB fits, another one does not"
        );
        // A session has its own limits.
        let fresh = sequence(client.session, 1, 1);
        let many = [vec![fresh.clone()], vec![Op::PutRootFh(()); 600]].concat();
        assert_eq!(client.compound(1, many).0, NfsStat::TooManyOps);
        // Above the limit, the server reads the bytes in order to reply.
        let large = [vec![fresh], write(&handle, stateid, vec![1; (1 << 20) + 8192])].concat();
        assert_eq!(client.compound(1, large).0, NfsStat::ReqTooBig);
        for offset in [0, 1 << 20, u64::MAX, u64::MAX - round] {
            let (status, _) = client.call(vec![put(), read(u32::MAX, offset)]);
            assert!(matches!(status, NfsStat::Ok | NfsStat::Inval), "{status:?}");
        }
        let list = ReadDirArgs {
            cookie: 0,
            verifier: [0; 8],
            dircount: u32::MAX,
            maxcount: u32::MAX,
            attrs: Bitmap::of(0..2000),
        };
        let (status, _) = client.call([data(), vec![Op::ReadDir(list)]].concat());
        assert!(matches!(status, NfsStat::Ok | NfsStat::Inval), "{status:?}");
        let many = || vec![StateId { seqid: 1, other: [9; 12] }; 60_000];
        client.stream(
            1,
            1,
            |_| vec![Op::TestStateId(List(many()))],
            |status, _| assert_eq!(status, NfsStat::Ok),
        );
    }
}

fn read(count: u32, offset: u64) -> Op {
    Op::Read(ReadArgs { stateid: StateId::ANONYMOUS, offset, count })
}
