//! What looks showed, held against what was changed before them, while they were under way, and under which value.

use super::effects::Effects;
use super::phase::{Answer, Call};
use super::script::{bearer, named};
use super::values::{Held, Rested, name_of};
use crate::model::{Id, Model};
use crate::op::*;
use crate::promise::Promise;
use crate::subject::Seen;
use std::collections::BTreeSet;

/// A look at a file that was there before the phase.
struct Look<'a> {
    id: Id,
    begin: u64,
    end: u64,
    seen: &'a Seen,
    /// The value before and after it, if it is the same, and when the second one was asked for.
    vouched: Option<(u64, u64)>,
}

/// Something that was set while others may have set it, too.
struct Set<V> {
    value: V,
    begin: u64,
    end: u64,
}

/// Whether somebody who looked until `end` may be shown this, if all that had ended at `due` must be seen: it was set last, or others
/// set it at the same time.
fn explains<V: PartialEq>(first: &V, sets: &[Set<V>], shown: &V, end: u64, due: u64) -> bool {
    let overwritten = |since: u64| sets.iter().any(|later| later.begin > since && later.end < due);
    (shown == first && !sets.iter().any(|set| set.end < due))
        || sets.iter().any(|set| set.value == *shown && set.begin < end && !overwritten(set.end))
}

/// The looks of a phase, with the queries around them.
fn looks<'a>(model: &Model, calls: &'a [Call]) -> Vec<Look<'a>> {
    let asked =
        |call: Option<&Call>, by: &Call, on: On<'_>| match call {
            Some(Call {
                actor, op: Op::Query { on: of }, answer: Answer::Value(Some(value)), begin, ..
            }) if *actor == by.actor && model.id(*of) == model.id(on) => Some((*value, *begin)),
            _ => None,
        };
    let mut looks = Vec::new();
    for (nth, call) in calls.iter().enumerate() {
        let (Op::Look { on }, Answer::Seen(seen)) = (call.op, &call.answer) else { continue };
        let Some(id) = model.id(on) else { continue };
        let before = asked(nth.checked_sub(1).and_then(|nth| calls.get(nth)), call, on);
        let after = asked(calls.get(nth + 1), call, on);
        let vouched = before.zip(after).filter(|(old, new)| old.0 == new.0).map(|(_, new)| new);
        looks.push(Look { id, begin: call.begin, end: call.end, seen, vouched });
    }
    looks
}

/// What a look has to show: all that was changed before it, and, if the value before and after it is the same, all that was changed
/// before the second was asked for.
pub(super) fn hold(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    for look in looks(model, calls) {
        let (promise, due) =
            look.vouched.map_or((Promise::Model, look.begin), |(_, due)| (Promise::Current, due));
        let what = stale(model, calls, effects, &look, due);
        held(promise, what.is_none(), &mut || {
            let what = what.as_deref().unwrap_or_default();
            format!(
                "a look at {} ({}..{}) misses what was complete at {due}: {what}",
                name_of(model, look.id),
                look.begin,
                look.end
            )
        })?;
    }
    Ok(())
}

/// What a look misses.
fn stale(model: &Model, calls: &[Call], effects: &Effects<'_>, look: &Look<'_>, due: u64) -> Option<String> {
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
    // Attributes; one without room may have lost its old value.
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

/// What was written into the file as it was, unless its size was set as well: then only the end of the phase tells.
fn stale_bytes(model: &Model, calls: &[Call], look: &Look<'_>, due: u64) -> Option<String> {
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

/// The names in a directory; where a rename may have done nothing, only the end of the phase tells.
fn stale_names(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    look: &Look<'_>,
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

/// Something that a value vouches for: what was seen under it, until when the look took, and when it was asked for last.
struct Vouched<'a> {
    value: u64,
    seen: &'a Seen,
    end: u64,
    due: u64,
}

/// One value vouches for one state: where two looks under the same value show different things, a change is excused only if it was
/// under way when the later of the two values was asked for. `before` and `after`: what there was when nothing was under way.
pub(super) fn hold_equal(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    (before, after): (&[Rested], &[Rested]),
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    let looks = looks(model, calls);
    for &id in model.nodes.keys() {
        let resting = |all: &[Rested]| all.iter().position(|(of, ..)| *of == id);
        let mut all: Vec<Vouched<'_>> = Vec::new();
        if let Some(nth) = resting(before) {
            all.push(Vouched { value: before[nth].1, seen: &before[nth].2, end: 0, due: 0 });
        }
        for look in looks.iter().filter(|look| look.id == id) {
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
                        "{} vouches for two states of {name}: {} in the look that ended at {}, {} in that at {}",
                        one.value, one.seen, one.end, two.seen, two.end
                    )
                })?;
            }
        }
    }
    Ok(())
}
