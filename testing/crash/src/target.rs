//! What a format brings to be explored.

use ivers_block::{Device, MemDevice};
use ivers_vfs::FileSystem;
use std::path::Path;
use std::sync::Arc;

/// What a format promises of an operation that nobody synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Names and attributes become durable in the order in which they were changed, whole operations only (a journal). fsync of a
    /// file then takes along all that came before the newest change to its own.
    pub ordered_names: bool,
    /// An inode keeps its number and generation over a mount. Without, files are told by their names; then no order of names is promised either, and a file whose
    /// name is being changed may have none.
    pub lasting_numbers: bool,
    /// Change values are stored, and never vouch for other contents after a crash.
    pub crash_safe_values: bool,
    /// Generations are stored. Where they are not, a number tells files apart only among those of one moment.
    pub generations: bool,
    /// Of what a crash leaves nothing else is promised, and the driver opens it only after the format's own fsck ([`Target::repair`]): names and
    /// contents are whatever that makes of them, and the values vouch for it.
    pub only_values: bool,
}

/// What the format's own fsck made of a crash state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// What a driver has to find its promises kept in.
    Whole,
    /// It damaged what was whole, by a known fault of its own: what is found behind it says nothing about the driver.
    Spoiled,
}

/// A format under exploration.
pub trait Target: Send + Sync {
    /// What reports call it.
    fn name(&self) -> &str;
    /// An empty filesystem. Its free space should hold bytes that no workload writes, so that exposing them shows.
    fn format(&self) -> anyhow::Result<MemDevice>;
    /// Open, recovering if need be. `trusting`: though somebody else wrote to it, who is believed to keep the change
    /// attribute (a format without such an option opens as ever).
    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>>;
    /// What it promises.
    fn promises(&self) -> Promises;
    /// Whether this is a record of a commit that tells by checksums, in itself and in what it is written behind, whether all
    /// of that arrived. Then recovery must do without a transaction that a medium lied about.
    fn seals(&self, _record: &[u8]) -> bool {
        false
    }
    /// The format's own fsck finds nothing to say about an image that was closed in good order.
    fn check(&self, image: &Path) -> anyhow::Result<()>;
    /// What the format's own fsck finds in a crash state that nobody has recovered is no more than the format allows. With a journal, which is to be replayed first,
    /// there is nothing to ask.
    fn raw_check(&self, _image: &Path) -> anyhow::Result<()> {
        Ok(())
    }
    /// Recover by the format's own fsck, as at boot.
    fn repair(&self, image: &Path) -> anyhow::Result<Repaired>;
    /// Recover by mounting with the kernel. `None`: not possible here.
    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>>;
    /// Let the kernel show an image that was closed in good order, mounted for reading. `None`: not possible here.
    fn kernel_shows(
        &self,
        _image: &Path,
        _look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        None
    }
}
