//! A thread that busy-polls the connection that it read from.
//!
//! If a client sends one request at a time, going through epoll costs more than many requests: re-arming,
//! sleeping and being woken. Therefore the thread that read keeps the connection: it executes the request
//! while epoll reports nothing for this connection, and then polls for the next request itself.
//! This is right only while requests take turns; otherwise the second request would wait for the first. So a
//! connection that sends a request during another one is not polled. If a request takes long, the periodic
//! check gives reading back to epoll.
//! The thread also keeps the connection if all that it read is [non-blocking](super::reply_batch),
//! until it announces that it is about to block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ivers_busy_poll::{BusyPoller, Outcome};

use super::connection::{Connection, PollState, Round};

/// Number of requests, each sent after the reply to the one before, after which requests are assumed to take
/// turns.
pub(super) const MIN_TURNS: u8 = 16;
/// Turns that are subtracted if a request had arrived before the first poll: the client may have sent it
/// during the previous one.
const EARLY_PENALTY: u8 = 5;

impl Connection {
    /// Lets other threads read if the polling thread has been executing a request since the previous check.
    /// Called periodically.
    pub(super) fn stop_polling_if_busy(&self) {
        let mut state = self.poll_state.lock();
        if let Some(poll) = &mut state.busy_poll {
            poll.ticks += 1;
            if poll.ticks > 1 {
                self.stop_polling(&mut state);
            }
        }
    }

    /// Lets other threads read, because the polling thread is about to block. Does nothing if requests take
    /// turns: then nothing arrives meanwhile.
    pub(super) fn allow_other_readers(&self) {
        if self.turns.load(Ordering::Relaxed) < MIN_TURNS / 2 {
            self.stop_polling(&mut self.poll_state.lock());
        }
    }

    /// Ends the busy poll: epoll reports events again.
    pub(super) fn stop_polling(&self, state: &mut PollState) {
        if state.busy_poll.take().is_some() {
            state.reading = false;
            self.rearm(state);
        }
    }
}

/// The right to poll a connection. Dropping it hands the connection back to epoll.
pub(super) struct BusyPoll(Arc<Connection>, u64);

impl BusyPoll {
    /// Creates the handle of the busy poll with this number.
    pub(super) fn new(connection: Arc<Connection>, number: u64) -> Self {
        Self(connection, number)
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// Polls for the next request and reads it. Returns `None` if none arrives or if requests no longer take
    /// turns.
    pub(super) fn poll_next(self, poller: &BusyPoller, buffer: &mut [u8]) -> Option<Self> {
        let connection = &self.0;
        match &mut connection.poll_state.lock().busy_poll {
            Some(poll) if poll.number == self.1 => poll.ticks = 0,
            _ => return None,
        }
        let in_turn = connection.turns.load(Ordering::Relaxed) >= MIN_TURNS / 2;
        // If many requests are in flight, some have arrived.
        if !in_turn {
            match connection.read(buffer) {
                Round::NonBlocking if !connection.is_closed() => return Some(self),
                Round::Nothing => {}
                _ => return None,
            }
        }
        match poller.poll_readable(&connection.stream, &connection.poll_history) {
            Outcome::NotReady => return None,
            Outcome::Immediate if in_turn => {
                let turns = connection.turns.load(Ordering::Relaxed).saturating_sub(EARLY_PENALTY);
                connection.turns.store(turns, Ordering::Relaxed);
            }
            Outcome::Immediate | Outcome::Polled => {}
        }
        let read = connection.read(buffer);
        let goes_on = connection.turns.load(Ordering::Relaxed) >= MIN_TURNS / 2 || read == Round::NonBlocking;
        (goes_on && !connection.is_closed()).then_some(self)
    }
}

impl Drop for BusyPoll {
    fn drop(&mut self) {
        let mut state = self.0.poll_state.lock();
        if state.busy_poll.as_ref().is_some_and(|poll| poll.number == self.1) {
            self.0.stop_polling(&mut state);
        }
    }
}
