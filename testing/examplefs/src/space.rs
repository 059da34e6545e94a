//! Blocks. Allocation has two steps, so that data reaches the device before a map refers to it: blocks are
//! taken in memory; later a transaction sets their bits and maps them.

use crate::*;

/// All blocks, in memory.
#[derive(Default)]
pub(crate) struct Space(RankedMutex<rank::Leaf, State>);

#[derive(Default)]
struct State {
    /// Whether a block is in use, taken, or freed by a transaction that has not committed.
    busy: Vec<bool>,
    /// How many of them become free at the next commit.
    freed: usize,
    /// Where the search for a free block begins.
    next: usize,
}

impl Space {
    /// Counts the free blocks, with those that wait for a commit.
    pub(crate) fn free(&self) -> usize {
        let state = self.0.lock();
        state.busy.iter().filter(|busy| !**busy).count() + state.freed
    }

    /// Takes `count` blocks, all or none.
    pub(crate) fn take(&self, count: usize) -> Result<Vec<BlockNo>> {
        let state = &mut *self.0.lock();
        let order = (state.next..state.busy.len()).chain(0..state.next);
        let blocks: Vec<usize> = order.filter(|block| !state.busy[*block]).take(count).collect();
        if blocks.len() < count {
            return Err(NameError::NoSpace.into());
        }
        blocks.iter().for_each(|block| state.busy[*block] = true);
        state.next = blocks.last().map_or(state.next, |last| last + 1);
        Ok(blocks.into_iter().map(|block| BlockNo(block as u64)).collect())
    }

    /// Releases blocks that were allocated and not mapped.
    pub(crate) fn release(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        let mut state = self.0.lock();
        blocks.into_iter().for_each(|block| state.busy[block.0 as usize] = false);
    }
}

impl ExampleFs {
    /// Reads the bitmap. The filesystem's own blocks are in use whatever it says.
    pub(crate) fn read_bitmap(&self) -> Result<Space> {
        let bytes = self.cache.get(self.sb.bitmap())?.read();
        let bit = |block: usize| bytes[block / 8] >> (block % 8) & 1 == 1;
        let own = self.sb.data().0 as usize;
        let busy = (0..self.sb.blocks.get() as usize).map(|block| block < own || bit(block)).collect();
        Ok(Space(RankedMutex::new(State { busy, ..State::default() })))
    }

    /// Frees blocks. `logged`: they were written through the journal.
    pub(crate) fn free(&self, h: &Handle, blocks: Vec<BlockNo>, logged: bool) -> Result<()> {
        self.mark(h, &blocks, false)?;
        blocks.iter().filter(|_| logged).for_each(|block| h.forget(*block));
        self.space.0.lock().freed += blocks.len();
        let space = self.space.clone();
        h.on_commit(Box::new(move || {
            space.0.lock().freed -= blocks.len();
            space.release(blocks);
        }));
        Ok(())
    }

    /// Sets or clears bits of the bitmap.
    pub(crate) fn mark(&self, h: &Handle, blocks: &[BlockNo], used: bool) -> Result<()> {
        let bitmap = self.cache.get(self.sb.bitmap())?;
        let wrong = h.modify(&bitmap, |bytes| {
            blocks.iter().find(|block| {
                let (byte, bit) = (&mut bytes[block.0 as usize / 8], 1 << (block.0 % 8));
                *byte ^= bit;
                (*byte & bit != 0) != used
            })
        });
        let contradiction =
            |block| self.corrupt("used twice, or free and used", format_args!("block {block}"));
        wrong.map_or(Ok(()), |block| Err(contradiction(block)))
    }
}
