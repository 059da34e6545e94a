//! The cluster chain of a file, as far as it was read.

use crate::cluster::Cluster;
use crate::fat::{AllocationTable, Link};
use crate::layout::Geometry;
use ivers_block::ByteOffset;
use ivers_vfs::{Error, Result};
use std::ops::Range;

/// What follows the loaded part of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// A cluster whose table entry was not read yet.
    At(Cluster),
    /// Nothing: the chain is loaded completely.
    End,
    /// An invalid link, with a description.
    Broken(String),
}

/// A cluster chain, loaded on demand. A chain with more clusters than the volume is an error, so a loop does
/// not hang the driver.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Contiguous runs of clusters, each with the index of its first cluster within the file.
    runs: Vec<(u32, Range<Cluster>)>,
    len: u32,
    next: Next,
}

impl Chain {
    /// A chain that starts at `first`, or an empty one if that is `NONE`. Nothing is loaded.
    pub fn new(first: Cluster) -> Self {
        Self {
            runs: Vec::new(),
            len: 0,
            next: if first == Cluster::NONE { Next::End } else { Next::At(first) },
        }
    }

    /// Returns the first cluster, or `NONE` if the chain is empty.
    pub fn first(&self) -> Cluster {
        match (self.runs.first(), &self.next) {
            (Some((_, run)), _) => run.start,
            (None, Next::At(first)) => *first,
            _ => Cluster::NONE,
        }
    }

    /// Returns the number of loaded clusters.
    pub fn len(&self) -> u64 {
        u64::from(self.len)
    }

    fn push(&mut self, cluster: Cluster) {
        match self.runs.last_mut() {
            Some((_, run)) if run.end == cluster => run.end += 1,
            _ => self.runs.push((self.len, cluster..cluster + 1)),
        }
        self.len += 1;
    }

    /// Loads clusters until `count` of them are loaded or the chain ends. Returns `Error::Corrupt` if an
    /// invalid link comes first.
    pub fn load(&mut self, table: &AllocationTable, count: u64) -> Result<()> {
        while self.len() < count {
            let cluster = match &self.next {
                Next::End => return Ok(()),
                Next::Broken(what) => {
                    return Err(Error::corrupt(what.clone(), format!("chain from cluster {}", self.first())));
                }
                Next::At(cluster) => *cluster,
            };
            self.next = if !table.geometry.is_cluster(cluster) {
                Next::Broken(format!("first cluster {cluster} is outside the volume"))
            } else if self.len >= table.geometry.clusters {
                Next::Broken("the chain has more clusters than the volume: it contains a loop".into())
            } else {
                self.push(cluster);
                match table.link(cluster)? {
                    Link::Next(next) => Next::At(next),
                    Link::End => Next::End,
                    Link::Free => {
                        Next::Broken(format!("cluster {cluster} is in the chain and marked as free"))
                    }
                    Link::Invalid(value) => {
                        Next::Broken(format!("cluster {cluster} has the invalid link {value:#x}"))
                    }
                }
            };
        }
        Ok(())
    }

    /// Loads the whole chain.
    pub fn load_all(&mut self, table: &AllocationTable) -> Result<()> {
        self.load(table, u64::MAX)
    }

    /// Returns the last cluster of a chain that is loaded completely, or `None` if it is empty.
    pub fn tail(&self) -> Option<Cluster> {
        self.runs.last().map(|(_, run)| Cluster(run.end.0 - 1))
    }

    /// Returns the cluster with index `nth` in the file, and the number of clusters from there on that are
    /// contiguous on the device. Returns `None` if that cluster is not loaded.
    pub fn get(&self, nth: u64) -> Option<(Cluster, u64)> {
        let nth = u32::try_from(nth).ok().filter(|nth| *nth < self.len)?;
        let (start, run) = &self.runs[self.runs.partition_point(|(start, _)| *start <= nth) - 1];
        let cluster = run.start + (nth - start);
        Some((cluster, u64::from(run.end - cluster)))
    }

    /// Appends clusters to a chain that is loaded completely.
    pub fn append(&mut self, runs: &[Range<Cluster>]) {
        Cluster::each(runs).for_each(|cluster| self.push(cluster));
        self.next = Next::End;
    }

    /// Truncates a chain that is loaded completely to `keep` clusters. Returns the removed ones.
    pub fn truncate(&mut self, keep: u64) -> Vec<Range<Cluster>> {
        let keep = keep.min(self.len()) as u32;
        let mut removed = Vec::new();
        while let Some((start, run)) = self.runs.last_mut() {
            if *start >= keep {
                removed.push(run.clone());
                self.runs.pop();
                continue;
            }
            let kept = run.start + (keep - *start);
            if kept < run.end {
                removed.push(kept..run.end);
                run.end = kept;
            }
            break;
        }
        self.len = keep;
        removed.reverse();
        removed
    }

    /// Returns the ranges of the device that hold `len` bytes of the file from `offset`: byte offset and
    /// length. Their clusters must be loaded, or the result is `Error::Corrupt`.
    pub fn device_ranges(
        &self,
        geometry: &Geometry,
        offset: u64,
        len: u64,
    ) -> Result<Vec<(ByteOffset, usize)>> {
        let cluster_bytes = u64::from(geometry.cluster_bytes);
        let mut ranges = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let Some((cluster, contiguous)) = self.get(at / cluster_bytes) else {
                return Err(Error::corrupt(
                    format!("the chain has {} clusters, too few for byte {at} of the file", self.len),
                    format!("chain from cluster {}", self.first()),
                ));
            };
            let skip = at % cluster_bytes;
            let bytes = (contiguous * cluster_bytes - skip).min(end - at);
            ranges.push((geometry.cluster_offset(cluster) + skip, bytes as usize));
            at += bytes;
        }
        Ok(ranges)
    }
}
