//! Runs many workloads on all cores and checks each at every crash point.

use crate::history::{self, MAX_WORKERS, Step, Worker, mount_options};
use crate::observed_fs::ObservedFs;
use crate::ops::{Op, Workload, stable};
use crate::recover::{Checker, Counts, Odds, Plan, Recovery};
use crate::states::{Kind, State, States};
use crate::target::Target;
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

/// The workloads to explore, and the sampling.
pub struct Explorer {
    /// The format.
    pub target: Box<dyn Target>,
    /// The workloads, in the order in which they run.
    pub workloads: Vec<Workload>,
    /// The number of workloads, from the first, of which every state is checked and every write is torn at
    /// every sector. For the others, only one state in `unmount_one_in` of their unmount is checked: most
    /// states of a short workload belong to its unmount, and they are much alike.
    pub whole: u64,
    /// See [`Self::whole`].
    pub unmount_one_in: u64,
    /// The exploration stops after this number of states.
    pub most_states: u64,
    /// The exploration stops after this number of violations: more would repeat them.
    pub most_violations: usize,
    /// Decides, together with a workload's name, what is sampled of the workload (subsets of large windows,
    /// the kind of recovery). It does not depend on the other workloads.
    pub seed: u64,
    /// fsck recovers one state in this number before the driver; 0: none.
    pub fsck_first_every: u64,
    /// The kernel recovers one state in this number before the driver, and lists the files of one in this
    /// number after our recovery; 0: none.
    pub kernel_first_every: u64,
    /// One state in this number is unmounted and checked by the format's fsck before anything changes in it;
    /// 0: none.
    pub fresh_every: u64,
    /// One state in this number is checked by the format's fsck at the end; 0: none.
    pub check_every: u64,
    /// The number of threads.
    pub threads: usize,
    /// Whether to show a progress bar on a terminal.
    pub progress: bool,
}

/// The results of an exploration.
#[derive(Debug, Default)]
pub struct Summary {
    /// The format.
    pub target: String,
    /// See [`Explorer::seed`].
    pub seed: u64,
    /// The number of workloads run.
    pub workloads: u64,
    /// A checksum of the states and recoveries of each workload, without those of the mount, which all
    /// workloads share.
    pub explored: BTreeMap<String, u64>,
    /// The number of distinct crash states that were recovered and checked.
    pub states: u64,
    /// States that contain every write so far.
    pub prefixes: u64,
    /// States in which the last write is torn.
    pub torn: u64,
    /// States that lack writes of the window.
    pub omitted: u64,
    /// States in which a sealed write is incomplete because the medium ignored a flush.
    pub unsealed: u64,
    /// States recovered by the driver, by the driver after an interrupted recovery, by fsck first, by the
    /// kernel first.
    pub recoveries: [u64; 4],
    /// Torn states that fsck or the kernel refused and the driver recovered.
    pub refused_by_others: u64,
    /// States that fsck damaged by a known fault of its own and the driver recovered.
    pub spoiled_by_fsck: u64,
    /// States that fsck checked directly after recovery.
    pub fresh: u64,
    /// States that the kernel mounted after our recovery.
    pub kernel_view: u64,
    /// States that were used after recovery and crashed a second time.
    pub second_crashes: u64,
    /// The duration.
    pub time: Duration,
    /// The violations, a report each.
    pub violations: Vec<String>,
    /// The number of states that had been checked when the first violation showed.
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
            "{}: seed {}, {} workloads, {} distinct crash states ({} prefixes, {} torn, {} with writes \
                lost, {} on media that ignored a flush) in {:.0} s",
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
            "recovered by the driver {ours} (including {} torn states that others refused and {} that fsck \
                damaged), by the driver after an interrupted recovery {twice}, by fsck first {fsck}, by \
                the kernel first {kernel}; checked by fsck directly after recovery {}, compared with the \
                kernel's view {}, crashed a second time {}",
            self.refused_by_others, self.spoiled_by_fsck, self.fresh, self.kernel_view, self.second_crashes
        )?;
        write!(f, "{} violations", self.violations.len())?;
        if let Some(states) = self.first_violation {
            write!(f, ", the first after {states} states")?;
        }
        self.violations.iter().try_for_each(|violation| write!(f, "\n\n{violation}"))
    }
}

/// Data shared by the threads of one exploration.
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
    /// Returns an explorer without workloads, with defaults for most runs: all kinds of recovery except the
    /// kernel's, fsck checks every state, all cores. `IVERS_CRASH_VIOLATIONS` sets `most_violations`.
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

    /// Explores the workloads. An error means that the exploration itself failed (no scratch space, no fsck);
    /// faults of the driver are in the summary.
    pub fn run(&self) -> anyhow::Result<Summary> {
        let begun = Instant::now();
        let bar = if self.progress { ProgressBar::new(self.most_states) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} states, {eta} left")?);
        bar.set_message(self.target.name().to_owned());
        let shared = Shared {
            explorer: self,
            base: Arc::new(self.prepared().context("cannot prepare the image")?),
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
            "{}: the mounted filesystem claims crash_safe: {claimed}, but its target promises {explored}",
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

    /// Checks one workload at all its crash points.
    fn explore(&self, nth: u64, workload: &Workload, scratch: &Path) -> anyhow::Result<()> {
        let device = Arc::new(FaultDevice::new(self.base.clone()));
        let (options, clock) = mount_options(Some(workload));
        let observed = ObservedFs::new(self.explorer.target.open(device.clone(), false)?, device.clone());
        let vfs = Vfs::mount(observed.clone(), options)?;
        observed.set_vfs(&vfs);
        let mounted = device.len();
        let mut histories = history::run(workload, &vfs, &observed, &device, &clock)
            .with_context(|| format!("workload {}\n{}", workload.name, workload.script()))?;
        let begin = device.len();
        vfs.unmount().with_context(|| format!("cannot unmount after workload {}", workload.name))?;
        drop(vfs);
        for history in &mut histories {
            let tree = history.steps.last().map(|step| step.tree.clone()).unwrap_or_default();
            let end = device.len();
            history.steps.push(Step { op: None, begin, end, ok: true, about: None, replaced: false, tree });
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
        // The writes of the mount are the same for all workloads: only the first workload explores them.
        let from = if nth == 0 { 0 } else { mounted };
        let acknowledged = |at| acknowledged(&histories, at);
        let seals = |bytes: &[u8]| self.explorer.target.seals(bytes);
        let checker = Checker { target: &*self.explorer.target, histories: &histories, scratch };
        let mut explored = 0u64;
        let states = States::new(self.base.clone(), &record, number).sealed_by(&seals).torn_everywhere(whole);
        states.each(acknowledged, |state, device| {
            if state.at < from || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let closed = state.at == record.len() && state.kind == Kind::Prefix;
            let alike = !whole && state.at > begin && !closed;
            // The choice depends on the state alone, so that other odds do not change the sample.
            if alike
                && !(number ^ state.digest().rotate_left(32))
                    .is_multiple_of(self.explorer.unmount_one_in.max(1))
            {
                return Ok(());
            }
            let mut plan = Plan::new(number, state, self.odds());
            let mut counts = Counts::default();
            let checked = catch_unwind(AssertUnwindSafe(|| {
                checker.check(device, state, &mut plan, closed, &mut counts)
            }))
            .unwrap_or_else(|panic| Ok(Err(format!("panic: {}", text_of(&*panic)))))?;
            if state.at >= mounted {
                let what = format!("{state:?} {:?}", plan.recovery);
                explored = explored.wrapping_add(stable(what.bytes()));
            }
            self.counted(
                state,
                plan.recovery,
                &counts,
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

    fn counted(&self, state: &State, recovery: Recovery, counts: &Counts, violation: Option<String>) {
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
            summary.refused_by_others += counts.refused_by_others;
            summary.spoiled_by_fsck += counts.spoiled_by_fsck;
            summary.fresh += counts.fresh;
            summary.kernel_view += counts.kernel_view;
            summary.second_crashes += counts.second_crashes;
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
            "{}, workload `{}`, seed {} (number {:#x}), after {} recorded operations, {:?}, recovered by \
                {recovery:?}: {what}\n",
            self.explorer.target.name(),
            workload.name,
            self.explorer.seed,
            workload.number(self.explorer.seed),
            state.at,
            state.kind,
        );
        for history in histories {
            for (nth, step) in history.steps.iter().enumerate().filter(|(_, step)| step.begin <= state.at) {
                let op = step.op.as_ref().map_or("-".to_owned(), Op::to_string);
                let outcome = if step.ok { "" } else { " (refused)" };
                text += &format!(
                    "  worker {} step {nth} [{}..{}] {op}{outcome}\n",
                    history.index, step.begin, step.end
                );
            }
        }
        text
    }
}

/// Returns the number of acknowledgements up to this length of the record: durable calls, and values of the
/// change attribute that were handed out.
fn acknowledged(histories: &[Worker], at: usize) -> u64 {
    let mut count = 0;
    for history in histories {
        let synced = |step: &&Step| {
            matches!(step.op, None | Some(Op::Sync | Op::Snapshot | Op::Fsync(_) | Op::Fdatasync(_)))
                && step.end <= at
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

/// Returns a scratch directory, in memory if possible: the images are small and many.
fn scratch_dir() -> anyhow::Result<tempfile::TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("ivers-crash-");
        builder
    };
    builder()
        .tempdir_in("/dev/shm")
        .or_else(|_| builder().tempdir())
        .context("cannot create a scratch directory")
}
