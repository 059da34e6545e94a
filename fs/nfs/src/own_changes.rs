//! The changes of a file by this client, and which attributes include them.
//!
//! Under a delegation only this client changes the file. Attributes are current if they include all of these
//! changes. A request number says when the request began, and not when the server executed it. So if two
//! requests were in flight at the same time, it is unknown which one the server executed first.

/// The changes of a file by this client.
#[derive(Debug, Default)]
pub struct OwnChanges {
    in_flight: u32,
    /// Two changes were in flight at the same time, and one of them still is.
    overlap: bool,
    /// The replies to requests from this number on include all changes that have ended.
    included_from: u64,
    /// The number of the last change, if its reply includes all changes that have ended.
    last: Option<u64>,
}

impl OwnChanges {
    /// Notes a change. Call it before its request is sent.
    pub fn begin(&mut self) {
        self.overlap |= self.in_flight > 0;
        self.in_flight += 1;
    }

    /// Notes the end of a change: it was answered, or its outcome is unknown and it will not be executed
    /// later. Later requests have the number `next` or a larger one. `reply` is the number of the request of
    /// the change, if its reply had attributes.
    pub fn end(&mut self, next: u64, reply: Option<u64>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.included_from = self.included_from.max(next);
        self.last = reply.filter(|_| !self.overlap);
        self.overlap &= self.in_flight > 0;
    }

    /// Returns whether the attributes in the reply to the request `sent` include all changes.
    pub fn are_included(&self, sent: u64) -> bool {
        self.in_flight == 0 && (sent >= self.included_from || self.last == Some(sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_to_a_change_includes_it_and_earlier_requests_may_not() {
        let mut changes = OwnChanges::default();
        assert!(changes.are_included(1));
        changes.begin();
        assert!(!changes.are_included(9), "the server may have executed it");
        // The change has number 5; requests up to 7 were begun before it ended.
        changes.end(8, Some(5));
        assert!(changes.are_included(5) && changes.are_included(8));
        assert!(!changes.are_included(7), "the server may have executed it before the change");
        assert!(!changes.are_included(4));
    }

    #[test]
    fn a_change_without_a_reply_is_included_in_later_requests_only() {
        let mut changes = OwnChanges::default();
        changes.begin();
        changes.end(8, None);
        assert!(!changes.are_included(5) && !changes.are_included(7) && changes.are_included(8));
    }

    /// The server executes them in any order, so neither reply is known to include the other change.
    #[test]
    fn changes_in_flight_at_the_same_time_are_included_in_later_requests_only() {
        let mut changes = OwnChanges::default();
        changes.begin();
        changes.begin();
        changes.end(7, Some(6));
        assert!(!changes.are_included(6), "one is in flight");
        changes.begin();
        changes.end(8, Some(5));
        changes.end(9, Some(7));
        assert!([5, 6, 7, 8].iter().all(|sent| !changes.are_included(*sent)));
        assert!(changes.are_included(9));
        changes.begin();
        changes.end(11, Some(10));
        assert!(changes.are_included(10), "it was alone");
    }
}
