//! The execution of a phase: calls, their intervals and their results.

use crate::op::Op;
use crate::subject::{Refused, Result, Seen, Subject};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A concurrent user of the subject.
pub(super) type Actor = Box<dyn Subject + Send>;

/// A phase takes milliseconds. One that takes this long is reported while it hangs, because it can never end.
const HANGS: Duration = Duration::from_secs(60);

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done(Vec<(u64, u64)>),
    Value(Option<u64>),
    Seen(Box<Seen>),
    Refused(Refused),
}

/// One operation of one actor. Its times are unique values of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) actor: usize,
    pub(super) op: Op,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) answer: Answer,
}

impl Call {
    pub(super) fn is_done(&self) -> bool {
        !matches!(self.answer, Answer::Refused(_))
    }

    pub(super) fn overlaps(&self, other: &Call) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3}..{:<3} actor {}: Op::{:?} -> ", self.begin, self.end, self.actor, self.op)?;
        match &self.answer {
            Answer::Done(infos) if infos.is_empty() => write!(f, "done"),
            Answer::Done(infos) => write!(f, "done, {infos:?}"),
            Answer::Value(Some(value)) => write!(f, "{value}"),
            Answer::Value(None) => write!(f, "no value"),
            Answer::Seen(seen) => write!(f, "{seen}"),
            Answer::Refused(refused) => write!(f, "{refused:?}"),
        }
    }
}

fn call(actor: &mut Actor, op: &Op) -> Answer {
    fn answer<T>(result: Result<T>, answer: impl FnOnce(T) -> Answer) -> Answer {
        result.map_or_else(Answer::Refused, answer)
    }
    match *op {
        Op::Query { on } => answer(actor.query(on), Answer::Value),
        Op::Look { on } => answer(actor.look(on), |seen| Answer::Seen(Box::new(seen))),
        _ => answer(actor.apply(op), Answer::Done),
    }
}

/// Waits until all actors are started. It spins, because waking a thread takes longer than an operation.
fn meet(there: &AtomicUsize, all: usize) {
    there.fetch_add(1, SeqCst);
    while there.load(SeqCst) < all {
        thread::yield_now();
    }
}

/// Waits for a random short time, so that each run of a phase takes another course.
fn dawdle(rng: &mut StdRng) {
    match rng.random_range(0..20) {
        0..8 => {}
        8..17 => (0..rng.random_range(0..200)).for_each(|_| hint::spin_loop()),
        17..19 => thread::yield_now(),
        _ => (0..rng.random_range(0..20_000)).for_each(|_| hint::spin_loop()),
    }
}

/// Runs the lists of operations concurrently. `pace` seeds the delays. The error of an actor that panics
/// contains its number.
pub(super) fn run(
    actors: &mut [Actor],
    lists: &[Vec<Op>],
    pace: u64,
    clock: &AtomicU64,
) -> std::result::Result<Vec<Call>, usize> {
    let there = AtomicUsize::new(0);
    let all = lists.len().min(actors.len());
    thread::scope(|scope| {
        let (over, wait) = mpsc::channel::<()>();
        let started: Vec<_> = actors
            .iter_mut()
            .zip(lists)
            .enumerate()
            .map(|(nth, (actor, list))| {
                let (over, there) = (over.clone(), &there);
                scope.spawn(move || {
                    let _over = over;
                    let mut rng = StdRng::seed_from_u64(pace.wrapping_mul(31).wrapping_add(nth as u64));
                    meet(there, all);
                    let one = |op: &Op| {
                        dawdle(&mut rng);
                        let begin = clock.fetch_add(1, SeqCst);
                        let answer = call(actor, op);
                        let end = clock.fetch_add(1, SeqCst);
                        Call { actor: nth, op: *op, begin, end, answer }
                    };
                    list.iter().map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        drop(over);
        // Nothing is ever sent: the last actor to finish closes the channel.
        while wait.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout) {
            eprintln!("the actors have not finished after {HANGS:?}: {lists:#?}");
        }
        let mut calls = Vec::new();
        for (nth, thread) in started.into_iter().enumerate() {
            calls.extend(thread.join().map_err(|_| nth)?);
        }
        Ok(calls)
    })
}
