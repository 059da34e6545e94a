//! An invented log of byte ranges: the second encoding of the engine, for tests only.
//!
//! Sector 0 of the area is the header, the rest is a ring of sectors. A position is a number of sectors that
//! only grows; the LSN of a transaction is its first position. A transaction is a sequence of records, each
//! of whole sectors. Little-endian.
//!
//! | bytes | header | record |
//! |---|---|---|
//! | 0 | magic | magic |
//! | 4 | CRC-32C of the sector with this field 0 | CRC-32C of the record with this field 0 |
//! | 8 | position of the tail | own position |
//! | 16 | 1 if clean | LSN of the transaction |
//! | 24 | | payload bytes; in a commit record the CRC-32C of the payloads |
//! | 28 | | 0: payload follows; 1: commit record |
//! | 32 | | payload |

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ivers_block::{BlockNo, ByteOffset, Device};
use ivers_journal::{
    Costs, JournalError, LiveLog, LogFormat, LogTransaction, LogWritten, Lsn, ObjectId, RecordKind, Replay,
    Result,
};

const MAGIC: u32 = 0x5247_4C31;
const SECTOR: u64 = 512;
const HEADER: usize = 32;
/// Largest payload of a record: a record is at most four sectors.
const PAYLOAD: usize = 4 * SECTOR as usize - HEADER;
/// Bytes of an entry before its contents: tag, two numbers, length.
const ENTRY: u64 = 24;

pub struct RangeLog {
    device: Arc<dyn Device>,
    start: ByteOffset,
    sectors: u64,
    head: u64,
    tail: u64,
    clean: bool,
    needs_recovery: bool,
    /// The transaction without a commit record: its LSN and the CRC of its payloads.
    open: Option<(Lsn, u32)>,
    intents: BTreeMap<ObjectId, (Lsn, Vec<u8>)>,
    blocks: Vec<(BlockNo, Lsn)>,
}

/// One entry of a payload.
#[derive(Clone)]
enum Entry {
    Range(BlockNo, u32, Vec<u8>),
    Revoke(BlockNo),
    Object(ObjectId, RecordKind, Vec<u8>),
}

/// The LSN of a record, its payload or the CRC in a commit record, and its length in sectors.
type Record = (Lsn, std::result::Result<Vec<u8>, u32>, u64);

fn corrupt<T>(what: &str, position: u64) -> Result<T> {
    Err(JournalError::Corrupt { what: what.into(), log_block: position })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Sets the CRC of a header or record.
fn seal(bytes: &mut [u8]) {
    bytes[4..8].fill(0);
    let sum = crc32c::crc32c(bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(bytes: &[u8]) -> bool {
    let mut copy = bytes.to_vec();
    seal(&mut copy);
    u32_at(bytes, 0) == MAGIC && copy == bytes
}

impl RangeLog {
    /// Writes an empty log of `sectors` sectors, the header included.
    pub fn format(device: &dyn Device, start: ByteOffset) {
        let mut header = vec![0; SECTOR as usize];
        header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&1u64.to_le_bytes());
        header[16] = 1;
        seal(&mut header);
        device.write_at(start, &header).unwrap();
    }

    pub fn open(device: Arc<dyn Device>, start: ByteOffset, sectors: u64) -> Result<Self> {
        let mut header = vec![0; SECTOR as usize];
        device.read_at(start, &mut header)?;
        if !is_sealed(&header) {
            return corrupt("the header is invalid", 0);
        }
        let (tail, clean) = (u64_at(&header, 8), header[16] == 1);
        let (intents, blocks) = (BTreeMap::new(), Vec::new());
        let (head, sectors) = (tail, sectors - 1);
        Ok(Self {
            device,
            start,
            sectors,
            head,
            tail,
            clean,
            needs_recovery: !clean,
            open: None,
            intents,
            blocks,
        })
    }

    fn write_header(&mut self, tail: u64, clean: bool) -> Result<()> {
        let mut header = vec![0; SECTOR as usize];
        header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&tail.to_le_bytes());
        header[16] = u8::from(clean);
        seal(&mut header);
        self.device.write_fua(self.start, &header)?;
        (self.tail, self.clean) = (tail, clean);
        Ok(())
    }

    fn offset(&self, position: u64) -> ByteOffset {
        self.start + (1 + position % self.sectors) * SECTOR
    }

    /// Writes a record at the head, one sector at a time where the ring wraps.
    fn write_record(&mut self, lsn: Lsn, field: u32, is_commit: bool, payload: &[u8]) -> Result<()> {
        let mut record = vec![0; HEADER];
        record[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        record[8..16].copy_from_slice(&self.head.to_le_bytes());
        record[16..24].copy_from_slice(&lsn.to_le_bytes());
        record[24..28].copy_from_slice(&field.to_le_bytes());
        record[28] = u8::from(is_commit);
        record.extend_from_slice(payload);
        record.resize(record.len().next_multiple_of(SECTOR as usize), 0);
        seal(&mut record);
        for sector in record.chunks(SECTOR as usize) {
            let offset = self.offset(self.head);
            if is_commit {
                self.device.write_fua(offset, sector)?;
            } else {
                self.device.write_at(offset, sector)?;
            }
            self.head += 1;
        }
        Ok(())
    }

    /// Reads the record at `position`. `None` if there is no valid one.
    fn read_record(&self, position: u64) -> Result<Option<Record>> {
        let mut record = vec![0; SECTOR as usize];
        self.device.read_at(self.offset(position), &mut record)?;
        if u32_at(&record, 0) != MAGIC || u64_at(&record, 8) != position {
            return Ok(None);
        }
        let (lsn, field, is_commit) = (u64_at(&record, 16), u32_at(&record, 24), record[28] == 1);
        let payload = if is_commit { 0 } else { field as usize };
        if payload > PAYLOAD {
            return Ok(None);
        }
        let sectors = (HEADER + payload).div_ceil(SECTOR as usize) as u64;
        for n in 1..sectors {
            let mut sector = vec![0; SECTOR as usize];
            self.device.read_at(self.offset(position + n), &mut sector)?;
            record.append(&mut sector);
        }
        if !is_sealed(&record) {
            return Ok(None);
        }
        let contents = if is_commit { Err(field) } else { Ok(record[HEADER..HEADER + payload].to_vec()) };
        Ok(Some((lsn, contents, sectors)))
    }

    /// Replays every whole transaction after the tail, then reports the intents that are not done. The log
    /// continues after them: an unfinished intent stays where it is.
    pub fn recover(&mut self, replay: &mut dyn Replay) -> Result<u64> {
        if !self.needs_recovery {
            return Ok(0);
        }
        let mut transactions: Vec<(Lsn, Vec<Entry>)> = Vec::new();
        let (mut position, mut payload) = (self.tail, Vec::new());
        while let Some((lsn, contents, sectors)) = self.read_record(position)? {
            if lsn != self.head || position + sectors > self.tail + self.sectors {
                break;
            }
            position += sectors;
            match contents {
                Ok(mut bytes) => payload.append(&mut bytes),
                Err(sum) if sum == crc32c::crc32c(&payload) => {
                    transactions.push((lsn, parse(&payload, lsn)?));
                    payload.clear();
                    self.head = position;
                }
                Err(_) => break,
            }
        }
        let mut revoked = HashMap::new();
        for (lsn, entries) in &transactions {
            for entry in entries {
                if let Entry::Revoke(block) = entry {
                    revoked.insert(*block, *lsn);
                }
            }
        }
        let is_live = |block: BlockNo, lsn: Lsn| revoked.get(&block).is_none_or(|&revoke| revoke < lsn);
        for (lsn, entries) in &transactions {
            for entry in entries {
                match entry {
                    Entry::Revoke(_) => {}
                    Entry::Range(block, offset, bytes) => {
                        self.blocks.push((*block, *lsn));
                        if is_live(*block, *lsn) {
                            replay.buffer(*lsn, *block, *offset, bytes)?;
                        }
                    }
                    Entry::Object(id, RecordKind::Placed(unit), bytes) => {
                        self.blocks.push((unit.first(), *lsn));
                        if is_live(unit.first(), *lsn) {
                            replay.object(*lsn, *id, bytes)?;
                        }
                    }
                    Entry::Object(id, RecordKind::Intent, bytes) => {
                        self.intents.insert(*id, (*lsn, bytes.clone()));
                    }
                    Entry::Object(id, RecordKind::Done, _) => {
                        self.intents.remove(id);
                    }
                }
            }
        }
        replay.finish()?;
        for (&id, (lsn, bytes)) in &self.intents {
            replay.intent(*lsn, id, bytes)?;
        }
        self.needs_recovery = false;
        let oldest = self.intents.values().map(|(lsn, _)| *lsn).min();
        self.write_header(oldest.unwrap_or(self.head), oldest.is_none())?;
        self.blocks.retain(|(_, lsn)| *lsn >= self.tail);
        Ok(transactions.len() as u64)
    }
}

fn entry(payload: &mut Vec<u8>, tag: u32, numbers: (u64, u64), bytes: &[u8]) {
    payload.extend_from_slice(&tag.to_le_bytes());
    payload.extend_from_slice(&numbers.0.to_le_bytes());
    payload.extend_from_slice(&numbers.1.to_le_bytes());
    payload.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    payload.extend_from_slice(bytes);
}

/// Serialises a transaction. The block of an object with a place follows its record.
fn payload(transaction: &LogTransaction) -> Vec<u8> {
    let mut payload = Vec::new();
    for item in &transaction.items {
        for range in &item.ranges {
            let bytes = &item.data[range.start as usize..range.end as usize];
            entry(&mut payload, 1, (item.unit.first().0, u64::from(range.start)), bytes);
        }
    }
    for unit in &transaction.revokes {
        entry(&mut payload, 2, (unit.first().0, 0), &[]);
    }
    for object in &transaction.objects {
        let mut bytes = object.bytes.to_vec();
        let tag = match &object.kind {
            RecordKind::Placed(unit) => {
                bytes.extend_from_slice(&unit.first().0.to_le_bytes());
                3
            }
            RecordKind::Intent => 4,
            RecordKind::Done => 5,
        };
        entry(&mut payload, tag, (u64::from(object.id.kind), object.id.number), &bytes);
    }
    payload
}

fn parse(mut payload: &[u8], lsn: Lsn) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    while !payload.is_empty() {
        if payload.len() < ENTRY as usize || payload.len() - (ENTRY as usize) < u32_at(payload, 20) as usize {
            return corrupt("an entry is too long", lsn);
        }
        let (tag, first, second) = (u32_at(payload, 0), u64_at(payload, 4), u64_at(payload, 12));
        let (bytes, rest) = payload[ENTRY as usize..].split_at(u32_at(payload, 20) as usize);
        let id = ObjectId { kind: first as u32, number: second };
        entries.push(match tag {
            1 => Entry::Range(BlockNo(first), second as u32, bytes.to_vec()),
            2 => Entry::Revoke(BlockNo(first)),
            3 if bytes.len() >= 8 => {
                let (record, place) = bytes.split_at(bytes.len() - 8);
                Entry::Object(id, RecordKind::Placed(BlockNo(u64_at(place, 0)).into()), record.to_vec())
            }
            4 => Entry::Object(id, RecordKind::Intent, bytes.to_vec()),
            5 => Entry::Object(id, RecordKind::Done, bytes.to_vec()),
            _ => return corrupt("an entry has no known tag", lsn),
        });
        payload = rest;
    }
    Ok(entries)
}

impl LogFormat for RangeLog {
    fn name(&self) -> &'static str {
        "ranges"
    }

    fn needs_recovery(&self) -> bool {
        self.needs_recovery
    }

    fn costs(&self) -> Costs {
        Costs { buffer: 1, range: ENTRY, byte: 1, object: Some(ENTRY + 8), revoke: ENTRY }
    }

    fn capacity(&self) -> u64 {
        self.sectors * SECTOR
    }

    fn free(&self) -> u64 {
        (self.sectors - (self.head - self.tail)) * SECTOR
    }

    fn space_for(&self, transaction: &LogTransaction) -> u64 {
        self.space_for_charge(payload(transaction).len() as u64)
    }

    fn space_for_charge(&self, charge: u64) -> u64 {
        charge.div_ceil(PAYLOAD as u64) * (PAYLOAD + HEADER) as u64 + SECTOR
    }

    fn used_from(&self, lsn: Lsn) -> u64 {
        (self.head - lsn) * SECTOR
    }

    fn live(&self) -> LiveLog {
        let intents = self.intents.iter().map(|(&id, (lsn, _))| (id, *lsn)).collect();
        LiveLog { intents, units: self.blocks.iter().map(|(block, lsn)| ((*block).into(), *lsn)).collect() }
    }

    fn write_items(&mut self, transaction: &LogTransaction) -> Result<LogWritten> {
        let lsn = self.head;
        if self.clean {
            self.write_header(self.tail, false)?;
        }
        let payload = payload(transaction);
        for part in payload.chunks(PAYLOAD) {
            self.write_record(lsn, part.len() as u32, false, part)?;
        }
        assert!(self.head < self.tail + self.sectors, "the head overwrites the tail");
        self.open = Some((lsn, crc32c::crc32c(&payload)));
        Ok(LogWritten { lsn, blocks: self.head - lsn, bytes: (self.head - lsn) * SECTOR })
    }

    fn write_commit(&mut self) -> Result<LogWritten> {
        let (lsn, sum) = self.open.take().expect("write_items comes first");
        self.write_record(lsn, sum, true, &[])?;
        Ok(LogWritten { lsn, blocks: 1, bytes: SECTOR })
    }

    fn move_tail(&mut self, tail: Option<Lsn>) -> Result<()> {
        let tail = tail.unwrap_or(self.head);
        assert!(self.tail <= tail && tail <= self.head, "the tail moves out of the log");
        if tail != self.tail { self.write_header(tail, self.clean) } else { Ok(()) }
    }

    fn mark_clean(&mut self) -> Result<()> {
        self.write_header(self.head, true)
    }
}
