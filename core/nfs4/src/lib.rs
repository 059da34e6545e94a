//! The wire format of NFSv4.0, 4.1 and 4.2: types with the RFCs' names, and their encoding. Used by servers
//! and clients.
//!
//! | module | contents | source |
//! |---|---|---|
//! | [`xdr`] | integers, byte strings, lists and unions | RFC 4506 |
//! | [`shared`] | long data that is not copied | - |
//! | [`record`] | record marking | RFC 5531 section 11 |
//! | [`rpc`] | RPC calls and replies | RFC 5531 |
//! | [`status`] | `nfsstat4` | RFC 7530, 8881, 7862, 8276 |
//! | [`types`] | types that several operations share | the same |
//! | [`attr`] | `fattr4` | the same |
//! | [`owners`] | owners as text | RFC 8881 section 5.9 |
//! | [`ops`] | operations: arguments and results | the same |
//! | [`compound`] | COMPOUND | the same |
//! | [`callback`] | CB_COMPOUND | the same |
//!
//! All input is hostile. A count that the message cannot hold is refused before memory is allocated for it.
//! An unknown value of an enumeration is an error, and so are trailing bytes. This crate does not know what
//! an operation does.

pub mod attr;
pub mod callback;
pub mod compound;
pub mod ops;
pub mod owners;
pub mod record;
pub mod rpc;
pub mod shared;
pub mod status;
pub mod types;
pub mod xdr;

/// Program number of NFS, the same for all versions (RFC 7531).
pub const NFS_PROGRAM: u32 = 100_003;
/// Version of the program, with minor versions 0, 1 and 2.
pub const NFS_V4: u32 = 4;
/// TCP port of NFS (RFC 7530 section 3.1).
pub const NFS_PORT: u16 = 2049;
/// Procedure 0: no operation.
pub const PROC_NULL: u32 = 0;
/// Procedure 1: a list of operations.
pub const PROC_COMPOUND: u32 = 1;
