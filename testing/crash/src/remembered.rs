//! A worker that remembers inodes by number, as the kernel behind a FUSE mount does.
//!
//! A workload with a small cache evicts every idle inode at the next operation. So an inode that the worker
//! remembers leaves memory and comes back all the time. It must come back as the same inode, orphans
//! included, and without a change its change attribute must be the same (C2, C3).

use crate::history::{Identity, Node};
use crate::ops::Op;
use ivers_vfs::{Ino, Vfs};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The number of inodes that a worker remembers. The oldest is forgotten first, also as an orphan.
const MOST: usize = 4;

/// The remembered inodes of one worker.
pub(crate) struct Remembered<'a> {
    vfs: &'a Arc<Vfs>,
    ids: VecDeque<Identity>,
    /// The last value of each inode that was queried since its last change, with the state at that time.
    queried: HashMap<Identity, (u64, Node)>,
}

impl<'a> Remembered<'a> {
    pub(crate) fn new(vfs: &'a Arc<Vfs>) -> Self {
        Self { vfs, ids: VecDeque::new(), queried: HashMap::new() }
    }

    /// Remembers the inode of an operation. Forgets the oldest if there are too many.
    pub(crate) fn remember(&mut self, id: Identity) -> ivers_vfs::Result<()> {
        if self.ids.contains(&id) {
            return Ok(());
        }
        let inode = self.vfs.get_generation(Ino(id.0), id.1)?;
        self.vfs.remember(&inode, inode.ino);
        drop(inode);
        self.ids.push_back(id);
        if self.ids.len() > MOST
            && let Some(oldest) = self.ids.pop_front()
        {
            self.forget(oldest);
        }
        Ok(())
    }

    fn forget(&mut self, id: Identity) {
        self.queried.remove(&id);
        if self.vfs.forget(Ino(id.0), 1) {
            self.vfs.release_forgotten(Ino(id.0));
        }
    }

    /// Recalls all remembered inodes. Returns a description of the first that is another one.
    pub(crate) fn check(&self) -> Option<String> {
        self.ids.iter().find_map(|id| match self.vfs.recall(Ino(id.0)) {
            Ok(inode) if inode.generation == id.1 => None,
            Ok(inode) => Some(format!("inode {id:?} came back with generation {}", inode.generation)),
            Err(error) => Some(format!("inode {id:?} is remembered and does not come back: {error}")),
        })
    }

    /// Notes an operation and the value that it returned. Returns a description if the value differs from
    /// an earlier one although nothing changed.
    pub(crate) fn note(
        &mut self,
        op: &Op,
        about: Option<Identity>,
        value: Option<u64>,
        node: Option<&Node>,
    ) -> Option<String> {
        if let (Some(id), Some(value), Some(node)) = (about, value, node) {
            if !self.ids.contains(&id) {
                return None;
            }
            let (old, was) = self.queried.insert(id, (value, node.clone()))?;
            return (was == *node && old != value)
                .then(|| format!("inode {id:?} had value {old} and has {value}, without a change"));
        }
        match op {
            Op::Fsync(_) | Op::Fdatasync(_) | Op::Sync | Op::Snapshot | Op::Open(_) | Op::Observe(_) => {}
            // These change more inodes than the one they are about, perhaps within one tick of the clock.
            Op::Exchange(..) | Op::Rename(..) => self.queried.clear(),
            _ => {
                about.map(|id| self.queried.remove(&id));
            }
        }
        None
    }
}

impl Drop for Remembered<'_> {
    fn drop(&mut self) {
        while let Some(id) = self.ids.pop_front() {
            self.forget(id);
        }
    }
}
