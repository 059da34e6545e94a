//! The test vectors shared with the C header, in Rust.
#![cfg(not(loom))]

use iversion::Counter;

fn unsigned(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn the_counter_matches_the_vectors() {
    let counter = Counter::new(0);
    let mut results = 0;
    for (number, line) in (1..).zip(include_str!("vectors.txt").lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let check =
            |result: u64, expected: &str| assert_eq!(result, unsigned(expected), "line {number}: {line}");
        match *words.as_slice() {
            [] | ["#", ..] => continue,
            ["set_raw", raw] => counter.set_raw(unsigned(raw)),
            ["set", value] => counter.set(unsigned(value)),
            ["set_queried", value] => counter.set_queried(unsigned(value)),
            ["inc"] => counter.inc(),
            ["maybe_inc", force, "=", bumped] => {
                check(counter.maybe_inc(unsigned(force) != 0).into(), bumped)
            }
            ["need_inc", "=", need] => check(counter.need_inc().into(), need),
            ["peek_raw", "=", raw] => check(counter.peek_raw(), raw),
            ["peek", "=", value] => check(counter.peek(), value),
            ["query", "=", value] => check(counter.query(), value),
            ["cmp", old, "=", result] => {
                let expected: i64 = result.parse().unwrap();
                assert_eq!(counter.cmp(unsigned(old)), expected, "line {number}: {line}");
                assert_eq!(iversion::cmp(counter.peek(), unsigned(old)), expected, "line {number}: {line}");
            }
            _ => panic!("line {number}: unknown operation {line:?}"),
        }
        results += u32::from(words.contains(&"="));
    }
    assert!(results > 90, "only {results} results compared");
}
