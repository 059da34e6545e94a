//! Writes by one thread.

use std::time::Instant;

use anyhow::{Context, Result};

use super::{Lap, Turn, Workload};
use crate::volume::{Access, Volume};

const NAME: &str = "plain";
/// Small enough that memory is reused: the first use of memory is a cost of the machine, not of ivers.
const GROWN_BYTES: u64 = 8 << 20;
/// The smallest size of a file that is overwritten in a loop.
const OVERWRITTEN_BYTES: u64 = 1 << 20;

/// The position of the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Overwrites existing data sequentially.
    Overwrite,
    /// At the end of a file that grows from round to round and is replaced when it is large.
    Append,
}

/// Sequential writes by one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    pub(crate) pattern: Pattern,
    pub(crate) bytes: u64,
    /// The number of writes per query of the change attribute; 0: none.
    pub(crate) writes_a_query: u64,
    /// Whether an fsync follows each write.
    pub(crate) synced: bool,
    /// Whether to time each write.
    pub(crate) laps: bool,
}

impl Plain {
    /// Returns a workload of writes of this size only.
    pub(crate) const fn new(pattern: Pattern, bytes: u64) -> Self {
        Self { pattern, bytes, writes_a_query: 0, synced: false, laps: false }
    }

    fn file_bytes(&self) -> u64 {
        OVERWRITTEN_BYTES.max(4 * self.bytes)
    }
}

/// The file, its number of writes and the position.
pub(crate) struct Progress<F> {
    file: Option<F>,
    writes: u64,
    at: u64,
}

impl Workload for Plain {
    type State<V: Volume> = Progress<V::File>;

    fn begin<V: Volume>(&self, volume: &V) -> Result<Progress<V::File>> {
        let file = volume.create(NAME, Access::Cached)?;
        if self.pattern == Pattern::Overwrite {
            volume.write(&file, 0, &vec![b'o'; self.file_bytes() as usize])?;
        }
        Ok(Progress { file: Some(file), writes: 0, at: 0 })
    }

    fn round<V: Volume>(&self, volume: &V, state: &mut Progress<V::File>, ops: u64) -> Result<Turn> {
        if self.pattern == Pattern::Append && state.at >= GROWN_BYTES {
            let file = state.file.take().context("the workload has no file yet")?;
            volume.sync(&file)?;
            volume.remove(NAME, file)?;
            state.file = Some(volume.create(NAME, Access::Cached)?);
            state.at = 0;
        }
        let file = state.file.as_ref().context("the workload has no file yet")?;
        let data = vec![b'x'; self.bytes as usize];
        // The previous contender leaves its data in the processor's caches: the first operations are not
        // timed.
        let lead_in = ops / 8;
        let mut laps = self.laps.then(|| Lap::new(ops - lead_in));
        let mut begin = Instant::now();
        for op in 0..ops {
            if op == lead_in {
                laps = laps.map(|_| Lap::new(ops - lead_in));
                begin = Instant::now();
            }
            if self.pattern == Pattern::Overwrite && state.at + self.bytes > self.file_bytes() {
                state.at = 0;
            }
            volume.write(file, state.at, &data)?;
            if self.synced {
                volume.fsync(file)?;
            }
            state.at += self.bytes;
            state.writes += 1;
            if self.writes_a_query != 0 && state.writes.is_multiple_of(self.writes_a_query) {
                volume.query(file);
            }
            if let Some(laps) = laps.as_mut().filter(|_| op >= lead_in) {
                laps.lap();
            }
        }
        Ok(Turn {
            elapsed: begin.elapsed(),
            ops: ops - lead_in,
            latencies: laps.map_or_else(Vec::new, Lap::into_laps),
            ..Turn::default()
        })
    }

    fn end<V: Volume>(&self, volume: &V, state: Progress<V::File>) -> Result<()> {
        volume.remove(NAME, state.file.context("the workload has no file yet")?)
    }

    fn kernel_cannot(&self) -> Option<&'static str> {
        (self.writes_a_query != 0).then_some("programs cannot ask it for the change attribute")
    }
}
