//! Reduction of a script that failed once to a short one that fails in some runs.

use super::phase::Call;
use super::run::Crowd;
use super::script::{Phase, Script};
use super::{REPEATS, actors_of};
use crate::check::{Make, SHRINK_TIME, simpler};
use crate::op::Op;
use crate::promise::Promise;
use crate::run::Failure;
use std::time::Instant;

/// The number of runs on one subject: making a subject can take much longer than a run.
const ROUNDS: usize = 5;

pub(super) struct Shrunk {
    pub(super) script: Script,
    pub(super) failure: Failure,
    pub(super) history: Vec<Call>,
    pub(super) shows: usize,
}

/// The failure, and the calls of the phase.
pub(super) type Failed = (Failure, Vec<Call>);

struct Shrinker<'a, 'b> {
    make: &'a mut (dyn FnMut() -> Box<dyn crate::Subject> + 'b),
    promise: Promise,
    end: Instant,
    /// A seed that differs in each run.
    pace: u64,
    /// The promise must break in this number of [`REPEATS`] runs.
    enough: usize,
    script: Script,
    failed: Failed,
}

pub(super) fn shrink(make: Make<'_>, mut script: Script, failed: Failed) -> Shrunk {
    // Later phases played no part.
    script.phases.truncate(failed.0.step + 1);
    let promise = failed.0.promise;
    let end = Instant::now() + SHRINK_TIME;
    let mut shrinker = Shrinker { make, promise, end, pace: 0, enough: 1, script, failed };
    shrinker.phases();
    // A shorter script that failed once by chance would not help a reader, and each step would make the race
    // rarer. A failure that is rare from the beginning is kept as it is.
    let script = shrinker.script.clone();
    shrinker.enough = shrinker.shows(&script, 2).max(1);
    shrinker.actors();
    while shrinker.operations() && Instant::now() < end {}
    shrinker.fold();
    shrinker.simplify();
    let script = shrinker.script.clone();
    let shows = shrinker.shows(&script, REPEATS);
    let (failure, history) = shrinker.failed;
    Shrunk { script, failure, history, shows }
}

/// Runs a script with different delays, on a new subject every few runs and after each failure. Passes each
/// result to `each` until that returns true.
pub(super) fn runs(
    make: &mut dyn FnMut() -> Box<dyn crate::Subject>,
    script: &Script,
    pace: &mut u64,
    each: &mut dyn FnMut(Option<Failed>) -> bool,
) {
    let mut left = REPEATS;
    while left > 0 {
        let mut subject = make();
        let mut crowd = match Crowd::new(&mut *subject, actors_of(script)) {
            Ok(crowd) => crowd,
            Err(failure) => {
                each(Some((failure, Vec::new())));
                return;
            }
        };
        for _ in 0..ROUNDS.min(left) {
            left -= 1;
            *pace += 1000;
            let failed = crowd.play(script, *pace).err();
            let broke = failed.is_some();
            let history = std::mem::take(&mut crowd.history);
            if !each(failed.map(|failure| (failure, history))) {
                return;
            }
            if broke {
                break;
            }
        }
    }
}

impl Shrinker<'_, '_> {
    /// Keeps this script if the same promise breaks in enough runs.
    fn take(&mut self, script: Script) -> bool {
        if Instant::now() > self.end || self.shows(&script, self.enough) < self.enough {
            return false;
        }
        self.script = script;
        true
    }

    /// Returns the number of [`REPEATS`] runs in which the same promise breaks, and stops at `at_most`. Keeps
    /// the last failure if they are enough.
    fn shows(&mut self, script: &Script, at_most: usize) -> usize {
        let (promise, mut shows, mut last) = (self.promise, 0, None);
        runs(self.make, script, &mut self.pace, &mut |failed| {
            if let Some(failed) = failed.filter(|(failure, _)| failure.promise == promise) {
                shows += 1;
                last = Some(failed);
            }
            shows < at_most
        });
        if let Some(failed) = last.filter(|_| shows >= self.enough) {
            self.failed = failed;
        }
        shows
    }

    /// Removes phases. Most often the last one is enough; otherwise the last few, then single ones.
    fn phases(&mut self) {
        let all = self.script.phases.len();
        let mut last = 1;
        while last < all {
            let phases = self.script.phases[all - last..].to_vec();
            if self.take(Script { phases, ..self.script.clone() }) {
                break;
            }
            last *= 2;
        }
        let mut piece = self.script.phases.len() / 2;
        while piece > 0 {
            let mut at = 0;
            while at < self.script.phases.len() && self.script.phases.len() > 1 {
                let mut tried = self.script.clone();
                tried.phases.drain(at..(at + piece).min(tried.phases.len()));
                if !self.take(tried) {
                    at += piece;
                }
            }
            piece /= 2;
        }
    }

    /// Removes whole actors.
    fn actors(&mut self) {
        for phase in 0..self.script.phases.len() {
            let mut nth = 0;
            while nth < self.script.phases[phase].actors.len() {
                let mut tried = self.script.clone();
                tried.phases[phase].actors.remove(nth);
                if !self.take(tried) {
                    nth += 1;
                }
            }
        }
    }

    /// Moves the operations of a single actor before the next phase.
    fn fold(&mut self) {
        let mut nth = 0;
        while nth + 1 < self.script.phases.len() {
            let mut tried = self.script.clone();
            let Phase { before, actors } = tried.phases.remove(nth);
            let next = &mut tried.phases[nth].before;
            *next = [before, actors.concat(), std::mem::take(next)].concat();
            if actors.len() > 1 || !self.take(tried) {
                nth += 1;
            }
        }
    }

    /// Removes single operations from each list. Returns whether any was removed.
    fn operations(&mut self) -> bool {
        let mut shorter = false;
        let mut nth = 0;
        while let Some(len) = list(&mut self.script, nth).map(|ops| ops.len()) {
            let mut at = len;
            while at > 0 {
                at -= 1;
                let mut tried = self.script.clone();
                list(&mut tried, nth).expect("it was there").remove(at);
                shorter |= self.take(tried);
            }
            nth += 1;
        }
        let mut tried = self.script.clone();
        tried
            .phases
            .retain(|phase| !phase.before.is_empty() || phase.actors.iter().any(|ops| !ops.is_empty()));
        for phase in &mut tried.phases {
            phase.actors.retain(|ops| !ops.is_empty());
        }
        if tried != self.script {
            self.take(tried);
        }
        shorter
    }

    /// Simplifies the remaining operations.
    fn simplify(&mut self) {
        let mut nth = 0;
        while let Some(len) = list(&mut self.script, nth).map(|ops| ops.len()) {
            for at in 0..len {
                let op = list(&mut self.script, nth).expect("it is there")[at];
                for simpler in simpler(&op) {
                    let mut tried = self.script.clone();
                    list(&mut tried, nth).expect("it is there")[at] = simpler;
                    self.take(tried);
                }
            }
            nth += 1;
        }
    }
}

/// Returns a list of the script by number: the setup, then for each phase its sequential part and each
/// actor's list.
fn list(script: &mut Script, nth: usize) -> Option<&mut Vec<Op>> {
    std::iter::once(&mut script.setup)
        .chain(
            script
                .phases
                .iter_mut()
                .flat_map(|Phase { before, actors }| std::iter::once(before).chain(actors)),
        )
        .nth(nth)
}
