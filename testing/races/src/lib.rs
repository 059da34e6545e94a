//! The races inside the VFS, run schedule by schedule.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ivers-races --target-dir target/shuttle` runs the VFS itself, with the in-memory driver, under
//! shuttle: every lock, atomic and wait is a point where a scheduler decides which thread goes on. Two schedulers do: one draws at
//! random, the other ranks the threads and changes the ranks at a few points (PCT), which finds rare orders sooner. A deadlock, a
//! panic and a schedule without an end are failures like a promise that is broken.
//!
//! | variable | means |
//! |---|---|
//! | `IVERS_SEED` | where both schedulers start (default 1); with the same seed and number of schedules everything happens again |
//! | `IVERS_SCHEDULES` | schedules of each scheduler and race (default 1000) |
//! | `IVERS_SCHEDULE` | a schedule that a failure printed: run this one alone |
//!
//! Shuttle knows sequential consistency alone: what the orders of the counter's atomics are for is shown by loom, in `iversion`.
//!
//! `mutants` holds real mistakes, at least one a race; `cargo xtask mutants` sees each of them caught.
#![cfg(shuttle)]

mod world;

pub use world::*;

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, MaxSteps, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Ranks change at so many points of a schedule: enough for an order of four events.
const PCT_DEPTH: usize = 4;
/// So many schedules are run a second time.
const REPLAYS: usize = 20;
/// No honest schedule of these races is nearly as long: a longer one goes round in circles.
const STEPS_MAX: usize = 200_000;
/// The VFS has pages on the stack.
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

/// Run one race under many schedules, the first of them twice: nothing but the seed may decide what happens.
pub fn explore(race: fn()) {
    if let Ok(schedule) = std::env::var("IVERS_SCHEDULE") {
        let schedule: String = schedule.split_whitespace().collect();
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config()).run(race);
        return;
    }
    let seed = number("IVERS_SEED", 1);
    let schedules = usize::try_from(number("IVERS_SCHEDULES", 1000)).expect("as many as fit into memory");
    let replays =
        UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new_from_seed(seed, REPLAYS));
    run("replaying", replays, race, seed, schedules);
    run("random", RandomScheduler::new_from_seed(seed, schedules), race, seed, schedules);
    run("PCT", PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules), race, seed, schedules);
    println!("{schedules} schedules of each scheduler, seed {seed}");
}

fn run(name: &str, scheduler: impl Scheduler + 'static, race: fn(), seed: u64, schedules: usize) {
    let runner = Runner::new(scheduler, config());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runner.run(race))) {
        eprintln!(
            "a race was lost under the {name} scheduler; again: IVERS_SEED={seed} IVERS_SCHEDULES={schedules}, \
             or IVERS_SCHEDULE= with the schedule above, for this test alone"
        );
        resume_unwind(panic);
    }
}
