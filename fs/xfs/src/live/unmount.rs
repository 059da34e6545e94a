//! The end of a session, and marks in the superblock.

use super::{Session, journal_error};
use crate::layout::raw::RawSuperblock;
use crate::log;
use crate::volume::{Whose, Xfs};
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};
use zerocopy::FromBytes;

impl Xfs {
    /// Changes the superblock in a transaction of its own.
    fn edit_super(&self, edit: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let mut change = self.change()?;
        let edited = change.tx.modify(&[BlockNo(0)], None, Whose::Group(0), |bytes| {
            RawSuperblock::mut_from_prefix(bytes).map(|(raw, _)| edit(raw)).is_ok()
        })?;
        if !edited {
            return Err(Error::corrupt("the superblock is too short", self.place.clone()));
        }
        change.finish(Vec::new())
    }

    /// Says in the superblock whether the filesystem is still being made.
    pub(crate) fn mark_unfinished(&self, unfinished: bool) -> Result<()> {
        self.edit_super(|raw| raw.sb_inprogress = unfinished.into())?;
        self.session()?.commits.commit().map_err(journal_error)
    }

    /// Everything is in the log or in place: makes it durable in place, and marks the filesystem as closed.
    pub(crate) fn close(&self, session: &Session) -> Result<()> {
        {
            let _turn = session.turn.lock();
            session.space.write_counters()?;
        }
        let journal = session.commits.journal();
        session.commits.commit().map_err(journal_error)?;
        if session.filling {
            return self.mark_unfinished(false);
        }
        journal.checkpoint_all().map_err(journal_error)?;
        let device = &**self.cache.device();
        // The log no longer holds anything of the session, so the next record is that of the unmount.
        self.close_epoch(&log::end(device, &self.sb, &self.place)?)?;
        journal.shutdown().map_err(journal_error)
    }
}
