//! Write-back errors: each is reported once to every descriptor that was open when it happened, as on Linux.

use crate::error::Error;
use crate::inode::Inode;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::vfs::Vfs;

/// The write-back errors of one inode.
#[derive(Default)]
pub(crate) struct WritebackErrors(RankedMutex<rank::Leaf, Option<Box<Errors>>>);

#[derive(Default)]
struct Errors {
    /// How many there were.
    seq: u64,
    last: Option<Error>,
    /// Whether the last error was reported to a caller.
    reported: bool,
    /// What callers without a descriptor were told.
    without_descriptor: u64,
    /// Byte ranges (offset, length) of lost data. Their reservations are released under the exclusive lock.
    lost_ranges: Vec<(u64, u64)>,
}

/// Which write-back errors a descriptor has been told of. Taken at open, given to each fsync. The default is
/// that of a descriptor opened before any error.
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

impl ErrorCursor {
    /// Whether it is the default.
    pub fn is_initial(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl WritebackErrors {
    pub(crate) fn add(&self, error: &Error) {
        let mut errors = self.0.lock();
        let errors = errors.get_or_insert_default();
        errors.seq += 1;
        (errors.last, errors.reported) = (Some(error.clone()), false);
    }

    /// How many errors there were.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().as_deref().map_or(0, |errors| errors.seq)
    }

    /// The last error, if there were more than `count`. Descriptors are still told of it.
    pub(crate) fn since(&self, count: u64) -> Option<Error> {
        self.0.lock().as_deref().filter(|errors| errors.seq > count)?.last.clone()
    }

    /// The error that this descriptor was not told of yet, if there is one.
    pub(crate) fn take(&self, cursor: Option<&ErrorCursor>) -> Option<Error> {
        let mut errors = self.0.lock();
        let errors = errors.as_deref_mut()?;
        let seq = errors.seq;
        let told = match cursor {
            Some(cursor) => cursor.0.swap(seq, Ordering::Relaxed),
            None => std::mem::replace(&mut errors.without_descriptor, seq),
        };
        if told == seq {
            return None;
        }
        errors.reported = true;
        errors.last.clone()
    }

    /// A descriptor that is opened now is told of an error that nobody was told of.
    fn cursor(&self) -> ErrorCursor {
        let errors = self.0.lock();
        ErrorCursor(AtomicU64::new(errors.as_deref().map_or(0, |errors| {
            let unreported = errors.last.is_some() && !errors.reported;
            errors.seq - u64::from(unreported)
        })))
    }

    pub(crate) fn add_lost_ranges(&self, ranges: Vec<(u64, u64)>) {
        self.0.lock().get_or_insert_default().lost_ranges.extend(ranges);
    }

    pub(crate) fn take_lost_ranges(&self) -> Vec<(u64, u64)> {
        self.0.lock().as_deref_mut().map(|errors| std::mem::take(&mut errors.lost_ranges)).unwrap_or_default()
    }
}

impl Vfs {
    /// A cursor for a descriptor of this file that is opened now.
    pub fn error_cursor(&self, inode: &Inode) -> ErrorCursor {
        inode.writeback_errors.cursor()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_reports_an_error_once() {
        let errors = WritebackErrors::default();
        let (first, second) = (errors.cursor(), errors.cursor());
        assert!(errors.take(Some(&first)).is_none());
        errors.add(&Error::FileData("broken".into()));
        let late = errors.cursor();
        for cursor in [Some(&first), Some(&second), Some(&late), None] {
            assert!(errors.take(cursor).is_some());
            assert!(errors.take(cursor).is_none());
        }
        assert!(errors.take(Some(&errors.cursor())).is_none(), "it was reported before this one was opened");
        assert!(errors.since(0).is_some() && errors.since(errors.count()).is_none());
    }
}
