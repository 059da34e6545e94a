//! Requests that wait for a ticket: they are kept here, not by a thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::core::Core;
use super::outside::Asker;
use crate::compound::{News, Progress, Waiting};
use crate::state::Ticket;

/// So long a request waits; then its client is told to come again.
const PATIENCE: Duration = Duration::from_secs(8);

/// A request that waits.
pub(super) struct Waiter {
    request: Waiting,
    reply: Asker,
    until: Instant,
}

/// All of them.
#[derive(Default)]
pub(super) struct Waiters(Mutex<HashMap<Ticket, Vec<Waiter>>>);

impl Waiters {
    /// Those that wait for this.
    pub fn take(&self, ticket: Ticket) -> Vec<Waiter> {
        self.0.lock().remove(&ticket).unwrap_or_default()
    }

    /// Those that have waited for too long.
    pub fn overdue(&self) -> Vec<Waiter> {
        let (now, mut late) = (Instant::now(), Vec::new());
        self.0.lock().retain(|_, waiters| {
            late.extend(waiters.extract_if(.., |waiter| waiter.until <= now));
            !waiters.is_empty()
        });
        late
    }

    /// All of them: dropped, their clients ask again, whoever serves then.
    pub fn take_all(&self) -> Vec<Waiter> {
        std::mem::take(&mut *self.0.lock()).into_values().flatten().collect()
    }
}

impl Core {
    /// A request has come so far: it is answered, or waits.
    pub fn proceed(self: &Arc<Self>, progress: Progress, reply: Asker) {
        self.advance(progress, reply, Instant::now() + PATIENCE);
    }

    /// What a request has waited for has come.
    pub fn go_on(self: &Arc<Self>, waiter: Waiter, news: News) {
        let Waiter { request, reply, until } = waiter;
        self.advance(request.go_on(news), reply, until);
    }

    fn advance(self: &Arc<Self>, progress: Progress, reply: Asker, until: Instant) {
        let (ticket, request) = match progress {
            Progress::Done(results) => return reply.send(results),
            Progress::Waits(ticket, request) => (ticket, request),
        };
        self.waiting.0.lock().entry(ticket).or_default().push(Waiter { request, reply, until });
        let ask = self.asks.lock().remove(&ticket);
        if let Some((client, call)) = ask {
            return self.call(client, call);
        }
        // What came before it was booked told nobody about this one.
        if self.is_pending(ticket) {
            return;
        }
        // What cannot be written down now cannot be a moment later either.
        let late = Instant::now() >= until || !self.recording.load(Ordering::Relaxed);
        self.resume(ticket, &if late { News::Late } else { News::Again });
    }
}
