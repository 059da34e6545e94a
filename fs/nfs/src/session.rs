//! A session: its limits, its slots and their sequence IDs (RFC 8881, 2.10).

use std::sync::Arc;
use std::time::Duration;

use ivers_nfs4::ops::v41::{SequenceArgs, SequenceOk};
use ivers_nfs4::types::SessionId;
use ivers_vfs::sync::{Condvar, RankedMutex, rank};

use crate::callbacks::BackSlots;
use crate::owner_seqids::OwnerSeqids;

struct Slots {
    /// The last sequence ID that the server executed, by slot ID.
    sequences: Vec<u32>,
    in_use: Vec<bool>,
    /// Slots from here on are not used: the server asked for fewer.
    usable: usize,
    /// No new request can use the session.
    dead: bool,
}

/// A session.
pub struct Session {
    /// Its ID.
    pub id: SessionId,
    /// The longest request in bytes.
    pub request_bytes_max: usize,
    /// The longest reply in bytes.
    pub reply_bytes_max: usize,
    /// The longest reply that the server keeps, in bytes.
    pub kept_bytes_max: usize,
    /// The most operations in a request, SEQUENCE included.
    pub operations_max: usize,
    /// The slots for callbacks, if there is a back channel.
    pub back: Option<Arc<BackSlots>>,
    /// How often the server had lost the state of this client when the session was made.
    pub run: u64,
    /// NFSv4.0: the client ID. Requests have no SEQUENCE.
    pub seqids: Option<Arc<OwnerSeqids>>,
    slots: RankedMutex<rank::Driver<2>, Slots>,
    freed: Condvar,
}

/// A slot, for one request at a time. If it is dropped before [`Slot::finish`], nobody knows whether the
/// server executed the request: then the session is no longer used.
pub struct Slot<'a> {
    session: &'a Session,
    id: usize,
    /// The sequence ID of the request.
    sequence: u32,
    highest: u32,
    finished: bool,
}

/// The result of asking for a slot.
pub enum Acquired<'a> {
    /// A slot.
    Slot(Slot<'a>),
    /// All are in use.
    Busy,
    /// The session can no longer be used.
    Dead,
}

impl Session {
    /// A session with this many slots, at least one.
    pub fn new(
        id: SessionId,
        slots: usize,
        request_bytes_max: usize,
        reply_bytes_max: usize,
        operations_max: usize,
    ) -> Self {
        let slots =
            Slots { sequences: vec![0; slots], in_use: vec![false; slots], usable: slots, dead: false };
        Self {
            id,
            request_bytes_max,
            reply_bytes_max,
            kept_bytes_max: 0,
            operations_max,
            back: None,
            run: 0,
            seqids: None,
            slots: RankedMutex::new(slots),
            freed: Condvar::new(),
        }
    }

    /// Takes the lowest free slot. Waits at most this long. With a back channel, and in 4.0, the last slot is
    /// reserved for `urgent` requests: others may wait for their effect, or for their turn.
    pub fn acquire(&self, wait: Duration, urgent: bool) -> Acquired<'_> {
        let mut slots = self.slots.lock();
        for last in [false, true] {
            if slots.dead {
                return Acquired::Dead;
            }
            let has_reserve = self.back.is_some() || self.seqids.is_some();
            let usable = if urgent || !has_reserve { slots.usable } else { (slots.usable - 1).max(1) };
            if let Some(id) = slots.in_use.iter().take(usable).position(|used| !used) {
                slots.in_use[id] = true;
                let sequence = slots.sequences[id].wrapping_add(1);
                let highest = slots.in_use.iter().rposition(|used| *used).unwrap_or(id) as u32;
                return Acquired::Slot(Slot { session: self, id, sequence, highest, finished: false });
            }
            if !last {
                slots.wait_for(&self.freed, wait);
            }
        }
        Acquired::Busy
    }

    /// No new request uses the session. Those that have a slot learn from the server what becomes of them.
    pub fn kill(&self) {
        self.slots.lock().dead = true;
        self.freed.notify_all();
    }

    /// Returns whether requests can use it.
    pub fn is_usable(&self) -> bool {
        !self.slots.lock().dead
    }
}

impl Slot<'_> {
    /// Returns the slot ID.
    pub fn number(&self) -> usize {
        self.id
    }

    /// Returns the SEQUENCE of the request. A retry has the same.
    pub fn sequence(&self, cache_this: bool) -> SequenceArgs {
        SequenceArgs {
            sessionid: self.session.id,
            sequenceid: self.sequence,
            slotid: self.id as u32,
            highest_slotid: self.highest,
            cache_this,
        }
    }

    /// Returns whether the result of SEQUENCE is that of this slot. If so, takes over how many slots the
    /// server prefers.
    pub fn accepts(&self, ok: &SequenceOk) -> bool {
        let expected = (self.session.id, self.sequence, self.id as u32);
        if (ok.sessionid, ok.sequenceid, ok.slotid) != expected {
            return false;
        }
        let mut slots = self.session.slots.lock();
        let wanted = (ok.target_highest_slotid.min(ok.highest_slotid) as usize).saturating_add(1);
        slots.usable = wanted.min(slots.sequences.len());
        true
    }

    /// Frees the slot. `executed`: the server counts the sequence ID as used.
    pub fn finish(mut self, executed: bool) {
        self.finished = true;
        let mut slots = self.session.slots.lock();
        if executed {
            slots.sequences[self.id] = self.sequence;
        }
        slots.in_use[self.id] = false;
        self.session.freed.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.session.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn session(slots: usize) -> Session {
        Session::new([1; 16], slots, 1000, 1000, 8)
    }

    fn slot(session: &Session) -> Slot<'_> {
        match session.acquire(NOW, true) {
            Acquired::Slot(slot) => slot,
            Acquired::Busy => panic!("busy"),
            Acquired::Dead => panic!("dead"),
        }
    }

    fn reply(slot: &Slot<'_>, target: u32) -> SequenceOk {
        let SequenceArgs { sessionid, sequenceid, slotid, .. } = slot.sequence(false);
        let (highest_slotid, target_highest_slotid, status_flags) = (7, target, 0);
        SequenceOk { sessionid, sequenceid, slotid, highest_slotid, target_highest_slotid, status_flags }
    }

    #[test]
    fn a_sequence_id_is_used_once_and_kept_for_a_request_that_was_not_executed() {
        let session = session(1);
        let first = slot(&session);
        assert_eq!(first.sequence(false).sequenceid, 1);
        assert!(matches!(session.acquire(NOW, true), Acquired::Busy));
        first.finish(true);
        let second = slot(&session);
        assert_eq!(second.sequence(false).sequenceid, 2);
        second.finish(false);
        assert_eq!(slot(&session).sequence(false).sequenceid, 2);
        assert!(matches!(session.acquire(NOW, true), Acquired::Dead), "a slot was abandoned");
    }

    #[test]
    fn the_last_slot_is_for_urgent_requests() {
        let session = Session { back: Some(Arc::default()), ..session(2) };
        let first = slot(&session);
        assert!(matches!(session.acquire(NOW, false), Acquired::Busy));
        slot(&session).finish(true);
        first.finish(true);
        let only = Session { back: Some(Arc::default()), ..self::session(1) };
        assert!(matches!(only.acquire(NOW, false), Acquired::Slot(_)), "there is no other");
    }

    #[test]
    fn the_server_decides_how_many_slots_are_used() {
        let session = session(3);
        let first = slot(&session);
        assert!(first.accepts(&reply(&first, 0)));
        assert!(!first.accepts(&SequenceOk { slotid: 1, ..reply(&first, 0) }));
        assert!(matches!(session.acquire(NOW, true), Acquired::Busy));
        assert!(first.accepts(&reply(&first, u32::MAX)), "a server that lies");
        let (second, third) = (slot(&session), slot(&session));
        assert_eq!(third.sequence(false).highest_slotid, 2);
        assert!(matches!(session.acquire(NOW, true), Acquired::Busy));
        [first, second, third].into_iter().for_each(|slot| slot.finish(true));
    }
}
