//! Intents that a crashed session left: reported, kept in the log, and finished.

use crate::power_cuts::formatted;
use crate::volume::{Volume, superblock};
use ivers_block::{BlockNo, Device};
use ivers_journal::{JournalError, LogObject, ObjectId, Patch};
use ivers_xfs::log::open_for_writing;
use std::sync::Arc;

/// An intent that frees an extent (EFI), and its done item.
pub struct Free {
    pub number: u64,
    pub start: u64,
    pub blocks: u32,
}

impl LogObject for Free {
    fn id(&self) -> ObjectId {
        ObjectId { kind: 2, number: self.number }
    }

    fn record(&self) -> Arc<[u8]> {
        // One region and one extent, the id, the extent.
        let mut record = vec![1, 0, 1, 0, 0, 0];
        record.extend(self.number.to_le_bytes());
        record.extend(self.start.to_le_bytes());
        record.extend(self.blocks.to_le_bytes());
        record.extend([0; 4]);
        record.into()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        None
    }

    fn finish_credits(&self) -> u32 {
        1000
    }
}

/// An intent that takes too much of the log to be finished.
struct Costly(Arc<Free>);

impl LogObject for Costly {
    fn id(&self) -> ObjectId {
        self.0.id()
    }

    fn record(&self) -> Arc<[u8]> {
        self.0.record()
    }

    fn patch(&self) -> Option<Arc<Patch>> {
        None
    }

    fn finish_credits(&self) -> u32 {
        150_000
    }
}

/// Intents that free a block each, with these numbers.
fn frees(numbers: std::ops::Range<u64>) -> Vec<Arc<Free>> {
    numbers.map(|number| Arc::new(Free { number, start: 3000 + number, blocks: 1 })).collect()
}

/// Logs each in a transaction of its own.
fn log_one_by_one(volume: &Volume, intents: &[Arc<Free>]) {
    for intent in intents {
        let handle = volume.begin();
        let object: Arc<dyn LogObject> = intent.clone();
        handle.log_object(&object).unwrap();
        drop(handle);
        volume.journal.commit_all().unwrap();
    }
}

#[test]
fn intents_that_the_log_cannot_finish_are_an_error() {
    let device: Arc<dyn Device> = formatted(512, 512, 64);
    let (volume, _) = Volume::open(device.clone());
    let intents = frees(1..3);
    log_one_by_one(&volume, &intents);
    drop(volume);
    let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
    let volume = Volume::with_log(device, opened.log);
    for intent in &intents {
        assert!(volume.journal.adopt(Arc::new(Costly(intent.clone()))));
    }
    // Waiting would give no space.
    let refused = volume.journal.begin_finishing(intents[0].id(), 1000).map(drop);
    assert!(matches!(refused, Err(JournalError::TooLarge { charge: 1000, .. })), "{refused:?}");
}

#[test]
fn intents_that_a_crash_left_are_kept_until_they_are_finished() {
    let device: Arc<dyn Device> = formatted(512, 512, 64);
    let (volume, _) = Volume::open(device.clone());
    let intents = frees(1..4);
    let change = |volume: &Volume, round: u64| {
        let handle = volume.begin();
        volume.change(&handle, volume.sb.root, |inode| inode.set_mtime(round));
        let buffer = volume.cache.get(BlockNo(1)).unwrap();
        handle.modify(&buffer, |_| ());
    };
    change(&volume, 1);
    log_one_by_one(&volume, &intents);
    let handle = volume.journal.begin_finishing(intents[1].id(), 1000).unwrap();
    handle.finish_object(intents[1].id(), Some(intents[1].record().to_vec()));
    drop(handle);
    volume.journal.commit_all().unwrap();
    assert!(volume.journal.shutdown().is_err(), "two intents are not finished");
    drop(volume);

    // Several sessions that finish nothing see the same intents.
    for session in 0..3 {
        let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
        let found: Vec<_> = opened.intents.iter().map(|intent| intent.id).collect();
        assert_eq!(found, [1, 3], "session {session}");
        assert!(opened.transactions.is_some());
        let volume = Volume::with_log(device.clone(), opened.log);
        let refused = volume.journal.begin(1000).map(drop);
        assert!(matches!(refused, Err(JournalError::UnfinishedIntents { count: 2 })), "{refused:?}");
        for intent in [&intents[0], &intents[2]] {
            assert!(volume.journal.adopt(intent.clone()), "it is in the log");
        }
        // The log goes on, and its tail stays at the first intent.
        for round in 0..2 {
            change(&volume, session * 100 + round);
            volume.journal.commit_all().unwrap();
            volume.journal.push(100).unwrap();
        }
    }
    let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
    let volume = Volume::with_log(device.clone(), opened.log);
    for intent in [&intents[0], &intents[2]] {
        assert!(volume.journal.adopt(intent.clone()));
    }
    for intent in [&intents[0], &intents[2]] {
        let handle = volume.journal.begin_finishing(intent.id(), 1000).unwrap();
        handle.finish_object(intent.id(), Some(intent.record().to_vec()));
        drop(handle);
        volume.journal.commit_all().unwrap();
    }
    // Once around the ring: the tail moves again.
    for round in 0..120 {
        change(&volume, round);
        volume.journal.commit_all().unwrap();
    }
    volume.journal.shutdown().unwrap();
    drop(volume);
    assert_eq!(Volume::open(device).1, None);
}
