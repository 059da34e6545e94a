//! Basic types: time, random numbers, callers and files.

use std::net::IpAddr;
use std::ops::Add;
use std::sync::Arc;

use ivers_nfs4::ops::v40::LockDenied;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;
use ivers_nfs4::xdr::Encoder;

/// A point in time: milliseconds since the server started, by a monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Converts seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Returns a multiple of the duration.
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
    /// Returns the time since `earlier`, or 0 if `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// A source of random numbers.
pub trait Rng: Send {
    /// Returns the next random number.
    fn next_u64(&mut self) -> u64;
}

/// The number of a connection. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// The file of a filehandle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The identity of the export.
    pub export: u32,
    /// The inode number.
    pub inode: u64,
    /// The inode's generation.
    pub generation: u32,
}

/// The network that a client's address belongs to, as one machine can easily use many addresses. Limits for
/// clients are shared among hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientHost(pub IpAddr);

/// The sender of a request, according to RPC and TLS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<[u8]>);

impl Principal {
    /// Creates a principal from the RPC user (`None` for AUTH_NONE) and the certificate of the TLS client, if
    /// any.
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

    /// Creates a principal from the stored form.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the part that identifies the machine. It is empty without a certificate.
    fn machine(&self) -> &[u8] {
        let user = if self.0.starts_with(&[0; 4]) { 4 } else { 8 };
        self.0.get(user..).unwrap_or_default()
    }

    /// Returns whether `other` may act for the machine of this principal. If this principal has a
    /// certificate, `other` must have the same one.
    pub(super) fn accepts_machine_of(&self, other: &Self) -> bool {
        self.machine().is_empty() || self.machine() == other.machine()
    }

    /// Returns the stored form.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A hash of a request. It distinguishes a retry from another request with the same sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u64);

/// An action that the server has to perform and that is not done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The client that requests an operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// NFSv4.0: the stateid determines the client.
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

/// The reason why an operation cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The operation fails.
    Fail(NfsStat),
    /// Nothing has happened yet. Repeat the call when the ticket is
    /// [`done`](super::StateManager::effect_done) or comes as [`Effect::Wake`](super::Effect::Wake). If that
    /// takes too long, reply NFS4ERR_DELAY.
    Wait(Ticket),
    /// The server is asking the holder of a write delegation. The result of
    /// [`getattr_reply`](super::StateManager::getattr_reply) is the result of the request.
    AskHolder(Ticket),
    /// A lock of another owner conflicts.
    Denied(Box<LockDenied>),
    /// NFSv4.0: a retry of the owner's last request, with its reply.
    Replay(Arc<CachedReply>),
}

/// The reply to an NFSv4.0 operation, kept for retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedReply {
    /// The encoded result.
    pub bytes: Vec<u8>,
    /// The current filehandle after the operation.
    pub file: Option<FileId>,
}

impl From<NfsStat> for Stop {
    fn from(status: NfsStat) -> Self {
        Self::Fail(status)
    }
}

/// The result of a step.
pub type Step<T> = Result<T, Stop>;

/// Returns an error with this status.
pub(super) fn fail<T>(status: NfsStat) -> Step<T> {
    Err(Stop::Fail(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stable storage contains these bytes, so they must not change.
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
    fn time_arithmetic_saturates() {
        assert_eq!(Time(u64::MAX) + Millis::seconds(1), Time(u64::MAX));
        assert_eq!(Time(5).since(Time(7)), Millis(0));
        assert_eq!((Time(5) + Millis(2)).since(Time(5)), Millis(2));
    }
}
