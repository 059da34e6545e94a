//! NFSv4: messages and requests to the server, and the client on a server that lies and calls.

pub mod callbacks;
pub mod client;
pub mod compound;
pub mod session;
pub mod wire;
