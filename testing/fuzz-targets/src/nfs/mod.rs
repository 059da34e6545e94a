//! NFSv4: messages and requests to the server; the client with a hostile server, including its callbacks.

pub mod callbacks;
pub mod client;
pub mod compound;
pub mod session;
pub mod wire;
