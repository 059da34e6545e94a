//! The log of a new filesystem: one record, which says that the filesystem was unmounted.

use super::geometry::Plan;
use crate::log::{Lsn, RecordHead, RecordShape, unmount_operation};

/// The number of the transaction; any will do.
const TRANSACTION: u32 = 1;

/// The sectors of the record, which starts the log.
pub(super) fn record(plan: &Plan, uuid: [u8; 16]) -> Vec<u8> {
    let lsn = Lsn { cycle: 1, sector: 0 };
    let head = RecordHead { lsn, tail: lsn, previous: u32::MAX, operations: 1 };
    let shape = RecordShape::new(uuid, plan.log_unit().unwrap_or(0));
    shape.record(&head, unmount_operation(TRANSACTION), u32::MAX)
}
