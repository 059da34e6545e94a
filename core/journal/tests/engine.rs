//! Tests of the engine through its public interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ivers_block::{BlockNo, Budget, BufferCache, ByteOffset, Device, Fault, FaultDevice, MemDevice};
use ivers_journal::jbd2::{FormatOptions, Jbd2Log, Jbd2Options, LogMap, format_superblock};
use ivers_journal::{Journal, JournalError, JournalOptions};

const BLOCK: u32 = 1024;

struct Fixture {
    device: Arc<FaultDevice>,
    cache: Arc<BufferCache>,
    journal: Journal,
}

fn log(device: Arc<dyn Device>) -> Jbd2Log {
    let options = Jbd2Options { block_size: BLOCK, fs_blocks: 4096, uuid: None };
    Jbd2Log::open(device, LogMap::contiguous(BlockNo(1), 256), options).unwrap()
}

fn fixture_with(options: JournalOptions, budget: u64) -> Fixture {
    let base = MemDevice::new(4096 * u64::from(BLOCK));
    let format =
        FormatOptions { block_size: BLOCK, blocks: 256, uuid: [1; 16], checksums: true, is_64bit: true };
    base.write_at(ByteOffset(u64::from(BLOCK)), &format_superblock(&format).unwrap()).unwrap();
    let device = Arc::new(FaultDevice::new(Arc::new(base)));
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK, Arc::new(Budget::new(budget))));
    let journal = Journal::open(Box::new(log(device.clone())), cache.clone(), options).unwrap();
    Fixture { device, cache, journal }
}

fn fixture() -> Fixture {
    fixture_with(JournalOptions::default().with_commit_interval(Duration::from_secs(3600)), u64::MAX)
}

impl Fixture {
    fn set(&self, block: u64, value: u8) -> u64 {
        let handle = self.journal.begin(1).unwrap();
        handle.modify(&self.cache.get(BlockNo(block)).unwrap(), |bytes| bytes.fill(value));
        handle.tid()
    }

    fn on_disk(&self, block: u64) -> u8 {
        let mut byte = [0];
        self.device.read_at(BlockNo(block).offset(BLOCK), &mut byte).unwrap();
        byte[0]
    }
}

#[test]
fn only_a_checkpoint_writes_blocks_in_place() {
    let r = fixture();
    let tid = r.set(1000, 5);
    r.cache.sync().unwrap();
    assert_eq!(r.on_disk(1000), 0);
    assert!(!r.journal.is_committed(tid));
    r.journal.commit(tid).unwrap();
    assert!(r.journal.is_committed(tid));
    r.cache.sync().unwrap();
    assert_eq!(r.on_disk(1000), 0);
    // Changed again and not committed: the checkpoint writes what was committed.
    r.set(1000, 6);
    r.journal.commit(tid).unwrap();
    let image = r.device.image(r.device.len()).unwrap();
    let mut log = log(Arc::new(image));
    assert_eq!(log.recover().unwrap().blocks, 1);
    r.journal.checkpoint_all().unwrap();
    assert_eq!(r.on_disk(1000), 6);
    let stats = r.journal.stats();
    assert_eq!((stats.commits, stats.items, stats.journal_blocks), (2, 2, 6));
    assert_eq!(stats.journal_bytes, 6 * u64::from(BLOCK));
}

#[test]
fn logged_buffers_are_not_evicted_under_a_small_budget() {
    let r = fixture_with(JournalOptions::default().with_commit_interval(Duration::from_secs(3600)), 4096);
    for block in 1000..1040 {
        r.set(block, 3);
    }
    for block in 2000..2500 {
        r.cache.get(BlockNo(block)).unwrap();
    }
    for round in 0..2 {
        for block in 1000..1040 {
            assert_eq!(r.cache.get(BlockNo(block)).unwrap().read()[0], 3);
        }
        assert!(round == 1 || r.on_disk(1000) == 0);
        r.journal.checkpoint_all().unwrap();
    }
    for block in 2000..2100 {
        r.cache.get(BlockNo(block)).unwrap();
    }
    r.cache.shrink();
    assert!(!r.cache.budget().over());
    assert_eq!(r.cache.get(BlockNo(1039)).unwrap().read()[0], 3);
}

#[test]
fn begin_does_not_wait_for_the_log_writes_of_a_commit() {
    let r = fixture();
    let tid = r.set(1000, 1);
    r.device.inject(r.device.writes() + 1, Fault::Stall(Duration::from_millis(600)));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| r.journal.commit(tid).unwrap());
        std::thread::sleep(Duration::from_millis(150));
        let start = Instant::now();
        // The block that the commit is writing to the log.
        let next = r.set(1000, 2);
        assert!(start.elapsed() < Duration::from_millis(200), "begin waited for the writes to the log");
        assert!(next > tid);
        commit.join().unwrap();
    });
    let image = r.device.image(r.device.len()).unwrap();
    log(Arc::new(image)).recover().unwrap();
}

#[test]
fn concurrent_callers_share_a_commit() {
    let r = fixture();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let r = &r;
            scope.spawn(move || {
                for n in 0..20 {
                    r.device.inject(r.device.writes() + 2, Fault::Stall(Duration::from_millis(1)));
                    let tid = r.set(1000 + thread, n);
                    r.journal.commit(tid).unwrap();
                    assert!(r.journal.is_committed(tid));
                }
            });
        }
    });
    let stats = r.journal.stats();
    assert!(stats.commits < 120, "160 calls took {} commits", stats.commits);
}

#[test]
fn a_write_error_aborts_the_journal() {
    let r = fixture();
    let durable = r.set(1000, 1);
    r.journal.commit(durable).unwrap();
    let tid = r.set(1001, 2);
    r.device.inject(r.device.writes(), Fault::Fail);
    assert!(matches!(r.journal.commit(tid), Err(JournalError::Block(_))));
    let writes = r.device.writes();
    assert!(matches!(r.journal.begin(1), Err(JournalError::Aborted { .. })));
    assert!(matches!(r.journal.commit(tid), Err(JournalError::Aborted { .. })));
    assert!(matches!(r.journal.commit_all(), Err(JournalError::Aborted { .. })));
    assert!(matches!(r.journal.checkpoint_all(), Err(JournalError::Aborted { .. })));
    assert!(r.journal.shutdown().is_err());
    assert!(r.journal.aborted().unwrap().contains("injected"));
    // The earlier commit stays acknowledged, and nothing is written after the error.
    r.journal.commit(durable).unwrap();
    assert_eq!(r.device.writes(), writes);
    let image = Arc::new(r.device.image(r.device.len()).unwrap());
    assert_eq!(log(image.clone()).recover().unwrap().transactions, 1);
}

#[test]
fn a_handle_open_during_an_abort_can_still_be_used_and_dropped() {
    let r = fixture();
    let handle = r.journal.begin(2).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| r.journal.commit_all());
        std::thread::sleep(Duration::from_millis(50));
        r.journal.abort("no reason");
        assert!(commit.join().unwrap().is_err());
    });
    handle.modify(&r.cache.get(BlockNo(1000)).unwrap(), |bytes| bytes.fill(1));
    assert!(handle.check().is_err());
    drop(handle);
    assert!(r.journal.begin(1).is_err());
}

#[test]
fn callbacks_run_after_the_commit() {
    let r = fixture();
    let called = Arc::new(AtomicU64::new(0));
    let handle = r.journal.begin(1).unwrap();
    let count = called.clone();
    handle.on_commit(Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    drop(handle);
    assert_eq!(called.load(Ordering::SeqCst), 0);
    r.journal.commit_all().unwrap();
    assert_eq!(called.load(Ordering::SeqCst), 1);
    assert_eq!(r.journal.stats().empty_commits, 1);
}

#[test]
fn a_transaction_that_is_nearly_full_commits_in_the_background() {
    let r = fixture();
    let most = u64::from(r.journal.max_credits());
    let quarters = most / 4 * 3;
    (1000..1000 + quarters).for_each(|block| _ = r.set(block, 1));
    let tid = r.set(3000, 1);
    assert!(!r.journal.is_committed(tid));
    // The transaction has more than three quarters when this handle begins. No handle waits for space.
    let tid = r.set(3001, 1);
    let start = Instant::now();
    while !r.journal.is_committed(tid) && r.journal.current_tid() == tid {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing commits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_commit_thread_commits_after_the_interval() {
    let r = fixture_with(JournalOptions::default().with_commit_interval(Duration::from_millis(40)), u64::MAX);
    let tid = r.set(1000, 1);
    let start = Instant::now();
    while !r.journal.is_committed(tid) {
        assert!(start.elapsed() < Duration::from_secs(10), "the commit thread does not run");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn handles_extend_and_restart_up_to_the_limit() {
    let r = fixture();
    let most = r.journal.max_credits();
    assert!(most >= 32, "{most}");
    assert!(matches!(r.journal.begin(most + 1), Err(JournalError::TooLarge { .. })));
    let mut handle = r.journal.begin(most).unwrap();
    let first = handle.tid();
    for block in 0..u64::from(most) {
        handle.modify(&r.cache.get(BlockNo(1000 + block)).unwrap(), |bytes| bytes.fill(1));
    }
    assert!(!handle.extend(1).unwrap());
    handle.restart(1).unwrap();
    assert!(handle.tid() > first);
    assert!(handle.extend(5).unwrap());
    drop(handle);
    // More than the log holds, without a call of commit: begin makes space.
    for n in 0..600u64 {
        r.set(1000 + n, 7);
    }
    r.journal.shutdown().unwrap();
    r.journal.shutdown().unwrap();
    assert_eq!((r.on_disk(1000), r.on_disk(1599)), (7, 7));
    assert!(!log(r.device.clone()).needs_recovery());
}

#[test]
fn no_journal_mode_writes_in_place_on_commit() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(1 << 20))));
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK, Arc::new(Budget::unlimited())));
    let journal = Journal::none(cache.clone());
    assert!(journal.is_none());
    let handle = journal.begin(1000).unwrap();
    for block in [5, 6, 9] {
        handle.modify_range(&cache.get(BlockNo(block)).unwrap(), 3..5, |bytes| bytes.fill(4));
    }
    handle.forget(BlockNo(9));
    let freed = Arc::new(AtomicBool::new(false));
    let flag = freed.clone();
    handle.on_commit(Box::new(move || flag.store(true, Ordering::SeqCst)));
    let tid = handle.tid();
    assert!(device.is_empty());
    drop(handle);
    assert!(freed.load(Ordering::SeqCst));
    journal.commit(tid).unwrap();
    let mut bytes = [0; 8];
    device.read_at(BlockNo(5).offset(BLOCK), &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 4, 4, 0, 0, 0]);
    device.read_at(BlockNo(9).offset(BLOCK), &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    assert_eq!((device.writes(), cache.stats().writes), (1, 2));
    journal.shutdown().unwrap();
    assert!(journal.begin(1).is_err());
}

#[test]
fn no_journal_mode_commits_after_the_interval() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(1 << 20))));
    let cache = Arc::new(BufferCache::new(device.clone(), BLOCK, Arc::new(Budget::unlimited())));
    let journal = Journal::none_with_interval(cache.clone(), Duration::from_millis(20)).unwrap();
    for block in [5, 6] {
        let handle = journal.begin(1).unwrap();
        handle.modify(&cache.get(BlockNo(block)).unwrap(), |bytes| bytes.fill(4));
        drop(handle);
        let durable = || {
            let image = device.image_where(device.len(), |_| false).unwrap();
            let mut byte = [0];
            image.read_at(BlockNo(block).offset(BLOCK), &mut byte).unwrap();
            byte == [4]
        };
        let start = Instant::now();
        while !durable() {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let events = device.len();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(device.len(), events, "an idle journal writes nothing");
}

#[test]
fn dropping_the_journal_ends_the_commit_thread() {
    let r = fixture_with(JournalOptions::default().with_commit_interval(Duration::from_millis(5)), u64::MAX);
    let cache = Arc::downgrade(&r.cache);
    r.set(1000, 1);
    drop(r);
    let start = Instant::now();
    while cache.strong_count() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A driver may find a change incomplete after its handle has ended, when a commit has begun.
#[test]
fn an_abort_before_the_commit_record_prevents_the_commit() {
    let r = fixture();
    let tid = r.set(1000, 5);
    // The first write is the superblock of the log, the second one its blocks.
    r.device.inject(r.device.writes() + 1, Fault::Stall(Duration::from_millis(300)));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| r.journal.commit(tid));
        std::thread::sleep(Duration::from_millis(100));
        r.journal.abort("a change is incomplete");
        assert!(commit.join().unwrap().is_err());
    });
    assert_eq!(log(r.device.clone()).recover().unwrap().transactions, 0);
}

#[test]
fn a_panic_with_an_open_handle_aborts_the_journal() {
    let r = fixture();
    let tid = r.set(1000, 5);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let handle = r.journal.begin(2).unwrap();
        handle.modify(&r.cache.get(BlockNo(1001)).unwrap(), |bytes| bytes.fill(1));
        panic!("with an open handle");
    }));
    assert!(unwound.is_err());
    assert!(matches!(r.journal.commit(tid), Err(JournalError::Aborted { .. })));
}

/// With a push of less than everything, the tail of a JBD2 log moves to a later transaction.
#[test]
fn a_push_frees_a_part_of_the_log() {
    let r = fixture();
    for (block, value) in [(1000, 1), (1001, 2)] {
        let tid = r.set(block, value);
        r.journal.commit(tid).unwrap();
    }
    // 254 blocks, of which three may stay in use: descriptor, block, commit record.
    assert_eq!(r.journal.push(99).unwrap(), None);
    assert_eq!((r.on_disk(1000), r.on_disk(1001)), (1, 0));
    let image = Arc::new(r.device.image(r.device.len()).unwrap());
    assert_eq!(log(image.clone()).recover().unwrap().transactions, 1);
    r.journal.push(100).unwrap();
    assert_eq!(r.on_disk(1001), 2);
    r.journal.shutdown().unwrap();
    assert!(!log(r.device.clone()).needs_recovery());
}

#[test]
fn a_log_of_blocks_refuses_objects() {
    struct Object;
    impl ivers_journal::LogObject for Object {
        fn id(&self) -> ivers_journal::ObjectId {
            ivers_journal::ObjectId { kind: 1, number: 1 }
        }
        fn record(&self) -> Arc<[u8]> {
            [1].into()
        }
        fn patch(&self) -> Option<Arc<ivers_journal::Patch>> {
            None
        }
    }
    let r = fixture();
    let handle = r.journal.begin(1).unwrap();
    let object: Arc<dyn ivers_journal::LogObject> = Arc::new(Object);
    assert!(matches!(handle.log_object(&object), Err(JournalError::ObjectsUnsupported)));
    drop(handle);
    r.journal.shutdown().unwrap();
}

#[test]
fn without_a_log_objects_and_units_are_written_in_place() {
    use ivers_block::{BlockNo, Unit};
    use ivers_journal::{LogObject, ObjectId, Patch};
    struct Object(Unit);
    impl LogObject for Object {
        fn id(&self) -> ObjectId {
            ObjectId { kind: 1, number: 1 }
        }
        fn record(&self) -> Arc<[u8]> {
            [1].into()
        }
        fn patch(&self) -> Option<Arc<Patch>> {
            let bytes = [5, 5, 5, 5, 6, 6, 6, 6].into();
            Some(Arc::new(Patch { unit: self.0.clone(), bytes, pieces: [(1000, 0..4), (1022, 4..8)].into() }))
        }
    }
    let device = Arc::new(MemDevice::new(1 << 20));
    let cache = Arc::new(BufferCache::new(device.clone(), 1024, Arc::new(Budget::unlimited())));
    let options = JournalOptions::default().with_write_hook(|blocks, lsn, bytes| {
        assert_eq!(lsn, 0);
        bytes[0] = blocks.len() as u8;
    });
    let journal = Journal::none_with(cache.clone(), options);
    let unit = Unit::new(&[BlockNo(9), BlockNo(3)]);
    let handle = journal.begin(1).unwrap();
    let buffer = cache.new_unit(&unit).unwrap();
    handle.modify(&buffer, |bytes| bytes.fill(1));
    let object: Arc<dyn LogObject> = Arc::new(Object(unit.clone()));
    handle.log_object(&object).unwrap();
    assert_eq!(journal.newest_patch(object.id()), None, "it is in the buffer");
    drop(handle);
    journal.commit_all().unwrap();
    let mut bytes = vec![0; 2048];
    device.read_at(BlockNo(9).offset(1024), &mut bytes[..1024]).unwrap();
    device.read_at(BlockNo(3).offset(1024), &mut bytes[1024..]).unwrap();
    let mut expected = vec![1; 2048];
    expected[0] = 2;
    expected[1000..1004].fill(5);
    expected[1022..1026].fill(6);
    assert_eq!(bytes, expected);
    // A freed unit is not written.
    let handle = journal.begin(1).unwrap();
    handle.modify(&buffer, |bytes| bytes.fill(2));
    handle.forget_unit(&unit);
    drop(handle);
    journal.shutdown().unwrap();
    device.read_at(BlockNo(9).offset(1024), &mut bytes[..1024]).unwrap();
    assert_eq!(bytes, expected);
}

/// Debug builds assert the order of locks. In a release build these threads would wait forever, or could.
#[cfg(debug_assertions)]
mod lock_order {
    use super::*;
    use ivers_sync::{RankedMutex, rank};

    #[test]
    #[should_panic(expected = "JournalLog (key 0) is taken while Handle (key 0) is held")]
    fn a_commit_with_an_open_handle_panics() {
        let r = fixture();
        let handle = r.journal.begin(1).unwrap();
        let _ = r.journal.commit(handle.tid());
    }

    #[test]
    #[should_panic(expected = "Handle (key 0) is taken while Handle (key 0) is held")]
    fn a_second_handle_of_a_thread_panics() {
        let r = fixture();
        let _first = r.journal.begin(1);
        let _second = r.journal.begin(1);
    }

    #[test]
    #[should_panic(expected = "Handle (key 0) is taken while Driver (key 0) is held")]
    fn a_restart_with_a_lock_of_the_driver_panics() {
        let r = fixture();
        let lock = RankedMutex::<rank::Driver<0>, _>::new(());
        let mut handle = r.journal.begin(1).unwrap();
        let _held = lock.lock();
        let _ = handle.restart(1);
    }

    #[test]
    #[should_panic(expected = "Handle (key 0) is taken while Handle (key 0) is held")]
    fn a_callback_that_begins_a_handle_panics() {
        let r = fixture();
        let handle = r.journal.begin(1).unwrap();
        let journal = r.journal.clone();
        handle.on_commit(Box::new(move || drop(journal.begin(1))));
        drop(handle);
        let _ = r.journal.commit_all();
    }
}
