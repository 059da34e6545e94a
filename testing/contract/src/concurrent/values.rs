//! Checks the values of a phase against its changes by their intervals: what ended before another began
//! precedes it; overlapping calls have no order.

use super::effects::{Effect, Effects};
use super::phase::{Answer, Call};
use crate::model::{Id, Model};
use crate::op::{On, Op};
use crate::promise::Promise;
use crate::run::step_between;
use crate::subject::{Limits, Seen};

/// A check: the promise, and a description if it is broken.
pub(super) type Held<'a> =
    &'a mut dyn FnMut(Promise, bool, &mut dyn FnMut() -> String) -> Result<(), crate::Failure>;

/// A file, its state and its value while no operation was in progress.
pub(super) type Rested = (Id, u64, Seen);

/// A value that a query returned, and its interval.
#[derive(Debug, Clone, Copy)]
struct Value {
    begin: u64,
    end: u64,
    value: u64,
}

/// Returns the file that an operation queries.
fn queried_file(model: &Model, op: &Op) -> Option<Id> {
    match *op {
        Op::Query { on } => model.id(on),
        _ => None,
    }
}

/// Returns the change info of a call with the file of each; two of one directory are merged.
fn infos<'a>(model: &'a Model, call: &'a Call) -> impl Iterator<Item = (Id, (u64, u64))> + 'a {
    let parents = model.parents(&call.op);
    let pairs = match &call.answer {
        Answer::Done(pairs) => pairs.as_slice(),
        _ => &[],
    };
    let same = parents.first() == parents.get(1);
    let count = if same { 1 } else { 2 };
    parents.into_iter().zip(pairs.iter().copied()).take(count)
}

/// Returns all known values of one file.
fn values(model: &Model, calls: &[Call], id: Id) -> Vec<Value> {
    // The value before the phase.
    let first = model.nodes[&id].last.map(|value| Value { begin: 0, end: 0, value });
    let mut values: Vec<Value> = first.into_iter().collect();
    for call in calls {
        let Call { begin, end, .. } = *call;
        if let (true, Answer::Value(Some(value))) = (queried_file(model, &call.op) == Some(id), &call.answer)
        {
            values.push(Value { begin, end, value: *value });
        }
        for (_, (before, after)) in infos(model, call).filter(|(of, _)| *of == id) {
            values.extend([before, after].map(|value| Value { begin, end, value }));
        }
    }
    values
}

/// Checks C1, C2 and C3 for every two values that do not overlap, and change info against each other.
/// `after`: only against the values after the phase.
pub(super) fn hold(
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    limits: Limits,
    after: Option<&[Rested]>,
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    for &id in model.nodes.keys() {
        let name = || name_of(model, id);
        let values = values(model, calls, id);
        let changes: Vec<(&Call, Effect)> =
            calls.iter().filter_map(|call| Some((call, effects.on(call, id)?))).collect();
        let last = after.map(|all| {
            let value = all.iter().filter(|(of, ..)| *of == id).map(|(_, value, _)| *value);
            value.map(|value| Value { begin: u64::MAX, end: u64::MAX, value }).collect()
        });
        let news: &Vec<Value> = last.as_ref().unwrap_or(&values);
        for old in &values {
            for new in news.iter().filter(|new| old.end < new.begin) {
                pair(&name, *old, *new, &changes, limits, held)?;
            }
        }
        if after.is_none() {
            change_infos(&name, model, calls, effects, id, held)?;
        }
    }
    Ok(())
}

fn pair(
    name: &dyn Fn() -> String,
    old: Value,
    new: Value,
    changes: &[(&Call, Effect)],
    limits: Limits,
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    let grows = step_between(old.value, new.value) >= 0;
    held(Promise::Monotonic, grows, &mut || format!("{} decreased from {old:?} to {new:?}", name()))?;
    let between = |call: &Call| old.end < call.begin && call.end < new.begin;
    let certain = |promise| {
        let is = |(call, effect): &&(&Call, Effect)| between(call) && *effect == Effect::Certain(promise);
        changes.iter().find(is).map(|(call, _)| (promise, *call))
    };
    if let Some((promise, change)) = certain(Promise::Data).or_else(|| certain(Promise::Metadata)) {
        let moved = old.value != new.value;
        return held(promise, moved, &mut || {
            format!("{} changed between {old:?} and {new:?}: {change}", name())
        });
    }
    let meets = |(call, _): &(&Call, Effect)| old.begin < call.end && call.begin < new.end;
    if limits.unheld_rest && !changes.iter().any(meets) {
        let rests = old.value == new.value;
        held(Promise::Rests, rests, &mut || {
            format!("{} did not change, but its value went from {old:?} to {new:?}", name())
        })?;
    }
    Ok(())
}

/// Checks that change info is atomic: no other value lies between its two values.
fn change_infos(
    name: &dyn Fn() -> String,
    model: &Model,
    calls: &[Call],
    effects: &Effects<'_>,
    id: Id,
    held: Held<'_>,
) -> Result<(), crate::Failure> {
    let mut all: Vec<(&Call, (u64, u64))> = Vec::new();
    for call in calls {
        for (_, info) in infos(model, call).filter(|(of, _)| *of == id) {
            let Some(Effect::Certain(promise)) = effects.on(call, id) else { continue };
            let step = step_between(info.0, info.1);
            held(promise, step > 0, &mut || format!("change info of {}: {call}", name()))?;
            all.push((call, info));
        }
    }
    for (nth, (call, one)) in all.iter().enumerate() {
        for (other, two) in &all[nth + 1..] {
            let apart = step_between(one.1, two.0) >= 0 || step_between(two.1, one.0) >= 0;
            held(Promise::Current, apart, &mut || {
                format!("change info of {} is not atomic: {call}, and {other}", name())
            })?;
        }
    }
    Ok(())
}

/// Returns a name of a file for reports.
pub(super) fn name_of(model: &Model, id: Id) -> String {
    let path = model.paths.iter().find(|(_, at)| **at == id).map(|(path, _)| path.as_str());
    match path {
        Some("") => "the top directory".into(),
        Some(path) => format!("{:?}", On::At(path)),
        None => "a file without a name".into(),
    }
}
