//! Checks each observation against the changes before it and during it, and against the value that it was
//! made under.

use super::effects::Effects;
use super::phase::{Answer, Call};
use super::script::{bearer, named};
use super::values::{Held, Rested, name_of};
use crate::model::{Id, Model};
use crate::op::*;
use crate::promise::Promise;
use crate::subject::Seen;
use std::collections::BTreeSet;

/// An observation of a file that existed before the phase.
struct Observation<'a> {
    id: Id,
    begin: u64,
    end: u64,
    seen: &'a Seen,
    /// The value, if it was the same before and after the observation, and the time of the second query.
    vouched: Option<(u64, u64)>,
}

/// A field that a call set, perhaps at the same time as others.
struct Set<V> {
    value: V,
    begin: u64,
    end: u64,
}

/// Returns whether an observation that ended at `end` can show this value, if every call that ended by `due`
/// must be visible: it was set last, or concurrently.
fn explains<V: PartialEq>(first: &V, sets: &[Set<V>], shown: &V, end: u64, due: u64) -> bool {
    let overwritten = |since: u64| sets.iter().any(|later| later.begin > since && later.end < due);
    (shown == first && !sets.iter().any(|set| set.end < due))
        || sets.iter().any(|set| set.value == *shown && set.begin < end && !overwritten(set.end))
}

/// Returns the observations of a phase, with the queries around them.
fn observations<'a>(model: &Model, calls: &'a [Call]) -> Vec<Observation<'a>> {
    let asked =
        |call: Option<&Call>, by: &Call, on: On<'_>| match call {
            Some(Call {
                actor, op: Op::Query { on: of }, answer: Answer::Value(Some(value)), begin, ..
            }) if *actor == by.actor && model.id(*of) == model.id(on) => Some((*value, *begin)),
            _ => None,
        };
    let mut observations = Vec::new();
    for (nth, call) in calls.iter().enumerate() {
        let (Op::Look { on }, Answer::Seen(seen)) = (call.op, &call.answer) else { continue };
        let Some(id) = model.id(on) else { continue };
        let before = asked(nth.checked_sub(1).and_then(|nth| calls.get(nth)), call, on);
        let after = asked(calls.get(nth + 1), call, on);
        let vouched = before.zip(after).filter(|(old, new)| old.0 == new.0).map(|(_, new)| new);
        observations.push(Observation { id, begin: call.begin, end: call.end, seen, vouched });
    }
    observations
}

/// Checks that each observation shows all changes before it and, if the value before and after it is the
/// same, all changes before the second query.
pub(super) fn hold(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    for look in observations(model, calls) {
        let (promise, due) =
            look.vouched.map_or((Promise::Model, look.begin), |(_, due)| (Promise::Current, due));
        let what = stale(model, calls, effects, &look, due);
        held(promise, what.is_none(), &mut || {
            let what = what.as_deref().unwrap_or_default();
            format!(
                "an observation of {} ({}..{}) does not show what was complete at {due}: {what}",
                name_of(model, look.id),
                look.begin,
                look.end
            )
        })?;
    }
    Ok(())
}

/// Returns what an observation fails to show.
fn stale(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    look: &Observation<'_>,
    due: u64,
) -> Option<String> {
    let node = &model.nodes[&look.id];
    let mine =
        |call: &&Call| call.is_done() && bearer(&call.op).is_some_and(|on| model.id(on) == Some(look.id));
    fn sets<'a, V>(calls: impl Iterator<Item = &'a Call>, value: impl Fn(&Op) -> Option<V>) -> Vec<Set<V>> {
        let one = |call: &Call| Some(Set { value: value(&call.op)?, begin: call.begin, end: call.end });
        calls.filter_map(one).collect()
    }
    // Permission bits.
    if let Some(shown) = look.seen.perm {
        let perms = sets(calls.iter().filter(mine), |op| match *op {
            Op::Chmod { perm, .. } => Some(perm),
            _ => None,
        });
        if !explains(&node.perm, &perms, &shown, look.end, due) {
            return Some(format!("permission bits {shown:o}"));
        }
    }
    // Attributes; a refused one can have lost its old value.
    for nth in 0..XATTRS {
        let refused =
            |call: &Call| matches!(call.op, Op::SetXattr { nth: n, .. } if n == nth) && !call.is_done();
        if calls.iter().any(refused) {
            continue;
        }
        let values = sets(calls.iter().filter(mine), |op| match *op {
            Op::SetXattr { nth: n, len, byte, .. } if n == nth => Some(Some(vec![byte; len as usize])),
            Op::RemoveXattr { nth: n, .. } if n == nth => Some(None),
            _ => None,
        });
        let shown = look.seen.xattrs.iter().find(|(n, _)| *n == nth).map(|(_, value)| value.clone());
        if !explains(&node.xattrs.get(&nth).cloned(), &values, &shown, look.end, due) {
            return Some(format!("attribute {nth}"));
        }
    }
    stale_bytes(model, calls, look, due).or_else(|| stale_names(model, calls, effects, look, due))
}

/// Checks bytes written to the file, unless its size was also set: then only the end of the phase can be
/// judged.
fn stale_bytes(model: &Model, calls: &[Call], look: &Observation<'_>, due: u64) -> Option<String> {
    let first = &model.nodes[&look.id].bytes;
    let shown = look.seen.bytes.as_deref()?;
    let mut writes: Vec<(std::ops::Range<usize>, &Call, u8)> = Vec::new();
    for call in calls.iter().filter(|call| call.is_done()) {
        match call.op {
            Op::Write { on, at, len, byte, how } if model.id(on) == Some(look.id) => {
                if how == How::Append {
                    return None;
                }
                writes.push((at as usize..(at + len) as usize, call, byte));
            }
            Op::Store { slot, at, byte }
                if model.maps[usize::from(slot)].is_some_and(|(id, _)| id == look.id) =>
            {
                writes.push((at as usize..at as usize + 1, call, byte));
            }
            Op::Truncate { on, .. } if model.id(on) == Some(look.id) => return None,
            _ => {}
        }
    }
    let places: BTreeSet<usize> =
        writes.iter().flat_map(|(range, ..)| [range.start, range.end - 1]).collect();
    for at in places.into_iter().filter(|at| *at < first.len()) {
        let over = writes.iter().filter(|(range, ..)| range.contains(&at));
        let sets: Vec<Set<Option<u8>>> = over
            .map(|(_, call, byte)| Set { value: Some(*byte), begin: call.begin, end: call.end })
            .collect();
        let byte = shown.get(at).copied();
        if !explains(&Some(first[at]), &sets, &byte, look.end, due) {
            return Some(format!("byte {at} is {byte:?}"));
        }
    }
    None
}

/// Checks the names in a directory; where a rename can have done nothing, only the end of the phase can be
/// judged.
fn stale_names(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    look: &Observation<'_>,
    due: u64,
) -> Option<String> {
    let shown = look.seen.names.as_deref()?;
    let dir = model.paths.iter().find(|(_, id)| **id == look.id)?.0;
    let below = |path: &str| {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (parent == dir).then(|| name.to_owned())
    };
    let done = || calls.iter().filter(|call| call.is_done());
    let moving: BTreeSet<Name> = done().flat_map(|call| named(&call.op)).collect();
    for path in moving {
        let Some(name) = below(path) else { continue };
        let unsure = |call: &Call| named(&call.op).contains(&path) && effects.is_perhaps_nothing(&call.op);
        if done().any(unsure) {
            continue;
        }
        let there = |op: &Op| match *op {
            Op::Create { path: made, .. } | Op::Link { to: made, .. } if made == path => Some(true),
            Op::Remove { path: gone, .. } if gone == path => Some(false),
            Op::Rename { to, .. } if to == path => Some(true),
            Op::Rename { from, over, .. } if from == path => Some(over == Over::Exchange),
            _ => None,
        };
        let sets: Vec<Set<bool>> = done()
            .filter_map(|call| Some(Set { value: there(&call.op)?, begin: call.begin, end: call.end }))
            .collect();
        let first = model.paths.contains_key(path);
        if !explains(&first, &sets, &shown.contains(&name), look.end, due) {
            return Some(format!("the name {name}"));
        }
    }
    None
}

/// A state that a value stands for: the observation, its end, and the time of the last query.
struct Vouched<'a> {
    value: u64,
    seen: &'a Seen,
    end: u64,
    due: u64,
}

/// Checks that one value stands for one state: if two observations under one value differ, a change must have
/// been in progress at the later query. `before` and `after` are the states without concurrent operations.
pub(super) fn hold_equal(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    (before, after): (&[Rested], &[Rested]),
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    let observations = observations(model, calls);
    for &id in model.nodes.keys() {
        let resting = |all: &[Rested]| all.iter().position(|(of, ..)| *of == id);
        let mut all: Vec<Vouched<'_>> = Vec::new();
        if let Some(nth) = resting(before) {
            all.push(Vouched { value: before[nth].1, seen: &before[nth].2, end: 0, due: 0 });
        }
        for look in observations.iter().filter(|look| look.id == id) {
            if let Some((value, due)) = look.vouched {
                all.push(Vouched { value, seen: look.seen, end: look.end, due });
            }
        }
        if let Some(nth) = resting(after) {
            all.push(Vouched { value: after[nth].1, seen: &after[nth].2, end: u64::MAX, due: u64::MAX });
        }
        for (nth, one) in all.iter().enumerate() {
            for two in all[nth + 1..].iter().filter(|two| two.value == one.value) {
                let (due, end) = (one.due.max(two.due), one.end.max(two.end));
                let excuses =
                    |call: &Call| call.begin < end && call.end > due && effects.on(call, id).is_some();
                let kept = one.seen == two.seen || calls.iter().any(excuses);
                held(Promise::Current, kept, &mut || {
                    let name = name_of(model, id);
                    format!(
                        "{} stands for two states of {name}: {} in the observation that ended at {}, {} in \
                            that at {}",
                        one.value, one.seen, one.end, two.seen, two.end
                    )
                })?;
            }
        }
    }
    Ok(())
}
