//! Growing a filesystem that is mounted.
//!
//! The writes and their order are those of `grow`. Others see the new groups once the new superblock is in
//! place.

use super::grow::{grow_open, plan_open};
use super::plan::Plan;
use super::session::{check_writable, report, write_copies_in_use};
use crate::fs::Ext4;
use ivers_block::{BlockError, ByteOffset};
use ivers_vfs::{Error, GrowOps, ResizeReport, Result};

impl Ext4 {
    fn plan_online(&self, bytes: u64) -> Result<Plan> {
        let (now, wanted) = (self.sb.blocks_count(), bytes / u64::from(self.sb.block_size));
        if wanted < now {
            return Err(Error::Incompatible(format!(
                "{} has {now} blocks, and {bytes} bytes are {wanted}: a mounted filesystem only grows; \
                 unmount it first",
                self.place
            )));
        }
        plan_open(self, bytes)
    }

    /// An error of the device before anything was written is a refusal.
    fn no_room(&self, error: &BlockError) -> Error {
        Error::Incompatible(format!("{} cannot grow: {error}", self.place))
    }
}

impl GrowOps for Ext4 {
    fn plan_growth(&self, bytes: Option<u64>) -> Result<ResizeReport> {
        check_writable(self)?;
        self.dev.make_room(0).map_err(|error| self.no_room(&error))?;
        let plan = self.plan_online(bytes.unwrap_or(self.dev.size_bytes()))?;
        Ok(report(&plan.old, &plan.new))
    }

    fn grow(&self, bytes: Option<u64>) -> Result<ResizeReport> {
        let _one_at_a_time = self.growing.lock();
        check_writable(self)?;
        self.dev.make_room(0).map_err(|error| self.no_room(&error))?;
        let old_len = self.dev.size_bytes();
        let bytes = bytes.unwrap_or(old_len);
        self.plan_online(bytes)?;
        self.dev.make_room(bytes).map_err(|error| self.no_room(&error))?;
        let plan = grow_open(self, bytes, ByteOffset(old_len))?;
        write_copies_in_use(self)?;
        Ok(report(&plan.old, &plan.new))
    }
}
