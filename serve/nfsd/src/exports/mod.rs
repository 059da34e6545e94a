//! Exports: which filesystems are served, under which names, to which clients, and their filehandles. This
//! module knows no operations.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the configuration of an export |
//! | [`policy`] | access rules of an export, and the identity of a caller |
//! | [`table`] | the exports, and the pseudo-filesystem above them |
//! | [`handle`] | filehandles |
//!
//! By default only the local machine has access, root is squashed, and an export is invisible to addresses
//! that have no access to it.

pub mod config;
pub mod handle;
pub mod policy;
pub mod table;
