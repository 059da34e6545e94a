//! A device that records what it is told, fails on request, and shows what a crash would leave behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::check_range;
use crate::{BlockError, ByteOffset, Device, OverlayDevice, Result};

/// What is done to one write. Writes are counted from 0 since the device was made; FUA writes count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write reports an error and changes nothing.
    Fail,
    /// The first so many bytes are written, then it reports an error.
    Tear(usize),
    /// The write reports success and changes nothing: the medium lies.
    Drop,
    /// The write succeeds, is seen by reads, and reaches the medium only with the next flush (or never, if there is none).
    Delay,
    /// The writer is made to wait this long, for tests of what goes on beside it.
    Stall(Duration),
}

/// One recorded operation, in the order in which it reached the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Bytes were written.
    Write {
        /// Where.
        offset: ByteOffset,
        /// What.
        data: Arc<[u8]>,
        /// Durable when it returned.
        fua: bool,
    },
    /// Everything before is durable.
    Flush,
    /// A range was given up. Images keep its old contents.
    Discard {
        /// Where.
        offset: ByteOffset,
        /// How many bytes.
        len: u64,
    },
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

/// Records every change over a base device that is itself never written.
pub struct FaultDevice {
    base: Arc<dyn Device>,
    now: OverlayDevice,
    state: Mutex<State>,
}

impl FaultDevice {
    /// A device that shows `base`, and keeps changes in memory and in its record.
    pub fn new(base: Arc<dyn Device>) -> Self {
        Self { now: OverlayDevice::new(base.clone()), base, state: Mutex::default() }
    }

    /// Does `fault` to the `nth` write, counted from 0 since the device was made.
    pub fn inject(&self, nth: u64, fault: Fault) {
        self.state.lock().faults.insert(nth, fault);
    }

    /// Fails the `nth` flush, counted from 0.
    pub fn fail_flush(&self, nth: u64) {
        self.state.lock().fail_flush = Some(nth);
    }

    /// Fails every write from the `nth` on; `None` heals the device.
    pub fn fail_writes_from(&self, nth: Option<u64>) {
        self.state.lock().fail_writes_from = nth;
    }

    /// Fails every read that touches these bytes.
    pub fn fail_reads(&self, offset: ByteOffset, len: u64) {
        self.state.lock().fail_reads.push((offset, len));
    }

    /// Number of writes so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// Length of the record: valid prefixes are `0..=len()`.
    pub fn len(&self) -> usize {
        self.state.lock().log.len()
    }

    /// True if nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the record.
    pub fn record(&self) -> Vec<Recorded> {
        self.state.lock().log.clone()
    }

    /// The device as the first `prefix` recorded operations left it.
    pub fn image(&self, prefix: usize) -> Result<OverlayDevice> {
        self.image_where(prefix, |_| true)
    }

    /// The device after a crash at `prefix`, where of the writes that no flush had made durable only those happened for whose index in
    /// the record `kept` says so.
    pub fn image_where(&self, prefix: usize, kept: impl Fn(usize) -> bool) -> Result<OverlayDevice> {
        let ops: Vec<Recorded> = self.state.lock().log[..prefix].to_vec();
        let durable = ops.iter().rposition(|op| *op == Recorded::Flush).map_or(0, |i| i + 1);
        let image = OverlayDevice::new(self.base.clone());
        for (i, op) in ops.iter().enumerate() {
            if let Recorded::Write { offset, data, fua } = op
                && (i < durable || *fua || kept(i))
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
        // Recorded and applied under one lock, so that the record's order is the order of effects.
        self.now.write_at(offset, kept)?;
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
        self.now.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, false)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let nth = state.flushes;
        state.flushes += 1;
        if state.fail_flush == Some(nth) {
            return Err(self.failure("flush", ByteOffset(0), 0));
        }
        let mut delayed = std::mem::take(&mut state.delayed);
        state.log.append(&mut delayed);
        state.log.push(Recorded::Flush);
        Ok(())
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        check_range(self, "discard", offset, len)?;
        self.state.lock().log.push(Recorded::Discard { offset, len });
        Ok(())
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
    fn faults_do_what_they_say() {
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
