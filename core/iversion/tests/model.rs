//! Random operations, compared with a simple model: a value of 128 bits and a flag.
#![cfg(not(loom))]

use iversion::{Counter, INCREMENT, MAX, QUERIED};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    SetRaw(u64),
    Set(u64),
    SetQueried(u64),
    MaybeInc(bool),
    Inc,
    Query,
    Cmp(i64),
}

/// Values, mostly near the limits.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, MAX - 3..=MAX, (MAX >> 1) - 2..(MAX >> 1) + 3, any::<u64>()]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => value().prop_map(Operation::SetRaw),
        1 => value().prop_map(Operation::Set),
        1 => value().prop_map(Operation::SetQueried),
        8 => any::<bool>().prop_map(Operation::MaybeInc),
        2 => Just(Operation::Inc),
        6 => Just(Operation::Query),
        3 => (-(1_i64 << 62) + 1..1_i64 << 62).prop_map(Operation::Cmp),
        3 => (-3_i64..=3).prop_map(Operation::Cmp),
    ]
}

struct Model {
    version: u128,
    queried: bool,
}

impl Model {
    fn set(&mut self, value: u64, queried: bool) {
        *self = Self { version: (value & MAX).into(), queried };
    }

    fn maybe_inc(&mut self, force: bool) -> bool {
        let bump = force || self.queried;
        self.version += u128::from(bump);
        self.queried &= !bump;
        bump
    }

    fn value(&self) -> u64 {
        u64::try_from(self.version % (1 << 63)).unwrap()
    }
}

proptest! {
    #[test]
    fn the_counter_equals_the_model(operations in prop::collection::vec(operation(), 1..100)) {
        let counter = Counter::new(0);
        let mut model = Model { version: 0, queried: false };
        for operation in operations {
            match operation {
                Operation::SetRaw(raw) => {
                    counter.set_raw(raw);
                    prop_assert_eq!(counter.peek_raw(), raw);
                    model.set(raw / INCREMENT, raw & QUERIED != 0);
                }
                Operation::Set(value) => {
                    counter.set(value);
                    model.set(value, false);
                }
                Operation::SetQueried(value) => {
                    counter.set_queried(value);
                    model.set(value, true);
                }
                Operation::MaybeInc(force) => {
                    prop_assert_eq!(counter.maybe_inc(force), model.maybe_inc(force));
                }
                Operation::Inc => {
                    counter.inc();
                    model.maybe_inc(true);
                }
                Operation::Query => {
                    prop_assert_eq!(counter.query(), model.value());
                    model.queried = true;
                }
                Operation::Cmp(ahead) => {
                    let old = model.value().wrapping_sub(ahead.cast_unsigned()) & MAX;
                    prop_assert_eq!(counter.cmp(old), ahead * 2);
                    prop_assert_eq!(iversion::cmp(old, model.value()), -ahead * 2);
                }
            }
            prop_assert_eq!(counter.peek(), model.value());
            prop_assert_eq!(counter.need_inc(), model.queried);
            prop_assert_eq!(counter.peek_raw(), model.value() * INCREMENT + u64::from(model.queried));
        }
    }
}

#[test]
fn starts_queried_or_not() {
    static FRESH: Counter = Counter::new(5);
    static LOADED: Counter = Counter::new_queried(5);
    assert!(!FRESH.maybe_inc(false));
    assert!(LOADED.maybe_inc(false));
    assert_eq!((FRESH.peek(), LOADED.peek()), (5, 6));
    assert_eq!(format!("{:?}", Counter::new_queried(7)), "Counter { value: 7, queried: true }");
}

#[test]
fn the_counter_is_one_word() {
    assert_eq!((size_of::<Counter>(), align_of::<Counter>()), (8, 8));
}
