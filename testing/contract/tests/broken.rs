//! The suite finds what it is for: backends with a planted mistake are caught, as what they are, and cut down to a few
//! operations.

mod common;

use common::*;
use ivers_contract::op::{How, Kind, On, Over};
use ivers_contract::{
    Claims, InProcess, Limits, Op, Promise, Result, Seen, SharedFile, Subject, check, replay,
};
use std::sync::Arc;

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// chmod moves nothing.
    MissesChmod,
    /// Asking is a change.
    BumpsOnQuery,
    /// A write of more than a page moves nothing.
    MissesLongWrites,
    /// After a remount, values start again.
    ForgetsAtRemount,
    /// There is no value, though one is promised.
    NoCookie,
    /// Evicting moves values.
    BumpsOnEvict,
    /// A rename says that it was done.
    LosesRename,
    /// What should fail succeeds.
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

    /// Do it, and set the counter back to what it was.
    fn hide(&mut self, on: On<'_>, op: &Op) -> Result<Vec<(u64, u64)>> {
        let inode = self.inner.inode(on)?;
        let before = inode.version.peek();
        let done = self.inner.apply(op);
        inode.version.set_queried(before);
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
            Mistake::NoCookie => return Ok(None),
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
    // What is printed shows the mistake again, and only the mistake.
    assert!(replay(&mut *make(), &broken.script).is_err());
    assert!(replay(&mut *inner(), &broken.script).is_ok());
    let again = check(&mut make, seed(), 20_000).expect_err("the same seed");
    assert_eq!((again.found_in, again.script), (broken.found_in, broken.script));
}

#[test]
fn planted_mistakes_are_caught_and_cut_down() {
    let mem = || mem(LAZY, true);
    caught(Mistake::MissesChmod, Promise::Metadata, 4, mem);
    caught(Mistake::BumpsOnQuery, Promise::Rests, 2, mem);
    // Some seeds end with a rename that puts the file in place or moves it out of a directory, or with an open one: leaving out one operation makes that no shorter.
    caught(Mistake::MissesLongWrites, Promise::Data, 5, mem);
    caught(Mistake::NoCookie, Promise::Cookie, 1, mem);
    caught(Mistake::BumpsOnEvict, Promise::Rests, 3, mem);
    caught(Mistake::LosesRename, Promise::Model, 3, mem);
    caught(Mistake::ReplacesAlways, Promise::Model, 5, mem);
}

#[test]
fn values_that_go_back_over_a_remount_are_caught() {
    if ivers_oracle::have_programs(&["mkfs.ext4"]) {
        let base = Arc::new(image("ext4", &[]));
        caught(Mistake::ForgetsAtRemount, Promise::Monotonic, 3, || ext4("ext4", &base, &[LAZY]));
    }
}

/// A backend that claims nothing is not failed: it is counted, and what it keeps is reported.
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
