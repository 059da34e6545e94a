//! Errors of the server as errors of the VFS.

use ivers_nfs4::status::NfsStat;
use ivers_vfs::{Error, NameError, ServerError};

/// Returns what a failed operation means for the VFS. `place` names the server, for errors that only a
/// message explains.
pub fn error(status: NfsStat, place: &str) -> Error {
    let name = match status {
        NfsStat::Perm => NameError::NotPermitted,
        NfsStat::Noent => NameError::NotFound,
        NfsStat::Access | NfsStat::ShareDenied | NfsStat::Openmode => NameError::Access,
        NfsStat::Locked | NfsStat::Denied | NfsStat::FileOpen => NameError::Busy,
        NfsStat::Exist => NameError::Exists,
        NfsStat::Xdev => NameError::CrossDevice,
        NfsStat::Notdir => NameError::NotDirectory,
        NfsStat::Isdir => NameError::IsDirectory,
        NfsStat::Inval | NfsStat::Badname | NfsStat::Badchar | NfsStat::WrongType | NfsStat::Badowner => {
            NameError::Invalid
        }
        NfsStat::Fbig => NameError::TooLarge,
        NfsStat::Nospc => NameError::NoSpace,
        NfsStat::Rofs => NameError::ReadOnly,
        NfsStat::Mlink => NameError::TooManyLinks,
        NfsStat::Nametoolong => NameError::NameTooLong,
        NfsStat::Notempty => NameError::NotEmpty,
        NfsStat::Dquot => NameError::Quota,
        NfsStat::Stale | NfsStat::Badhandle | NfsStat::Fhexpired => NameError::Stale,
        NfsStat::Notsupp | NfsStat::Attrnotsupp | NfsStat::UnionNotsupp => NameError::NotSupported,
        NfsStat::Nxio => NameError::NoSuchOffset,
        NfsStat::Symlink => NameError::Loop,
        NfsStat::Noxattr => NameError::NoAttribute,
        NfsStat::Xattr2big => NameError::AttributeTooLarge,
        NfsStat::Moved => {
            return Error::Incompatible(format!("{place}: a referral to another server; name that server"));
        }
        NfsStat::Wrongsec => {
            let why = "the server requires TLS, a client certificate or Kerberos for this file";
            return Error::Incompatible(format!("{place}: {why}"));
        }
        NfsStat::Delay | NfsStat::Grace => return ServerError::Delay.into(),
        NfsStat::Expired
        | NfsStat::AdminRevoked
        | NfsStat::BadStateid
        | NfsStat::OldStateid
        | NfsStat::StaleStateid
        | NfsStat::DelegRevoked => return ServerError::StateLost.into(),
        other => {
            log::warn!("{place}: {}", other.name());
            return ServerError::Failed.into();
        }
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_need_an_explanation_have_one() {
        let shown = |status| error(status, "nfs://h").to_string();
        assert!(shown(NfsStat::Moved).contains("nfs://h") && shown(NfsStat::Moved).contains("referral"));
        assert!(shown(NfsStat::Wrongsec).contains("TLS"));
        assert!(matches!(error(NfsStat::Stale, ""), Error::Name(NameError::Stale)));
        assert!(matches!(error(NfsStat::Io, ""), Error::Server(ServerError::Failed)));
    }
}
