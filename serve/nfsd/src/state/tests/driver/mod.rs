//! Several clients, a server that is cut into its halves, and a shadow that says what must not have happened.
//!
//! One seed decides everything: who sends what, which half of which request goes on, which reply is lost, which request is repeated, how
//! far the clock goes, what reaches stable storage before a crash. Beside the tables under test the driver keeps its own: what was granted, what
//! the files hold, which change value vouched for which contents. A panic is a finding.

mod fixture;
mod peer;
mod shadow;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::fault_injection::{Fault, PLANTED};
use fixture::Fixture;

fn run(seed: u64, steps: u32) -> u64 {
    let mut fixture = Fixture::new(seed);
    for _ in 0..steps {
        fixture.step();
    }
    fixture.digest()
}

/// S1 to S10 of the module, and that a change value never vouches for two contents.
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
    // A driver that does nothing finds nothing.
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
fn planted_mistakes_are_found() {
    for mistake in [
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
        PLANTED.set(mistake);
        let found = (0..200).find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed, 3000))).is_err());
        PLANTED.set(Fault::None);
        assert!(found.is_some(), "{mistake:?} was not found");
    }
}
