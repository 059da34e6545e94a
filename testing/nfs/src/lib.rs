//! Test support for NFSv4: a client, and the server without sockets.
//!
//! - [`client`] talks to any server, ours or another, over TCP.
//! - `harness` runs the server's COMPOUND procedure in process; the test decides what its clients may do.
//! - `malformed` generates requests with unusual arguments, and checks their replies.
//!
//! The last two need the feature `server`. The program `ivers-nfs-speed` compares the speed of servers.

#![forbid(unsafe_code)]

pub mod client;
#[cfg(feature = "server")]
pub mod harness;
#[cfg(feature = "server")]
pub mod malformed;
