//! Workloads on a volume, in rounds.
//!
//! | module | contents |
//! |---|---|
//! | [`plain`] | one thread that overwrites or appends, with optional queries and syncs |
//! | [`crowd`] | several writers in one file or in separate files, and threads that query |
//! | [`fio`] | the fio jobs of the patch series: eight jobs on one file, and tiobench |
//! | [`pages`] | pages of a sparse file, then fsync |

pub(crate) mod crowd;
pub(crate) mod fio;
pub(crate) mod pages;
pub(crate) mod plain;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::volume::Volume;

pub(crate) const BLOCK: u64 = 4096;

/// The results of one round.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Wall-clock time.
    pub(crate) elapsed: Duration,
    /// Operations in that time.
    pub(crate) ops: u64,
    /// Processor time of the writing threads, if several share the processors.
    pub(crate) cpu: Option<Duration>,
    /// Queries by other threads in that time.
    pub(crate) queries: u64,
    /// Nanoseconds of each operation, if each is timed.
    pub(crate) latencies: Vec<u32>,
}

/// Work that is timed in rounds.
pub(crate) trait Workload {
    /// State kept between rounds.
    type State<V: Volume>;

    /// Creates the files for the rounds.
    fn begin<V: Volume>(&self, volume: &V) -> Result<Self::State<V>>;

    /// Runs this number of operations.
    fn round<V: Volume>(&self, volume: &V, state: &mut Self::State<V>, ops: u64) -> Result<Turn>;

    /// Removes all files.
    fn end<V: Volume>(&self, volume: &V, state: Self::State<V>) -> Result<()>;

    /// Returns the reason why the kernel cannot do this work.
    fn kernel_cannot(&self) -> Option<&'static str> {
        None
    }

    /// Rounds a number of operations up to what a round requires.
    fn round_up(&self, ops: u64) -> u64 {
        ops.max(8)
    }
}

/// A clock that times consecutive operations with one reading each.
pub(crate) struct Lap {
    last: Instant,
    laps: Vec<u32>,
}

impl Lap {
    pub(crate) fn new(ops: u64) -> Self {
        Self { laps: Vec::with_capacity(ops as usize), last: Instant::now() }
    }

    pub(crate) fn lap(&mut self) {
        let now = Instant::now();
        self.laps.push(u32::try_from((now - self.last).as_nanos()).unwrap_or(u32::MAX));
        self.last = now;
    }

    pub(crate) fn into_laps(self) -> Vec<u32> {
        self.laps
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs `writers` at once, each with its number, and `queriers` until the last writer ends. The time excludes
/// starting and ending the threads; the caller sets `ops`.
pub(crate) fn at_once(
    writers: u64,
    write: impl Fn(u64) -> Result<Vec<u32>> + Sync,
    queriers: u64,
    query: impl Fn() + Sync,
) -> Result<Turn> {
    let start = Barrier::new((writers + queriers) as usize);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (start, done, write, query) = (&start, &done, &write, &query);
        let asking: Vec<_> = (0..queriers)
            .map(|_| {
                scope.spawn(move || {
                    start.wait();
                    let mut queries = 0;
                    loop {
                        query();
                        queries += 1;
                        if done.load(Ordering::Relaxed) {
                            return queries;
                        }
                    }
                })
            })
            .collect();
        let writing: Vec<_> = (0..writers)
            .map(|nth| {
                scope.spawn(move || {
                    start.wait();
                    let (begin, cpu) = (Instant::now(), thread_cpu());
                    let outcome = write(nth);
                    (begin, Instant::now(), thread_cpu() - cpu, outcome)
                })
            })
            .collect();
        let joined: Vec<_> =
            writing.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect();
        done.store(true, Ordering::Relaxed);
        let mut turn = Turn { cpu: Some(Duration::ZERO), ..Turn::default() };
        for querier in asking {
            turn.queries += querier.join().expect("a querier does not panic");
        }
        let begin = joined.iter().map(|(begin, ..)| *begin).min().context("the workload has no writer")?;
        let end = joined.iter().map(|(_, end, ..)| *end).max().unwrap_or(begin);
        turn.elapsed = end - begin;
        for (_, _, cpu, outcome) in joined {
            turn.latencies.extend(outcome?);
            turn.cpu = turn.cpu.map(|sum| sum + cpu);
        }
        Ok(turn)
    })
}
