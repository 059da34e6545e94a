//! Intents: the records that promise deferred work, and their done records.
//!
//! A record is a log item without its type: the number of its regions (1), the number of extents, the id of
//! the intent, and the extents. Numbers are little-endian.

use super::extent::FreeExtent;
use super::space::Space;
use super::works::{Change, CountChange, FreedOwner, Logged, Work};
use crate::layout::bytes::array;
use crate::layout::owner::{ATTRIBUTES, FILE_BLOCK, Owner, TREE, UNWRITTEN};
use crate::layout::superblock::{FsBlock, Superblock};
use crate::log::object;
use ivers_journal::{LogObject, ObjectId, Patch};
use ivers_vfs::{Error, Result};
use std::sync::Arc;

/// Types of changes of the reverse map, in the low bits of `me_flags`, and flags of the owner.
mod rmap {
    pub(super) const MAP: u32 = 1;
    pub(super) const MAP_SHARED: u32 = 2;
    pub(super) const UNMAP: u32 = 3;
    pub(super) const UNMAP_SHARED: u32 = 4;
    pub(super) const CONVERT: u32 = 5;
    pub(super) const CONVERT_SHARED: u32 = 6;
    pub(super) const ALLOC: u32 = 7;
    pub(super) const FREE: u32 = 8;
    pub(super) const TYPE: u32 = 0xFF;
    pub(super) const ATTRIBUTES: u32 = 1 << 31;
    pub(super) const TREE: u32 = 1 << 30;
    pub(super) const UNWRITTEN: u32 = 1 << 29;
}

/// Types of changes of reference counts, in `pe_flags`.
mod refcount {
    pub(super) const INCREASE: u32 = 1;
    pub(super) const DECREASE: u32 = 2;
    pub(super) const ADD_COPY: u32 = 3;
    pub(super) const REMOVE_COPY: u32 = 4;
    pub(super) const TYPE: u32 = 0xFF;
}

const HEAD_BYTES: usize = 14;

/// An intent in the log.
pub(super) struct Intent {
    pub(super) logged: Logged,
    pub(super) finish_credits: u32,
}

/// Bytes of an extent in a record of a kind.
fn extent_bytes(kind: u32) -> usize {
    match kind {
        object::REVERSE_MAP => 32,
        _ => 16,
    }
}

fn record(id: u64, count: u32, extents: &[u8]) -> Vec<u8> {
    [&1u16.to_le_bytes()[..], &count.to_le_bytes(), &id.to_le_bytes(), extents].concat()
}

/// The done record of an intent.
pub(super) fn done_record(intent: &Logged) -> Vec<u8> {
    match intent.id.kind {
        // It repeats the extents.
        object::FREE => intent.record.to_vec(),
        _ => record(intent.id.number, 0, &[]),
    }
}

impl Intent {
    /// The intent of a work.
    pub(super) fn new(sb: &Superblock, work: &Work, number: u64, finish_credits: u32) -> Self {
        let start = sb.fs_block(work.ag, work.blocks.start).0.to_le_bytes();
        let len = work.blocks.len.to_le_bytes();
        let counted = |flags: u32| (object::REFCOUNT, [&start[..], &len, &flags.to_le_bytes()].concat());
        let mapped = |owner: Owner, change: u32| {
            let flag = |bit: u64, flag: u32| if owner.offset & bit != 0 { flag } else { 0 };
            let flags = change
                | flag(ATTRIBUTES, rmap::ATTRIBUTES)
                | flag(TREE, rmap::TREE)
                | flag(UNWRITTEN, rmap::UNWRITTEN);
            let block = (owner.offset & FILE_BLOCK).to_le_bytes();
            let owner = owner.owner.to_le_bytes();
            (object::REVERSE_MAP, [&owner[..], &start, &block, &len, &flags.to_le_bytes()].concat())
        };
        // The shared types also work for blocks that are not shared: recovery looks for the exact record.
        let (kind, extent) = match work.change {
            Change::Map(owner) if owner.is_inode() => mapped(owner, rmap::MAP_SHARED),
            Change::Map(owner) => mapped(owner, rmap::ALLOC),
            Change::Unmap(owner) if owner.is_inode() => mapped(owner, rmap::UNMAP_SHARED),
            Change::Unmap(owner) => mapped(owner, rmap::FREE),
            Change::Count(CountChange::Increase) => counted(refcount::INCREASE),
            Change::Count(CountChange::Decrease) => counted(refcount::DECREASE),
            Change::AddCopy => counted(refcount::ADD_COPY),
            Change::RemoveCopy => counted(refcount::REMOVE_COPY),
            Change::Free(_) => (object::FREE, [&start[..], &len, &[0; 4]].concat()),
        };
        let record = record(number, 1, &extent).into();
        Self { logged: Logged { id: ObjectId { kind, number }, record }, finish_credits }
    }

    pub(super) fn logged(&self) -> Logged {
        self.logged.clone()
    }
}

impl LogObject for Intent {
    fn id(&self) -> ObjectId {
        self.logged.id
    }

    fn record(&self) -> Arc<[u8]> {
        self.logged.record.clone()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        None
    }

    fn finish_credits(&self) -> u32 {
        self.finish_credits
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_le_bytes)
}

impl Space {
    pub(super) fn bad_intent(&self, id: ObjectId, what: &str) -> Error {
        self.corrupt_log(format!("an intent of kind {}, number {}: {what}", id.kind, id.number))
    }

    /// The extents of a record.
    fn extents<'a>(&self, id: ObjectId, record: &'a [u8]) -> Result<std::slice::ChunksExact<'a, u8>> {
        let (count, each) = (word(record, 2) as usize, extent_bytes(id.kind));
        let extents = record.get(HEAD_BYTES..).and_then(|rest| rest.get(..count.checked_mul(each)?));
        match extents {
            Some(extents) => Ok(extents.chunks_exact(each)),
            None => Err(self.bad_intent(id, "it is too short")),
        }
    }

    /// The works that an intent promises.
    pub(super) fn works(&self, id: ObjectId, record: &[u8]) -> Result<Vec<Work>> {
        let mut works = Vec::new();
        for extent in self.extents(id, record)? {
            let (start, len) = match id.kind {
                object::REVERSE_MAP => (long(extent, 8), word(extent, 24)),
                _ => (long(extent, 0), word(extent, 8)),
            };
            if len == 0 || self.sb.run(FsBlock(start), len.into()).is_none() {
                return Err(self.bad_intent(id, &format!("it has {len} blocks at {start}")));
            }
            let (ag, block) = self.sb.ag_of(FsBlock(start));
            let blocks = FreeExtent { start: block, len };
            let mut push = |change| works.push(Work { ag, blocks, change });
            match id.kind {
                object::FREE => push(Change::Free(FreedOwner::Unknown)),
                object::REFCOUNT => push(match word(extent, 12) & refcount::TYPE {
                    refcount::INCREASE => Change::Count(CountChange::Increase),
                    refcount::DECREASE => Change::Count(CountChange::Decrease),
                    refcount::ADD_COPY => Change::AddCopy,
                    refcount::REMOVE_COPY => Change::RemoveCopy,
                    _ => return Err(self.bad_intent(id, "its type is unknown")),
                }),
                object::REVERSE_MAP => {
                    let flags = word(extent, 28);
                    let flag = |flag: u32, bit: u64| if flags & flag != 0 { bit } else { 0 };
                    let offset = long(extent, 16) & FILE_BLOCK
                        | flag(rmap::ATTRIBUTES, ATTRIBUTES)
                        | flag(rmap::TREE, TREE)
                        | flag(rmap::UNWRITTEN, UNWRITTEN);
                    let owner = Owner { owner: long(extent, 0), offset };
                    match flags & rmap::TYPE {
                        rmap::MAP | rmap::MAP_SHARED | rmap::ALLOC => push(Change::Map(owner)),
                        rmap::UNMAP | rmap::UNMAP_SHARED | rmap::FREE => push(Change::Unmap(owner)),
                        rmap::CONVERT | rmap::CONVERT_SHARED => {
                            // The record has the new state.
                            push(Change::Unmap(Owner { offset: offset ^ UNWRITTEN, ..owner }));
                            push(Change::Map(owner));
                        }
                        _ => return Err(self.bad_intent(id, "its type is unknown")),
                    }
                }
                _ => return Err(self.bad_intent(id, "its kind is unknown")),
            }
        }
        Ok(works)
    }
}
