//! Reservation windows of growing files: free blocks that only their file gets while there are others.
//!
//! Nothing of a window is on the device, and its blocks count as free. It is a hint: a file that allocates
//! the blocks of another file's window does no harm.

use super::extent::FreeExtent;
use ivers_vfs::Window;

/// How a file grows by an allocation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    /// The goal is the block after the last one of the file.
    pub(crate) continues: bool,
    /// Free blocks after the run that other files should leave.
    pub(crate) ahead: u32,
}

/// The window of a file, in one group.
#[derive(Debug)]
pub(crate) struct GroupWindow {
    pub(super) ag: u32,
    pub(super) extent: FreeExtent,
}

impl Window for GroupWindow {
    fn blocks(&self) -> u64 {
        self.extent.len.into()
    }
}
