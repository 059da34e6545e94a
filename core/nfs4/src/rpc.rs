//! RPC calls and replies (RFC 5531).

use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_enum, xdr_struct};

/// Version of RPC (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;
/// Maximum size of a credential or verifier in bytes (RFC 5531 section 8.2).
pub const AUTH_MAX: usize = 400;

/// `AUTH_NONE` (RFC 5531 section 8.2): no identity.
pub const AUTH_NONE: u32 = 0;
/// `AUTH_SYS` (RFC 5531 appendix A): user and group IDs that the caller claims.
pub const AUTH_SYS: u32 = 1;
/// `RPCSEC_GSS` (RFC 2203).
pub const RPCSEC_GSS: u32 = 6;
/// `AUTH_TLS` (RFC 9289 section 4.1): a NULL call that asks whether TLS may start.
pub const AUTH_TLS: u32 = 7;
/// Verifier of the reply that permits TLS (RFC 9289 section 4.1).
pub const STARTTLS: &[u8] = b"STARTTLS";

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// `opaque_auth` (RFC 5531 section 8.2): a credential or verifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// Authentication flavor.
    pub flavor: u32,
    /// Body of at most [`AUTH_MAX`] bytes.
    pub body: Vec<u8>,
}

impl OpaqueAuth {
    /// `AUTH_NONE`.
    pub const NONE: Self = Self { flavor: AUTH_NONE, body: Vec::new() };

    /// Returns an `AUTH_SYS` credential.
    pub fn sys(sys: &AuthSys) -> Self {
        Self { flavor: AUTH_SYS, body: sys.to_bytes() }
    }
}

impl Xdr for OpaqueAuth {
    fn put(&self, to: &mut Encoder) {
        to.word(self.flavor);
        to.opaque(&self.body);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self { flavor: from.word()?, body: from.opaque(AUTH_MAX)?.to_vec() })
    }
}

/// `authsys_parms` (RFC 5531 appendix A): the body of an `AUTH_SYS` credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSys {
    /// Arbitrary number.
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 bytes.
    pub machine: Vec<u8>,
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Supplementary group IDs.
    pub gids: List<u32, 16>,
}

impl Xdr for AuthSys {
    fn put(&self, to: &mut Encoder) {
        to.word(self.stamp);
        to.opaque(&self.machine);
        to.word(self.uid);
        to.word(self.gid);
        self.gids.put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self {
            stamp: from.word()?,
            machine: from.opaque(255)?.to_vec(),
            uid: from.word()?,
            gid: from.word()?,
            gids: Xdr::take(from)?,
        })
    }
}

/// `call_body` (RFC 5531 section 9) with its transaction ID; the arguments follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction ID, repeated in the reply.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Program version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Credential.
    pub cred: OpaqueAuth,
    /// Verifier.
    pub verf: OpaqueAuth,
}

/// The reason why the header of a call is invalid (RFC 5531 section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCall {
    /// No transaction ID, so no reply is possible.
    Unanswerable(XdrError),
    /// Unsupported version of RPC.
    RpcVersion {
        /// Transaction ID for the reply.
        xid: u32,
    },
    /// Malformed credential or verifier.
    Auth {
        /// Transaction ID for the reply.
        xid: u32,
        /// Status for the reply.
        why: AuthStat,
    },
}

/// `msg_type` (RFC 5531 section 9). Calls and replies share a connection if the server calls the client back
/// on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Call,
    /// A reply to the call with this transaction ID.
    Reply(u32),
}

impl Kind {
    /// Returns the kind of a message.
    pub fn of(message: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(message);
        match (from.word()?, from.word()?) {
            (_, CALL) => Ok(Self::Call),
            (xid, REPLY) => Ok(Self::Reply(xid)),
            (_, other) => Err(XdrError::BadValue(other)),
        }
    }
}

impl CallHeader {
    /// Appends the header of a call.
    pub fn put(&self, to: &mut Encoder) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            to.word(word);
        }
        self.cred.put(to);
        self.verf.put(to);
    }

    /// Decodes the header of a call.
    pub fn take(from: &mut Decoder<'_>) -> std::result::Result<Self, BadCall> {
        let mut word = || from.word().map_err(BadCall::Unanswerable);
        let (xid, kind, rpc) = (word()?, word()?, word()?);
        if kind != CALL {
            return Err(BadCall::Unanswerable(XdrError::BadValue(kind)));
        }
        if rpc != RPC_VERSION {
            return Err(BadCall::RpcVersion { xid });
        }
        let (program, version, procedure) = (word()?, word()?, word()?);
        let mut auth = |why| OpaqueAuth::take(from).map_err(|_| BadCall::Auth { xid, why });
        let (cred, verf) = (auth(AuthStat::BadCred)?, auth(AuthStat::BadVerf)?);
        Ok(Self { xid, program, version, procedure, cred, verf })
    }
}

xdr_enum! {
    /// `auth_stat` (RFC 5531 section 9): why a credential was refused.
    enum AuthStat {
        /// Bad credential.
        BadCred = 1,
        /// The client must start a new security session.
        RejectedCred = 2,
        /// Bad verifier.
        BadVerf = 3,
        /// Verifier expired or replayed.
        RejectedVerf = 4,
        /// Refused for security reasons.
        TooWeak = 5,
        /// Bad verifier in the reply.
        InvalidResp = 6,
        /// Unknown reason.
        Failed = 7,
    }
}

xdr_struct! {
    /// `mismatch_info` (RFC 5531 section 9): the supported versions.
    struct Versions {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    }
}

/// `reply_body` without results (RFC 5531 section 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Success; the results follow.
    Success {
        /// Verifier of the server.
        verf: OpaqueAuth,
    },
    /// Unknown program.
    ProgramUnavailable,
    /// Unsupported version of the program.
    ProgramMismatch(Versions),
    /// Unknown procedure.
    ProcedureUnavailable,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// Internal error of the server, for example out of memory.
    SystemError,
    /// Unsupported version of RPC.
    RpcMismatch(Versions),
    /// Authentication failed.
    AuthError(AuthStat),
}

impl Reply {
    /// Success with an empty verifier.
    pub const SUCCESS: Self = Self::Success { verf: OpaqueAuth::NONE };

    /// Appends the header of a reply.
    pub fn put(&self, xid: u32, to: &mut Encoder) {
        const ACCEPTED: u32 = 0;
        const DENIED: u32 = 1;
        to.word(xid);
        to.word(REPLY);
        let accepted = |to: &mut Encoder, verf: &OpaqueAuth, status: u32| {
            to.word(ACCEPTED);
            verf.put(to);
            to.word(status);
        };
        match self {
            Self::Success { verf } => accepted(to, verf, 0),
            Self::ProgramUnavailable => accepted(to, &OpaqueAuth::NONE, 1),
            Self::ProgramMismatch(versions) => {
                accepted(to, &OpaqueAuth::NONE, 2);
                versions.put(to);
            }
            Self::ProcedureUnavailable => accepted(to, &OpaqueAuth::NONE, 3),
            Self::GarbageArgs => accepted(to, &OpaqueAuth::NONE, 4),
            Self::SystemError => accepted(to, &OpaqueAuth::NONE, 5),
            Self::RpcMismatch(versions) => {
                to.word(DENIED);
                to.word(0);
                versions.put(to);
            }
            Self::AuthError(why) => {
                to.word(DENIED);
                to.word(1);
                why.put(to);
            }
        }
    }

    /// Decodes the header of a reply, and its transaction ID.
    pub fn take(from: &mut Decoder<'_>) -> Result<(u32, Self)> {
        let xid = from.word()?;
        match from.word()? {
            REPLY => {}
            other => return Err(XdrError::BadValue(other)),
        }
        let reply = match from.word()? {
            0 => {
                let verf = OpaqueAuth::take(from)?;
                match from.word()? {
                    0 => Self::Success { verf },
                    1 => Self::ProgramUnavailable,
                    2 => Self::ProgramMismatch(Xdr::take(from)?),
                    3 => Self::ProcedureUnavailable,
                    4 => Self::GarbageArgs,
                    5 => Self::SystemError,
                    other => return Err(XdrError::BadValue(other)),
                }
            }
            1 => match from.word()? {
                0 => Self::RpcMismatch(Xdr::take(from)?),
                1 => Self::AuthError(Xdr::take(from)?),
                other => return Err(XdrError::BadValue(other)),
            },
            other => return Err(XdrError::BadValue(other)),
        };
        Ok((xid, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_replies_round_trip() {
        let sys =
            AuthSys { stamp: 1, machine: b"host".to_vec(), uid: 1000, gid: 100, gids: List(vec![4, 24]) };
        let call = CallHeader {
            xid: 7,
            program: crate::NFS_PROGRAM,
            version: crate::NFS_V4,
            procedure: crate::PROC_COMPOUND,
            cred: OpaqueAuth::sys(&sys),
            verf: OpaqueAuth::NONE,
        };
        let mut encoder = Encoder::default();
        call.put(&mut encoder);
        let bytes = encoder.into_bytes();
        let mut decoder = Decoder::new(&bytes);
        let found = CallHeader::take(&mut decoder).unwrap();
        decoder.finish().unwrap();
        assert_eq!(found, call);
        assert_eq!(AuthSys::from_bytes(&found.cred.body), Ok(sys));

        let versions = Versions { low: 4, high: 4 };
        for reply in [
            Reply::SUCCESS,
            Reply::Success { verf: OpaqueAuth { flavor: AUTH_NONE, body: STARTTLS.to_vec() } },
            Reply::ProgramUnavailable,
            Reply::ProgramMismatch(versions.clone()),
            Reply::ProcedureUnavailable,
            Reply::GarbageArgs,
            Reply::SystemError,
            Reply::RpcMismatch(versions),
            Reply::AuthError(AuthStat::TooWeak),
        ] {
            let mut encoder = Encoder::default();
            reply.put(9, &mut encoder);
            assert_eq!(Reply::take(&mut Decoder::new(encoder.as_bytes())), Ok((9, reply)));
        }
    }

    #[test]
    fn invalid_headers_with_a_transaction_id_get_an_error() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
        let take = |bytes: &[u8]| CallHeader::take(&mut Decoder::new(bytes)).unwrap_err();
        assert_eq!(take(&words(&[7, CALL, 3])), BadCall::RpcVersion { xid: 7 });
        assert_eq!(
            take(&words(&[7, CALL, 2, 100_003, 4, 1, AUTH_SYS, 401])),
            BadCall::Auth { xid: 7, why: AuthStat::BadCred }
        );
        let bad_verifier = [7, CALL, 2, 100_003, 4, 1, AUTH_NONE, 0, AUTH_NONE, 401];
        assert_eq!(take(&words(&bad_verifier)), BadCall::Auth { xid: 7, why: AuthStat::BadVerf });
        assert_eq!(Kind::of(&words(&[7, CALL])), Ok(Kind::Call));
        assert_eq!(Kind::of(&words(&[7, REPLY])), Ok(Kind::Reply(7)));
        assert!(Kind::of(&words(&[7, 2])).is_err());
        assert!(matches!(take(&words(&[7, REPLY, 2])), BadCall::Unanswerable(_)));
        assert!(matches!(take(&words(&[7])), BadCall::Unanswerable(XdrError::Short)));
        let crowd = AuthSys { stamp: 0, machine: Vec::new(), uid: 0, gid: 0, gids: List(vec![0; 17]) };
        assert_eq!(AuthSys::from_bytes(&crowd.to_bytes()), Err(XdrError::TooLong(17)));
    }
}
