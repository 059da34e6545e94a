//! Artificial histories that test the judgement of intervals deterministically.

use super::effects::Effects;
use super::linearize::{Tree, explain};
use super::phase::{Answer, Call};
use super::{observations, values};
use crate::model::{Id, Model};
use crate::op::*;
use crate::promise::Promise;
use crate::subject::{Limits, Refused, Seen};

const LIMITS: Limits = Limits {
    times_are_ours: true,
    nameless_rest: true,
    unheld_rest: true,
    remounts: false,
    maps: false,
    appends: true,
    shares_pages: true,
    hides_names: false,
};
const FILE: On<'static> = On::At("a");
const WRITE: Op = Op::Write { on: FILE, at: 0, len: 1, byte: 2, how: How::Plain };
const APPEND: Op = Op::Write { on: FILE, at: 0, len: 1, byte: 3, how: How::Append };
const QUERY: Op = Op::Query { on: FILE };
const LOOK: Op = Op::Look { on: FILE };
const FILE_ID: Id = 1;

/// Returns a model with the file `a` with one byte 1 and the last value 5.
fn model() -> Model {
    let mut model = Model::new(LIMITS);
    model.apply(&Op::Create { path: "a", kind: Kind::File, info: false });
    model.apply(&Op::Write { on: FILE, at: 0, len: 1, byte: 1, how: How::Plain });
    for node in model.nodes.values_mut() {
        node.record_value(5);
    }
    model
}

fn call(actor: usize, op: Op, (begin, end): (u64, u64), answer: Answer) -> Call {
    Call { actor, op, begin, end, answer }
}

fn completed(actor: usize, op: Op, when: (u64, u64)) -> Call {
    call(actor, op, when, Answer::Done(Vec::new()))
}

fn value(actor: usize, when: (u64, u64), value: u64) -> Call {
    call(actor, QUERY, when, Answer::Value(Some(value)))
}

fn observation(actor: usize, when: (u64, u64), bytes: &[u8]) -> Call {
    let seen = Seen { bytes: Some(bytes.to_vec()), ..model().expected(FILE).expect("it is there") };
    call(actor, LOOK, when, Answer::Seen(Box::new(seen)))
}

/// Returns the first broken promise.
fn broken(calls: &[Call]) -> Option<Promise> {
    let model = model();
    let effects = Effects::new(&model, calls);
    let mut held = |promise, kept, what: &mut dyn FnMut() -> String| {
        if kept { Ok(()) } else { Err(crate::Failure { promise, step: 0, what: what() }) }
    };
    values::hold(&model, calls, &effects, LIMITS, None, &mut held)
        .and_then(|()| observations::hold(&model, calls, &effects, &mut held))
        .and_then(|()| observations::hold_equal(&model, calls, &effects, (&[], &[]), &mut held))
        .err()
        .map(|failure| failure.promise)
}

#[test]
fn a_change_between_two_queries_must_show_unless_it_overlaps() {
    let history = |write, last| [value(0, (1, 2), 5), completed(1, WRITE, write), value(0, (7, 8), last)];
    assert_eq!(broken(&history((3, 4), 5)), Some(Promise::Data));
    assert_eq!(broken(&history((3, 4), 6)), None);
    assert_eq!(broken(&history((3, 4), 4)), Some(Promise::Monotonic));
    assert_eq!(broken(&history((6, 9), 5)), None);
    assert_eq!(broken(&history((6, 9), 6)), None);
    assert_eq!(broken(&history((9, 10), 6)), Some(Promise::Rests));
}

#[test]
fn overlapping_queries_have_no_order() {
    let history = |second| [completed(2, WRITE, (1, 9)), value(0, (2, 5), 6), value(1, second, 5)];
    assert_eq!(broken(&history((4, 7))), None);
    assert_eq!(broken(&history((6, 7))), Some(Promise::Monotonic));
}

#[test]
fn a_failed_operation_is_no_change() {
    let refused = call(1, WRITE, (3, 4), Answer::Refused(Refused::Error("no".into())));
    assert_eq!(broken(&[refused, value(0, (5, 6), 6)]), Some(Promise::Rests));
}

#[test]
fn equal_values_cover_completed_changes() {
    let history = |write, number, bytes| {
        let (before, after) = (value(0, (3, 4), number), value(0, (11, 12), number));
        [before, observation(0, (5, 8), bytes), after, completed(1, WRITE, write)]
    };
    // The write ends before the first query; between the queries; after the second query began.
    assert_eq!(broken(&history((1, 2), 6, &[1])), Some(Promise::Current));
    assert_eq!(broken(&history((2, 9), 6, &[1])), Some(Promise::Current));
    assert_eq!(broken(&history((2, 13), 6, &[1])), None);
    assert_eq!(broken(&history((2, 13), 6, &[2])), None);
    // Observed before it began.
    assert_eq!(broken(&history((9, 13), 5, &[2])), Some(Promise::Current));
}

#[test]
fn equal_values_require_equal_states() {
    let look = |actor, at: u64, bytes| {
        [
            value(actor, (at, at + 1), 6),
            observation(actor, (at + 2, at + 3), bytes),
            value(actor, (at + 4, at + 5), 6),
        ]
    };
    let history = |end| {
        [look(0, 2, &[1]).to_vec(), look(2, 20, &[2]).to_vec(), vec![completed(1, WRITE, (1, end))]].concat()
    };
    // In progress at the first observation; at the second over, or not.
    assert_eq!(broken(&history(10)), Some(Promise::Current));
    assert_eq!(broken(&history(30)), None);
}

#[test]
fn change_info_is_atomic() {
    let create = |actor, path, when, info| {
        let op = Op::Create { path, kind: Kind::File, info: true };
        call(actor, op, when, Answer::Done(vec![info]))
    };
    let history = |one, two| [create(0, "x", (1, 3), one), create(1, "y", (2, 4), two)];
    assert_eq!(broken(&history((5, 6), (6, 7))), None);
    assert_eq!(broken(&history((6, 7), (5, 6))), None);
    assert_eq!(broken(&history((5, 7), (6, 7))), Some(Promise::Current));
    assert_eq!(broken(&history((5, 5), (6, 7))), Some(Promise::Data));
}

#[test]
fn possible_orders_are_found() {
    let tree = |bytes: &[u8]| {
        let mut after = model();
        after.nodes.get_mut(&FILE_ID).expect("the file").bytes = bytes.to_vec();
        let paths: Vec<String> = after.paths.keys().cloned().collect();
        let show = |path: String| {
            let seen = after.expected(On::At(&path)).expect("it is there");
            (path, seen)
        };
        paths.into_iter().map(show).collect::<Tree>()
    };
    let found = |calls: &[Call], bytes: &[u8]| explain(&model(), calls, &tree(bytes)).is_some();
    let over = Op::Write { on: FILE, at: 1, len: 1, byte: 4, how: How::Plain };
    let history = |second| [completed(0, APPEND, (1, 4)), completed(1, over, second)];
    assert!(found(&history((2, 3)), &[1, 4]));
    assert!(found(&history((2, 3)), &[1, 4, 3]));
    assert!(!found(&history((2, 3)), &[1, 3]));
    // One after the other.
    assert!(found(&history((5, 6)), &[1, 4]));
    assert!(!found(&history((5, 6)), &[1, 4, 3]));
    // Of two calls that create the same name one fails.
    let make = Op::Create { path: "a", kind: Kind::File, info: false };
    let exists = call(0, make, (1, 2), Answer::Refused(Refused::Error("it is there".into())));
    assert!(found(&[exists], &[1]));
    assert!(!found(&[completed(0, make, (1, 2))], &[1]));
}
