//! The clusters of a file, as far as they have been asked for.

use crate::cluster::Cluster;
use crate::layout::Geometry;
use crate::table::{Link, Table};
use ivers_block::ByteOffset;
use ivers_vfs::{Error, Result};
use std::ops::Range;

/// Where the walk along a chain stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// At a cluster that has not been looked at.
    At(Cluster),
    /// At the end.
    End,
    /// At something that leads nowhere.
    Broken(String),
}

/// A chain. It is read on demand, never further than the table has clusters, so that a loop is an error and no hang.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Number within the file, and the clusters from there on that follow one another on the device.
    runs: Vec<(u32, Range<Cluster>)>,
    len: u32,
    next: Next,
}

impl Chain {
    /// Beginning at this cluster; `NONE`: empty.
    pub fn new(first: Cluster) -> Self {
        Self {
            runs: Vec::new(),
            len: 0,
            next: if first == Cluster::NONE { Next::End } else { Next::At(first) },
        }
    }

    /// The first cluster, or `NONE`.
    pub fn first(&self) -> Cluster {
        match (self.runs.first(), &self.next) {
            (Some((_, run)), _) => run.start,
            (None, Next::At(first)) => *first,
            _ => Cluster::NONE,
        }
    }

    /// Clusters that are known.
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

    /// Walk until so many clusters are known or there are no more. A chain that breaks off before is an error.
    pub fn know(&mut self, table: &Table, want: u64) -> Result<()> {
        while self.len() < want {
            let cluster = match &self.next {
                Next::End => return Ok(()),
                Next::Broken(what) => {
                    return Err(Error::corrupt(what.clone(), format!("chain from cluster {}", self.first())));
                }
                Next::At(cluster) => *cluster,
            };
            self.next = if !table.geometry.is_cluster(cluster) {
                Next::Broken(format!("it begins at cluster {cluster}, which there is not"))
            } else if self.len >= table.geometry.clusters {
                Next::Broken("it is longer than the volume: a loop".into())
            } else {
                self.push(cluster);
                match table.link(cluster)? {
                    Link::To(next) => Next::At(next),
                    Link::End => Next::End,
                    Link::Free => Next::Broken(format!("cluster {cluster} leads to one that is free")),
                    Link::Odd(value) => Next::Broken(format!("cluster {cluster} leads to {value:#x}")),
                }
            };
        }
        Ok(())
    }

    /// Walk to the end.
    pub fn know_all(&mut self, table: &Table) -> Result<()> {
        self.know(table, u64::MAX)
    }

    /// The last cluster of one that is known to its end.
    pub fn tail(&self) -> Option<Cluster> {
        self.runs.last().map(|(_, run)| Cluster(run.end.0 - 1))
    }

    /// The cluster of this number, which is known, and how many follow it on the device, itself included.
    pub fn at(&self, nth: u64) -> Option<(Cluster, u64)> {
        let nth = u32::try_from(nth).ok().filter(|nth| *nth < self.len)?;
        let (start, run) = &self.runs[self.runs.partition_point(|(start, _)| *start <= nth) - 1];
        let cluster = run.start + (nth - start);
        Some((cluster, u64::from(run.end - cluster)))
    }

    /// Lengthen one that is known to its end.
    pub fn append(&mut self, runs: &[Range<Cluster>]) {
        Cluster::each(runs).for_each(|cluster| self.push(cluster));
        self.next = Next::End;
    }

    /// Shorten one that is known to its end to so many clusters; gives the others.
    pub fn cut(&mut self, keep: u64) -> Vec<Range<Cluster>> {
        let keep = keep.min(self.len()) as u32;
        let mut gone = Vec::new();
        while let Some((start, run)) = self.runs.last_mut() {
            if *start >= keep {
                gone.push(run.clone());
                self.runs.pop();
                continue;
            }
            let kept = run.start + (keep - *start);
            if kept < run.end {
                gone.push(kept..run.end);
                run.end = kept;
            }
            break;
        }
        self.len = keep;
        gone.reverse();
        gone
    }

    /// The pieces of the device that hold bytes of the file, all of which are known.
    pub fn pieces(&self, geometry: &Geometry, offset: u64, len: u64) -> Result<Vec<(ByteOffset, usize)>> {
        let cluster_bytes = u64::from(geometry.cluster);
        let mut pieces = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let Some((cluster, follow)) = self.at(at / cluster_bytes) else {
                return Err(Error::corrupt(
                    format!("{} clusters are too few for byte {at}", self.len),
                    format!("chain from cluster {}", self.first()),
                ));
            };
            let skip = at % cluster_bytes;
            let bytes = (follow * cluster_bytes - skip).min(end - at);
            pieces.push((geometry.cluster_byte(cluster) + skip, bytes as usize));
            at += bytes;
        }
        Ok(pieces)
    }
}
