//! The end of a session.

use super::{Session, journal_error};
use crate::log;
use crate::volume::Xfs;
use ivers_vfs::Result;

impl Xfs {
    /// Everything is in the log or in place: makes it durable in place, and marks the filesystem as closed.
    pub(crate) fn close(&self, session: &Session) -> Result<()> {
        {
            let _turn = session.turn.lock();
            session.space.write_counters()?;
        }
        let journal = session.commits.journal();
        session.commits.commit().map_err(journal_error)?;
        journal.checkpoint_all().map_err(journal_error)?;
        let device = &**self.cache.device();
        // The log no longer holds anything of the session, so the next record is that of the unmount.
        self.close_epoch(&log::end(device, &self.sb, &self.place)?)?;
        journal.shutdown().map_err(journal_error)
    }
}
