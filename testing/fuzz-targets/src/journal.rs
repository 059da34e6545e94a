//! Damaged logs of every kind: replays them, writes to them and replays again.

use crate::input::{Flags, Input, Patch};
use ivers_block::{BlockNo, ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_ext4::layout::csum::crc32c;
use ivers_journal::jbd2::{FormatOptions, Jbd2Log, Jbd2Options, LogMap, format_superblock};
use ivers_journal::{LogFormat, LogItem, LogTransaction};
use std::sync::{Arc, LazyLock};

const BLOCK: usize = 1024;
/// The first block of the log, and its length in blocks.
const FIRST: u64 = 1;
const BLOCKS: u32 = 48;
const FS_BLOCKS: u64 = 512;

/// `s_feature_compat` and `s_feature_incompat`: checksums of version 1, 2 and 3, wide block numbers,
/// asynchronous commits.
const KINDS: [(u32, u32); 8] =
    [(0, 0x1), (0, 0x3), (1, 0x1), (1, 0x7), (0, 0x9), (0, 0xB), (0, 0x11), (0, 0x17)];

static LOGS: LazyLock<Vec<Arc<dyn Device>>> =
    LazyLock::new(|| KINDS.iter().map(|&(compat, incompat)| log(compat, incompat)).collect());

/// The first byte of inputs that damage the journal of a base image instead of a bare log.
pub const ON_IMAGES: u8 = KINDS.len() as u8;

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn open(device: &Arc<dyn Device>) -> ivers_journal::Result<Jbd2Log> {
    let options = Jbd2Options { block_size: BLOCK as u32, fs_blocks: FS_BLOCKS, uuid: None };
    Jbd2Log::open(device.clone(), LogMap::contiguous(BlockNo(FIRST), BLOCKS), options)
}

fn transaction(blocks: std::ops::Range<u64>, fill: u8, revokes: &[u64]) -> LogTransaction {
    let item = |block| LogItem {
        unit: BlockNo(block).into(),
        ranges: std::iter::once(0..BLOCK as u32).collect(),
        data: vec![fill; BLOCK].into(),
    };
    LogTransaction {
        items: blocks.map(item).collect(),
        revokes: revokes.iter().map(|&block| BlockNo(block).into()).collect(),
        ..LogTransaction::default()
    }
}

fn log(compat: u32, incompat: u32) -> Arc<dyn Device> {
    let format = FormatOptions {
        block_size: BLOCK as u32,
        blocks: BLOCKS,
        uuid: *b"0123456789abcdef",
        checksums: false,
        is_64bit: false,
    };
    let mut superblock = format_superblock(&format).expect("the options are sound");
    put32(&mut superblock, 0x24, compat);
    put32(&mut superblock, 0x28, incompat);
    // With checksums, s_checksum_type is crc32c.
    superblock[0x50] = if incompat & 0x18 != 0 { 4 } else { 0 };
    seal_superblock(&mut superblock);
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(FS_BLOCKS * BLOCK as u64));
    device.write_at(ByteOffset(FIRST * BLOCK as u64), &superblock).expect("memory does not fail");
    let mut log = open(&device).expect("a fresh log");
    for n in 1..=4 {
        let revokes: &[u64] = if n == 3 { &[300, 401] } else { &[] };
        log.write_items(&transaction(300..303, n, revokes)).expect("the log has space");
        log.write_commit().expect("the log has space");
    }
    // Data that starts like a record is escaped.
    let mut escaped = transaction(400..402, 0, &[]);
    for item in &mut escaped.items {
        item.data.make_mut()[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
    }
    log.write_items(&escaped).expect("the log has space");
    log.write_commit().expect("the log has space");
    device
}

fn seal_superblock(block: &mut [u8]) {
    if be32(block, 0x28) & 0x18 != 0 {
        put32(block, 0xFC, 0);
        let sum = crc32c(!0, &block[..1024]);
        put32(block, 0xFC, sum);
    }
}

/// Sets the checksum: at the end of descriptors and revocations, within commits.
fn seal(block: &mut [u8], uuid: &[u8], checksums: bool) {
    let at = match be32(block, 4) {
        1 | 5 if checksums => BLOCK - 4,
        2 if checksums => 0x10,
        _ => return,
    };
    put32(block, at, 0);
    let sum = crc32c(crc32c(!0, uuid), block);
    put32(block, at, sum);
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let kind = usize::from(rest.byte());
    if kind % (KINDS.len() + 1) == usize::from(ON_IMAGES) {
        return crate::work::run(&input[1..], crate::JOURNAL);
    }
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(LOGS[kind % (KINDS.len() + 1)].clone()));
    let place = |block: u64| (FIRST + block) * BLOCK as u64;
    let mut superblock = vec![0; BLOCK];
    let mut block = vec![0; BLOCK];
    for patch in rest.patches() {
        let number = u64::from(patch.place) % u64::from(BLOCKS);
        let offset = usize::from(patch.offset) % BLOCK;
        let bytes = &patch.bytes[..patch.bytes.len().min(BLOCK - offset)];
        device.read_at(ByteOffset(place(number)), &mut block).expect("the block exists");
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
        if !flags.keep_checksums() {
            device.read_at(ByteOffset(place(0)), &mut superblock).expect("the block exists");
            let checksums = be32(&superblock, 0x28) & 0x18 != 0;
            if number == 0 {
                seal_superblock(&mut block);
            } else {
                seal(&mut block, &superblock[0x30..0x40], checksums);
            }
        }
        device.write_at(ByteOffset(place(number)), &block).expect("the block exists");
    }
    let Ok(mut log) = open(&device) else { return };
    let _ = log.prepare(true, true);
    if log.recover().is_err() {
        return;
    }
    assert!(!log.needs_recovery(), "a log needs recovery after it");
    let _ = log.prepare(flags.read_only(), flags.crash());
    let size = log.free();
    for n in 0..3 {
        let new = transaction(310..310 + u64::from(rest.byte() % 40), n, &[350, u64::from(rest.word())]);
        let room = log.free() >= log.space_for(&new);
        let written = log.write_items(&new).is_ok();
        assert!(
            written || !room || new.revokes.len() > 2,
            "a log of {size} blocks has space and accepts nothing"
        );
        if !written || log.write_commit().is_err() {
            return;
        }
    }
    // The next blocks can hold what the input made look like a successor.
    let mut log = open(&device).expect("a log that was written opens");
    if let Ok(again) = log.recover() {
        assert!(again.transactions >= 3, "what was written is lost: {again:?}");
    }
}

/// Returns the fuzz inputs: each record of each log patched with itself.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (kind, log) in LOGS.iter().enumerate() {
        for place in 0..BLOCKS as u16 {
            let mut bytes = vec![0; 64];
            log.read_at(ByteOffset((FIRST + u64::from(place)) * BLOCK as u64), &mut bytes)
                .expect("the block exists");
            if bytes.starts_with(&0xC03B_3998u32.to_be_bytes()) {
                let mut input = vec![kind as u8, 0, 1];
                Patch { class: 0, place, offset: 0, bytes: &bytes }.encode(&mut input);
                input.extend_from_slice(&[5, 0x50, 1, 30, 0x51, 1, 1, 0x52, 1]);
                inputs.push(input);
            }
        }
    }
    inputs
}
