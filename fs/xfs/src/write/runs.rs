//! What the code of files asks for: freeing, sharing and mapping runs of blocks.

use super::alloc::{AllocRequest, Run};
use super::space::Space;
use super::tx::Tx;
use super::works::{Change, CountChange, FreedOwner, Work};
use crate::layout::owner::Owner;
use ivers_vfs::{NameError, Result};

impl Tx<'_> {
    fn defer(&mut self, run: Run, change: Change) -> Result<()> {
        let (ag, blocks) = self.in_group(run)?;
        self.deferred.push(Work { ag, blocks, change });
        Ok(())
    }

    /// Frees a run at the end of the transaction. `owner` is that of its first block.
    ///
    /// Data of files may be shared: then only a reference goes. Before metadata is freed, call
    /// [`Tx::forget_unit`].
    pub(crate) fn free(&mut self, run: Run, owner: Owner) -> Result<()> {
        if owner.is_data() && self.has_shared_blocks() {
            self.unmap(run, owner)?;
            return self.defer(run, Change::Count(CountChange::Decrease));
        }
        self.defer(run, Change::Free(FreedOwner::Known(owner)))
    }

    /// Records the owner of a run that has none in the reverse map, at the end of the transaction.
    pub(crate) fn map(&mut self, run: Run, owner: Owner) -> Result<()> {
        if !self.has_reverse_map() {
            return Ok(());
        }
        self.defer(run, Change::Map(owner))
    }

    /// Removes an owner of a run from the reverse map, at the end of the transaction.
    pub(crate) fn unmap(&mut self, run: Run, owner: Owner) -> Result<()> {
        if !self.has_reverse_map() {
            return Ok(());
        }
        self.defer(run, Change::Unmap(owner))
    }

    /// Changes the owner of a run: for example to one that is no longer unwritten, or at another file block.
    pub(crate) fn change_owner(&mut self, run: Run, from: Owner, to: Owner) -> Result<()> {
        self.unmap(run, from)?;
        self.map(run, to)
    }

    /// Adds an owner to a run of file data. All its inodes have the reflink flag. `NoSpace` if the group
    /// lacks what its B-trees may need when the files change.
    pub(crate) fn share(&mut self, run: Run, owner: Owner) -> Result<()> {
        let (ag, _) = self.in_group(run)?;
        if self.unreserved(ag)?.is_none() {
            return Err(NameError::NoSpace.into());
        }
        self.defer(run, Change::Count(CountChange::Increase))?;
        self.map(run, owner)
    }

    /// Allocates blocks for copy on write, which no file has yet: after a crash the next mount frees them.
    /// The owner of the request is ignored.
    pub(crate) fn allocate_copy(&mut self, request: AllocRequest) -> Result<Option<Run>> {
        let Some(run) = self.allocate(AllocRequest { owner: Owner::COPY, ..request })? else {
            return Ok(None);
        };
        let (ag, blocks) = self.in_group(run)?;
        self.add_copy(ag, blocks)?;
        Ok(Some(run))
    }

    /// Gives blocks for copy on write, or a part of them, to a file.
    pub(crate) fn take_copy(&mut self, run: Run, owner: Owner) -> Result<()> {
        self.defer(run, Change::RemoveCopy)?;
        self.change_owner(run, Owner::COPY, owner)
    }

    /// Frees blocks for copy on write, or a part of them, that no file got.
    pub(crate) fn free_copy(&mut self, run: Run) -> Result<()> {
        self.defer(run, Change::RemoveCopy)?;
        self.unmap(run, Owner::COPY)?;
        self.defer(run, Change::Free(FreedOwner::Gone))
    }
}

impl Space {
    /// Frees all blocks for copy on write: at a mount no file is written yet. Returns their number.
    pub(crate) fn free_leftover_copies(&self) -> Result<u64> {
        let mut freed = 0;
        for ag in 0..self.sb.ag_count {
            loop {
                let mut tx = self.begin(self.credits_of_change())?;
                if !tx.has_shared_blocks() {
                    return Ok(0);
                }
                let Some(blocks) = tx.next_copy(ag, 0)? else { break };
                tx.free_copy(Run { start: self.sb.fs_block(ag, blocks.start), len: blocks.len })?;
                tx.finish()?;
                freed += u64::from(blocks.len);
            }
        }
        Ok(freed)
    }
}
