//! The Rigid Disk Block: the partition table of a hard disk (FAQ 6.1 and 6.3; `devices/hardblocks.h`).

use crate::layout::{Variant, checksum_is_valid, format_dos_type, get32};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};

/// The Rigid Disk Block is in one of these first sectors.
const SEARCHED_SECTORS: u64 = 16;
const SECTOR: u64 = 512;
/// Maximum number of partitions. A longer list is a cycle.
const PARTITIONS_MAX: usize = 64;
/// End of a list.
const NONE: u32 = u32::MAX;
/// Maximum number of words that a checksum covers.
const CHECKSUM_WORDS_MAX: u32 = 128;

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The name, such as `DH0`.
    pub name: String,
    /// The first word of the volume according to the partition entry.
    pub dos_type: u32,
    /// Byte offset on the disk.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of reserved blocks at the start.
    pub reserved: u32,
}

impl Partition {
    /// Returns number, name, type and size, for a list of partitions.
    pub fn describe(&self, number: usize) -> String {
        format!("{number}: {} ({}, {} KiB)", self.name, self.type_name(), self.len >> 10)
    }

    /// Returns the type as text, such as `DOS\\3`.
    pub fn type_name(&self) -> String {
        format_dos_type(self.dos_type)
    }
}

fn read_sector(
    device: &dyn Device,
    byte: u64,
    magic: &[u8; 4],
    what: &str,
    place: &str,
) -> Result<Option<Vec<u8>>> {
    let mut block = vec![0; SECTOR as usize];
    if byte.checked_add(SECTOR).is_none_or(|end| end > device.size_bytes()) {
        return Ok(None);
    }
    device.read_at(ByteOffset(byte), &mut block)?;
    if block[..4] != *magic {
        return Ok(None);
    }
    let words = get32(&block, 4);
    if !(64..=CHECKSUM_WORDS_MAX).contains(&words) || !checksum_is_valid(&block[..words as usize * 4]) {
        return Err(Error::corrupt(
            format!("the {what} has a bad checksum"),
            format!("{place}, byte {byte}"),
        ));
    }
    Ok(Some(block))
}

/// Reads the partitions of a disk. `None`: the disk has no Rigid Disk Block.
pub fn partitions(device: &dyn Device, place: &str) -> Result<Option<Vec<Partition>>> {
    for nth in 0..SEARCHED_SECTORS {
        if let Some(rdb) = read_sector(device, nth * SECTOR, b"RDSK", "Rigid Disk Block", place)? {
            return read_partitions(device, &rdb, place).map(Some);
        }
    }
    Ok(None)
}

fn read_partitions(device: &dyn Device, rdb: &[u8], place: &str) -> Result<Vec<Partition>> {
    let block_bytes = get32(rdb, 16);
    if !block_bytes.is_power_of_two() || !(512..=32768).contains(&block_bytes) {
        return Err(Error::corrupt(
            format!("a block size of {block_bytes} bytes is invalid"),
            format!("{place}, Rigid Disk Block"),
        ));
    }
    let mut all = Vec::new();
    let mut next = get32(rdb, 28);
    while next != NONE {
        let at = u64::from(next) * u64::from(block_bytes);
        if all.len() == PARTITIONS_MAX {
            return Err(Error::corrupt(
                "the list of partitions is too long or has a cycle",
                format!("{place}, block {next}"),
            ));
        }
        let Some(part) = read_sector(device, at, b"PART", "partition block", place)? else {
            return Err(Error::corrupt("not a partition block", format!("{place}, block {next}")));
        };
        all.push(decode(&part, block_bytes, device.size_bytes()).ok_or_else(|| {
            Error::corrupt("the geometry of a partition is invalid", format!("{place}, block {next}"))
        })?);
        next = get32(&part, 16);
    }
    Ok(all)
}

fn decode(part: &[u8], block_bytes: u32, disk_len: u64) -> Option<Partition> {
    let name_len = usize::from(part[36]).min(31);
    let name = part[37..37 + name_len].iter().map(|&byte| char::from(byte)).collect();
    // The environment vector starts with its own length.
    let word = |nth: usize| get32(part, 128 + nth * 4);
    let cylinder = u64::from(word(3)).checked_mul(u64::from(word(5)))?.checked_mul(u64::from(block_bytes))?;
    let (low, high) = (u64::from(word(9)), u64::from(word(10)));
    let start = cylinder.checked_mul(low)?;
    let len = cylinder.checked_mul((high + 1).checked_sub(low)?)?;
    if len == 0 || start >= disk_len {
        return None;
    }
    Some(Partition {
        name,
        dos_type: word(16),
        start,
        // An image may be shorter than the disk.
        len: len.min(disk_len - start),
        block_size: word(1).checked_mul(4)?.checked_mul(word(4).max(1))?,
        reserved: word(6),
    })
}

/// Chooses a partition by number, from 1, or by name, or the only one.
pub fn choose(partitions: &[Partition], requested: Option<&str>, place: &str) -> Result<Partition> {
    let list: Vec<String> = (1..).zip(partitions).map(|(number, one)| one.describe(number)).collect();
    let list = list.join(", ");
    let refuse = |what: &str| Err(Error::Incompatible(format!("{place} {what}: {list}")));
    match requested {
        Some(requested) => {
            let named = partitions.iter().find(|one| one.name.eq_ignore_ascii_case(requested));
            let nth = || requested.parse::<usize>().ok()?.checked_sub(1);
            let numbered = || partitions.get(nth()?);
            match numbered().or(named) {
                Some(one) => Ok(one.clone()),
                None => refuse(&format!("has no partition {requested:?}")),
            }
        }
        None => match partitions {
            [one] => Ok(one.clone()),
            [] => Err(Error::Incompatible(format!("{place} has a Rigid Disk Block without partitions"))),
            several => {
                let example = several
                    .iter()
                    .find(|one| Variant::from_dos_type(one.dos_type).is_some())
                    .unwrap_or(&several[0]);
                let reason = format!("has several partitions, choose one with -o partition={}", example.name);
                refuse(&reason)
            }
        },
    }
}
