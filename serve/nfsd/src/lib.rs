//! The NFSv4 server: what it keeps to is in `docs/nfsd.md`.
//!
//! | module | what lives there | what it does not know |
//! |---|---|---|
//! | [`exports`] | which filesystems, for whom, under which names; filehandles | operations |
//! | [`net`] | connections, records, TLS, threads, bounds on bytes | RPC |
//! | [`rpc`] | who calls, which program; calls to clients | files |
//! | [`compound`] | one request: its filehandles, operation by operation | files' insides |
//! | [`ops`] | what an operation does to files | tables of clients |
//! | [`stable`] | what survives a restart: secrets, the boot count, clients, write verifiers | sockets |
//! | [`server`] | what puts all that together | |
//! | [`state`] | clients, sessions, opens, locks, delegations, grace | sockets, files, clocks, dice |

#![forbid(unsafe_code)]

pub mod compound;
pub mod exports;
pub mod net;
pub mod ops;
pub mod rpc;
pub mod server;
pub mod stable;
pub mod state;
