//! Makes log records: headers, the cycle in each sector, the checksum.

use super::ring::{Lsn, next_cycle, record_checksum, word_place};
use super::wire::*;
use crate::layout::raw::{RawLogOp, RawLogRecord};
use std::mem::offset_of;
use zerocopy::{FromZeros, IntoBytes};

/// `XLOG_UNMOUNT_TYPE`: what the operation of an unmount contains.
const UNMOUNT_MAGIC: u16 = 0x556E;
/// Bytes of the longest record that Linux writes by default.
const LONGEST_BYTES: u32 = 32 << 10;

/// What all records of a log have in common.
#[derive(Debug, Clone)]
pub(crate) struct RecordShape {
    pub uuid: [u8; 16],
    /// Bytes of the longest record (`h_size`). Recovery takes the number of headers of all records from it.
    pub longest: u32,
    /// Records fill whole units of so many bytes.
    pub unit: u32,
}

/// What the header of a record says.
#[derive(Debug, Clone)]
pub(crate) struct RecordHead {
    pub lsn: Lsn,
    pub tail: Lsn,
    /// The sector of the record before; `u32::MAX` if there is none.
    pub previous: u32,
    pub operations: u32,
}

impl RecordShape {
    /// Records of `unit` bytes or multiples of them.
    pub(crate) fn new(uuid: [u8; 16], unit: u32) -> Self {
        Self { uuid, longest: LONGEST_BYTES.max(unit), unit: unit.max(SECTOR as u32) }
    }

    pub(crate) fn headers(&self) -> usize {
        self.longest.div_ceil(HEADER_COVERS) as usize
    }

    /// The most bytes of data in a record.
    pub(crate) fn data_max(&self) -> usize {
        self.longest as usize - self.headers() * SECTOR
    }

    /// Bytes of a record with `data` bytes.
    pub(crate) fn bytes(&self, data: usize) -> usize {
        (self.headers() * SECTOR + data.max(1)).next_multiple_of(self.unit as usize)
    }

    /// The sectors of a record. Those past sector `ring_len` are in the next cycle.
    pub(crate) fn record(&self, head: &RecordHead, mut data: Vec<u8>, ring_len: u32) -> Vec<u8> {
        let headers = self.headers();
        data.resize(self.bytes(data.len()) - headers * SECTOR, 0);
        let cycle_of = |index: usize| {
            let wraps = u64::from(head.lsn.sector) + index as u64 >= u64::from(ring_len);
            if wraps { next_cycle(head.lsn.cycle) } else { head.lsn.cycle }
        };
        let mut raw = RawLogRecord::new_zeroed();
        raw.h_magicno = MAGIC.into();
        raw.h_cycle = head.lsn.cycle.into();
        raw.h_version = 2.into();
        raw.h_len = (data.len() as u32).into();
        raw.h_lsn = head.lsn.raw().into();
        raw.h_tail_lsn = head.tail.raw().into();
        raw.h_prev_block = head.previous.into();
        raw.h_num_logops = head.operations.into();
        raw.h_fmt = LITTLE_ENDIAN.into();
        raw.h_fs_uuid = self.uuid;
        raw.h_size = self.longest.into();
        let mut heads = raw.as_bytes().to_vec();
        heads.resize(headers * SECTOR, 0);
        for index in 1..headers {
            heads[index * SECTOR..][..4].copy_from_slice(&cycle_of(index).to_be_bytes());
        }
        // Each sector starts with its cycle. What was there is in the headers.
        for (index, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
            let at = word_place(index);
            heads[at..at + 4].copy_from_slice(&sector[..4]);
            sector[..4].copy_from_slice(&cycle_of(headers + index).to_be_bytes());
        }
        let sum = record_checksum(&heads, &data);
        heads[offset_of!(RawLogRecord, h_crc)..][..4].copy_from_slice(&sum.to_le_bytes());
        heads.extend(data);
        heads
    }
}

/// Adds an operation with its data.
pub(crate) fn add_operation(to: &mut Vec<u8>, tid: u32, client: u8, flags: u8, data: &[u8]) {
    let head = RawLogOp {
        oh_tid: tid.into(),
        oh_len: (data.len() as u32).into(),
        oh_clientid: client,
        oh_flags: flags,
        oh_res2: 0.into(),
    };
    to.extend_from_slice(head.as_bytes());
    to.extend_from_slice(data);
}

/// The operation that says that the filesystem was unmounted.
pub(crate) fn unmount_operation(tid: u32) -> Vec<u8> {
    let unmount = [UNMOUNT_MAGIC.to_le_bytes(), [0; 2], [0; 2], [0; 2]].concat();
    let mut bytes = Vec::new();
    add_operation(&mut bytes, tid, client::LOG, op::UNMOUNT, &unmount);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::ring::Ring;
    use crate::mkfs::{MkfsOptions, mkfs};
    use ivers_block::{Device, MemDevice};

    /// Records of all sizes and at all places are read as they were written.
    #[test]
    fn records_are_read_as_they_were_written() {
        let device = MemDevice::new(64 << 20);
        let options = MkfsOptions { uuid: [3; 16], small: true, zeroed: true, ..MkfsOptions::default() };
        mkfs(&device, &options).unwrap();
        let sb = crate::open::read_super(&device, "image").unwrap();
        let ring = Ring::new(&device, &sb, "image").unwrap();
        for (unit, len, sector) in [
            (0, 1, 0),
            (0, 500, ring.len - 1),
            (0, 30_000, ring.len - 1),
            (0, 30_000, ring.len - 40),
            (32 << 10, 30_000, 64),
            (256 << 10, 200_000, 0),
            (256 << 10, 250_000, ring.len - 3),
            (256 << 10, 250_000, ring.len - 300),
        ] {
            let shape = RecordShape::new(sb.uuid, unit);
            assert!(len <= shape.data_max());
            // Words that look like the start of a record too.
            let data: Vec<u8> = (0..len).map(|at| MAGIC.to_be_bytes()[at % 4]).collect();
            let (lsn, tail) = (Lsn { cycle: 5, sector }, Lsn { cycle: 4, sector: sector / 2 });
            let head = RecordHead { lsn, tail, previous: 7, operations: 9 };
            let mut bytes = shape.record(&head, data.clone(), ring.len);
            assert!(bytes.len().is_multiple_of(shape.unit as usize) && bytes.len() == shape.bytes(len));
            let before_end = ((ring.len - sector) as usize * SECTOR).min(bytes.len());
            let (first, second) = bytes.split_at(before_end);
            let start = ring.offset(sector);
            device.write_at(start, first).unwrap();
            device.write_at(ring.offset(0), second).unwrap();
            let record = ring.record(sector).unwrap().unwrap_or_else(|| panic!("{unit}, {len}, {sector}"));
            assert_eq!((record.lsn, record.tail, record.operations), (lsn, tail, 9));
            assert!(record.data.starts_with(&data) && record.longest == shape.longest);
            assert_eq!(record.sectors as usize * SECTOR, bytes.len());
            for at in 0..record.sectors {
                let at = sector + at;
                let (at, cycle) = if at < ring.len { (at, 5) } else { (at - ring.len, 6) };
                assert_eq!(ring.cycle(at).unwrap(), cycle, "{unit}, {len}, sector {at}");
            }
            // One wrong bit anywhere.
            let last = bytes.len() - 1;
            bytes[last.min(600)] ^= 1;
            device.write_at(start, &bytes[..before_end]).unwrap();
            assert!(ring.record(sector).unwrap().is_none() || before_end <= 600);
        }
    }
}
