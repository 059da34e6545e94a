//! Requests that wait for a ticket. They occupy no thread.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use super::runtime::ReplySink;
use crate::executor::Suspended;
use crate::state::Ticket;

/// A suspended request.
pub(super) struct SuspendedRequest {
    pub request: Suspended,
    pub reply: ReplySink,
    pub until: Instant,
}

/// All suspended requests.
#[derive(Default)]
pub(super) struct SuspendedRequests(Mutex<HashMap<Ticket, Vec<SuspendedRequest>>>);

impl SuspendedRequests {
    /// Adds a request that waits for a ticket.
    pub fn push(&self, ticket: Ticket, request: SuspendedRequest) {
        self.0.lock().entry(ticket).or_default().push(request);
    }

    /// Removes the requests that wait for a ticket.
    pub fn take(&self, ticket: Ticket) -> Vec<SuspendedRequest> {
        self.0.lock().remove(&ticket).unwrap_or_default()
    }

    /// Removes the requests that have waited too long.
    pub fn overdue(&self) -> Vec<SuspendedRequest> {
        let (now, mut late) = (Instant::now(), Vec::new());
        self.0.lock().retain(|_, requests| {
            late.extend(requests.extract_if(.., |suspended| suspended.until <= now));
            !requests.is_empty()
        });
        late
    }

    /// Removes all requests. If they are dropped, their clients repeat them.
    pub fn take_all(&self) -> Vec<SuspendedRequest> {
        std::mem::take(&mut *self.0.lock()).into_values().flatten().collect()
    }
}
