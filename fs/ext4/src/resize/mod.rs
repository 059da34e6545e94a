//! Changing the size of a filesystem.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the sizes afterwards, and what is refused |
//! | `resize_inode` | the blocks that are reserved for descriptors |
//! | `session` | opening and closing; copies of superblock and descriptors |
//! | `grow` | making it larger, and the order of writes |
//! | `online` | making it larger while it is mounted |
//! | `fits` | the sizes that it can shrink to |
//! | `inodes`, `blocks`, `journal` | moving what lies beyond the new end |
//! | `shrink` | making it smaller |

mod blocks;
mod fits;
mod grow;
mod inodes;
mod journal;
mod online;
mod plan;
mod resize_inode;
mod session;
mod shrink;

pub use grow::{filesystem_bytes, grow, plan_grow};
pub use ivers_vfs::ResizeReport;
pub use shrink::{ShrinkPlan, Smaller, plan_shrink, shrink};
