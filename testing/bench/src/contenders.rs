//! The contenders of an in-process row, on equal images: the library in three modes, and the kernel's driver
//! where it can be mounted.
//!
//! All contenders stay mounted during a row and take turns.

use std::time::Duration;

use anyhow::{Result, ensure};
use ivers_vfs::{ChangeMode, Clock, MountOptions};
use serde_json::{Map, Value};

use super::image::{Format, Image};
use super::interrupt;
use super::statistics::Samples;
use super::volume::{Counts, InProcess, Kernel, Volume};
use super::workloads::Workload;
use indicatif::ProgressBar;

/// The modes and their names in rows, in the order of a round.
pub(crate) const MODES: [(&str, ChangeMode); 3] =
    [("old", ChangeMode::Eager), ("new", ChangeMode::Lazy), ("none", ChangeMode::Off)];

/// The size of a sparse image.
const IMAGE_BYTES: u64 = 4 << 30;
const CACHE_BYTES: u64 = 1 << 30;

/// The filesystem under test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) format: Format,
    pub(crate) storing: Storing,
}

/// When the mode `new` stores a bump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storing {
    /// With the inode (the default).
    Deferred,
    /// At once (`-o nolazyversion`).
    AtOnce,
    /// At once, and each store of an inode counts as a query. The patch series did so on btrfs.
    ByQuery,
}

impl Kind {
    fn image(self) -> Image {
        Image { format: self.format, bytes: IMAGE_BYTES }
    }
}

/// The mounted filesystems of a row.
pub(crate) struct Contenders {
    kind: Kind,
    /// In the order of [`MODES`]. Must be unmounted before the files in `scratch` are deleted.
    ours: Vec<InProcess>,
    kernel: Option<Kernel>,
    missing: Map<String, Value>,
    scratch: tempfile::TempDir,
}

/// The amount of work to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) rounds: u64,
    /// Operations per round. Increased until a round takes `at_least` for the fastest mode.
    pub(crate) ops: u64,
    pub(crate) at_least: Duration,
}

/// The results of one contender.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) ns_per_op: Samples,
    pub(crate) cpu_ns_per_op: Samples,
    pub(crate) queries_per_second: Samples,
    pub(crate) latencies: Vec<u32>,
    pub(crate) counts: Counts,
}

/// The results of a row or of one point of a curve.
pub(crate) struct Measured {
    pub(crate) rounds: u64,
    /// Operations of each mode in all rounds together.
    pub(crate) ops: u64,
    /// In the order of [`MODES`].
    pub(crate) ours: [Sample; 3],
    /// With its name in rows.
    pub(crate) kernel: Option<(&'static str, Sample)>,
    pub(crate) missing: Map<String, Value>,
}

/// A contender while it runs a workload.
struct Course<'a, V: Volume, W: Workload> {
    volume: &'a V,
    workload: &'a W,
    state: Option<W::State<V>>,
    /// An open file through which the filesystem is synced.
    anchor: Option<V::File>,
    sample: Sample,
    before: Counts,
}

const ANCHOR: &str = "anchor";

impl<'a, V: Volume, W: Workload> Course<'a, V, W> {
    fn begin(volume: &'a V, workload: &'a W) -> Result<Self> {
        let state = Some(workload.begin(volume)?);
        let anchor = Some(volume.create(ANCHOR, super::volume::Access::Cached)?);
        Ok(Self { volume, workload, state, anchor, sample: Sample::default(), before: Counts::default() })
    }

    fn sync(&self) -> Result<()> {
        self.anchor.iter().try_for_each(|anchor| self.volume.sync(anchor))
    }

    /// Runs one round and returns the time measured.
    fn round(&mut self, ops: u64) -> Result<Duration> {
        let Some(state) = &mut self.state else { return Ok(Duration::ZERO) };
        let turn = self.workload.round(self.volume, state, ops)?;
        let each = |time: Duration| time.as_nanos() as f64 / turn.ops as f64;
        self.sample.ns_per_op.push(each(turn.elapsed));
        self.sample.cpu_ns_per_op.extend(turn.cpu.map(each));
        let seconds = turn.elapsed.as_secs_f64().max(1e-9);
        self.sample.queries_per_second.push(turn.queries as f64 / seconds);
        self.sample.latencies.extend(turn.latencies);
        Ok(turn.elapsed)
    }

    /// Discards the results of the rounds so far.
    fn start_counting(&mut self) -> Result<()> {
        self.sample = Sample::default();
        self.sync()?;
        self.before = self.volume.counts();
        Ok(())
    }

    fn end(mut self) -> Result<Sample> {
        self.sync()?;
        self.sample.counts = self.volume.counts().since(self.before);
        if let Some(state) = self.state.take() {
            self.workload.end(self.volume, state)?;
        }
        if let Some(anchor) = self.anchor.take() {
            self.volume.remove(ANCHOR, anchor)?;
        }
        Ok(self.sample)
    }
}

/// A contender that takes turns.
trait Turns {
    fn turn(&mut self, ops: u64) -> Result<()>;
}

impl<V: Volume, W: Workload> Turns for Course<'_, V, W> {
    fn turn(&mut self, ops: u64) -> Result<()> {
        self.round(ops).map(drop)
    }
}

/// Returns the order of the contenders in a round. Over several rounds each contender follows each other one
/// equally often: a contender that waits for the disk leaves the processor rested, so the next one is faster.
pub(crate) fn order(round: u64, contenders: usize) -> Vec<usize> {
    let round = round as usize;
    // A Williams square: 0, 1, n-1, 2, n-2 and so on, shifted by one each round, and reversed in every second
    // pass.
    let zigzag = (0..contenders).map(|nth| if nth % 2 == 1 { nth.div_ceil(2) } else { contenders - nth / 2 });
    let mut order: Vec<_> = zigzag.map(|nth| (nth + round) % contenders).collect();
    if (round / contenders) % 2 == 1 {
        order.reverse();
    }
    order
}

impl Contenders {
    /// Makes and mounts the images.
    pub(crate) fn open(kind: Kind) -> Result<Self> {
        let mut field = Self::ours(kind, &|| None)?;
        if kind.format != Format::Mem {
            match Kernel::missing() {
                Some(why) => field.miss_kernel(why),
                None => match field.loop_mount() {
                    Ok(volume) => field.kernel = Some(volume),
                    Err(why) => field.miss_kernel(&format!("{why:#}")),
                },
            }
        }
        Ok(field)
    }

    /// Mounts the library only, each with its own clock.
    pub(crate) fn with_clock(kind: Kind, clock: &dyn Fn() -> Box<dyn Clock>) -> Result<Self> {
        let mut field = Self::ours(kind, &|| Some(clock()))?;
        field.miss_kernel("its clock cannot be set (updates_by_tick)");
        Ok(field)
    }

    fn miss_kernel(&mut self, why: &str) {
        self.missing.insert(self.kind.format.kernel_peer().into(), why.into());
    }

    fn ours(kind: Kind, clock: &dyn Fn() -> Option<Box<dyn Clock>>) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
        let mut ours = Vec::new();
        for (label, mode) in MODES {
            let lazyversion = (kind.storing != Storing::Deferred).then_some(false);
            let options = MountOptions {
                mode,
                lazyversion,
                clock: clock(),
                cache_bytes: CACHE_BYTES,
                ..MountOptions::default()
            };
            let image = scratch.path().join(label);
            kind.image().make(&image)?;
            let by_query = kind.storing == Storing::ByQuery && mode == ChangeMode::Lazy;
            let open = if by_query { InProcess::open_storing_by_query } else { InProcess::open };
            ours.push(open(kind.format, &image, options)?);
        }
        Ok(Self { kind, ours, kernel: None, missing: Map::new(), scratch })
    }

    fn loop_mount(&self) -> Result<Kernel> {
        let (image, dir) = (self.scratch.path().join("image"), self.scratch.path().join("kernel"));
        self.kind.image().make(&image)?;
        std::fs::create_dir(&dir)?;
        Kernel::mount(&image, &dir, self.kind.format)
    }

    /// Runs the workload on each contender in turn, after warm-up rounds that do not count.
    pub(crate) fn measure<W: Workload>(
        &self,
        workload: &W,
        length: Length,
        bar: &ProgressBar,
        what: &str,
    ) -> Result<Measured> {
        ensure!(self.ours.len() == MODES.len(), "a mode is missing among the contenders");
        let mut missing = self.missing.clone();
        let mut ours = Vec::new();
        for volume in &self.ours {
            ours.push(Course::begin(volume, workload)?);
        }
        let mut kernel = None;
        if let Some(volume) = &self.kernel {
            match workload.kernel_cannot() {
                Some(why) => {
                    let kernel = self.kind.format.kernel_peer().into();
                    missing.insert(kernel, format!("{why} ({what})").into());
                }
                None => kernel = Some(Course::begin(volume, workload)?),
            }
        }
        let ops = warm_up(&mut ours, workload, length)?;
        kernel.iter_mut().try_for_each(|course| course.round(ops).map(drop))?;
        ours.iter_mut().try_for_each(Course::start_counting)?;
        kernel.iter_mut().try_for_each(Course::start_counting)?;
        let mut all: Vec<&mut dyn Turns> = ours.iter_mut().map(|course| course as &mut dyn Turns).collect();
        all.extend(kernel.iter_mut().map(|course| course as &mut dyn Turns));
        for round in 0..length.rounds {
            for nth in order(round, all.len()) {
                all[nth].turn(ops)?;
            }
            bar.inc(1);
            bar.set_message(format!("{} {what}", self.kind.format.name()));
            interrupt::check()?;
        }
        let mut samples = Vec::new();
        for course in ours {
            samples.push(course.end()?);
        }
        let Ok(ours) = <[Sample; 3]>::try_from(samples) else { unreachable!("as many as there are modes") };
        let kernel = kernel.map(Course::end).transpose()?;
        let kernel = kernel.map(|sample| (self.kind.format.kernel_peer(), sample));
        Ok(Measured { rounds: length.rounds, ops: ops * length.rounds, ours, kernel, missing })
    }

    /// Unmounts the library's filesystems.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.ours.iter().try_for_each(|volume| volume.vfs.unmount())?)
    }
}

/// Runs rounds that warm up caches. Returns the number of operations per round.
fn warm_up<W: Workload>(ours: &mut [Course<'_, InProcess, W>], workload: &W, length: Length) -> Result<u64> {
    /// The number of attempts: each estimates from a short round.
    const TRIES: u32 = 8;
    let mut ops = workload.round_up(length.ops);
    for _ in 0..TRIES {
        let mut fastest = Duration::MAX;
        for course in ours.iter_mut() {
            fastest = fastest.min(course.round(ops)?);
        }
        if fastest >= length.at_least {
            break;
        }
        let short = length.at_least.as_secs_f64() / fastest.as_secs_f64().max(1e-6);
        ops = workload.round_up((ops as f64 * (short * 1.1).clamp(1.2, 16.0)) as u64);
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::order;
    use std::collections::BTreeMap;

    #[test]
    fn each_contender_follows_each_other_equally_often() {
        for contenders in [3, 4, 7] {
            let mut follows = BTreeMap::new();
            for round in 0..2 * contenders as u64 {
                let order = order(round, contenders);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..contenders).collect::<Vec<_>>());
                for pair in order.windows(2) {
                    *follows.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            assert_eq!(follows.len(), contenders * (contenders - 1));
            assert!(follows.values().all(|&times| times == 2), "{follows:?}");
        }
    }
}
