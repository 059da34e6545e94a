//! What the server does with a request, half by half, and what must be true at each.

use std::hash::Hash;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{ClientId, LockType, StateId};

use super::super::super::super::*;
use super::super::peer::{Op, Reply};
use super::super::shadow::{BYTES, Delegated, OpenGrant};
use super::{Job, Stage, World, file};

impl World {
    /// One half of a request.
    pub(super) fn work(&mut self, at: usize) {
        let mut job = self.jobs.swap_remove(at);
        if let Some(ticket) = job.wait {
            if !self.state.pending.contains_key(&ticket) {
                job.wait = None;
            } else if self.chance(20) && matches!(job.at, Stage::Begin) {
                self.finish(job, Reply::Status(NfsStat::Delay));
                return;
            }
        }
        let stage = std::mem::replace(&mut job.at, Stage::Begin);
        let (stage, outcome) = self.advance(&mut job, stage);
        job.at = stage;
        match outcome {
            Ok(Some(reply)) => self.finish(job, reply),
            Ok(None) => self.jobs.push(job),
            Err(Stop::Gate(ticket)) => {
                self.done.note("gate");
                job.wait = Some(ticket);
                self.jobs.push(job);
            }
            Err(Stop::Ask(ticket)) => {
                job.at = Stage::Asked(ticket);
                self.jobs.push(job);
            }
            Err(Stop::Denied(_)) => {
                self.done.note("denied");
                self.finish(job, Reply::Denied);
            }
            Err(Stop::Fail(status)) => {
                match status {
                    NfsStat::ShareDenied => self.done.note("share denied"),
                    NfsStat::NoGrace => self.done.note("no grace"),
                    NfsStat::Grace => self.done.note("grace"),
                    _ => {}
                }
                self.finish(job, Reply::Status(status));
            }
            Err(Stop::Replay(_)) => unreachable!("4.0"),
        }
    }

    /// What a request does next. Of a plan that was refused nothing stays.
    fn advance(&mut self, job: &mut Job, stage: Stage) -> (Stage, Step<Option<Reply>>) {
        let (now, caller) = (self.now, Caller::Client(job.client));
        match (&job.op, stage) {
            (Op::Open { owner, access, deny, reclaim, .. }, Stage::Begin) => {
                let request = OpenRequest {
                    client: job.client,
                    owner: &[*owner],
                    access: *access,
                    deny: *deny,
                    wants: 0,
                    claim: reclaim.map_or(Claim::Fresh, Claim::Previous),
                    running: job.running.as_ref(),
                    turn: None,
                };
                match self.state.open_plan(now, &request) {
                    Ok(plan) => (Stage::Planned(plan), Ok(None)),
                    Err(stop) => (Stage::Begin, Err(stop)),
                }
            }
            (Op::Open { file: at, creates, truncates, .. }, Stage::Planned(plan)) => {
                if *creates && !*truncates {
                    return (Stage::Claimed(plan), Ok(None));
                }
                match self.state.open_claim(now, &plan, file(*at), *truncates) {
                    Ok(()) => (Stage::Claimed(plan), Ok(None)),
                    Err(Stop::Gate(ticket)) => (Stage::Planned(plan), Err(Stop::Gate(ticket))),
                    Err(stop) => {
                        self.state.open_abort(now, plan);
                        (Stage::Begin, Err(stop))
                    }
                }
            }
            (Op::Open { file: at, owner, access, deny, reclaim, truncates, .. }, Stage::Claimed(plan)) => {
                let (at, owner, access, deny) = (*at, *owner, *access, *deny);
                if *truncates {
                    self.vfs(job.client, at, true, None);
                }
                match self.state.open_commit(now, plan, file(at), true) {
                    Ok(opened) => {
                        let grant = OpenGrant { client: job.client, file: at, owner, access, deny };
                        (Stage::Begin, Ok(Some(self.opened(grant, reclaim.is_some(), &opened))))
                    }
                    Err((plan, Stop::Gate(ticket))) => (Stage::Claimed(plan), Err(Stop::Gate(ticket))),
                    Err((plan, stop)) => {
                        self.state.open_abort(now, plan);
                        (Stage::Begin, Err(stop))
                    }
                }
            }
            (Op::Write { .. } | Op::Read { .. } | Op::Rename { .. }, Stage::Begin) => {
                let (at, stateid, does) = match &job.op {
                    Op::Write { file, stateid, .. } => (*file, *stateid, Does::Write),
                    Op::Read { file, stateid } => (*file, *stateid, Does::Read),
                    Op::Rename { file } => (*file, StateId::ANONYMOUS, Does::Name),
                    _ => unreachable!(),
                };
                match self.state.permit(now, caller, file(at), &stateid, does) {
                    Ok(permit) => (Stage::Permitted(permit), Ok(None)),
                    Err(stop) => (Stage::Begin, Err(stop)),
                }
            }
            (op, Stage::Permitted(permit)) => {
                let (at, changes, content, stateid) = match op {
                    Op::Write { file, content, stateid } => (*file, true, *content, *stateid),
                    Op::Read { file, stateid } => (*file, false, None, *stateid),
                    Op::Rename { file } => (*file, true, None, StateId::CURRENT),
                    _ => unreachable!(),
                };
                if stateid == StateId::ANONYMOUS {
                    let access = if changes { 2 } else { 1 };
                    self.shadow.check_denied(at, access, "S1");
                    self.old.check_denied(at, access, "S6");
                }
                self.vfs(job.client, at, changes, content);
                (Stage::Acted(permit), Ok(None))
            }
            (_, Stage::Acted(permit)) => {
                self.state.end(now, permit);
                (Stage::Begin, Ok(Some(Reply::Status(NfsStat::Ok))))
            }
            (Op::GetAttr { file: at }, Stage::Begin) => match self.state.look(now, caller, file(*at)) {
                Ok(permit) => {
                    self.observe();
                    let mine = |it: &Delegated| it.file == *at && it.client == job.client;
                    job.own = self.shadow.delegations.iter().any(mine);
                    for it in self.shadow.delegations.iter().filter(|it| it.file == *at && it.write) {
                        assert_eq!(it.client, job.client, "somebody else may have written");
                    }
                    (Stage::Looked(Some(permit)), Ok(None))
                }
                Err(stop) => (Stage::Begin, Err(stop)),
            },
            (Op::GetAttr { file: at }, Stage::Looked(permit)) => {
                let change = self.disks[*at].query();
                // Or has got it since.
                let mine = |it: &Delegated| it.file == *at && it.client == job.client;
                if !job.own && !self.shadow.delegations.iter().any(mine) {
                    self.vouch(*at, change, self.disks[*at].content);
                }
                if let Some(permit) = permit {
                    self.state.end(now, permit);
                }
                (Stage::Begin, Ok(Some(Reply::Attr { change })))
            }
            (Op::GetAttr { .. }, stage @ Stage::Asked(_)) => (stage, Ok(None)),
            (op, Stage::Begin) => (Stage::Begin, self.at_once(&op.clone(), job.client).map(Some)),
            (op, stage) => unreachable!("{op:?} at {stage:?}"),
        }
    }

    /// What has only one half.
    fn at_once(&mut self, op: &Op, client: ClientId) -> Step<Reply> {
        let (now, caller) = (self.now, Caller::Client(client));
        match op {
            Op::Close { file: at, owner, stateid } => {
                let closed = self.state.close(now, caller, file(*at), stateid)?;
                self.shadow.opens.retain(|it| (it.client, it.file, it.owner) != (client, *at, *owner));
                self.shadow.locks.remove(&(*at, client, *owner));
                Ok(Reply::Stateid(closed))
            }
            Op::Downgrade { file: at, owner, stateid, access, deny } => {
                let left = self.state.open_downgrade(now, caller, file(*at), stateid, *access, *deny)?;
                for it in &mut self.shadow.opens {
                    if (it.client, it.file, it.owner) == (client, *at, *owner) {
                        (it.access, it.deny) = (*access, *deny);
                    }
                }
                Ok(Reply::Stateid(left))
            }
            Op::Lock { file: at, owner, open, write, wait, reclaim, range } => {
                let kind = match (write, wait) {
                    (false, false) => LockType::Read,
                    (true, false) => LockType::Write,
                    (false, true) => LockType::ReadW,
                    (true, true) => LockType::WriteW,
                };
                let locker = Locker::New { open: *open, owner: &[*owner] };
                let request =
                    LockRequest { locker, kind, reclaim: *reclaim, offset: range.0, length: range.1 };
                let stateid = self.state.lock(now, caller, file(*at), &request)?;
                self.observe();
                let bytes = bytes(*range);
                let record = self.shadow.records[&client].clone();
                self.shadow.check_lock((*at, client, *owner), &record, &bytes, *write, "S2");
                if !reclaim {
                    self.old.check_lock((*at, client, *owner), &record, &bytes, *write, "S6");
                }
                self.set_bytes((*at, client, *owner), &bytes, Some(*write));
                self.done.note("lock");
                Ok(Reply::Stateid(stateid))
            }
            Op::Unlock { file: at, owner, stateid, range } => {
                let stateid = self.state.locku(now, caller, file(*at), stateid, *range)?;
                self.set_bytes((*at, client, *owner), &bytes(*range), None);
                Ok(Reply::Stateid(stateid))
            }
            Op::Return { file: at, stateid } => {
                self.state.deleg_return(now, caller, file(*at), stateid)?;
                self.done.note("return");
                Ok(Reply::Status(NfsStat::Ok))
            }
            Op::Copy { .. } => self.begin_copy(op, client),
            Op::Complete => {
                self.state.reclaim_complete(now, client, false)?;
                self.complete.insert(client);
                Ok(Reply::Status(NfsStat::Ok))
            }
            _ => unreachable!("{op:?}"),
        }
    }

    fn set_bytes(&mut self, key: (usize, ClientId, u8), bytes: &[bool; BYTES], lock: Option<bool>) {
        let locked = self.shadow.locks.entry(key).or_default();
        for (byte, held) in locked.iter_mut().enumerate().filter(|(byte, _)| bytes[*byte]) {
            let _ = byte;
            *held = lock;
        }
    }

    /// The VFS acts: whatever was decided has to be so still.
    pub(super) fn vfs(&mut self, client: ClientId, at: usize, changes: bool, content: Option<u64>) {
        self.observe();
        let record = self.shadow.records[&client].clone();
        self.shadow.check_act(at, &record, changes, "S3, S4");
        self.old.check_act(at, &record, changes, "S6");
        if changes {
            self.next_content += 1;
            let disk = &mut self.disks[at];
            disk.content = content.unwrap_or(self.next_content);
            disk.changed();
        }
    }

    fn opened(&mut self, grant: OpenGrant, reclaim: bool, opened: &Opened) -> Reply {
        self.observe();
        let record = self.shadow.records[&grant.client].clone();
        self.shadow.check_open(&grant, &record, "S1, S3, S4");
        if !reclaim {
            self.old.check_open(&grant, &record, "S6");
        }
        self.done.note(if reclaim { "reclaim" } else { "open" });
        let at = grant.file;
        let same = |it: &&mut OpenGrant| (it.client, it.file, it.owner) == (grant.client, at, grant.owner);
        match self.shadow.opens.iter_mut().find(same) {
            Some(it) => {
                it.access |= grant.access;
                it.deny |= grant.deny;
            }
            None => self.shadow.opens.push(grant.clone()),
        }
        let mut base = Answer { change: 0, size: 0 };
        let (stateid, write) = match opened.delegation {
            Granted::None(_) => {
                return Reply::Opened { stateid: opened.stateid, delegation: opened.delegation, base };
            }
            Granted::Read(stateid) => (stateid, false),
            Granted::Write(stateid) => (stateid, true),
        };
        self.done.note(if write { "write delegation" } else { "read delegation" });
        let conflicting = |open: &OpenGrant| {
            open.file == at
                && if write {
                    open.client != grant.client
                } else {
                    open.access & 2 != 0 && open.client != grant.client
                }
        };
        assert!(!self.shadow.opens.iter().any(conflicting), "S3, S4: a delegation beside an open");
        if write {
            base = Answer { change: self.disks[at].query(), size: 0 };
            self.state.delegation_base(&stateid, base);
        }
        self.shadow.delegations.push(Delegated {
            client: grant.client,
            file: at,
            write,
            stateid,
            recalled: None,
        });
        Reply::Opened { stateid: opened.stateid, delegation: opened.delegation, base }
    }

    pub(super) fn vouch(&mut self, at: usize, change: u64, content: u64) {
        let before = *self.vouched.entry((at, change)).or_insert(content);
        assert_eq!(before, content, "change {change} of file {at} vouches for two contents");
    }

    pub(super) fn finish(&mut self, mut job: Job, reply: Reply) {
        format!("{reply:?}").hash(&mut self.hash);
        let bytes = format!("{reply:?}");
        if let Some(running) = job.running.take() {
            self.state.finish(self.now, running, bytes.as_bytes());
        }
        self.replies.insert(job.digest, reply.clone());
        // The reply may get lost.
        let slot = self.peers[job.peer]
            .sent
            .iter()
            .position(|sent| sent.as_ref().is_some_and(|sent| sent.digest == job.digest));
        if let (Some(slot), false) = (slot, self.chance(4))
            && let Some(sent) = self.peers[job.peer].sent[slot].clone()
        {
            self.receive(job.peer, slot, &sent, &reply);
        }
    }
}

fn bytes(range: (u64, u64)) -> [bool; BYTES] {
    std::array::from_fn(|byte| {
        let byte = byte as u64;
        byte >= range.0 && byte - range.0 < range.1
    })
}
