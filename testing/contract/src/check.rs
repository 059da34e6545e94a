//! Whole runs, and the reduction of a failure to the shortest script that shows it.

use crate::generate;
use crate::op::Op;
use crate::promise::{Promise, Tallies};
use crate::run::{Failure, Run};
use crate::subject::{Claims, Subject};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::fmt;
use std::time::{Duration, Instant};

/// The time limit of shrinking; the script is then short enough to read.
pub(crate) const SHRINK_TIME: Duration = Duration::from_secs(60);

/// Makes a subject in its initial state; shrinking calls it repeatedly.
pub type Make<'a> = &'a mut dyn FnMut() -> Box<dyn Subject>;

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The subject.
    pub name: String,
    /// The claims of the subject at the end.
    pub claims: Claims,
    /// The number of operations that succeeded.
    pub succeeded: u64,
    /// The checks of each promise.
    pub tallies: Tallies,
}

/// A claimed promise that does not hold, with a script that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The subject.
    pub name: String,
    /// The seed that replays the run.
    pub seed: u64,
    /// The promise that the shortened script breaks, and where.
    pub failure: Failure,
    /// The shortened script.
    pub script: Vec<Op>,
    /// The length of the original script.
    pub found_in: usize,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { promise, step, what } = &self.failure;
        writeln!(f, "{}: {} is broken: {what}", self.name, promise.label())?;
        writeln!(f, "seed {}; reduced to {} of {} operations:", self.seed, self.script.len(), self.found_in)?;
        for (nth, op) in self.script.iter().enumerate() {
            writeln!(f, "    Op::{op:?},{}", if nth == *step { "    // here" } else { "" })?;
        }
        Ok(())
    }
}

/// Runs a script from the initial state.
pub fn replay(subject: &mut dyn Subject, script: &[Op]) -> Result<Report, Failure> {
    let mut run = Run::new(subject);
    script.iter().try_for_each(|op| run.apply(op)).and_then(|()| run.finish())?;
    Ok(report(run))
}

fn report(run: Run<'_>) -> Report {
    let Run { subject, tallies, succeeded, .. } = run;
    Report { name: subject.name(), claims: subject.claims(), succeeded, tallies }
}

/// Runs random operations. The first broken claimed promise ends the run and is shrunk.
pub fn check(make: Make<'_>, seed: u64, operations: usize) -> Result<Report, Box<Broken>> {
    let mut subject = make();
    let name = subject.name();
    let mut run = Run::new(&mut *subject);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut script = Vec::new();
    let mut ended = Ok(());
    while ended.is_ok() && script.len() < operations {
        let op = generate::next(&mut rng, &run.model);
        script.push(op);
        ended = run.apply(&op);
    }
    match ended.and_then(|()| run.finish()) {
        Ok(()) => Ok(report(run)),
        Err(failure) => {
            drop(subject);
            let found_in = script.len();
            let (script, failure) = shrink(make, script, failure);
            Err(Box::new(Broken { name, seed, failure, script, found_in }))
        }
    }
}

/// Removes operations, long runs first, while the same promise breaks. Then simplifies the rest.
fn shrink(make: Make<'_>, mut script: Vec<Op>, mut failure: Failure) -> (Vec<Op>, Failure) {
    let end = Instant::now() + SHRINK_TIME;
    let mut still = |script: &[Op], promise: Promise| {
        let found = replay(&mut *make(), script).err();
        found.filter(|found| found.promise == promise)
    };
    let mut piece = script.len().div_ceil(2);
    while Instant::now() < end {
        let (mut at, mut shorter) = (0, false);
        while at < script.len() && Instant::now() < end {
            let mut tried = script.clone();
            tried.drain(at..(at + piece).min(script.len()));
            match still(&tried, failure.promise) {
                Some(found) => (script, failure, shorter) = (tried, found, true),
                None => at += piece,
            }
        }
        if piece == 1 && !shorter {
            break;
        }
        piece = piece.div_ceil(2);
    }
    for nth in 0..script.len() {
        for simpler in simpler(&script[nth]) {
            let mut tried = script.clone();
            tried[nth] = simpler;
            if Instant::now() < end
                && let Some(found) = still(&tried, failure.promise)
            {
                (script, failure) = (tried, found);
            }
        }
    }
    (script, failure)
}

pub(crate) fn simpler(op: &Op) -> Vec<Op> {
    use crate::op::How;
    match *op {
        Op::Write { on, at, len, byte, how } => vec![
            Op::Write { on, at, len: 1, byte, how },
            Op::Write { on, at: 0, len, byte, how: How::Plain },
            Op::Write { on, at: 0, len: 1, byte: 1, how: How::Plain },
        ],
        Op::SetXattr { on, nth, byte, .. } => vec![Op::SetXattr { on, nth, len: 1, byte, info: false }],
        Op::Born { path, perm, .. } => vec![Op::Born { path, perm, size: 0, info: false }],
        Op::Truncate { on, .. } => vec![Op::Truncate { on, size: 0 }, Op::Truncate { on, size: 1 }],
        Op::Create { path, kind, .. } => vec![Op::Create { path, kind, info: false }],
        Op::Remove { path, .. } => vec![Op::Remove { path, info: false }],
        Op::Link { from, to, .. } => vec![Op::Link { from, to, info: false }],
        Op::Rename { from, to, over, .. } => vec![Op::Rename { from, to, over, info: false }],
        _ => Vec::new(),
    }
}
