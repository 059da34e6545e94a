//! The cost of a change and a query: `cargo run -p iversion --release --example bench`.
//!
//! Each operation runs on one counter, with one thread and with two, for three counters: that of this crate,
//! a number under a mutex (the old scheme: every change takes the inode's lock and adds one), and a plain
//! atomic add. The columns are interleaved. Each figure is the median of the rounds: nanoseconds from the
//! begin of an operation to the begin of the next, as one thread sees it.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use iversion::Counter;

/// A value alone on its cache lines.
#[repr(align(128))]
struct Line<T>(T);

static COUNTER: Line<Counter> = Line(Counter::new(1));
static MUTEX: Line<Mutex<u64>> = Line(Mutex::new(1));
static PLAIN: Line<AtomicU64> = Line(AtomicU64::new(1));

/// The old scheme's change.
fn mutex_inc() -> bool {
    *MUTEX.0.lock().unwrap() += 1;
    true
}

/// The old scheme's query.
fn mutex_query() -> u64 {
    *MUTEX.0.lock().unwrap()
}

fn plain_inc() -> bool {
    PLAIN.0.fetch_add(1, Relaxed);
    true
}

fn plain_query() -> u64 {
    PLAIN.0.load(Acquire)
}

/// Operations of a thread in one measurement. Long enough that two threads overlap, short enough that most
/// measurements fit into a time slice on a busy machine.
const BATCH: u32 = 100_000;
const ROUNDS: usize = 201;

/// Nanoseconds an operation, by `threads` threads at once.
fn measure(threads: usize, prepare: fn(), operation: impl Fn() + Copy + Send + Sync) -> f64 {
    prepare();
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let begin = Instant::now();
                    for _ in 0..BATCH {
                        operation();
                    }
                    begin.elapsed()
                })
            })
            .collect();
        let total: Duration = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        total.as_secs_f64() * 1e9 / f64::from(BATCH) / threads as f64
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// One row, interleaving its three columns.
fn row(
    name: &str,
    threads: usize,
    prepare: fn(),
    iversion: impl Fn() + Copy + Send + Sync,
    mutex: impl Fn() + Copy + Send + Sync,
    plain: impl Fn() + Copy + Send + Sync,
) {
    let mut figures = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        figures[0].push(measure(threads, prepare, iversion));
        figures[1].push(measure(threads, || (), mutex));
        figures[2].push(measure(threads, || (), plain));
    }
    let [iversion, mutex, plain] = figures.map(median);
    println!("{name:<42} {threads:>7} {iversion:>9.2} {mutex:>9.2} {plain:>9.2}");
}

fn main() {
    println!("{:<42} {:>7} {:>9} {:>9} {:>9}", "ns/op", "threads", "iversion", "mutex", "plain add");
    let unqueried = || COUNTER.0.set(1);
    let queried = || COUNTER.0.set_queried(1);
    for threads in [1, 2] {
        let change = |force| move || _ = black_box(COUNTER.0.maybe_inc(force));
        let mutex_change = || _ = black_box(mutex_inc());
        let plain_change = || _ = black_box(plain_inc());
        let query = || _ = black_box(COUNTER.0.query());
        let mutex_query = || _ = black_box(mutex_query());
        let plain_query = || _ = black_box(plain_query());
        row("change, not queried (maybe_inc)", threads, unqueried, change(false), mutex_change, plain_change);
        if threads == 1 {
            // The lock is not the counter's: this is what the counter adds.
            let held = || _ = black_box(COUNTER.0.maybe_inc_under_lock(false));
            row("the same under a lock held anyway", threads, unqueried, held, mutex_change, plain_change);
        }
        row("forced change (inc)", threads, unqueried, change(true), mutex_change, plain_change);
        row("query, QUERIED set (query)", threads, queried, query, mutex_query, plain_query);
        row(
            "query, then change (query, maybe_inc)",
            threads,
            unqueried,
            || {
                query();
                change(false)();
            },
            || {
                mutex_query();
                mutex_change();
            },
            || {
                plain_query();
                plain_change();
            },
        );
    }
}
