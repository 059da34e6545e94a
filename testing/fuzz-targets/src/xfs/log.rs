//! The records of an XFS log, and their checksums.

use super::place::{SECTOR, be32};
use ivers_block::{ByteOffset, Device};
use ivers_xfs::layout::checksum::checksum;
use std::ops::Range;

const MAGIC: &[u8] = &[0xFE, 0xED, 0xBA, 0xBE];
/// Sectors whose first words fit in one header.
const WORDS: usize = 64;
/// Bytes of the fields of the first header, and of a further one.
const HEAD_BYTES: usize = 328;
const FURTHER_BYTES: usize = 4 + WORDS * 4;
/// Offsets in the first header.
const H_LEN: usize = 12;
const H_LSN: usize = 16;
const H_TAIL_LSN: usize = 24;
const H_CRC: usize = 32;
const H_PREV_BLOCK: usize = 36;
const H_NUM_LOGOPS: usize = 40;
const H_CYCLE_DATA: usize = 44;
const H_SIZE: usize = 320;
/// Bytes of the head of an operation.
const OPERATION_BYTES: usize = 12;
const OH_LEN: usize = 4;

/// A record.
pub(super) struct Record {
    /// The offset of its first sector in the image.
    pub at: usize,
    /// The positions of its operations.
    pub operations: Vec<Range<usize>>,
}

/// Bytes of the headers and of the data of a record.
struct Shape {
    headers: usize,
    data: usize,
}

impl Shape {
    /// `None` if it is longer than `room`.
    fn of(head: &[u8], room: u64) -> Option<Self> {
        let headers = u64::from(be32(head, H_SIZE)).div_ceil((WORDS * SECTOR) as u64).max(1) * SECTOR as u64;
        let data = u64::from(be32(head, H_LEN));
        (headers + data <= room).then_some(Self { headers: headers as usize, data: data as usize })
    }
}

/// The place in the headers for the first word of a sector of data, which itself holds the cycle.
fn word_place(sector: usize) -> usize {
    match sector / WORDS {
        0 => H_CYCLE_DATA + sector * 4,
        header => header * SECTOR + 4 + sector % WORDS * 4,
    }
}

fn record_checksum(record: &[u8], shape: &Shape) -> u32 {
    let (heads, data) = record.split_at(shape.headers);
    let mut summed = heads[..HEAD_BYTES].to_vec();
    heads.chunks(SECTOR).skip(1).for_each(|head| summed.extend_from_slice(&head[..FURTHER_BYTES]));
    summed.extend_from_slice(&data[..shape.data]);
    checksum(&summed, H_CRC)
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Returns the valid records, but for those that go on at the start of the log.
fn valid(image: &[u8], log: &Range<usize>) -> Vec<(usize, Shape)> {
    let heads = log.clone().step_by(SECTOR).filter(|at| image[*at..].starts_with(MAGIC));
    heads
        .filter_map(|at| {
            let shape = Shape::of(&image[at..], (log.end - at) as u64)?;
            let stored = image[at + H_CRC..][..4] == record_checksum(&image[at..], &shape).to_le_bytes();
            stored.then_some((at, shape))
        })
        .collect()
}

/// Returns the records that are replayed.
pub(super) fn records(image: &[u8], log: &Range<usize>) -> Vec<Record> {
    let whole = valid(image, log);
    let newest = whole.iter().max_by_key(|(at, _)| be64(&image[*at..], H_LSN));
    let tail = newest.map_or(0, |(at, _)| be64(&image[*at..], H_TAIL_LSN));
    let replayed = whole.iter().filter(|(at, _)| be64(&image[*at..], H_LSN) >= tail);
    replayed.map(|(at, shape)| Record { at: *at, operations: operations(image, *at, shape) }).collect()
}

fn operations(image: &[u8], at: usize, shape: &Shape) -> Vec<Range<usize>> {
    let record = &image[at..][..shape.headers + shape.data];
    let mut data = record[shape.headers..].to_vec();
    for (index, sector) in data.chunks_mut(SECTOR).enumerate() {
        sector[..4].copy_from_slice(&record[word_place(index)..][..4]);
    }
    let mut start = 0;
    let count = be32(record, H_NUM_LOGOPS);
    (0..count)
        .map(|_| {
            let end = start + OPERATION_BYTES + be32(&data, start + OH_LEN) as usize;
            let operation = at + shape.headers + start..at + shape.headers + end;
            start = end;
            operation
        })
        .collect()
}

fn operation(flags: u8, data: &[u8]) -> Vec<u8> {
    const TID: u32 = 0x0BAD_CAFE;
    const TRANSACTION: u8 = 0x69;
    let len = data.len() as u32;
    [&TID.to_be_bytes()[..], &len.to_be_bytes(), &[TRANSACTION, flags, 0, 0], data].concat()
}

/// Appends a record with one transaction of these items, each of one region. Returns where it is.
pub(super) fn append(image: &mut [u8], log: &Range<usize>, items: &[Vec<u8>]) -> usize {
    const START: u8 = 1;
    const COMMIT: u8 = 2;
    let all = valid(image, log);
    let (newest, shape) = all.iter().max_by_key(|(at, _)| be64(&image[*at..], H_LSN)).expect("a log in use");
    let at = newest + (shape.headers + shape.data).next_multiple_of(SECTOR);
    let sector = |at: usize| ((at - log.start) / SECTOR) as u32;
    // The header of a transaction: its magic, type, number, and how many items it has.
    let header = [*b"NART", [1, 0, 0, 0], [0; 4], (items.len() as u32).to_le_bytes()].concat();
    let mut operations = vec![operation(START, &[]), operation(0, &header)];
    operations.extend(items.iter().map(|item| operation(0, item)));
    operations.push(operation(COMMIT, &[]));
    let mut data = operations.concat();
    data.resize(data.len().next_multiple_of(SECTOR), 0);
    let mut head = image[*newest..][..shape.headers].to_vec();
    let cycle: [u8; 4] = head[H_LSN..][..4].try_into().expect("four bytes");
    for (field, value) in [
        (H_LEN, data.len() as u32),
        (H_LSN + 4, sector(at)),
        (H_PREV_BLOCK, sector(*newest)),
        (H_NUM_LOGOPS, operations.len() as u32),
    ] {
        head[field..field + 4].copy_from_slice(&value.to_be_bytes());
    }
    for (index, sector) in data.chunks_mut(SECTOR).enumerate() {
        head[word_place(index)..][..4].copy_from_slice(&sector[..4]);
        sector[..4].copy_from_slice(&cycle);
    }
    let shape = Shape { headers: head.len(), data: data.len() };
    let mut record = [head, data].concat();
    let sum = record_checksum(&record, &shape).to_le_bytes();
    record[H_CRC..H_CRC + 4].copy_from_slice(&sum);
    image[at..at + record.len()].copy_from_slice(&record);
    at
}

/// Corrects a damaged record at `at`: what overwrote a cycle moves to the headers, where the first words of
/// the sectors are, and the checksum is set.
pub(super) fn seal(undamaged: &dyn Device, device: &dyn Device, at: u64) {
    let read = |device: &dyn Device, len: usize| {
        let mut bytes = vec![0; len];
        device.read_at(ByteOffset(at), &mut bytes).expect("places lie in the image");
        bytes
    };
    let room = device.size_bytes() - at;
    let old = read(undamaged, SECTOR);
    let shape = Shape::of(&old, room).expect("a base's records are sound");
    let len = (shape.headers + shape.data).next_multiple_of(SECTOR);
    let (old, mut new) = (read(undamaged, len), read(device, len));
    let (heads, data) = new.split_at_mut(shape.headers);
    let old_data = &old[shape.headers..];
    for (index, (sector, old)) in data.chunks_mut(SECTOR).zip(old_data.chunks(SECTOR)).enumerate() {
        if sector[..4] != old[..4] {
            heads[word_place(index)..][..4].copy_from_slice(&sector[..4]);
            sector[..4].copy_from_slice(&old[..4]);
        }
    }
    device.write_at(ByteOffset(at), &new).expect("places lie in the image");
    // The damaged header may tell another length. A record is never longer than this.
    let Some(shape) = Shape::of(&new, room.min(512 << 10)) else { return };
    let record = read(device, shape.headers + shape.data);
    let sum = record_checksum(&record, &shape).to_le_bytes();
    device.write_at(ByteOffset(at + H_CRC as u64), &sum).expect("places lie in the image");
}
