//! The items of a transaction, as the log has them.
//!
//! | module | contents |
//! |---|---|
//! | `buffer` | buffers, freed buffers |
//! | `inode` | inodes |

mod buffer;
mod inode;

use super::ring::Lsn;
use super::wire::{Regions, kind};
use crate::layout::superblock::Superblock;
use ivers_journal::{Costs, JournalError, LogTransaction, ObjectId, ObjectRecord, RecordKind, Result};

/// Kinds of objects in the journal.
pub(crate) mod object {
    /// The number is that of the inode.
    pub(crate) const INODE: u32 = 1;
    /// Intents, in the order of their types in the log. The number is the intent's id.
    pub(super) const FIRST_INTENT: u32 = FREE;
    pub(crate) const FREE: u32 = 2;
    pub(crate) const REVERSE_MAP: u32 = 3;
    pub(crate) const REFCOUNT: u32 = 4;
    pub(crate) const MAPPING: u32 = 5;
    pub(crate) const ATTRIBUTE: u32 = 6;
}

/// Upper bounds of what each thing takes in the log, in bytes, with the headers of its operations.
///
/// A block can have four buffers: the heads of a group. A range is rounded up at both ends, and may be in
/// four buffers. An object has up to four regions; an inode has a format and a header of a B-tree root in
/// addition to its bytes.
pub(super) const COSTS: Costs = Costs { buffer: 240, range: 320, byte: 1, object: Some(240), revoke: 120 };

/// The object of an intent of a log item's type.
pub(crate) fn intent_id(item_kind: u16, id: u64) -> Option<ObjectId> {
    let at = kind::INTENTS.iter().position(|(intent, ..)| *intent == item_kind)?;
    Some(ObjectId { kind: object::FIRST_INTENT + at as u32, number: id })
}

/// The place of an object among those of a transaction. Recovery finishes intents in the order in which the
/// log has them: owners of blocks go first, then references, and then the blocks are freed.
pub(crate) fn order_of(kind: u32) -> u8 {
    match kind {
        object::REVERSE_MAP => 1,
        object::REFCOUNT => 2,
        object::FREE => 3,
        _ => 0,
    }
}

/// The number of items of a transaction.
pub(super) fn count(sb: &Superblock, transaction: &LogTransaction) -> usize {
    let changed: usize = transaction.items.iter().map(|item| buffer::count_changed(sb, item)).sum();
    let freed: usize = transaction.revokes.iter().map(|unit| unit.runs().count()).sum();
    changed + freed + transaction.objects.len()
}

/// Encodes all items of the transaction that starts at `lsn`, one at a time: a large transaction is not in
/// memory a second time.
pub(super) fn items(
    sb: &Superblock,
    lsn: Lsn,
    transaction: &LogTransaction,
    mut write: impl FnMut(Regions) -> Result<()>,
) -> Result<()> {
    for item in &transaction.items {
        buffer::changed(sb, lsn, item, &mut write)?;
    }
    for unit in &transaction.revokes {
        buffer::freed(sb, unit, &mut write)?;
    }
    let mut objects: Vec<&ObjectRecord> = transaction.objects.iter().collect();
    objects.sort_by_key(|object| order_of(object.id.kind));
    for ObjectRecord { id, kind, bytes } in objects {
        write(match kind {
            RecordKind::Placed(unit) if id.kind == object::INODE => {
                inode::item(sb, id.number, unit, bytes).ok_or_else(|| refused(*id))?
            }
            RecordKind::Placed(_) => return Err(refused(*id)),
            RecordKind::Intent => intent(*id, bytes, false)?,
            RecordKind::Done => intent(*id, bytes, true)?,
        })?;
    }
    Ok(())
}

fn refused(id: ObjectId) -> JournalError {
    JournalError::Incompatible { features: format!("an object of kind {}, number {}", id.kind, id.number) }
}

/// An intent or its done item. The record has what follows the type.
fn intent(id: ObjectId, record: &[u8], done: bool) -> Result<Regions> {
    let types = id.kind.checked_sub(object::FIRST_INTENT).and_then(|at| kind::INTENTS.get(at as usize));
    let (intent, intent_done, ..) = types.ok_or_else(|| refused(id))?;
    let mut region = if done { intent_done } else { intent }.to_le_bytes().to_vec();
    region.extend_from_slice(record);
    // An item of several regions would need their lengths.
    if region.len() < 16 || !region.len().is_multiple_of(4) || region[2..4] != [1, 0] {
        return Err(refused(id));
    }
    Ok(vec![region])
}
