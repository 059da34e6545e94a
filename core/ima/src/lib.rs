//! Integrity measurement: what a file contained when it was used, in the forms of the kernel's Integrity
//! Measurement Architecture (IMA).
//!
//! - [`list`]: the measurement list, and the aggregates that authenticate it.
//! - [`policy`]: which uses of which files are measured and appraised.
//! - [`signature`], [`keys`]: the digest or signature in `security.ima`, and its verification.
//! - [`hash`]: the digest of a file, with the change attribute that it is valid for.
//! - [`store`]: digests by file and change attribute, so that only changed files are read again.
//! - [`hooks`]: measurement and appraisal at the opens and closes of a mounted filesystem.
//!
//! This crate opens no file of the host. The list of a mount goes to an implementation of [`hooks::Sink`].

#![forbid(unsafe_code)]

pub mod digest;
pub mod file_id;
pub mod hash;
pub mod hooks;
pub mod keys;
pub mod list;
pub mod policy;
pub mod reader;
pub mod signature;
pub mod store;
