//! The entries of the tables of a [`StateManager`](super::StateManager). They know no table, only themselves.

pub(super) mod back_slot;
pub(super) mod client;
pub(super) mod copy;
pub(super) mod delegation;
pub(super) mod entry;
pub(super) mod events;
pub(super) mod file;
pub(super) mod grace;
pub(super) mod in_flight;
pub(super) mod lock;
pub(super) mod open;
pub(super) mod owner;
pub(super) mod pending;
pub(super) mod reply_memory;
pub(super) mod session;
pub(super) mod slot;
pub(super) mod v40;
