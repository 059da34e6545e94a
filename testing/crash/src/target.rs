//! The interface that a format implements to be explored.

use ivers_block::{Device, MemDevice};
use ivers_vfs::FileSystem;
use std::path::Path;
use std::sync::Arc;

/// The promises of a format about operations that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Names and attributes become durable in the order of their changes, in whole operations (a journal). An
    /// fsync of a file then includes everything before the newest change of that file.
    pub ordered_names: bool,
    /// An inode keeps its number and generation across mounts. Otherwise files are identified by name; then
    /// names have no promised order, and a file whose name is being changed can have none.
    pub lasting_numbers: bool,
    /// Change values are stored, and an old value never stands for other contents after a crash.
    pub crash_safe_values: bool,
    /// Generations are stored. Otherwise an inode number identifies a file only at one moment.
    pub generations: bool,
    /// Only the values are promised after a crash, and the driver opens the image only after the format's own
    /// fsck ([`Target::repair`]). That decides names and contents; the values must stand for the result.
    pub only_values: bool,
}

/// The result of the format's own fsck on a crash state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// Recovered: all promises of the driver must hold.
    Whole,
    /// fsck damaged an intact state by a known fault of its own: the result says nothing about the driver.
    Spoiled,
}

/// A format under exploration.
pub trait Target: Send + Sync {
    /// Returns the name in reports.
    fn name(&self) -> &str;
    /// Makes an empty filesystem. Its free space should hold bytes that no workload writes, so that a leak
    /// shows.
    fn format(&self) -> anyhow::Result<MemDevice>;
    /// Opens a device and recovers it if necessary. `trusting`: trusts that another writer kept the change
    /// attribute (ignored by formats without this option).
    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>>;
    /// Returns the promises of the format.
    fn promises(&self) -> Promises;
    /// Returns whether an fsync may make one file durable without earlier changes of others. With
    /// `ordered_names`, the state after a crash is then that of a commit, but some files are as a later fsync
    /// stored them.
    fn syncs_alone(&self) -> bool {
        false
    }
    /// Returns whether this is a commit record whose checksums cover itself and the writes before it.
    /// Recovery must then drop a transaction whose writes are incomplete.
    fn seals(&self, _record: &[u8]) -> bool {
        false
    }
    /// Checks that the format's own fsck finds nothing in an image that was closed cleanly.
    fn check(&self, image: &Path) -> anyhow::Result<()>;
    /// Checks that the format's own fsck finds only allowed defects in a crash state before recovery. Formats
    /// with a journal skip this, because the journal must be replayed first.
    fn raw_check(&self, _image: &Path) -> anyhow::Result<()> {
        Ok(())
    }
    /// Returns whether [`Target::repair`] works here. Only [`crate::explore_alone`] asks.
    fn repairs(&self) -> bool {
        false
    }
    /// Recovers with the format's own fsck, as at boot.
    fn repair(&self, image: &Path) -> anyhow::Result<Repaired>;
    /// Recovers by mounting with the kernel. `None`: not possible here.
    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>>;
    /// Mounts an image that was closed cleanly with the kernel, read-only, and calls `look`. `None`: not
    /// possible here.
    fn kernel_shows(
        &self,
        _image: &Path,
        _look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        None
    }
}
