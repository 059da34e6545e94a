//! Blocks: free space and its promises.

use crate::ctx::{Ext4, Handle};
use crate::groups::Groups;
use ivers_vfs::{Inode, NameError, Result};
use std::sync::Arc;

/// Where an inode's next blocks go.
#[derive(Debug, Default)]
pub struct InodeAlloc {
    /// One behind its last allocation, or 0.
    pub(crate) next: u64,
}

/// Blocks that are taken in memory and not yet on the device. Dropping gives them back.
#[derive(Debug)]
pub struct Reserved {
    /// First block.
    pub start: u64,
    /// Blocks.
    pub len: u32,
    pub(crate) groups: Arc<Groups>,
}
