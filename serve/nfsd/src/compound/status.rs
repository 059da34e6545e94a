//! Errors of the VFS as NFS statuses.

use ivers_nfs4::status::{NfsStat, Res};
use ivers_vfs::{Error, NameError, ServerError};

/// The status for an error.
pub fn status(error: &Error) -> NfsStat {
    let name = match error {
        Error::Corrupt { .. } | Error::Io(_) | Error::FileData(_) => {
            log::error!("{error}");
            return NfsStat::Io;
        }
        Error::Server(ServerError::StateLost | ServerError::Failed) => return NfsStat::Io,
        Error::Server(_) => return NfsStat::Delay,
        Error::Incompatible(_) => return NfsStat::Notsupp,
        Error::Name(name) | Error::DataRefused(name) => name,
    };
    match name {
        NameError::NotFound => NfsStat::Noent,
        NameError::Exists => NfsStat::Exist,
        NameError::NotDirectory => NfsStat::Notdir,
        NameError::IsDirectory => NfsStat::Isdir,
        NameError::NotEmpty => NfsStat::Notempty,
        NameError::Access => NfsStat::Access,
        NameError::NotPermitted => NfsStat::Perm,
        NameError::Invalid | NameError::Busy => NfsStat::Inval,
        NameError::NameTooLong => NfsStat::Nametoolong,
        NameError::TooManyLinks => NfsStat::Mlink,
        NameError::NoSpace => NfsStat::Nospc,
        NameError::Quota => NfsStat::Dquot,
        NameError::TooLarge => NfsStat::Fbig,
        NameError::ReadOnly => NfsStat::Rofs,
        NameError::Stale => NfsStat::Stale,
        NameError::LockLost => NfsStat::Io,
        NameError::NoAttribute => NfsStat::Noxattr,
        NameError::Range => NfsStat::Toosmall,
        NameError::AttributeTooLarge => NfsStat::Xattr2big,
        NameError::NotSupported => NfsStat::Notsupp,
        NameError::NoSuchOffset => NfsStat::Nxio,
        NameError::CrossDevice => NfsStat::Xdev,
        NameError::Loop => NfsStat::Symlink,
        // The operation was retried and failed again: the client retries later.
        NameError::Changed => NfsStat::Delay,
    }
}

/// Converts results of the VFS.
pub trait OrStatus<T> {
    /// Replaces the error by its status.
    fn nfs(self) -> Res<T>;
}

impl<T> OrStatus<T> for ivers_vfs::Result<T> {
    fn nfs(self) -> Res<T> {
        self.map_err(|error| status(&error))
    }
}
