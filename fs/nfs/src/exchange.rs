//! One request and its reply on one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ivers_nfs4::ops::Op;
use ivers_nfs4::rpc::{AuthSys, CallHeader, OpaqueAuth, Reply};
use ivers_nfs4::shared::SHARED_FROM;
use ivers_nfs4::xdr::{Decoder, Encoder};
use ivers_nfs4::{NFS_PROGRAM, NFS_V4, PROC_COMPOUND};
use ivers_vfs::{Cred, Error, NameError};

use crate::connection::{Broken, Connection, Until};
use crate::identity::Identity;
use crate::reply::{self, Answer, Compound};
use crate::session::{Session, Slot};

/// Bytes of most requests, without data.
const RECORD_BYTES: usize = 512;
/// The tag of all requests.
const TAG: &[u8] = b"ivers";

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Another try can succeed.
    Broken(Broken),
    /// No other try can succeed.
    Final(Error),
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Result of a request that is sent once.
pub type Tried<T> = std::result::Result<T, Failure>;

/// Sends a request once, with the credentials of a caller.
pub type SendOnce<'a> = dyn Fn(&Cred, &[Op]) -> Tried<Compound> + 'a;

/// What all requests have in common.
pub struct Exchange {
    /// The server in messages.
    pub name: String,
    /// Which credentials requests carry.
    pub identity: Identity,
    /// The minor version; 0 before the first reply.
    pub minor: AtomicU32,
    /// The only minor version that may be used. `None`: 2, or 1 if the server lacks 2.
    pub wanted: Option<u32>,
    /// How long a reply may take.
    pub patience: Duration,
    xid: AtomicU32,
}

impl Exchange {
    /// Nothing was sent yet.
    pub fn new(name: String, identity: Identity, patience: Duration, wanted: Option<u32>) -> Self {
        let (minor, xid) = (AtomicU32::new(0), AtomicU32::new(rand::random()));
        Self { name, identity, minor, wanted, patience, xid }
    }

    /// Returns an error that names the server.
    pub fn error(&self, why: &str) -> Error {
        Error::Io(format!("{}: {why}", self.name).into())
    }

    fn until(&self, limit: Option<Instant>) -> Until {
        let patience = Instant::now() + self.patience;
        limit.filter(|end| *end < patience).map_or(Until::Patience(patience), Until::Limit)
    }

    /// Sends operations outside of a session, with the credentials of this process.
    pub fn outside(&self, connection: &Connection, ops: &[Op], limit: Option<Instant>) -> Tried<Compound> {
        let auth = self.identity.auth(&Cred::system());
        self.unsequenced(connection, self.next_xid(), &auth, ops, limit)
    }

    /// Sends operations in a slot. The results start with that of SEQUENCE. `keeps_reply`: the server keeps
    /// the reply for a retry.
    pub fn in_slot(
        &self,
        connection: &Connection,
        (session, slot): (&Session, &Slot<'_>),
        auth: &AuthSys,
        ops: &[Op],
        keeps_reply: bool,
        limit: Option<Instant>,
    ) -> Tried<Compound> {
        let sequence = Op::Sequence(slot.sequence(keeps_reply));
        let all = || std::iter::once(&sequence).chain(ops);
        self.send(self.next_xid(), connection, auth, all, session.request_bytes_max, limit)
    }

    /// Sends operations of NFSv4.0. A retry has the same `xid`.
    pub fn unsequenced(
        &self,
        connection: &Connection,
        xid: u32,
        auth: &AuthSys,
        ops: &[Op],
        limit: Option<Instant>,
    ) -> Tried<Compound> {
        self.send(xid, connection, auth, || ops.iter(), usize::MAX, limit)
    }

    /// Returns the transaction ID of a new request.
    pub fn next_xid(&self) -> u32 {
        self.xid.fetch_add(1, Relaxed)
    }

    fn send<'a, I: Iterator<Item = &'a Op>>(
        &self,
        xid: u32,
        connection: &Connection,
        auth: &AuthSys,
        ops: impl Fn() -> I,
        request_bytes_max: usize,
        limit: Option<Instant>,
    ) -> Tried<Compound> {
        let copied = |op: &Op| match op {
            Op::Write(write) if write.data.len() < SHARED_FROM => write.data.len(),
            _ => 0,
        };
        let mut record = Encoder::sharing(RECORD_BYTES + ops().map(copied).sum::<usize>());
        // Room for the record mark.
        record.word(0);
        let header = CallHeader {
            xid,
            program: NFS_PROGRAM,
            version: NFS_V4,
            procedure: PROC_COMPOUND,
            cred: OpaqueAuth::sys(auth),
            verf: OpaqueAuth::NONE,
        };
        header.put(&mut record);
        record.opaque(TAG);
        record.word(self.minor.load(Relaxed));
        record.word(ops().count() as u32);
        ops().for_each(|op| op.put(&mut record));
        let record = record.into_message();
        if record.len() - 4 > request_bytes_max {
            return Err(Error::from(NameError::NameTooLong).into());
        }
        let message = Arc::new(connection.call(xid, record, self.until(limit))?);
        let numbers: Vec<u32> = ops().map(Op::number).collect();
        match reply::decode(Decoder::shared(&message), xid, &numbers, TAG) {
            Ok(Answer::Compound(compound)) => Ok(compound),
            Ok(Answer::Refused(Reply::AuthError(why))) => {
                let why = format!(
                    "the server refuses AUTH_SYS ({why:?}); try xprtsec=tls (Kerberos is not supported)"
                );
                Err(Error::Incompatible(format!("{}: {why}", self.name)).into())
            }
            Ok(Answer::Refused(why)) => {
                Err(self.error(&format!("the server refuses the request: {why:?}")).into())
            }
            Err(malformed) => Err(Failure::Broken(connection.fail(malformed.to_string()))),
        }
    }
}
