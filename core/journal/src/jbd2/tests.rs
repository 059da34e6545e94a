//! Tests of encodings, sequence numbers and hostile logs.

use std::sync::Arc;

use ivers_block::{BlockNo, ByteOffset, Device, MemDevice, OverlayDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::records::*;
use super::superblock::{INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3, INCOMPAT_FAST_COMMIT};
use super::*;
use crate::{LogFormat, LogItem, LogTransaction};

const BLOCK: u32 = 1024;
const S_FEATURE_COMPAT: usize = 0x24;
const S_FEATURE_INCOMPAT: usize = 0x28;

fn options() -> Jbd2Options {
    Jbd2Options { block_size: BLOCK, fs_blocks: 4096, uuid: None }
}

/// A device with a formatted journal of `blocks` blocks at block 1. `edit` changes the superblock.
fn device(blocks: u32, edit: impl FnOnce(&mut [u8])) -> Arc<MemDevice> {
    let format = FormatOptions {
        block_size: BLOCK,
        blocks,
        uuid: *b"0123456789abcdef",
        checksums: false,
        is_64bit: false,
    };
    let mut sb = format_superblock(&format).unwrap();
    edit(&mut sb);
    let device = Arc::new(MemDevice::new(4096 * u64::from(BLOCK)));
    device.write_at(ByteOffset(u64::from(BLOCK)), &sb).unwrap();
    device
}

fn open(device: Arc<dyn Device>, blocks: u32) -> crate::Result<Jbd2Log> {
    Jbd2Log::open(device, LogMap::contiguous(BlockNo(1), blocks), options())
}

/// Writes and commits one transaction.
fn write(log: &mut Jbd2Log, blocks: std::ops::Range<u64>, fill: u8, revokes: &[u64]) {
    let items = blocks
        .map(|block| LogItem {
            unit: BlockNo(block).into(),
            ranges: std::iter::once(0..BLOCK).collect(),
            data: vec![fill; BLOCK as usize].into(),
        })
        .collect();
    let transaction = LogTransaction {
        items,
        revokes: revokes.iter().map(|&block| BlockNo(block).into()).collect(),
        ..LogTransaction::default()
    };
    let needed = log.space_for(&transaction);
    let body = log.write_items(&transaction).unwrap();
    let record = log.write_commit().unwrap();
    assert!(body.blocks + record.blocks <= needed);
}

fn byte(device: &dyn Device, block: u64) -> u8 {
    let mut b = [0];
    device.read_at(BlockNo(block).offset(BLOCK), &mut b).unwrap();
    b[0]
}

/// The feature combinations of logs: `s_feature_compat` and `s_feature_incompat`.
const FEATURES: [(u32, u32); 8] = [
    (0, 1),
    (0, 3),
    (1, 1),
    (1, 7),
    (0, 1 | INCOMPAT_CSUM_V2),
    (0, 3 | INCOMPAT_CSUM_V2),
    (0, 1 | INCOMPAT_CSUM_V3),
    (0, 7 | INCOMPAT_CSUM_V3),
];

fn with_features(compat: u32, incompat: u32) -> impl FnOnce(&mut [u8]) {
    move |sb| {
        put32(sb, S_FEATURE_COMPAT, compat);
        put32(sb, S_FEATURE_INCOMPAT, incompat);
        if incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0 {
            sb[0x50] = 4;
            put32(sb, 0xFC, 0);
            let sum = crc32c(!0, &sb[..1024]);
            put32(sb, 0xFC, sum);
        }
    }
}

#[test]
fn checksums_match_the_published_check_values() {
    // From the catalogue of CRC algorithms: CRC-32/MPEG-2, and CRC-32C before its final inversion.
    assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7);
    assert_eq!(crc32_be(crc32_be(!0, b"1234"), b"56789"), 0x0376_E6E7);
    assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
}

#[test]
fn recovery_follows_sequence_numbers_that_wrap() {
    assert!(sequence_at_least(1, u32::MAX) && sequence_at_least(5, 5) && !sequence_at_least(u32::MAX, 1));
    for (compat, incompat) in FEATURES {
        let dev = device(64, |sb| {
            put32(sb, 0x18, u32::MAX - 3);
            with_features(compat, incompat)(sb);
        });
        let mut log = open(dev.clone(), 64).unwrap();
        for n in 0..6 {
            write(&mut log, 500..503, n, if n == 3 { &[600, 601] } else { &[] });
        }
        let mut again = open(dev.clone(), 64).unwrap();
        let done = again.recover().unwrap();
        assert_eq!((done.transactions, done.blocks, &done.damaged), (6, 18, &None), "{compat} {incompat}");
        assert_eq!(byte(&*dev, 502), 5);
        assert!(done.next_sequence < 10 + 64 / 2);
    }
}

#[test]
fn recovery_follows_a_log_that_wraps() {
    for (compat, incompat) in FEATURES {
        let dev = device(32, with_features(compat, incompat));
        let mut log = open(dev.clone(), 32).unwrap();
        for n in 0..20 {
            write(&mut log, 500..505, n, &[]);
            write(&mut log, 505..508, n, &[501]);
            if n != 19 {
                log.move_tail(None).unwrap();
            }
        }
        (500..508).for_each(|b| dev.write_at(ByteOffset(b * 1024), &[99; 1024]).unwrap());
        let done = open(dev.clone(), 32).unwrap().recover().unwrap();
        assert_eq!((done.transactions, done.blocks, done.revoked), (2, 7, 1));
        assert_eq!((byte(&*dev, 500), byte(&*dev, 501), byte(&*dev, 507)), (19, 99, 19));
    }
}

/// One bit of a log with checksums changes: recovery replays a prefix of whole transactions.
#[test]
fn checksums_detect_a_flipped_bit() {
    let dev = device(64, with_features(0, 3 | INCOMPAT_CSUM_V3));
    let mut log = open(dev.clone(), 64).unwrap();
    for n in 1..=5 {
        write(&mut log, 500..503, n, if n == 3 { &[700] } else { &[] });
    }
    let base: Arc<dyn Device> = dev;
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..2000 {
        let image = Arc::new(OverlayDevice::new(base.clone()));
        let at = rng.random_range(2 * 1024..30 * 1024);
        let mut b = [0];
        image.read_at(ByteOffset(at), &mut b).unwrap();
        image.write_at(ByteOffset(at), &[b[0] ^ 1 << rng.random_range(0..8)]).unwrap();
        let done = open(image.clone(), 64).unwrap().recover().unwrap();
        let n = done.transactions as u8;
        assert!((500..503).all(|b| byte(&*image, b) == n), "byte {at}: {done:?}");
        assert!(n == 5 || at < 28 * 1024);
    }
}

/// Damages logs and superblocks with all feature combinations at random.
#[test]
fn random_damage_causes_no_panic_and_no_hang() {
    let mut rng = StdRng::seed_from_u64(2);
    for (compat, incompat) in FEATURES {
        let dev = device(40, with_features(compat, incompat));
        let mut log = open(dev.clone(), 40).unwrap();
        for n in 1..=5 {
            write(&mut log, 500..503, n, &[700, 701]);
        }
        let base: Arc<dyn Device> = dev;
        for _ in 0..1500 {
            let image = Arc::new(OverlayDevice::new(base.clone()));
            for _ in 0..rng.random_range(1..6) {
                // Mostly the first bytes of a block, where the structures are.
                let within =
                    if rng.random_bool(0.8) { rng.random_range(0..80) } else { rng.random_range(0..1024) };
                let at = rng.random_range(1..30) * 1024 + within;
                image.write_at(ByteOffset(at), &[rng.random_range(0..=255)]).unwrap();
            }
            if let Ok(mut log) = open(image.clone(), 40) {
                let _ = log.prepare(true, true);
                let _ = log.recover();
                let _ = log.prepare(true, true);
            }
        }
    }
}

/// A stale commit record must not complete a transaction of the next session.
#[test]
fn a_stale_commit_record_does_not_complete_a_new_transaction() {
    let dev = device(64, with_features(0, 1));
    let mut log = open(dev.clone(), 64).unwrap();
    write(&mut log, 500..501, 1, &[]);
    // The descriptor is lost, data and commit record are there: a possible crash state.
    let descriptor = log.head;
    write(&mut log, 501..502, 2, &[]);
    dev.write_at(ByteOffset(u64::from(1 + descriptor) * 1024), &[0; 1024]).unwrap();
    let mut log = open(dev.clone(), 64).unwrap();
    assert_eq!(log.recover().unwrap().transactions, 1);
    // The log starts again at its first block. The new descriptor and four blocks end where the stale
    // commit record is. The crash comes before the new commit record.
    let items = (501..505)
        .map(|block| LogItem {
            unit: BlockNo(block).into(),
            ranges: std::iter::once(0..BLOCK).collect(),
            data: vec![4; BLOCK as usize].into(),
        })
        .collect();
    log.write_items(&LogTransaction { items, ..LogTransaction::default() }).unwrap();
    assert_eq!(log.head, descriptor + 2);
    assert_eq!(open(dev.clone(), 64).unwrap().recover().unwrap().transactions, 0);
    assert_eq!((byte(&*dev, 500), byte(&*dev, 501)), (1, 0));
}

/// Also if a new transaction ends directly before the old ones.
#[test]
fn transactions_after_a_damaged_one_are_never_replayed() {
    for (compat, incompat) in FEATURES {
        let dev = device(64, with_features(compat, incompat));
        let mut log = open(dev.clone(), 64).unwrap();
        for n in 1..=5 {
            write(&mut log, 500..503, n, &[]);
        }
        // Clears the commit record of the first transaction: nothing is replayed.
        dev.write_at(ByteOffset((1 + 5) * 1024), &[0; 1024]).unwrap();
        let mut log = open(dev.clone(), 64).unwrap();
        assert_eq!(log.recover().unwrap().transactions, 0);
        // As long as the first two together. The old third transaction follows it. Without the skipped
        // sequence numbers it would have the next number.
        write(&mut log, 600..608, 9, &[]);
        let done = open(dev.clone(), 64).unwrap().recover().unwrap();
        assert_eq!((done.transactions, byte(&*dev, 500)), (1, 0), "{compat} {incompat}");
    }
}

#[test]
fn refused_superblocks_are_reported_with_the_field() {
    let refused =
        |edit: &dyn Fn(&mut [u8])| open(device(64, |sb| edit(sb)), 64).map(|_| ()).unwrap_err().to_string();
    assert!(refused(&|sb| put32(sb, S_FEATURE_INCOMPAT, 0x41)).contains("incompat 0x40"));
    assert!(refused(&|sb| put32(sb, 0x2C, 0x1)).contains("ro_compat 0x1"));
    assert!(refused(&|sb| put32(sb, 0x40, 2)).contains("s_nr_users is 2"));
    assert!(refused(&|sb| put32(sb, 0x1C, 64)).contains("s_start is 64"));
    assert!(refused(&|sb| put32(sb, 0x10, 65)).contains("s_maxlen is 65"));
    assert!(refused(&|sb| put32(sb, 0xC, 2048)).contains("s_blocksize is 2048"));
    assert!(refused(&|sb| put32(sb, 0x14, 0)).contains("s_first is 0"));
    assert!(refused(&|sb| put32(sb, S_FEATURE_INCOMPAT, 0x19)).contains("two versions"));
    assert!(
        refused(&|sb| {
            with_features(0, 0x11)(sb);
            sb[0x30] ^= 1;
        })
        .contains("checksum is wrong")
    );
    assert!(refused(&|sb| sb.fill(0)).contains("magic"));
    let uuid = Some([9; 16]);
    let other = Jbd2Log::open(
        device(64, |_| ()),
        LogMap::contiguous(BlockNo(1), 64),
        Jbd2Options { uuid, ..options() },
    );
    assert!(matches!(other, Err(JournalError::External { .. })));
}

#[test]
fn targets_in_the_journal_or_past_the_end_are_refused_before_any_write() {
    for target in [5u64, 4096] {
        let dev = device(64, with_features(0, 1));
        let mut log = open(dev.clone(), 64).unwrap();
        write(&mut log, 500..501, 1, &[]);
        write(&mut log, target..target + 1, 1, &[]);
        assert!(matches!(open(dev.clone(), 64).unwrap().recover(), Err(JournalError::Corrupt { .. })));
        assert_eq!(byte(&*dev, 500), 0);
    }
}

/// A crash tears a descriptor, and its last tags are bytes of older blocks. The transaction was not
/// committed, so invalid block numbers in it are no damage.
#[test]
fn a_torn_descriptor_without_a_commit_record_ends_the_log() {
    for (compat, incompat) in FEATURES {
        let dev = device(256, with_features(compat, incompat));
        let mut log = open(dev.clone(), 256).unwrap();
        write(&mut log, 500..501, 1, &[]);
        let descriptor = 1 + u64::from(log.head);
        let item = |block| LogItem {
            unit: BlockNo(block).into(),
            ranges: std::iter::once(0..BLOCK).collect(),
            data: vec![2; BLOCK as usize].into(),
        };
        let items = (500..600).map(item).collect();
        log.write_items(&LogTransaction { items, ..LogTransaction::default() }).unwrap();
        // As tags these bytes are blocks far outside the filesystem, without a last tag.
        dev.write_at(ByteOffset(descriptor * 1024 + 512), &[0xA6; 512]).unwrap();
        let done = open(dev.clone(), 256).unwrap().recover().unwrap();
        assert_eq!((done.transactions, byte(&*dev, 500)), (1, 1), "{compat} {incompat}");
    }
}

#[test]
fn pending_fast_commits_are_refused() {
    // The last 64 of 1100 blocks are the fast-commit area.
    let edit = |sb: &mut [u8]| {
        put32(sb, S_FEATURE_INCOMPAT, 1 | INCOMPAT_FAST_COMMIT);
        put32(sb, 0x54, 64);
    };
    let area = 1 + 1100 - 64 + 1;
    for (tid_offset, complete, pending) in [(0, true, true), (0, false, false), (1, true, false)] {
        let dev = device(1100, edit);
        let mut log = open(dev.clone(), 1100).unwrap();
        assert_eq!(log.sb.last(), 1100 - 64);
        write(&mut log, 3000..3001, 1, &[]);
        let tid = log.next_sequence + tid_offset;
        let mut fc = vec![0u8; 1024];
        fc[0..4].copy_from_slice(&[9, 0, 8, 0]);
        fc[8..12].copy_from_slice(&tid.to_le_bytes());
        fc[12..16].copy_from_slice(&[8, 0, 8, 0]);
        fc[16..20].copy_from_slice(&tid.to_le_bytes());
        let sum = crc32c(0, &fc[..20]) ^ u32::from(!complete);
        fc[20..24].copy_from_slice(&sum.to_le_bytes());
        dev.write_at(ByteOffset(area * 1024), &fc).unwrap();
        let result = open(dev.clone(), 1100).unwrap().recover();
        assert_eq!(matches!(result, Err(JournalError::FastCommitPending { .. })), pending, "{result:?}");
        assert_eq!(byte(&*dev, 3000), u8::from(!pending));
    }
}

/// A superblock of version 1 has no features. Writing upgrades it to version 2.
#[test]
fn a_version_1_superblock_is_upgraded() {
    let dev = device(64, |sb| {
        put32(sb, 4, BLOCK_SUPERBLOCK_V1);
        sb[0x24..0x400].fill(0xEE);
    });
    let mut log = open(dev.clone(), 64).unwrap();
    assert_eq!(log.superblock().incompat(), 0);
    log.prepare(true, true).unwrap();
    write(&mut log, 500..501, 1, &[7]);
    let mut log = open(dev, 64).unwrap();
    assert_eq!(log.superblock().incompat(), 3 | INCOMPAT_CSUM_V3);
    assert!(matches!(log.prepare(true, true), Err(JournalError::NeedsRecovery)));
    assert_eq!(log.recover().unwrap().blocks, 1);
}
