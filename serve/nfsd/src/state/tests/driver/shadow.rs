//! What the server has granted, recorded independently.

use std::collections::BTreeMap;

use ivers_nfs4::types::{ClientId, StateId};

use super::super::super::*;

/// Number of bytes of a file that locks use.
pub const BYTES: usize = 6;

#[derive(Debug, Clone)]
pub struct OpenGrant {
    pub client: ClientId,
    pub file: usize,
    pub owner: u8,
    pub access: u32,
    pub deny: u32,
}

#[derive(Debug, Clone)]
pub struct Delegated {
    pub client: ClientId,
    pub file: usize,
    pub write: bool,
    pub stateid: StateId,
    pub recalled: Option<Time>,
}

/// Everything that is granted.
#[derive(Debug, Clone, Default)]
pub struct Shadow {
    pub opens: Vec<OpenGrant>,
    pub locks: BTreeMap<(usize, ClientId, u8), [Option<bool>; BYTES]>,
    pub delegations: Vec<Delegated>,
    /// The clients.
    pub records: BTreeMap<ClientId, ClientRecord>,
}

impl Shadow {
    /// Keeps only the state of some clients.
    pub fn retain(&mut self, keep: impl Fn(ClientId) -> bool) {
        self.opens.retain(|open| keep(open.client));
        self.locks.retain(|(_, client, _), _| keep(*client));
        self.delegations.retain(|it| keep(it.client));
        self.records.retain(|client, _| keep(*client));
    }

    /// Checks that an open may be granted. A client may have another ID than before a restart.
    pub fn check_open(&self, new: &OpenGrant, record: &ClientRecord, what: &str) {
        for open in self.opens.iter().filter(|open| open.file == new.file) {
            if self.records[&open.client].is_same_boot(record) && (open.owner == new.owner || what == "S6") {
                continue;
            }
            assert!(
                open.deny & new.access == 0 && open.access & new.deny == 0,
                "{what}: {open:?} against {new:?}"
            );
        }
        for it in self.delegations.iter().filter(|it| it.file == new.file) {
            if !self.records[&it.client].is_same_boot(record) {
                assert!(
                    !it.write && new.access & 2 == 0 && new.deny & 1 == 0,
                    "{what}: {it:?} against {new:?}"
                );
            }
        }
    }

    /// Checks that a file may be read or changed.
    pub fn check_act(&self, file: usize, record: &ClientRecord, changes: bool, what: &str) {
        for it in self.delegations.iter().filter(|it| it.file == file) {
            let other = !self.records[&it.client].is_same_boot(record);
            assert!(!other || !it.write && !changes, "{what}: {record:?} acts against {it:?}");
        }
    }

    /// Checks that access without an open is not denied: 1 for reading, 2 for writing.
    pub fn check_denied(&self, file: usize, access: u32, what: &str) {
        for open in self.opens.iter().filter(|open| open.file == file) {
            assert!(open.deny & access == 0, "{what}: {open:?} denies {access}");
        }
    }

    pub fn check_lock(
        &self,
        (file, client, owner): (usize, ClientId, u8),
        record: &ClientRecord,
        bytes: &[bool; BYTES],
        write: bool,
        what: &str,
    ) {
        for ((at, whose, name), locked) in &self.locks {
            let same = self.records[whose].is_same_boot(record) && (*name == owner || what == "S6");
            if *at != file || same || *whose == client && *name == owner {
                continue;
            }
            for (byte, held) in locked.iter().enumerate().filter(|(byte, _)| bytes[*byte]) {
                assert!(held.is_none_or(|held| !held && !write), "{what}: byte {byte} is locked by {whose}");
            }
        }
    }
}
