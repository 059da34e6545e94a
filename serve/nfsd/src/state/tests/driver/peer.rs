//! A client: what it believes to hold, and its next request.

use std::collections::BTreeMap;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, SessionId, StateId};

use super::super::super::*;
use super::super::Seeded;

pub const FILES: usize = 3;
pub const SLOTS: usize = 2;
const OWNERS: u64 = 2;

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Open {
        file: usize,
        owner: u8,
        access: u32,
        deny: u32,
        reclaim: Option<u32>,
        creates: bool,
        truncates: bool,
    },
    Close {
        file: usize,
        owner: u8,
        stateid: StateId,
    },
    Downgrade {
        file: usize,
        owner: u8,
        stateid: StateId,
        access: u32,
        deny: u32,
    },
    Write {
        file: usize,
        stateid: StateId,
        content: Option<u64>,
    },
    Read {
        file: usize,
        stateid: StateId,
    },
    Rename {
        file: usize,
    },
    Copy {
        from: usize,
        to: usize,
        read: StateId,
        write: StateId,
    },
    GetAttr {
        file: usize,
    },
    Lock {
        file: usize,
        owner: u8,
        open: StateId,
        write: bool,
        wait: bool,
        reclaim: bool,
        range: (u64, u64),
    },
    Unlock {
        file: usize,
        owner: u8,
        stateid: StateId,
        range: (u64, u64),
    },
    Return {
        file: usize,
        stateid: StateId,
    },
    Complete,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Status(NfsStat),
    Stateid(StateId),
    Opened { stateid: StateId, delegation: DelegationGrant, base: HolderAttrs },
    Attr { change: u64 },
    Denied,
}

#[derive(Debug, Clone)]
pub struct Sent {
    pub sequence: u32,
    pub digest: u64,
    pub op: Op,
}

#[derive(Debug, Clone)]
pub struct Believed {
    pub stateid: StateId,
    pub write: bool,
    pub base: HolderAttrs,
    /// Written by the holder and not sent yet.
    pub dirty: Option<u64>,
    pub ever: bool,
    pub recalled: bool,
}

pub type Locked = (StateId, bool, (u64, u64));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Lost,
    Reclaiming,
    Complete,
}

#[derive(Debug, Clone)]
pub struct Peer {
    pub name: String,
    pub verifier: u8,
    pub id: Option<ClientId>,
    pub session: Option<SessionId>,
    pub conn: ConnId,
    pub next: [u32; SLOTS],
    pub sent: [Option<Sent>; SLOTS],
    pub phase: Phase,
    pub silent_until: Time,
    pub opens: BTreeMap<(usize, u8), (StateId, u32, u32)>,
    /// By file and owner: stateid, whether for writing, and byte range.
    pub locks: BTreeMap<(usize, u8), Locked>,
    pub delegations: BTreeMap<usize, Believed>,
    pub to_reclaim: Vec<Op>,
}

impl Peer {
    pub fn new(number: usize) -> Self {
        Self {
            name: format!("peer{number}"),
            verifier: 1,
            id: None,
            session: None,
            conn: ConnId(number as u64),
            next: [1; SLOTS],
            sent: [const { None }; SLOTS],
            phase: Phase::Lost,
            silent_until: Time(0),
            opens: BTreeMap::new(),
            locks: BTreeMap::new(),
            delegations: BTreeMap::new(),
            to_reclaim: Vec::new(),
        }
    }

    pub fn forget(&mut self) {
        self.opens.clear();
        self.locks.clear();
        self.delegations.clear();
        self.to_reclaim.clear();
    }

    /// The session is lost.
    pub fn lose(&mut self) {
        self.session = None;
        self.phase = Phase::Lost;
        // State that an unanswered request released must not be reclaimed.
        for sent in self.sent.iter().flatten() {
            match &sent.op {
                Op::Close { file, owner, .. } => {
                    self.opens.remove(&(*file, *owner));
                    self.locks.remove(&(*file, *owner));
                }
                Op::Downgrade { file, owner, access, deny, .. } => {
                    if let Some(open) = self.opens.get_mut(&(*file, *owner)) {
                        (open.1, open.2) = (*access, *deny);
                    }
                }
                Op::Unlock { file, owner, .. } => {
                    self.locks.remove(&(*file, *owner));
                }
                Op::Return { file, .. } => {
                    self.delegations.remove(file);
                }
                _ => {}
            }
        }
        self.sent = [const { None }; SLOTS];
        self.to_reclaim.clear();
    }

    /// The client has a new ID and reclaims what it held.
    pub fn plan_reclaims(&mut self) {
        self.to_reclaim = self
            .opens
            .iter()
            .map(|((file, owner), (_, access, deny))| Op::Open {
                file: *file,
                owner: *owner,
                access: *access,
                deny: *deny,
                reclaim: Some(match self.delegations.get(file) {
                    Some(it) if it.write => 2,
                    Some(_) => 1,
                    None => 0,
                }),
                creates: false,
                truncates: false,
            })
            .collect();
        self.delegations.clear();
    }

    /// Chooses the next operation.
    pub fn choose(&mut self, rng: &mut Seeded) -> Option<Op> {
        if self.phase == Phase::Reclaiming {
            if let Some(op) = self.to_reclaim.pop() {
                return Some(op);
            }
            // Reclaims first.
            if self.sent.iter().any(Option::is_some) {
                return None;
            }
            let lock = self.locks.iter().find(|(_, (stateid, ..))| stateid.seqid == 0);
            if let Some(((file, owner), (_, write, range))) = lock {
                let open = self.opens.get(&(*file, *owner)).map(|(stateid, ..)| *stateid);
                let Some(open) = open else {
                    let key = (*file, *owner);
                    self.locks.remove(&key);
                    return None;
                };
                return Some(Op::Lock {
                    file: *file,
                    owner: *owner,
                    open,
                    write: *write,
                    wait: false,
                    reclaim: true,
                    range: *range,
                });
            }
            return Some(Op::Complete);
        }
        let file = (rng.next_u64() % FILES as u64) as usize;
        let owner = (rng.next_u64() % OWNERS) as u8;
        if let Some((&file, it)) = self.delegations.iter().find(|(_, it)| it.recalled) {
            if let Some(content) = it.dirty.filter(|_| !rng.next_u64().is_multiple_of(8)) {
                return Some(Op::Write { file, stateid: it.stateid, content: Some(content) });
            }
            if !rng.next_u64().is_multiple_of(4) {
                return Some(Op::Return { file, stateid: it.stateid });
            }
        }
        let open = self.opens.get(&(file, owner)).copied();
        let delegation = self.delegations.get(&file).map(|it| it.stateid);
        let stateid = match rng.next_u64() % 4 {
            0 => StateId::ANONYMOUS,
            1 => delegation.unwrap_or(StateId::ANONYMOUS),
            _ => open.map_or(StateId::ANONYMOUS, |(stateid, ..)| stateid),
        };
        let first = rng.next_u64() % 5;
        let range = (
            first,
            if rng.next_u64().is_multiple_of(8) { u64::MAX } else { 1 + rng.next_u64() % (6 - first) },
        );
        Some(match rng.next_u64() % 20 {
            0..=4 => Op::Open {
                file,
                owner,
                access: [1, 1, 1, 2, 3, 3][(rng.next_u64() % 6) as usize],
                deny: [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3][(rng.next_u64() % 12) as usize],
                reclaim: None,
                creates: rng.next_u64().is_multiple_of(2),
                truncates: rng.next_u64().is_multiple_of(6),
            },
            5..=7 => {
                let (stateid, ..) = open?;
                Op::Close { file, owner, stateid }
            }
            8 => {
                let (stateid, access, deny) = open?;
                let (access, deny) =
                    (access & (1 + rng.next_u64() as u32 % 3), deny & (rng.next_u64() as u32 % 4));
                Op::Downgrade { file, owner, stateid, access, deny }
            }
            9 => Op::Write { file, stateid, content: None },
            10 => {
                let (write, ..) = open?;
                let at = (rng.next_u64() % self.opens.len() as u64) as usize;
                let (&(from, _), &(read, ..)) = self.opens.iter().nth(at)?;
                Op::Copy { from, to: file, read, write }
            }
            11 => Op::Read { file, stateid },
            12 => Op::Rename { file },
            13..=15 => Op::GetAttr { file },
            16 | 17 => {
                let (open, ..) = open?;
                let (write, wait) = (rng.next_u64().is_multiple_of(2), rng.next_u64().is_multiple_of(2));
                Op::Lock { file, owner, open, write, wait, reclaim: false, range }
            }
            18 => {
                let (stateid, ..) = *self.locks.get(&(file, owner))?;
                Op::Unlock { file, owner, stateid, range }
            }
            _ => Op::Return { file, stateid: delegation? },
        })
    }

    /// Handles a reply.
    pub fn learn(&mut self, op: &Op, reply: &Reply) {
        if *reply == Reply::Status(NfsStat::NoGrace) {
            // Its lease has expired.
            self.to_reclaim.clear();
            self.opens.clear();
            self.locks.clear();
        }
        match (op, reply) {
            (Op::Open { file, owner, access, deny, .. }, Reply::Opened { stateid, delegation, base }) => {
                let open = self.opens.entry((*file, *owner)).or_insert((*stateid, 0, 0));
                *open = (*stateid, open.1 | access, open.2 | deny);
                let (stateid, write) = match delegation {
                    DelegationGrant::None(_) => return,
                    DelegationGrant::Read(stateid) => (*stateid, false),
                    DelegationGrant::Write(stateid) => (*stateid, true),
                };
                let it = Believed { stateid, write, base: *base, dirty: None, ever: false, recalled: false };
                self.delegations.insert(*file, it);
            }
            (Op::Open { file, owner, reclaim: Some(_), .. }, Reply::Status(status)) => {
                if *status == NfsStat::Delay || *status == NfsStat::Grace {
                    self.to_reclaim.push(op.clone());
                } else {
                    self.opens.remove(&(*file, *owner));
                }
            }
            (Op::Close { file, owner, .. }, Reply::Stateid(_) | Reply::Status(NfsStat::BadStateid)) => {
                self.opens.remove(&(*file, *owner));
                self.locks.remove(&(*file, *owner));
            }
            (Op::Downgrade { file, owner, access, deny, .. }, Reply::Stateid(stateid)) => {
                self.opens.insert((*file, *owner), (*stateid, *access, *deny));
            }
            (Op::Lock { file, owner, write, range, .. }, Reply::Stateid(stateid)) => {
                self.locks.insert((*file, *owner), (*stateid, *write, *range));
            }
            (Op::Lock { file, owner, reclaim: true, .. }, Reply::Status(status))
                if *status != NfsStat::Delay =>
            {
                self.locks.remove(&(*file, *owner));
            }
            (Op::Unlock { file, owner, .. }, Reply::Stateid(_)) => {
                self.locks.remove(&(*file, *owner));
            }
            (Op::Write { file, stateid, content: Some(content) }, Reply::Status(NfsStat::Ok)) => {
                if let Some(it) = self.delegations.get_mut(file)
                    && it.stateid == *stateid
                    && it.dirty == Some(*content)
                {
                    it.dirty = None;
                }
            }
            (Op::Return { file, .. }, Reply::Status(status)) if *status != NfsStat::Delay => {
                self.delegations.remove(file);
            }
            (Op::Write { file, stateid, .. }, Reply::Status(NfsStat::DelegRevoked)) => {
                self.delegations.retain(|at, it| at != file || it.stateid != *stateid);
            }
            (Op::Complete, Reply::Status(NfsStat::Ok | NfsStat::CompleteAlready)) => {
                self.phase = Phase::Complete;
            }
            _ => {}
        }
    }
}
