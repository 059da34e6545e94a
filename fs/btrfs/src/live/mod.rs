//! The state of a filesystem that is open for writing: block groups, delayed references, the transaction.

pub(crate) mod groups;
pub(crate) mod log;
pub(crate) mod refs;
mod session;
mod state;

pub(crate) use session::Session;
pub(crate) use state::{Live, NewChunk, REF_TREES};
