//! The Master Boot Record, and the chain of boot records in an extended partition.
//!
//! A boot record has four entries at byte 446 and ends with 55 AA. An extended partition starts with another
//! boot record: its first entry is a logical partition, relative to this record; its second entry leads to
//! the next record, relative to the extended partition.

use ivers_block::Device;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::{Error, Partition, PartitionType, Table, TableKind, byte_range, read_sectors};

/// The length of a boot record. On disks with larger sectors the rest of the sector is unused.
const RECORD_BYTES: usize = 512;
/// Most boot records in the extended partitions of a disk. A longer chain is a cycle, or made to exhaust.
const CHAIN_MAX: usize = 128;
/// The number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// The type of an entry that covers a GPT.
const PROTECTIVE: u8 = 0xEE;

/// An entry of a boot record.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    boot_indicator: u8,
    starting_chs: [u8; 3],
    os_type: u8,
    ending_chs: [u8; 3],
    starting_lba: U32,
    size_in_lba: U32,
}

/// A boot record.
#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BootRecord {
    boot_code: [u8; 440],
    unique_mbr_signature: U32,
    unknown: U16,
    partition_record: [Entry; 4],
    signature: [u8; 2],
}

const _: () = assert!(size_of::<Entry>() == 16 && size_of::<BootRecord>() == RECORD_BYTES);

impl Entry {
    fn is_used(&self) -> bool {
        self.os_type != 0 && self.size_in_lba.get() != 0
    }

    fn is_extended(&self) -> bool {
        matches!(self.os_type, 0x05 | 0x0F | 0x85)
    }
}

impl BootRecord {
    /// Returns whether the disk has a GPT, which an entry protects from tools that do not know it. Such an
    /// MBR may have other entries too (a hybrid MBR): the GPT is the table.
    pub fn is_protective(&self) -> bool {
        self.partition_record.iter().any(|entry| entry.os_type == PROTECTIVE)
    }
}

fn record_at(device: &dyn Device, sector: u64, sector_bytes: u32) -> Result<Option<BootRecord>, Error> {
    let mut bytes = [0; RECORD_BYTES];
    if !read_sectors(device, sector, sector_bytes, &mut bytes)? {
        return Ok(None);
    }
    let record = BootRecord::read_from_bytes(&bytes).ok();
    Ok(record.filter(|record| record.signature == [0x55, 0xAA]))
}

/// Reads the first sector. `None` if it has no partition table: the boot sector of a filesystem has code
/// where the entries are, so that a flag byte is invalid.
pub fn read_boot_sector(device: &dyn Device) -> Result<Option<BootRecord>, Error> {
    let record = record_at(device, 0, RECORD_BYTES as u32)?;
    Ok(record.filter(|record| {
        let entries = &record.partition_record;
        entries.iter().all(|entry| entry.boot_indicator & 0x7F == 0)
            && entries.iter().any(|entry| entry.is_used() || entry.os_type == PROTECTIVE)
    }))
}

/// Reads the partitions of an MBR.
pub fn read(device: &dyn Device, record: &BootRecord, sector_bytes: u32) -> Result<Table, Error> {
    let signature = record.unique_mbr_signature.get();
    let partition = |number: u32, entry: &Entry, first: u64| Partition {
        number,
        bytes: byte_range(first, entry.size_in_lba.get().into(), sector_bytes),
        kind: PartitionType::Mbr(entry.os_type),
        name: String::new(),
        uuid: format!("{signature:08x}-{number:02x}"),
        is_extended: entry.is_extended(),
        problem: None,
    };
    let mut table = Table {
        kind: TableKind::Mbr,
        sector_bytes,
        id: format!("{signature:08x}"),
        partitions: Vec::new(),
        damage: Vec::new(),
    };
    for (number, entry) in (1..).zip(&record.partition_record) {
        if entry.is_used() {
            table.partitions.push(partition(number, entry, entry.starting_lba.get().into()));
        }
    }
    let mut logical = Chain { device, sector_bytes, records: 0 };
    let mut number = FIRST_LOGICAL;
    for extended in record.partition_record.iter().filter(|entry| entry.is_used() && entry.is_extended()) {
        let first = u64::from(extended.starting_lba.get());
        let end = first + u64::from(extended.size_in_lba.get());
        let (entries, damage) = logical.walk(first, end)?;
        for (record, entry) in entries {
            let start = record + u64::from(entry.starting_lba.get());
            let mut one = partition(number, &entry, start);
            if start <= record || start + u64::from(entry.size_in_lba.get()) > end {
                one.problem = Some("it is not inside the extended partition".to_owned());
            }
            table.partitions.push(one);
            number += 1;
        }
        table.damage.extend(damage);
    }
    Ok(table)
}

/// The logical partitions of an extended partition, each with the sector of its record, and what is wrong
/// with their chain.
type Logical = (Vec<(u64, Entry)>, Option<String>);

struct Chain<'a> {
    device: &'a dyn Device,
    sector_bytes: u32,
    /// Records read, in all extended partitions.
    records: usize,
}

impl Chain<'_> {
    /// Returns the logical partitions of the extended partition in sectors `first..end`, up to the first
    /// damage.
    fn walk(&mut self, first: u64, end: u64) -> Result<Logical, Error> {
        let mut entries = Vec::new();
        let mut seen = Vec::new();
        let mut at = first;
        loop {
            let damage = |what: &str| Some(format!("the chain of logical partitions {what} at sector {at}"));
            if seen.contains(&at) {
                return Ok((entries, damage("returns to an earlier record")));
            }
            if self.records == CHAIN_MAX {
                return Ok((entries, damage("is too long")));
            }
            if !(first..end).contains(&at) {
                return Ok((entries, damage("leaves the extended partition")));
            }
            let Some(record) = record_at(self.device, at, self.sector_bytes)? else {
                // An extended partition without logical partitions need not have a record.
                let is_empty = at == first;
                return Ok((entries, if is_empty { None } else { damage("has no boot record") }));
            };
            self.records += 1;
            seen.push(at);
            let used = || record.partition_record.iter().filter(|entry| entry.is_used());
            if let Some(entry) = used().find(|entry| !entry.is_extended()) {
                entries.push((at, *entry));
            }
            let Some(next) = used().find(|entry| entry.is_extended()) else { return Ok((entries, None)) };
            at = first + u64::from(next.starting_lba.get());
        }
    }
}
