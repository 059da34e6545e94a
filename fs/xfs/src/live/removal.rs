//! Freeing inodes without names, also those that a crash left.

use super::change::Edited;
use super::vnode::core_of;
use super::volume::Xfs;
use crate::inode::Dinode;
use crate::log::FoundIntent;
use ivers_vfs::{Error, Inode, NameError, Result};

impl Xfs {
    /// Frees an unlinked inode: its blocks in as many transactions as it takes, the inode in the last one.
    /// One without blocks may wait for others.
    pub(crate) fn free_unlinked(&self, inode: &Inode) -> Result<()> {
        // The next inode here starts above every value that this one showed.
        inode.counter.inc();
        self.forget_window(inode);
        if core_of(inode).has_blocks() {
            return self.free_with_blocks(inode);
        }
        let mut core = core_of(inode).clone();
        core.set_change_count(inode.counter.peek());
        if self.session()?.unfreed.add(core) { self.free_waiting() } else { Ok(()) }
    }

    /// Frees the blocks of an inode, and the inode.
    fn free_with_blocks(&self, inode: &Inode) -> Result<()> {
        loop {
            let mut change = self.change()?;
            let mut edited = Edited::new(inode).logged().without_attributes();
            edited.core.set_change_count(inode.counter.peek());
            let done = change.tx.release_inode(&mut edited.core, change.session().extents_a_change)?;
            change.finish(vec![edited])?;
            if done {
                return Ok(());
            }
        }
    }

    /// Frees the inodes that wait for it. After an error it goes on with the others, and returns the first
    /// error.
    pub(crate) fn free_waiting(&self) -> Result<()> {
        let session = self.session()?;
        let mut result = Ok(());
        loop {
            let inodes = session.unfreed.take();
            if inodes.is_empty() || self.free_empty(&inodes).is_ok() {
                return result;
            }
            // Too much for one transaction, or an error of one of them.
            for inode in inodes {
                let Err(error) = self.free_empty(std::slice::from_ref(&inode)) else { continue };
                // The free-inode B-tree needs a block. The caller tries again when there is space.
                if matches!(error, Error::Name(NameError::NoSpace)) {
                    session.unfreed.add(inode);
                    return Err(error);
                }
                result = result.and(Err(error));
            }
        }
    }

    /// Frees inodes without blocks in one transaction.
    fn free_empty(&self, inodes: &[Dinode]) -> Result<()> {
        let session = self.session()?;
        let _turn = session.turn.lock();
        let mut tx = session.space.begin(session.credits)?;
        for inode in inodes {
            if !tx.empty_inode(&mut inode.clone(), 0)? {
                return Err(self.corrupt("an inode without blocks has extents", inode.whose()));
            }
        }
        tx.free_inodes(&inodes.iter().map(|inode| inode.ino).collect::<Vec<_>>())?;
        tx.finish()
    }

    /// Finishes what the last session left unfinished in the log.
    pub(crate) fn finish_intents(&self, intents: Vec<FoundIntent>) -> Result<()> {
        let session = self.session()?;
        let _turn = session.turn.lock();
        session.space.finish_intents(intents, &|ino| self.dinode(ino))
    }

    /// Frees blocks for copy on write that the last session left.
    pub(crate) fn free_leftovers(&self) -> Result<()> {
        let session = self.session()?;
        let _turn = session.turn.lock();
        let freed = session.space.free_leftover_copies()?;
        if freed > 0 {
            log::info!("{}: {freed} blocks that copy on write left were freed", self.place);
        }
        Ok(())
    }

    /// Frees the inodes without names that the last session left. Returns how many.
    pub(crate) fn free_orphans(&self) -> Result<usize> {
        let mut count = 0;
        for ag in 0..self.sb.ag_count {
            for ino in self.unlinked_inodes(ag)? {
                let loaded = self.load_any(ino).map_err(|error| match error {
                    Error::Name(NameError::Stale) => {
                        let what = format!("the list of unlinked inodes has inode {ino}, which is free");
                        Error::corrupt(what, format!("{}, group {ag}", self.place))
                    }
                    error => error,
                })?;
                let inode = Inode::detached(loaded);
                if core_of(&inode).nlink() != 0 {
                    return Err(self.corrupt("an unlinked inode has links", core_of(&inode).whose()));
                }
                self.free_unlinked(&inode)?;
                count += 1;
            }
        }
        self.free_waiting()?;
        Ok(count)
    }
}
