//! Many workloads, each at every crash point, on all cores.

use crate::history::{self, Step, Worker, bytes_of, mount_options};
use crate::ops::{Op, Workload};
use crate::states::{Kind, State, States};
use crate::target::Target;
use crate::verify;
use crate::watched::Watched;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ivers_block::{Device, FaultDevice, MemDevice, OverlayDevice};
use ivers_vfs::Vfs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Workers that the prepared image has directories for.
pub const MAX_WORKERS: usize = 4;
/// Who recovers a state before it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovery {
    /// The driver under test.
    Ours,
    /// The driver, stopped on its way and begun again.
    OursTwice,
    /// The format's fsck, and then the driver; whether that trusts others who wrote.
    Fsck(bool),
    /// The kernel, and then the driver; whether that trusts others who wrote.
    Kernel(bool),
}

impl Recovery {
    /// Where it is counted.
    fn index(self) -> usize {
        match self {
            Recovery::Ours => 0,
            Recovery::OursTwice => 1,
            Recovery::Fsck(_) => 2,
            Recovery::Kernel(_) => 3,
        }
    }

    fn trusts(self) -> bool {
        matches!(self, Recovery::Fsck(true) | Recovery::Kernel(true))
    }
}

/// Which workloads are explored, and how.
pub struct Explorer {
    /// The format.
    pub target: Box<dyn Target>,
    /// What to run, in this order.
    pub workloads: Vec<Workload>,
    /// Of the first so many workloads, every state is checked. Most states of a short workload are those of its unmount, which
    /// are much alike: of the others' unmounts one state in `unmount_one_in` is.
    pub whole: u64,
    /// See `whole`.
    pub unmount_one_in: u64,
    /// Stop after so many states.
    pub most_states: u64,
    /// Stop after so many violations: the rest would say the same.
    pub most_violations: usize,
    /// Decides what is sampled: subsets of large windows, who recovers.
    pub seed: u64,
    /// One state in so many is recovered by fsck first; 0: none.
    pub fsck_first_every: u64,
    /// One state in so many is recovered by the kernel first; 0: none.
    pub kernel_first_every: u64,
    /// Threads.
    pub threads: usize,
    /// Show a progress bar on a terminal.
    pub progress: bool,
}

/// What an exploration saw.
#[derive(Debug, Default)]
pub struct Summary {
    /// The format.
    pub target: String,
    /// Workloads run.
    pub workloads: u64,
    /// Distinct crash states that were recovered and checked.
    pub states: u64,
    /// Of these, everything written so far.
    pub prefixes: u64,
    /// The last write torn.
    pub torn: u64,
    /// Writes of the window lost.
    pub omitted: u64,
    /// A sealed write incomplete, by a medium that lied.
    pub unsealed: u64,
    /// Recovered by the driver, again after a stop on its way, by fsck first, by the kernel first.
    pub recoveries: [u64; 4],
    /// Torn states that fsck or the kernel refused, and the driver recovered.
    pub refused_by_others: u64,
    /// How long it took.
    pub time: Duration,
    /// What was broken: a report each.
    pub violations: Vec<String>,
    /// How many states had been checked when the first violation showed.
    pub first_violation: Option<u64>,
}

impl Summary {
    fn broken(&mut self, what: String) {
        self.first_violation.get_or_insert(self.states);
        self.violations.push(what);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, twice, fsck, kernel] = self.recoveries;
        writeln!(
            f,
            "{}: {} workloads, {} distinct crash states ({} prefixes, {} torn, {} with writes lost, {} on media that lied) in {:.0} s",
            self.target,
            self.workloads,
            self.states,
            self.prefixes,
            self.torn,
            self.omitted,
            self.unsealed,
            self.time.as_secs_f64()
        )?;
        writeln!(
            f,
            "recovered by the driver {ours}, stopped on its way and recovered again {twice}, by fsck first {fsck}, by the kernel first {kernel} ({} torn states that these refused: by the driver)",
            self.refused_by_others
        )?;
        write!(f, "{} violations", self.violations.len())?;
        if let Some(states) = self.first_violation {
            write!(f, ", the first after {states} states")?;
        }
        self.violations.iter().try_for_each(|violation| write!(f, "\n\n{violation}"))
    }
}

/// What the threads of one exploration share.
struct Shared<'a> {
    explorer: &'a Explorer,
    base: Arc<MemDevice>,
    next: AtomicU64,
    states: AtomicU64,
    stop: AtomicBool,
    summary: Mutex<Summary>,
    bar: ProgressBar,
}

impl Explorer {
    /// Explore. An error is one of the exploration itself (no scratch space, no fsck); what the driver does wrong is in
    /// the summary.
    pub fn run(&self) -> anyhow::Result<Summary> {
        let begun = Instant::now();
        let bar = if self.progress { ProgressBar::new(self.most_states) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} states, {eta} left")?);
        bar.set_message(self.target.name().to_owned());
        let shared = Shared {
            explorer: self,
            base: Arc::new(self.prepared().context("the image cannot be prepared")?),
            next: AtomicU64::new(0),
            states: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            summary: Mutex::new(Summary { target: self.target.name().to_owned(), ..Summary::default() }),
            bar,
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads.max(1)).map(|_| scope.spawn(|| shared.work())).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread of the explorer panicked"))?
            })
        })?;
        shared.bar.finish_and_clear();
        let mut summary = shared.summary.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        summary.time = begun.elapsed();
        Ok(summary)
    }

    fn prepared(&self) -> anyhow::Result<MemDevice> {
        let device = Arc::new(self.target.format()?);
        let vfs = Vfs::mount(self.target.open(device.clone(), false)?, mount_options(false).0)?;
        history::prepare(&vfs, MAX_WORKERS)?;
        vfs.unmount()?;
        Ok(MemDevice::from_bytes(&device.to_bytes()))
    }
}

impl Shared<'_> {
    fn work(&self) -> anyhow::Result<()> {
        let dir = scratch_dir()?;
        let scratch = dir.path().join("image");
        loop {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(workload) = self.explorer.workloads.get(nth as usize) else { return Ok(()) };
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.explore(nth, workload, &scratch)
                .inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
        }
    }

    /// One workload at all its crash points.
    fn explore(&self, nth: u64, workload: &Workload, scratch: &Path) -> anyhow::Result<()> {
        let device = Arc::new(FaultDevice::new(self.base.clone()));
        let (options, clock) = mount_options(workload.small_cache);
        let watched = Watched::new(self.explorer.target.open(device.clone(), false)?, device.clone());
        let vfs = Vfs::mount(watched.clone(), options)?;
        watched.set_vfs(&vfs);
        let mounted = device.len();
        let mut histories = history::run(workload, &vfs, &watched, &device, &clock)
            .with_context(|| format!("workload {}\n{}", workload.name, workload.script()))?;
        let begun = device.len();
        vfs.unmount().with_context(|| format!("unmount after workload {}", workload.name))?;
        drop(vfs);
        for history in &mut histories {
            let tree = history.steps.last().map(|step| step.tree.clone()).unwrap_or_default();
            let done = device.len();
            history.steps.push(Step { op: None, begun, done, ok: true, about: None, replaced: false, tree });
        }
        for history in histories.iter().filter(|history| history.broken.is_some()) {
            let what = history.broken.as_deref().unwrap_or_default();
            let text = format!(
                "{}, workload `{}`: {what}\n{}",
                self.explorer.target.name(),
                workload.name,
                workload.script()
            );
            self.count(|summary| summary.broken(text));
        }
        let record = device.record();
        let seed = self.explorer.seed ^ nth;
        let mut rng = StdRng::seed_from_u64(seed);
        self.count(|summary| summary.workloads += 1);
        // What mounting writes is the same for all: one of them explores it.
        let from = if nth == 0 { 0 } else { mounted };
        let promised = |at| promised(&histories, at);
        let seals = |bytes: &[u8]| self.explorer.target.seals(bytes);
        States::new(self.base.clone(), &record, seed).sealed_by(&seals).each(promised, |state, device| {
            if state.at < from || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let closed = state.at == record.len() && state.kind == Kind::Prefix;
            let alike = nth >= self.explorer.whole && state.at > begun && !closed;
            if alike && rng.random_range(0..self.explorer.unmount_one_in.max(1)) != 0 {
                return Ok(());
            }
            let recovery = self.choose(state, &mut rng);
            let checked = catch_unwind(AssertUnwindSafe(|| {
                self.check(device, state, recovery, &histories, closed, scratch, &mut rng)
            }))
            .unwrap_or_else(|panic| Ok(Err(format!("panic: {}", text_of(&*panic)))))?;
            self.counted(
                state,
                recovery,
                checked.err().map(|what| self.report(workload, state, &histories, recovery, &what)),
            );
            Ok(())
        })
    }

    fn choose(&self, state: &State, rng: &mut StdRng) -> Recovery {
        let mut one_in = |every: u64| every > 0 && rng.random_range(0..every) == 0;
        // What others make of media that lie is theirs to promise.
        let honest = !matches!(state.kind, Kind::Unsealed(..));
        if honest && one_in(self.explorer.kernel_first_every) {
            Recovery::Kernel(one_in(2))
        } else if honest && one_in(self.explorer.fsck_first_every) {
            Recovery::Fsck(one_in(2))
        } else if one_in(16) {
            Recovery::OursTwice
        } else {
            Recovery::Ours
        }
    }

    /// Recover a state and check it. The outer error is the explorer's own, the inner one a broken promise.
    #[allow(clippy::too_many_arguments)]
    fn check(
        &self,
        image: OverlayDevice,
        state: &State,
        recovery: Recovery,
        histories: &[Worker],
        closed: bool,
        scratch: &Path,
        rng: &mut StdRng,
    ) -> anyhow::Result<Result<(), String>> {
        let target = &*self.explorer.target;
        let device: Arc<dyn Device> = match recovery {
            Recovery::Ours => Arc::new(image),
            Recovery::OursTwice => match self.stopped_recovery(image, rng)? {
                Ok(device) => device,
                Err(what) => return Ok(Err(what)),
            },
            Recovery::Fsck(_) | Recovery::Kernel(_) => {
                fs::write(scratch, bytes_of(&image)?)?;
                if let Err(error) = target.raw_check(scratch) {
                    return Ok(Err(format!("fsck complains before recovery: {error:#}")));
                }
                let recovered = match recovery {
                    Recovery::Fsck(_) => Some(target.repair(scratch)),
                    _ => target.kernel_recovers(scratch),
                };
                match recovered {
                    // Not everybody expects torn sectors of everything (ext4's superblock); the driver under test must.
                    Some(Err(_)) if matches!(state.kind, Kind::Torn(_)) => {
                        self.count(|summary| summary.refused_by_others += 1);
                        Arc::new(image)
                    }
                    Some(Err(error)) => {
                        return Ok(Err(format!("{recovery:?} cannot recover it: {error:#}")));
                    }
                    _ => Arc::new(MemDevice::from_bytes(&fs::read(scratch)?)),
                }
            }
        };
        let promises = target.promises();
        let checked = (|| -> Result<(), String> {
            let fs = target
                .open(device.clone(), recovery.trusts())
                .map_err(|error| format!("cannot be opened: {error}"))?;
            let vfs = Vfs::mount(fs, mount_options(false).0)
                .map_err(|error| format!("cannot be mounted: {error}"))?;
            for history in histories {
                verify::worker(&vfs, history, state, closed && recovery == Recovery::Ours, promises)
                    .map_err(|what| format!("worker {}: {what}", history.index))?;
            }
            verify::moves_on(&vfs, histories, state.at, promises)?;
            vfs.unmount().map_err(|error| format!("cannot be closed after recovery: {error}"))
        })();
        if checked.is_err() {
            return Ok(checked);
        }
        fs::write(scratch, bytes_of(&*device)?)?;
        Ok(target.check(scratch).map_err(|error| format!("fsck complains after recovery: {error:#}")))
    }

    /// Recover, and stop the medium at a random write of the recovery.
    fn stopped_recovery(
        &self,
        image: OverlayDevice,
        rng: &mut StdRng,
    ) -> anyhow::Result<Result<Arc<dyn Device>, String>> {
        let device = Arc::new(FaultDevice::new(Arc::new(image)));
        match self.explorer.target.open(device.clone(), false) {
            Ok(fs) => drop(fs),
            Err(error) => return Ok(Err(format!("cannot be opened: {error}"))),
        }
        let at = rng.random_range(0..=device.len());
        let salt: u64 = rng.random();
        let image = device.image_where(at, |nth| salt.rotate_left(nth as u32 % 64) & 1 == 0)?;
        Ok(Ok(Arc::new(image)))
    }

    fn count(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn counted(&self, state: &State, recovery: Recovery, violation: Option<String>) {
        self.bar.inc(1);
        if self.states.fetch_add(1, Ordering::Relaxed) + 1 >= self.explorer.most_states {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.count(|summary| {
            summary.states += 1;
            match state.kind {
                Kind::Prefix => summary.prefixes += 1,
                Kind::Torn(_) => summary.torn += 1,
                Kind::Omitted(_) => summary.omitted += 1,
                Kind::Unsealed(..) => summary.unsealed += 1,
            }
            summary.recoveries[recovery.index()] += 1;
            if let Some(what) = violation {
                summary.broken(what);
            }
            if summary.violations.len() >= self.explorer.most_violations {
                self.stop.store(true, Ordering::Relaxed);
            }
        });
    }

    fn report(
        &self,
        workload: &Workload,
        state: &State,
        histories: &[Worker],
        recovery: Recovery,
        what: &str,
    ) -> String {
        let mut text = format!(
            "{}, workload `{}`, seed {}, after {} recorded operations, {:?}, recovered by {recovery:?}: {what}\n",
            self.explorer.target.name(),
            workload.name,
            self.explorer.seed,
            state.at,
            state.kind,
        );
        for history in histories {
            for (nth, step) in history.steps.iter().enumerate().filter(|(_, step)| step.begun <= state.at) {
                let op = step.op.as_ref().map_or("-".to_owned(), Op::to_string);
                let outcome = if step.ok { "" } else { " (refused)" };
                text += &format!(
                    "  worker {} step {nth} [{}..{}] {op}{outcome}\n",
                    history.index, step.begun, step.done
                );
            }
        }
        text
    }
}

/// How many promises had been made when the record had this length.
fn promised(histories: &[Worker], at: usize) -> u64 {
    let mut count = 0;
    for history in histories {
        let synced = |step: &&Step| {
            matches!(step.op, None | Some(Op::Sync | Op::Fsync(_) | Op::Fdatasync(_))) && step.done <= at
        };
        count += history.steps.iter().filter(synced).count() as u64;
        count += history.handed.iter().filter(|handed| handed.at <= at).count() as u64;
    }
    count
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of no text")
}

/// Memory where there is some to write to: the images are small and many.
fn scratch_dir() -> anyhow::Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("ivers-crash-");
        builder
    };
    builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir()).context("no scratch directory")
}
