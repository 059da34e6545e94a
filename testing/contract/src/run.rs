//! A sequential run against the model.

use crate::model::{Id, Model, Touched, Verdict};
use crate::op::{On, Op};
use crate::promise::{Promise, Tallies};
use crate::subject::{Claims, Refused, Subject};

/// A claimed promise that is broken, or a filesystem that differs from the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The broken promise.
    pub promise: Promise,
    /// Index of the operation in the script; the length of the script means the comparison at the end.
    pub step: usize,
    /// A description.
    pub what: String,
}

pub(crate) type Checked = Result<(), Failure>;

/// Returns the signed difference of two values, in 63 bits (contract C2).
pub(crate) fn step_between(old: u64, new: u64) -> i64 {
    (new.wrapping_sub(old) << 1) as i64
}

pub(crate) struct Run<'a> {
    pub(crate) subject: &'a mut dyn Subject,
    pub(crate) model: Model,
    pub(crate) tallies: Tallies,
    pub(crate) succeeded: u64,
    pub(crate) step: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(subject: &'a mut dyn Subject) -> Self {
        let model = Model::new(subject.limits());
        Self { subject, model, tallies: Tallies::default(), succeeded: 0, step: 0 }
    }

    pub(crate) fn failure(&self, promise: Promise, what: String) -> Failure {
        Failure { promise, step: self.step, what }
    }

    /// Counts a check; a failed check is an error only if the promise was claimed.
    fn hold(&mut self, promise: Promise, kept: bool, claims: Claims, what: impl Fn() -> String) -> Checked {
        self.count_and_hold(promise, kept, claims, &mut || what())
    }

    pub(crate) fn count_and_hold(
        &mut self,
        promise: Promise,
        kept: bool,
        claims: Claims,
        what: &mut dyn FnMut() -> String,
    ) -> Checked {
        self.tallies.count(promise, kept, &mut *what);
        if kept || !promise.claimed(claims) { Ok(()) } else { Err(self.failure(promise, what())) }
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Checked {
        let checked = self.apply_one(op);
        self.step += 1;
        checked
    }

    fn apply_one(&mut self, op: &Op) -> Checked {
        let verdict = self.model.judge(op);
        match (*op, verdict) {
            (_, Verdict::Skip) => return Ok(()),
            (Op::Query { on }, _) => return self.query(on),
            (Op::Look { on }, _) => return self.look(on),
            _ => {}
        }
        let parents = self.model.parents(op);
        let had_change_attribute = self.subject.claims().change_attribute;
        match (self.subject.apply(op), verdict) {
            (Ok(infos), Verdict::Done) => {
                self.succeeded += 1;
                let before: Vec<_> = parents.iter().map(|id| self.rested(*id)).collect();
                let changes = match op {
                    Op::SetXattr { .. } | Op::RemoveXattr { .. } => Some(Promise::Metadata),
                    _ => (!self.model.is_no_op(op)).then_some(Promise::Data),
                };
                self.model.apply(op);
                if *op == Op::Remount {
                    self.remounted(had_change_attribute);
                }
                self.infos(changes, &parents, &before, &infos)
            }
            (Err(Refused::Unsupported), _) | (Err(_), Verdict::Fails) => {
                self.model.refused(op);
                Ok(())
            }
            (Err(Refused::NoSpace), _) if matches!(op, Op::SetXattr { .. } | Op::SetAcl { .. }) => {
                self.model.refused(op);
                Ok(())
            }
            (Ok(_), _) => Err(self.failure(Promise::Model, format!("{op:?} succeeded but should fail"))),
            (Err(error), _) => Err(self.failure(Promise::Model, format!("{op:?}: {error:?}"))),
        }
    }

    /// Forgets the values after a remount if one of the mounts has none: an unchanged file can have another
    /// value then.
    fn remounted(&mut self, had_change_attribute: bool) {
        if !had_change_attribute {
            self.model.nodes.values_mut().for_each(|node| node.touch(Touched::Perhaps));
        }
    }

    /// Returns the last value of a directory, if nothing has happened to it since.
    fn rested(&self, id: Id) -> Option<u64> {
        let node = &self.model.nodes[&id];
        if !self.subject.limits().unheld_rest {
            return None;
        }
        node.last.filter(|_| !(node.data || node.metadata || node.perhaps || node.remounted))
    }

    /// Checks the change info of an operation; `changes` is the promise by which an effect must show.
    fn infos(
        &mut self,
        changes: Option<Promise>,
        parents: &[Id],
        before: &[Option<u64>],
        infos: &[(u64, u64)],
    ) -> Checked {
        let claims = self.subject.claims();
        for (nth, (id, info)) in parents.iter().zip(infos).enumerate() {
            if nth > 0 && parents[0] == *id {
                continue;
            }
            let step = step_between(info.0, info.1);
            if let Some(promise) = changes {
                self.hold(promise, step > 0, claims, || format!("change info {info:?}"))?;
            } else {
                let what = || format!("nothing changed, but the change info is {info:?}");
                self.hold(Promise::Rests, step == 0, claims, what)?;
            }
            if let Some(last) = before[nth] {
                let what = || format!("the value was {last}, but the change info is {info:?}");
                self.hold(Promise::Rests, last == info.0, claims, what)?;
            }
            if let Some(node) = self.model.nodes.get_mut(id) {
                node.record_value(info.1);
            }
        }
        Ok(())
    }

    pub(crate) fn query(&mut self, on: On<'_>) -> Checked {
        let claims = self.subject.claims();
        let limits = self.subject.limits();
        let answer = self.subject.query(on);
        let value = match answer {
            Ok(value) => value,
            Err(error) => return Err(self.failure(Promise::Model, format!("query of {on:?}: {error:?}"))),
        };
        let what = || {
            format!(
                "query of {on:?} returned {value:?}; a change attribute is claimed: {}",
                claims.change_attribute
            )
        };
        self.hold(Promise::ChangeAttribute, value.is_some() == claims.change_attribute, claims, what)?;
        let (Some(value), Some(id)) = (value, self.model.id(on)) else { return Ok(()) };
        self.model.see(on);
        // It cannot be flushed: the value rises by this query, and afterwards.
        let rises = !limits.nameless_rest && self.model.is_held_without_name(id);
        let node = self.model.nodes.get_mut(&id).expect("asked for");
        let (data, changed, remounted) = (node.data, node.data || node.metadata, node.remounted);
        let perhaps = node.perhaps || rises || !limits.unheld_rest;
        let last = node.last;
        node.record_value(value);
        if rises {
            node.touch(Touched::Perhaps);
        }
        let Some(last) = last else { return Ok(()) };
        if !remounted || claims.persistent {
            let what = || format!("{on:?} decreased from {last} to {value}");
            self.hold(Promise::Monotonic, step_between(last, value) >= 0, claims, what)?;
        }
        let kind = if data { Promise::Data } else { Promise::Metadata };
        if changed {
            let promise = if remounted { Promise::Persistent } else { kind };
            let what = || format!("{on:?} changed, but its value stayed {value}");
            self.hold(promise, value != last, claims, what)
        } else if !perhaps {
            let promise = if remounted { Promise::Persistent } else { Promise::Rests };
            let what = || format!("{on:?} did not change, but its value went from {last} to {value}");
            self.hold(promise, value == last, claims, what)
        } else {
            Ok(())
        }
    }

    pub(crate) fn look(&mut self, on: On<'_>) -> Checked {
        self.model.see(on);
        let (seen, expected) = (self.subject.look(on), self.model.expected(on));
        let (Ok(mut seen), Some(expected)) = (seen.clone(), expected) else {
            return Err(self.failure(Promise::Model, format!("read of {on:?}: {seen:?}")));
        };
        let (bytes, wanted) = (seen.bytes.take(), expected.bytes.as_ref());
        if bytes.as_ref() != wanted {
            let place = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
            let at = bytes.as_deref().zip(wanted.map(Vec::as_slice)).and_then(|(a, b)| place(a, b));
            let lengths = (bytes.map(|bytes| bytes.len()), wanted.map(Vec::len));
            let what =
                format!("contents of {on:?} differ: (is, expected) {lengths:?} bytes, first at {at:?}");
            return Err(self.failure(Promise::Model, what));
        }
        seen.bytes = expected.bytes.clone();
        if seen != expected {
            seen.bytes = None;
            let what = format!("{on:?} is {seen:?}, expected {:?}", crate::Seen { bytes: None, ..expected });
            return Err(self.failure(Promise::Model, what));
        }
        self.tallies.count(Promise::Model, true, String::new);
        Ok(())
    }

    /// Compares and queries everything, twice: reading changes nothing.
    pub(crate) fn finish(&mut self) -> Checked {
        self.survey()?;
        self.survey()
    }

    /// Compares and queries everything.
    pub(crate) fn survey(&mut self) -> Checked {
        let paths: Vec<String> = self.model.paths.keys().cloned().collect();
        for path in &paths {
            self.query(On::At(path))?;
            self.look(On::At(path))?;
        }
        let open = self.model.open;
        for slot in (0..crate::op::SLOTS).filter(|slot| open[usize::from(*slot)].is_some()) {
            self.query(On::Open(slot))?;
            self.look(On::Open(slot))?;
        }
        Ok(())
    }
}
