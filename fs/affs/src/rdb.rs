//! The Rigid Disk Block: which partitions a hard disk has (FAQ 6.1 and 6.3; `devices/hardblocks.h`).

use crate::layout::{Flavour, get32, is_sealed, shown_tag};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};

/// The block stands in one of the first so many.
const LOOK_BLOCKS: u64 = 16;
const SECTOR: u64 = 512;
/// More partitions than any disk has: a list that is longer is a loop.
const PARTITIONS_MAX: usize = 64;
/// The end of a list.
const NONE: u32 = u32::MAX;
/// Words that a block's checksum may cover.
const CHECKED_WORDS: u32 = 128;

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name, `DH0`.
    pub name: String,
    /// The type that the list gives it.
    pub tag: u32,
    /// First byte on the disk.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes a block.
    pub block_size: u32,
    /// Blocks at its beginning that belong to no file.
    pub reserved: u32,
}

impl Partition {
    /// For a list of them.
    pub fn shown(&self, nth: usize) -> String {
        format!("{nth}: {} ({}, {} KiB)", self.name, shown_tag(self.tag), self.len >> 10)
    }
}

fn sector(
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
    if !(64..=CHECKED_WORDS).contains(&words) || !is_sealed(&block[..words as usize * 4]) {
        return Err(Error::corrupt(
            format!("the checksum of the {what} is wrong"),
            format!("{place}, byte {byte}"),
        ));
    }
    Ok(Some(block))
}

/// The partitions of a disk. `None`: no Rigid Disk Block, so no list of partitions.
pub fn partitions(device: &dyn Device, place: &str) -> Result<Option<Vec<Partition>>> {
    for nth in 0..LOOK_BLOCKS {
        if let Some(rdb) = sector(device, nth * SECTOR, b"RDSK", "Rigid Disk Block", place)? {
            return list(device, &rdb, place).map(Some);
        }
    }
    Ok(None)
}

fn list(device: &dyn Device, rdb: &[u8], place: &str) -> Result<Vec<Partition>> {
    let unit = get32(rdb, 16);
    if !unit.is_power_of_two() || !(512..=32768).contains(&unit) {
        return Err(Error::corrupt(format!("blocks of {unit} bytes"), format!("{place}, Rigid Disk Block")));
    }
    let mut all = Vec::new();
    let mut next = get32(rdb, 28);
    while next != NONE {
        let at = u64::from(next) * u64::from(unit);
        if all.len() == PARTITIONS_MAX {
            return Err(Error::corrupt(
                "the list of partitions has no end",
                format!("{place}, block {next}"),
            ));
        }
        let Some(part) = sector(device, at, b"PART", "partition block", place)? else {
            return Err(Error::corrupt(
                "no partition block where one should be",
                format!("{place}, block {next}"),
            ));
        };
        all.push(decode(&part, unit, device.size_bytes()).ok_or_else(|| {
            Error::corrupt("a partition with an impossible geometry", format!("{place}, block {next}"))
        })?);
        next = get32(&part, 16);
    }
    Ok(all)
}

fn decode(part: &[u8], unit: u32, disk_len: u64) -> Option<Partition> {
    let name_len = usize::from(part[36]).min(31);
    let name = part[37..37 + name_len].iter().map(|&byte| char::from(byte)).collect();
    // The environment vector, from its own length on.
    let word = |nth: usize| get32(part, 128 + nth * 4);
    let cylinder = u64::from(word(3)).checked_mul(u64::from(word(5)))?.checked_mul(u64::from(unit))?;
    let (low, high) = (u64::from(word(9)), u64::from(word(10)));
    let start = cylinder.checked_mul(low)?;
    let len = cylinder.checked_mul((high + 1).checked_sub(low)?)?;
    if len == 0 || start >= disk_len {
        return None;
    }
    Some(Partition {
        name,
        tag: word(16),
        start,
        // An image may be cut off behind what was used of it.
        len: len.min(disk_len - start),
        block_size: word(1).checked_mul(4)?.checked_mul(word(4).max(1))?,
        reserved: word(6),
    })
}

/// The partition that is meant: by name, by number, or the only one.
pub fn choose(partitions: &[Partition], wanted: Option<&str>, place: &str) -> Result<Partition> {
    let shown: Vec<String> = partitions.iter().enumerate().map(|(nth, one)| one.shown(nth)).collect();
    let shown = shown.join(", ");
    let refuse = |what: &str| Err(Error::Incompatible(format!("{place} {what}: {shown}")));
    match wanted {
        Some(wanted) => {
            let named = partitions.iter().find(|one| one.name.eq_ignore_ascii_case(wanted));
            let numbered = || wanted.parse().ok().and_then(|nth: usize| partitions.get(nth));
            match named.or_else(numbered) {
                Some(one) => Ok(one.clone()),
                None => refuse(&format!("has no partition {wanted:?}")),
            }
        }
        None => match partitions {
            [one] => Ok(one.clone()),
            [] => Err(Error::Incompatible(format!("{place} is an Amiga disk without partitions"))),
            several => {
                let example =
                    several.iter().find(|one| Flavour::of(one.tag).is_some()).unwrap_or(&several[0]);
                let how = format!("has several partitions, choose one with -o partition={}", example.name);
                refuse(&how)
            }
        },
    }
}
