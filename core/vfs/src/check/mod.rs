//! What the checkers of all formats share: their findings, the memory that they may keep, and the bookkeeping
//! of what they have seen.
//!
//! A checker reads a whole image, believes nothing in it, and repairs nothing. It collects [`Finding`]s in
//! [`Findings`], whose memory is bounded: a damaged image can have millions.

mod bits;
mod runs;
mod tree;

pub use bits::Bits;
pub use runs::{Runs, run_is};
pub use tree::{PathFinder, unreachable};

use crate::{Error, Result};
use ivers_block::Budget;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Paths are searched for at most this many findings.
const MAX_PATHS: usize = 1000;

/// Where a defect is. Only what is known is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The block group.
    pub group: Option<u64>,
    /// The inode number; for formats without inodes, the block of the file's header.
    pub inode: Option<u64>,
    /// The path in the filesystem.
    pub path: Option<Vec<u8>>,
    /// The block, in blocks of the filesystem (sectors or clusters where the format has no blocks).
    pub block: Option<u64>,
}

impl Place {
    /// The filesystem as a whole.
    pub fn filesystem() -> Self {
        Self::default()
    }

    /// A block group.
    pub fn group(group: impl Into<u64>) -> Self {
        Self { group: Some(group.into()), ..Self::default() }
    }

    /// An inode.
    pub fn inode(inode: impl Into<u64>) -> Self {
        Self { inode: Some(inode.into()), ..Self::default() }
    }

    /// A block.
    pub fn block(block: u64) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// A path.
    pub fn path(path: impl Into<Vec<u8>>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// The same place, narrowed to a block.
    pub fn at(self, block: u64) -> Self {
        Self { block: Some(block), ..self }
    }
}

/// A defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The stable name of this kind of defect, such as `block-claimed-twice`.
    pub code: &'static str,
    /// Where it is.
    pub place: Place,
    /// What is wrong, in a sentence without its place.
    pub what: String,
}

/// The findings of one check.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    fs_type: Option<&'static str>,
    kept: Vec<Finding>,
    counts: BTreeMap<&'static str, u64>,
    notes: Vec<String>,
}

impl Findings {
    /// Findings of one kind that are kept with their place; more are only counted.
    pub const KEPT_OF_A_KIND: u64 = 1000;

    /// Returns no findings yet of a filesystem of this type, as [`FsInfo::fs_type`](crate::FsInfo::fs_type)
    /// names it.
    pub fn of(fs_type: &'static str) -> Self {
        Self { fs_type: Some(fs_type), ..Self::default() }
    }

    /// The type of the filesystem, if the checker could read it.
    pub fn fs_type(&self) -> Option<&'static str> {
        self.fs_type
    }

    /// Sets the type of the filesystem.
    pub fn set_fs_type(&mut self, fs_type: &'static str) {
        self.fs_type = Some(fs_type);
    }

    /// Adds a finding.
    pub fn add(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        let count = self.counts.entry(code).or_default();
        *count += 1;
        if *count <= Self::KEPT_OF_A_KIND {
            self.kept.push(Finding { code, place, what: what.into() });
        }
    }

    /// Adds a remark that is not a defect: a journal that was replayed, a part that is not checked.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The findings, in the order in which the checker met them; at most [`Findings::KEPT_OF_A_KIND`] of a
    /// kind.
    pub fn kept(&self) -> &[Finding] {
        &self.kept
    }

    /// The inodes of the first findings, whose paths the checker should search.
    pub fn wanted_paths(&self) -> Vec<u64> {
        self.kept.iter().take(MAX_PATHS).filter_map(|finding| finding.place.inode).collect()
    }

    /// Adds the paths that were found.
    pub fn set_paths(&mut self, finder: &PathFinder) {
        for finding in &mut self.kept {
            finding.place.path = finding.place.inode.and_then(|ino| finder.path(ino));
        }
    }

    /// The remarks.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of findings of each kind, with those that were only counted.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// The number of all findings.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The memory that one check keeps, charged to a budget. A check cannot evict: beyond the bound it ends.
#[derive(Debug)]
pub struct Memory {
    budget: Arc<Budget>,
    kept_bytes: u64,
    advice: &'static str,
}

impl Memory {
    /// Charges `budget`. `advice` ends the error: how to allow more.
    pub fn new(budget: Arc<Budget>, advice: &'static str) -> Self {
        Self { budget, kept_bytes: 0, advice }
    }

    /// Memory without a bound.
    pub fn unlimited() -> Self {
        Self::new(Arc::new(Budget::unlimited()), "")
    }

    /// Sets how much the check keeps. Returns an error if that is more than the budget allows.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.kept_bytes {
            self.budget.charge(bytes - self.kept_bytes);
        } else {
            self.budget.uncharge(self.kept_bytes - bytes);
        }
        self.kept_bytes = bytes;
        if !self.budget.over() {
            return Ok(());
        }
        let mebibytes = self.budget.limit() >> 20;
        let what = format!("the check needs more than {mebibytes} MiB of memory; {}", self.advice);
        Err(Error::Incompatible(what))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.uncharge(self.kept_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_the_limit_are_counted() {
        let mut findings = Findings::default();
        for block in 0..2500 {
            findings.add("a", Place::block(block), "x");
        }
        findings.add("b", Place::group(1u32).at(7), "y");
        assert_eq!((findings.total(), findings.kept().len()), (2501, 1001));
        assert_eq!(findings.counts()["a"], 2500);
        assert!(!findings.is_clean());
    }

    #[test]
    fn a_check_ends_where_its_memory_ends() {
        let budget = Arc::new(Budget::new(2 << 20));
        let mut memory = Memory::new(budget.clone(), "allow more");
        memory.keep(2 << 20).unwrap();
        memory.keep(1 << 20).unwrap();
        assert_eq!(budget.used(), 1 << 20);
        let error = memory.keep(3 << 20).unwrap_err().to_string();
        assert!(error.contains("more than 2 MiB of memory; allow more"), "{error}");
        drop(memory);
        assert_eq!(budget.used(), 0);
    }
}
