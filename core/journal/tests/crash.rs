//! Recovers the crash states after every write and compares them with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ivers_block::{BlockNo, Budget, BufferCache, Device, FaultDevice, MemDevice};
use ivers_journal::jbd2::{FormatOptions, Jbd2Log, Jbd2Options, LogExtent, LogMap, format_superblock};
use ivers_journal::{Journal, JournalOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: u32 = 1024;
const FS_BLOCKS: u64 = 512;
/// A block in which every handle stores its number.
const STAMP: u64 = 300;
const BLOCKS: std::ops::Range<u64> = 301..325;

fn map() -> LogMap {
    // Three extents out of order, so that contiguous runs end within the log.
    let e = |log_block, fs_block, len| LogExtent { log_block, fs_block, len };
    LogMap::new(vec![e(0, BlockNo(200), 30), e(30, BlockNo(100), 20), e(50, BlockNo(150), 14)])
}

fn options() -> Jbd2Options {
    Jbd2Options { block_size: BLOCK, fs_blocks: FS_BLOCKS, uuid: None }
}

fn formatted(checksums: bool, is_64bit: bool, blocks: u32) -> MemDevice {
    let device = MemDevice::new(FS_BLOCKS * u64::from(BLOCK));
    let format = FormatOptions { block_size: BLOCK, blocks, uuid: [7; 16], checksums, is_64bit };
    device.write_at(BlockNo(200).offset(BLOCK), &format_superblock(&format).unwrap()).unwrap();
    device
}

fn open(device: Arc<dyn Device>) -> (Journal, Arc<BufferCache>) {
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK, Arc::new(Budget::new(16 << 10))));
    let log = Jbd2Log::open(device, map(), options()).unwrap();
    let journal_options = JournalOptions::default().with_commit_interval(Duration::from_secs(3600));
    (Journal::open(Box::new(log), cache.clone(), journal_options).unwrap(), cache)
}

fn pattern(block: u64, value: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (block << 32 | value).to_le_bytes().repeat(BLOCK as usize / 8);
    if value.is_multiple_of(5) {
        // The log must escape this block.
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    /// Metadata, logged.
    Meta(u64),
    /// Freed: the contents do not matter.
    Free,
    /// File data, written directly to the device.
    Data(u64),
}

type Model = BTreeMap<u64, Content>;

fn run(seed: u64, checksums: bool, is_64bit: bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let device =
        Arc::new(FaultDevice::new(Arc::new(formatted(checksums, is_64bit, 48 + (seed % 17) as u32))));
    let (journal, cache) = open(device.clone());
    let mut model: Model = BLOCKS.map(|b| (b, Content::Free)).collect();
    let mut history = vec![model.clone()];
    // Number of recorded writes, and the newest handle that is durable after them.
    let mut acknowledged = vec![(0, 0)];
    // Freed blocks, and whether the freeing is durable.
    let mut freed: BTreeMap<u64, Arc<AtomicBool>> = BTreeMap::new();
    for n in 1..=120u64 {
        let handle = journal.begin(8).unwrap();
        let mut touched = BTreeSet::new();
        for _ in 0..rng.random_range(1..5) {
            let block = rng.random_range(BLOCKS);
            if !touched.insert(block) {
                continue;
            }
            let reusable = freed.get(&block).is_none_or(|f| f.load(Ordering::SeqCst));
            match model[&block] {
                Content::Meta(_) if rng.random_bool(0.4) => {
                    handle.forget(BlockNo(block));
                    let durable = Arc::new(AtomicBool::new(false));
                    freed.insert(block, durable.clone());
                    handle.on_commit(Box::new(move || durable.store(true, Ordering::SeqCst)));
                    model.insert(block, Content::Free);
                }
                Content::Free | Content::Data(_) if reusable && rng.random_bool(0.4) => {
                    // Only a free block: the model could not tell old data from new.
                    if model[&block] == Content::Free {
                        device.write_at(BlockNo(block).offset(BLOCK), &pattern(block, n)).unwrap();
                        model.insert(block, Content::Data(n));
                    }
                }
                Content::Data(_) => {
                    // Data is also freed by the transaction, and reused only after its commit.
                    let durable = Arc::new(AtomicBool::new(false));
                    freed.insert(block, durable.clone());
                    handle.on_commit(Box::new(move || durable.store(true, Ordering::SeqCst)));
                    model.insert(block, Content::Free);
                }
                Content::Free if !reusable && rng.random_bool(0.7) => {}
                Content::Free | Content::Meta(_) => {
                    let fresh = model[&block] == Content::Free;
                    let buffer =
                        if fresh { cache.get_zeroed(BlockNo(block)) } else { cache.get(BlockNo(block)) }
                            .unwrap();
                    if let Content::Meta(old) = model[&block] {
                        assert_eq!(
                            *buffer.read(),
                            pattern(block, old)[..],
                            "seed {seed}: block {block} has old contents"
                        );
                    }
                    if rng.random_bool(0.5) {
                        handle.modify(&buffer, |bytes| bytes.copy_from_slice(&pattern(block, n)));
                    } else {
                        for part in [0..500, 500..BLOCK as usize] {
                            handle.modify_range(&buffer, part.clone(), |bytes| {
                                bytes.copy_from_slice(&pattern(block, n)[part]);
                            });
                        }
                    }
                    model.insert(block, Content::Meta(n));
                }
            }
        }
        let stamp = cache.get(BlockNo(STAMP)).unwrap();
        handle.modify_range(&stamp, 8..16, |bytes| bytes.copy_from_slice(&n.to_le_bytes()));
        let tid = handle.tid();
        drop((handle, stamp));
        history.push(model.clone());
        match rng.random_range(0..10) {
            0..3 => journal.commit(tid).unwrap(),
            3 => journal.checkpoint_all().unwrap(),
            4 => {
                journal.push(70).unwrap();
                continue;
            }
            _ => continue,
        }
        acknowledged.push((device.len(), n));
    }
    let end = journal.stats();
    assert!(end.checkpoints > 1 && end.revokes > 0, "seed {seed}: {end:?}");
    journal.shutdown().unwrap();
    acknowledged.push((device.len(), 120));

    for crash_point in 0..=device.len() {
        let newest_acknowledged =
            acknowledged.iter().filter(|&&(len, _)| len <= crash_point).map(|&(_, n)| n).max().unwrap();
        for round in 0..3 {
            let mut coin = StdRng::seed_from_u64(seed ^ (crash_point as u64) << 8 ^ round);
            let kept: Vec<bool> = (0..crash_point).map(|_| round == 0 || coin.random_bool(0.5)).collect();
            let image = Arc::new(device.image_where(crash_point, |i| kept[i]).unwrap());
            let mut log = Jbd2Log::open(image.clone(), map(), options()).unwrap();
            let recovered = log.recover().unwrap();
            let place = format!("seed {seed}, crash point {crash_point}, round {round}: {recovered:?}");
            assert_eq!(recovered.damaged, None, "{place}");
            check(&*image, &history, newest_acknowledged, &place);
            // A second recovery finds a clean log and changes nothing.
            let mut again = Jbd2Log::open(image.clone(), map(), options()).unwrap();
            assert!(!again.needs_recovery());
            again.recover().unwrap();
        }
    }
}

fn check(image: &dyn Device, history: &[Model], newest_acknowledged: u64, place: &str) {
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
        bytes
    };
    let stamp = u64::from_le_bytes(read(STAMP)[8..16].try_into().unwrap());
    assert!(stamp >= newest_acknowledged, "{place}: {newest_acknowledged} was acknowledged, found {stamp}");
    for (&block, &content) in &history[stamp as usize] {
        match content {
            Content::Free => {}
            Content::Meta(n) | Content::Data(n) => {
                assert!(
                    read(block) == pattern(block, n),
                    "{place}: at {stamp}, block {block} is not {content:?}"
                );
            }
        }
    }
}

#[test]
fn every_crash_state_recovers() {
    for seed in 0..6 {
        run(seed, seed % 2 == 0, seed % 3 == 0);
    }
}

/// Several threads write the same value to both blocks of a pair and commit. After a crash both blocks of a
/// pair must be equal.
#[test]
fn transactions_of_several_threads_stay_whole_after_a_crash() {
    let device = Arc::new(FaultDevice::new(Arc::new(formatted(true, true, 64))));
    let (journal, cache) = open(device.clone());
    let acknowledged = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (journal, cache, device, acknowledged) = (&journal, &cache, &device, &acknowledged);
            scope.spawn(move || {
                for n in 1..=40u64 {
                    let handle = journal.begin(2).unwrap();
                    for block in [310 + thread, 320 + thread] {
                        let buffer = cache.get(BlockNo(block)).unwrap();
                        handle.modify(&buffer, |bytes| bytes.copy_from_slice(&n.to_le_bytes().repeat(128)));
                    }
                    let tid = handle.tid();
                    drop(handle);
                    if n % 3 == 0 {
                        journal.commit(tid).unwrap();
                        acknowledged.lock().unwrap().push((device.len(), thread, n));
                    }
                }
            });
        }
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    for crash_point in 0..=device.len() {
        let image = Arc::new(device.image(crash_point).unwrap());
        Jbd2Log::open(image.clone(), map(), options()).unwrap().recover().unwrap();
        for thread in 0..4 {
            let value = |block: u64| {
                let mut bytes = vec![0; BLOCK as usize];
                image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
                assert!(bytes.chunks(8).all(|c| c == &bytes[..8]));
                u64::from_le_bytes(bytes[..8].try_into().unwrap())
            };
            let n = value(310 + thread);
            assert_eq!(n, value(320 + thread), "crash point {crash_point}");
            let must = acknowledged
                .iter()
                .filter(|a| a.0 <= crash_point && a.1 == thread)
                .map(|a| a.2)
                .max()
                .unwrap_or(0);
            assert!(
                n >= must,
                "crash point {crash_point}: thread {thread} had {must} acknowledged, found {n}"
            );
        }
    }
    drop(journal);
}

/// Crashes during recovery, and recovers again.
#[test]
fn a_crash_during_recovery_can_be_recovered() {
    let device = Arc::new(FaultDevice::new(Arc::new(formatted(true, false, 64))));
    let (journal, cache) = open(device.clone());
    for n in 1..=3u64 {
        let handle = journal.begin(4).unwrap();
        for block in 310..313 {
            handle.modify(&cache.get(BlockNo(block)).unwrap(), |bytes| {
                bytes.copy_from_slice(&pattern(block, n))
            });
        }
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
    }
    let crashed: Arc<dyn Device> = Arc::new(device.image(device.len()).unwrap());
    let recording = Arc::new(FaultDevice::new(crashed));
    Jbd2Log::open(recording.clone(), map(), options()).unwrap().recover().unwrap();
    for crash_point in 0..=recording.len() {
        for keep in [0, 1, 2] {
            let image = Arc::new(recording.image_where(crash_point, |i| i % 3 != keep).unwrap());
            Jbd2Log::open(image.clone(), map(), options()).unwrap().recover().unwrap();
            let mut bytes = vec![0; BLOCK as usize];
            for block in 310..313 {
                image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
                assert_eq!(bytes, pattern(block, 3), "crash point {crash_point}");
            }
        }
    }
}

/// Several sessions on one image. Each one ends with a crash at a random point, and the next one recovers.
#[test]
fn sessions_recover_after_repeated_crashes() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(1000 + seed);
        let mut image: Arc<dyn Device> = Arc::new(formatted(seed % 2 == 0, false, 40));
        // The newest step that a session acknowledged. The next session must find it.
        let mut acknowledged = 0u64;
        let mut step = 0u64;
        for session in 0..6 {
            let recording = Arc::new(FaultDevice::new(image.clone()));
            Jbd2Log::open(recording.clone(), map(), options()).unwrap().recover().unwrap();
            let found = {
                let mut bytes = [0; 8];
                recording.read_at(BlockNo(STAMP).offset(BLOCK), &mut bytes).unwrap();
                u64::from_le_bytes(bytes)
            };
            let place = format!("seed {seed}, session {session}");
            assert!(found >= acknowledged, "{place}: {acknowledged} was acknowledged, found {found}");
            for block in BLOCKS {
                let mut bytes = [0; 8];
                recording.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
                assert!(
                    u64::from_le_bytes(bytes) <= found,
                    "{place}: block {block} is newer than the newest transaction"
                );
            }
            let mut bytes = [0; 8];
            recording.read_at(BlockNo(BLOCKS.start + found % 24).offset(BLOCK), &mut bytes).unwrap();
            assert_eq!(
                u64::from_le_bytes(bytes),
                found * u64::from(found > 0),
                "{place}: the newest transaction is incomplete"
            );
            let (journal, cache) = open(recording.clone());
            let mut marks = vec![(recording.len(), found)];
            for _ in 0..rng.random_range(1..25) {
                step += 1;
                let handle = journal.begin(4).unwrap();
                for block in [STAMP, BLOCKS.start + step % 24] {
                    let buffer = cache.get(BlockNo(block)).unwrap();
                    handle.modify(&buffer, |bytes| bytes[..8].copy_from_slice(&step.to_le_bytes()));
                }
                let tid = handle.tid();
                drop(handle);
                if rng.random_bool(0.6) {
                    journal.commit(tid).unwrap();
                    marks.push((recording.len(), step));
                }
            }
            let crash_point = rng.random_range(0..=recording.len());
            acknowledged =
                marks.iter().filter(|m| m.0 <= crash_point).map(|m| m.1).max().unwrap_or(acknowledged);
            let kept: Vec<bool> = (0..crash_point).map(|_| rng.random_bool(0.5)).collect();
            image = Arc::new(recording.image_where(crash_point, |i| kept[i]).unwrap());
        }
    }
}
