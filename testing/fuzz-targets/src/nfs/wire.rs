//! NFSv4 messages and their parts: everything that decodes encodes again, to bytes that decode to the same.

use ivers_nfs_test::malformed::{Lcg, STATELESS_OPS, request, sample_acl, sample_server};
use ivers_nfs4::attr::{Attrs, Fattr};
use ivers_nfs4::callback::*;
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes, Next, Operations};
use ivers_nfs4::ops::OpResult;
use ivers_nfs4::ops::v42::WriteResponse;
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{AuthSys, BadCall, CallHeader, Kind, OpaqueAuth, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, Opaque, Owner, StableHow, StateId};
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};
use std::fmt::Debug;

/// The longest message.
const LONGEST: usize = 4096;

type Decode = fn(&[u8]);

/// The decoders that the first byte selects.
const FORMS: [Decode; 8] = [
    records,
    message,
    arguments,
    again::<CompoundRes>,
    again::<CbCompoundArgs>,
    again::<CbCompoundRes>,
    attributes,
    again::<OpResult>,
];

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((&form, bytes)) = input.split_first() else { return };
    FORMS[usize::from(form) % FORMS.len()](bytes);
}

fn again<T: Xdr + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(value) = T::take(&mut Decoder::new(bytes)) else { return };
    let encoded = value.to_bytes();
    // A bitmap can lose words without bits; nothing else changes its length.
    assert!(encoded.len() <= bytes.len(), "{value:?} grows");
    assert_eq!(T::from_bytes(&encoded).as_ref(), Ok(&value));
}

/// Decodes a stream of records in fragments of the size in the first byte. The result equals that of one
/// fragment.
fn records(bytes: &[u8]) {
    let Some((&piece, stream)) = bytes.split_first() else { return };
    let taken = |piece: usize| {
        let (mut records, mut found) = (Records::new(LONGEST), Vec::new());
        for mut bytes in stream.chunks(piece) {
            loop {
                match records.feed(&mut bytes) {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(_) => return (found, true, false),
                }
            }
            assert!(bytes.is_empty(), "bytes that nobody took");
        }
        (found, false, records.is_inside())
    };
    let whole = taken(stream.len().max(1));
    assert_eq!(taken(usize::from(piece).max(1)), whole);
    for found in whole.0 {
        assert!(found.len() <= LONGEST);
        message(&found);
    }
}

/// Decodes a call or a reply.
fn message(bytes: &[u8]) {
    let kind = Kind::of(bytes);
    let mut from = Decoder::new(bytes);
    match CallHeader::take(&mut from) {
        Ok(header) => {
            assert_eq!(kind, Ok(Kind::Call));
            let mut encoded = Encoder::default();
            header.put(&mut encoded);
            assert_eq!(CallHeader::take(&mut Decoder::new(encoded.as_bytes())), Ok(header.clone()));
            again::<AuthSys>(&header.cred.body);
            let rest = &bytes[bytes.len() - from.remaining()..];
            arguments(rest);
            again::<CbCompoundArgs>(rest);
        }
        Err(BadCall::RpcVersion { .. } | BadCall::Auth { .. }) => assert_eq!(kind, Ok(Kind::Call)),
        Err(BadCall::Unanswerable(_)) => {}
    }
    let mut from = Decoder::new(bytes);
    if let Ok((xid, reply)) = Reply::take(&mut from) {
        assert_eq!(kind, Ok(Kind::Reply(xid)));
        let mut encoded = Encoder::default();
        reply.put(xid, &mut encoded);
        assert_eq!(Reply::take(&mut Decoder::new(encoded.as_bytes())), Ok((xid, reply)));
        let rest = &bytes[bytes.len() - from.remaining()..];
        again::<CompoundRes>(rest);
        again::<CbCompoundRes>(rest);
    }
}

/// Decodes a request as a whole and by operation. The results are equal.
fn arguments(bytes: &[u8]) {
    again::<CompoundArgs>(bytes);
    let whole = CompoundArgs::take(&mut Decoder::new(bytes));
    let mut from = Decoder::new(bytes);
    let Ok(header) = CompoundHeader::take(&mut from) else { return };
    let Ok(mut operations) = Operations::take(from, header.minor_version) else { return };
    let mut ops = Vec::new();
    loop {
        let (left, number) = (operations.left(), operations.peek());
        match operations.next_op() {
            Some(Next::Op(op)) => {
                assert_eq!((Some(op.number()), operations.left()), (number, left - 1));
                ops.push(op);
            }
            Some(Next::Illegal | Next::BadXdr(_)) => return assert!(whole.is_err()),
            None => return assert_eq!(whole.map(|whole| whole.ops), Ok(ops)),
        }
    }
}

/// Decodes attributes, as in GETATTR, READDIR and SETATTR.
fn attributes(bytes: &[u8]) {
    again::<Bitmap>(bytes);
    again::<Fattr>(bytes);
    let Ok(fattr) = Fattr::take(&mut Decoder::new(bytes)) else { return };
    let Ok(attrs) = Attrs::decode(&fattr) else { return };
    assert_eq!(attrs.mask(), fattr.mask);
    assert_eq!(Attrs::decode(&attrs.encode()), Ok(attrs));
}

/// Returns a callback request and its reply.
fn callbacks() -> (CbCompoundArgs, CbCompoundRes) {
    let (file, stateid) = (Opaque(vec![1; 29]), StateId { seqid: 1, other: [2; 12] });
    let referring =
        ReferringCalls { sessionid: [3; 16], calls: List(vec![ReferringCall { sequenceid: 1, slotid: 0 }]) };
    let owner = Owner { clientid: 1, owner: Opaque(b"o".to_vec()) };
    let sequence = CbSequenceArgs {
        sessionid: [3; 16],
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        cache_this: false,
        referring: List(vec![referring]),
    };
    let written = WriteResponse {
        callback: List(Vec::new()),
        count: 5,
        committed: StableHow::FileSync,
        verifier: [4; 8],
    };
    let ops = vec![
        CbOp::Sequence(sequence),
        CbOp::GetAttr(CbGetAttrArgs { file: file.clone(), attrs: Bitmap::of([3, 4]) }),
        CbOp::Recall(CbRecallArgs { stateid, truncate: true, file: file.clone() }),
        CbOp::RecallAny(CbRecallAnyArgs { keep: 1, types: Bitmap::of([0, 1]) }),
        CbOp::RecallSlot(3),
        CbOp::NotifyLock(CbNotifyLockArgs { file: file.clone(), owner }),
        CbOp::Offload(CbOffloadArgs { file, stateid, info: OffloadInfo::Ok(written) }),
    ];
    let attrs = Attrs { change: Some(7), size: Some(8), ..Attrs::default() };
    let sequence = CbSequenceOk {
        sessionid: [3; 16],
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        target_highest_slotid: 0,
    };
    let results = vec![
        CbResult::Sequence(Ok(sequence)),
        CbResult::GetAttr(Ok(attrs.encode())),
        CbResult::Recall(Ok(())),
        CbResult::NotifyLock(Ok(())),
        CbResult::Offload(Ok(())),
        CbResult::Failed { op: 10_044, status: NfsStat::OpIllegal },
    ];
    let args = CbCompoundArgs { tag: b"tag".to_vec(), minor_version: 1, ident: 0, ops: List(ops) };
    (args, CbCompoundRes { status: NfsStat::OpIllegal, tag: b"tag".to_vec(), results: List(results) })
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&mark(message.len())[..], message].concat()
}

/// Returns the fuzz inputs: requests and replies of every operation, with and without their envelopes.
pub fn inputs() -> Vec<Vec<u8>> {
    let server = sample_server(ivers_nfs_test::harness::mem());
    let mut inputs = Vec::new();
    let mut lcg = Lcg(1);
    let sys = AuthSys { stamp: 1, machine: b"here".to_vec(), uid: 0, gid: 0, gids: List(vec![1, 2]) };
    let call = CallHeader {
        xid: 5,
        program: ivers_nfs4::NFS_PROGRAM,
        version: ivers_nfs4::NFS_V4,
        procedure: ivers_nfs4::PROC_COMPOUND,
        cred: OpaqueAuth::sys(&sys),
        verf: OpaqueAuth::NONE,
    };
    for op in STATELESS_OPS {
        let request = request(&server, 2, op, &mut lcg);
        let answer = super::compound::answer(&server, request.clone());
        inputs.push([&[2][..], &request].concat());
        inputs.push([&[3][..], &answer].concat());
        let mut message = Encoder::default();
        call.put(&mut message);
        let message = [message.as_bytes(), &request].concat();
        let cut = message.len() / 3;
        let first = [&(cut as u32).to_be_bytes()[..], &message[..cut]].concat();
        inputs.push([&[0, 7][..], &first, &framed(&message[cut..]), &framed(b"")].concat());
        inputs.push([&[1][..], &message].concat());
        let mut message = Encoder::default();
        Reply::SUCCESS.put(5, &mut message);
        inputs.push([&[1][..], message.as_bytes(), &answer].concat());
    }
    for number in 0..80 {
        let failed = OpResult::failure(number, NfsStat::Delay).to_bytes();
        inputs.push([&[7][..], &failed].concat());
    }
    let known = Attrs { supported_attrs: Some(Attrs::known().clone()), size: Some(5), ..Attrs::default() };
    let named = Attrs { owner: Some(b"0".to_vec()), filehandle: Some(Opaque(vec![1; 20])), ..known };
    inputs.push([&[6][..], &named.encode().to_bytes()].concat());
    inputs.push(
        [&[6][..], &Attrs { acl: Some(sample_acl()), ..Attrs::default() }.encode().to_bytes()].concat(),
    );
    let (args, res) = callbacks();
    inputs.push([&[4][..], &args.to_bytes()].concat());
    inputs.push([&[5][..], &res.to_bytes()].concat());
    inputs
}
