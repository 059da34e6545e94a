//! What can go wrong, in the filesystem's own words. The number a front end answers with (an errno, an nfsstat4) is
//! the front end's affair.

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
    /// The format asks for something that this driver does not do.
    #[error("not supported: {0}")]
    Incompatible(String),
    /// The device below failed.
    #[error("I/O error: {0}")]
    Io(String),
    /// A namespace, permission or resource error with a meaning of its own.
    #[error("{0}")]
    Name(#[from] NameError),
}

/// Errors that are answers: nothing is broken, the call cannot be done. Each names its POSIX twin.
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
    /// ERANGE: a value is larger than the room that the caller has.
    #[error("result too large")]
    Range,
    /// E2BIG / ENOSPC of an attribute that no format room can hold.
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
    /// ELOOP: a symbolic link where none may be.
    #[error("too many symbolic links")]
    Loop,
    /// EBUSY.
    #[error("busy")]
    Busy,
    /// A name stands for something else than its caller found under it: only calls that are told what is meant say so.
    #[error("the name means something else by now")]
    Changed,
}

impl Error {
    /// A corruption at a place.
    pub fn corrupt(what: impl Into<String>, place: impl Into<String>) -> Self {
        Error::Corrupt { what: what.into(), place: place.into() }
    }
}

impl From<ivers_block::BlockError> for Error {
    fn from(error: ivers_block::BlockError) -> Self {
        Error::Io(error.to_string())
    }
}
