//! The lower layers over real sockets.

mod common;
mod hostile;
mod rpc;
mod tls;
