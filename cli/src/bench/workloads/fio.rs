//! The jobs that the seeds ran with fio, at the size of a round.

use anyhow::{Context, Result};

use super::{BLOCK, Lap, Turn, Workload, at_once};
use crate::bench::volume::{Access, Volume};

/// Eight jobs, each writing one fresh file from start to end in blocks of 4 KiB. fio lays the file out first; making, syncing and
/// removing it are not timed.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) struct SharedFile {
    /// So many threads ask for the change attribute as fast as they can.
    pub(in crate::bench) queriers: u64,
    /// Time each write.
    pub(in crate::bench) laps: bool,
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
        let turn = at_once(Self::JOBS, write, self.queriers, || volume.query(&file))?;
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

/// One stage of fio's tiobench example: four jobs with a file each, past the cache, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Tiobench {
    /// From start to end.
    Write,
    /// Each block once, in no order.
    RandomWrite,
    /// What was written, from start to end.
    Read,
    /// What was written, each block once, in no order.
    RandomRead,
}

impl Tiobench {
    const JOBS: u64 = 4;

    fn name(job: usize) -> String {
        format!("tiobench-{job}")
    }

    fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandomRead)
    }

    fn lay_out<V: Volume>(self, volume: &V, blocks: u64) -> Result<Vec<V::File>> {
        let mut files = Vec::new();
        for job in 0..Self::JOBS as usize {
            let file = volume.create(&Self::name(job), Access::Direct)?;
            volume.allocate(&file, blocks * BLOCK)?;
            files.push(file);
        }
        Ok(files)
    }
}

/// The `nth` of `count` blocks, a power of two, in no order: each step maps the numbers below it onto themselves, one to one.
fn shuffled(nth: u64, count: u64) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let once = nth.wrapping_mul(ODD) % count;
    let folded = once ^ (once >> (count.ilog2() / 2 + 1));
    folded.wrapping_mul(ODD) % count
}

/// A block in memory that the kernel takes for direct access, and where it begins.
fn aligned() -> (Vec<u8>, usize) {
    let memory = vec![b'x'; 2 * BLOCK as usize];
    let start = memory.as_ptr().align_offset(BLOCK as usize);
    (memory, start)
}

/// Files that live as long as the rounds read them.
pub(in crate::bench) struct Laid<F> {
    files: Vec<F>,
    blocks: u64,
}

impl Workload for Tiobench {
    type State<V: Volume> = Laid<V::File>;

    fn begin<V: Volume>(&self, _volume: &V) -> Result<Laid<V::File>> {
        Ok(Laid { files: Vec::new(), blocks: 0 })
    }

    fn round<V: Volume>(&self, volume: &V, state: &mut Laid<V::File>, ops: u64) -> Result<Turn> {
        let blocks = ops / Self::JOBS;
        // Reads find what the first round has written; each round of writes begins on fresh files.
        if !self.reads() || state.blocks != blocks {
            self.end(volume, Laid { files: std::mem::take(&mut state.files), blocks: 0 })?;
            state.files = self.lay_out(volume, blocks)?;
            state.blocks = blocks;
            if self.reads() {
                let (memory, start) = aligned();
                let data = &memory[start..start + BLOCK as usize];
                for file in &state.files {
                    (0..blocks).try_for_each(|block| volume.write(file, block * BLOCK, data))?;
                }
            }
            volume.sync(state.files.first().context("there are jobs")?)?;
        }
        let files = &state.files;
        let work = |job: u64| {
            let (mut memory, start) = aligned();
            let data = &mut memory[start..start + BLOCK as usize];
            let file = &files[job as usize];
            for nth in 0..blocks {
                match self {
                    Self::Write => volume.write(file, nth * BLOCK, data)?,
                    Self::RandomWrite => volume.write(file, shuffled(nth, blocks) * BLOCK, data)?,
                    Self::Read => volume.read(file, nth * BLOCK, data)?,
                    Self::RandomRead => volume.read(file, shuffled(nth, blocks) * BLOCK, data)?,
                }
            }
            Ok(Vec::new())
        };
        let turn = at_once(Self::JOBS, work, 0, || {})?;
        Ok(Turn { ops: blocks * Self::JOBS, ..turn })
    }

    fn end<V: Volume>(&self, volume: &V, state: Laid<V::File>) -> Result<()> {
        state.files.into_iter().enumerate().try_for_each(|(job, file)| volume.remove(&Self::name(job), file))
    }

    fn round_up(&self, ops: u64) -> u64 {
        Self::JOBS * (ops / Self::JOBS).max(2).next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_block_comes_once_and_none_in_its_turn() {
        for count in [1, 2, 4, 64, 4096] {
            let order: Vec<_> = (0..count).map(|nth| shuffled(nth, count)).collect();
            assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..count).collect());
            let in_turn = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
            // Of four blocks there is not much of an order to spoil.
            assert!(count < 64 || in_turn <= count / 16, "{count}: {in_turn}");
        }
    }
}
