//! The epoch that a mount serves, for drivers that keep an [epoch record](crate::epoch).

use crate::epoch::{Decision, EPOCH_SHIFT, EpochRecord, Found, base_of, decide};
use crate::raises::{RAISED_BY, Raises};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::ValidUntil;

/// The epoch of a mount, and what the record says or will say.
#[derive(Debug, Default)]
pub struct ServedEpoch {
    /// The base that is added to counters: the epoch, shifted.
    base: AtomicU64,
    /// The epoch in the record. It is higher than the served one after [`ServedEpoch::raise_stored`], or if
    /// no change attribute is served.
    stored: RankedMutex<rank::Leaf, u64>,
    /// The reason why no change attribute is served.
    missing: RankedMutex<rank::Leaf, Option<String>>,
    is_missing: AtomicBool,
    stays_open: AtomicBool,
    /// What shows a foreign writer, as unmount will leave it.
    fingerprint: RankedMutex<rank::Leaf, [u8; 16]>,
    /// Why the epoch rose to the served one.
    raises: RankedMutex<rank::Leaf, Raises>,
}

impl ServedEpoch {
    /// Decides the epoch from what a driver found, and logs why it rose. `None`: the record is invalid, and
    /// no change attribute is served.
    pub fn decide(&self, found: &Found<'_>, place: &str) -> Option<Decision> {
        match decide(found) {
            Ok(decision) => {
                if let Some(why) = decision.raised {
                    log::info!("{place}: epoch {}: {why}", decision.epoch);
                }
                Some(decision)
            }
            Err(why) => {
                self.stop_serving(format!(
                    "{why}; to start over, remove the attribute trusted.ivers.epoch from the root"
                ));
                None
            }
        }
    }

    /// Decides which values a session that writes nothing serves. It cannot record what it hands out, so it
    /// serves an epoch only if that is the recorded one: later writers start above it. Otherwise, if each
    /// writer changes the fingerprint (`shows_writers`), stored values are valid until a program writes.
    /// Returns `None` if the values are persistent.
    pub fn serve_reader(&self, found: &Found<'_>, shows_writers: bool) -> Option<ValidUntil> {
        let record = match found.record.map(EpochRecord::decode) {
            Some(Err(why)) => return Some(ValidUntil::Unmount(Some(why))),
            Some(Ok(record)) => Some(record),
            None => None,
        };
        if record.is_some_and(|record| record.open) {
            return Some(ValidUntil::Unmount(Some("the last session of ivers did not end cleanly")));
        }
        if !found.clean {
            return Some(ValidUntil::Unmount(Some("the filesystem was not closed cleanly")));
        }
        let is_unchanged = decide(found).is_ok_and(|decision| decision.raised.is_none());
        if let Some(record) = record.filter(|_| is_unchanged) {
            self.serve(record.epoch, record.raises, record.fingerprint);
            return None;
        }
        if !shows_writers {
            let why = "a system that mounted it for writing did not unmount it";
            return Some(ValidUntil::Unmount(Some(why)));
        }
        self.serve(0, Raises::default(), found.fingerprint);
        Some(ValidUntil::Write(found.fingerprint))
    }

    /// Serves this epoch from now on.
    pub fn serve(&self, epoch: u64, raises: Raises, fingerprint: [u8; 16]) {
        self.base.store(base_of(epoch), Ordering::Release);
        *self.stored.lock() = epoch;
        *self.raises.lock() = raises;
        *self.fingerprint.lock() = fingerprint;
    }

    /// Returns facts for [`FileSystem::describe`](crate::FileSystem::describe): the epoch, and why it rose.
    pub fn describe(&self) -> [(String, String); 2] {
        let epoch = self.base() >> EPOCH_SHIFT;
        [("epoch".into(), epoch.to_string()), (RAISED_BY.into(), self.raises.lock().to_string())]
    }

    /// What is added to counters.
    pub fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    /// Why no change attribute is served, if so.
    pub fn missing(&self) -> Option<String> {
        self.missing.lock().clone()
    }

    /// Whether no change attribute is served.
    pub fn is_missing(&self) -> bool {
        self.is_missing.load(Ordering::Acquire)
    }

    /// Leaves the record OPEN at unmount: the next mount raises the epoch.
    pub fn keep_open(&self) {
        self.stays_open.store(true, Ordering::Release);
    }

    /// Whether unmount writes a CLOSED record.
    pub fn closes(&self) -> bool {
        !self.is_missing() && !self.stays_open.load(Ordering::Acquire)
    }

    /// Serves no change attribute from now on.
    pub fn stop_serving(&self, why: impl Into<String>) {
        let why = why.into();
        log::warn!("no change attribute: {why}");
        self.serve_nothing(why);
    }

    /// Does the same without a warning.
    pub fn serve_nothing(&self, why: impl Into<String>) {
        *self.missing.lock() = Some(why.into());
        self.is_missing.store(true, Ordering::Release);
    }

    /// Sets what shows a foreign writer, as unmount leaves it.
    pub fn set_fingerprint(&self, fingerprint: [u8; 16]) {
        *self.fingerprint.lock() = fingerprint;
    }

    /// Raises the epoch of the record above the served one. False: it is above already, or nothing is served.
    pub fn raise_stored(&self) -> bool {
        if self.is_missing() {
            return false;
        }
        let mut stored = self.stored.lock();
        let raises = base_of(*stored) == self.base();
        *stored += u64::from(raises);
        raises
    }

    /// The record to store.
    pub fn record(&self, uuid: [u8; 16], open: bool) -> EpochRecord {
        let epoch = *self.stored.lock();
        let fingerprint = *self.fingerprint.lock();
        let mut raises = *self.raises.lock();
        if base_of(epoch) != self.base() {
            // This session itself raises it for the next one.
            raises = raises.with(None, 1);
        }
        EpochRecord { open, uuid, epoch, fingerprint, raises }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::OtherWriters;

    #[test]
    fn a_raised_record_is_above_the_served_epoch_once() {
        let epoch = ServedEpoch::default();
        epoch.serve(7, Raises::from_bits(2), [1; 16]);
        assert_eq!(epoch.record([2; 16], true).raises, Raises::from_bits(2));
        assert!(epoch.raise_stored() && !epoch.raise_stored());
        assert_eq!(epoch.record([2; 16], true).raises, Raises::from_bits(2 << 2), "not by anyone else");
        assert_eq!((epoch.record([2; 16], true).epoch, epoch.base()), (8, base_of(7)));
        epoch.stop_serving("a test");
        assert!(!epoch.closes() && !epoch.raise_stored() && epoch.missing().is_some());
    }

    #[test]
    fn a_reader_serves_what_no_writer_can_make_wrong() {
        let record = EpochRecord {
            open: false,
            uuid: [2; 16],
            epoch: 7,
            fingerprint: [1; 16],
            raises: Raises::default(),
        };
        let (closed, open) = (record.encode(), EpochRecord { open: true, ..record }.encode());
        let found = Found {
            record: Some(&closed),
            uuid: [2; 16],
            fingerprint: [1; 16],
            clean: true,
            trust_foreign: false,
            read_only: true,
            others: OtherWriters::ByFingerprint,
        };
        let reads = |found: Found<'_>, shows_writers| {
            let epoch = ServedEpoch::default();
            (epoch.serve_reader(&found, shows_writers), epoch.base())
        };
        let until_write = |mark| (Some(ValidUntil::Write([mark; 16])), 0);
        for shows_writers in [true, false] {
            assert_eq!(reads(found, shows_writers), (None, base_of(7)));
        }
        assert_eq!(reads(Found { record: None, ..found }, true), until_write(1));
        assert_eq!(reads(Found { fingerprint: [3; 16], ..found }, true), until_write(3));
        assert_eq!(reads(Found { uuid: [3; 16], ..found }, true), until_write(1));
        for (found, shows_writers, why) in [
            (Found { fingerprint: [3; 16], ..found }, false, "did not unmount"),
            (Found { record: None, ..found }, false, "did not unmount"),
            (Found { record: Some(&open), ..found }, true, "did not end cleanly"),
            (Found { clean: false, ..found }, true, "not closed cleanly"),
            (Found { record: Some(&[0; 48]), ..found }, true, "unknown version"),
        ] {
            let until = reads(found, shows_writers);
            assert!(
                matches!(until, (Some(ValidUntil::Unmount(Some(said))), 0) if said.contains(why)),
                "{until:?}"
            );
        }
    }

    #[test]
    fn an_invalid_record_serves_nothing() {
        let epoch = ServedEpoch::default();
        let found = Found {
            record: Some(&[1, 2, 3]),
            uuid: [0; 16],
            fingerprint: [0; 16],
            clean: true,
            trust_foreign: false,
            read_only: false,
            others: OtherWriters::ByFingerprint,
        };
        assert!(epoch.decide(&found, "image").is_none() && epoch.is_missing());
        let decision = epoch.decide(&Found { record: None, ..found }, "image");
        assert_eq!(decision, Some(Decision { epoch: 1, raised: None, raises: Raises::default() }));
    }
}
