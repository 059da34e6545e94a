//! The changes collected for one run: blocks with a version for each stage, and freed ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ivers_block::{BlockNo, Buffer, Contents};

use crate::Stage;
use crate::ordered::STAGES;

/// A block that differs from its contents on the device.
struct Dirty {
    buffer: Arc<Buffer>,
    /// The contents before this batch: those on the device, or those that the previous batch writes.
    before: Contents,
    /// What each stage writes; `None` if the stage does not change the block.
    versions: [Option<Contents>; STAGES],
}

impl Dirty {
    /// Returns the version of a stage; a new one starts as a copy of the latest earlier version.
    fn version(&mut self, stage: usize) -> &mut Contents {
        if self.versions[stage].is_none() {
            let earlier = self.versions[..stage].iter().rev().flatten().next().unwrap_or(&self.before);
            self.versions[stage] = Some(earlier.clone());
        }
        self.versions[stage].as_mut().expect("created above")
    }
}

/// The changes since the previous run.
#[derive(Default)]
pub(crate) struct Batch {
    dirty: BTreeMap<BlockNo, Dirty>,
    pub freed: Vec<Range<u64>>,
    pub since: Option<Instant>,
}

impl Batch {
    pub fn blocks(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Applies `edit` to the buffer and to its versions of this stage and of all later ones.
    pub fn put(&mut self, buffer: &Arc<Buffer>, stage: Stage, edit: &dyn Fn(&mut [u8])) {
        self.since.get_or_insert_with(Instant::now);
        let dirty = self.dirty.entry(buffer.block()).or_insert_with(|| Dirty {
            buffer: buffer.clone(),
            before: buffer.snapshot(),
            versions: Default::default(),
        });
        if !Arc::ptr_eq(&dirty.buffer, buffer) {
            // The block was evicted and read again: pin the buffer that readers use.
            dirty.buffer = buffer.clone();
        }
        let stage = stage as usize;
        edit(dirty.version(stage).make_mut());
        for later in dirty.versions[stage + 1..].iter_mut().flatten() {
            edit(later.make_mut());
        }
        buffer.modify(edit);
    }

    /// Returns what a stage writes, in ascending order of block numbers.
    pub fn of_stage(&self, stage: usize) -> Vec<(BlockNo, Contents)> {
        let version = |(block, dirty): (&BlockNo, &Dirty)| Some((*block, dirty.versions[stage].clone()?));
        self.dirty.iter().filter_map(version).collect()
    }
}
