//! Scripts for several actors; every part of a script is a script.

use crate::model::Model;
use crate::op::*;
use std::collections::BTreeSet;
use std::fmt;

/// A script for several actors: a sequential setup, then phases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script {
    /// Creates the files. Every actor performs [`Op::Open`], [`Op::Close`], [`Op::Map`] and [`Op::Unmap`] for
    /// itself, here and before a phase: so a slot holds the same file for all.
    pub setup: Vec<Op>,
    /// Each phase begins after the end of the one before.
    pub phases: Vec<Phase>,
}

/// Concurrent operations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Phase {
    /// Sequential operations before the phase: syncs, evictions, remounts, opens.
    pub before: Vec<Op>,
    /// A list of operations per actor. The actors start together.
    pub actors: Vec<Vec<Op>>,
}

impl Script {
    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        let of = |phase: &Phase| phase.before.len() + phase.actors.iter().map(Vec::len).sum::<usize>();
        self.setup.len() + self.phases.iter().map(of).sum::<usize>()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Formats the script as Rust code for a test.
impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(ops: &[Op]) -> String {
            ops.iter().map(|op| format!("Op::{op:?}")).collect::<Vec<_>>().join(", ")
        }
        writeln!(f, "Script {{")?;
        writeln!(f, "    setup: vec![{}],", list(&self.setup))?;
        writeln!(f, "    phases: vec![")?;
        for phase in &self.phases {
            writeln!(f, "        Phase {{ before: vec![{}], actors: vec![", list(&phase.before))?;
            for ops in &phase.actors {
                writeln!(f, "            vec![{}],", list(ops))?;
            }
            writeln!(f, "        ] }},")?;
        }
        writeln!(f, "    ],")?;
        writeln!(f, "}}")
    }
}

/// Returns whether every actor performs the operation for itself.
pub(super) fn is_for_each(op: &Op) -> bool {
    matches!(op, Op::Open { .. } | Op::Close { .. } | Op::Map { .. } | Op::Unmap { .. })
}

/// Returns the names that an operation creates, removes or moves.
pub(super) fn named(op: &Op) -> Vec<Name> {
    match *op {
        Op::Create { path, .. } | Op::Born { path, .. } | Op::Remove { path, .. } => vec![path],
        Op::Rename { from, to, .. } => vec![from, to],
        Op::Link { to, .. } => vec![to],
        _ => Vec::new(),
    }
}

/// Returns the file of an operation that is not about names, or that a new name is given to.
pub(super) fn bearer(op: &Op) -> Option<On<'static>> {
    match *op {
        Op::Link { from, .. } => Some(On::At(from)),
        _ => op.on(),
    }
}

/// Returns the names that move in a phase.
pub(super) fn moving(phase: &Phase) -> BTreeSet<Name> {
    phase.actors.iter().flatten().flat_map(named).collect()
}

/// Returns whether an operation can be judged while others run. Its file must not depend on them: it is named
/// by a slot, or by a name that stays during the phase. Directories stay, and no file is opened or mapped. A
/// store needs its page to stay: past the end it raises a signal.
pub(super) fn can_be_judged(op: &Op, phase: &Phase, model: &Model) -> bool {
    let moving = moving(phase);
    let is_dir = |path: Name| model.paths.get(path).is_some_and(|id| model.nodes[id].kind == Kind::Directory);
    let shrinks = |ops: &Op| matches!(ops, Op::Truncate { .. });
    match *op {
        Op::Create { kind: Kind::File, .. } | Op::Remove { .. } | Op::Rename { .. } | Op::Link { .. }
            if named(op).into_iter().any(is_dir) =>
        {
            false
        }
        Op::Rename { from, to, .. } => from != to,
        Op::Create { kind, .. } => kind == Kind::File,
        Op::Remove { .. } | Op::Evict | Op::Sync { on: None } => true,
        Op::Store { slot, at, .. } => {
            let mapped = model.maps[usize::from(slot)];
            mapped.is_some_and(|(id, len)| at < len && (at as usize) < model.nodes[&id].bytes.len())
                && !phase.actors.iter().flatten().any(shrinks)
        }
        _ => bearer(op).is_some_and(|on| match on {
            On::At(path) => model.id(on).is_some() && !moving.contains(path),
            On::Open(_) => model.id(on).is_some(),
        }),
    }
}
