//! Rows with several points: by the rate of queries, the size of writes, the number of threads, the clock's
//! tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use ivers_vfs::{Clock, Timestamp};
use serde_json::{Map, Value, json};

use super::contenders::{Contenders, Kind, Length, Measured};
use super::rows;
use super::workloads::crowd::Crowd;
use super::workloads::plain::{Pattern, Plain};
use indicatif::ProgressBar;

/// The variable of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    /// One-byte overwrites with a query after each n writes; at the last point another thread queries without
    /// pause.
    Queries,
    /// Overwrites of 1 byte to 1 MiB.
    Sizes,
    /// One-byte overwrites by several threads, in one file or each in a separate file.
    Threads { one_file: bool },
    /// Inode updates caused by one-byte overwrites, by the clock's tick.
    Ticks,
}

const QUERIES_A_MILLION: [u64; 8] = [0, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
const SIZES: [u64; 8] = [1, 8, 64, 512, 4096, 32_768, 262_144, 1 << 20];
const THREADS: [u64; 2] = [1, 2];
const TICKS_US: [u64; 5] = [100, 1000, 4000, 10_000, 100_000];

impl Curve {
    /// Returns the number of points.
    pub(crate) fn points(self) -> u64 {
        let points = match self {
            Self::Queries => QUERIES_A_MILLION.len() + 1,
            Self::Sizes => SIZES.len(),
            Self::Threads { .. } => THREADS.len(),
            Self::Ticks => TICKS_US.len(),
        };
        points as u64
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Ticks => "updates/million writes",
            _ => "ops/s",
        }
    }

    /// Measures all points and returns the fields of the row.
    pub(crate) fn measure(
        self,
        kind: Kind,
        length: Length,
        bar: &ProgressBar,
        name: &str,
    ) -> Result<Map<String, Value>> {
        match self {
            Self::Queries => {
                let field = Contenders::open(kind)?;
                let mut points = Vec::new();
                for rate in QUERIES_A_MILLION {
                    let writes_a_query = 1_000_000_u64.checked_div(rate).unwrap_or(0);
                    let work = Plain { writes_a_query, ..Plain::new(Pattern::Overwrite, 1) };
                    points.push(point(rate as f64, &field.measure(&work, length, bar, name)?));
                }
                let hammer = Crowd { writers: 1, one_file: true, queriers: 1 };
                // Fewer and longer rounds: a short round would not see threads take turns.
                let rounds = (length.rounds / 8).max(1);
                let long = Length { rounds, at_least: Duration::from_millis(20), ..length };
                let measured = field.measure(&hammer, long, bar, name)?;
                bar.inc(length.rounds - rounds);
                bar.set_message(format!("{} {name}", kind.format.name()));
                let rate = measured.ours[1].counts.queries as f64 * 1e6 / measured.ops as f64;
                let mut last = point(rate.round(), &measured);
                last.insert("label".into(), "another thread without pause".into());
                points.push(last);
                field.close()?;
                Ok(curve(points, 0.0, ["queries", "a million writes", "log"]))
            }
            Self::Sizes => {
                let field = Contenders::open(kind)?;
                let mut points = Vec::new();
                for bytes in SIZES {
                    let length = Length { ops: length.ops / (bytes / 512).max(1), ..length };
                    let work = Plain::new(Pattern::Overwrite, bytes);
                    points.push(point(bytes as f64, &field.measure(&work, length, bar, name)?));
                }
                field.close()?;
                Ok(curve(points, 4096.0, ["write size", "bytes", "log"]))
            }
            Self::Threads { one_file } => {
                let field = Contenders::open(kind)?;
                let mut points = Vec::new();
                for writers in THREADS {
                    let work = Crowd { writers, one_file, queriers: 0 };
                    points.push(point(writers as f64, &field.measure(&work, length, bar, name)?));
                }
                field.close()?;
                Ok(curve(points, 2.0, ["threads", "", "linear"]))
            }
            Self::Ticks => {
                let tick_ns = Arc::new(AtomicU64::new(1));
                let field = Contenders::with_clock(kind, &|| Box::new(Ticking(tick_ns.clone())))?;
                let mut points = Vec::new();
                for tick_us in TICKS_US {
                    tick_ns.store(tick_us * 1000, Ordering::Relaxed);
                    let work = Plain::new(Pattern::Overwrite, 1);
                    let measured = field.measure(&work, length, bar, name)?;
                    let mut point = point(tick_us as f64 / 1000.0, &measured);
                    let a_million = 1e6 / measured.ops as f64;
                    let updates = [0, 1, 2]
                        .map(|mode: usize| measured.ours[mode].counts.inode_updates as f64 * a_million);
                    rows::less_is_better(&mut point, updates);
                    points.push(point);
                }
                field.close()?;
                Ok(curve(points, 4.0, ["tick", "ms", "log"]))
            }
        }
    }
}

fn point(x: f64, measured: &Measured) -> Map<String, Value> {
    let mut point = Map::from_iter([("x".to_owned(), json!(x))]);
    point.extend(rows::figures(measured));
    point
}

/// Returns the fields of a row; its main figures are those of the point `at`.
fn curve(
    points: Vec<Map<String, Value>>,
    at: f64,
    [x_name, x_unit, x_scale]: [&str; 3],
) -> Map<String, Value> {
    let mut row = points.iter().find(|point| point["x"] == at).cloned().unwrap_or_default();
    row.remove("x");
    for (name, value) in [("x_name", x_name), ("x_unit", x_unit), ("x_scale", x_scale)] {
        row.insert(name.into(), value.into());
    }
    row.insert("at".into(), json!(at));
    row.insert("points".into(), json!(points));
    row
}

/// A real-time clock that advances in ticks of this number of nanoseconds.
struct Ticking(Arc<AtomicU64>);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let ns = now.tv_sec * 1_000_000_000 + now.tv_nsec;
        let tick = self.0.load(Ordering::Relaxed) as i64;
        let ns = ns - ns % tick;
        Timestamp { sec: ns / 1_000_000_000, nsec: (ns % 1_000_000_000) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_in_ticks() {
        let clock = Ticking(Arc::new(AtomicU64::new(4_000_000)));
        let now = clock.now();
        assert_eq!(now.nsec % 4_000_000, 0);
        clock.0.store(1_000_000_000, Ordering::Relaxed);
        assert_eq!(clock.now().nsec, 0);
        assert!(clock.now().sec >= now.sec);
    }
}
