//! The client records on stable storage, including pending writes.
//!
//! Callers ask here each time whether a client is on record. A record disappears when the client ID is
//! destroyed, when it is removed, and when a record of another client with the same name replaces it.

use std::collections::BTreeMap;

use super::client_record::{ClientRecord, RecordChange};
use super::ids::Ticket;

/// The status of a client's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// No record.
    Absent,
    /// A write for its name is pending, so the status is unknown.
    Pending(Ticket),
    /// Durable.
    Durable,
}

/// Whether it uses sessions, and its own name.
type Key = (bool, Vec<u8>);

/// Durable records and pending writes.
#[derive(Debug, Default)]
pub(super) struct StableClients {
    kept: BTreeMap<Key, ClientRecord>,
    /// Pending writes. The order of the tickets is the order of the writes.
    asked: BTreeMap<Ticket, RecordChange>,
    /// The last pending write for each name.
    last: BTreeMap<Key, Ticket>,
}

fn keys(change: &RecordChange) -> impl Iterator<Item = Key> + '_ {
    let records = match change {
        RecordChange::Put(record) => std::slice::from_ref(record),
        RecordChange::Remove(records) => records,
    };
    records.iter().map(ClientRecord::key)
}

impl StableClients {
    pub fn new<'a>(past: impl Iterator<Item = &'a ClientRecord>) -> Self {
        Self { kept: past.map(|record| (record.key(), record.clone())).collect(), ..Self::default() }
    }

    pub fn ask(&mut self, ticket: Ticket, change: &RecordChange) {
        self.last.extend(keys(change).map(|key| (key, ticket)));
        self.asked.insert(ticket, change.clone());
    }

    /// Completes a pending write, successfully or not.
    pub fn settle(&mut self, ticket: Ticket, durable: bool) {
        let Some(change) = self.asked.remove(&ticket) else { return };
        for key in keys(&change) {
            if self.last.get(&key) == Some(&ticket) {
                self.last.remove(&key);
            }
        }
        match change {
            _ if !durable => {}
            RecordChange::Put(record) => {
                self.kept.insert(record.key(), record);
            }
            RecordChange::Remove(records) => {
                for record in records {
                    if self.kept.get(&record.key()).is_some_and(|kept| kept.is_same_boot(&record)) {
                        self.kept.remove(&record.key());
                    }
                }
            }
        }
    }

    pub fn of(&self, record: &ClientRecord) -> RecordStatus {
        let key = record.key();
        match (self.last.get(&key), self.kept.get(&key)) {
            (Some(ticket), _) => RecordStatus::Pending(*ticket),
            (None, Some(kept)) if kept.is_same_boot(record) => RecordStatus::Durable,
            (None, _) => RecordStatus::Absent,
        }
    }

    /// Returns the record of this boot of a client after all pending writes, if they succeed.
    pub fn expected(&self, record: &ClientRecord) -> Option<&ClientRecord> {
        let key = record.key();
        let mut there = self.kept.get(&key);
        if self.last.contains_key(&key) {
            for change in self.asked.values() {
                match change {
                    RecordChange::Put(new) if new.key() == key => there = Some(new),
                    RecordChange::Remove(struck)
                        if there.is_some_and(|it| struck.iter().any(|gone| gone.is_same_boot(it))) =>
                    {
                        there = None;
                    }
                    RecordChange::Put(_) | RecordChange::Remove(_) => {}
                }
            }
        }
        there.filter(|it| it.is_same_boot(record))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::who;
    use super::*;

    fn record(verifier: u8, user: u8) -> ClientRecord {
        let owner = b"a".to_vec();
        ClientRecord { sessions: true, owner, verifier: [verifier; 8], principal: who(user), revoked: false }
    }

    #[test]
    fn only_durable_records_count() {
        let [one, two] = [record(1, 1), record(2, 1)];
        let mut records = StableClients::new([&one].into_iter());
        assert_eq!((records.of(&one), records.of(&two)), (RecordStatus::Durable, RecordStatus::Absent));
        records.ask(Ticket(1), &RecordChange::Remove(vec![one.clone()]));
        records.ask(Ticket(2), &RecordChange::Put(two.clone()));
        assert_eq!(records.of(&one), RecordStatus::Pending(Ticket(2)));
        assert_eq!((records.expected(&one), records.expected(&two)), (None, Some(&two)));
        records.settle(Ticket(1), false);
        assert_eq!(records.of(&one), RecordStatus::Pending(Ticket(2)));
        records.settle(Ticket(2), false);
        assert_eq!((records.of(&one), records.expected(&one)), (RecordStatus::Durable, Some(&one)));
        records.ask(Ticket(3), &RecordChange::Put(two.clone()));
        records.settle(Ticket(3), true);
        assert_eq!((records.of(&one), records.of(&two)), (RecordStatus::Absent, RecordStatus::Durable));
        // A record of another principal with the same name does not match.
        records.ask(Ticket(4), &RecordChange::Remove(vec![record(2, 9)]));
        assert_eq!(records.expected(&two), Some(&two));
        records.settle(Ticket(4), true);
        assert_eq!(records.of(&two), RecordStatus::Durable);
        records.ask(Ticket(5), &RecordChange::Remove(vec![two.clone()]));
        records.settle(Ticket(5), true);
        assert_eq!(records.of(&two), RecordStatus::Absent);
        assert!(records.asked.is_empty() && records.last.is_empty() && records.kept.is_empty());
    }
}
