//! Growing a filesystem while it is in use.

use crate::driver::{GrowOps, ResizeReport};
use crate::error::{Error, Result};
use crate::vfs::Vfs;

impl Vfs {
    fn grow_ops(&self) -> Result<&dyn GrowOps> {
        self.fs.growing().ok_or_else(|| {
            Error::Incompatible(format!("{} cannot grow while it is mounted", self.info.fs_type))
        })
    }

    /// What [`Vfs::grow`] would do; `Error::Incompatible` says why it would refuse.
    pub fn plan_growth(&self, bytes: Option<u64>) -> Result<ResizeReport> {
        self.grow_ops()?.plan_growth(bytes)
    }

    /// Makes the filesystem larger, durably: at most `bytes`, or all of the device if they are `None`.
    pub fn grow(&self, bytes: Option<u64>) -> Result<ResizeReport> {
        let ops = self.grow_ops()?;
        self.begin_change()?;
        self.guarded(|| ops.grow(bytes))
    }
}
