//! The pages of one file.

/// The page cache of one inode.
#[derive(Debug, Default)]
pub(crate) struct Pages;
