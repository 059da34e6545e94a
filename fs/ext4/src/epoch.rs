//! The epoch record on the root directory.

/// The epoch of this mount.
#[derive(Debug, Default)]
pub(crate) struct Epoch {}
