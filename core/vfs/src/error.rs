//! Errors of drivers and of the VFS. Front ends translate them to errno or nfsstat4.

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
    Io(String),
    /// The device could not read or write bytes of a file. The structures of the format are sound.
    #[error("I/O error: {0}")]
    FileData(String),
    /// The server of a network filesystem did not do the request. The request may be repeated.
    #[error("{0}")]
    Server(#[from] ServerError),
    /// A namespace, permission or resource error with a meaning of its own.
    #[error("{0}")]
    Name(#[from] NameError),
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
}

impl Error {
    /// A device's error on bytes of a file.
    pub fn file_data(error: ivers_block::BlockError) -> Self {
        Error::FileData(error.to_string())
    }
}

impl From<ivers_block::BlockError> for Error {
    fn from(error: ivers_block::BlockError) -> Self {
        Error::Io(error.to_string())
    }
}
