//! The NFSv4 server. `docs/nfsd.md` lists the requirements that it meets.
//!
//! The table lists the modules from the lowest layer to the highest. A module uses only lower layers, and so
//! do the files inside a module: `cargo test -p xtask` checks that.
//!
//! | module | contains | does not know |
//! |---|---|---|
//! | [`net`] | connections, records, TLS, threads, bounds on bytes, batches of replies | RPC |
//! | [`rpc`] | credentials, dispatch to programs, calls to clients | files |
//! | [`exports`] | exported filesystems, their names, who may use them; filehandles | operations |
//! | [`state`] | clients, sessions, opens, locks, delegations, the grace period | sockets, files, clocks |
//! | [`stable`] | stable storage: secrets, the boot count, clients, write verifiers | sockets |
//! | [`compound`] | the context of one COMPOUND: current filehandle, caller, caches | operations |
//! | [`ops`] | operations on files | the tables of clients |
//! | [`executor`] | the loop over the operations of a COMPOUND | sockets, threads |
//! | [`server`] | operations on clients' state, callbacks, threads: the complete server | |
//!
//! The layers below [`server`] reach clients' state through two traits that [`server`] implements:
//! [`compound::Clients`] and [`executor::StateOps`].

#![forbid(unsafe_code)]

pub mod compound;
pub mod executor;
pub mod exports;
pub mod net;
pub mod ops;
pub mod rpc;
pub mod server;
pub mod stable;
pub mod state;
