//! Runs of blocks in a group.

/// Free blocks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FreeExtent {
    pub start: u32,
    pub len: u32,
}

impl FreeExtent {
    pub(super) fn end(self) -> u32 {
        self.start + self.len
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    pub(super) fn encode(self) -> Vec<u8> {
        [self.start.to_be_bytes(), self.len.to_be_bytes()].concat()
    }
}
