//! A driver wrapper that queries inodes during calls.
//!
//! Between two calls a change is complete or has not begun. C1 also covers the time during a call: a query
//! before the change completes gets a value that differs from the value after it. Racing threads would rarely
//! hit that moment. Here the VFS calls the driver at the right time: it reserves space before bytes become
//! visible, and the driver's own changes bump once they are visible. So a query at the start of these calls
//! precedes the bump.

use crate::history::Identity;
use crate::hooked_fs::{HookedFs, Hooks};
use ivers_block::FaultDevice;
use ivers_vfs::*;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// One query.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Length of the record at the query.
    pub at: usize,
    /// The inode.
    pub id: Identity,
    /// The value that the query returned.
    pub value: u64,
}

#[derive(Default)]
struct State {
    observed: HashSet<Identity>,
    observations: Vec<Observation>,
}

/// Forwards every call to a driver, and queries observed inodes on the way.
pub type ObservedFs = HookedFs<Observer>;

/// The hooks of an [`ObservedFs`].
pub struct Observer {
    device: Arc<FaultDevice>,
    vfs: OnceLock<Weak<Vfs>>,
    state: Mutex<State>,
}

fn identity(inode: &Inode) -> Identity {
    (inode.ino.0, inode.generation)
}

impl ObservedFs {
    /// Wraps `inner`, which lies on `device`. No inode is observed yet.
    pub fn new(inner: Arc<dyn FileSystem>, device: Arc<FaultDevice>) -> Arc<Self> {
        Self::with(inner, Observer { device, vfs: OnceLock::new(), state: Mutex::default() })
    }

    /// Sets the VFS to query through, once it is mounted.
    pub fn set_vfs(&self, vfs: &Arc<Vfs>) {
        self.hooks().vfs.get_or_init(|| Arc::downgrade(vfs));
    }
}

impl Observer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes this inode from now on.
    pub fn observe(&self, inode: &Inode) {
        self.state().observed.insert(identity(inode));
    }

    /// Returns whether an inode is observed.
    pub fn observes(&self, id: Identity) -> bool {
        self.state().observed.contains(&id)
    }

    /// Takes the observations of an inode since the last call.
    pub fn take_observations(&self, id: Identity) -> Vec<Observation> {
        let mut state = self.state();
        let (taken, left) = state.observations.iter().partition(|seen| seen.id == id);
        state.observations = left;
        taken
    }
}

impl Hooks for Observer {
    fn changes(&self, inode: &Inode) {
        let id = identity(inode);
        if !self.observes(id) {
            return;
        }
        if let Some(vfs) = self.vfs.get().and_then(Weak::upgrade)
            && let Some(value) = vfs.change(inode)
        {
            let at = self.device.len();
            self.state().observations.push(Observation { at, id, value });
        }
    }
}
