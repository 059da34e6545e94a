//! Several actors at once: random phases of a few operations each, judged by intervals, and failures reduced
//! to short scripts.
//!
//! # What is judged
//!
//! Each operation has a beginning and an end, taken from one counter. Two overlapping operations have no
//! order; the order of all others is known.
//!
//! - C1: if a change began after one query ended and ended before another began, the values differ
//!   ([`values`])
//! - C2: of two queries that do not overlap, the later value is not below the earlier ([`values`])
//! - C3: if no change overlaps the time between two queries, the values are equal ([`values`])
//! - C6: an observation between two queries with the same value shows everything complete when the second
//!   began; two such observations under one value are equal, unless a change was in progress at the later
//!   query; change info of two changes of a directory does not interleave ([`observations`], [`values`])
//! - the filesystem: an observation shows everything complete when it began; at the end of a phase some
//!   order of its operations, consistent with intervals and results, explains the state ([`observations`],
//!   [`linearize`])
//!
//! Between two phases no operation is in progress, and the sequential checks apply: changed files have new
//! values, unchanged files keep theirs, also across evictions and remounts.
//!
//! # Operations that can be judged
//!
//! An operation that is not about names refers to a file that no other actor can move: a file in a slot, or
//! under a name that stays during the phase ([`script::can_be_judged`] excludes the others). The certain and
//! possible changes of a phase are derived from the results only ([`effects`]).
//!
//! # From a failure to a script
//!
//! A failure of threads is intermittent. So a part of a script is kept if the same promise breaks in one of
//! [`REPEATS`] runs of it. A seed always gives the same script; the random delays before operations differ in
//! each run.

mod effects;
mod generate;
mod linearize;
mod observations;
mod phase;
#[cfg(test)]
mod regressions;
mod run;
mod script;
mod shrink;
#[cfg(test)]
mod tests;
mod values;

pub use run::Figures;
pub use script::{Phase, Script};

use crate::check::Make;
use crate::promise::Tallies;
use crate::run::Failure;
use crate::subject::Claims;
use run::Crowd;
use std::fmt;

/// The number of runs after which a script counts as passing.
pub const REPEATS: usize = 20;

/// The largest number of actors.
const ACTORS: usize = 4;

/// The results of a concurrent run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Together {
    /// The subject.
    pub name: String,
    /// The claims of the subject at the end.
    pub claims: Claims,
    /// The amount of work done.
    pub figures: Figures,
    /// The checks of each promise.
    pub tallies: Tallies,
}

/// A claimed promise that breaks under concurrency, with a script that shows it in some runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenTogether {
    /// The subject.
    pub name: String,
    /// The seed of the original script.
    pub seed: u64,
    /// The promise that the shortened script breaks, and the phase.
    pub failure: Failure,
    /// The shortened script.
    pub script: Script,
    /// The number of operations of the original script.
    pub found_in: usize,
    /// The number of the [`REPEATS`] runs in which it shows.
    pub shows: usize,
    /// The operations of the failed phase, in the order of their beginnings.
    pub history: Vec<String>,
}

impl fmt::Display for BrokenTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seed, failure, script, found_in, shows, history } = self;
        writeln!(f, "{name}: {} is broken: {}", failure.promise.label(), failure.what)?;
        for call in history {
            writeln!(f, "  {call}")?;
        }
        writeln!(
            f,
            "seed {seed}; reduced to {} of {found_in} operations, fails {shows} times in {REPEATS}:",
            script.len()
        )?;
        write!(f, "{script}")
    }
}

/// Runs a script [`REPEATS`] times, or until it fails, with a new subject every few runs. `pace` seeds the
/// delays of the actors.
pub fn replay_together(make: Make<'_>, script: &Script, mut pace: u64) -> Result<(), Failure> {
    let mut ended = Ok(());
    shrink::runs(make, script, &mut pace, &mut |failed| {
        if let Some((failure, _)) = failed {
            ended = Err(failure);
        }
        ended.is_ok()
    });
    ended
}

fn actors_of(script: &Script) -> usize {
    script.phases.iter().map(|phase| phase.actors.len()).max().unwrap_or(0)
}

fn report(crowd: Crowd<'_>) -> Together {
    let Crowd { run, figures, .. } = crowd;
    Together { name: run.subject.name(), claims: run.subject.claims(), figures, tallies: run.tallies }
}

/// Runs random phases of two to four actors. The first broken claimed promise ends the run and is shrunk.
pub fn check_together(make: Make<'_>, seed: u64, phases: usize) -> Result<Together, Box<BrokenTogether>> {
    let mut subject = make();
    let (name, limits) = (subject.name(), subject.limits());
    let script = generate::script(seed, phases, ACTORS, limits);
    let failed = match Crowd::new(&mut *subject, ACTORS) {
        Ok(mut crowd) => match crowd.play(&script, seed) {
            Ok(()) => return Ok(report(crowd)),
            Err(failure) => (failure, std::mem::take(&mut crowd.history)),
        },
        Err(failure) => (failure, Vec::new()),
    };
    drop(subject);
    let found_in = script.len();
    let shrink::Shrunk { script, failure, history, shows } = shrink::shrink(make, script, failed);
    let history = history.iter().map(ToString::to_string).collect();
    Err(Box::new(BrokenTogether { name, seed, failure, script, found_in, shows, history }))
}
