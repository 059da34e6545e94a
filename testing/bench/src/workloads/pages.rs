//! vm-scalability's case-msync-mt as calls: threads touch every page of their parts of one sparse file, then
//! make it durable.
//!
//! In the kernel the first touch of a mapped page is a fault that updates times and version as a write does.
//! The library has no mappings, so a write of one byte stands for it.

use anyhow::Result;

use super::{BLOCK, Turn, Workload, at_once};
use crate::volume::{Access, Volume};

const NAME: &str = "sparse";

/// The number of threads, each with a part of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pages {
    pub(crate) threads: u64,
}

impl Workload for Pages {
    type State<V: Volume> = ();

    fn begin<V: Volume>(&self, _volume: &V) -> Result<()> {
        Ok(())
    }

    fn round<V: Volume>(&self, volume: &V, _state: &mut (), ops: u64) -> Result<Turn> {
        let each = ops / self.threads;
        let file = volume.create(NAME, Access::Cached)?;
        volume.extend(&file, ops * BLOCK)?;
        volume.sync(&file)?;
        let touch = |nth: u64| {
            (nth * each..(nth + 1) * each).try_for_each(|page| volume.write(&file, page * BLOCK, b"x"))?;
            volume.fsync(&file)?;
            Ok(Vec::new())
        };
        let turn = at_once(self.threads, touch, 0, || {})?;
        volume.remove(NAME, file)?;
        Ok(Turn { ops: each * self.threads, ..turn })
    }

    fn end<V: Volume>(&self, _volume: &V, _state: ()) -> Result<()> {
        Ok(())
    }

    fn round_up(&self, ops: u64) -> u64 {
        ops.max(8).next_multiple_of(self.threads)
    }
}
