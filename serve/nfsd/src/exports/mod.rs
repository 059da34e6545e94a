//! Which filesystems, for whom, under which names; and what their handles look like. It knows no operations.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | what the server is told |
//! | [`policy`] | who may use an export, and as whom |
//! | [`table`] | the exports, and the directories above them |
//! | [`handle`] | filehandles |
//!
//! By default nobody gets in but this machine, nobody is root, and nobody learns of an export that is not for his address.

pub mod config;
pub mod handle;
pub mod policy;
pub mod table;
