//! Objects that a driver logs by their own serialisation: inode cores, intents.

use std::ops::Range;
use std::sync::Arc;

use ivers_block::{BlockNo, Unit};
use smallvec::{SmallVec, smallvec};

use crate::{Lsn, Result, Tid};

/// The identity of an object within its filesystem. The driver assigns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The kind of object, in the driver's numbering.
    pub kind: u32,
    /// The number among the objects of that kind.
    pub number: u64,
}

/// Bytes to write in place for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The block that contains the object, or the blocks of its buffer.
    pub unit: Unit,
    /// The bytes of the object. They may be those of its record.
    pub bytes: Arc<[u8]>,
    /// The ranges of `bytes` to write, each with its offset in the unit. What lies between them in the unit
    /// is not the object's.
    pub pieces: SmallVec<[(u32, Range<u32>); 2]>,
}

impl Patch {
    /// A patch of one piece.
    pub fn new(unit: impl Into<Unit>, offset: u32, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let all = 0..bytes.len() as u32;
        Self { unit: unit.into(), bytes, pieces: smallvec![(offset, all)] }
    }

    /// Writes the bytes into the contents of the unit.
    pub fn apply(&self, contents: &mut [u8]) {
        self.apply_to_part(0, contents);
    }

    /// As [`apply`](Self::apply), with a part of the contents: from `start` on. The part has all pieces.
    ///
    /// # Panics
    /// If a piece lies outside the part.
    pub fn apply_to_part(&self, start: usize, part: &mut [u8]) {
        for (offset, range) in &self.pieces {
            let bytes = &self.bytes[range.start as usize..range.end as usize];
            let offset = *offset as usize - start;
            part[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// True if all pieces lie inside a unit of `len` bytes.
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.pieces.iter().all(|(offset, range)| *offset as usize + range.len() <= len)
    }
}

/// An object that transactions log: an inode core, an intent.
///
/// [`Handle::log_object`](crate::Handle::log_object) calls `record` and `patch` at once. The journal keeps
/// their results until the object is in place or finished.
pub trait LogObject: Send + Sync {
    /// The identity. A later record of the same identity replaces an earlier one.
    fn id(&self) -> ObjectId;

    /// Returns the bytes to log.
    fn record(&self) -> Arc<[u8]>;

    /// Returns the bytes to write in place. `None` is for an intent: it stays active until
    /// [`Handle::finish_object`](crate::Handle::finish_object).
    fn patch(&self) -> Option<Arc<Patch>>;

    /// For an intent: the most credits of a transaction that finishes it, or replaces it by a new one. The
    /// journal keeps log space for that.
    fn finish_credits(&self) -> u32 {
        0
    }

    /// Called when the record that transaction `tid` logged is in place and durable, or finished durably. A
    /// newer record may be in the log or in the running transaction.
    ///
    /// It runs with the log locked. It may take leaf locks only and must not use the journal.
    fn clean(&self, _tid: Tid) {}
}

/// A driver's part of the recovery. The encoding calls it for whole transactions only, in the order of their
/// LSNs, and not for blocks that a later transaction revokes.
pub trait Replay {
    /// Replays changed bytes of a block.
    fn buffer(&mut self, lsn: Lsn, block: BlockNo, offset: u32, bytes: &[u8]) -> Result<()>;

    /// Replays an object that has a place.
    fn object(&mut self, lsn: Lsn, id: ObjectId, record: &[u8]) -> Result<()>;

    /// Reports an intent without a done record, once, after everything else was replayed. The driver passes
    /// it to [`Journal::adopt`](crate::Journal::adopt) and finishes it.
    fn intent(&mut self, lsn: Lsn, id: ObjectId, record: &[u8]) -> Result<()>;

    /// Everything was replayed. Makes it durable in place: the log may be freed after that.
    fn finish(&mut self) -> Result<()>;
}
