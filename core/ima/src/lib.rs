//! Integrity measurement: what a file contained when it was used, in the forms of the kernel's Integrity
//! Measurement Architecture (IMA).
//!
//! - [`list`]: the measurement list and the aggregates that vouch for it.
//! - [`policy`]: which uses of which files are measured and appraised.
//! - [`signature`], [`keys`]: what `security.ima` says of a file, and whether it is so.
//! - [`store`]: digests under the change attribute that they were taken at, so that only what changed is read
//!   again.
//! - [`hooks`]: all of that at the opens and closes of a mounted filesystem.
//!
//! Nothing in here opens a file of the system: what is to be kept goes to those who implement
//! [`hooks::Sink`].

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
