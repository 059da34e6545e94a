//! The log: finding its end, and replay of what is not in place.
//!
//! A read-only mount replays into memory. The log is a ring of sectors of 512 bytes. Each sector starts with
//! the number of its cycle around the ring; the words that these numbers replace are in the header of the
//! record.
//!
//! | module | contents |
//! |---|---|
//! | `refusal` | errors |
//! | `end` | what the end of a log shows |
//! | `wire` | numbers of the format |
//! | `ring`, `record` | sectors and records: reading and making them |
//! | `scan` | the records from the tail to the head |
//! | `items` | transactions and their items |
//! | `convert` | inodes as they are logged |
//! | `replay` | items put in place |
//! | `encode` | transactions of the journal as items |
//! | `writer` | records written at the head |
//! | `mappings`, `parents` | intents of mappings and of parent pointers |
//! | `stamp` | LSN and checksum of what is written in place |
//! | `resume` | recovery in place, and where the log continues |

mod convert;
mod encode;
mod end;
mod items;
mod mappings;
mod parents;
mod record;
mod refusal;
mod replay;
mod resume;
mod ring;
mod scan;
mod stamp;
mod wire;
mod writer;

use crate::layout::superblock::Superblock;
pub(crate) use encode::{intent_id, object, order_of};
pub(crate) use end::{LogEnd, mark, others_wrote};
use ivers_block::{Device, OverlayDevice};
use ivers_vfs::Result;
pub(crate) use mappings::MappingIntent;
pub(crate) use parents::{ParentIntent, Pointer};
pub(crate) use record::{RecordHead, RecordShape, unmount_operation};
pub use replay::FoundIntent;
pub use resume::{Opened, open_for_writing};
pub(crate) use ring::Lsn;
pub use stamp::stamp;
pub use writer::XfsLog;

#[cfg(test)]
pub(crate) use mappings::regions as mapping_regions;
#[cfg(test)]
pub(crate) use parents::regions as parent_regions;
use refusal::dirty;
use ring::Ring;
use std::sync::Arc;

/// What was in the log.
#[derive(Default)]
pub(crate) struct LogState {
    /// Transactions that were replayed; `None` after a clean unmount.
    pub transactions: Option<u64>,
    /// Its end.
    pub end: LogEnd,
    /// Intents without a done item.
    pub intents: Vec<FoundIntent>,
}

/// Makes the contents of the log effective, in memory. Returns the device to use.
pub(crate) fn recover(
    device: Arc<dyn Device>,
    sb: &Superblock,
    place: &str,
) -> Result<(Arc<dyn Device>, LogState)> {
    let ring = Ring::new(&*device, sb, place)?;
    let found = scan::scan(&ring)?;
    let end = LogEnd::of(&ring, &found)?;
    if found.clean {
        return Ok((device, LogState { end, ..LogState::default() }));
    }
    if !sb.is_v5() {
        return Err(dirty(place, "the log of a filesystem of version 4 is not replayed"));
    }
    let overlay = Arc::new(OverlayDevice::new(device.clone()));
    let done = replay::replay(&ring, &found.records, &overlay, sb, false)?;
    Ok((overlay, LogState { transactions: Some(done.count), end, intents: done.intents }))
}

/// Returns whether the log contains nothing that is not in place.
pub(crate) fn is_clean(device: &dyn Device, sb: &Superblock, place: &str) -> Result<bool> {
    Ok(scan::scan(&Ring::new(device, sb, place)?)?.clean)
}
