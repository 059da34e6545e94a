//! A concurrent script on a subject; each phase is judged at its end.

use super::effects::Effects;
use super::linearize::{self, Tree};
use super::phase::{self, Actor, Answer, Call};
use super::script::{Phase, Script, can_be_judged, is_for_each, moving, named};
use super::values::Rested;
use super::{observations, values};
use crate::model::{Id, Model, Verdict};
use crate::op::{On, Op};
use crate::promise::Promise;
use crate::run::{Checked, Failure, Run};
use crate::subject::{Refused, Seen, Subject};
use std::sync::atomic::AtomicU64;

/// The amount of work done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Phases run.
    pub phases: u64,
    /// Operations of actors.
    pub calls: u64,
    /// Operations that overlapped one of another actor.
    pub overlapping: u64,
    /// Phases with forced bumps. In these, a value may change although the file does not.
    pub forced: u64,
}

impl Figures {
    pub(super) fn add(&mut self, other: &Figures) {
        self.phases += other.phases;
        self.calls += other.calls;
        self.overlapping += other.overlapping;
        self.forced += other.forced;
    }
}

/// A subject that several actors use, and its model.
pub(super) struct Crowd<'a> {
    pub(super) run: Run<'a>,
    actors: Vec<Actor>,
    pub(super) figures: Figures,
    /// The calls of the failed phase.
    pub(super) history: Vec<Call>,
}

impl<'a> Crowd<'a> {
    pub(super) fn new(subject: &'a mut dyn Subject, actors: usize) -> Result<Self, Failure> {
        let mut crowd = Self {
            run: Run::new(subject),
            actors: Vec::new(),
            figures: Figures::default(),
            history: Vec::new(),
        };
        crowd.enter(actors)?;
        Ok(crowd)
    }

    fn enter(&mut self, actors: usize) -> Checked {
        for _ in 0..actors {
            match self.run.subject.another() {
                Ok(actor) => self.actors.push(actor),
                Err(error) => return Err(self.broken(format!("cannot create another user: {error:?}"))),
            }
        }
        Ok(())
    }

    fn broken(&self, what: String) -> Failure {
        self.run.failure(Promise::Model, what)
    }

    /// Runs the whole script. Existing files stay, so that a script can run again on its own results.
    pub(super) fn play(&mut self, script: &Script, pace: u64) -> Checked {
        self.prepare(&script.setup)?;
        for (nth, phase) in script.phases.iter().enumerate() {
            self.run.step = nth;
            self.prepare(&phase.before)?;
            self.phase(phase, pace.wrapping_add(nth as u64))?;
        }
        self.run.step = script.phases.len();
        self.run.finish()
    }

    /// Runs operations sequentially.
    fn prepare(&mut self, ops: &[Op]) -> Checked {
        let step = self.run.step;
        for op in ops {
            let count = self.actors.len();
            let works = self.run.model.judge(op) == Verdict::Done;
            let (each, again) = (works && is_for_each(op), works && *op == Op::Remount);
            if again {
                // Actors keep files busy, so drop them.
                self.actors.clear();
            }
            let done = self.run.apply(op);
            self.run.step = step;
            done?;
            if again {
                self.enter(count)?;
            }
            for nth in (0..count).filter(|_| each) {
                if let Err(error) = self.actors[nth].apply(op) {
                    return Err(self.broken(format!("{op:?} by actor {nth} failed: {error:?}")));
                }
            }
        }
        Ok(())
    }

    fn phase(&mut self, phase: &Phase, pace: u64) -> Checked {
        // A remount has closed the files that the script holds open.
        let fits = |op: &&Op| can_be_judged(op, phase, &self.run.model);
        let lists: Vec<Vec<Op>> =
            phase.actors.iter().map(|ops| ops.iter().filter(fits).copied().collect()).collect();
        self.run.survey()?;
        let forced = self.run.subject.forced_bumps();
        let clock = AtomicU64::new(1);
        let calls = match phase::run(&mut self.actors, &lists, pace, &clock) {
            Ok(calls) => calls,
            Err(actor) => return Err(self.broken(format!("actor {actor} panicked"))),
        };
        self.count(&calls);
        let judged = self.judge(phase, &calls, forced);
        if judged.is_err() {
            self.history = calls;
            self.history.sort_by_key(|call| call.begin);
        }
        judged
    }

    fn count(&mut self, calls: &[Call]) {
        let met = |call: &&Call| calls.iter().any(|o| o.actor != call.actor && o.overlaps(call));
        self.figures.add(&Figures {
            phases: 1,
            calls: calls.len() as u64,
            overlapping: calls.iter().filter(met).count() as u64,
            forced: 0,
        });
    }

    /// Judges a phase. `forced` are the forced bumps before it.
    fn judge(&mut self, phase: &Phase, calls: &[Call], forced: u64) -> Checked {
        let before = self.run.model.clone();
        let (claims, mut limits) = (self.run.subject.claims(), self.run.subject.limits());
        // On an overloaded machine an actor may stand still for seconds in the middle of a change.
        if self.run.subject.forced_bumps() != forced {
            limits.unheld_rest = false;
            self.figures.forced += 1;
        }
        for call in calls {
            self.answers(call, claims.change_attribute)?;
        }
        let effects = Effects::new(&before, calls);
        let run = &mut self.run;
        let mut held = |promise: Promise, kept: bool, what: &mut dyn FnMut() -> String| {
            run.count_and_hold(promise, kept, claims, what)
        };
        if claims.change_attribute {
            values::hold(&before, calls, &effects, limits, None, &mut held)?;
        }
        observations::hold(&before, calls, &effects, &mut held)?;
        let unsure = self.order(phase, &before, calls)?;
        self.run.survey()?;
        if !claims.change_attribute {
            // Values from before are from another mount.
            return Ok(());
        }
        let rested = vouched(&before);
        let mut rests = vouched(&self.run.model);
        rests.retain(|(id, ..)| !unsure.contains(id));
        let run = &mut self.run;
        let mut held = |promise: Promise, kept: bool, what: &mut dyn FnMut() -> String| {
            run.count_and_hold(promise, kept, claims, what)
        };
        values::hold(&before, calls, &effects, limits, Some(&rests), &mut held)?;
        observations::hold_equal(&before, calls, &effects, (&rested, &rests), &mut held)
    }

    /// Checks calls without an order: queries and syncs must succeed, and queries return a value where there
    /// is one.
    fn answers(&mut self, call: &Call, change_attribute: bool) -> Checked {
        match (&call.op, &call.answer) {
            (Op::Query { .. }, Answer::Value(value)) => {
                let claims = self.run.subject.claims();
                let kept = value.is_some() == change_attribute;
                self.run.count_and_hold(Promise::ChangeAttribute, kept, claims, &mut || format!("{call}"))
            }
            (_, Answer::Refused(Refused::Unsupported)) => Ok(()),
            (op, Answer::Refused(_)) if !linearize::changes(op) => Err(self.broken(format!("{call}"))),
            _ => Ok(()),
        }
    }

    /// Searches for an order that explains the state, and advances the model. Returns the files that are
    /// ambiguous: with concurrent renames another order can give the same tree with other files under the
    /// names.
    fn order(&mut self, phase: &Phase, before: &Model, calls: &[Call]) -> Result<Vec<Id>, Failure> {
        let mut tree = Tree::new();
        if let Err(error) = walk(self.run.subject, "", &mut tree) {
            return Err(self.broken(format!("cannot read the tree after the phase: {error:?}")));
        }
        let kept: Vec<Id> = staying(before, phase);
        let Some(model) = linearize::explain(before, calls, &tree) else {
            let short = |seen: &Seen| Seen { bytes: None, ..seen.clone() };
            let there: Vec<_> = tree
                .iter()
                .map(|(path, seen)| (path, seen.bytes.as_ref().map(Vec::len), short(seen)))
                .collect();
            return Err(self.broken(format!("no order of the operations explains {there:?}")));
        };
        self.run.tallies.count(Promise::Model, true, String::new);
        self.run.succeeded += calls.iter().filter(|call| call.is_done()).count() as u64;
        self.run.model = model;
        let moves: Vec<&Call> = calls.iter().filter(|call| !named(&call.op).is_empty()).collect();
        if moves.iter().any(|one| moves.iter().any(|two| one.actor != two.actor && one.overlaps(two))) {
            let mut unsure = Vec::new();
            for (id, node) in self.run.model.nodes.iter_mut().filter(|(id, _)| !kept.contains(id)) {
                node.forget();
                unsure.push(*id);
            }
            return Ok(unsure);
        }
        Ok(Vec::new())
    }
}

/// Returns the files of which at least one name stays.
fn staying(model: &Model, phase: &Phase) -> Vec<Id> {
    let moving = moving(phase);
    let stays = |path: &String| !moving.contains(path.as_str());
    model.paths.iter().filter(|(path, _)| stays(path)).map(|(_, id)| *id).collect()
}

/// Returns the last state and value of each file.
fn vouched(model: &Model) -> Vec<Rested> {
    let one = |(path, id): (&String, &Id)| {
        let value = model.nodes[id].last?;
        Some((*id, value, model.expected(On::At(path))?))
    };
    model.paths.iter().filter_map(one).collect()
}

/// Lists everything below a directory.
fn walk(subject: &mut dyn Subject, path: &str, tree: &mut Tree) -> crate::Result<()> {
    let seen = subject.look(On::At(path))?;
    for name in seen.names.iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        walk(subject, &below, tree)?;
    }
    tree.insert(path.to_owned(), seen);
    Ok(())
}
