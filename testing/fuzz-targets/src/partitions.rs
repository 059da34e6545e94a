//! Partition tables. The input is sectors of a disk: its size, then patches of whole disks, with or without
//! corrected checksums.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | flags: bit 0 a GPT, bit 1 sectors of 4096 bytes, bit 2 keep wrong checksums |
//! | then, each patch | sector (2 bytes, modulo the disk), offset in it (2), length (1), the bytes |

use crate::input::Input;
use crc::{CRC_32_ISO_HDLC, Crc};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_partitions::{PARTITIONS_MAX, read};

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const DISK_BYTES: u64 = 8 << 20;
/// Most bytes of entries of which the checksum is corrected.
const ARRAY_BYTES_MAX: u64 = 1 << 20;

fn put(device: &MemDevice, at: u64, bytes: &[u8]) {
    if at.checked_add(bytes.len() as u64).is_some_and(|end| end <= DISK_BYTES) {
        device.write_at(ByteOffset(at), bytes).expect("it lies inside the device");
    }
}

fn get(device: &MemDevice, at: u64, len: u64) -> Option<Vec<u8>> {
    let end = at.checked_add(len)?;
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| end <= DISK_BYTES)?];
    device.read_at(ByteOffset(at), &mut bytes).ok()?;
    Some(bytes)
}

/// Makes the checksums of the header at `header` right, if what it names lies inside the disk.
fn seal(device: &MemDevice, header: u64, sector: u64) -> Option<()> {
    let bytes = get(device, header, 92)?;
    let number =
        |at: usize, len: usize| bytes[at..at + len].iter().rev().fold(0, |v, &b| v << 8 | u64::from(b));
    let array_bytes = number(80, 4).checked_mul(number(84, 4)).filter(|&bytes| bytes <= ARRAY_BYTES_MAX);
    if let Some(array) = array_bytes.and_then(|len| get(device, number(72, 8).checked_mul(sector)?, len)) {
        put(device, header + 88, &CRC.checksum(&array).to_le_bytes());
    }
    put(device, header + 16, &[0; 4]);
    let header_bytes = get(device, header, number(12, 4).min(sector))?;
    put(device, header + 16, &CRC.checksum(&header_bytes).to_le_bytes());
    Some(())
}

/// A disk with a GPT of one partition, or an MBR with a logical partition.
fn disk(is_gpt: bool, sector: u64) -> MemDevice {
    let device = MemDevice::new(DISK_BYTES);
    let last = DISK_BYTES / sector - 1;
    let entry = |at: u64, kind: u8, first: u64, sectors: u64| {
        let numbers = [(first as u32).to_le_bytes(), (sectors as u32).to_le_bytes()].concat();
        put(&device, at + 4, &[kind]);
        put(&device, at + 8, &numbers);
    };
    put(&device, 510, &[0x55, 0xAA]);
    if is_gpt {
        entry(446, 0xEE, 1, last);
        for (lba, other, array) in [(1, last, 2), (last, 1, last - 1)] {
            let numbers: Vec<u8> =
                [lba, other, 3, last - 2].iter().flat_map(|number: &u64| number.to_le_bytes()).collect();
            put(&device, lba * sector, b"EFI PART\0\0\x01\0\x5c\0\0\0");
            put(&device, lba * sector + 24, &numbers);
            put(&device, lba * sector + 72, &array.to_le_bytes());
            put(&device, lba * sector + 80, &[4, 0, 0, 0, 128, 0, 0, 0]);
            put(&device, array * sector, &[7; 32]);
            put(
                &device,
                array * sector + 32,
                &[[64, 0, 0, 0, 0, 0, 0, 0], [128, 0, 0, 0, 0, 0, 0, 0]].concat(),
            );
            seal(&device, lba * sector, sector);
        }
    } else {
        entry(446, 0x83, 8, 8);
        entry(462, 0x05, 16, 1024);
        for (record, next) in [(16, 64), (80, 0)] {
            let at = record * sector;
            put(&device, at + 510, &[0x55, 0xAA]);
            entry(at + 446, 0x83, 8, 16);
            if next > 0 {
                entry(at + 462, 0x05, next, 32);
            }
        }
    }
    device
}

/// Reads the table of a patched disk, and checks what the reader promises.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let flags = rest.byte();
    let sector = if flags & 2 == 0 { 512 } else { 4096 };
    let device = disk(flags & 1 != 0, sector);
    while !rest.is_empty() {
        let at = u64::from(rest.word()) % (DISK_BYTES / sector) * sector + u64::from(rest.word()) % sector;
        let len = usize::from(rest.byte());
        put(&device, at, rest.bytes(len));
    }
    if flags & 4 == 0 {
        for header in [sector, DISK_BYTES - sector] {
            seal(&device, header, sector);
        }
    }
    for mbr_sector in [512, 4096] {
        let Ok(Some(table)) = read(&device, mbr_sector) else { continue };
        assert!(table.partitions.len() <= PARTITIONS_MAX);
        let usable = table.partitions.iter().filter(|one| one.problem.is_none() && !one.is_extended);
        let mut ranges: Vec<_> = usable.map(|one| one.bytes.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.iter().all(|range| range.start < range.end && range.end <= DISK_BYTES));
        assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "partitions overlap");
        for one in &table.partitions {
            one.kind.name();
        }
    }
}

/// Returns the fuzz inputs of [`run`]: each kind of disk unchanged, and with a patch of each structure.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for flags in 0..8u8 {
        inputs.push(vec![flags]);
        for (sector, offset) in [(0u16, 446u16), (0, 462), (1, 72), (1, 80), (2, 32), (16, 446), (16, 462)] {
            let place = [sector.to_le_bytes(), offset.to_le_bytes()].concat();
            inputs.push([&[flags][..], &place, &[8], &[0xFF; 8]].concat());
        }
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_have_tables_and_inputs_run() {
        for (is_gpt, sector, count) in [(true, 512, 1), (true, 4096, 1), (false, 512, 4), (false, 4096, 4)] {
            let table = read(&disk(is_gpt, sector), sector as u32).unwrap().unwrap();
            assert_eq!(table.partitions.len(), count);
            assert!(table.partitions.iter().all(|one| one.problem.is_none()), "{table:?}");
            assert!(table.damage.is_empty(), "{table:?}");
        }
        inputs().iter().for_each(|input| run(input));
    }
}
