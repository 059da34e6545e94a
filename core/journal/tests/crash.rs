//! Cuts the power at every write, recovers, and compares with a model.

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
/// Stamped by every handle with its number.
const STAMP: u64 = 300;
const BLOCKS: std::ops::Range<u64> = 301..325;

fn map() -> LogMap {
    // In three pieces, out of order, so that runs break.
    let e = |log_block, fs_block, len| LogExtent { log_block, fs_block, len };
    LogMap::new(vec![e(0, BlockNo(200), 30), e(30, BlockNo(100), 20), e(50, BlockNo(150), 14)])
}

fn options() -> Jbd2Options {
    Jbd2Options { block_size: BLOCK, fs_blocks: FS_BLOCKS, uuid: None }
}

fn formatted(checksums: bool, wide: bool, blocks: u32) -> MemDevice {
    let device = MemDevice::new(FS_BLOCKS * u64::from(BLOCK));
    let format = FormatOptions { block_size: BLOCK, blocks, uuid: [7; 16], checksums, wide };
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
        // Must be escaped in the log.
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    /// Logged.
    Meta(u64),
    /// Freed: may hold anything.
    Free,
    /// File data, written past the journal.
    Data(u64),
}

type Model = BTreeMap<u64, Content>;

fn run(seed: u64, checksums: bool, wide: bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let device = Arc::new(FaultDevice::new(Arc::new(formatted(checksums, wide, 48 + (seed % 17) as u32))));
    let (journal, cache) = open(device.clone());
    let mut model: Model = BLOCKS.map(|b| (b, Content::Free)).collect();
    let mut history = vec![model.clone()];
    // (length of the record, handles durable by then)
    let mut acknowledged = vec![(0, 0)];
    // Blocks that were freed, and whether that is durable.
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
                    // In place if it is data already: the model cannot tell old from new then, so only fresh ones.
                    if model[&block] == Content::Free {
                        device.write_at(BlockNo(block).offset(BLOCK), &pattern(block, n)).unwrap();
                        model.insert(block, Content::Data(n));
                    }
                }
                Content::Data(_) => {
                    // Data is freed by the transaction as well, and then waits for it.
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
                            "seed {seed}: block {block} was lost"
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
            _ => continue,
        }
        acknowledged.push((device.len(), n));
    }
    let end = journal.stats();
    assert!(end.checkpoints > 1 && end.revokes > 0, "seed {seed}: {end:?}");
    journal.shutdown().unwrap();
    acknowledged.push((device.len(), 120));

    for cut in 0..=device.len() {
        let must_have = acknowledged.iter().filter(|&&(len, _)| len <= cut).map(|&(_, n)| n).max().unwrap();
        for round in 0..3 {
            let mut coin = StdRng::seed_from_u64(seed ^ (cut as u64) << 8 ^ round);
            let kept: Vec<bool> = (0..cut).map(|_| round == 0 || coin.random_bool(0.5)).collect();
            let image = Arc::new(device.image_where(cut, |i| kept[i]).unwrap());
            let mut log = Jbd2Log::open(image.clone(), map(), options()).unwrap();
            let recovered = log.recover().unwrap();
            let place = format!("seed {seed}, cut {cut}, round {round}: {recovered:?}");
            assert_eq!(recovered.damaged, None, "{place}");
            check(&*image, &history, must_have, &place);
            // Again, as after a crash at the end of recovery; and again by another.
            let mut again = Jbd2Log::open(image.clone(), map(), options()).unwrap();
            assert!(!again.needs_recovery());
            again.recover().unwrap();
        }
    }
}

fn check(image: &dyn Device, history: &[Model], must_have: u64, place: &str) {
    let read = |block: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
        bytes
    };
    let stamp = u64::from_le_bytes(read(STAMP)[8..16].try_into().unwrap());
    assert!(stamp >= must_have, "{place}: {must_have} was acknowledged, found {stamp}");
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
fn every_cut_recovers() {
    for seed in 0..6 {
        run(seed, seed % 2 == 0, seed % 3 == 0);
    }
}

/// Several threads change pairs of blocks alike and wait for their commits; pairs must never come apart.
#[test]
fn threads_and_cuts() {
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
    for cut in 0..=device.len() {
        let image = Arc::new(device.image(cut).unwrap());
        Jbd2Log::open(image.clone(), map(), options()).unwrap().recover().unwrap();
        for thread in 0..4 {
            let value = |block: u64| {
                let mut bytes = vec![0; BLOCK as usize];
                image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
                assert!(bytes.chunks(8).all(|c| c == &bytes[..8]));
                u64::from_le_bytes(bytes[..8].try_into().unwrap())
            };
            let n = value(310 + thread);
            assert_eq!(n, value(320 + thread), "cut {cut}");
            let must =
                acknowledged.iter().filter(|a| a.0 <= cut && a.1 == thread).map(|a| a.2).max().unwrap_or(0);
            assert!(n >= must, "cut {cut}: thread {thread} had {must} acknowledged, found {n}");
        }
    }
    drop(journal);
}

/// A crash during recovery itself: cut that too, and recover again.
#[test]
fn recovery_can_be_cut() {
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
    for cut in 0..=recording.len() {
        for keep in [0, 1, 2] {
            let image = Arc::new(recording.image_where(cut, |i| i % 3 != keep).unwrap());
            Jbd2Log::open(image.clone(), map(), options()).unwrap().recover().unwrap();
            let mut bytes = vec![0; BLOCK as usize];
            for block in 310..313 {
                image.read_at(BlockNo(block).offset(BLOCK), &mut bytes).unwrap();
                assert_eq!(bytes, pattern(block, 3), "cut {cut}");
            }
        }
    }
}

/// Crash after crash on one image: each session works a while and is cut at a random place, the next one recovers and goes on.
#[test]
fn sessions_after_crashes() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(1000 + seed);
        let mut image: Arc<dyn Device> = Arc::new(formatted(seed % 2 == 0, false, 40));
        // The newest value of each block, by session and step; what was acknowledged in any session must be there in the next.
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
                    "{place}: block {block} is ahead of its transaction"
                );
            }
            let mut bytes = [0; 8];
            recording.read_at(BlockNo(BLOCKS.start + found % 24).offset(BLOCK), &mut bytes).unwrap();
            assert_eq!(
                u64::from_le_bytes(bytes),
                found * u64::from(found > 0),
                "{place}: the newest transaction is torn"
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
            let cut = rng.random_range(0..=recording.len());
            acknowledged = marks.iter().filter(|m| m.0 <= cut).map(|m| m.1).max().unwrap_or(acknowledged);
            let kept: Vec<bool> = (0..cut).map(|_| rng.random_bool(0.5)).collect();
            image = Arc::new(recording.image_where(cut, |i| kept[i]).unwrap());
        }
    }
}
