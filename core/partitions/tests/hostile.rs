//! Tables made here, whole and damaged: what is read, and that any bytes are survived.

use std::ops::Range;

use crc::{CRC_32_ISO_HDLC, Crc};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_partitions::{Error, PARTITIONS_MAX, PartitionType, Table, TableKind, read};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MIB: u64 = 1 << 20;
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const ENTRIES: u32 = 128;

fn put(device: &MemDevice, at: u64, bytes: &[u8]) {
    device.write_at(ByteOffset(at), bytes).unwrap();
}

fn get(device: &MemDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(ByteOffset(at), &mut bytes).unwrap();
    bytes
}

/// Writes an entry of a boot record at `at`.
fn mbr_entry(device: &MemDevice, at: u64, nth: u64, kind: u8, first: u32, sectors: u32) {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&first.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    put(device, at + 446 + nth * 16, &entry);
    put(device, at + 510, &[0x55, 0xAA]);
}

/// A disk of 8 MiB with partition 1, and logical partitions 5 and 6 in partition 2.
fn mbr(sector: u32) -> MemDevice {
    let device = MemDevice::new(8 * MIB);
    let per_mib = (MIB / u64::from(sector)) as u32;
    let byte = |sectors: u32| u64::from(sectors) * u64::from(sector);
    put(&device, 440, &0x1234_ABCDu32.to_le_bytes());
    mbr_entry(&device, 0, 0, 0x83, per_mib, per_mib);
    mbr_entry(&device, 0, 1, 0x05, 2 * per_mib, 6 * per_mib);
    mbr_entry(&device, byte(2 * per_mib), 0, 0x83, 8, per_mib);
    mbr_entry(&device, byte(2 * per_mib), 1, 0x05, 2 * per_mib, 2 * per_mib);
    mbr_entry(&device, byte(4 * per_mib), 0, 0x0B, 8, per_mib);
    device
}

/// Makes the checksums of the GPT whose header is at `header` right.
fn seal(device: &MemDevice, header: u64, sector: u32) {
    let number = |at: u64| u64::from_le_bytes(get(device, header + at, 8).try_into().unwrap());
    let array = number(72).wrapping_mul(u64::from(sector));
    let (count, size) = (number(80) as u32, number(84) as u32);
    let bytes = u64::from(count) * u64::from(size);
    if bytes <= MIB && array.checked_add(bytes).is_some_and(|end| end <= device.size_bytes()) {
        let sum = CRC.checksum(&get(device, array, bytes as usize));
        put(device, header + 88, &sum.to_le_bytes());
    }
    put(device, header + 16, &[0; 4]);
    let sum = CRC.checksum(&get(device, header, 92));
    put(device, header + 16, &sum.to_le_bytes());
}

/// A disk of 8 MiB with partition 1 (`boot`) and partition 3 (`root`), and a backup of the table.
fn gpt(sector: u32) -> MemDevice {
    let device = MemDevice::new(8 * MIB);
    let last = 8 * MIB / u64::from(sector) - 1;
    let array_sectors = u64::from(ENTRIES * 128 / sector);
    mbr_entry(&device, 0, 0, 0xEE, 1, last as u32);
    for (lba, other, array) in [(1, last, 2), (last, 1, last - array_sectors)] {
        let header = lba * u64::from(sector);
        put(&device, header, b"EFI PART\0\0\x01\0\x5c\0\0\0");
        let first_usable = 2 + array_sectors;
        let numbers = [lba, other, first_usable, last - array_sectors - 1];
        for (nth, number) in (0..).zip(numbers) {
            put(&device, header + 24 + nth * 8, &number.to_le_bytes());
        }
        put(&device, header + 56, &[7; 16]);
        put(&device, header + 72, &array.to_le_bytes());
        put(&device, header + 80, &ENTRIES.to_le_bytes());
        put(&device, header + 84, &128u32.to_le_bytes());
        let per_mib = MIB / u64::from(sector);
        for (nth, name, first, end) in [(0, "boot", 1, 2), (2, "root", 2, 7)] {
            let entry = array * u64::from(sector) + nth * 128;
            let linux = uuid::uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4");
            put(&device, entry, &linux.to_bytes_le());
            put(&device, entry + 16, &[nth as u8 + 1; 16]);
            put(&device, entry + 32, &(first * per_mib).to_le_bytes());
            put(&device, entry + 40, &(end * per_mib - 1).to_le_bytes());
            let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
            put(&device, entry + 56, &units);
        }
        seal(&device, header, sector);
    }
    device
}

fn table(device: &MemDevice, sector: u32) -> Table {
    read(device, sector).unwrap().expect("a table")
}

fn summary(table: &Table) -> Vec<(u32, Range<u64>, bool)> {
    let of = |one: &ivers_partitions::Partition| (one.number, one.bytes.clone(), one.problem.is_none());
    table.partitions.iter().map(of).collect()
}

#[test]
fn primary_and_logical_partitions_are_read() {
    for sector in [512, 4096] {
        let table = table(&mbr(sector), sector);
        let record = 8 * u64::from(sector);
        let expected = [
            (1, MIB..2 * MIB, true),
            (2, 2 * MIB..8 * MIB, true),
            (5, 2 * MIB + record..3 * MIB + record, true),
            (6, 4 * MIB + record..5 * MIB + record, true),
        ];
        assert_eq!(summary(&table), expected);
        assert_eq!((table.kind, &*table.id, table.damage.len()), (TableKind::Mbr, "1234abcd", 0));
        assert!(table.partitions[1].is_extended && !table.partitions[2].is_extended);
        assert_eq!(table.partitions[3].uuid, "1234abcd-06");
        assert_eq!(table.partitions[3].kind.name(), Some("FAT32"));
        assert_eq!(table.partitions.len(), 4);
    }
}

#[test]
fn a_gpt_is_read_with_names() {
    for sector in [512, 4096] {
        let device = gpt(sector);
        // An MBR sector size does not matter here.
        let table = table(&device, 512);
        assert_eq!(summary(&table), [(1, MIB..2 * MIB, true), (3, 2 * MIB..7 * MIB, true)]);
        assert_eq!((table.kind, table.sector_bytes, table.damage.len()), (TableKind::Gpt, sector, 0));
        assert_eq!(table.partitions[1].name, "root");
        assert_eq!(table.partitions[1].uuid, "03030303-0303-0303-0303-030303030303");
        assert_eq!(table.partitions[0].kind.name(), Some("Linux filesystem"));
        assert!(matches!(table.partitions[0].kind, PartitionType::Gpt(_)));
    }
}

#[test]
fn the_backup_replaces_a_damaged_primary() {
    for sector in [512, 4096] {
        let header = u64::from(sector);
        let whole = summary(&table(&gpt(sector), 512));
        // The header, its checksum, an entry.
        for (at, what) in [(header + 24, "checksum"), (header, "no header"), (2 * header + 40, "entries")] {
            let device = gpt(sector);
            put(&device, at, &[0xA5]);
            let table = table(&device, 512);
            assert_eq!(summary(&table), whole, "byte {at}");
            assert!(table.damage[0].contains(what) && table.damage[0].contains("backup was used"));
        }
        let device = gpt(sector);
        put(&device, 8 * MIB - header, &[0]);
        assert!(table(&device, 512).damage[0].contains("the backup of the table is damaged"));
        put(&device, header, &[0]);
        assert!(matches!(read(&device, 512), Err(Error::Damaged { .. })));
        // Without an MBR that points to it, there is no table.
        put(&device, 510, &[0, 0]);
        assert_eq!(read(&device, 512).unwrap(), None);
    }
}

#[test]
fn an_mbr_that_protects_nothing_precedes_the_rest_of_a_gpt() {
    let device = gpt(512);
    mbr_entry(&device, 0, 0, 0x83, 2048, 2048);
    assert_eq!(table(&device, 512).kind, TableKind::Mbr);
    // A hybrid MBR.
    mbr_entry(&device, 0, 1, 0xEE, 1, 2047);
    assert_eq!(table(&device, 512).kind, TableKind::Gpt);
}

#[test]
fn unusable_partitions_are_listed_with_the_reason() {
    let device = MemDevice::new(8 * MIB);
    mbr_entry(&device, 0, 0, 0x83, 2048, 4096);
    mbr_entry(&device, 0, 1, 0x83, 4096, 2048);
    mbr_entry(&device, 0, 2, 0x83, 8192, u32::MAX);
    mbr_entry(&device, 0, 3, 0x83, u32::MAX, u32::MAX);
    let table = table(&device, 512);
    let problems: Vec<_> = table.partitions.iter().map(|one| one.problem.clone().unwrap()).collect();
    assert_eq!(problems[0], "it overlaps partition 2");
    assert_eq!(problems[1], "it overlaps partition 1");
    assert!(problems[2].contains("and the image at byte 8388608"), "{problems:?}");
    assert!(problems[3].contains("and the image at byte"), "{problems:?}");
}

#[test]
fn a_chain_with_a_cycle_ends() {
    let device = mbr(512);
    let second = 4 * MIB;
    // Back to the first record, to itself, out of the extended partition, to no record.
    for (first, what) in [(0, "returns"), (4096, "returns"), (1 << 20, "leaves"), (6000, "no boot record")] {
        mbr_entry(&device, second, 1, 0x05, first, 100);
        let table = table(&device, 512);
        assert_eq!(table.partitions.len(), 4, "what comes before the damage stays");
        assert!(table.damage[0].contains(what), "{:?}", table.damage);
    }
    // A long chain without a cycle.
    let device = MemDevice::new(8 * MIB);
    mbr_entry(&device, 0, 0, 0x05, 1, 16000);
    for at in 1..8000u32 {
        mbr_entry(&device, u64::from(at) * 512, 0, 0x83, 1, 1);
        mbr_entry(&device, u64::from(at) * 512, 1, 0x05, at, 1);
    }
    let table = table(&device, 512);
    assert!(table.partitions.len() < 200 && table.damage[0].contains("too long"));
}

#[test]
fn numbers_of_a_header_are_bounded() {
    // (offset, value, bytes): count, size of an entry, place of the entries, size of the header.
    let changes: [(u64, u64, usize); 7] = [
        (80, u64::from(u32::MAX), 4),
        (84, 0, 4),
        (84, u64::from(u32::MAX), 4),
        (84, 129, 4),
        (72, u64::MAX, 8),
        (12, 0, 4),
        (12, u64::from(u32::MAX), 4),
    ];
    for (at, value, len) in changes {
        let device = gpt(512);
        for header in [512, 8 * MIB - 512] {
            put(&device, header + at, &value.to_le_bytes()[..len]);
            seal(&device, header, 512);
        }
        assert!(matches!(read(&device, 512), Err(Error::Damaged { .. })), "{at}: {value}");
    }
}

/// Whatever the bytes, the invariants of a table hold.
fn check(device: &MemDevice, sector: u32) {
    let Ok(Some(table)) = read(device, sector) else { return };
    assert!(table.partitions.len() <= PARTITIONS_MAX);
    let usable = table.partitions.iter().filter(|one| one.problem.is_none() && !one.is_extended);
    let mut ranges: Vec<_> = usable.map(|one| one.bytes.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    for range in &ranges {
        assert!(range.start < range.end && range.end <= device.size_bytes(), "{range:?}");
    }
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "{ranges:?}");
}

#[test]
fn any_bytes_are_survived() {
    let seed = 20_261_125;
    let mut random = StdRng::seed_from_u64(seed);
    let values = [0u64, 1, 5, 0x0F, 0xEE, 0x7FFF_FFFF, u64::from(u32::MAX), 1 << 63, u64::MAX];
    for round in 0..4000 {
        let sector = [512, 4096][round % 2];
        let device = if round % 4 < 2 { gpt(sector) } else { mbr(sector) };
        for _ in 0..random.random_range(1..6) {
            // Entries, headers, arrays and boot records start at sectors.
            let sectors = [0, 1, 2, 3, 8 * MIB / u64::from(sector) - 1, 2 * MIB / u64::from(sector)];
            let base = sectors[random.random_range(0..sectors.len())] * u64::from(sector);
            let at = base + random.random_range(0..504);
            let value = match random.random_range(0..3) {
                0 => random.random::<u64>(),
                _ => values[random.random_range(0..values.len())],
            };
            put(&device, at, &value.to_le_bytes()[..[1, 2, 4, 8][random.random_range(0..4)]]);
        }
        if round % 3 != 0 && round % 4 < 2 {
            seal(&device, u64::from(sector), sector);
            seal(&device, 8 * MIB - u64::from(sector), sector);
        }
        check(&device, sector);
        check(&device, 512);
    }
    for len in [0, 1, 511, 512, 513, 1024, 4096, 8192] {
        let device = MemDevice::new(len);
        let bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
        put(&device, 0, &bytes);
        if len >= 512 {
            put(&device, 510, &[0x55, 0xAA]);
        }
        check(&device, 512);
    }
}
