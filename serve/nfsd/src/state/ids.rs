//! What everything here is made of: times, random numbers, who asks, which file.

use std::net::IpAddr;
use std::ops::Add;
use std::sync::Arc;

use ivers_nfs4::ops::v40::LockDenied;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;
use ivers_nfs4::xdr::Encoder;

/// A moment: milliseconds since the server started, by a clock that never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// So many times as long.
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Add<Millis> for Time {
    type Output = Self;

    fn add(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Time {
    /// How long ago another moment was; nothing if it is yet to come.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// Where random numbers come from.
pub trait Rng: Send {
    /// The next one.
    fn next_u64(&mut self) -> u64;
}

/// A connection, by a number that no other one ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A file, as its filehandle names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Which export.
    pub export: u32,
    /// Which inode.
    pub inode: u64,
    /// Which file in that inode.
    pub generation: u32,
}

/// Where a client is at home: an address that stands for all that one machine can easily have. The room for clients is shared among these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientHost(pub IpAddr);

/// Who a request is from, as RPC and TLS say it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<[u8]>);

impl Principal {
    /// A user as RPC names him (nobody: AUTH_NONE), and the certificate of the machine, if TLS has shown one.
    pub fn of(user: Option<u32>, certificate: Option<&[u8]>) -> Self {
        let mut bytes = u32::from(user.is_some()).to_be_bytes().to_vec();
        bytes.extend(user.into_iter().flat_map(u32::to_be_bytes));
        if let Some(certificate) = certificate {
            let mut opaque = Encoder::default();
            opaque.opaque(certificate);
            bytes.extend(opaque.as_bytes());
        }
        Self::new(&bytes)
    }

    /// As it was written down.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The part that says of which machine he is; empty: anybody's.
    fn machine(&self) -> &[u8] {
        let user = if self.0.starts_with(&[0; 4]) { 4 } else { 8 };
        self.0.get(user..).unwrap_or_default()
    }

    /// Whether another one may speak for his machine: one that has shown a certificate is spoken for by nobody without it.
    pub(super) fn accepts_machine_of(&self, other: &Self) -> bool {
        self.machine().is_empty() || self.machine() == other.machine()
    }

    /// What it was made of.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What tells a request from another one under the same sequence number: a hash of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

/// Something that has been asked for outside and is not done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Who asks for an operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// NFSv4.0: whoever the stateid belongs to; nobody if there is none.
    V40,
    /// NFSv4.1 and later: the client of the session.
    Client(ClientId),
}

impl Caller {
    pub(super) fn client(self) -> Option<ClientId> {
        match self {
            Self::V40 => None,
            Self::Client(client) => Some(client),
        }
    }
}

/// WhyNoDelegation an operation does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It ends like this.
    Fail(NfsStat),
    /// Nothing has happened yet. When the ticket is [`done`](super::StateManager::effect_done), or comes as [`Effect::Wake`](super::Effect::Wake), the
    /// same call is made again; if that takes too long, the client is told NFS4ERR_DELAY.
    Wait(Ticket),
    /// The holder of a write delegation is being asked. The request waits for [`told`](super::StateManager::getattr_reply), whose answer is its own.
    AskHolder(Ticket),
    /// A lock of somebody else is in the way.
    Denied(Box<LockDenied>),
    /// NFSv4.0: it was done already, and this was the reply.
    Replay(Arc<CachedReply>),
}

/// The reply to an operation of NFSv4.0 that is kept for repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedReply {
    /// The encoded result.
    pub bytes: Vec<u8>,
    /// The current filehandle that it left behind.
    pub file: Option<FileId>,
}

impl From<NfsStat> for Stop {
    fn from(status: NfsStat) -> Self {
        Self::Fail(status)
    }
}

/// The outcome of a step, or why there is none.
pub type Step<T> = Result<T, Stop>;

/// Stop with a status.
pub(super) fn fail<T>(status: NfsStat) -> Step<T> {
    Err(Stop::Fail(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept over restarts has to stay what it was.
    #[test]
    fn machines_with_certificates_are_spoken_for_by_themselves() {
        let [ann, bob] = [Some(1000), Some(1001)];
        assert_eq!(Principal::of(ann, Some(b"abc")).bytes(), b"\0\0\0\x01\0\0\x03\xe8\0\0\0\x03abc\0");
        assert_eq!(Principal::of(None, None).bytes(), [0; 4]);
        let with = |user, certificate: &str| Principal::of(user, Some(certificate.as_bytes()));
        assert!(Principal::of(ann, None).accepts_machine_of(&Principal::of(bob, None)));
        assert!(Principal::of(ann, None).accepts_machine_of(&with(bob, "a")));
        assert!(with(ann, "a").accepts_machine_of(&with(bob, "a")));
        for stranger in [with(ann, "b"), Principal::of(ann, None), Principal::of(None, None)] {
            assert!(!with(ann, "a").accepts_machine_of(&stranger));
            assert!(!with(None, "a").accepts_machine_of(&stranger));
        }
    }

    #[test]
    fn times_do_not_run_over() {
        assert_eq!(Time(u64::MAX) + Millis::seconds(1), Time(u64::MAX));
        assert_eq!(Time(5).since(Time(7)), Millis(0));
        assert_eq!((Time(5) + Millis(2)).since(Time(5)), Millis(2));
    }
}
