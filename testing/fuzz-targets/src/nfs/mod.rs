//! The NFSv4 server: messages and requests.

pub mod compound;
pub mod session;
pub mod wire;
