//! One crash state: somebody recovers it, and it is checked.

use crate::again;
use crate::history::{Worker, bytes_of, mount_options, read_tree};
use crate::shown;
use crate::states::{Kind, State};
use crate::target::{Repaired, Target};
use crate::verify;
use ivers_block::{Device, FaultDevice, MemDevice, OverlayDevice};
use ivers_vfs::Vfs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Of so many states one is worked on and stopped a second time.
const AGAIN_ONE_IN: u64 = 16;

/// Who recovers a state before it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
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

/// What is done with a state: told from the number of its workload and from the state alone, whatever else is explored.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Who recovers it; after the check, who really did.
    pub(crate) recovery: Recovery,
    /// The format's fsck looks before anything is changed.
    pub(crate) fresh: bool,
    /// The kernel shows what was recovered.
    pub(crate) shown: bool,
    /// It is worked on and stopped a second time.
    pub(crate) again: bool,
    /// The format's fsck looks in the end.
    pub(crate) check: bool,
    rng: StdRng,
}

/// How often what is done.
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
        // What others make of media that lie is theirs to promise.
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
        let shown = one_in(odds.kernel_first_every) && !odds.only_values;
        let fresh = shown || (one_in(odds.fresh_every) && !odds.only_values);
        let again = one_in(AGAIN_ONE_IN) && !odds.only_values;
        let check = one_in(odds.check_every);
        Self { recovery, fresh, shown, again, check, rng }
    }
}

/// What happened on the way to a verdict.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    pub(crate) refused_by_others: u64,
    pub(crate) spoiled_by_fsck: u64,
    pub(crate) fresh: u64,
    pub(crate) shown: u64,
    pub(crate) again: u64,
}

/// What the states of one workload are checked with.
pub(crate) struct Checker<'a> {
    pub(crate) target: &'a dyn Target,
    pub(crate) histories: &'a [Worker],
    /// A file for tools that want one.
    pub(crate) scratch: &'a Path,
}

/// What others make of a state.
enum Others {
    Recovered,
    NotTried,
    Broken(String),
}

impl Checker<'_> {
    /// Recover a state and check it. The outer error is the explorer's own, the inner one a broken promise.
    /// `closed`: the session had been closed in good order.
    pub(crate) fn check(
        &self,
        image: OverlayDevice,
        state: &State,
        plan: &mut Plan,
        closed: bool,
        aside: &mut Aside,
    ) -> anyhow::Result<Result<(), String>> {
        let mut device: Arc<dyn Device> = Arc::new(image);
        let only_values = self.target.promises().only_values;
        if only_values && let Err(what) = self.is_silent_or_right(&device, state.at) {
            return Ok(Err(format!("before fsck: {what}")));
        }
        match plan.recovery {
            Recovery::Ours => {}
            Recovery::OursTwice => match self.stopped_recovery(device, &mut plan.rng)? {
                Ok(stopped) => device = stopped,
                Err(what) => return Ok(Err(what)),
            },
            Recovery::Fsck(_) | Recovery::Kernel(_) => {
                match self.others(&*device, state, plan.recovery, aside)? {
                    Others::Recovered => device = Arc::new(MemDevice::from_bytes(&fs::read(self.scratch)?)),
                    // Nobody mends it, and until somebody does there is nothing to find.
                    Others::NotTried if only_values => {
                        plan.recovery = Recovery::Ours;
                        return Ok(Ok(()));
                    }
                    Others::NotTried => plan.recovery = Recovery::Ours,
                    Others::Broken(what) => return Ok(Err(what)),
                }
            }
        }
        let trusting = plan.recovery.trusts();
        let closed = closed && plan.recovery == Recovery::Ours;
        if let Err(what) = self.holds(&device, state, trusting, closed, plan, aside)? {
            return Ok(Err(what));
        }
        if plan.again && self.target.promises().crash_safe_values {
            aside.again += 1;
            let rng = &mut plan.rng;
            if let Err(what) =
                again::stops_a_second_time(self.target, self.histories, &device, state.at, rng)?
            {
                return Ok(Err(format!("a second crash, after recovery and some work: {what}")));
            }
        }
        if !plan.check {
            return Ok(Ok(()));
        }
        fs::write(self.scratch, bytes_of(&*device)?)?;
        let checked = self.target.check(self.scratch);
        Ok(checked.map_err(|error| format!("fsck complains after recovery: {error:#}")))
    }

    /// What the driver says of a state that it does not recover: nothing, or values that hold.
    fn is_silent_or_right(&self, device: &Arc<dyn Device>, at: usize) -> Result<(), String> {
        let promises = self.target.promises();
        let Ok(fs) = self.target.open(Arc::new(OverlayDevice::new(device.clone())), false) else {
            return Ok(());
        };
        let vfs =
            Vfs::mount(fs, mount_options(None).0).map_err(|error| format!("cannot be mounted: {error}"))?;
        for history in self.histories.iter().filter(|_| vfs.no_cookie().is_none()) {
            let found = read_tree(&vfs, history.index).map_err(|error| format!("no tree: {error}"))?;
            verify::values(&vfs, history, &found, at, false, promises)?;
        }
        vfs.unmount().map_err(|error| format!("cannot be closed: {error}"))
    }

    /// What was promised holds in a state that somebody may have recovered, and it can be worked with.
    fn holds(
        &self,
        device: &Arc<dyn Device>,
        state: &State,
        trusting: bool,
        closed: bool,
        plan: &Plan,
        aside: &mut Aside,
    ) -> anyhow::Result<Result<(), String>> {
        let promises = self.target.promises();
        let judged = (|| -> Result<Arc<Vfs>, String> {
            let vfs = mounted(self.target, device.clone(), trusting)?;
            for history in self.histories {
                verify::worker(&vfs, history, state, closed, promises)
                    .map_err(|what| format!("worker {}: {what}", history.index))?;
            }
            Ok(vfs)
        })();
        let mut vfs = match judged {
            Ok(vfs) => vfs,
            Err(what) => return Ok(Err(what)),
        };
        if plan.fresh {
            let trees = plan.shown.then(|| shown::trees(&vfs, self.histories)).transpose()?;
            if let Err(what) = unmounted(&vfs) {
                return Ok(Err(what));
            }
            aside.fresh += 1;
            fs::write(self.scratch, bytes_of(&**device)?)?;
            if let Err(error) = self.target.check(self.scratch) {
                return Ok(Err(format!(
                    "fsck complains of what was recovered and not changed since: {error:#}"
                )));
            }
            if let Some(trees) = trees {
                let mut look = |root: &Path| shown::as_it_is(root, &trees);
                match self.target.kernel_shows(self.scratch, &mut look) {
                    Some(Err(error)) => {
                        return Ok(Err(format!("the kernel shows something else: {error:#}")));
                    }
                    Some(Ok(())) => aside.shown += 1,
                    None => {}
                }
            }
            vfs = match mounted(self.target, device.clone(), false) {
                Ok(vfs) => vfs,
                Err(what) => return Ok(Err(format!("after it was closed: {what}"))),
            };
        }
        Ok(verify::moves_on(&vfs, self.histories, state.at, promises).and_then(|()| unmounted(&vfs)))
    }

    /// The state goes to the scratch file, and to somebody else.
    fn others(
        &self,
        image: &dyn Device,
        state: &State,
        recovery: Recovery,
        aside: &mut Aside,
    ) -> anyhow::Result<Others> {
        let target = self.target;
        fs::write(self.scratch, bytes_of(image)?)?;
        if let Err(error) = target.raw_check(self.scratch) {
            return Ok(Others::Broken(format!("fsck complains before recovery: {error:#}")));
        }
        let recovered = match recovery {
            Recovery::Fsck(_) => Some(target.repair(self.scratch)),
            _ => target.kernel_recovers(self.scratch).map(|done| done.map(|()| Repaired::Whole)),
        };
        Ok(match recovered {
            None => Others::NotTried,
            Some(Ok(Repaired::Whole)) => Others::Recovered,
            Some(Ok(Repaired::Spoiled)) => {
                aside.spoiled_by_fsck += 1;
                Others::NotTried
            }
            // Not everybody expects torn sectors of everything (ext4's superblock); the driver under test must.
            Some(Err(_)) if matches!(state.kind, Kind::Torn(_)) => {
                aside.refused_by_others += 1;
                Others::NotTried
            }
            Some(Err(error)) => Others::Broken(format!("{recovery:?} cannot recover it: {error:#}")),
        })
    }

    /// Recover, and stop the medium at a random write of the recovery.
    fn stopped_recovery(
        &self,
        image: Arc<dyn Device>,
        rng: &mut StdRng,
    ) -> anyhow::Result<Result<Arc<dyn Device>, String>> {
        let device = Arc::new(FaultDevice::new(image));
        match self.target.open(device.clone(), false) {
            Ok(fs) => drop(fs),
            Err(error) => return Ok(Err(format!("cannot be opened: {error}"))),
        }
        Ok(Ok(Arc::new(stopped_somewhere(&device, rng)?.1)))
    }
}

/// What somebody recovered, or did not, mounted by the driver under test.
pub(crate) fn mounted(
    target: &dyn Target,
    device: Arc<dyn Device>,
    trusting: bool,
) -> Result<Arc<Vfs>, String> {
    let fs = target.open(device, trusting).map_err(|error| format!("cannot be opened: {error}"))?;
    Vfs::mount(fs, mount_options(None).0).map_err(|error| format!("cannot be mounted: {error}"))
}

/// The end of what [`mounted`] began.
pub(crate) fn unmounted(vfs: &Vfs) -> Result<(), String> {
    vfs.unmount().map_err(|error| format!("cannot be closed after recovery: {error}"))
}

/// A random point of what was recorded, and the medium after a stop there, with some of what no flush had made durable.
pub(crate) fn stopped_somewhere(
    device: &FaultDevice,
    rng: &mut StdRng,
) -> anyhow::Result<(usize, OverlayDevice)> {
    let at = rng.random_range(0..=device.len());
    let salt: u64 = rng.random();
    Ok((at, device.image_where(at, |nth| salt.rotate_left(nth as u32 % 64) & 1 == 0)?))
}
