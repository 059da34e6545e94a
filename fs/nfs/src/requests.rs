//! Requests to a server: repeated until there is an answer.
//!
//! A request keeps its slot while connections come and go, so the server executes it once. If the session is
//! lost while nobody knows whether a request was executed, it is in doubt: [`Client::call`] repeats it in the
//! next session, [`Client::call_once`] does not (N10).

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::OpenHow;
use ivers_vfs::{Cred, Error, Result, ServerError};

use crate::background;
use crate::client::{Client, Limit, PAUSES, SLICE};
use crate::clock::now_ms;
use crate::connection::Broken;
use crate::counters::Counters;
use crate::establish;
use crate::exchange::Failure;
use crate::reply::{Compound, Results};
use crate::session::{Acquired, Session, Slot};

/// What became of a request on a slot.
pub(crate) enum Answered {
    /// It was executed.
    Done(Compound),
    /// It was not executed.
    Not,
    /// Nobody knows, or its reply is gone.
    InDoubt,
}

/// The results of a request.
pub struct Outcome {
    /// The status of the last operation that was executed.
    pub status: NfsStat,
    /// Its results, and those of the operations before it.
    pub results: Vec<OpResult>,
    /// The number of the request. Requests that begin later have larger numbers.
    pub sent: u64,
    /// How often the server had lost the state of this client before the request was executed.
    pub run: u64,
}

impl Outcome {
    /// Returns the results and when the request was sent, or the error of the operation that failed.
    pub fn ok(self, place: &str) -> Result<(Results, u64)> {
        let Self { status, results, sent, .. } = self;
        Ok((Compound { status, results }.ok(place)?, sent))
    }

    /// Returns whether one of the first `count` operations failed.
    pub fn ended_within(&self, count: usize) -> bool {
        count > 0 && self.status != NfsStat::Ok && self.results.len() <= count
    }

    /// Returns whether the operation that failed may have changed a part of a file.
    fn may_have_changed_a_part(&self) -> bool {
        self.results.last().is_some_and(|last| {
            last.status() != NfsStat::Ok
                && matches!(
                    last.number(),
                    number::SETATTR
                        | number::WRITE
                        | number::ALLOCATE
                        | number::DEALLOCATE
                        | number::CLONE
                        | number::COPY
                )
        })
    }

    /// As [`Outcome::ok`], if the first `needed` operations succeeded, whatever became of those after them.
    pub fn up_to(self, needed: usize, place: &str) -> Result<(Results, u64)> {
        let succeeded = self.results.iter().filter(|result| result.status() == NfsStat::Ok).count();
        let status = if succeeded >= needed { NfsStat::Ok } else { self.status };
        Ok((Compound { status, results: self.results }.ok(place)?, self.sent))
    }
}

/// Returns whether an operation changes something on the server.
fn changes(op: u32) -> bool {
    matches!(
        op,
        number::OPEN
            | number::CLOSE
            | number::LOCK
            | number::LOCKU
            | number::CREATE
            | number::REMOVE
            | number::RENAME
            | number::LINK
            | number::SETATTR
            | number::WRITE
            | number::COMMIT
            | number::ALLOCATE
            | number::DEALLOCATE
            | number::CLONE
            | number::COPY
            | number::SETXATTR
            | number::REMOVEXATTR
            | number::FREE_STATEID
            | number::DELEGRETURN
    )
}

/// Returns whether an operation changes a file or its attributes.
fn alters(op: &Op) -> bool {
    let is_state = matches!(
        op.number(),
        number::CLOSE
            | number::LOCK
            | number::LOCKU
            | number::COMMIT
            | number::FREE_STATEID
            | number::DELEGRETURN
    );
    let only_opens = matches!(op, Op::Open(args) if args.how == OpenHow::NoCreate);
    changes(op.number()) && !is_state && !only_opens
}

impl Client {
    /// Sends operations in the session and waits for their results. Repeats the request until the server
    /// executed it, perhaps twice if the session is lost.
    pub fn call(&self, caller: &Cred, ops: &[Op]) -> Result<Outcome> {
        self.call_within(caller, ops, self.patience.request)
    }

    /// As [`Client::call`], with a time limit of its own.
    pub fn call_within(&self, caller: &Cred, ops: &[Op], time: Option<Duration>) -> Result<Outcome> {
        self.repeat(caller, ops, time, false)
    }

    /// As [`Client::call_within`], for requests that other requests may wait for: it may use the last slot.
    pub fn call_urgently(&self, caller: &Cred, ops: &[Op], time: Option<Duration>) -> Result<Outcome> {
        self.repeat(caller, ops, time, true)
    }

    fn repeat(&self, caller: &Cred, ops: &[Op], time: Option<Duration>, urgent: bool) -> Result<Outcome> {
        let limit = self.limit_of(time);
        loop {
            if let Some(outcome) = self.attempt(caller, ops, &limit, urgent)? {
                return Ok(outcome);
            }
        }
    }

    /// As [`Client::call`], but never executed twice. `None`: it is in doubt whether it was executed.
    pub fn call_once(&self, caller: &Cred, ops: &[Op]) -> Result<Option<Outcome>> {
        self.attempt(caller, ops, &self.limit_of(self.patience.request), false)
    }

    /// Repeats a request until it is executed or in doubt (`None`).
    fn attempt(&self, caller: &Cred, ops: &[Op], limit: &Limit, urgent: bool) -> Result<Option<Outcome>> {
        let attempted = self.attempt_uncounted(caller, ops, limit, urgent);
        let is_unknown = match &attempted {
            Err(_) => ops.iter().any(|op| changes(op.number())),
            Ok(outcome) => outcome.as_ref().is_some_and(Outcome::may_have_changed_a_part),
        };
        if is_unknown {
            self.void_all();
        }
        if matches!(attempted, Err(Error::Server(ServerError::Timeout))) && ops.iter().any(alters) {
            self.back.pending_change.store(true, Release);
        }
        attempted
    }

    fn attempt_uncounted(
        &self,
        caller: &Cred,
        ops: &[Op],
        limit: &Limit,
        urgent: bool,
    ) -> Result<Option<Outcome>> {
        let auth = self.identity().auth(caller);
        Counters::count(&self.counters.requests);
        if !background::has_caller() {
            Counters::count(&self.counters.background);
        }
        self.counters.operations(ops, self.is_version_40());
        let mut pause = PAUSES.0;
        loop {
            // Before the request: its results then include everything that happened on the server until here.
            let sent = self.sent.fetch_add(1, Relaxed) + 1;
            let (_, session) = self.linked(limit)?;
            // Before the slot: a request that waits for its turn must not keep others from their slots.
            let numbered = match &session.seqids {
                None => None,
                Some(seqids) => {
                    let mut numbered = seqids.begin(ops, SLICE);
                    while numbered.is_none() && session.is_usable() {
                        self.check(limit)?;
                        numbered = seqids.begin(ops, SLICE);
                    }
                    if numbered.is_none() {
                        continue;
                    }
                    numbered
                }
            };
            let slot = match session.acquire(SLICE, urgent) {
                Acquired::Slot(slot) => slot,
                Acquired::Busy => {
                    self.check(limit)?;
                    continue;
                }
                Acquired::Dead => continue,
            };
            let answered = match numbered {
                Some(numbered) => self.on_slot_40(slot, (&session, numbered), &auth, ops, limit)?,
                None => self.on_slot(slot, (&session, sent), &auth, ops, limit)?,
            };
            let Compound { status, results } = match answered {
                Answered::Done(compound) => compound,
                Answered::Not => continue,
                Answered::InDoubt => return Ok(None),
            };
            // A request that changed something is not repeated, even if a later operation asks for a pause.
            let changed = |result: &OpResult| result.status() == NfsStat::Ok && changes(result.number());
            if !matches!(status, NfsStat::Delay | NfsStat::Grace) || results.iter().any(changed) {
                return Ok(Some(Outcome { status, results, sent, run: session.run }));
            }
            Counters::count(&self.counters.retries);
            self.rest(pause, limit)?;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends the request `number`, and repeats it until it is answered.
    fn on_slot(
        &self,
        slot: Slot<'_>,
        (session, number): (&Session, u64),
        auth: &AuthSys,
        ops: &[Op],
        limit: &Limit,
    ) -> Result<Answered> {
        let keeps_reply = ops.iter().any(|op| changes(op.number()));
        let mut pause = PAUSES.0;
        // The server may have executed it.
        let mut lost = Answered::Not;
        // Only the first request surely renews the lease: a server may answer a repeated one from its cache.
        let sent_at_ms = now_ms();
        loop {
            let (first, _) = self.linked(limit)?;
            let connection = self.carrier(first.clone(), session, slot.number());
            let has_callbacks = Arc::ptr_eq(&first, &connection);
            let sent = self.exchange.in_slot(&connection, (session, &slot), auth, ops, keeps_reply, limit.0);
            let answer = match sent {
                Ok(answer) => answer,
                Err(Failure::Final(error)) => {
                    slot.finish(false);
                    return Err(error);
                }
                Err(Failure::Broken(Broken(why))) => {
                    log::info!("{}: {why}", self.name());
                    lost = Answered::InDoubt;
                    self.check(limit)?;
                    Counters::count(&self.counters.retries);
                    continue;
                }
            };
            let mut results = answer.results.into_iter();
            let refused = match results.next() {
                Some(OpResult::Sequence(Ok(ok))) if slot.accepts(&ok) => {
                    self.heed(ok.status_flags, number);
                    if has_callbacks {
                        self.renewed(sent_at_ms);
                    }
                    self.answered(true);
                    slot.finish(true);
                    if answer.status == NfsStat::RetryUncachedRep {
                        return Ok(Answered::InDoubt);
                    }
                    let results = results.collect();
                    return Ok(Answered::Done(Compound { status: answer.status, results }));
                }
                Some(OpResult::Sequence(Ok(_))) => {
                    connection.fail("a reply for another slot");
                    lost = Answered::InDoubt;
                    continue;
                }
                _ => answer.status,
            };
            match refused {
                NfsStat::Delay => {
                    self.rest(pause, limit)?;
                    pause = (pause * 2).min(PAUSES.1);
                }
                NfsStat::ConnNotBoundToSession => {
                    self.rest(PAUSES.0, limit)?;
                    establish::bind(&self.exchange, &connection, session, has_callbacks, limit.0)?;
                }
                NfsStat::ReqTooBig | NfsStat::RepTooBig | NfsStat::RepTooBigToCache | NfsStat::TooManyOps => {
                    slot.finish(false);
                    return Err(crate::status::error(refused, self.name()));
                }
                other => {
                    log::info!("{}: the session is lost: {}", self.name(), other.name());
                    session.kill();
                    slot.finish(false);
                    // A server that refuses every session must not be asked without a pause.
                    self.rest(PAUSES.0, limit)?;
                    return Ok(lost);
                }
            }
        }
    }

    /// Notes that the server answers: a connection that breaks later is replaced at once. `renewed` says
    /// whether the request renewed the lease.
    pub(crate) fn answered(&self, renewed: bool) {
        if renewed {
            self.last_answer_ms.store(self.started.elapsed().as_millis() as u64, Relaxed);
        }
        if let Some(mut link) = self.link.try_lock()
            && link.pause > PAUSES.0
        {
            (link.pause, link.next_dial) = (PAUSES.0, Instant::now());
        }
    }
}
