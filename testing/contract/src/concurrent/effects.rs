//! The certain and possible effects of each operation of a phase, derived from its result and the state
//! before the phase, without assuming an order.

use super::linearize::changes;
use super::phase::{Answer, Call};
use super::script::{bearer, named};
use crate::model::{Id, Model};
use crate::op::*;
use crate::promise::Promise;
use crate::subject::Refused;
use std::collections::BTreeSet;

/// The effect of a call on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// A change, which this promise makes visible.
    Certain(Promise),
    /// A possible change.
    Perhaps,
}

/// The possible effects of a whole phase.
pub(super) struct Effects<'a> {
    model: &'a Model,
    calls: &'a [Call],
    /// Files that were, or may have been, renamed.
    renamed: BTreeSet<Id>,
    /// Names that can refer to the same file.
    links: BTreeSet<&'a str>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(model: &'a Model, calls: &'a [Call]) -> Self {
        let done = || calls.iter().filter(|call| call.is_done());
        let moving: BTreeSet<Name> = done().flat_map(|call| named(&call.op)).collect();
        let source = |call: &Call| match call.op {
            Op::Link { from, .. } => model.paths.get(from).copied(),
            _ => None,
        };
        let there = moving.iter().filter_map(|path| model.paths.get(*path).copied());
        let renamed = there.chain(done().filter_map(source)).collect();
        let linked = |path: &str| model.paths.get(path).is_some_and(|id| model.nodes[id].names > 1);
        let mut links: BTreeSet<&str> =
            model.paths.keys().map(String::as_str).filter(|path| linked(path)).collect();
        for call in done() {
            if let Op::Link { from, to, .. } = call.op {
                links.extend([from, to]);
            }
        }
        // A rename passes them on.
        loop {
            let before = links.len();
            for call in done() {
                if let Op::Rename { from, to, .. } = call.op
                    && (links.contains(from) || links.contains(to))
                {
                    links.extend([from, to]);
                }
            }
            if links.len() == before {
                break;
            }
        }
        Self { model, calls, renamed, links }
    }

    /// Returns whether a call can be a rename between two names of one file, which does nothing and succeeds.
    pub(super) fn is_perhaps_nothing(&self, op: &Op) -> bool {
        matches!(*op, Op::Rename { from, to, .. } if self.links.contains(from) && self.links.contains(to))
    }

    /// Returns the effect of a call on a file that existed before the phase; `None` if it had none.
    pub(super) fn on(&self, call: &Call, id: Id) -> Option<Effect> {
        use Effect::*;
        if !changes(&call.op) {
            return None;
        }
        let mine = bearer(&call.op).is_some_and(|on| self.model.id(on) == Some(id));
        match &call.answer {
            Answer::Refused(Refused::Error(_)) => return None,
            Answer::Refused(_) => return mine.then_some(Perhaps),
            _ => {}
        }
        let is_parent = || self.model.parents(&call.op).contains(&id);
        match call.op {
            Op::Link { .. } if mine => Some(Certain(Promise::Metadata)),
            Op::Create { .. } | Op::Remove { .. } | Op::Link { .. } if is_parent() => {
                Some(Certain(Promise::Data))
            }
            Op::Rename { .. } if is_parent() => {
                Some(if self.is_perhaps_nothing(&call.op) { Perhaps } else { Certain(Promise::Data) })
            }
            Op::Remove { .. } | Op::Rename { .. } => self.renamed.contains(&id).then_some(Perhaps),
            Op::Store { slot, .. } => {
                let mapped = self.model.maps[usize::from(slot)].is_some_and(|(mapped, _)| mapped == id);
                mapped.then_some(Certain(Promise::Data))
            }
            Op::Write { .. } => mine.then_some(Certain(Promise::Data)),
            Op::Chmod { .. } | Op::RemoveXattr { .. } => mine.then_some(Certain(Promise::Metadata)),
            Op::SetXattr { nth, len, byte, .. } if mine => {
                let value = vec![byte; len as usize];
                let there = self.model.nodes[&id].xattrs.get(&nth) == Some(&value);
                let again = |other: &&Call| match other.op {
                    Op::SetXattr { nth: n, len: l, byte: b, .. } => (n, l, b) == (nth, len, byte),
                    _ => false,
                };
                let only = !there && self.calls.iter().filter(again).count() == 1;
                Some(if only { Certain(Promise::Metadata) } else { Perhaps })
            }
            _ => mine.then_some(Perhaps),
        }
    }
}
