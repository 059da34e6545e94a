//! The server and its surroundings.

mod copying;
mod leaving;
mod serving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use ivers_nfs4::ops::v41::{BindConn, SequenceArgs};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::ClientId;

use super::super::super::tables::entry::EntryKind;
use super::super::super::tables::file::FileState;
use super::super::super::tables::pending::Pending;
use super::super::super::*;
use super::super::{HERE, Seeded, create, exchange, who};
use super::peer::{FILES, Op, Peer, Phase, Reply, SLOTS, Sent};
use super::shadow::Shadow;
use copying::Copying;

/// A file of the VFS.
#[derive(Debug, Clone, Default)]
struct Disk {
    change: u64,
    queried: bool,
    content: u64,
}

impl Disk {
    fn query(&mut self) -> u64 {
        self.queried = true;
        self.change
    }

    fn changed(&mut self) {
        self.change += u64::from(self.queried);
        self.queried = false;
    }

    fn bump(&mut self) -> u64 {
        self.change += 1;
        self.queried = true;
        self.change
    }
}

/// A request in progress.
#[derive(Debug)]
struct Job {
    peer: usize,
    client: ClientId,
    running: Option<SessionRequest>,
    digest: u64,
    op: Op,
    at: Stage,
    wait: Option<Ticket>,
    /// The peer itself holds the write delegation, so its view of the file is its own.
    own: bool,
}

#[derive(Debug)]
enum Stage {
    Begin,
    PlannedOpen(OpenPlan),
    Claimed(OpenPlan),
    Permitted(Permit),
    Acted(Permit),
    /// The attributes were queried, with this permit unless the permit is shared.
    Queried(Option<Permit>),
    Asked(Ticket),
}

/// Counts of events, to check that the test exercised them.
#[derive(Debug, Clone, Default)]
pub struct Done(BTreeMap<&'static str, u64>);

impl Done {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    pub fn check(&self) {
        for what in [
            "replay",
            "uncached",
            "delay",
            "open",
            "share denied",
            "lock",
            "denied",
            "read delegation",
            "write delegation",
            "recall",
            "return",
            "revoke",
            "written",
            "untouched",
            "bump",
            "gate",
            "restart",
            "reclaim",
            "no grace",
            "grace",
            "evicted",
            "notify",
            "peer restart",
            "unmount",
            "unmount in grace",
            "false retry",
            "slice",
            "copied",
            "cancelled",
            "offload",
        ] {
            let count = self.0.get(what).copied().unwrap_or_default();
            assert!(count >= 5, "{what} happened {count} times: {self:?}");
        }
    }
}

/// A holder's reply in transit: ticket, file, attributes, and the contents that the holder has.
type AnswerOut = (Ticket, usize, Option<HolderAttrs>, u64);

pub struct Fixture {
    rng: Seeded,
    now: Time,
    boot: u32,
    state: StateManager,
    stable: BTreeMap<(bool, Vec<u8>), ClientRecord>,
    disks: Vec<Disk>,
    /// The contents for each value of a file's change attribute.
    vouched: BTreeMap<(usize, u64), u64>,
    next_content: u64,
    next_digest: u64,
    next_conn: u64,
    peers: Vec<Peer>,
    jobs: Vec<Job>,
    todo: VecDeque<Effect>,
    /// Pinned files.
    kept: BTreeSet<FileId>,
    answers: Vec<AnswerOut>,
    copies: Vec<Copying>,
    /// Replies of holders to be passed on: ticket, permit, file, and the holder's contents if modified.
    written: Vec<(Ticket, Permit, usize, Option<u64>)>,
    shadow: Shadow,
    old: Shadow,
    complete: BTreeSet<ClientId>,
    executed: BTreeSet<u64>,
    replies: BTreeMap<u64, Reply>,
    known: BTreeMap<ClientId, ClientRecord>,
    hash: DefaultHasher,
    /// The removal of a record that nobody needs failed. The next grace period removes it.
    litter: bool,
    pub done: Done,
}

fn config() -> Config {
    Config { lease: Millis(1000), courtesy: Millis(20_000), ..Config::default() }
}

fn file(number: usize) -> FileId {
    FileId { export: 1, inode: number as u64, generation: 1 }
}

fn number(file: FileId) -> usize {
    file.inode as usize
}

impl Fixture {
    pub fn new(seed: u64) -> Self {
        let mut rng = Seeded(seed);
        let inner = Seeded(rng.next_u64());
        Self {
            state: StateManager::new(Time(0), config(), 1, PreviousBoot::default(), Box::new(inner)),
            rng,
            now: Time(0),
            boot: 1,
            stable: BTreeMap::new(),
            disks: vec![Disk::default(); FILES],
            vouched: BTreeMap::new(),
            next_content: 0,
            next_digest: 0,
            next_conn: 1000,
            peers: (0..4).map(Peer::new).collect(),
            jobs: Vec::new(),
            todo: VecDeque::new(),
            kept: BTreeSet::new(),
            answers: Vec::new(),
            copies: Vec::new(),
            written: Vec::new(),
            shadow: Shadow::default(),
            old: Shadow::default(),
            complete: BTreeSet::new(),
            executed: BTreeSet::new(),
            replies: BTreeMap::new(),
            known: BTreeMap::new(),
            hash: DefaultHasher::new(),
            litter: false,
            done: Done::default(),
        }
    }

    pub fn digest(&self) -> u64 {
        self.hash.finish()
    }

    fn chance(&mut self, of: u64) -> bool {
        self.rng.next_u64().is_multiple_of(of)
    }

    fn pick(&mut self, count: usize) -> usize {
        (self.rng.next_u64() % count as u64) as usize
    }

    pub fn step(&mut self) {
        let step = self.rng.next_u64() % 8;
        self.now = self.now + Millis(step);
        match self.rng.next_u64() % 400 {
            0 => self.now = self.now + Millis(500 + self.rng.next_u64() % 2000),
            1 if self.chance(4) => self.restart(),
            2 => {
                let peer = self.pick(self.peers.len());
                self.peers[peer].silent_until = self.now + Millis(self.rng.next_u64() % 6000);
            }
            3 => self.reconnect(),
            4 if self.chance(3) => {
                // A peer restarts and loses what it has written but not sent.
                let peer = self.pick(self.peers.len());
                let peer = &mut self.peers[peer];
                peer.verifier += 1;
                peer.forget();
                peer.lose();
                self.done.note("peer restart");
            }
            5..=20 => {
                self.state.tick(self.now);
            }
            21..=140 if !self.jobs.is_empty() => {
                let job = self.pick(self.jobs.len());
                self.work(job);
            }
            141..=200 if !self.todo.is_empty() => self.carry_out(),
            201..=220 if !self.answers.is_empty() => self.tell(),
            221..=235 if !self.written.is_empty() => self.answer_out(),
            236..=255 if !self.copies.is_empty() => {
                let at = self.pick(self.copies.len());
                self.copy(at);
            }
            256..=259 => self.unmount(),
            _ => {
                let peer = self.pick(self.peers.len());
                self.act(peer);
            }
        }
        self.observe();
        self.check_records();
        self.state.check_invariants();
    }

    /// Stops new requests, completes the running ones, and checks that nothing remains.
    pub fn wind_down(&mut self) {
        for _ in 0..2000 {
            for _ in 0..self.todo.len() {
                self.carry_out();
            }
            while !self.answers.is_empty() {
                self.tell();
            }
            while !self.written.is_empty() {
                self.answer_out();
            }
            for at in (0..self.jobs.len()).rev() {
                self.work(at);
            }
            for at in (0..self.copies.len()).rev() {
                self.copy(at);
            }
            self.state.tick(self.now);
            self.now = self.now + Millis(5);
            self.observe();
            let idle = self.jobs.is_empty() && self.copies.is_empty();
            if idle && self.todo.is_empty() && self.answers.is_empty() {
                break;
            }
        }
        assert!(self.jobs.is_empty(), "never answered: {:?}", self.jobs);
        assert!(self.copies.is_empty(), "never done: {:?}", self.copies);
        assert!(self.written.is_empty() && self.state.pending.is_empty(), "{:?}", self.state.pending);
        assert!(self.state.in_flight.is_empty());
        self.state.check_invariants();
        // After the last lease, no state remains.
        for _ in 0..20 {
            self.now = self.now + config().courtesy;
            self.state.tick(self.now);
            self.observe();
            for _ in 0..self.todo.len() {
                self.carry_out();
            }
            self.state.check_invariants();
        }
        let state = &self.state;
        assert!(state.clients.is_empty() && state.entries.is_empty() && state.files.is_empty());
        assert!(
            state.owners.is_empty() && state.sessions.is_empty() && (self.litter || self.stable.is_empty())
        );
    }

    /// Handles the effects of the state.
    fn observe(&mut self) {
        for effect in self.state.take_effects() {
            match effect {
                Effect::Pin { file } => assert!(self.kept.insert(file), "kept twice"),
                Effect::Unpin { file } => assert!(self.kept.remove(&file), "released, and was not kept"),
                effect => self.todo.push_back(effect),
            }
        }
        let used = |state: &FileState| !state.opens.is_empty() || !state.delegations.is_empty();
        let kept = self.state.files.iter().filter(|(_, state)| used(state)).map(|(file, _)| file);
        assert!(kept.eq(&self.kept), "what is open or delegated is kept, and nothing else");
        for effect in &self.todo {
            if let Effect::Callback { call: Callback::Recall { stateid, .. }, .. } = effect {
                for it in &mut self.shadow.delegations {
                    if it.stateid == *stateid && it.recalled.is_none() {
                        it.recalled = Some(self.now);
                        self.done.note("recall");
                    }
                }
            }
        }
        let (state, now, done) = (&self.state, self.now, &mut self.done);
        self.shadow.delegations.retain(|it| {
            let word = &it.stateid.other[4..8];
            let index = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            let revoked = matches!(state.entries.get(&index).map(|held| &held.kind),
                Some(EntryKind::Delegation(of)) if of.revoked);
            let live = state.test_stateid(it.client, &[it.stateid]) == [NfsStat::Ok];
            if revoked && !live && state.clients.contains_key(&it.client) {
                assert!(
                    it.recalled.is_some_and(|at| now.since(at) > config().lease),
                    "revoked too soon: {it:?}"
                );
                done.note("revoke");
            }
            live
        });
        let gone: Vec<_> = self
            .known
            .iter()
            .filter(|(id, _)| !self.state.clients.contains_key(id))
            .map(|(id, record)| (*id, record.clone()))
            .collect();
        for (id, record) in gone {
            self.known.remove(&id);
            let key = (record.sessions, record.owner.clone());
            let superseded = self.state.incarnations.get(&key).is_some_and(|name| name.confirmed.is_some());
            // In the grace period, the record stays until the end of it, and nothing new is granted before.
            let superseded = superseded || self.state.in_grace();
            assert!(
                superseded || self.stable.get(&key).is_none_or(|it| !it.is_same_boot(&record)),
                "S7: {record:?} is still on record"
            );
            self.done.note("evicted");
        }
        for (id, client) in self.state.clients.iter().filter(|(_, client)| client.confirmed) {
            self.known.entry(*id).or_insert_with(|| client.as_record());
            self.shadow.records.entry(*id).or_insert_with(|| client.as_record());
        }
        let state = &self.state;
        self.shadow.retain(|id| state.clients.contains_key(&id));
        // A client may reclaim if it is on record and has not sent RECLAIM_COMPLETE.
        let stable = &self.stable;
        let records = self.old.records.clone();
        let complete = &self.complete;
        let may = |record: &ClientRecord| {
            let key = (record.sessions, record.owner.clone());
            let now = state.incarnations.get(&key).and_then(|name| name.confirmed);
            let other = now.is_some_and(|id| state.clients[&id].verifier != record.verifier);
            let on_record = stable.get(&key).is_some_and(|it| it.is_same_boot(record));
            on_record && !other && !now.is_some_and(|id| complete.contains(&id))
        };
        self.old.retain(|id| records.get(&id).is_some_and(may));
    }

    fn restart(&mut self) {
        self.done.note("restart");
        // Some pending writes may have reached stable storage, in order.
        while !self.todo.is_empty() && !self.chance(3) {
            if let Some(Effect::Persist { change, .. }) = self.todo.pop_front() {
                self.store(change);
            }
        }
        let mut old = std::mem::take(&mut self.shadow);
        // A second crash keeps what could be reclaimed before.
        let before = std::mem::take(&mut self.old);
        old.opens.extend(before.opens);
        old.locks.extend(before.locks);
        old.delegations.extend(before.delegations);
        old.records.extend(before.records);
        let (stable, records) = (&self.stable, old.records.clone());
        old.retain(|id| {
            let stored = |it: &ClientRecord| stable.get(&(it.sessions, it.owner.clone())).cloned();
            records.get(&id).is_some_and(|it| stored(it).is_some_and(|stored| stored.is_same_boot(it)))
        });
        self.old = old;
        self.boot += 1;
        let past = PreviousBoot { clients: self.stable.values().cloned().collect(), lease: config().lease };
        let inner = Seeded(self.rng.next_u64());
        self.state = StateManager::new(self.now, config(), self.boot, past, Box::new(inner));
        for disk in &mut self.disks {
            disk.change += 1 << 20;
            disk.queried = true;
        }
        self.jobs.clear();
        self.todo.clear();
        self.kept.clear();
        self.answers.clear();
        self.copies.clear();
        self.written.clear();
        self.complete.clear();
        self.known.clear();
    }

    fn reconnect(&mut self) {
        let at = self.pick(self.peers.len());
        self.state.disconnected(self.peers[at].conn);
        self.next_conn += 1;
        self.peers[at].conn = ConnId(self.next_conn);
        if let Some(sessionid) = self.peers[at].session {
            let bind = BindConn { sessionid, direction: 7, rdma: false };
            let _ = self.state.bind_conn_to_session(self.now, self.peers[at].conn, &who(1), &bind);
        }
    }

    /// A peer acts.
    fn act(&mut self, at: usize) {
        if self.peers[at].silent_until > self.now {
            return;
        }
        if self.peers[at].session.is_none() {
            self.introduce(at);
            return;
        }
        let dirty = self.chance(6);
        if dirty {
            // It writes under a delegation, which the server does not notice.
            let content = self.next_content + 1;
            let peer = &mut self.peers[at];
            if let Some(it) = peer.delegations.values_mut().find(|it| it.write && !it.recalled) {
                (it.dirty, it.ever) = (Some(content), true);
                self.next_content = content;
            }
        }
        let slot = self.pick(SLOTS);
        if self.peers[at].sent[slot].is_none() {
            let Some(op) = self.peers[at].choose(&mut self.rng) else { return };
            self.next_digest += 1;
            let sent = Sent { sequence: self.peers[at].next[slot], digest: self.next_digest, op };
            self.peers[at].sent[slot] = Some(sent);
            if self.chance(10) {
                // The request is lost. The peer sends it again later.
                return;
            }
        }
        self.send(at, slot);
    }

    fn introduce(&mut self, at: usize) {
        let (name, verifier, conn) =
            (self.peers[at].name.clone(), self.peers[at].verifier, self.peers[at].conn);
        let Ok(id) = self.state.exchange_id(self.now, HERE, &who(1), &exchange(&name, verifier, 0)) else {
            return;
        };
        let args = create(id.clientid, id.sequenceid);
        let Ok(created) = self.state.create_session(self.now, conn, 2, &who(1), &args) else { return };
        if self.chance(2) {
            assert_eq!(
                self.state.create_session(self.now, conn, 2, &who(1), &args),
                Ok(created.clone()),
                "S5"
            );
        }
        let peer = &mut self.peers[at];
        peer.session = Some(created.sessionid);
        peer.next = [1; SLOTS];
        if peer.id != Some(id.clientid) {
            peer.id = Some(id.clientid);
            for lock in peer.locks.values_mut() {
                lock.0.seqid = 0;
            }
            peer.plan_reclaims();
            peer.phase = Phase::Reclaiming;
        } else {
            peer.phase = Phase::Complete;
        }
    }

    fn send(&mut self, at: usize, slot: usize) {
        let peer = &self.peers[at];
        let (Some(sessionid), Some(sent)) = (peer.session, peer.sent[slot].clone()) else { return };
        let cache_this = sent.digest % 4 != 0;
        let args = SequenceArgs {
            sessionid,
            sequenceid: sent.sequence,
            slotid: slot as u32,
            highest_slotid: SLOTS as u32 - 1,
            cache_this,
        };
        let request =
            RequestHeader { principal: who(1), digest: Digest(sent.digest), bytes: 300, operations: 2 };
        match self.state.sequence(self.now, peer.conn, &request, &args) {
            Ok(SequenceOutcome::New(running, _)) => {
                assert!(self.executed.insert(sent.digest), "S5: {sent:?} is executed twice");
                self.jobs.push(Job {
                    peer: at,
                    client: running.client,
                    running: Some(running),
                    digest: sent.digest,
                    op: sent.op,
                    at: Stage::Begin,
                    wait: None,
                    own: false,
                });
            }
            Ok(SequenceOutcome::Replay(bytes)) => {
                let reply = self.replies[&sent.digest].clone();
                assert_eq!(*bytes, *format!("{reply:?}").as_bytes(), "S5: another reply");
                self.done.note("replay");
                if self.chance(4) {
                    let other = RequestHeader { digest: Digest(u64::MAX), ..request };
                    let conn = self.peers[at].conn;
                    let retry = self.state.sequence(self.now, conn, &other, &args);
                    assert!(matches!(retry, Err(Stop::Fail(NfsStat::SeqFalseRetry))), "{retry:?}");
                    self.done.note("false retry");
                }
                self.receive(at, slot, &sent, &reply);
            }
            Ok(SequenceOutcome::Uncached(_)) => {
                assert!(!cache_this);
                self.done.note("uncached");
                let reply = self.replies[&sent.digest].clone();
                // A real client would find out otherwise; here it gets the reply.
                self.receive(at, slot, &sent, &reply);
            }
            Err(Stop::Fail(NfsStat::Delay)) => self.done.note("delay"),
            Err(Stop::Fail(NfsStat::Badsession)) => self.peers[at].lose(),
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, at: usize, slot: usize, sent: &Sent, reply: &Reply) {
        let peer = &mut self.peers[at];
        peer.sent[slot] = None;
        peer.next[slot] = sent.sequence.wrapping_add(1);
        peer.learn(&sent.op, reply);
    }

    fn store(&mut self, change: RecordChange) {
        match change {
            RecordChange::Put(record) => {
                self.stable.insert((record.sessions, record.owner.clone()), record);
            }
            RecordChange::Remove(records) => {
                self.stable.retain(|_, record| !records.iter().any(|it| it.is_same_boot(record)));
            }
        }
    }

    /// Performs an effect. Stable storage works in order, other effects in any order.
    fn carry_out(&mut self) {
        let at = self.pick(self.todo.len());
        let first = self.todo.iter().position(|effect| matches!(effect, Effect::Persist { .. }));
        let at = match self.todo[at] {
            Effect::Persist { .. } => first.unwrap_or(at),
            _ => at,
        };
        let Some(effect) = self.todo.remove(at) else { return };
        match effect {
            Effect::Persist { ticket, change } => {
                if self.chance(12) {
                    self.litter |= self.state.pending.get(&ticket) == Some(&Pending::Nothing);
                    self.state.effect_failed(ticket);
                } else {
                    self.store(change);
                    self.state.effect_done(ticket);
                }
            }
            Effect::Bump { ticket, file } => {
                self.done.note("bump");
                if self.chance(12) {
                    self.state.effect_failed(ticket);
                } else {
                    self.disks[number(file)].bump();
                    self.state.effect_done(ticket);
                }
            }
            Effect::Wake { .. } | Effect::Pin { .. } | Effect::Unpin { .. } => {}
            Effect::Callback { client, call } => self.call(client, call),
        }
    }

    fn call(&mut self, client: ClientId, call: Callback) {
        let peer =
            self.peers.iter().position(|peer| peer.id == Some(client) && peer.silent_until <= self.now);
        let channel = match self.state.begin_callback(client, &call) {
            Ok(channel) => channel,
            Err(NoCallbackPath::Busy) => {
                match call {
                    // The callback times out.
                    Callback::GetAttr { ticket, file, .. } if self.chance(4) => {
                        self.answers.push((ticket, number(file), None, 0));
                    }
                    Callback::Recall { .. } | Callback::NotifyLock { .. } | Callback::Offload { .. }
                        if self.chance(4) => {}
                    call => self.todo.push_back(Effect::Callback { client, call }),
                }
                return;
            }
            Err(NoCallbackPath::Down) => {
                if let Callback::GetAttr { ticket, file, .. } = call {
                    self.answers.push((ticket, number(file), None, 0));
                }
                return;
            }
        };
        let peer = peer.filter(|_| !self.chance(10));
        self.state.end_callback(client, &call, &channel, peer.is_some());
        match call {
            Callback::Recall { stateid, file, .. } => {
                let it = peer.and_then(|at| self.peers[at].delegations.get_mut(&number(file)));
                if let Some(it) = it.filter(|it| it.stateid.other == stateid.other) {
                    it.recalled = true;
                }
            }
            Callback::GetAttr { ticket, file, stateid } => {
                let at = number(file);
                let server = self.disks[at].content;
                let it = peer.and_then(|peer| self.peers[peer].delegations.get(&at));
                let it = it.filter(|it| it.stateid.other == stateid.other);
                let answer = it.map(|it| {
                    let more = u64::from(it.ever);
                    (HolderAttrs { change: it.base.change + more, size: it.base.size + more }, it.dirty)
                });
                let (answer, dirty) = match answer {
                    Some((answer, dirty)) => (Some(answer), dirty),
                    None => (None, None),
                };
                self.answers.push((ticket, at, answer, dirty.unwrap_or(server)));
            }
            Callback::NotifyLock { .. } => self.done.note("notify"),
            Callback::Offload { stateid, .. } => {
                if peer.is_some() {
                    self.state.copy_acknowledged(&stateid);
                    self.done.note("offload");
                }
            }
        }
    }

    /// Delivers a holder's reply.
    fn tell(&mut self) {
        let at = self.pick(self.answers.len());
        let (ticket, at, answer, content) = self.answers.swap_remove(at);
        match self.state.getattr_reply(self.now, ticket, answer) {
            Ok(GetattrOutcome::Modified { permit, .. }) => {
                self.done.note("written");
                self.written.push((ticket, permit, at, Some(content)));
                return;
            }
            Ok(GetattrOutcome::Unmodified(permit)) => {
                self.done.note("untouched");
                self.written.push((ticket, permit, at, None));
                return;
            }
            Err(_) => {}
        }
        for job in self.asked(ticket) {
            self.finish(job, Reply::Status(NfsStat::Delay));
        }
    }

    fn asked(&mut self, ticket: Ticket) -> Vec<Job> {
        let asked = |job: &mut Job| matches!(job.at, Stage::Asked(of) if of == ticket);
        self.jobs.extract_if(.., asked).collect()
    }

    /// Passes on a holder's reply: one bump for all waiting requests.
    fn answer_out(&mut self) {
        let at = self.pick(self.written.len());
        let (ticket, permit, at, content) = self.written.swap_remove(at);
        let change = match content {
            Some(content) => {
                let change = self.disks[at].bump();
                self.vouch(at, change, content);
                change
            }
            None => {
                let change = self.disks[at].query();
                self.vouch(at, change, self.disks[at].content);
                change
            }
        };
        self.state.end_permit(self.now, permit);
        for job in self.asked(ticket) {
            self.finish(job, Reply::Attr { change });
        }
    }
}
