//! Errors of drivers and of the VFS. Front ends translate them to errno or nfsstat4.

use std::sync::Arc;
use thiserror::Error;

/// The result of every VFS and driver call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a driver or of the VFS.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// A structure on the device contradicts itself, its checksum or the superblock.
    #[error("corrupt: {what} ({place})")]
    Corrupt {
        /// What is wrong.
        what: String,
        /// Where: image, inode, block.
        place: String,
    },
    /// The format needs something that this driver does not support.
    #[error("not supported: {0}")]
    Incompatible(String),
    /// The device failed on a structure of the format.
    #[error("I/O error: {0}")]
    Io(#[source] IoError),
    /// The device could not read or write bytes of a file. The structures of the format are sound.
    #[error("I/O error: {0}")]
    FileData(#[source] IoError),
    /// Cached bytes of a file cannot be written, and another try would not help: no quota, no space, no
    /// permission. Only write-back returns it.
    #[error("written data is dropped: {0}")]
    DataRefused(NameError),
    /// The server of a network filesystem did not do the request. The request may be repeated.
    #[error("{0}")]
    Server(#[from] ServerError),
    /// A namespace, permission or resource error with a meaning of its own.
    #[error("{0}")]
    Name(#[from] NameError),
}

/// What failed, with the error that caused it if there is one.
#[derive(Debug, Clone)]
pub struct IoError {
    what: String,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.what.fmt(f)
    }
}

impl std::error::Error for IoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| &**cause as _)
    }
}

impl From<String> for IoError {
    fn from(what: String) -> Self {
        Self { what, cause: None }
    }
}

impl From<&str> for IoError {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

/// Why a server did not do a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ServerError {
    /// It asks to repeat the request later (NFS4ERR_DELAY). EAGAIN.
    #[error("the server asks to try again later")]
    Delay,
    /// It did not answer in time. ETIMEDOUT.
    #[error("the server does not answer")]
    Timeout,
    /// It lost the client's opens and locks, and they could not be reclaimed. EIO.
    #[error("the server has lost the state of this client")]
    StateLost,
    /// It failed, for example on its own device. EIO.
    #[error("the server reports an I/O error")]
    Failed,
}

/// The request cannot be done; nothing is broken. Each names its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NameError {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("file exists")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// EACCES.
    #[error("permission denied")]
    Access,
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// EINVAL.
    #[error("invalid argument")]
    Invalid,
    /// ENAMETOOLONG.
    #[error("file name too long")]
    NameTooLong,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// ENOSPC.
    #[error("no space left in the filesystem")]
    NoSpace,
    /// EDQUOT.
    #[error("quota exceeded")]
    Quota,
    /// EFBIG.
    #[error("file too large")]
    TooLarge,
    /// EROFS.
    #[error("read-only filesystem")]
    ReadOnly,
    /// ESTALE: the inode number or its generation no longer names a file.
    #[error("stale file handle")]
    Stale,
    /// ENODATA: no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE: the value does not fit in the caller's buffer.
    #[error("result too large")]
    Range,
    /// E2BIG or ENOSPC: the attribute does not fit in the format.
    #[error("attribute too large")]
    AttributeTooLarge,
    /// EOPNOTSUPP.
    #[error("operation not supported")]
    NotSupported,
    /// ENXIO: SEEK_DATA or SEEK_HOLE beyond the end.
    #[error("no such offset")]
    NoSuchOffset,
    /// EXDEV.
    #[error("crosses filesystems")]
    CrossDevice,
    /// ELOOP: a symbolic link where none is allowed, or too many.
    #[error("too many symbolic links")]
    Loop,
    /// EBUSY.
    #[error("busy")]
    Busy,
    /// EIO: a byte-range lock of the file was lost, and others may have changed it meanwhile.
    #[error("a lock of the file was lost")]
    LockLost,
    /// The name refers to another inode than the caller found under it. Only calls that name the expected
    /// inode return this.
    #[error("name changed concurrently")]
    Changed,
}

impl Error {
    /// Corruption at a place.
    pub fn corrupt(what: impl Into<String>, place: impl Into<String>) -> Self {
        Error::Corrupt { what: what.into(), place: place.into() }
    }

    /// A failure on a structure of the format.
    pub fn io(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Io(IoError::caused_by(cause))
    }

    /// A device's error on bytes of a file.
    pub fn file_data(cause: ivers_block::BlockError) -> Self {
        Error::FileData(IoError::caused_by(cause))
    }
}

impl IoError {
    fn caused_by(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { what: cause.to_string(), cause: Some(Arc::new(cause)) }
    }
}

impl From<ivers_block::BlockError> for Error {
    fn from(cause: ivers_block::BlockError) -> Self {
        Error::io(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_io_error_keeps_its_cause() {
        let cause = std::io::Error::from_raw_os_error(5);
        let error = Error::io(cause);
        let failed = error.source().and_then(|failed| failed.source()).expect("the cause");
        let cause = failed.downcast_ref::<std::io::Error>().expect("as it was given");
        assert_eq!(cause.raw_os_error(), Some(5));
        assert!(Error::Io("no cause".into()).source().is_some_and(|failed| failed.source().is_none()));
    }
}
