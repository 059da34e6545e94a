//! A search for an order of a phase's operations that explains the state at its end.
//!
//! In such an order no operation precedes one that ended before it began, and each operation has the result
//! that it returned: a failed operation must fail there. This is linearizability, decided with the sequential
//! model.

use super::phase::{Answer, Call};
use crate::model::{Id, Model, Verdict};
use crate::op::{On, Op};
use crate::subject::{Refused, Seen};
use std::collections::{BTreeMap, HashSet};

/// The first identifier of files created in a phase. Each operation has its own range, so that equal states
/// compare equal.
const STEP: Id = 1000;

/// The state: each path and what it shows.
pub(super) type Tree = BTreeMap<String, Seen>;

/// Returns whether the position of an operation in the order can matter.
pub(super) fn changes(op: &Op) -> bool {
    !matches!(op, Op::Query { .. } | Op::Look { .. } | Op::Sync { .. } | Op::Evict)
}

struct Search<'a> {
    lists: Vec<Vec<&'a Call>>,
    tree: &'a Tree,
    base: Id,
    tried: HashSet<(Vec<usize>, u64)>,
}

/// Searches for an order from the model before the phase to the present state, and returns the model after
/// it; `None` if there is none. States are tried once, so a phase of a few operations has few.
pub(super) fn explain(model: &Model, calls: &[Call], tree: &Tree) -> Option<Model> {
    let actors = calls.iter().map(|call| call.actor + 1).max().unwrap_or(0);
    let list = |nth| calls.iter().filter(move |call| call.actor == nth && changes(&call.op)).collect();
    let base = model.next.div_ceil(STEP) * STEP;
    let mut search = Search { lists: (0..actors).map(list).collect(), tree, base, tried: HashSet::new() };
    let mut after = search.go(model, &mut vec![0; actors])?;
    after.next = base + STEP;
    Some(after)
}

impl Search<'_> {
    fn go(&mut self, model: &Model, at: &mut Vec<usize>) -> Option<Model> {
        if !self.tried.insert((at.clone(), model.digest())) {
            return None;
        }
        let next = |(list, at): (&Vec<_>, &usize)| list.get(*at).copied();
        let mut heads: Vec<&Call> = self.lists.iter().zip(&*at).filter_map(next).collect();
        let Some(soonest) = heads.iter().map(|call| call.end).min() else {
            return self.is_there(model).then(|| model.clone());
        };
        heads.retain(|call| call.begin < soonest);
        // Tries operations in the order of their ends, which is the most likely order.
        heads.sort_by_key(|call| call.end);
        for call in heads {
            let nth = self.base + call.actor * 100 + at[call.actor];
            let Some(model) = outcome(model, call, nth) else { continue };
            at[call.actor] += 1;
            let found = self.go(&model, at);
            at[call.actor] -= 1;
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn is_there(&self, model: &Model) -> bool {
        model.paths.len() == self.tree.len()
            && self.tree.iter().all(|(path, seen)| model.expected(On::At(path)).as_ref() == Some(seen))
    }
}

/// Returns whether an operation checks that the name still refers to the expected file, and so can fail.
fn may_fail(op: &Op) -> bool {
    matches!(op, Op::Remove { info: true, .. } | Op::Rename { info: true, .. })
}

/// Returns the model after an operation with this result, if it is possible. A created file gets the
/// identifier `nth`.
fn outcome(model: &Model, call: &Call, nth: Id) -> Option<Model> {
    let verdict = model.judge(&call.op);
    let mut after = model.clone();
    match (&call.answer, verdict) {
        (Answer::Refused(Refused::Unsupported | Refused::NoSpace), _) => after.refused(&call.op),
        (Answer::Refused(Refused::Error(_)), Verdict::Fails) => {}
        (Answer::Refused(Refused::Error(_)), _) if may_fail(&call.op) => {}
        (Answer::Refused(_), _) | (_, Verdict::Fails) => return None,
        (_, Verdict::Skip) => {}
        (_, Verdict::Done) => {
            after.next = nth;
            after.apply(&call.op);
        }
    }
    Some(after)
}
