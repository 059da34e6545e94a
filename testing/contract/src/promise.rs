//! The promises, and counts of their checks.

use crate::subject::Claims;

/// A promise that a check can find broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// C1: a change of data changes the value.
    Data,
    /// C1: a change of metadata changes the value.
    Metadata,
    /// C2: no value is below an earlier one.
    Monotonic,
    /// C3: without a change the value is the same.
    Rests,
    /// C1 to C3 across a clean remount.
    Persistent,
    /// C6: a bracketed read is current.
    Current,
    /// A query returns a value if and only if one is promised.
    ChangeAttribute,
    /// The filesystem behaves like the model. Always required.
    Model,
}

impl Promise {
    /// All promises, in the order of reports.
    pub const ALL: [Promise; 8] = [
        Promise::Data,
        Promise::Metadata,
        Promise::Monotonic,
        Promise::Rests,
        Promise::Persistent,
        Promise::Current,
        Promise::ChangeAttribute,
        Promise::Model,
    ];

    /// Returns the name in the contract.
    pub fn label(self) -> &'static str {
        match self {
            Promise::Data => "C1 data",
            Promise::Metadata => "C1 metadata",
            Promise::Monotonic => "C2 grows",
            Promise::Rests => "C3 rests",
            Promise::Persistent => "C1-C3 over a remount",
            Promise::Current => "C6 orders",
            Promise::ChangeAttribute => "change attribute",
            Promise::Model => "model",
        }
    }

    /// Returns whether a backend claims the promise.
    pub fn claimed(self, claims: Claims) -> bool {
        match self {
            Promise::Data => claims.data,
            Promise::Metadata => claims.metadata,
            Promise::Monotonic => claims.monotonic,
            Promise::Rests => claims.rests,
            Promise::Persistent => claims.persistent,
            Promise::Current => claims.current,
            Promise::ChangeAttribute | Promise::Model => true,
        }
    }
}

/// How often a promise was checked and broken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// The number of checks that could have failed.
    pub checked: u64,
    /// The number of checks that failed.
    pub broken: u64,
    /// The first failure.
    pub first: Option<String>,
}

/// A tally for each promise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tallies([Tally; Promise::ALL.len()]);

impl Tallies {
    /// Returns the tally of one promise.
    pub fn of(&self, promise: Promise) -> &Tally {
        &self.0[promise as usize]
    }

    pub(crate) fn count(&mut self, promise: Promise, kept: bool, what: impl FnOnce() -> String) {
        let tally = &mut self.0[promise as usize];
        tally.checked += 1;
        if !kept {
            tally.broken += 1;
            tally.first.get_or_insert_with(what);
        }
    }

    /// Adds the results of another run.
    pub fn add(&mut self, other: &Tallies) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.checked += theirs.checked;
            mine.broken += theirs.broken;
            mine.first = mine.first.take().or_else(|| theirs.first.clone());
        }
    }

    /// Returns the promises that were checked at least `often` times, never broken and not claimed: the
    /// backend could claim them.
    pub fn kept_unclaimed(&self, claims: Claims, often: u64) -> Vec<Promise> {
        let kept = |promise: &Promise| {
            let tally = self.of(*promise);
            !promise.claimed(claims) && tally.checked >= often && tally.broken == 0
        };
        Promise::ALL.into_iter().filter(kept).collect()
    }

    /// Returns the header of the table that [`Tallies::row`] fills.
    pub fn header() -> String {
        let labels: Vec<_> = Promise::ALL[..6].iter().map(|promise| promise.label()).collect();
        format!("| backend | {} |\n|---|{}", labels.join(" | "), "---|".repeat(6))
    }

    /// Returns a row of a Markdown table: `kept` with the number of checks, or the number of failures.
    pub fn row(&self, name: &str) -> String {
        let cell = |promise: &Promise| match self.of(*promise) {
            Tally { checked: 0, .. } => "-".to_owned(),
            Tally { checked, broken: 0, .. } => format!("kept ({checked})"),
            Tally { checked, broken, .. } => format!("broken {broken} of {checked}"),
        };
        let cells: Vec<_> = Promise::ALL[..6].iter().map(cell).collect();
        format!("| {name} | {} |", cells.join(" | "))
    }
}
