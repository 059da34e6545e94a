//! What transactions do to the groups: changes of runs of blocks, and the intents that promise them.

use super::extent::FreeExtent;
use crate::layout::owner::Owner;
use ivers_journal::ObjectId;
use std::sync::Arc;

/// A change of counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountChange {
    Increase,
    Decrease,
}

/// What the reverse map says of blocks that are to be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreedOwner {
    /// Nothing.
    Gone,
    Known(Owner),
    /// An intent does not say it: whatever there is.
    Unknown,
}

/// A change of blocks of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Map(Owner),
    Unmap(Owner),
    Count(CountChange),
    AddCopy,
    RemoveCopy,
    Free(FreedOwner),
}

/// A change and its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    pub ag: u32,
    pub blocks: FreeExtent,
    pub change: Change,
}

/// An intent that is in the log, and its record.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub id: ObjectId,
    pub record: Arc<[u8]>,
}
