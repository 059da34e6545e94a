//! What a check has seen.

use crate::open::Opened;
use crate::volume::{Ocfs2, SystemFiles};
use ivers_vfs::check::{Bits, Findings, Memory, PathFinder, Place};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::{Error, FileType, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What is known of an inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub links: u32,
    /// Entries of directories that refer to it.
    pub names: u32,
    /// `None`: the inode is damaged.
    pub kind: Option<FileType>,
    /// It says that it is in a directory of orphans.
    pub orphaned: bool,
    /// An entry of a directory of orphans refers to it.
    pub in_orphans: bool,
    /// Its contents cannot be read.
    pub damaged: bool,
}

/// A directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Directory {
    pub ino: u64,
    /// The directory that has a name for it; 0: none.
    pub parent: u64,
    /// What its `..` refers to; 0: nothing.
    pub dotdot: u64,
}

/// Clusters that an inode shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared {
    /// The root of the reference counts.
    pub root: u64,
    pub cluster: u64,
    pub clusters: u32,
}

/// Numbers for each byte of an empty [`Bits`].
const NUMBERS_PER_BYTE: u64 = 4096;

pub(super) struct Checker {
    pub fs: Arc<Ocfs2>,
    pub files: SystemFiles,
    memory: Memory,
    pub found: Findings,
    /// Blocks that were corrected so far.
    corrected: u64,
    /// Clusters that have an owner, that are shared, and that the bitmap marks as used.
    pub owned: Bits,
    pub shared: Bits,
    pub used: Bits,
    /// Blocks of allocators that have an owner, and that are marked as used.
    pub owned_blocks: Bits,
    pub used_blocks: Bits,
    /// Descriptors of groups.
    pub groups: BTreeSet<u64>,
    pub inodes: BTreeMap<u64, Seen>,
    /// In ascending order.
    pub directories: Vec<Directory>,
    pub sharing: Vec<Shared>,
    /// Roots of reference counts, and the inodes that have them.
    pub refcount_roots: BTreeMap<u64, u32>,
}

impl Checker {
    pub(super) fn new(opened: Opened, mut memory: Memory) -> Result<Self> {
        let Opened { fs, files, replayed } = opened;
        let (blocks, clusters) = (fs.sb.blocks(), u64::from(fs.sb.clusters));
        // What is allocated below, whatever is in use. A sparse image can claim to be very large.
        memory.keep((2 * blocks + 3 * clusters) / NUMBERS_PER_BYTE)?;
        let mut found = Findings::of("ocfs2");
        for slot in replayed {
            found.note(format!(
                "the journal of slot {slot} was replayed in memory: it was not unmounted cleanly"
            ));
        }
        let mut checker = Self {
            owned: Bits::new(clusters),
            shared: Bits::new(clusters),
            used: Bits::new(clusters),
            owned_blocks: Bits::new(blocks),
            used_blocks: Bits::new(blocks),
            fs: Arc::new(fs),
            files,
            memory,
            found,
            corrected: 0,
            groups: BTreeSet::new(),
            inodes: BTreeMap::new(),
            directories: Vec::new(),
            sharing: Vec::new(),
            refcount_roots: BTreeMap::new(),
        };
        if checker.fs.sb.has_errors {
            let what = "the filesystem is marked as damaged: a kernel found errors";
            checker.bad("repair-required", Place::filesystem(), what);
        }
        checker.note_corrected(Place::filesystem());
        Ok(checker)
    }

    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        self.found.add(code, place, what);
    }

    fn note_corrected(&mut self, place: Place) {
        let corrected = self.fs.corrected.load(Ordering::Relaxed);
        if corrected > self.corrected {
            self.corrected = corrected;
            self.bad("checksum-corrected", place, "one bit is wrong; the checksum can correct it");
        }
    }

    /// Turns damage into a finding. Other errors end the check.
    pub(super) fn caught<T>(
        &mut self,
        code: &'static str,
        place: Place,
        result: Result<T>,
    ) -> Result<Option<T>> {
        self.note_corrected(place.clone());
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corrupt { what, .. }) => {
                self.bad(code, place, what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Charges what is kept, and `more` bytes. Drops what is cached above the bound.
    pub(super) fn charge(&mut self, more: usize) -> Result<()> {
        let bits = [&self.owned, &self.shared, &self.used, &self.owned_blocks, &self.used_blocks];
        let bits: usize = bits.iter().map(|bits| bits.bytes_kept()).sum();
        let kept = self.inodes.len() * (size_of::<Seen>() + size_of::<u64>()) * 2
            + self.groups.len() * 2 * size_of::<u64>()
            + self.refcount_roots.len() * 4 * size_of::<u64>()
            + self.directories.capacity() * size_of::<Directory>()
            + self.sharing.capacity() * size_of::<Shared>();
        self.fs.cache.shrink();
        self.memory.keep((bits + kept + more) as u64)
    }

    /// Claims clusters for an inode. Returns whether that is right.
    pub(super) fn claim(&mut self, ino: u64, cluster: u64, clusters: u64) -> bool {
        let taken = self.owned.set_run(cluster, clusters);
        self.claimed(ino, taken)
    }

    /// Claims clusters that other inodes may share.
    pub(super) fn claim_shared(&mut self, ino: u64, cluster: u64, clusters: u64) -> bool {
        let taken = self.owned.find_outside(&self.shared, cluster, clusters);
        self.shared.set_run(cluster, clusters);
        self.owned.set_run(cluster, clusters);
        self.claimed(ino, taken)
    }

    fn claimed(&mut self, ino: u64, taken: Option<u64>) -> bool {
        let Some(taken) = taken else { return true };
        let block = taken * u64::from(self.fs.sb.blocks_per_cluster);
        let what = format!("cluster {taken} has another owner, too");
        self.bad("cluster-claimed-twice", Place::inode(ino).at(block), what);
        false
    }

    /// Claims a block of an allocator for an inode. Returns whether that is right: a block that was claimed
    /// before must not be followed, or damage could make a walk endless.
    pub(super) fn claim_block(&mut self, ino: u64, block: u64) -> bool {
        let taken = self.owned_blocks.set_run(block, 1).is_some();
        if taken {
            let what = format!("block {block} has another owner, too");
            self.bad("block-claimed-twice", Place::inode(ino).at(block), what);
        }
        !taken
    }

    /// Compares what has an owner with what is marked as used.
    pub(super) fn compare_maps(&mut self) {
        let per_cluster = u64::from(self.fs.sb.blocks_per_cluster);
        for (first, len) in runs_outside(&self.owned, &self.used, self.fs.sb.clusters.into()) {
            let what = format!("{len} clusters from {first} on are in use and marked as free");
            self.bad("cluster-in-use-marked-free", Place::block(first * per_cluster), what);
        }
        for (first, len) in runs_outside(&self.used, &self.owned, self.fs.sb.clusters.into()) {
            let what = format!("{len} clusters from {first} on are marked as used and have no owner");
            self.bad("cluster-lost", Place::block(first * per_cluster), what);
        }
        for (first, len) in runs_outside(&self.owned_blocks, &self.used_blocks, self.fs.sb.blocks()) {
            let what =
                format!("{len} blocks from {first} on are in use, and their allocator has them as free");
            self.bad("block-in-use-marked-free", Place::block(first), what);
        }
        for (first, len) in runs_outside(&self.used_blocks, &self.owned_blocks, self.fs.sb.blocks()) {
            let what = format!("{len} blocks of an allocator from {first} on have no owner");
            self.bad("block-lost", Place::block(first), what);
        }
    }

    /// Looks for the paths of the inodes of findings.
    pub(super) fn find_paths(&mut self) -> Result<()> {
        let is_readable = |ino: u64| self.inodes.get(&ino).is_some_and(|seen| !seen.damaged);
        let readable = self.directories.iter().filter(|dir| is_readable(dir.ino));
        let directories: Vec<Directory> = readable.copied().collect();
        let parent_of = |ino: u64| {
            let nth = directories.binary_search_by_key(&ino, |dir| dir.ino).ok()?;
            Some(directories[nth].parent)
        };
        let finder = PathFinder::find(&self.found.wanted_paths(), parent_of, self.fs.sb.root, |finder| {
            for dir in &directories {
                let Ok((inode, _)) = self.fs.dinode(dir.ino) else { continue };
                // What is damaged was reported.
                let _ = self.fs.for_each_entry(&inode, 0..inode.size, |entry, _| {
                    finder.add(dir.ino, entry.ino, entry.name);
                    ControlFlow::Continue(())
                });
            }
            Ok(())
        })?;
        self.found.set_paths(&finder);
        Ok(())
    }
}

/// The runs of numbers below `end` that are in one set and not in another.
fn runs_outside(set: &Bits, other: &Bits, end: u64) -> Vec<(u64, u64)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    // More are not kept as findings.
    while runs.len() < Findings::KEPT_OF_A_KIND as usize {
        let Some(first) = set.find_outside(other, at, end - at) else { break };
        let mut last = first;
        while last < end && set.get(last) && !other.get(last) {
            last += 1;
        }
        runs.push((first, last - first));
        at = last;
    }
    runs
}
