//! A small driver over the range log: stamped blocks with cells, clusters with cores, and intents.
//!
//! A block is 1024 bytes: CRC-32C at 0, LSN at 8, cells from 16 on. A cluster has four cores from 512 on.
//! An intent promises to add its number to one cell. The same transaction adds it and logs the done record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ivers_block::{BlockNo, Budget, BufferCache, ByteOffset, Device, MemDevice};
use ivers_journal::{Handle, Journal, JournalOptions, LogObject, Lsn, ObjectId, Patch, Replay, Result, Tid};

use crate::log::RangeLog;

pub const BLOCK: u32 = 1024;
pub const FS_BLOCKS: u64 = 512;
/// The log: 48 KiB from block 100 on.
pub const LOG: ByteOffset = ByteOffset(100 * 1024);
pub const SECTORS: u64 = 96;
pub const CELLS: u64 = 12;
pub const CORES: u64 = 4;
/// Credits that suffice for any handle of these tests.
pub const CREDITS: u32 = 4500;

pub const CORE: u32 = 1;
pub const INTENT: u32 = 2;

/// The bytes of a cell. They do not touch those of the next one.
pub fn cell(number: u64) -> std::ops::Range<usize> {
    let start = 16 + number as usize * 40;
    start..start + 8
}

pub fn core_offset(core: u64) -> usize {
    512 + core as usize * 100
}

/// An inode core with one value.
pub struct Core {
    pub block: u64,
    pub core: u64,
    pub value: AtomicU64,
    /// The newest transaction that is known to be clean.
    pub clean: AtomicU64,
}

impl Core {
    pub fn new(block: u64, core: u64, value: u64) -> Arc<Self> {
        Arc::new(Self { block, core, value: AtomicU64::new(value), clean: AtomicU64::new(0) })
    }

    fn bytes(&self) -> Vec<u8> {
        self.value.load(Ordering::SeqCst).to_le_bytes().repeat(3)
    }
}

impl LogObject for Core {
    fn id(&self) -> ObjectId {
        ObjectId { kind: CORE, number: self.block * CORES + self.core }
    }

    fn record(&self) -> Arc<[u8]> {
        self.bytes().into()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        let offset = core_offset(self.core) as u32;
        Some(Arc::new(Patch::new(BlockNo(self.block), offset, self.bytes())))
    }

    fn clean(&self, tid: Tid) {
        self.clean.fetch_max(tid, Ordering::SeqCst);
    }
}

/// Promises to add `number` to a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intent {
    pub number: u64,
    pub block: u64,
    pub cell: u64,
    pub add: u64,
}

pub fn intent_id(number: u64) -> ObjectId {
    ObjectId { kind: INTENT, number }
}

impl Intent {
    pub fn parse(id: ObjectId, record: &[u8]) -> Self {
        let field = |n: usize| u64::from_le_bytes(record[n * 8..n * 8 + 8].try_into().unwrap());
        Self { number: id.number, block: field(0), cell: field(1), add: field(2) }
    }
}

impl LogObject for Intent {
    fn id(&self) -> ObjectId {
        intent_id(self.number)
    }

    fn record(&self) -> Arc<[u8]> {
        [self.block, self.cell, self.add].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        None
    }

    fn finish_credits(&self) -> u32 {
        700
    }
}

fn stamp(lsn: Lsn, bytes: &mut [u8]) {
    bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[4..]);
    bytes[0..4].copy_from_slice(&sum.to_le_bytes());
}

/// The LSN with which a block was written in place; 0 if it never was. Panics if the CRC is wrong.
pub fn stamped_lsn(device: &dyn Device, block: u64) -> Lsn {
    let bytes = read(device, block);
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let sum = u32::from_le_bytes(bytes[0..4].try_into().unwrap());
    assert_eq!(sum, crc32c::crc32c(&bytes[4..]), "block {block} in place has a wrong CRC");
    u64::from_le_bytes(bytes[8..16].try_into().unwrap())
}

pub fn read(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
    bytes
}

pub fn value(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The cell of a block on the device.
pub fn cell_on(device: &dyn Device, block: u64, number: u64) -> u64 {
    value(&read(device, block), cell(number).start)
}

/// The core of a cluster on the device.
pub fn core_on(device: &dyn Device, block: u64, core: u64) -> u64 {
    value(&read(device, block), core_offset(core))
}

pub fn formatted() -> MemDevice {
    let device = MemDevice::new(FS_BLOCKS * u64::from(BLOCK));
    RangeLog::format(&device, LOG);
    device
}

/// What a recovery did.
#[derive(Default)]
pub struct Recovered {
    pub intents: Vec<Intent>,
    blocks: BTreeMap<u64, (Vec<u8>, Lsn)>,
    device: Option<Arc<dyn Device>>,
    newest: Lsn,
}

impl Recovered {
    fn change(&mut self, lsn: Lsn, block: u64, offset: usize, bytes: &[u8]) {
        assert!(lsn >= self.newest, "records are not replayed in order");
        self.newest = lsn;
        let device = self.device.clone().unwrap();
        let (contents, newest) = self.blocks.entry(block).or_insert_with(|| (read(&*device, block), 0));
        contents[offset..offset + bytes.len()].copy_from_slice(bytes);
        *newest = lsn;
    }
}

impl Replay for Recovered {
    fn buffer(&mut self, lsn: Lsn, block: BlockNo, offset: u32, bytes: &[u8]) -> Result<()> {
        self.change(lsn, block.0, offset as usize, bytes);
        Ok(())
    }

    fn object(&mut self, lsn: Lsn, id: ObjectId, record: &[u8]) -> Result<()> {
        self.change(lsn, id.number / CORES, core_offset(id.number % CORES), record);
        Ok(())
    }

    fn intent(&mut self, _: Lsn, id: ObjectId, record: &[u8]) -> Result<()> {
        self.intents.push(Intent::parse(id, record));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let device = self.device.clone().unwrap();
        for (&block, (bytes, lsn)) in &mut self.blocks {
            stamp(*lsn, bytes);
            device.write_at(BlockNo(block).offset(BLOCK), bytes)?;
        }
        Ok(device.flush()?)
    }
}

/// Replays the log of a device.
pub fn recover(device: &Arc<dyn Device>) -> (RangeLog, Recovered) {
    let mut log = RangeLog::open(device.clone(), LOG, SECTORS).unwrap();
    let mut recovered = Recovered { device: Some(device.clone()), ..Recovered::default() };
    log.recover(&mut recovered).unwrap();
    (log, recovered)
}

pub struct Fs {
    pub device: Arc<dyn Device>,
    pub cache: Arc<BufferCache>,
    pub journal: Journal,
}

impl Fs {
    /// Opens a device whose log is clean.
    pub fn open(device: Arc<dyn Device>) -> Self {
        let log = RangeLog::open(device.clone(), LOG, SECTORS).unwrap();
        Self::with_log(device, log)
    }

    pub fn with_log(device: Arc<dyn Device>, log: RangeLog) -> Self {
        Self::with_options(device, log, JournalOptions::default())
    }

    pub fn with_options(device: Arc<dyn Device>, log: RangeLog, options: JournalOptions) -> Self {
        let cache = Arc::new(BufferCache::new(device.clone(), BLOCK, Arc::new(Budget::new(16 << 10))));
        let mut options = options.with_commit_interval(Duration::from_secs(3600));
        // The tests push themselves, so that a seed gives one record of writes.
        options.checkpoint_percent = 1000;
        let options = options.with_write_hook(|_, lsn, bytes| stamp(lsn, bytes));
        let journal = Journal::open(Box::new(log), cache.clone(), options).unwrap();
        Self { device, cache, journal }
    }

    pub fn set(&self, handle: &Handle, block: u64, number: u64, new: u64) {
        let buffer = self.cache.get(BlockNo(block)).unwrap();
        handle.modify_range(&buffer, cell(number), |bytes| bytes.copy_from_slice(&new.to_le_bytes()));
    }

    /// One handle that sets one cell.
    pub fn set_one(&self, block: u64, number: u64, new: u64) -> Tid {
        let handle = self.journal.begin(CREDITS).unwrap();
        self.set(&handle, block, number, new);
        handle.tid()
    }

    /// One handle that logs an object.
    pub fn log_one(&self, object: Arc<dyn LogObject>) -> Tid {
        let handle = self.journal.begin(CREDITS).unwrap();
        handle.log_object(&object).unwrap();
        handle.tid()
    }

    /// Gives a block a new use, in whole: each cell and each core gets `new`.
    pub fn initialize(&self, handle: &Handle, block: u64, new: u64) {
        let buffer = self.cache.get_zeroed(BlockNo(block)).unwrap();
        handle.modify(&buffer, |bytes| {
            (0..CELLS).for_each(|n| bytes[cell(n)].copy_from_slice(&new.to_le_bytes()));
            for core in 0..CORES {
                let at = core_offset(core);
                bytes[at..at + 24].copy_from_slice(&new.to_le_bytes().repeat(3));
            }
        });
    }

    /// Does what an intent promises, and ends it.
    pub fn finish(&self, handle: &Handle, intent: Intent) {
        let buffer = self.cache.get(BlockNo(intent.block)).unwrap();
        handle.modify_range(&buffer, cell(intent.cell), |bytes| {
            let sum = value(bytes, 0) + intent.add;
            bytes.copy_from_slice(&sum.to_le_bytes());
        });
        handle.finish_object(intent.id(), Some(Vec::new()));
    }

    /// Adopts and finishes what recovery reported.
    pub fn finish_recovered(&self, intents: &[Intent]) {
        for &intent in intents {
            assert!(self.journal.adopt(Arc::new(intent)), "{intent:?} was not in the log");
        }
        for &intent in intents {
            let handle = self.journal.begin_finishing(intent.id(), 700).unwrap();
            self.finish(&handle, intent);
        }
    }
}
