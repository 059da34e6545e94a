//! The NFSv4 server: what it keeps to is in `docs/nfsd.md`.
//!
//! | module | what lives there | what it does not know |
//! |---|---|---|
//! | [`net`] | connections, records, TLS, threads, bounds on bytes | RPC |
//! | [`rpc`] | who calls, which program; calls to clients | files |
//! | [`state`] | clients, sessions, opens, locks, delegations, grace | sockets, files, clocks, dice |

#![forbid(unsafe_code)]

pub mod net;
pub mod rpc;
pub mod state;
