//! Several writers, and threads that query meanwhile.

use anyhow::Result;

use super::{Turn, Workload, at_once};
use crate::volume::{Access, Volume};

/// Bytes of each writer's region.
const REGION_BYTES: u64 = 1 << 20;

/// One-byte overwrites by several threads at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) writers: u64,
    /// All writers share one file, each in a separate region; otherwise each writer has a separate file.
    pub(crate) one_file: bool,
    /// The number of threads that query the change attribute of the first file without pause.
    pub(crate) queriers: u64,
}

/// The files, and the position of each writer in its region.
pub(crate) struct Files<F> {
    files: Vec<F>,
    at: u64,
}

fn name(nth: usize) -> String {
    format!("crowd-{nth}")
}

impl Workload for Crowd {
    type State<V: Volume> = Files<V::File>;

    fn begin<V: Volume>(&self, volume: &V) -> Result<Files<V::File>> {
        let (files, regions) = if self.one_file { (1, self.writers) } else { (self.writers, 1) };
        let mut made = Vec::new();
        for nth in 0..files as usize {
            let file = volume.create(&name(nth), Access::Cached)?;
            volume.write(&file, 0, &vec![b'o'; (regions * REGION_BYTES) as usize])?;
            made.push(file);
        }
        Ok(Files { files: made, at: 0 })
    }

    fn round<V: Volume>(&self, volume: &V, state: &mut Files<V::File>, ops: u64) -> Result<Turn> {
        let (files, at, each) = (&state.files, state.at, ops / self.writers);
        let write = |nth: u64| {
            let (file, region) =
                if self.one_file { (&files[0], nth * REGION_BYTES) } else { (&files[nth as usize], 0) };
            for op in at..at + each {
                volume.write(file, region + op % REGION_BYTES, b"x")?;
            }
            Ok(Vec::new())
        };
        let turn = at_once(self.writers, write, self.queriers, || volume.query(&files[0]))?;
        state.at += each;
        Ok(Turn { ops: each * self.writers, ..turn })
    }

    fn end<V: Volume>(&self, volume: &V, state: Files<V::File>) -> Result<()> {
        state.files.into_iter().enumerate().try_for_each(|(nth, file)| volume.remove(&name(nth), file))
    }

    fn kernel_cannot(&self) -> Option<&'static str> {
        (self.queriers != 0).then_some("programs cannot ask it for the change attribute")
    }

    fn round_up(&self, ops: u64) -> u64 {
        ops.max(8).next_multiple_of(self.writers)
    }
}
