//! Partition tables of disks: MBR with logical partitions, and GPT.
//!
//! [`read`] takes a device whose bytes are hostile. It reads a bounded number of sectors, believes no number
//! before it is checked, and never writes. A partition that cannot be used is listed with the reason.
//!
//! # Why not a crate
//!
//! Three crates read these tables. None is safe on hostile bytes (versions of November 2026):
//!
//! - `gpt` 4.1 panics if the size of an entry is not 128, and allocates the size of the entry array, up to
//!   512 GiB. It does not use the backup if only the array of the primary is damaged.
//! - `gptman` 3.1 allocates as many entries as the header says, up to 2^32, and multiplies without a check.
//! - `mbrman` 0.6 adds without a check, and keeps up to 2^32 logical partitions in memory. An error in their
//!   chain loses the whole table.
//!
//! # Sources
//!
//! - UEFI specification 2.10, chapter 5: GPT, the protective MBR, the fields of an MBR;
//! - fdisk(8), sfdisk(8) and sgdisk(8): numbers of logical partitions, types.
//!
//! # Invariants
//!
//! | # | statement | established by |
//! |---|---|---|
//! | P1 | a partition without a `problem` is inside the device, not empty, overlaps none | `Table::judge` |
//! | P2 | at most [`PARTITIONS_MAX`] partitions; at most 1 MiB is read at a time | `mbr`, `gpt` |
//! | P3 | a GPT is used only if the checksums of header and entries are right | `gpt::read_at` |
//!
//! `tests/hostile.rs` and the fuzz target `partitions` check them.

#![forbid(unsafe_code)]

mod gpt;
mod mbr;
mod names;

use std::ops::Range;

use ivers_block::{BlockError, Device};

/// Most partitions of a table.
pub const PARTITIONS_MAX: usize = 1024;

/// The sizes of a sector that disks have, in bytes.
pub const SECTOR_SIZES: [u32; 2] = [512, 4096];

/// Why a partition table cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// There is a table, and no copy of it is intact.
    #[error("the GPT partition table is damaged: {primary}; its backup: {backup}")]
    Damaged {
        /// What is wrong with the primary table.
        primary: String,
        /// What is wrong with the backup.
        backup: String,
    },
}

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// The Master Boot Record of DOS.
    Mbr,
    /// The GUID Partition Table of UEFI.
    Gpt,
}

impl TableKind {
    /// The name of the format in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mbr => "mbr",
            Self::Gpt => "gpt",
        }
    }
}

/// The type of a partition, as the table stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionType {
    /// A byte of an MBR.
    Mbr(u8),
    /// A GUID of a GPT.
    Gpt(uuid::Uuid),
}

impl PartitionType {
    /// The type in hexadecimal digits.
    pub fn id(self) -> String {
        match self {
            Self::Mbr(id) => format!("{id:02x}"),
            Self::Gpt(id) => id.to_string(),
        }
    }

    /// The usual name of the type. `None` if it is not one of the common types.
    pub fn name(self) -> Option<&'static str> {
        names::of(self)
    }
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1. The logical partitions of an MBR start at 5.
    pub number: u32,
    /// The bytes on the disk, as the table says.
    pub bytes: Range<u64>,
    /// The type.
    pub kind: PartitionType,
    /// The name in a GPT. Empty if it has none.
    pub name: String,
    /// The PARTUUID. Of an MBR: the disk's signature and the number.
    pub uuid: String,
    /// An extended partition: it contains the logical partitions, and no filesystem.
    pub is_extended: bool,
    /// Why the partition cannot be used.
    pub problem: Option<String>,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The format.
    pub kind: TableKind,
    /// The unit of the table in bytes.
    pub sector_bytes: u32,
    /// The disk's GUID, or the signature of an MBR.
    pub id: String,
    /// The partitions in ascending order of numbers. Unused entries are left out.
    pub partitions: Vec<Partition>,
    /// Damage despite which the table is usable.
    pub damage: Vec<String>,
}

/// Reads the partition table of a device. `None` if it has none.
///
/// The sector size of a GPT follows from the position of its header. An MBR does not tell it:
/// `mbr_sector_bytes` is the unit of its numbers.
pub fn read(device: &dyn Device, mbr_sector_bytes: u32) -> Result<Option<Table>, Error> {
    let mbr = mbr::read_boot_sector(device)?;
    let mut table = match &mbr {
        // A GPT that no entry protects is the rest of one: another tool made the MBR later.
        Some(mbr) if !mbr.is_protective() => mbr::read(device, mbr, mbr_sector_bytes)?,
        Some(_) => gpt::read(device)?,
        None => match gpt::read(device) {
            Ok(table) => table,
            // Without an MBR that points to it, a damaged GPT can be anything.
            Err(Error::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        },
    };
    table.judge(device.size_bytes());
    Ok(Some(table))
}

impl Table {
    /// Marks partitions that cannot be used.
    fn judge(&mut self, device_bytes: u64) {
        self.partitions.sort_by_key(|partition| partition.number);
        for partition in &mut self.partitions {
            let Range { start, end } = partition.bytes;
            let problem = if end <= start {
                Some("it is empty or its end precedes its start".to_owned())
            } else if end > device_bytes {
                Some(format!("it ends at byte {end}, and the image at byte {device_bytes}"))
            } else {
                None
            };
            partition.problem = partition.problem.take().or(problem);
        }
        // Sorted by position, a partition overlaps another if it overlaps the one that reaches furthest.
        let mut order: Vec<usize> = (0..self.partitions.len()).collect();
        order.retain(|&at| !self.partitions[at].is_extended && !self.partitions[at].bytes.is_empty());
        order.sort_by_key(|&at| self.partitions[at].bytes.start);
        let mut furthest: Option<usize> = None;
        for at in order {
            if let Some(other) =
                furthest.filter(|&other| self.partitions[other].bytes.end > self.partitions[at].bytes.start)
            {
                for (one, two) in [(at, other), (other, at)] {
                    let why = format!("it overlaps partition {}", self.partitions[two].number);
                    self.partitions[one].problem.get_or_insert(why);
                }
            }
            let is_further = |other: usize| self.partitions[other].bytes.end < self.partitions[at].bytes.end;
            if furthest.is_none_or(is_further) {
                furthest = Some(at);
            }
        }
    }
}

/// Returns the bytes of `sectors` sectors from sector `first` on. Numbers that do not fit are cut: the
/// partition then ends beyond every device.
fn byte_range(first: u64, sectors: u64, sector_bytes: u32) -> Range<u64> {
    let byte = |sector: u64| sector.saturating_mul(u64::from(sector_bytes));
    byte(first)..byte(first.saturating_add(sectors))
}

/// Fills `buf` from a sector on. Returns whether it lies inside the device.
fn read_sectors(device: &dyn Device, first: u64, sector_bytes: u32, buf: &mut [u8]) -> Result<bool, Error> {
    let start = first.checked_mul(u64::from(sector_bytes));
    let end = start.and_then(|start| start.checked_add(buf.len() as u64));
    match (start, end) {
        (Some(start), Some(end)) if end <= device.size_bytes() => {
            device.read_at(ivers_block::ByteOffset(start), buf)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
