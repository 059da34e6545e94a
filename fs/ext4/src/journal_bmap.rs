//! The map of the journal's inode. It is read before the journal is open and replayed, without the check for
//! blocks of the filesystem's own structures, to which the journal belongs.

use crate::fs::{Ext4, core_of};
use ivers_block::FileBlock;
use ivers_journal::jbd2::{LogExtent, LogMap};
use ivers_vfs::{Error, Inode, NameError, RangeKind, Result};

/// Limit of the runs in the map: far more than a journal needs.
const MAX_RUNS: usize = 1 << 22;

impl Ext4 {
    /// Returns the extents of the journal's inode.
    pub(crate) fn journal_map(&self) -> Result<LogMap> {
        let inode = match self.load(self.sb.journal_inum, true) {
            Err(Error::Name(NameError::Stale)) => return Err(self.bad_journal("it is not in use")),
            loaded => Inode::detached(loaded?),
        };
        let core = core_of(&inode).read();
        let end = FileBlock(inode.attr().size >> self.sb.block_bits);
        let (mut at, mut found) = (FileBlock(0), Vec::new());
        while at < end {
            let mapping = self.map_unchecked(&inode, &core, at)?;
            match mapping.kind {
                RangeKind::Data if found.len() == MAX_RUNS => {
                    return Err(self.bad_journal("its map is too large"));
                }
                RangeKind::Data => {}
                RangeKind::Unwritten => return Err(self.bad_journal("it has unwritten extents")),
                RangeKind::Hole => break,
            }
            let log_block = u32::try_from(at.0).map_err(|_| self.bad_journal("it is too long"))?;
            found.push(LogExtent { log_block, fs_block: mapping.block, len: mapping.len as u32 });
            at += mapping.len;
        }
        let map = LogMap::new(found);
        if map.len() < end.0.min(1024) {
            return Err(self.bad_journal("its map has holes"));
        }
        Ok(map)
    }

    /// Blocks that one transaction of a writable mount may change at least.
    pub(crate) fn least_credits(&self) -> Result<u32> {
        if !self.has_journal() {
            return Ok(u32::MAX);
        }
        // A quarter of the log, less the blocks that describe others.
        Ok((self.journal_map()?.len() / 5).min(1000) as u32)
    }

    fn bad_journal(&self, what: &str) -> Error {
        Error::corrupt(what, format!("{}, the journal's inode {}", self.place, self.sb.journal_inum))
    }
}
