//! Errors of logs that are not replayed.

use ivers_vfs::Error;

/// What to do after a log that cannot be replayed here.
const WAY_OUT: &str = "mount and unmount it with Linux";

/// A log that must be replayed elsewhere.
pub(super) fn dirty(place: &str, why: &str) -> Error {
    Error::Incompatible(format!("{place}: the log is dirty, and {why}: {WAY_OUT}"))
}

/// A log that a reader cannot finish.
pub(super) fn unfinished(place: &str, what: &str) -> Error {
    Error::Incompatible(format!("{place}: the log is dirty, and {what}: mount and unmount it writable first"))
}

/// A damaged log.
pub(super) fn damaged(place: &str, what: &str) -> Error {
    Error::corrupt(format!("{what}; run xfs_repair"), format!("{place}, log"))
}
