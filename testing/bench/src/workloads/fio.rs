//! The fio jobs of the patch series, at the size of a round.

use std::fs::File;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::{BLOCK, Lap, Turn, Workload, at_once};
use crate::volume::{Access, Volume};

/// Eight jobs, each writing one fresh file sequentially in blocks of 4 KiB. As with fio, the file is
/// allocated first. Creating, syncing and removing it are not timed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedFile {
    /// The number of threads that query the change attribute in a loop, each time with a system call: in the
    /// patch series this was a separate process, which needs one. (The queriers of [`super::crowd`] make
    /// none.)
    pub(crate) queriers: u64,
    /// Whether to time each write.
    pub(crate) laps: bool,
}

impl SharedFile {
    const JOBS: u64 = 8;
    const NAME: &str = "shared";
}

impl Workload for SharedFile {
    type State<V: Volume> = ();

    fn begin<V: Volume>(&self, _volume: &V) -> Result<()> {
        Ok(())
    }

    fn round<V: Volume>(&self, volume: &V, _state: &mut (), ops: u64) -> Result<Turn> {
        let blocks = ops / Self::JOBS;
        let file = volume.create(Self::NAME, Access::Cached)?;
        volume.allocate(&file, blocks * BLOCK)?;
        let write = |_| {
            let data = vec![b'x'; BLOCK as usize];
            let mut laps = self.laps.then(|| Lap::new(blocks));
            for block in 0..blocks {
                volume.write(&file, block * BLOCK, &data)?;
                if let Some(laps) = &mut laps {
                    laps.lap();
                }
            }
            Ok(laps.map_or_else(Vec::new, Lap::into_laps))
        };
        let outside = File::open("/").context("/")?;
        let ask = || {
            volume.query(&file);
            // The system call by which a process would query; its result does not matter, only its time.
            let _ = statx(&outside, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        };
        let turn = at_once(Self::JOBS, write, self.queriers, ask)?;
        volume.sync(&file)?;
        volume.remove(Self::NAME, file)?;
        Ok(Turn { ops: blocks * Self::JOBS, ..turn })
    }

    fn end<V: Volume>(&self, _volume: &V, _state: ()) -> Result<()> {
        Ok(())
    }

    fn kernel_cannot(&self) -> Option<&'static str> {
        (self.queriers != 0).then_some("programs cannot ask it for the change attribute")
    }

    fn round_up(&self, ops: u64) -> u64 {
        ops.max(8).next_multiple_of(Self::JOBS)
    }
}

/// A stage of fio's tiobench example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Sequential writes.
    Write,
    /// Writes each block once in random order.
    RandomWrite,
    /// Sequential reads of the written file.
    Read,
    /// Reads each written block once in random order.
    RandomRead,
}

/// fio's tiobench example: four jobs with a file each, direct I/O in blocks of 4 KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiobench {
    pub(crate) stage: Stage,
    /// Blocks of a file; a power of two. A round reads a file repeatedly, and writes it once.
    pub(crate) blocks: u64,
}

impl Tiobench {
    const JOBS: u64 = 4;

    fn name(job: usize) -> String {
        format!("tiobench-{job}")
    }

    fn reads(self) -> bool {
        matches!(self.stage, Stage::Read | Stage::RandomRead)
    }

    fn lay_out<V: Volume>(self, volume: &V) -> Result<Vec<V::File>> {
        let mut files = Vec::new();
        for job in 0..Self::JOBS as usize {
            let file = volume.create(&Self::name(job), Access::Direct)?;
            volume.allocate(&file, self.blocks * BLOCK)?;
            files.push(file);
        }
        volume.sync(files.first().context("the workload has no jobs")?)?;
        Ok(files)
    }

    fn take_away<V: Volume>(volume: &V, files: Vec<V::File>) -> Result<()> {
        files.into_iter().enumerate().try_for_each(|(job, file)| volume.remove(&Self::name(job), file))
    }
}

/// Returns the block at position `nth` of a random order of `count` blocks, a power of two. Each step is a
/// bijection on 0..count.
fn shuffled(nth: u64, count: u64) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let once = nth.wrapping_mul(ODD) % count;
    let folded = once ^ (once >> (count.ilog2() / 2 + 1));
    folded.wrapping_mul(ODD) % count
}

/// Returns a buffer for direct I/O, and its aligned start.
fn aligned() -> (Vec<u8>, usize) {
    let memory = vec![b'x'; 2 * BLOCK as usize];
    let start = memory.as_ptr().align_offset(BLOCK as usize);
    (memory, start)
}

impl Workload for Tiobench {
    /// The files of the last round.
    type State<V: Volume> = Vec<V::File>;

    fn begin<V: Volume>(&self, volume: &V) -> Result<Vec<V::File>> {
        let files = self.lay_out(volume)?;
        if self.reads() {
            let (memory, start) = aligned();
            let data = &memory[start..start + BLOCK as usize];
            for file in &files {
                (0..self.blocks).try_for_each(|block| volume.write(file, block * BLOCK, data))?;
            }
        }
        Ok(files)
    }

    fn round<V: Volume>(&self, volume: &V, files: &mut Vec<V::File>, ops: u64) -> Result<Turn> {
        // Each round of writes uses new files.
        if !self.reads() {
            Self::take_away(volume, std::mem::take(files))?;
            *files = self.lay_out(volume)?;
        }
        let (files, each, count) = (&*files, ops / Self::JOBS, self.blocks);
        let work = |job: u64| {
            let (mut memory, start) = aligned();
            let data = &mut memory[start..start + BLOCK as usize];
            let file = &files[job as usize];
            for nth in 0..each {
                let nth = nth % count;
                match self.stage {
                    Stage::Write => volume.write(file, nth * BLOCK, data)?,
                    Stage::RandomWrite => volume.write(file, shuffled(nth, count) * BLOCK, data)?,
                    Stage::Read => volume.read(file, nth * BLOCK, data)?,
                    Stage::RandomRead => volume.read(file, shuffled(nth, count) * BLOCK, data)?,
                }
            }
            Ok(Vec::new())
        };
        let turn = at_once(Self::JOBS, work, 0, || {})?;
        Ok(Turn { ops: each * Self::JOBS, ..turn })
    }

    fn end<V: Volume>(&self, volume: &V, files: Vec<V::File>) -> Result<()> {
        Self::take_away(volume, files)
    }

    fn round_up(&self, ops: u64) -> u64 {
        let file = Self::JOBS * self.blocks;
        if self.reads() { ops.next_multiple_of(file).max(file) } else { file }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn random_order_visits_each_block_once() {
        for count in [1, 2, 4, 64, 4096] {
            let order: Vec<_> = (0..count).map(|nth| shuffled(nth, count)).collect();
            assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..count).collect());
            let in_turn = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
            // With few blocks some stay in sequence.
            assert!(count < 64 || in_turn <= count / 64, "{count}: {in_turn}");
        }
    }
}
