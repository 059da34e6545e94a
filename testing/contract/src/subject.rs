//! What the suite asks of a backend, and what the backend says of itself.

use crate::op::{On, Op};
use std::fmt;
use std::sync::Arc;

/// What a subject may answer instead of doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It cannot do this kind of thing, or this user may not.
    Unsupported,
    /// No room for it.
    NoSpace,
    /// Anything else; right only where the model refuses too.
    Error(String),
}

/// Result of a call of a subject.
pub type Result<T> = std::result::Result<T, Refused>;

/// What a look at a file shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Contents of a regular file.
    pub bytes: Option<Vec<u8>>,
    /// Names in a directory, without `.` and `..`, in order.
    pub names: Option<Vec<String>>,
    /// Permission bits; none for symbolic links.
    pub perm: Option<u32>,
    /// Names of a file.
    pub nlink: u64,
    /// The attributes of [`crate::op::xattr_name`], by number.
    pub xattrs: Vec<(u8, Vec<u8>)>,
}

/// In short: of the contents each run of a byte, (byte, how many).
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, names, perm, nlink, xattrs } = self;
        let run = |run: &[u8]| (run[0], run.len());
        let runs = bytes.as_deref().map(|bytes| bytes.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>());
        write!(f, "bytes {runs:?}, names {names:?}, {perm:?}, {nlink} links, {} attributes", xattrs.len())
    }
}

/// What a backend says that it promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claims {
    /// It serves a value at all. Where it says no, a value is an error.
    pub cookie: bool,
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
    /// A backend that serves a value and promises nothing of it: whatever breaks is counted.
    pub fn nothing() -> Self {
        Self { cookie: true, ..Self::default() }
    }

    /// What a filesystem of ivers claims: its `ChangeSemantics`, and C3 and C6, which all of them promise.
    pub fn of(cookie: bool, semantics: ivers_vfs::ChangeSemantics) -> Self {
        let ivers_vfs::ChangeSemantics { data, metadata, monotonic, persistent, .. } = semantics;
        Self { cookie, data, metadata, monotonic, rests: cookie, persistent, current: cookie }
    }
}

/// Where a subject's promises end by design, or what it cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Setting the times that are there rests, and a refused call moves none. A kernel in between moves them first.
    pub times_are_ours: bool,
    /// The value of an open file without a name rests. Through FUSE it cannot be flushed, so each answer differs.
    pub nameless_rest: bool,
    /// The value rests while nobody holds the file (false: it is stored nowhere, and the file is not held).
    pub unheld_rest: bool,
    /// [`Op::Remount`] works.
    pub remounts: bool,
    /// Mappings work.
    pub maps: bool,
    /// An append by name is one step. Over NFS it is a question and a write.
    pub appends: bool,
}

/// A filesystem with a change attribute: anything behind the VFS, or a mounted directory with a reader for the cookie.
pub trait Subject {
    /// For reports.
    fn name(&self) -> String;
    /// What it promises now; asked again after a remount.
    fn claims(&self) -> Claims;
    /// Where that ends.
    fn limits(&self) -> Limits;
    /// Do it. Answers the directories' values before and after if the operation asks and the subject can tell: of the
    /// parent, or of the old and the new parent. A remount closes all files.
    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>>;
    /// The change attribute; none: there is none.
    fn query(&mut self, on: On<'_>) -> Result<Option<u64>>;
    /// Look at a file.
    fn look(&mut self, on: On<'_>) -> Result<Seen>;
    /// Somebody else who uses the same filesystem at the same time, with open files of its own. It cannot remount, and has to go
    /// before somebody does.
    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        Err(Refused::Unsupported)
    }
    /// A new file in the top directory, to be used by several threads.
    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>>;
}

/// A file that threads share.
pub trait SharedFile: Send + Sync {
    /// Write at the beginning.
    fn write(&self, data: &[u8]) -> Result<()>;
    /// Read from the beginning; how many bytes there were.
    fn read(&self, buf: &mut [u8]) -> Result<usize>;
    /// Change the metadata: keep a number there.
    fn set_note(&self, number: u64) -> Result<()>;
    /// The number kept there.
    fn note(&self) -> Result<u64>;
    /// The change attribute.
    fn query(&self) -> Result<Option<u64>>;
}
