//! A randomized test: several clients, a server whose requests run in steps, and a shadow of what it has
//! granted.
//!
//! One seed decides everything: which client sends what, which request continues, which reply is lost, which
//! request is retried, how far the clock advances, and what reaches stable storage before a crash.
//!
//! The driver keeps its own tables: what was granted, what the files contain, and which contents belong to
//! each value of the change attribute. A panic means that an invariant is violated.

mod fixture;
mod peer;
mod shadow;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::fault_injection::{Fault, INJECTED};
use fixture::Fixture;

fn run(seed: u64, steps: u32) -> u64 {
    let mut fixture = Fixture::new(seed);
    for _ in 0..steps {
        fixture.step();
    }
    fixture.digest()
}

/// S1 to S10 of the module, and that no change attribute stands for two different contents.
#[test]
fn many_clients_at_once() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (from, count) = match number("IVERS_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("IVERS_SEEDS").unwrap_or(60)),
    };
    let mut done = fixture::Done::default();
    for seed in from..from + count {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut fixture = Fixture::new(seed);
            for _ in 0..4000 {
                fixture.step();
            }
            fixture.wind_down();
            fixture.done
        }));
        match outcome {
            Ok(more) => done.add(&more),
            Err(panic) => {
                eprintln!("IVERS_SEED={seed} replays it");
                std::panic::resume_unwind(panic);
            }
        }
    }
    // Check that the driver exercised everything.
    if count > 1 {
        done.check();
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in 100..104 {
        assert_eq!(run(seed, 3000), run(seed, 3000));
    }
    assert_ne!(run(1, 3000), run(2, 3000));
}

#[test]
fn injected_faults_are_found() {
    for fault in [
        Fault::ReexecuteRequests,
        Fault::IgnoreDeny,
        Fault::IgnoreLocks,
        Fault::IgnoreDelegations,
        Fault::IgnoreInFlight,
        Fault::SkipFinalBump,
        Fault::IgnoreGrace,
        Fault::EvictBeforeRemoval,
        Fault::TrustStartupRecords,
    ] {
        INJECTED.set(fault);
        let found = (0..200).find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed, 3000))).is_err());
        INJECTED.set(Fault::None);
        assert!(found.is_some(), "{fault:?} was not found");
    }
}
