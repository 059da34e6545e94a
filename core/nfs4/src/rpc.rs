//! Calls and replies (RFC 5531).

use crate::xdr::{Decoder, Encoder, List, Result, Xdr, XdrError, xdr_enum, xdr_struct};

/// The version of RPC.
pub const RPC_VERSION: u32 = 2;
/// Bytes of a credential or verifier (RFC 5531 section 8.2).
pub const AUTH_MAX: usize = 400;

/// `AUTH_NONE`: nobody.
pub const AUTH_NONE: u32 = 0;
/// `AUTH_SYS`: numbers that the caller claims.
pub const AUTH_SYS: u32 = 1;
/// `RPCSEC_GSS` (RFC 2203).
pub const RPCSEC_GSS: u32 = 6;
/// `AUTH_TLS`: a NULL call that asks whether TLS may begin (RFC 9289 section 4.1).
pub const AUTH_TLS: u32 = 7;
/// What a reply's verifier holds if it may (RFC 9289 section 4.1).
pub const STARTTLS: &[u8] = b"STARTTLS";

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// A credential or verifier: a flavour and bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// Which kind.
    pub flavor: u32,
    /// At most [`AUTH_MAX`].
    pub body: Vec<u8>,
}

impl OpaqueAuth {
    /// Nobody.
    pub const NONE: Self = Self { flavor: AUTH_NONE, body: Vec::new() };

    /// Numbers.
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

/// The body of an `AUTH_SYS` credential (RFC 5531 appendix A).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSys {
    /// Anything.
    pub stamp: u32,
    /// The caller's machine, at most 255 bytes.
    pub machine: Vec<u8>,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
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

/// The head of a call; the arguments follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// The caller's number for it; the reply repeats it.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// What is called.
    pub procedure: u32,
    /// Who calls.
    pub cred: OpaqueAuth,
    /// His proof.
    pub verf: OpaqueAuth,
}

/// A message whose head says that it is of no RPC that we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCall {
    /// Not even a number to answer to.
    Unanswerable(XdrError),
    /// To be denied: another version of RPC.
    RpcVersion {
        /// Whom to answer.
        xid: u32,
    },
    /// To be denied: a credential or verifier that makes no sense.
    Auth {
        /// Whom to answer.
        xid: u32,
        /// Which of the two.
        why: AuthStat,
    },
}

/// What a message is. Both kinds come over one connection where a client is called back over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Somebody calls.
    Call,
    /// Somebody answers this call of ours.
    Reply(u32),
}

impl Kind {
    /// Look at a message without taking anything off it.
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
    /// Append the head of a call.
    pub fn put(&self, to: &mut Encoder) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            to.word(word);
        }
        self.cred.put(to);
        self.verf.put(to);
    }

    /// Take the head of a call off the front.
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
    /// Why a credential was not taken (`auth_stat`, RFC 5531 section 9).
    enum AuthStat {
        /// A bad credential.
        BadCred = 1,
        /// Begin anew.
        RejectedCred = 2,
        /// A bad verifier.
        BadVerf = 3,
        /// Repeated or expired.
        RejectedVerf = 4,
        /// Not enough for this.
        TooWeak = 5,
        /// The reply's verifier is bad.
        InvalidResp = 6,
        /// For another reason.
        Failed = 7,
    }
}

xdr_struct! {
    /// The versions that there are.
    struct Versions {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    }
}

/// What a reply says before its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The results follow.
    Success {
        /// The server's proof.
        verf: OpaqueAuth,
    },
    /// No such program here.
    ProgramUnavailable,
    /// The program is here, in other versions.
    ProgramMismatch(Versions),
    /// No such procedure.
    ProcedureUnavailable,
    /// The arguments make no sense.
    GarbageArgs,
    /// Memory, say.
    SystemError,
    /// Another version of RPC.
    RpcMismatch(Versions),
    /// Who are you?
    AuthError(AuthStat),
}

impl Reply {
    /// The results follow, and nobody proves anything.
    pub const SUCCESS: Self = Self::Success { verf: OpaqueAuth::NONE };

    /// Append the head of a reply.
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

    /// Take the head of a reply off the front, and whose it is.
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
    fn calls_and_replies_survive_the_wire() {
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
    fn who_can_be_answered_is_told_why_not() {
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
