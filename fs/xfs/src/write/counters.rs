//! Counters of the superblock. They are kept in memory and written at unmount. After a crash they are added
//! up from the heads of the groups.

use super::space::Space;
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::Counts;
use crate::volume::Whose;
use ivers_block::BlockNo;
use ivers_vfs::Result;
use std::mem::offset_of;

impl Space {
    /// Adds up what the heads of all groups say, and keeps it: after a crash.
    pub(crate) fn recount(&self) -> Result<Counts> {
        let mut tx = self.begin(0)?;
        let mut sum = Counts::default();
        for ag in 0..self.sb.ag_count {
            let (agf, agi) = (tx.agf(ag)?, tx.agi(ag)?);
            sum.inodes += u64::from(agi.agi_count.get());
            sum.free_inodes += u64::from(agi.agi_freecount.get());
            let counts = [agf.agf_freeblks, agf.agf_flcount, agf.agf_btreeblks];
            sum.free_blocks += counts.iter().map(|count| u64::from(count.get())).sum::<u64>();
        }
        tx.groups().counts = sum;
        Ok(sum)
    }

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
