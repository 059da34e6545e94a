//! A thread that stays with a connection.
//!
//! Where a client sends one request at a time, going by the poller costs more than many a request: to ask it to tell again, to sleep, to be woken. So the thread that
//! has read *stays*: it works on the request while the poller is silent about this connection, and then looks out for the next one itself. That is right
//! only while requests take turns. Otherwise the second would wait for the first: so whoever sends a request in the midst of another is not stayed with, and a
//! request that takes long is left to its thread by the sweep, while others read on. Where all that was read is [brief](super::super::brief) the thread stays as well, until it
//! says that something may take long.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ivers_linger::{Came, Linger};

use super::{Arm, Connection};

/// After so many requests, each behind the answer to the one before, a connection is taken for one whose requests take turns.
pub(super) const TURNS: u8 = 16;
/// What a request counts back that was there before anybody looked for it: it may have come in the midst of the one before.
const NO_TURN: u8 = 5;

/// That a thread stays.
pub(super) struct Stays {
    /// Which stay it is: another may have begun when this one's thread comes back.
    pub(super) number: u64,
    /// So many times the sweep has looked since.
    pub(super) looks: u8,
}

/// What a round of reading has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// No message that is whole.
    Nothing,
    /// Brief jobs alone.
    Brief,
    /// Others too.
    Other,
}

impl Connection {
    /// What the thread that stays has taken on takes long: others must read meanwhile. Asked now and then.
    pub(in crate::net) fn release_if_stuck(&self) {
        let mut arm = self.arm.lock();
        if let Some(stays) = &mut arm.stays {
            stays.looks += 1;
            if stays.looks > 1 {
                self.leave(&mut arm);
            }
        }
    }

    /// What the thread that stays is going to do may take long. Where requests take turns nobody has anything to read meanwhile.
    pub(in crate::net) fn let_others_read(&self) {
        if self.turns.load(Ordering::Relaxed) < TURNS / 2 {
            self.leave(&mut self.arm.lock());
        }
    }

    /// Nobody stays: the poller tells again what comes.
    pub(super) fn leave(&self, arm: &mut Arm) {
        if arm.stays.take().is_some() {
            arm.reading = false;
            self.rearm(arm);
        }
    }
}

/// A thread that stays with a connection that it has read from. Dropped, the poller tells again what comes.
pub(in crate::net) struct Stay(Arc<Connection>, u64);

impl Stay {
    /// For whoever has set `stays`, to this number.
    pub(super) fn with(connection: Arc<Connection>, number: u64) -> Self {
        Self(connection, number)
    }

    pub(in crate::net) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// Look out for the next request and read it. Nothing is left to stay for if none comes, or if requests do not take turns any more.
    pub(in crate::net) fn go_on(self, linger: &Linger, scratch: &mut [u8]) -> Option<Self> {
        let connection = &self.0;
        match &mut connection.arm.lock().stays {
            Some(stays) if stays.number == self.1 => stays.looks = 0,
            _ => return None,
        }
        let in_turn = connection.turns.load(Ordering::Relaxed) >= TURNS / 2;
        // Of many requests that are under way some have come by now.
        if !in_turn {
            match connection.read(scratch) {
                Round::Brief if !connection.is_closed() => return Some(self),
                Round::Nothing => {}
                _ => return None,
            }
        }
        match linger.until_readable(&connection.stream, &connection.rhythm) {
            Came::Not => return None,
            Came::AtOnce if in_turn => {
                let turns = connection.turns.load(Ordering::Relaxed).saturating_sub(NO_TURN);
                connection.turns.store(turns, Ordering::Relaxed);
            }
            Came::AtOnce | Came::InTime => {}
        }
        let read = connection.read(scratch);
        let stays = connection.turns.load(Ordering::Relaxed) >= TURNS / 2 || read == Round::Brief;
        (stays && !connection.is_closed()).then_some(self)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut arm = self.0.arm.lock();
        if arm.stays.as_ref().is_some_and(|stays| stays.number == self.1) {
            self.0.leave(&mut arm);
        }
    }
}
