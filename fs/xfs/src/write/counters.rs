//! Counters of the superblock. They are kept in memory and written at unmount. After a crash they are added
//! up from the heads of the groups.

use super::space::Space;
use crate::layout::raw::RawSuperblock;
use crate::unit::Whose;
use ivers_block::BlockNo;
use ivers_vfs::Result;
use std::mem::offset_of;

impl Space {
    /// Writes the counters to the superblock, before the log is closed.
    pub(crate) fn write_counters(&self) -> Result<()> {
        let mut tx = self.begin(self.credits_of_change())?;
        // The heads in the block of the superblock are written with it.
        tx.agf(0)?;
        let counts = tx.groups().counts;
        tx.modify(&[BlockNo(0)], None, Whose::Group(0), |bytes| {
            let fields = [
                (offset_of!(RawSuperblock, sb_icount), counts.inodes),
                (offset_of!(RawSuperblock, sb_ifree), counts.free_inodes),
                (offset_of!(RawSuperblock, sb_fdblocks), counts.free_blocks),
            ];
            fields.iter().for_each(|(at, count)| bytes[*at..at + 8].copy_from_slice(&count.to_be_bytes()));
        })?;
        tx.finish()
    }
}
