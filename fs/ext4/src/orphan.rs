//! Inodes without names that somebody still uses.

/// Where orphans are kept.
#[derive(Debug, Default)]
pub(crate) struct Orphans {}
