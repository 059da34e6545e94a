//! The counter under real threads, for about a second: what loom proves for a few operations, millions of
//! times.
#![cfg(not(loom))]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use iversion::Counter;

/// A value alone on its cache line.
#[repr(align(128))]
struct Line<T>(T);

/// The round that ends the writer.
const LAST: u64 = u64::MAX;

fn wait_for(round: &AtomicU64, required: u64) -> u64 {
    for spins in 1_u64.. {
        let seen = round.load(Acquire);
        if seen >= required {
            return seen;
        }
        if spins.is_multiple_of(1000) {
            thread::yield_now();
        }
    }
    unreachable!()
}

/// A writer and an observer meet once a round: the writer changes the data and calls `maybe_inc`, the
/// observer queries and reads. If the value then rests, the observer must have read the new data.
#[test]
fn a_writer_and_an_observer_overlap() {
    let end = Instant::now() + Duration::from_secs(1);
    let version = Line(Counter::new(1));
    let [data, started, written] = [(); 3].map(|()| Line(AtomicU64::new(0)));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                if wait_for(&started.0, round) == LAST {
                    break;
                }
                data.0.store(round, Relaxed);
                let _ = version.0.maybe_inc(false);
                written.0.store(round, Release);
            }
        });
        let mut bumped = 0_u64;
        let mut failure = None;
        for round in 1.. {
            if round % 1024 == 0 && Instant::now() >= end {
                println!("{round} rounds, {bumped} bumped");
                break;
            }
            started.0.store(round, Release);
            let before = version.0.query();
            let read = data.0.load(Relaxed);
            wait_for(&written.0, round);
            let moved = version.0.cmp(before);
            if moved < 0 || moved == 0 && read != round {
                failure = Some(format!("round {round}: counter {before} with old data {read}"));
                break;
            }
            bumped += u64::from(moved > 0);
            version.0.inc(); // not queried in the next round
        }
        started.0.store(LAST, Release);
        assert_eq!(failure, None);
    });
}

/// Two writers, one of which forces, and two observers, without rounds.
#[test]
fn unsynchronized_writers_and_observers_keep_the_promises() {
    let end = Instant::now() + Duration::from_secs(1);
    let version = Line(Counter::new_queried(iversion::MAX - 1000)); // wraps on the way
    let data = [(); 2].map(|()| Line(AtomicU64::new(0)));
    let completed = [(); 2].map(|()| Line(AtomicU64::new(0)));
    thread::scope(|scope| {
        for (writer, force) in [(0, false), (1, true)] {
            let (version, data, completed) = (&version.0, &data[writer].0, &completed[writer].0);
            scope.spawn(move || {
                for change in 1.. {
                    if change % 1024 == 0 && Instant::now() >= end {
                        break;
                    }
                    data.store(change, Relaxed);
                    let bumped = version.maybe_inc(force);
                    assert!(bumped || !force);
                    completed.store(change, Release);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = version.0.query();
                let mut rested = 0_u64;
                while Instant::now() < end {
                    let before = version.0.query();
                    let read = [0, 1].map(|writer| data[writer].0.load(Relaxed));
                    let complete = [0, 1].map(|writer| completed[writer].0.load(Acquire));
                    let after = version.0.query();
                    assert!(
                        iversion::cmp(before, last) >= 0 && iversion::cmp(after, before) >= 0,
                        "went back"
                    );
                    if after == before {
                        assert!(read[0] >= complete[0] && read[1] >= complete[1], "{read:?} < {complete:?}");
                        rested += 1;
                    }
                    last = after;
                }
                println!("{rested} queries at rest");
            });
        }
    });
}
