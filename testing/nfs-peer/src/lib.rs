//! A client of NFSv4 made of the wire alone ([`ivers_nfs4`]): what tests, the contract suite and measurements put on the other side of
//! a server, ours or another's. It keeps no cache and no state of files: what it sends is what the test says.

#![forbid(unsafe_code)]

mod client;

use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::List;

pub use client::{Client, request};

/// EXCHANGE_ID of a client, who has been started anew if his verifier is another one.
pub fn exchange(verifier: Verifier, name: &str) -> Op {
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier, id: Opaque(name.into()) },
        flags: 0,
        protect: StateProtect::None,
        implementation: List(Vec::new()),
    })
}

/// CREATE_SESSION with callbacks on this connection, and equal channels both ways.
pub fn create_session(clientid: ClientId, sequence: u32, channel: ChannelAttrs) -> Op {
    Op::CreateSession(CreateSessionArgs {
        clientid,
        sequence,
        flags: session_flags::CONN_BACK_CHAN,
        fore: channel.clone(),
        back: channel,
        callback_program: 0x4000_0000,
        security: List(vec![CallbackSecurity::None]),
    })
}

/// GETATTR of change attribute and size.
pub fn change_and_size() -> Op {
    Op::GetAttr(Bitmap::of([attr::CHANGE, attr::SIZE]))
}

/// What a GETATTR has answered.
pub fn decoded(result: Option<&OpResult>) -> Attrs {
    let Some(OpResult::GetAttr(Ok(fattr))) = result else { panic!("{result:?}") };
    Attrs::decode(fattr).unwrap()
}

/// To the root of the export that is called `/data`.
pub fn data() -> Vec<Op> {
    vec![Op::PutRootFh(()), Op::Lookup(b"data".to_vec())]
}

/// OPEN in a session; it denies nothing.
pub fn open(owner: &str, access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    open_of(0, 0, owner, access, how, claim)
}

/// OPEN as NFSv4.0 has it, too.
pub fn open_of(
    seqid: u32,
    clientid: ClientId,
    owner: &str,
    access: u32,
    how: OpenHow,
    claim: OpenClaim,
) -> Op {
    Op::Open(OpenArgs {
        seqid,
        share_access: access,
        share_deny: 0,
        owner: Owner { clientid, owner: Opaque(owner.as_bytes().to_vec()) },
        how,
        claim,
    })
}

/// It must be new; mode 0640.
pub fn guarded() -> OpenHow {
    let attrs = Attrs { mode: Some(0o640), ..Attrs::default() };
    OpenHow::Create(CreateHow::Guarded(attrs.encode()))
}

/// Made if it is not there.
pub fn unchecked() -> OpenHow {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

/// By its name.
pub fn named(name: &str) -> OpenClaim {
    OpenClaim::Null(name.as_bytes().to_vec())
}

/// What OPEN and GETFH behind it have said.
pub fn opened((status, results): &(NfsStat, Vec<OpResult>)) -> (Opened, FileHandle) {
    assert_eq!(*status, NfsStat::Ok, "{results:?}");
    let [.., OpResult::Open(Ok(opened)), OpResult::GetFh(Ok(handle))] = &results[..] else {
        panic!("{results:?}")
    };
    (opened.clone(), handle.clone())
}
