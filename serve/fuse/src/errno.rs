//! The errno of each VFS error.

use fuser::Errno;
use ivers_vfs::{Error, NameError, ServerError};

/// Returns the errno of an error. Failures (unlike refusals) also go to the log, since EIO explains nothing.
pub(crate) fn errno(error: Error) -> Errno {
    match error {
        Error::Corrupt { .. } => {
            log::error!("{error}");
            // EUCLEAN, "structure needs cleaning", as local filesystems answer.
            Errno::from_i32(117)
        }
        Error::Incompatible(_) => {
            log::warn!("{error}");
            Errno::EOPNOTSUPP
        }
        Error::Io(_) | Error::FileData(_) => {
            log::error!("{error}");
            Errno::EIO
        }
        Error::Server(ServerError::Delay) => Errno::EAGAIN,
        Error::Server(ServerError::Timeout) => Errno::ETIMEDOUT,
        Error::Server(ServerError::StateLost | ServerError::Failed) => Errno::EIO,
        Error::Name(name) | Error::DataRefused(name) => name_errno(name),
    }
}

fn name_errno(error: NameError) -> Errno {
    match error {
        NameError::NotFound => Errno::ENOENT,
        NameError::Exists => Errno::EEXIST,
        NameError::NotDirectory => Errno::ENOTDIR,
        NameError::IsDirectory => Errno::EISDIR,
        NameError::NotEmpty => Errno::ENOTEMPTY,
        NameError::Access => Errno::EACCES,
        NameError::NotPermitted => Errno::EPERM,
        NameError::Invalid => Errno::EINVAL,
        NameError::NameTooLong => Errno::ENAMETOOLONG,
        NameError::TooManyLinks => Errno::EMLINK,
        NameError::NoSpace => Errno::ENOSPC,
        NameError::Quota => Errno::from_i32(122),
        NameError::TooLarge => Errno::EFBIG,
        NameError::ReadOnly => Errno::EROFS,
        NameError::Stale | NameError::Changed => Errno::from_i32(116),
        NameError::NoAttribute => Errno::from_i32(61),
        NameError::Range => Errno::ERANGE,
        NameError::AttributeTooLarge => Errno::E2BIG,
        NameError::NotSupported => Errno::EOPNOTSUPP,
        NameError::NoSuchOffset => Errno::ENXIO,
        NameError::CrossDevice => Errno::EXDEV,
        NameError::Loop => Errno::from_i32(40),
        NameError::Busy => Errno::EBUSY,
        NameError::LockLost => Errno::EIO,
    }
}
