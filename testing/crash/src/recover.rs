//! Recovery and check of one crash state.

use crate::history::{Worker, mount_options, read_tree};
use crate::kernel_view;
use crate::second_crash;
use crate::states::{Kind, State};
use crate::target::{Repaired, Target};
use crate::verify;
use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice, OverlayDevice};
use ivers_vfs::Vfs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// One state in this number is used after recovery and crashes a second time.
const SECOND_CRASH_ONE_IN: u64 = 16;

/// The program that recovers a state before it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// The driver under test.
    Ours,
    /// The driver, interrupted and started again.
    OursTwice,
    /// The format's fsck, then the driver. True: the driver trusts other writers.
    Fsck(bool),
    /// The kernel, then the driver. True: the driver trusts other writers.
    Kernel(bool),
}

impl Recovery {
    /// Returns the index into [`crate::Summary::recoveries`].
    pub(crate) fn index(self) -> usize {
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

/// The steps for one state. They depend only on the workload's number and the state, whatever else is
/// explored.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The program that must recover the state. After the check: the program that did.
    pub(crate) recovery: Recovery,
    /// The format's fsck checks the state before anything changes.
    pub(crate) fresh: bool,
    /// The kernel's view of the recovered state is compared with ours.
    pub(crate) kernel_view: bool,
    /// The state is used and crashes a second time.
    pub(crate) second_crash: bool,
    /// The format's fsck checks the state at the end.
    pub(crate) check: bool,
    rng: StdRng,
}

/// The frequency of each optional step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Odds {
    pub(crate) fsck_first_every: u64,
    pub(crate) kernel_first_every: u64,
    pub(crate) fresh_every: u64,
    pub(crate) check_every: u64,
    pub(crate) only_values: bool,
}

impl Plan {
    pub(crate) fn new(number: u64, state: &State, odds: Odds) -> Self {
        let mut rng = StdRng::seed_from_u64(number ^ state.digest());
        let mut one_in = |every: u64| every > 0 && rng.random_range(0..every) == 0;
        // fsck and the kernel do not promise to recover media that ignore flushes.
        let honest = !matches!(state.kind, Kind::Unsealed(..));
        let recovery = if odds.only_values {
            Recovery::Fsck(false)
        } else if honest && one_in(odds.kernel_first_every) {
            Recovery::Kernel(one_in(2))
        } else if honest && one_in(odds.fsck_first_every) {
            Recovery::Fsck(one_in(2))
        } else if one_in(16) {
            Recovery::OursTwice
        } else {
            Recovery::Ours
        };
        let kernel_view = one_in(odds.kernel_first_every) && !odds.only_values;
        let fresh = kernel_view || (one_in(odds.fresh_every) && !odds.only_values);
        let second_crash = one_in(SECOND_CRASH_ONE_IN) && !odds.only_values;
        let check = one_in(odds.check_every);
        Self { recovery, fresh, kernel_view, second_crash, check, rng }
    }
}

/// Counts of optional steps.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) refused_by_others: u64,
    pub(crate) spoiled_by_fsck: u64,
    pub(crate) fresh: u64,
    pub(crate) kernel_view: u64,
    pub(crate) second_crashes: u64,
}

/// The context of all checks of one workload.
pub(crate) struct Checker<'a> {
    pub(crate) target: &'a dyn Target,
    pub(crate) histories: &'a [Worker],
    /// A file for tools that need one.
    pub(crate) scratch: &'a Path,
}

/// The result of recovery by another program.
enum ByOthers {
    Recovered,
    NotTried,
    Failed(String),
}

impl Checker<'_> {
    /// Recovers a state and checks it. The outer error is a failure of the explorer, the inner one a broken
    /// promise. `closed`: the session had been closed cleanly.
    pub(crate) fn check(
        &self,
        image: OverlayDevice,
        state: &State,
        plan: &mut Plan,
        closed: bool,
        counts: &mut Counts,
    ) -> anyhow::Result<Result<(), String>> {
        let mut device: Arc<dyn Device> = Arc::new(image);
        let only_values = self.target.promises().only_values;
        if only_values && let Err(what) = self.check_unrecovered(&device, state.at) {
            return Ok(Err(format!("before fsck: {what}")));
        }
        match plan.recovery {
            Recovery::Ours => {}
            Recovery::OursTwice => match self.interrupt_recovery(device, &mut plan.rng)? {
                Ok(stopped) => device = stopped,
                Err(what) => return Ok(Err(what)),
            },
            Recovery::Fsck(_) | Recovery::Kernel(_) => {
                match self.recover_by_others(&*device, state, plan.recovery, counts)? {
                    ByOthers::Recovered => device = Arc::new(MemDevice::from_bytes(&fs::read(self.scratch)?)),
                    // Without this repair the driver does not open the image, so there is nothing to check.
                    ByOthers::NotTried if only_values => {
                        plan.recovery = Recovery::Ours;
                        return Ok(Ok(()));
                    }
                    ByOthers::NotTried => plan.recovery = Recovery::Ours,
                    ByOthers::Failed(what) => return Ok(Err(what)),
                }
            }
        }
        let trusting = plan.recovery.trusts();
        let closed = closed && plan.recovery == Recovery::Ours;
        if let Err(what) = self.check_promises(&device, state, trusting, closed, plan, counts)? {
            return Ok(Err(what));
        }
        if plan.second_crash && self.target.promises().crash_safe_values {
            counts.second_crashes += 1;
            let rng = &mut plan.rng;
            if let Err(what) = second_crash::check(self.target, self.histories, &device, state.at, rng)? {
                return Ok(Err(format!("after recovery and a second crash: {what}")));
            }
        }
        if !plan.check {
            return Ok(Ok(()));
        }
        copy_to_file(&*device, self.scratch)?;
        let checked = self.target.check(self.scratch);
        Ok(checked.map_err(|error| format!("fsck complains after recovery: {error:#}")))
    }

    /// Checks the driver on a state that it does not recover: it must refuse it, serve no values, or serve
    /// right values.
    fn check_unrecovered(&self, device: &Arc<dyn Device>, at: usize) -> Result<(), String> {
        let promises = self.target.promises();
        let Ok(fs) = self.target.open(Arc::new(OverlayDevice::new(device.clone())), false) else {
            return Ok(());
        };
        let vfs = Vfs::mount(fs, mount_options(None).0).map_err(|error| format!("cannot mount: {error}"))?;
        for history in self.histories.iter().filter(|_| vfs.no_change_attribute().is_none()) {
            let found =
                read_tree(&vfs, history.index).map_err(|error| format!("cannot read the tree: {error}"))?;
            verify::values(&vfs, history, &found, at, false, promises)?;
        }
        vfs.unmount().map_err(|error| format!("cannot unmount: {error}"))
    }

    /// Checks that the promises hold in a state and that the filesystem can be used.
    fn check_promises(
        &self,
        device: &Arc<dyn Device>,
        state: &State,
        trusting: bool,
        closed: bool,
        plan: &Plan,
        counts: &mut Counts,
    ) -> anyhow::Result<Result<(), String>> {
        let promises = self.target.promises();
        let judged = (|| -> Result<Arc<Vfs>, String> {
            let vfs = mount(self.target, device.clone(), trusting)?;
            for history in self.histories {
                verify::worker(&vfs, history, state, closed, self.target)
                    .map_err(|what| format!("worker {}: {what}", history.index))?;
            }
            Ok(vfs)
        })();
        let mut vfs = match judged {
            Ok(vfs) => vfs,
            Err(what) => return Ok(Err(what)),
        };
        if plan.fresh {
            let trees = plan.kernel_view.then(|| kernel_view::trees(&vfs, self.histories)).transpose()?;
            if let Err(what) = unmount(&vfs) {
                return Ok(Err(what));
            }
            counts.fresh += 1;
            copy_to_file(&**device, self.scratch)?;
            if let Err(error) = self.target.check(self.scratch) {
                return Ok(Err(format!("fsck complains directly after recovery: {error:#}")));
            }
            if let Some(trees) = trees {
                let mut look = |root: &Path| kernel_view::compare(root, &trees);
                match self.target.kernel_shows(self.scratch, &mut look) {
                    Some(Err(error)) => {
                        return Ok(Err(format!("the kernel shows another tree: {error:#}")));
                    }
                    Some(Ok(())) => counts.kernel_view += 1,
                    None => {}
                }
            }
            vfs = match mount(self.target, device.clone(), false) {
                Ok(vfs) => vfs,
                Err(what) => return Ok(Err(format!("after an unmount: {what}"))),
            };
        }
        Ok(verify::moves_on(&vfs, self.histories, state.at, promises).and_then(|()| unmount(&vfs)))
    }

    /// Writes the state to the scratch file and lets another program recover it.
    fn recover_by_others(
        &self,
        image: &dyn Device,
        state: &State,
        recovery: Recovery,
        counts: &mut Counts,
    ) -> anyhow::Result<ByOthers> {
        let target = self.target;
        copy_to_file(image, self.scratch)?;
        if let Err(error) = target.raw_check(self.scratch) {
            return Ok(ByOthers::Failed(format!("fsck complains before recovery: {error:#}")));
        }
        let recovered = match recovery {
            Recovery::Fsck(_) => Some(target.repair(self.scratch)),
            _ => target.kernel_recovers(self.scratch).map(|done| done.map(|()| Repaired::Whole)),
        };
        Ok(match recovered {
            None => ByOthers::NotTried,
            Some(Ok(Repaired::Whole)) => ByOthers::Recovered,
            Some(Ok(Repaired::Spoiled)) => {
                counts.spoiled_by_fsck += 1;
                ByOthers::NotTried
            }
            // Other programs do not expect every kind of torn sector (ext4's superblock); the driver under
            // test must.
            Some(Err(_)) if matches!(state.kind, Kind::Torn(_)) => {
                counts.refused_by_others += 1;
                ByOthers::NotTried
            }
            Some(Err(error)) => ByOthers::Failed(format!("{recovery:?} cannot recover: {error:#}")),
        })
    }

    /// Starts a recovery and stops the medium at a random write of it.
    fn interrupt_recovery(
        &self,
        image: Arc<dyn Device>,
        rng: &mut StdRng,
    ) -> anyhow::Result<Result<Arc<dyn Device>, String>> {
        let device = Arc::new(FaultDevice::new(image));
        match self.target.open(device.clone(), false) {
            Ok(fs) => drop(fs),
            Err(error) => return Ok(Err(format!("cannot open: {error}"))),
        }
        Ok(Ok(Arc::new(stop_at_random(&device, rng)?.1)))
    }
}

/// Copies a device to a file. It writes only what differs: most states of one workload are almost equal.
fn copy_to_file(device: &dyn Device, path: &Path) -> anyhow::Result<()> {
    const PIECE: usize = 64 << 10;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let size = device.size_bytes();
    file.set_len(size)?;
    let (mut wanted, mut present) = ([0; PIECE], [0; PIECE]);
    for at in (0..size).step_by(PIECE) {
        let len = (size - at).min(PIECE as u64) as usize;
        let (wanted, present) = (&mut wanted[..len], &mut present[..len]);
        device.read_at(ByteOffset(at), wanted)?;
        file.read_exact_at(present, at)?;
        if wanted != present {
            file.write_all_at(wanted, at)?;
        }
    }
    Ok(())
}

/// Mounts a state with the driver under test.
pub(crate) fn mount(
    target: &dyn Target,
    device: Arc<dyn Device>,
    trusting: bool,
) -> Result<Arc<Vfs>, String> {
    let fs = target.open(device, trusting).map_err(|error| format!("cannot open: {error}"))?;
    Vfs::mount(fs, mount_options(None).0).map_err(|error| format!("cannot mount: {error}"))
}

/// Unmounts what [`mount`] returned.
pub(crate) fn unmount(vfs: &Vfs) -> Result<(), String> {
    vfs.unmount().map_err(|error| format!("cannot unmount after recovery: {error}"))
}

/// Returns a random position in the record, and the medium after a stop there, with some of the writes that
/// no flush made durable.
pub(crate) fn stop_at_random(
    device: &FaultDevice,
    rng: &mut StdRng,
) -> anyhow::Result<(usize, OverlayDevice)> {
    let at = rng.random_range(0..=device.len());
    let salt: u64 = rng.random();
    Ok((at, device.image_where(at, |nth| salt.rotate_left(nth as u32 % 64) & 1 == 0)?))
}
