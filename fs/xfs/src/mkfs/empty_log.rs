//! The log of a new filesystem: one record, which says that the filesystem was unmounted.

use super::geometry::Plan;
use crate::layout::checksum::checksum;
use crate::layout::raw::{RawLogOp, RawLogRecord};
use std::mem::offset_of;
use zerocopy::{FromZeros, IntoBytes};

const MAGIC: u32 = 0xFEED_BABE;
const SECTOR: usize = 512;
/// The first cycle around the log.
const CYCLE: u32 = 1;
/// Bytes of the longest record that Linux writes by default.
const RECORD_BYTES: u32 = 32 << 10;
/// Bytes of data for which a record has one header, and what is used of further headers.
const HEADER_COVERS: u32 = 32 << 10;
const FURTHER_BYTES: usize = 4 + 64 * 4;
/// `XLOG_FMT_LINUX_LE`: items have the byte order of x86 and ARM.
const LITTLE_ENDIAN: u32 = 1;
/// `XFS_LOG`, `XLOG_UNMOUNT_TRANS` and `XLOG_UNMOUNT_TYPE`.
const CLIENT_LOG: u8 = 0xAA;
const OP_UNMOUNT: u8 = 0x20;
const UNMOUNT_MAGIC: u16 = 0x556E;
/// The number of the transaction; any will do.
const TRANSACTION: u32 = 1;

/// The sectors of the record, which starts the log.
pub(super) fn record(plan: &Plan, uuid: [u8; 16]) -> Vec<u8> {
    let unmount = [UNMOUNT_MAGIC.to_le_bytes(), [0; 2], [0; 2], [0; 2]].concat();
    let operation = RawLogOp {
        oh_tid: TRANSACTION.into(),
        oh_len: (unmount.len() as u32).into(),
        oh_clientid: CLIENT_LOG,
        oh_flags: OP_UNMOUNT,
        oh_res2: 0.into(),
    };
    let mut data = [operation.as_bytes(), &unmount].concat();
    let unit = plan.log_unit().unwrap_or(SECTOR as u32);
    let longest = RECORD_BYTES.max(unit);
    let headers = longest.div_ceil(HEADER_COVERS) as usize;
    // Headers and data fill whole units.
    data.resize(((headers + 1) * SECTOR).next_multiple_of(unit as usize) - headers * SECTOR, 0);

    let lsn = u64::from(CYCLE) << 32;
    let mut head = RawLogRecord::new_zeroed();
    head.h_magicno = MAGIC.into();
    head.h_cycle = CYCLE.into();
    head.h_version = 2.into();
    head.h_len = (data.len() as u32).into();
    head.h_lsn = lsn.into();
    head.h_tail_lsn = lsn.into();
    head.h_prev_block = u32::MAX.into();
    head.h_num_logops = 1.into();
    head.h_fmt = LITTLE_ENDIAN.into();
    head.h_fs_uuid = uuid;
    head.h_size = longest.into();
    // Each sector starts with the cycle. What was there is in a header: zeros, but in the first sector.
    head.h_cycle_data[0].as_mut_bytes().copy_from_slice(&data[..4]);
    data.chunks_exact_mut(SECTOR).for_each(|sector| sector[..4].copy_from_slice(&CYCLE.to_be_bytes()));
    let mut further = [0; SECTOR];
    further[..4].copy_from_slice(&CYCLE.to_be_bytes());
    let mut sum = checksum(head.as_bytes(), offset_of!(RawLogRecord, h_crc));
    for _ in 1..headers {
        sum = crc32c::crc32c_append(sum, &further[..FURTHER_BYTES]);
    }
    head.h_crc = crc32c::crc32c_append(sum, &data).into();
    let mut bytes = head.as_bytes().to_vec();
    bytes.resize(SECTOR, 0);
    bytes.extend(further.repeat(headers - 1));
    bytes.extend(data);
    bytes
}
