//! Tar archives: the pax format of POSIX.1-2001, with the extensions of GNU tar, star and libarchive.
//!
//! From low to high; each module uses only modules above it in this table:
//!
//! | module | contents |
//! |---|---|
//! | [`member`] | a file as an archive describes it; errors with member and byte offset |
//! | [`acl_text`] | access control lists as text |
//! | [`pax`] | the records of a pax header |
//! | [`sparse`] | maps of sparse files |
//! | [`reader`] | reading an archive |
//! | [`writer`] | writing an archive |
//!
//! The 512-byte headers are those of the crate `tar`. The rest is here, because that crate splits pax records
//! at newlines, which values may contain; has no sparse files of pax headers; and puts no bound on the memory
//! that a hostile archive makes it use.

pub mod acl_text;
pub mod member;
pub mod pax;
pub mod reader;
pub mod sparse;
pub mod writer;

#[cfg(test)]
mod tests;
