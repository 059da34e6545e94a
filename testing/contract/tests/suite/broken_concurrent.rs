//! The concurrent suite detects mistakes that show only under concurrency, classifies them, and shrinks the
//! script to a few operations.

use crate::common::*;
use ivers_contract::op::{How as Write, On};
use ivers_contract::{
    BrokenTogether, Claims, InProcess, Limits, Op, Promise, Refused, Result, Seen, SharedFile, Subject,
    check, check_together, replay_together,
};
use ivers_vfs::FileType;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// A planted mistake that does not show sequentially.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// A write bumps first and makes the data visible later.
    BumpsBeforeTheData,
    /// Of two concurrent queries the second does not set QUERIED, and the first sets it late.
    ForgetsToMark,
    /// A rename concurrent with another namespace change does not bump its directories.
    ForgetsTheParent,
    /// An append reads the size, waits, and then writes.
    AppendsInTwoSteps,
}

/// Long compared with an operation, short compared with a test.
const GAP: Duration = Duration::from_micros(400);

/// State shared by the users of one filesystem.
#[derive(Default)]
struct Meeting {
    queries: AtomicUsize,
    names: AtomicUsize,
}

/// The filesystem `mem` with a mistake.
struct Wrong {
    inner: InProcess,
    mistake: Mistake,
    meeting: Arc<Meeting>,
}

impl Wrong {
    fn on_mem(mistake: Mistake) -> Box<dyn Subject> {
        Box::new(Self { inner: *mem(LAZY, true), mistake, meeting: Arc::default() })
    }

    /// Writes with the bump before and not after.
    fn bump_first(&mut self, on: On<'_>, op: &Op) -> Result<Vec<(u64, u64)>> {
        let inode = self.inner.inode(on)?;
        if inode.kind != FileType::Regular {
            return self.inner.apply(op);
        }
        let _ = inode.counter.maybe_inc(false);
        thread::sleep(GAP);
        let before = inode.counter.peek_raw();
        let done = self.inner.apply(op);
        inode.counter.set_raw(before);
        done
    }

    fn name_change(&mut self, op: &Op) -> Result<Vec<(u64, u64)>> {
        let meeting = self.meeting.clone();
        let met = meeting.names.fetch_add(1, SeqCst) > 0;
        let done = match *op {
            Op::Rename { from, to, .. } if met => self.quiet_rename(op, [from, to]),
            _ => {
                thread::sleep(GAP);
                self.inner.apply(op)
            }
        };
        meeting.names.fetch_sub(1, SeqCst);
        done
    }

    /// Performs a rename without the bump, if it succeeds. A rename that fails is passed on: a bump would
    /// show only to a change of the same name within microseconds.
    fn quiet_rename(&mut self, op: &Op, names: [&'static str; 2]) -> Result<Vec<(u64, u64)>> {
        let dir = |path: &'static str| path.rsplit_once('/').map_or("", |(dir, _)| dir);
        let dirs = [self.inner.inode(On::At(dir(names[0])))?, self.inner.inode(On::At(dir(names[1])))?];
        let before = dirs.each_ref().map(|dir| dir.counter.peek());
        let done = self.inner.apply(op)?;
        for (dir, before) in dirs.iter().zip(before) {
            dir.counter.set_queried(before);
        }
        Ok(done)
    }

    fn late_query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        let inode = self.inner.inode(on)?;
        let met = self.meeting.queries.fetch_add(1, SeqCst) > 0;
        let value = if met {
            // Another query is about to set QUERIED.
            inode.counter.peek()
        } else {
            thread::sleep(GAP);
            inode.counter.query()
        };
        self.meeting.queries.fetch_sub(1, SeqCst);
        Ok(Some(value))
    }

    fn late_append(&mut self, path: &'static str, len: u32, byte: u8) -> Result<Vec<(u64, u64)>> {
        let on = On::At(path);
        let at = self.inner.inode(on)?.attr().size as u32;
        thread::sleep(GAP);
        self.inner.apply(&Op::Write { on, at, len, byte, how: Write::Plain })
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
            (Op::Write { on, .. }, Mistake::BumpsBeforeTheData) => self.bump_first(on, op),
            (
                Op::Rename { .. } | Op::Create { .. } | Op::Remove { .. } | Op::Link { .. },
                Mistake::ForgetsTheParent,
            ) => self.name_change(op),
            (
                Op::Write { on: On::At(path), len, byte, how: Write::Append, .. },
                Mistake::AppendsInTwoSteps,
            ) => self.late_append(path, len, byte),
            _ => self.inner.apply(op),
        }
    }

    fn query(&mut self, on: On<'_>) -> Result<Option<u64>> {
        match self.mistake {
            Mistake::ForgetsToMark => self.late_query(on),
            _ => self.inner.query(on),
        }
    }

    fn look(&mut self, on: On<'_>) -> Result<Seen> {
        self.inner.look(on)
    }

    fn another(&mut self) -> Result<Box<dyn Subject + Send>> {
        let (inner, meeting) = (self.inner.another(), self.meeting.clone());
        Ok(Box::new(Self { inner, mistake: self.mistake, meeting }))
    }

    fn share(&mut self, _: &str) -> Result<Arc<dyn SharedFile>> {
        Err(Refused::Unsupported)
    }
}

/// The number of scripts to shrink: each has a time limit, which can pass too early, and on a busy machine a
/// short script can hardly ever show the mistake.
const TRIES: u64 = 5;

/// Checks that the mistake is detected as one of these, with at most this number of operations of actors.
#[track_caller]
fn caught(mistake: Mistake, as_what: &[Promise], at_most: usize) {
    let again = |make: &mut dyn FnMut() -> Box<dyn Subject>, broken: &BrokenTogether| {
        (0..10).any(|pace| replay_together(make, &broken.script, pace).is_err())
    };
    let is_good = (0..TRIES).any(|nth| {
        let broken = check_together(&mut || Wrong::on_mem(mistake), seed() + nth, 3000)
            .expect_err("the mistake is found");
        println!("{broken}");
        assert!(as_what.contains(&broken.failure.promise), "{broken}");
        assert!(!again(&mut || mem(LAZY, true), &broken), "no mistake is made: {broken}");
        let done: usize = broken.script.phases.iter().flat_map(|phase| &phase.actors).map(Vec::len).sum();
        let is_short = done <= at_most && broken.script.phases.len() == 1;
        // The printed script shows the mistake in some runs.
        is_short && again(&mut || Wrong::on_mem(mistake), &broken)
    });
    assert!(is_good, "no script is short and shows it again");
    // The mistake does not show sequentially.
    check(&mut || Wrong::on_mem(mistake), seed(), 2000).expect("no actor meets another");
}

#[test]
fn a_bump_before_the_data_is_detected() {
    caught(Mistake::BumpsBeforeTheData, &[Promise::Current, Promise::Data, Promise::Monotonic], 10);
}

#[test]
fn a_query_that_does_not_set_queried_is_detected() {
    caught(Mistake::ForgetsToMark, &[Promise::Data, Promise::Metadata, Promise::Current], 10);
}

#[test]
fn a_rename_without_a_bump_is_detected() {
    // Also of metadata: the value that such a rename puts back can be raised to one that was seen before.
    let as_what = [Promise::Data, Promise::Metadata, Promise::Monotonic, Promise::Current];
    caught(Mistake::ForgetsTheParent, &as_what, 10);
}

#[test]
fn an_append_in_two_steps_is_detected() {
    caught(Mistake::AppendsInTwoSteps, &[Promise::Model], 6);
}
