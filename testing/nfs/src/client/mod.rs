//! A client of NFSv4 for tests and benchmarks, built on the wire types alone ([`ivers_nfs4`]).
//!
//! It keeps no cache and no state of files. It sends exactly what the test tells it to send.

mod connection;
pub mod tree;

use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::List;

pub use connection::{Client, request};

/// Returns an EXCHANGE_ID. A changed verifier tells the server that the client restarted.
pub fn exchange(verifier: Verifier, name: &str) -> Op {
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier, id: Opaque(name.into()) },
        flags: 0,
        protect: StateProtect::None,
        implementation: List(Vec::new()),
    })
}

/// Returns a CREATE_SESSION with callbacks on this connection and the same attributes for both channels.
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

/// Returns a GETATTR of the change attribute and the size.
pub fn change_and_size() -> Op {
    Op::GetAttr(Bitmap::of([attr::CHANGE, attr::SIZE]))
}

/// Decodes the attributes in the result of a GETATTR.
pub fn decoded(result: Option<&OpResult>) -> Attrs {
    let Some(OpResult::GetAttr(Ok(fattr))) = result else { panic!("{result:?}") };
    Attrs::decode(fattr).unwrap()
}

/// Returns the operations that make the root of the export `/data` the current filehandle.
pub fn data() -> Vec<Op> {
    vec![Op::PutRootFh(()), Op::Lookup(b"data".to_vec())]
}

/// Returns an OPEN for use in a session, without share denial.
pub fn open(owner: &str, access: u32, how: OpenHow, claim: OpenClaim) -> Op {
    open_v40(0, 0, owner, access, how, claim)
}

/// Returns an OPEN with the fields that only NFSv4.0 uses: `seqid` and `clientid`.
pub fn open_v40(
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

/// Creates the file with mode 0640; fails if it exists.
pub fn guarded() -> OpenHow {
    let attrs = Attrs { mode: Some(0o640), ..Attrs::default() };
    OpenHow::Create(CreateHow::Guarded(attrs.encode()))
}

/// Creates the file if it does not exist.
pub fn unchecked() -> OpenHow {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

/// Claims the file with this name in the current directory.
pub fn named(name: &str) -> OpenClaim {
    OpenClaim::Null(name.as_bytes().to_vec())
}

/// Returns the results of a final OPEN and GETFH.
pub fn opened((status, results): &(NfsStat, Vec<OpResult>)) -> (Opened, FileHandle) {
    assert_eq!(*status, NfsStat::Ok, "{results:?}");
    let [.., OpResult::Open(Ok(opened)), OpResult::GetFh(Ok(handle))] = &results[..] else {
        panic!("{results:?}")
    };
    (opened.clone(), handle.clone())
}
