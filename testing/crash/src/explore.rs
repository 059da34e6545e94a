//! Many workloads, each at every crash point, on all cores.

use crate::history::{self, MAX_WORKERS, Step, Worker, mount_options};
use crate::ops::{Op, Workload, stable};
use crate::recover::{Aside, Checker, Odds, Plan, Recovery};
use crate::states::{Kind, State, States};
use crate::target::Target;
use crate::watched::Watched;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ivers_block::{FaultDevice, MemDevice};
use ivers_vfs::Vfs;
use std::collections::BTreeMap;
use std::fmt;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Which workloads are explored, and how.
pub struct Explorer {
    /// The format.
    pub target: Box<dyn Target>,
    /// What to run, in this order.
    pub workloads: Vec<Workload>,
    /// Of the first so many workloads, every state is checked and every write is torn everywhere. Most states of a short workload are those of
    /// its unmount, which are much alike: of the others' unmounts one state in `unmount_one_in` is.
    pub whole: u64,
    /// See `whole`.
    pub unmount_one_in: u64,
    /// Stop after so many states.
    pub most_states: u64,
    /// Stop after so many violations: the rest would say the same.
    pub most_violations: usize,
    /// Decides, with a workload's name, what is sampled of it: subsets of large windows, who recovers. Which others are run makes no difference.
    pub seed: u64,
    /// One state in so many is recovered by fsck first; 0: none.
    pub fsck_first_every: u64,
    /// One state in so many is recovered by the kernel first, and one in so many is shown by it after our recovery; 0: none.
    pub kernel_first_every: u64,
    /// One state in so many is closed and looked at by the format's fsck before anything is changed in it; 0: none.
    pub fresh_every: u64,
    /// One state in so many is looked at by the format's fsck in the end; 0: none.
    pub check_every: u64,
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
    /// See [`Explorer::seed`].
    pub seed: u64,
    /// Workloads run.
    pub workloads: u64,
    /// What was explored of each, as a sum: states and recoveries, but for what is the same for all workloads (the mount).
    pub explored: BTreeMap<String, u64>,
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
    /// States that fsck damaged by a known fault of its own, and the driver recovered.
    pub spoiled_by_fsck: u64,
    /// Looked at by fsck as they were recovered, and shown by the kernel; worked on and stopped a second time.
    pub fresh: u64,
    /// See `fresh`.
    pub shown: u64,
    /// See `fresh`.
    pub again: u64,
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
            "{}: seed {}, {} workloads, {} distinct crash states ({} prefixes, {} torn, {} with writes lost, {} on media that lied) in {:.0} s",
            self.target,
            self.seed,
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
            "recovered by the driver {ours} (also {} torn states that others refused and {} that fsck spoiled), stopped on its way and recovered again {twice}, by fsck first {fsck}, by the kernel first {kernel}; looked at by fsck as recovered {}, compared with what the kernel shows {}, stopped a second time {}",
            self.refused_by_others, self.spoiled_by_fsck, self.fresh, self.shown, self.again
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
    /// One of no workloads yet, with what suits most runs: everybody recovers but the kernel, fsck looks at every state, and it takes all cores.
    /// `IVERS_CRASH_VIOLATIONS` says after how many violations to stop.
    pub fn new(target: impl Target + 'static, seed: u64) -> Self {
        Self {
            target: Box::new(target),
            workloads: Vec::new(),
            whole: 0,
            unmount_one_in: 8,
            most_states: u64::MAX,
            most_violations: crate::env("IVERS_CRASH_VIOLATIONS").unwrap_or(5) as usize,
            seed,
            fsck_first_every: 8,
            kernel_first_every: 0,
            fresh_every: 8,
            check_every: 1,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            progress: std::io::stderr().is_terminal(),
        }
    }

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
            summary: Mutex::new(Summary {
                target: self.target.name().to_owned(),
                seed: self.seed,
                ..Summary::default()
            }),
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
        let vfs = Vfs::mount(self.target.open(device.clone(), false)?, mount_options(None).0)?;
        let (claimed, explored) = (vfs.info().semantics.crash_safe, self.target.promises().crash_safe_values);
        anyhow::ensure!(
            claimed == explored,
            "{}: the mounted filesystem claims crash_safe: {claimed}, and is explored for {explored}",
            self.target.name()
        );
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
        let (options, clock) = mount_options(Some(workload));
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
        let number = workload.number(self.explorer.seed);
        let whole = nth < self.explorer.whole;
        // What mounting writes is the same for all: one of them explores it.
        let from = if nth == 0 { 0 } else { mounted };
        let promised = |at| promised(&histories, at);
        let seals = |bytes: &[u8]| self.explorer.target.seals(bytes);
        let checker = Checker { target: &*self.explorer.target, histories: &histories, scratch };
        let mut explored = 0u64;
        let states = States::new(self.base.clone(), &record, number).sealed_by(&seals).torn_everywhere(whole);
        states.each(promised, |state, device| {
            if state.at < from || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let closed = state.at == record.len() && state.kind == Kind::Prefix;
            let alike = !whole && state.at > begun && !closed;
            // Whether a state is sampled depends on nothing but itself, so that other odds do not move the sample.
            if alike
                && !(number ^ state.digest().rotate_left(32))
                    .is_multiple_of(self.explorer.unmount_one_in.max(1))
            {
                return Ok(());
            }
            let mut plan = Plan::new(number, state, self.odds());
            let mut aside = Aside::default();
            let checked = catch_unwind(AssertUnwindSafe(|| {
                checker.check(device, state, &mut plan, closed, &mut aside)
            }))
            .unwrap_or_else(|panic| Ok(Err(format!("panic: {}", text_of(&*panic)))))?;
            if state.at >= mounted {
                let what = format!("{state:?} {:?}", plan.recovery);
                explored = explored.wrapping_add(stable(what.bytes()));
            }
            self.counted(
                state,
                plan.recovery,
                &aside,
                checked.err().map(|what| self.report(workload, state, &histories, plan.recovery, &what)),
            );
            Ok(())
        })?;
        self.count(|summary| {
            summary.workloads += 1;
            summary.explored.insert(workload.name.clone(), explored);
        });
        Ok(())
    }

    fn odds(&self) -> Odds {
        Odds {
            fsck_first_every: self.explorer.fsck_first_every,
            kernel_first_every: self.explorer.kernel_first_every,
            fresh_every: self.explorer.fresh_every,
            check_every: self.explorer.check_every,
            only_values: self.explorer.target.promises().only_values,
        }
    }

    fn count(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn counted(&self, state: &State, recovery: Recovery, aside: &Aside, violation: Option<String>) {
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
            summary.refused_by_others += aside.refused_by_others;
            summary.spoiled_by_fsck += aside.spoiled_by_fsck;
            summary.fresh += aside.fresh;
            summary.shown += aside.shown;
            summary.again += aside.again;
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
            "{}, workload `{}`, seed {} (number {:#x}), after {} recorded operations, {:?}, recovered by {recovery:?}: {what}\n",
            self.explorer.target.name(),
            workload.name,
            self.explorer.seed,
            workload.number(self.explorer.seed),
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
