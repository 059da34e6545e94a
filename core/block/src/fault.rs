//! A device for tests: it records writes, injects faults, and reconstructs the device after a crash.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::check_range;
use crate::{BlockError, ByteOffset, Device, OverlayDevice, Result};

/// A fault of one write. Writes, FUA writes included, are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write reports an error and changes nothing.
    Fail,
    /// Only this many bytes are written; the write reports an error.
    Tear(usize),
    /// The write reports success and changes nothing, as a faulty medium does.
    Drop,
    /// The write succeeds and reads see it, but it reaches the medium only with the next flush.
    Delay,
    /// The write takes this long, for tests of concurrent operations.
    Stall(Duration),
}

/// A recorded operation. Operations are recorded in the order in which they reach the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Bytes were written.
    Write {
        /// The position.
        offset: ByteOffset,
        /// The bytes.
        data: Arc<[u8]>,
        /// Whether the write was durable when it returned.
        fua: bool,
    },
    /// All earlier operations are durable.
    Flush,
    /// All earlier writes into a range are durable, and other writes are not.
    FlushRange {
        /// The position.
        offset: ByteOffset,
        /// The length in bytes.
        len: u64,
    },
    /// A range was discarded. Images keep its old contents.
    Discard {
        /// The position.
        offset: ByteOffset,
        /// The length in bytes.
        len: u64,
    },
}

impl Recorded {
    /// Returns whether this operation makes an earlier write durable.
    pub fn seals(&self, write: &Self) -> bool {
        match (self, write) {
            (Self::Flush, Self::Write { .. }) => true,
            (Self::FlushRange { offset, len }, Self::Write { offset: at, data, .. }) => {
                *offset <= *at && at.0 + data.len() as u64 <= offset.0 + len
            }
            _ => false,
        }
    }
}

#[derive(Default)]
struct State {
    log: Vec<Recorded>,
    delayed: Vec<Recorded>,
    writes: u64,
    flushes: u64,
    faults: BTreeMap<u64, Fault>,
    fail_flush: Option<u64>,
    fail_writes_from: Option<u64>,
    fail_reads: Vec<(ByteOffset, u64)>,
}

/// Records every change over a base device, which it never writes.
pub struct FaultDevice {
    base: Arc<dyn Device>,
    current: OverlayDevice,
    state: Mutex<State>,
}

impl FaultDevice {
    /// Creates a device with the contents of `base`. Changes stay in memory and in the record.
    pub fn new(base: Arc<dyn Device>) -> Self {
        Self { current: OverlayDevice::new(base.clone()), base, state: Mutex::default() }
    }

    /// Injects `fault` into the `nth` write, counted from 0.
    pub fn inject(&self, nth: u64, fault: Fault) {
        self.state.lock().faults.insert(nth, fault);
    }

    /// Fails the `nth` flush, counted from 0.
    pub fn fail_flush(&self, nth: u64) {
        self.state.lock().fail_flush = Some(nth);
    }

    /// Fails every write from the `nth` on; `None` ends the failures.
    pub fn fail_writes_from(&self, nth: Option<u64>) {
        self.state.lock().fail_writes_from = nth;
    }

    /// Fails every read that touches these bytes.
    pub fn fail_reads(&self, offset: ByteOffset, len: u64) {
        self.state.lock().fail_reads.push((offset, len));
    }

    /// The number of writes so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// The length of the record: valid prefixes are `0..=len()`.
    pub fn len(&self) -> usize {
        self.state.lock().log.len()
    }

    /// True if nothing is recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of the record.
    pub fn record(&self) -> Vec<Recorded> {
        self.state.lock().log.clone()
    }

    /// Returns how often a program waited for the medium: flushes with something to flush, and durable
    /// writes.
    pub fn waits(&self) -> (u32, u32) {
        let (mut flushes, mut durable, mut is_dirty) = (0, 0, false);
        for op in &self.state.lock().log {
            match op {
                Recorded::Write { fua: true, .. } => durable += 1,
                Recorded::Flush | Recorded::FlushRange { .. } => {
                    flushes += u32::from(std::mem::take(&mut is_dirty));
                }
                _ => is_dirty = true,
            }
        }
        (flushes, durable)
    }

    /// Returns the device after the first `prefix` recorded operations.
    pub fn image(&self, prefix: usize) -> Result<OverlayDevice> {
        self.image_where(prefix, |_| true)
    }

    /// Returns the device after a crash at `prefix`. Of the writes that no flush made durable, it contains
    /// those for whose index in the record `kept` returns true.
    pub fn image_where(&self, prefix: usize, kept: impl Fn(usize) -> bool) -> Result<OverlayDevice> {
        let ops: Vec<Recorded> = self.state.lock().log[..prefix].to_vec();
        let image = OverlayDevice::new(self.base.clone());
        for (i, op) in ops.iter().enumerate() {
            if let Recorded::Write { offset, data, fua } = op
                && (*fua || ops[i..].iter().any(|later| later.seals(op)) || kept(i))
            {
                image.write_at(*offset, data)?;
            }
        }
        Ok(image)
    }

    fn failure(&self, what: &'static str, offset: ByteOffset, len: u64) -> BlockError {
        BlockError::io(what, self.describe(), offset, len, io::Error::other("injected fault"))
    }

    fn write(&self, offset: ByteOffset, buf: &[u8], fua: bool) -> Result<()> {
        check_range(self, "write", offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        let nth = state.writes;
        state.writes += 1;
        let mut fault = state.faults.remove(&nth);
        if state.fail_writes_from.is_some_and(|from| nth >= from) {
            fault = Some(Fault::Fail);
        }
        if let Some(Fault::Stall(time)) = fault {
            drop(state);
            std::thread::sleep(time);
            state = self.state.lock();
        }
        let kept = match fault {
            Some(Fault::Fail) => return Err(self.failure("write", offset, buf.len() as u64)),
            Some(Fault::Drop) => return Ok(()),
            Some(Fault::Tear(keep)) => &buf[..keep.min(buf.len())],
            _ => buf,
        };
        let op = Recorded::Write { offset, data: Arc::from(kept), fua };
        // Under the lock, so that the order of the record is the order of the effects.
        self.current.write_at(offset, kept)?;
        match fault {
            Some(Fault::Delay) if !fua => state.delayed.push(op),
            _ => state.log.push(op),
        }
        match fault {
            Some(Fault::Tear(_)) => Err(self.failure("write", offset, buf.len() as u64)),
            _ => Ok(()),
        }
    }
}

impl Device for FaultDevice {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        let (start, end) = (offset.0, offset.0.saturating_add(buf.len() as u64));
        if self
            .state
            .lock()
            .fail_reads
            .iter()
            .any(|&(at, len)| start < at.0.saturating_add(len) && at.0 < end)
        {
            return Err(self.failure("read", offset, buf.len() as u64));
        }
        self.current.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, false)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> Result<()> {
        self.flush_range(ByteOffset(0), self.size_bytes())
    }

    fn flush_range(&self, offset: ByteOffset, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let nth = state.flushes;
        state.flushes += 1;
        if state.fail_flush == Some(nth) {
            return Err(self.failure("flush", ByteOffset(0), 0));
        }
        let mut delayed = std::mem::take(&mut state.delayed);
        state.log.append(&mut delayed);
        let flush = Recorded::FlushRange { offset, len };
        let window = state.log.iter().rposition(|op| *op == Recorded::Flush).map_or(0, |at| at + 1);
        let window = &state.log[window..];
        let is_durable = |at: usize| {
            let op = &window[at];
            !matches!(op, Recorded::Write { fua: false, .. })
                || flush.seals(op)
                || window[at..].iter().any(|later| later.seals(op))
        };
        let all = (0..window.len()).all(is_durable);
        state.log.push(if all { Recorded::Flush } else { flush });
        Ok(())
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        check_range(self, "discard", offset, len)?;
        self.state.lock().log.push(Recorded::Discard { offset, len });
        Ok(())
    }

    fn make_room(&self, size_bytes: u64) -> Result<()> {
        self.base.make_room(size_bytes)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("{} (recorded)", self.base.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    fn at(device: &dyn Device, offset: ByteOffset) -> u8 {
        let mut byte = [0];
        device.read_at(offset, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn a_flush_of_a_part_makes_only_that_part_durable() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(8192))));
        let half = |start| crate::OffsetDevice::with_len(device.clone(), ByteOffset(start), 4096).unwrap();
        let (one, two) = (half(0), half(4096));
        one.write_at(ByteOffset(0), &[1; 512]).unwrap();
        two.write_at(ByteOffset(0), &[2; 512]).unwrap();
        one.flush().unwrap();
        let lost = device.image_where(device.len(), |_| false).unwrap();
        assert_eq!((at(&lost, ByteOffset(0)), at(&lost, ByteOffset(4096))), (1, 0));
        two.flush().unwrap();
        let lost = device.image_where(device.len(), |_| false).unwrap();
        assert_eq!((at(&lost, ByteOffset(0)), at(&lost, ByteOffset(4096))), (1, 2));
        // Everything is durable, so the record can forget which part was flushed.
        assert_eq!(device.record().last(), Some(&Recorded::Flush));
    }

    #[test]
    fn each_fault_has_its_effect() {
        let device = FaultDevice::new(Arc::new(MemDevice::new(1 << 16)));
        for (nth, fault) in [Fault::Fail, Fault::Tear(2), Fault::Drop, Fault::Delay].into_iter().enumerate() {
            device.inject(nth as u64, fault);
        }
        assert!(device.write_at(ByteOffset(0), &[1; 4]).is_err());
        assert!(device.write_at(ByteOffset(10), &[1; 4]).is_err());
        device.write_at(ByteOffset(20), &[1; 4]).unwrap();
        device.write_at(ByteOffset(30), &[1; 4]).unwrap();
        device.write_at(ByteOffset(40), &[1; 4]).unwrap();
        assert_eq!([0, 11, 12, 20, 30, 40].map(|o| at(&device, ByteOffset(o))), [0, 1, 0, 0, 1, 1]);
        let before = device.image(device.len()).unwrap();
        assert_eq!([11, 30, 40].map(|o| at(&before, ByteOffset(o))), [1, 0, 1]);
        device.flush().unwrap();
        assert_eq!(at(&device.image(device.len()).unwrap(), ByteOffset(30)), 1);
        device.fail_flush(1);
        assert!(device.flush().is_err());
        device.write_fua(ByteOffset(50), &[2]).unwrap();
        device.write_at(ByteOffset(60), &[2]).unwrap();
        let crash = device.image_where(device.len(), |_| false).unwrap();
        assert_eq!([30, 40, 50, 60].map(|o| at(&crash, ByteOffset(o))), [1, 1, 2, 0]);
    }
}
