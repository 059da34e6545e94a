//! The promises, and how often each was put to the test.

use crate::subject::Claims;

/// What can be found broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// C1: a change of data shows another value.
    Data,
    /// C1: a change of metadata shows another value.
    Metadata,
    /// C2: no value is below an earlier one.
    Monotonic,
    /// C3: nothing changed, and the value is the same.
    Rests,
    /// C1 to C3 over a clean remount.
    Persistent,
    /// C6: a bracketed read is current.
    Current,
    /// A value where one is promised, and none where none is.
    Cookie,
    /// The filesystem does what the model does. Always demanded.
    Model,
}

impl Promise {
    /// All of them, in the order of reports.
    pub const ALL: [Promise; 8] = [
        Promise::Data,
        Promise::Metadata,
        Promise::Monotonic,
        Promise::Rests,
        Promise::Persistent,
        Promise::Current,
        Promise::Cookie,
        Promise::Model,
    ];

    /// As the contract names it.
    pub fn label(self) -> &'static str {
        match self {
            Promise::Data => "C1 data",
            Promise::Metadata => "C1 metadata",
            Promise::Monotonic => "C2 grows",
            Promise::Rests => "C3 rests",
            Promise::Persistent => "C1-C3 over a remount",
            Promise::Current => "C6 orders",
            Promise::Cookie => "cookie",
            Promise::Model => "model",
        }
    }

    /// Whether a backend claims it.
    pub fn claimed(self, claims: Claims) -> bool {
        match self {
            Promise::Data => claims.data,
            Promise::Metadata => claims.metadata,
            Promise::Monotonic => claims.monotonic,
            Promise::Rests => claims.rests,
            Promise::Persistent => claims.persistent,
            Promise::Current => claims.current,
            Promise::Cookie | Promise::Model => true,
        }
    }
}

/// How often a promise was put to the test, and how often it was broken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// Times that the answer could have been wrong.
    pub checked: u64,
    /// Times that it was.
    pub broken: u64,
    /// The first of those.
    pub first: Option<String>,
}

/// A tally for each promise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tallies([Tally; Promise::ALL.len()]);

impl Tallies {
    /// Of one promise.
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

    /// Add what another run found.
    pub fn add(&mut self, other: &Tallies) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.checked += theirs.checked;
            mine.broken += theirs.broken;
            mine.first = mine.first.take().or_else(|| theirs.first.clone());
        }
    }

    /// Promises that were put to the test at least `often` times, never found broken, and are not claimed: the backend
    /// could say more than it does.
    pub fn kept_unclaimed(&self, claims: Claims, often: u64) -> Vec<Promise> {
        let kept = |promise: &Promise| {
            let tally = self.of(*promise);
            !promise.claimed(claims) && tally.checked >= often && tally.broken == 0
        };
        Promise::ALL.into_iter().filter(kept).collect()
    }

    /// Header of the table that [`Tallies::row`] fills.
    pub fn header() -> String {
        let labels: Vec<_> = Promise::ALL[..6].iter().map(|promise| promise.label()).collect();
        format!("| backend | {} |\n|---|{}", labels.join(" | "), "---|".repeat(6))
    }

    /// A row of a Markdown table: `kept` with the number of checks, or how many of them were broken.
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
