//! NFSv4.0, 4.1 and 4.2 on the wire: types by the RFCs' names, and how they are encoded. For a server and for a client.
//!
//! | module | what it holds | source |
//! |---|---|---|
//! | [`xdr`] | the encoding of numbers, bytes, lists and choices | RFC 4506 |
//! | [`record`] | messages in a stream | RFC 5531 section 11 |
//! | [`rpc`] | calls and replies | RFC 5531 |
//! | [`status`] | `nfsstat4` | RFC 7530, 8881, 7862, 8276 |
//! | [`types`] | what operations have in common | the same |
//! | [`attr`] | `fattr4` | the same |
//! | [`ops`] | the operations: arguments and results | the same |
//! | [`compound`] | requests made of operations | the same |
//! | [`callback`] | what a server asks of a client | the same |
//!
//! Every byte that comes in is hostile: a count that a message cannot hold is refused before anything is allocated for it, an
//! unknown value of an enumeration is an error, and so are bytes left over. Nothing here knows what an operation *does*.

pub mod attr;
pub mod callback;
pub mod compound;
pub mod ops;
pub mod record;
pub mod rpc;
pub mod status;
pub mod types;
pub mod xdr;

/// Program number of NFS, the same for all versions (RFC 7531).
pub const NFS_PROGRAM: u32 = 100_003;
/// The version that has minor versions 0, 1 and 2.
pub const NFS_V4: u32 = 4;
/// The TCP port of NFS.
pub const NFS_PORT: u16 = 2049;
/// Procedure 0: does nothing.
pub const PROC_NULL: u32 = 0;
/// Procedure 1: a list of operations.
pub const PROC_COMPOUND: u32 = 1;
