//! The suite detects backends with a planted mistake, classifies the mistake, and shrinks the script to a few
//! operations.

use crate::common::*;
use ivers_contract::op::{How, Kind, On, Over};
use ivers_contract::{
    Claims, InProcess, Limits, Op, Promise, Result, Seen, SharedFile, Subject, check, replay,
};
use std::sync::Arc;

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// chmod does not bump.
    MissesChmod,
    /// A query bumps.
    BumpsOnQuery,
    /// A write of more than a page does not bump.
    MissesLongWrites,
    /// Values start again after a remount.
    ForgetsAtRemount,
    /// There is no value, although one is promised.
    NoChangeAttribute,
    /// Eviction bumps.
    BumpsOnEvict,
    /// A rename succeeds without an effect.
    LosesRename,
    /// A rename that should fail succeeds.
    ReplacesAlways,
}

struct Wrong {
    inner: InProcess,
    mistake: Mistake,
    added: u64,
    forgot: bool,
}

impl Wrong {
    fn new(inner: InProcess, mistake: Mistake) -> Self {
        Self { inner, mistake, added: 0, forgot: false }
    }

    /// Performs an operation and resets the counter.
    fn hide(&mut self, on: On<'_>, op: &Op) -> Result<Vec<(u64, u64)>> {
        let inode = self.inner.inode(on)?;
        let before = inode.counter.peek();
        let done = self.inner.apply(op);
        inode.counter.set_queried(before);
        done
    }
}

impl Subject for Wrong {
    fn name(&self) -> String {
        format!("{:?}", self.mistake)
    }

    fn claims(&self) -> Claims {
        self.inner.claims()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        match (*op, self.mistake) {
            (Op::Chmod { on, .. }, Mistake::MissesChmod) => self.hide(on, op),
            (Op::Write { on, len: 4097.., .. }, Mistake::MissesLongWrites) => self.hide(on, op),
            (Op::Evict, Mistake::BumpsOnEvict) => {
                self.added += 1;
                self.inner.apply(op)
            }
            (Op::Remount, Mistake::ForgetsAtRemount) => {
                self.forgot = true;
                self.inner.apply(op)
            }
            (Op::Rename { over: Over::Replace, .. }, Mistake::LosesRename) => Ok(Vec::new()),
            (Op::Rename { from, to, over: Over::Refuse, info }, Mistake::ReplacesAlways) => {
                self.inner.apply(&Op::Rename { from, to, over: Over::Replace, info })
            }
            _ => self.inner.apply(op),
        }
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        let value = self.inner.query(on)?;
        match self.mistake {
            Mistake::NoChangeAttribute => return Ok(None),
            Mistake::BumpsOnQuery => self.added += 1,
            _ => {}
        }
        let value = value.map(|value| value + self.added);
        Ok(if self.forgot { value.map(|value| value % 8) } else { value })
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        self.inner.look(on)
    }

    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        self.inner.share(name)
    }
}

#[track_caller]
fn caught(mistake: Mistake, as_what: Promise, at_most: usize, inner: impl Fn() -> Box<InProcess>) {
    let mut make = || Box::new(Wrong::new(*inner(), mistake)) as Box<dyn Subject>;
    let broken = check(&mut make, seed(), 20_000).expect_err("the mistake is found");
    println!("{broken}");
    assert_eq!(broken.failure.promise, as_what, "{broken}");
    assert!(broken.script.len() <= at_most, "{broken}");
    // The printed script fails with the mistake, and only with it.
    assert!(replay(&mut *make(), &broken.script).is_err());
    assert!(replay(&mut *inner(), &broken.script).is_ok());
    let again = check(&mut make, seed(), 20_000).expect_err("the same seed");
    assert_eq!((again.found_in, again.script), (broken.found_in, broken.script));
}

#[test]
fn planted_mistakes_are_detected_and_shrunk() {
    let mem = || mem(LAZY, true);
    caught(Mistake::MissesChmod, Promise::Metadata, 4, mem);
    caught(Mistake::BumpsOnQuery, Promise::Rests, 2, mem);
    // Some seeds end with a rename that moves the file, or with an open: removing one operation makes those
    // no shorter.
    caught(Mistake::MissesLongWrites, Promise::Data, 5, mem);
    caught(Mistake::NoChangeAttribute, Promise::ChangeAttribute, 1, mem);
    caught(Mistake::BumpsOnEvict, Promise::Rests, 3, mem);
    caught(Mistake::LosesRename, Promise::Model, 3, mem);
    caught(Mistake::ReplacesAlways, Promise::Model, 5, mem);
}

#[test]
fn values_that_decrease_across_a_remount_are_detected() {
    if ivers_oracle::have_programs(&["mkfs.ext4"]) {
        let base = Arc::new(image("ext4", &[]));
        caught(Mistake::ForgetsAtRemount, Promise::Monotonic, 3, || ext4("ext4", &base, &[LAZY]));
    }
}

/// A backend that claims nothing does not fail: broken promises are counted, and kept ones reported.
struct Modest(Wrong);

impl Subject for Modest {
    fn name(&self) -> String {
        "modest".into()
    }
    fn claims(&self) -> Claims {
        Claims { data: true, ..Claims::nothing() }
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn apply(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        self.0.apply(op)
    }
    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        self.0.query(on)
    }
    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        self.0.look(on)
    }
    fn share(&mut self, name: &str) -> Result<Arc<dyn SharedFile>> {
        self.0.share(name)
    }
}

#[test]
fn claiming_too_little_is_reported_and_too_much_fails() {
    let mut make =
        || Box::new(Modest(Wrong::new(*mem(LAZY, true), Mistake::MissesChmod))) as Box<dyn Subject>;
    let report = check(&mut make, seed(), 6000).expect("metadata is not claimed");
    assert!(report.tallies.of(Promise::Metadata).broken > 0);
    let unclaimed = report.tallies.kept_unclaimed(report.claims, 100);
    assert_eq!(unclaimed, [Promise::Monotonic, Promise::Rests]);
}

/// The form in which failures are printed.
#[test]
fn a_printed_script_replays() {
    let script = [
        Op::Create { path: "a", kind: Kind::File, info: false },
        Op::Query { on: On::At("a") },
        Op::Write { on: On::At("a"), at: 0, len: 1, byte: 1, how: How::Plain },
        Op::Query { on: On::At("a") },
    ];
    let report = replay(&mut *mem(LAZY, true), &script).unwrap();
    assert_eq!(report.tallies.of(Promise::Data).checked, 1);
}
