//! What is done to a volume, round by round.
//!
//! | module | what it holds |
//! |---|---|
//! | [`plain`] | one thread that overwrites or appends, asks now and then, syncs now and then |
//! | [`crowd`] | several writers on one file or on their own, and queriers beside them |
//! | [`fio`] | the seeds' fio jobs: eight jobs on one file, and tiobench |
//! | [`pages`] | pages of a sparse file, then fsync |

pub(super) mod crowd;
pub(super) mod fio;
pub(super) mod pages;
pub(super) mod plain;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::volume::Volume;

pub(super) const BLOCK: u64 = 4096;

/// What one round showed.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// On the clock on the wall.
    pub(super) elapsed: Duration,
    /// Operations in that time.
    pub(super) ops: u64,
    /// Processor time of those who wrote, where it is another than `elapsed`.
    pub(super) cpu: Option<Duration>,
    /// Queries in that time by others.
    pub(super) queries: u64,
    /// Nanoseconds of each operation, where each is timed.
    pub(super) latencies: Vec<u32>,
}

/// Work that is timed round by round.
pub(super) trait Workload {
    /// What it keeps from round to round.
    type State<V: Volume>;

    /// Make what the rounds work on.
    fn begin<V: Volume>(&self, volume: &V) -> Result<Self::State<V>>;

    /// So many operations.
    fn round<V: Volume>(&self, volume: &V, state: &mut Self::State<V>, ops: u64) -> Result<Turn>;

    /// Take everything away.
    fn end<V: Volume>(&self, volume: &V, state: Self::State<V>) -> Result<()>;

    /// Whether the kernel can be asked to do it too; if not, why.
    fn kernel_cannot(&self) -> Option<&'static str> {
        None
    }

    /// A number of operations that a round of this work can have.
    fn round_up(&self, ops: u64) -> u64 {
        ops.max(8)
    }
}

/// A clock that tells what each of a row of operations took, at one reading each.
pub(super) struct Lap {
    last: Instant,
    laps: Vec<u32>,
}

impl Lap {
    pub(super) fn new(ops: u64) -> Self {
        Self { laps: Vec::with_capacity(ops as usize), last: Instant::now() }
    }

    pub(super) fn lap(&mut self) {
        let now = Instant::now();
        self.laps.push(u32::try_from((now - self.last).as_nanos()).unwrap_or(u32::MAX));
        self.last = now;
    }

    pub(super) fn into_laps(self) -> Vec<u32> {
        self.laps
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Run `writers` at once, each told its number, and `queriers` until the last writer is done. What starting and ending the threads
/// takes is not in the time; `ops` is left to the caller.
pub(super) fn at_once(
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
                    let mut asked = 0;
                    loop {
                        query();
                        asked += 1;
                        if done.load(Ordering::Relaxed) {
                            return asked;
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
        let begin = joined.iter().map(|(begin, ..)| *begin).min().context("somebody writes")?;
        let end = joined.iter().map(|(_, end, ..)| *end).max().unwrap_or(begin);
        turn.elapsed = end - begin;
        for (_, _, cpu, outcome) in joined {
            turn.latencies.extend(outcome?);
            turn.cpu = turn.cpu.map(|sum| sum + cpu);
        }
        Ok(turn)
    })
}
