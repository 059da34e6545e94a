//! The NFSv4 server: what comes over the wire, and what is done with it.

pub mod compound;
pub mod session;
pub mod wire;
