//! Credentials of requests: AUTH_SYS (RFC 5531, appendix A).

use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::xdr::List;
use ivers_vfs::Cred;

/// Most supplementary groups in AUTH_SYS. The others are not sent.
const GROUPS_MAX: usize = 16;

/// Whose credentials a request carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user of this process: for requests without a caller.
    pub own: Cred,
    /// Requests carry their caller's credentials. If not, all carry [`Identity::own`].
    pub as_caller: bool,
}

impl Identity {
    /// All requests carry these credentials.
    pub fn of(own: Cred) -> Self {
        Self { own, as_caller: false }
    }

    /// Returns the credentials for a request of `caller`.
    pub(crate) fn auth(&self, caller: &Cred) -> AuthSys {
        let cred = if caller.system || !self.as_caller { &self.own } else { caller };
        AuthSys {
            stamp: 0,
            machine: b"ivers".to_vec(),
            uid: cred.uid,
            gid: cred.gid,
            gids: List(cred.groups.iter().copied().take(GROUPS_MAX).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_identity_as_caller_sends_the_callers_user() {
        let own = Cred { groups: (0..20).collect(), ..Cred::user(1000, 100) };
        let fixed = Identity::of(own);
        let sent = fixed.auth(&Cred::root());
        assert_eq!((sent.uid, sent.gid, sent.gids.0.len()), (1000, 100, 16));
        let as_caller = Identity { as_caller: true, ..fixed };
        assert_eq!(as_caller.auth(&Cred::user(7, 8)).uid, 7);
        assert_eq!(as_caller.auth(&Cred::system()).uid, 1000, "the stack's own requests");
    }
}
