//! Several actors at the same time: random phases of a few operations each, judged by intervals, and failures cut down to a short
//! script.
//!
//! # What is judged
//!
//! Each operation has a beginning and an end by one counter. Two that overlap have no order; of all others the order is known.
//!
//! | promise | what is held against it | where |
//! |---|---|---|
//! | C1 | a change that began after one query had ended and ended before another began: the values differ | [`values`] |
//! | C2 | of two queries that do not overlap the later one is not below the earlier one | [`values`] |
//! | C3 | if no change overlaps the time from the one to the other, they are the same | [`values`] |
//! | C6 | a look between two queries of the same value shows what was complete when the second began; two such looks under one value show the same, unless a change was still under way when the later value was asked for; change info of two changes of a directory does not interleave | [`looks`], [`values`] |
//! | the filesystem | a look shows what was complete when it began; at the end of a phase there is an order of its operations, true to the intervals and to what each answered, that gives what is there | [`looks`], [`orders`] |
//!
//! Between two phases nothing is under way, and the sequential part judges: what a phase changed shows in the value after it, what it
//! did not has the same, over evictions and remounts too.
//!
//! # What it takes to be judged
//!
//! An operation that is not about names is for a file that nobody can take from its place: a file in a slot, or under a name that
//! stays for the phase ([`script::can_be_judged`] leaves out the others). What a phase changed for certain and what perhaps is told
//! from the answers alone ([`effects`]).
//!
//! # From a failure to a script
//!
//! A failure of threads comes and goes. So a part of a script is kept if the same promise breaks in one of [`REPEATS`] runs of it.
//! The seed gives the same script each time; how long actors dawdle before their operations differs from run to run.

mod effects;
#[cfg(test)]
mod found;
mod generate;
mod looks;
mod orders;
mod phase;
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

/// How often a script is run before it counts as one that shows nothing.
pub const REPEATS: usize = 20;

/// How many there are.
const ACTORS: usize = 4;

/// What the actors found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Together {
    /// The subject.
    pub name: String,
    /// What it claimed at the end.
    pub claims: Claims,
    /// How much was tried.
    pub figures: Figures,
    /// Checks, promise by promise.
    pub tallies: Tallies,
}

/// A claimed promise that does not hold while others are at work, with the script that shows it now and then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenTogether {
    /// The subject.
    pub name: String,
    /// Gives the whole script again.
    pub seed: u64,
    /// What the shortened script breaks, and in which phase.
    pub failure: Failure,
    /// The shortened script.
    pub script: Script,
    /// How many operations the whole one has.
    pub found_in: usize,
    /// In how many of [`REPEATS`] runs it shows.
    pub shows: usize,
    /// What was done in the phase that failed, in the order of beginnings.
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
            "seed {seed}; {} of {found_in} operations are enough, {shows} times in {REPEATS}:",
            script.len()
        )?;
        write!(f, "{script}")
    }
}

/// Run a script [`REPEATS`] times, or until it fails, on new subjects every few runs. Other values of `pace` let the actors dawdle
/// otherwise.
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

/// Run random phases of two to four actors. The first claimed promise that breaks ends the run and is shrunk.
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
