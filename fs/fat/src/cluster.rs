//! Cluster numbers.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};

/// A cluster number. The first cluster of a volume is 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cluster(pub u32);

impl Cluster {
    /// No cluster: an empty file, or the root directory in a `..` entry.
    pub const NONE: Self = Self(0);
    /// The first cluster of a volume.
    pub const FIRST: Self = Self(2);

    /// Iterates over the clusters of runs, in order.
    pub fn each(runs: &[Range<Self>]) -> impl Iterator<Item = Self> + '_ {
        runs.iter().flat_map(|run| (run.start.0..run.end.0).map(Self))
    }
}

impl Add<u32> for Cluster {
    type Output = Self;

    fn add(self, count: u32) -> Self {
        Self(self.0 + count)
    }
}

impl AddAssign<u32> for Cluster {
    fn add_assign(&mut self, count: u32) {
        self.0 += count;
    }
}

impl Sub for Cluster {
    type Output = u32;

    fn sub(self, earlier: Self) -> u32 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
