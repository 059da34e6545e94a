//! Races inside the VFS and the XFS driver, tested schedule by schedule.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ivers-races --target-dir target/shuttle` runs the VFS with the
//! in-memory driver, or with the XFS driver and its journal, under shuttle: at every lock, atomic and wait a
//! scheduler decides which thread runs next. There are two schedulers: one chooses at random; the other ranks
//! the threads and changes the ranks at a few points (PCT), which finds rare orders sooner. A deadlock, a
//! panic and an endless schedule are failures, as is a broken promise.
//!
//! | variable | meaning |
//! |---|---|
//! | `IVERS_SEED` | seed of both schedulers (default 1); with equal schedules it gives the same run |
//! | `IVERS_SCHEDULES` | schedules of each scheduler and race (default 1000); on XFS a fifth, or less |
//! | `IVERS_SCHEDULE` | run only this schedule, as printed by a failure |
//!
//! Shuttle models only sequential consistency. Loom tests the memory orders of the counter's atomics, in
//! `iversion`.
//!
//! `mutants` contains real mistakes, at least one per race; `cargo xtask mutants` checks that each is
//! detected.
#![cfg(shuttle)]

mod fixture;
mod on_xfs;

pub use fixture::*;
pub use on_xfs::*;

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, MaxSteps, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The number of rank changes in a schedule: enough for an order of four events.
const PCT_DEPTH: usize = 4;
/// The number of schedules that run a second time.
const REPLAYS: usize = 20;
/// A longer schedule does not end: no valid one of these races comes close.
const STEPS_MAX: usize = 200_000;
/// The VFS keeps pages on the stack.
const STACK_BYTES: usize = 256 << 10;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config
}

/// Runs one race under many schedules, and the first of them twice: only the seed may decide what happens.
pub fn explore(race: impl Fn() + Clone + Send + Sync + 'static) {
    explore_one_in(1, race);
}

/// As [`explore`], with fewer schedules by this factor: for a race that takes long.
pub fn explore_one_in(factor: usize, race: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(schedule) = std::env::var("IVERS_SCHEDULE") {
        let schedule: String = schedule.split_whitespace().collect();
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config()).run(race);
        return;
    }
    let seed = number("IVERS_SEED", 1);
    let asked = usize::try_from(number("IVERS_SCHEDULES", 1000)).expect("as many as fit into memory");
    let schedules = asked.div_ceil(factor);
    let replays =
        UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new_from_seed(seed, REPLAYS));
    run("replaying", replays, race.clone(), seed, asked);
    run("random", RandomScheduler::new_from_seed(seed, schedules), race.clone(), seed, asked);
    run("PCT", PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules), race, seed, asked);
    println!("{schedules} schedules of each scheduler, seed {seed}");
}

fn run(
    name: &str,
    scheduler: impl Scheduler + 'static,
    race: impl Fn() + Send + Sync + 'static,
    seed: u64,
    asked: usize,
) {
    let runner = Runner::new(scheduler, config());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runner.run(race))) {
        eprintln!(
            "a race was lost under the {name} scheduler; again: IVERS_SEED={seed} \
                IVERS_SCHEDULES={asked}, \
             or IVERS_SCHEDULE= with the schedule above, for this test only"
        );
        resume_unwind(panic);
    }
}
