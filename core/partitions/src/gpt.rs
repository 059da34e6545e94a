//! The GUID Partition Table: a header in the second sector, an array of entries, and a copy of both at the
//! end of the disk.

use crc::{CRC_32_ISO_HDLC, Crc};
use ivers_block::Device;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::{
    Error, PARTITIONS_MAX, Partition, PartitionType, SECTOR_SIZES, Table, TableKind, byte_range, read_sectors,
};

const SIGNATURE: &[u8; 8] = b"EFI PART";
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Most bytes of an array of entries. The usual one has 16 KiB.
const ARRAY_BYTES_MAX: u64 = 1 << 20;
/// Least and most bytes of an entry.
const ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=4096;

#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    signature: [u8; 8],
    revision: U32,
    header_size: U32,
    header_crc32: U32,
    reserved: U32,
    my_lba: U64,
    alternate_lba: U64,
    first_usable_lba: U64,
    last_usable_lba: U64,
    disk_guid: [u8; 16],
    partition_entry_lba: U64,
    number_of_partition_entries: U32,
    size_of_partition_entry: U32,
    partition_entry_array_crc32: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    partition_type_guid: [u8; 16],
    unique_partition_guid: [u8; 16],
    starting_lba: U64,
    ending_lba: U64,
    attributes: U64,
    partition_name: [U16; 36],
}

const _: () = assert!(size_of::<Header>() == 92 && size_of::<Entry>() == 128);
/// Where a header has its own checksum.
const HEADER_CRC: std::ops::Range<usize> = 16..20;

/// Reads the GPT of a device that has one: the primary, or the backup if the primary is damaged.
pub fn read(device: &dyn Device) -> Result<Table, Error> {
    let mut primary_damage = None;
    for sector_bytes in SECTOR_SIZES {
        match read_at(device, 1, sector_bytes)? {
            Ok((mut table, alternate)) => {
                if let Err(why) = read_at(device, alternate, sector_bytes)? {
                    table.damage.push(format!("the backup of the table is damaged: {why}"));
                }
                return Ok(table);
            }
            // The sector size whose header is there has the better reason.
            Err(why) if why == NO_HEADER => {}
            Err(why) => primary_damage = Some(why),
        }
    }
    let primary = primary_damage.unwrap_or_else(|| NO_HEADER.to_owned());
    let mut backup_damage = NO_HEADER.to_owned();
    for sector_bytes in SECTOR_SIZES {
        let Some(last) = (device.size_bytes() / u64::from(sector_bytes)).checked_sub(1) else { continue };
        match read_at(device, last, sector_bytes)? {
            Ok((mut table, _)) => {
                table.damage.push(format!("the table is damaged, its backup was used: {primary}"));
                return Ok(table);
            }
            Err(why) if why == NO_HEADER => {}
            Err(why) => backup_damage = why,
        }
    }
    Err(Error::Damaged { primary, backup: backup_damage })
}

const NO_HEADER: &str = "there is no header";

/// Reads the table whose header is in sector `lba`, and returns also where it says that the other copy is.
/// The inner error says what is wrong with the table.
fn read_at(device: &dyn Device, lba: u64, sector_bytes: u32) -> Result<Result<(Table, u64), String>, Error> {
    let mut sector = vec![0; sector_bytes as usize];
    let bad = |why: &str| Ok(Err(why.to_owned()));
    if !read_sectors(device, lba, sector_bytes, &mut sector)? || !sector.starts_with(SIGNATURE) {
        return bad(NO_HEADER);
    }
    let Ok((header, _)) = Header::read_from_prefix(&sector) else { return bad(NO_HEADER) };
    let header_bytes = header.header_size.get() as usize;
    if header_bytes < size_of::<Header>() || header_bytes > sector.len() {
        return bad("the size of the header is invalid");
    }
    sector[HEADER_CRC].fill(0);
    if CRC.checksum(&sector[..header_bytes]) != header.header_crc32.get() {
        return bad("the header has a bad checksum");
    }
    if header.my_lba.get() != lba {
        return bad("the header belongs to another sector");
    }
    let (count, entry_bytes) =
        (header.number_of_partition_entries.get(), header.size_of_partition_entry.get());
    if !ENTRY_BYTES.contains(&entry_bytes) || !entry_bytes.is_power_of_two() {
        return bad("the size of an entry is invalid");
    }
    let array_bytes = u64::from(count) * u64::from(entry_bytes);
    if count as usize > PARTITIONS_MAX || array_bytes > ARRAY_BYTES_MAX {
        return bad("there are too many entries");
    }
    let mut array = vec![0; array_bytes as usize];
    if !read_sectors(device, header.partition_entry_lba.get(), sector_bytes, &mut array)? {
        return bad("the entries lie outside the image");
    }
    if CRC.checksum(&array) != header.partition_entry_array_crc32.get() {
        return bad("the entries have a bad checksum");
    }
    let usable = header.first_usable_lba.get()..=header.last_usable_lba.get();
    let entries = (1..).zip(array.chunks_exact(entry_bytes as usize));
    let partitions = entries.filter_map(|(number, bytes)| {
        let (entry, _) = Entry::read_from_prefix(bytes).ok()?;
        (entry.partition_type_guid != [0; 16]).then(|| partition(number, &entry, &usable, sector_bytes))
    });
    let table = Table {
        kind: TableKind::Gpt,
        sector_bytes,
        id: Uuid::from_bytes_le(header.disk_guid).to_string(),
        partitions: partitions.collect(),
        damage: Vec::new(),
    };
    Ok(Ok((table, header.alternate_lba.get())))
}

fn partition(
    number: u32,
    entry: &Entry,
    usable: &std::ops::RangeInclusive<u64>,
    sector_bytes: u32,
) -> Partition {
    let (first, last) = (entry.starting_lba.get(), entry.ending_lba.get());
    let name: Vec<u16> =
        entry.partition_name.iter().map(|unit| unit.get()).take_while(|&unit| unit != 0).collect();
    let sectors = last.checked_sub(first).map_or(0, |distance| distance.saturating_add(1));
    let is_inside = usable.contains(&first) && usable.contains(&last);
    Partition {
        number,
        bytes: byte_range(first, sectors, sector_bytes),
        kind: PartitionType::Gpt(Uuid::from_bytes_le(entry.partition_type_guid)),
        name: String::from_utf16_lossy(&name),
        uuid: Uuid::from_bytes_le(entry.unique_partition_guid).to_string(),
        is_extended: false,
        problem: (!is_inside).then(|| "it is not inside the part of the disk for partitions".to_owned()),
    }
}
