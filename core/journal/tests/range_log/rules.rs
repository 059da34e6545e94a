//! One test for each rule of `docs/journal.md` that needs ranges, objects or intents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ivers_block::{BlockNo, Device, FaultDevice};
use ivers_journal::{JournalError, JournalOptions, LogObject};

use crate::driver::*;
use crate::log::RangeLog;

const BLOCK_A: u64 = 301;
const BLOCK_B: u64 = 302;
const CLUSTER: u64 = 320;
const SUM: u64 = 330;
/// Pushes everything but the newest transaction, if that is a small one.
const ALL_BUT_ONE: u64 = 97;

fn fixture() -> (Arc<FaultDevice>, Fs) {
    let device = Arc::new(FaultDevice::new(Arc::new(formatted())));
    (device.clone(), Fs::open(device))
}

fn crash(device: &FaultDevice) -> Arc<dyn Device> {
    Arc::new(device.image_where(device.len(), |_| false).unwrap())
}

fn promise(number: u64) -> Intent {
    Intent { number, block: SUM, cell: number, add: 1 }
}

/// J7: a push moves the tail to the oldest item that is not in place, not past it.
#[test]
fn the_tail_moves_item_by_item() {
    let (device, fs) = fixture();
    fs.set_one(BLOCK_A, 0, 1);
    fs.journal.commit_all().unwrap();
    fs.log_one(Core::new(CLUSTER, 0, 2));
    fs.journal.commit_all().unwrap();
    fs.set_one(BLOCK_B, 0, 3);
    fs.journal.commit_all().unwrap();
    fs.journal.push(ALL_BUT_ONE).unwrap();
    assert_eq!((cell_on(&*device, BLOCK_A, 0), core_on(&*device, CLUSTER, 0)), (1, 2));
    assert_eq!(stamped_lsn(&*device, BLOCK_B), 0, "the newest transaction was pushed too");
    let image = crash(&device);
    let (mut log, _) = recover(&image);
    assert_eq!(cell_on(&*image, BLOCK_B, 0), 3);
    assert_eq!(log.recover(&mut Recovered::default()).unwrap(), 0);
}

/// J8: the tail passes the first record of a block that changes again and again. Its bytes stay in the log.
#[test]
fn a_record_repeats_the_bytes_that_are_not_in_place() {
    let (device, fs) = fixture();
    for n in 0..3 {
        fs.set_one(BLOCK_A, n, n + 1);
        fs.set_one(BLOCK_B + n, 0, 9);
        fs.journal.commit_all().unwrap();
    }
    fs.set_one(BLOCK_A, 3, 4);
    fs.journal.commit_all().unwrap();
    fs.journal.push(ALL_BUT_ONE).unwrap();
    assert_eq!(stamped_lsn(&*device, BLOCK_A), 0);
    assert!(stamped_lsn(&*device, BLOCK_B + 2) > 0, "the tail did not move");
    let image = crash(&device);
    recover(&image);
    assert_eq!([0, 1, 2, 3].map(|n| cell_on(&*image, BLOCK_A, n)), [1, 2, 3, 4]);
}

/// J9: the hook sees the bytes as they are written, patches of objects included, and the newest LSN of both.
#[test]
fn a_block_in_place_has_the_lsn_and_checksum_of_its_bytes() {
    let (device, fs) = fixture();
    // Each of these transactions takes two sectors; the first LSN is 1.
    fs.set_one(CLUSTER, 0, 1);
    fs.journal.commit_all().unwrap();
    fs.log_one(Core::new(CLUSTER, 1, 2));
    fs.journal.commit_all().unwrap();
    fs.journal.push(100).unwrap();
    assert_eq!((stamped_lsn(&*device, CLUSTER), core_on(&*device, CLUSTER, 1)), (3, 2));
    fs.set_one(BLOCK_A, 0, 1);
    fs.journal.commit_all().unwrap();
    fs.log_one(Core::new(CLUSTER, 2, 3));
    fs.journal.commit_all().unwrap();
    fs.set_one(CLUSTER, 1, 4);
    fs.journal.commit_all().unwrap();
    fs.journal.push(100).unwrap();
    assert_eq!((stamped_lsn(&*device, CLUSTER), stamped_lsn(&*device, BLOCK_A)), (9, 5));
    assert_eq!((core_on(&*device, CLUSTER, 2), cell_on(&*device, CLUSTER, 1)), (3, 4));
}

/// J10: a block that is logged or written after its core contains the core, wherever the bytes come from.
#[test]
fn a_core_survives_records_and_writes_of_its_block() {
    let (device, fs) = fixture();
    let handle = fs.journal.begin(CREDITS).unwrap();
    fs.initialize(&handle, CLUSTER, 7);
    drop(handle);
    fs.journal.commit_all().unwrap();
    fs.log_one(Core::new(CLUSTER, 0, 1));
    fs.journal.commit_all().unwrap();
    // Repeats the whole block, which the buffer has without the core.
    fs.set_one(CLUSTER, 5, 2);
    fs.journal.commit_all().unwrap();
    let image = crash(&device);
    recover(&image);
    assert_eq!([0, 1].map(|core| core_on(&*image, CLUSTER, core)), [1, 7], "the record lost the core");
    // The core is pushed, and the block again later.
    fs.journal.push(100).unwrap();
    assert_eq!([0, 1].map(|core| core_on(&*device, CLUSTER, core)), [1, 7]);
    fs.set_one(CLUSTER, 6, 3);
    fs.journal.commit_all().unwrap();
    fs.journal.push(100).unwrap();
    assert_eq!((core_on(&*device, CLUSTER, 0), cell_on(&*device, CLUSTER, 6)), (1, 3), "the buffer lost it");
    let cached = fs.cache.get(BlockNo(CLUSTER)).unwrap().read();
    assert_eq!(value(&cached, core_offset(0)), 1);
}

/// J1 and J10: a core is written into its block without changes of the block that are not committed.
#[test]
fn a_pushed_core_takes_no_uncommitted_bytes_along() {
    let (device, fs) = fixture();
    let core = Core::new(CLUSTER, 0, 1);
    let tid = fs.log_one(core.clone());
    fs.journal.commit_all().unwrap();
    fs.set_one(CLUSTER, 0, 9);
    core.value.store(2, Ordering::SeqCst);
    fs.log_one(core.clone());
    assert_eq!(core.clean.load(Ordering::SeqCst), 0);
    fs.journal.push(100).unwrap();
    assert_eq!((core_on(&*device, CLUSTER, 0), cell_on(&*device, CLUSTER, 0)), (1, 0));
    assert_eq!(core.clean.load(Ordering::SeqCst), tid);
    fs.journal.checkpoint_all().unwrap();
    assert_eq!((core_on(&*device, CLUSTER, 0), cell_on(&*device, CLUSTER, 0)), (2, 9));
}

/// J5 with objects: a core that ends in the running transaction is not patched into the block's new use.
#[test]
fn a_push_does_not_patch_a_block_with_a_new_use() {
    let (_, fs) = fixture();
    fs.log_one(Core::new(CLUSTER, 0, 1));
    fs.journal.commit_all().unwrap();
    let handle = fs.journal.begin(CREDITS).unwrap();
    handle.forget(BlockNo(CLUSTER));
    fs.initialize(&handle, CLUSTER, 7);
    drop(handle);
    fs.journal.push(100).unwrap();
    let cached = fs.cache.get(BlockNo(CLUSTER)).unwrap().read();
    assert_eq!(value(&cached, core_offset(0)), 7);
    drop(cached);
    fs.journal.checkpoint_all().unwrap();
    assert_eq!(core_on(&*fs.device, CLUSTER, 0), 7);
}

/// J11: the tail stays at an intent until its done record is durable.
#[test]
fn an_intent_stays_until_its_done_record_is_durable() {
    let (device, fs) = fixture();
    let intent = promise(1);
    fs.log_one(Arc::new(intent));
    fs.journal.commit_all().unwrap();
    let handle = fs.journal.begin_finishing(intent.id(), 700).unwrap();
    fs.finish(&handle, intent);
    drop(handle);
    assert_eq!(fs.journal.push(100).unwrap(), Some(intent.id()));
    let image = crash(&device);
    assert_eq!(recover(&image).1.intents, [intent]);
    assert_eq!(recover(&image).1.intents, [intent], "a crash at the end of recovery lost it");
    fs.journal.commit_all().unwrap();
    assert_eq!(fs.journal.push(100).unwrap(), None);
    let image = crash(&device);
    assert!(recover(&image).1.intents.is_empty());
    assert_eq!(cell_on(&*image, SUM, 1), 1);
}

#[test]
fn an_intent_that_is_done_in_its_transaction_is_not_logged() {
    let (_, fs) = fixture();
    let handle = fs.journal.begin(CREDITS).unwrap();
    let intent: Arc<dyn LogObject> = Arc::new(promise(1));
    handle.log_object(&intent).unwrap();
    handle.finish_object(intent.id(), Some(Vec::new()));
    drop(handle);
    fs.journal.commit_all().unwrap();
    let stats = fs.journal.stats();
    assert_eq!((stats.commits, stats.empty_commits), (0, 1));
    fs.journal.shutdown().unwrap();
}

/// J12: other handles wait before they take the log space that finishing an intent needs, also if the work
/// rolls over into another transaction.
#[test]
fn handles_leave_log_space_for_finishing_an_intent() {
    let (_, fs) = fixture();
    let intent = promise(1);
    fs.log_one(Arc::new(intent));
    fs.journal.commit_all().unwrap();
    let begun = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let filler = scope.spawn(|| {
            for n in 0..60 {
                let handle = fs.journal.begin(CREDITS)?;
                begun.fetch_add(1, Ordering::SeqCst);
                fs.initialize(&handle, BLOCK_A + n % 8, n);
                drop(handle);
                fs.journal.commit_all()?;
            }
            Ok::<(), JournalError>(())
        });
        // The log has 95 sectors of 512 bytes. The intent takes two, each handle four. A handle begins as
        // long as these, 2 * 2688 for records, 700 for the intent and 4500 credits fit: 19 handles.
        let start = Instant::now();
        while begun.load(Ordering::SeqCst) < 19 && start.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        // Time for one more, if it did not wait.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(begun.load(Ordering::SeqCst), 19);
        let mut handle = fs.journal.begin_finishing(intent.id(), 700).unwrap();
        let next = Intent { number: 2, ..intent };
        let object: Arc<dyn LogObject> = Arc::new(next);
        handle.log_object(&object).unwrap();
        handle.finish_object(intent.id(), Some(Vec::new()));
        handle.restart(700).unwrap();
        fs.finish(&handle, next);
        drop(handle);
        filler.join().unwrap().unwrap();
    });
    fs.journal.shutdown().unwrap();
    assert_eq!(cell_on(&*fs.device, SUM, 1), 1);
}

/// J12: work that finishes the oldest intent waits for no newer one, although it takes more than was kept for
/// it, and the space kept for all of them does not fit beside it.
#[test]
fn finishing_the_oldest_intent_waits_for_no_newer_one() {
    let (_, fs) = fixture();
    let intents = [1, 2, 3, 4].map(promise);
    for intent in intents {
        fs.log_one(Arc::new(intent));
        fs.journal.commit_all().unwrap();
    }
    for n in 0..12 {
        let handle = fs.journal.begin(CREDITS).unwrap();
        fs.initialize(&handle, BLOCK_A + n, n);
        drop(handle);
        fs.journal.commit_all().unwrap();
    }
    // Of 95 sectors of 512 bytes 56 are in use. Beside these, 2688 for records and 12,000 credits there is
    // space for finishing one more intent (700 and 2688), not for three.
    let (journal, oldest) = (fs.journal.clone(), intents[0].id());
    let (begun, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || begun.send(journal.begin_finishing(oldest, 12_000).map(drop)));
    let answer = waiting.recv_timeout(Duration::from_secs(10)).expect("it waits for a newer intent");
    answer.unwrap();
    for intent in intents {
        let handle = fs.journal.begin_finishing(intent.id(), 700).unwrap();
        fs.finish(&handle, intent);
    }
    fs.journal.shutdown().unwrap();
}

/// J5: a block is in place and freed, and the log still holds it because of an older intent. A replay must
/// not restore it over file data: in this session, and in the one after a recovery.
#[test]
fn a_freed_block_in_place_is_revoked_while_the_log_holds_it() {
    for recovers_first in [false, true] {
        for is_core in [false, true] {
            let (mut device, mut fs) = fixture();
            let intent = promise(1);
            fs.log_one(Arc::new(intent));
            fs.journal.commit_all().unwrap();
            if is_core {
                fs.log_one(Core::new(CLUSTER, 0, 1));
            } else {
                fs.set_one(CLUSTER, 0, 1);
            }
            fs.journal.commit_all().unwrap();
            fs.journal.push(100).unwrap();
            if recovers_first {
                device = Arc::new(FaultDevice::new(crash(&device)));
                let (log, recovered) = recover(&(device.clone() as Arc<dyn Device>));
                fs = Fs::with_log(device.clone(), log);
                assert!(fs.journal.adopt(Arc::new(recovered.intents[0])));
                assert!(!fs.journal.adopt(Arc::new(promise(5))));
            }
            let handle = fs.journal.begin(CREDITS).unwrap();
            handle.forget(BlockNo(CLUSTER));
            drop(handle);
            fs.journal.commit_all().unwrap();
            device.write_fua(BlockNo(CLUSTER).offset(BLOCK), &[0xDA; BLOCK as usize]).unwrap();
            let image = crash(&device);
            assert_eq!(recover(&image).1.intents, [intent]);
            assert!(read(&*image, CLUSTER) == [0xDA; BLOCK as usize], "{recovers_first} {is_core}");
        }
    }
}

#[test]
fn an_unfinished_intent_refuses_a_clean_shutdown() {
    let (device, fs) = fixture();
    fs.log_one(Arc::new(promise(1)));
    assert!(matches!(fs.journal.shutdown(), Err(JournalError::UnfinishedIntents { count: 1 })));
    let image = crash(&device);
    let (log, recovered) = recover(&image);
    assert_eq!(recovered.intents, [promise(1)]);
    // Not adopted: refused as well.
    let fs = Fs::with_log(image.clone(), log);
    assert!(matches!(fs.journal.begin(1), Err(JournalError::UnfinishedIntents { count: 1 })));
    assert!(fs.journal.shutdown().is_err());
    assert_eq!(recover(&image).1.intents, [promise(1)]);
}

/// Objects are not in the budget of the cache. Those of a transaction and the active ones take bounded memory
/// also if the log has space for many more.
#[test]
fn many_objects_are_committed_and_pushed() {
    let device: Arc<dyn Device> = Arc::new(formatted());
    let log = RangeLog::open(device.clone(), LOG, SECTORS).unwrap();
    let fs = Fs::with_options(device, log, JournalOptions::default().with_checkpoint_bytes(16 << 10));
    for number in 0..150 {
        fs.log_one(Core::new(CLUSTER + number / CORES, number % CORES, number));
    }
    // About 800 bytes each: 6 fit a transaction, and 21 are active when a push begins.
    let stats = fs.journal.stats();
    assert!(stats.commits >= 20, "{stats:?}");
    // The second commit after the one that requests a push begins after it.
    assert!(stats.checkpoints >= 1, "{stats:?}");
    fs.journal.shutdown().unwrap();
}

/// A log of ranges has space for small changes of many buffers. All these buffers stay in memory until a
/// commit, so their memory starts one.
#[test]
fn many_changed_buffers_are_committed() {
    let device: Arc<dyn Device> = Arc::new(formatted());
    let log = RangeLog::open(device.clone(), LOG, SECTORS).unwrap();
    let bytes = 32 * u64::from(BLOCK);
    let fs = Fs::with_options(device, log, JournalOptions::default().with_checkpoint_bytes(bytes));
    for number in 0..16 {
        fs.set_one(300 + number, 0, number);
    }
    assert_eq!(fs.journal.stats().commits, 0);
    for number in 0..20 {
        fs.set_one(330 + number, 0, number);
    }
    assert!(fs.journal.stats().commits >= 1);
    fs.journal.shutdown().unwrap();
}
