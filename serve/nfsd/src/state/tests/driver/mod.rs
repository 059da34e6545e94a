//! Several clients, a server that is cut into its halves, and a shadow that says what must not have happened.
//!
//! One seed decides everything: who sends what, which half of which request goes on, which reply is lost, which request is repeated, how
//! far the clock goes, what reaches stable storage before a crash. Beside the tables under test the driver keeps its own: what was granted, what
//! the files hold, which change value vouched for which contents. A panic is a finding.

mod peer;
mod shadow;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::mistake::{Mistake, PLANTED};
use world::World;

fn run(seed: u64, steps: u32) -> u64 {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.digest()
}

/// S1 to S10 of the module, and that a change value never vouches for two contents.
#[test]
fn many_clients_at_once() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (from, count) = match number("IVERS_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("IVERS_SEEDS").unwrap_or(60)),
    };
    let mut done = world::Done::default();
    for seed in from..from + count {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            for _ in 0..4000 {
                world.step();
            }
            world.wind_down();
            world.done
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
        Mistake::ForgetSlots,
        Mistake::ForgetDenials,
        Mistake::ForgetLocks,
        Mistake::ForgetDelegations,
        Mistake::ForgetPermits,
        Mistake::ForgetLastBump,
        Mistake::ForgetGrace,
        Mistake::ForgetRecords,
        Mistake::BelieveThePast,
    ] {
        PLANTED.set(mistake);
        let found = (0..200).find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed, 3000))).is_err());
        PLANTED.set(Mistake::None);
        assert!(found.is_some(), "{mistake:?} was not found");
    }
}
