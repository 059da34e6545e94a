//! What is collected until it goes home: blocks with a version for each stage, and what was freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ivers_block::Buffer;

use crate::Stage;
use crate::ordered::STAGES;

/// One block that differs from what is home.
struct Dirty {
    buffer: Arc<Buffer>,
    /// As it was before the batch changed it: home, or what the batch before this one makes of it.
    before: Arc<[u8]>,
    /// What each stage writes, if it changes the block.
    versions: [Option<Arc<[u8]>>; STAGES],
}

impl Dirty {
    /// The version of a stage, made of the newest of the earlier ones if there is none yet.
    fn version(&mut self, stage: usize) -> &mut Arc<[u8]> {
        if self.versions[stage].is_none() {
            let earlier = self.versions[..stage].iter().rev().flatten().next().unwrap_or(&self.before);
            self.versions[stage] = Some(earlier.clone());
        }
        self.versions[stage].as_mut().expect("made above")
    }
}

/// The changes since the last run.
#[derive(Default)]
pub(crate) struct Batch {
    dirty: BTreeMap<u64, Dirty>,
    pub freed: Vec<Range<u64>>,
    pub since: Option<Instant>,
}

impl Batch {
    pub fn blocks(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Changes a buffer, and the versions of this stage and of the later ones.
    pub fn put(&mut self, buffer: &Arc<Buffer>, stage: Stage, edit: &dyn Fn(&mut [u8])) {
        self.since.get_or_insert_with(Instant::now);
        let dirty = self.dirty.entry(buffer.block()).or_insert_with(|| Dirty {
            buffer: buffer.clone(),
            before: buffer.snapshot(),
            versions: Default::default(),
        });
        if !Arc::ptr_eq(&dirty.buffer, buffer) {
            // The block was forgotten and read again: the one that readers have now is to be pinned.
            dirty.buffer = buffer.clone();
        }
        let stage = stage as usize;
        edit(Arc::make_mut(dirty.version(stage)));
        for later in dirty.versions[stage + 1..].iter_mut().flatten() {
            edit(Arc::make_mut(later));
        }
        buffer.modify(edit);
    }

    /// What a stage writes, in order of blocks.
    pub fn of_stage(&self, stage: usize) -> Vec<(u64, Arc<[u8]>)> {
        let version = |(block, dirty): (&u64, &Dirty)| Some((*block, dirty.versions[stage].clone()?));
        self.dirty.iter().filter_map(version).collect()
    }
}
