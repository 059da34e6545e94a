//! Who is on record: what stable storage holds of clients, as far as it has answered.
//!
//! Whether a client may be believed to be on record is asked here each time, and nowhere remembered: a record goes when he gives up his number, when he is
//! struck out, and when somebody else of his name is written down.

use std::collections::BTreeMap;

use super::{ClientRecord, RecordChange, Ticket};

/// Whether stable storage knows a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordStatus {
    /// It does not.
    Absent,
    /// Something is being written of his name: until then it is not known.
    Pending(Ticket),
    /// It does, durably.
    Durable,
}

/// NFSv4.1 or later, and the client's own name.
type Key = (bool, Vec<u8>);

/// What stable storage holds, and what it was asked for.
#[derive(Debug, Default)]
pub(super) struct StableClients {
    kept: BTreeMap<Key, ClientRecord>,
    /// Not answered yet. Tickets are in the order in which it is written.
    asked: BTreeMap<Ticket, RecordChange>,
    /// The last of those, of each name.
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

    /// What was asked for is durable, or has not taken place.
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

    /// What is going to be there of this boot of a client, if nothing fails.
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
    fn what_is_written_counts_when_it_is_durable() {
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
        // Somebody else, who calls himself so: he is not struck out in the place of this one.
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
