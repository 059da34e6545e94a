//! The end of a session.

use super::session::Session;
use super::volume::Xfs;
use crate::write::space::journal_error;
use ivers_vfs::Result;
use std::sync::atomic::Ordering;

impl Xfs {
    /// Everything is in the log or in place: makes it durable in place, and marks the filesystem as closed.
    pub(crate) fn close(&self, session: &Session) -> Result<()> {
        self.free_waiting()?;
        {
            let _turn = session.turn.lock();
            session.space.write_counters()?;
        }
        let journal = session.commits.journal();
        journal.write_in_place().map_err(journal_error)?;
        // The next record is that of the unmount. Until then a recovery repeats the OPEN record, unless the
        // CLOSED record is whole.
        self.close_epoch(session.next_record.load(Ordering::Relaxed))?;
        journal.shutdown().map_err(journal_error)
    }
}
