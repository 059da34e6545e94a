//! The interface of a backend to the suite, and its claims.

use crate::op::{On, Op};
use std::fmt;
use std::sync::Arc;

/// The reason why a subject did not do an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Not supported, or not permitted for this user.
    Unsupported,
    /// No space.
    NoSpace,
    /// Any other error; correct only if the model predicts a failure.
    Error(String),
}

/// The result of a call of a subject.
pub type Result<T> = std::result::Result<T, Refused>;

/// The state of a file as an observer reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// The contents of a regular file.
    pub bytes: Option<Vec<u8>>,
    /// The names in a directory, sorted, without `.` and `..`.
    pub names: Option<Vec<String>>,
    /// Permission bits; `None` for symbolic links.
    pub perm: Option<u32>,
    /// The link count.
    pub nlink: u64,
    /// The attributes of [`crate::op::xattr_name`], by number.
    pub xattrs: Vec<(u8, Vec<u8>)>,
}

/// A short form: contents as runs of equal bytes, (byte, count).
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, names, perm, nlink, xattrs } = self;
        let run = |run: &[u8]| (run[0], run.len());
        let runs = bytes.as_deref().map(|bytes| bytes.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>());
        write!(f, "bytes {runs:?}, names {names:?}, {perm:?}, {nlink} links, {} attributes", xattrs.len())
    }
}

/// The promises that a backend claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claims {
    /// There is a value. Otherwise a value is an error.
    pub change_attribute: bool,
    /// C1 for data.
    pub data: bool,
    /// C1 for metadata.
    pub metadata: bool,
    /// C2.
    pub monotonic: bool,
    /// C3 within a mount.
    pub rests: bool,
    /// C1 to C3 across a clean remount.
    pub persistent: bool,
    /// C6.
    pub current: bool,
}

impl Claims {
    /// Claims nothing: the backend serves a value, and broken promises are counted.
    pub fn nothing() -> Self {
        Self { change_attribute: true, ..Self::default() }
    }

    /// Returns the claims of an ivers filesystem: its `ChangeSemantics`, and C3 and C6, which all of them
    /// promise.
    pub fn of(change_attribute: bool, semantics: ivers_vfs::ChangeSemantics) -> Self {
        let ivers_vfs::ChangeSemantics { data, metadata, monotonic, persistent, .. } = semantics;
        Self {
            change_attribute,
            data,
            metadata,
            monotonic,
            rests: change_attribute,
            persistent,
            current: change_attribute,
        }
    }
}

/// Where a subject's promises end by design, and operations that it does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Setting the current times is no change, and a refused call changes no times. False with a kernel in
    /// between, which changes them first.
    pub times_are_ours: bool,
    /// The value of an open file rests even if it has no name, or none that was used since the mount. Through
    /// FUSE it cannot be flushed, so each query returns another value.
    pub nameless_rest: bool,
    /// The value rests while the file is not held. False if it is stored nowhere.
    pub unheld_rest: bool,
    /// [`Op::Remount`] works.
    pub remounts: bool,
    /// Mappings work.
    pub maps: bool,
    /// An append by name is atomic. Over NFS it is a GETATTR and a WRITE.
    pub appends: bool,
    /// Several users can write different bytes of one page at the same time. Clients of a server write pages,
    /// so they may lose some of these bytes.
    pub shares_pages: bool,
    /// An open file that loses its last name keeps a hidden one. Its last close removes that name, which
    /// changes the directory.
    pub hides_names: bool,
}

/// A filesystem with a change attribute: a mounted VFS, or a directory with a way to read the attribute.
pub trait Subject {
    /// Returns the name for reports.
    fn name(&self) -> String;
    /// Returns the claims; called again after a remount.
    fn claims(&self) -> Claims;
    /// Returns the limits of the claims.
    fn limits(&self) -> Limits;
    /// Performs an operation. Returns change info if the operation requests it and the subject supports it:
    /// of the parent, or of the old and the new parent. A remount closes all files.
    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>>;
    /// Returns the change attribute; `None` if there is none.
    fn query(&mut self, on: On<'_>) -> Result<Option<u64>>;
    /// Reads the state of a file.
    fn look(&mut self, on: On<'_>) -> Result<Seen>;
    /// Returns another concurrent user of the same filesystem, with separate open files. It cannot remount
    /// and must be dropped before a remount.
    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        Err(Refused::Unsupported)
    }
    /// Returns how often the subject has raised a value because it could not tell in time whether something
    /// had changed.
    fn forced_bumps(&self) -> u64 {
        0
    }
    /// Creates a file in the top directory for several threads.
    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>>;
}

/// A file that threads share.
pub trait SharedFile: Send + Sync {
    /// Writes at the beginning.
    fn write(&self, data: &[u8]) -> Result<()>;
    /// Reads from the beginning; returns the number of bytes.
    fn read(&self, buf: &mut [u8]) -> Result<usize>;
    /// Changes the metadata by storing a number in it.
    fn set_note(&self, number: u64) -> Result<()>;
    /// Returns the stored number.
    fn note(&self) -> Result<u64>;
    /// Returns the change attribute.
    fn query(&self) -> Result<Option<u64>>;
}
