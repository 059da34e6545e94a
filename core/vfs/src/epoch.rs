//! The epoch record: it keeps the change attribute from vouching for other contents after a crash or a
//! foreign writer.
//!
//! A counter that lost bumps could show a value twice. So every filesystem that can store attributes keeps a
//! small record on its root, and every value handed out is `stored + epoch * 2^40`. The epoch rises whenever
//! bumps may have been lost or another program may have written.
//!
//! The record has [`RECORD_LEN`] bytes, which fit in the attribute space of a 256-byte ext4 inode:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version of the record, 1 |
//! | 1 | 1: OPEN, 0: CLOSED |
//! | 2..4 | why the epoch rose in its last eight steps: [`Raises`], little-endian |
//! | 4..20 | UUID of the filesystem |
//! | 20..28 | epoch |
//! | 28..44 | fingerprint: 16 bytes that a foreign writer changes; the driver decides which |
//! | 44..48 | crc32c of the bytes before |

use crate::raises::{Cause, Raises};

/// Name of the attribute that stores the record.
pub const EPOCH_XATTR: &[u8] = b"trusted.ivers.epoch";
/// Length of the record in bytes.
pub const RECORD_LEN: usize = 48;
/// An epoch is shifted by this many bits.
pub const EPOCH_SHIFT: u32 = 40;
/// Why a driver serves no stored values if it cannot read the record.
pub const UNREADABLE_RECORD: &str = "the epoch record cannot be read";
const VERSION: u8 = 1;
/// No filesystem is mounted this often. A larger value was not written by ivers, and raising it must not
/// overflow.
const EPOCH_MAX: u64 = u64::MAX / 2;

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochRecord {
    /// OPEN: a session is running, or ended without closing.
    pub open: bool,
    /// The filesystem that it was written for.
    pub uuid: [u8; 16],
    /// The epoch.
    pub epoch: u64,
    /// What shows a foreign writer, as the last session left it: the driver takes it from fields that each
    /// writer changes. Only compared for equality.
    pub fingerprint: [u8; 16],
    /// Why the epoch rose to this one.
    pub raises: Raises,
}

/// How a driver knows whether another program has written since a session of ivers that did not end cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherWriters {
    /// A session leaves the fingerprint as it is until it ends, and then a record that stays OPEN gets the
    /// new one. So it tells.
    ByFingerprint,
    /// The driver found out, or (`None`) could not.
    Known(Option<bool>),
}

/// What a driver finds when it opens a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The attribute, if it exists.
    pub record: Option<&'a [u8]>,
    /// The filesystem's UUID.
    pub uuid: [u8; 16],
    /// The fingerprint as it is now.
    pub fingerprint: [u8; 16],
    /// Whether it was closed cleanly, by any program.
    pub clean: bool,
    /// Ignore foreign writers.
    pub trust_foreign: bool,
    /// This session writes nothing, so it cannot record the values that it hands out.
    pub read_only: bool,
    /// How to tell whether another program has written since a session that did not end cleanly.
    pub others: OtherWriters,
}

/// The epoch to serve, and why it rose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The epoch.
    pub epoch: u64,
    /// Why it is not the recorded one.
    pub raised: Option<&'static str>,
    /// Why the epoch rose to this one.
    pub raises: Raises,
}

impl EpochRecord {
    /// The bytes to store.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[0] = VERSION;
        bytes[1] = u8::from(self.open);
        bytes[2..4].copy_from_slice(&self.raises.to_bits().to_le_bytes());
        bytes[4..20].copy_from_slice(&self.uuid);
        bytes[20..28].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[28..44].copy_from_slice(&self.fingerprint);
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a stored record, or says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; RECORD_LEN] = bytes.try_into().map_err(|_| "the epoch record has a wrong length")?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != VERSION {
            return Err("the epoch record is of an unknown version");
        }
        if word(44) != crc32c::crc32c(&bytes[..44]) {
            return Err("the epoch record's checksum is wrong");
        }
        if bytes[1] > 1 {
            return Err("the epoch record is neither open nor closed");
        }
        let epoch = u64::from(word(20)) | u64::from(word(24)) << 32;
        if epoch > EPOCH_MAX {
            return Err("the epoch record's epoch is out of range");
        }
        let (mut uuid, mut fingerprint) = ([0; 16], [0; 16]);
        uuid.copy_from_slice(&bytes[4..20]);
        fingerprint.copy_from_slice(&bytes[28..44]);
        let raises = Raises::from_bits(u16::from_le_bytes([bytes[2], bytes[3]]));
        Ok(Self { open: bytes[1] == 1, uuid, epoch, fingerprint, raises })
    }
}

/// Decides which epoch a session serves. A record that cannot be decoded is an error, because the values
/// handed out are unknown.
pub fn decide(found: &Found<'_>) -> Result<Decision, &'static str> {
    let Some(bytes) = found.record else {
        // Readers may have served epoch 0 without a record; the first writer starts above them.
        return Ok(Decision { epoch: 1, raised: None, raises: Raises::default() });
    };
    let record = EpochRecord::decode(bytes)?;
    let foreign = record.fingerprint != found.fingerprint && !found.trust_foreign;
    let reason = if record.open {
        Some("the last session did not end cleanly")
    } else if !found.clean {
        Some("the filesystem was not closed cleanly")
    } else if record.uuid != found.uuid {
        Some("the filesystem has another UUID")
    } else if foreign {
        Some("another program wrote to the filesystem")
    } else {
        None
    };
    // A reader may have served the next epoch without recording it, before a foreign writer came: then the
    // next epoch is not enough for a writer.
    let unseen = foreign && !found.read_only;
    let steps = u64::from(reason.is_some()) + u64::from(unseen);
    let raises = record.raises.with(cause(&record, found), steps);
    Ok(Decision { epoch: record.epoch + steps, raised: reason, raises })
}

/// Returns why the epoch rises, if it does. Who wrote is told only if it is certain.
fn cause(record: &EpochRecord, found: &Found<'_>) -> Option<Cause> {
    let differs = record.fingerprint != found.fingerprint;
    let others = match found.others {
        // A session may have ended between its last record and its other marks.
        OtherWriters::ByFingerprint if differs && !found.clean => None,
        OtherWriters::ByFingerprint => Some(differs),
        OtherWriters::Known(known) => known,
    };
    match (record.open, found.clean) {
        (true, _) => others.map(|others| if others { Cause::Both } else { Cause::UncleanEnd }),
        // The last session of ivers ended cleanly, or one after it did not get as far as its record.
        (false, false) => others.map(|others| if others { Cause::OtherProgram } else { Cause::UncleanEnd }),
        (false, true) => Some(Cause::OtherProgram),
    }
}

/// The value that is added to stored counters.
pub fn base_of(epoch: u64) -> u64 {
    (epoch << EPOCH_SHIFT) & (u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: EpochRecord = EpochRecord {
        open: false,
        uuid: [7; 16],
        epoch: 41,
        fingerprint: [1; 16],
        raises: Raises::from_bits(2),
    };

    fn found(record: Option<&[u8]>) -> Found<'_> {
        Found {
            record,
            uuid: [7; 16],
            fingerprint: [1; 16],
            clean: true,
            trust_foreign: false,
            read_only: false,
            others: OtherWriters::ByFingerprint,
        }
    }

    #[test]
    fn records_round_trip() {
        assert_eq!(EpochRecord::decode(&RECORD.encode()), Ok(RECORD));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        for bit in 0..RECORD_LEN * 8 {
            let mut bytes = RECORD.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(EpochRecord::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_epoch_that_cannot_rise_is_refused() {
        assert!(EpochRecord::decode(&EpochRecord { epoch: u64::MAX, ..RECORD }.encode()).is_err());
        let highest = EpochRecord { epoch: EPOCH_MAX, open: true, ..RECORD }.encode();
        assert_eq!(decide(&found(Some(&highest))).map(|decision| decision.epoch), Ok(EPOCH_MAX + 1));
    }

    #[test]
    fn the_epoch_rises_only_when_values_can_be_lost() {
        let closed = RECORD.encode();
        let open = EpochRecord { open: true, ..RECORD }.encode();
        let epoch = |found: &Found<'_>| decide(found).unwrap().epoch;
        assert_eq!(epoch(&found(None)), 1);
        assert_eq!(epoch(&found(Some(&closed))), 41);
        assert_eq!(epoch(&found(Some(&open))), 42);
        assert_eq!(epoch(&Found { clean: false, ..found(Some(&closed)) }), 42);
        assert_eq!(epoch(&Found { uuid: [8; 16], ..found(Some(&closed)) }), 42);
        assert_eq!(epoch(&Found { fingerprint: [2; 16], ..found(Some(&closed)) }), 43);
        assert_eq!(epoch(&Found { fingerprint: [2; 16], trust_foreign: true, ..found(Some(&closed)) }), 41);
    }

    #[test]
    fn the_record_remembers_who_made_the_epoch_rise() {
        use Cause::*;
        let open = EpochRecord { open: true, ..RECORD }.encode();
        let closed = RECORD.encode();
        let at = |record, clean, differs: bool, others| {
            let fingerprint = [1 + u8::from(differs); 16];
            let decision = decide(&Found { clean, fingerprint, others, ..found(Some(record)) }).unwrap();
            let steps = decision.epoch - RECORD.epoch;
            assert_eq!(decision.raises, RECORD.raises.with(decision.raises.of_last(steps), steps));
            decision.raises.of_last(steps)
        };
        let by_fingerprint = OtherWriters::ByFingerprint;
        for clean in [false, true] {
            assert_eq!(at(&open, clean, false, by_fingerprint), Some(UncleanEnd));
            let both = Some(Both).filter(|_| clean);
            assert_eq!(at(&open, clean, true, by_fingerprint), both, "a program that ended uncleanly itself");
            for (known, cause) in [(None, None), (Some(false), Some(UncleanEnd)), (Some(true), Some(Both))] {
                assert_eq!(at(&open, clean, true, OtherWriters::Known(known)), cause);
            }
        }
        assert_eq!(at(&closed, true, true, by_fingerprint), Some(OtherProgram));
        assert_eq!(at(&closed, false, false, by_fingerprint), Some(UncleanEnd));
        assert_eq!(at(&closed, false, true, by_fingerprint), None, "either can have left this");
        assert_eq!(at(&closed, false, true, OtherWriters::Known(Some(true))), Some(OtherProgram));
        assert_eq!(at(&closed, true, false, by_fingerprint), None, "the epoch does not rise");
    }

    #[test]
    fn a_writer_continues_the_readers_epoch_unless_another_program_wrote() {
        let open = EpochRecord { open: true, ..RECORD }.encode();
        for (record, clean) in
            [(RECORD.encode(), true), (RECORD.encode(), false), (open, true), (open, false)]
        {
            let alone = Found { clean, ..found(Some(&record)) };
            let others = Found { fingerprint: [9; 16], ..alone };
            let epoch = |found: Found<'_>| decide(&found).unwrap().epoch;
            let reads = |found| epoch(Found { read_only: true, ..found });
            assert_eq!(reads(alone), epoch(alone));
            assert!(reads(alone) < epoch(others) && reads(others) < epoch(others));
        }
    }
}
