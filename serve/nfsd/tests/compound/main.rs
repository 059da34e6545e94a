//! Requests against filesystems in memory and in an ext4 image, without sockets and without clients.

mod acls;
mod attrs;
mod data;
mod durable;
mod executor;
mod handles;
mod hostile;
mod names;
mod state;
