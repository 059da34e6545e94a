//! Devices in memory.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::device::check_range;
use crate::{ByteOffset, Device, Result};

const SHARDS: usize = 16;

/// Sparse bytes in chunks. Threads access different chunks in parallel.
struct Chunks {
    chunk_bytes: usize,
    shards: [RwLock<HashMap<u64, Box<[u8]>>>; SHARDS],
}

impl Chunks {
    fn new(chunk_bytes: usize) -> Self {
        Self { chunk_bytes, shards: std::array::from_fn(|_| RwLock::new(HashMap::new())) }
    }

    /// Calls `f(chunk number, start within the chunk, range of the request)` for each chunk of a request.
    fn each(
        &self,
        offset: ByteOffset,
        len: usize,
        mut f: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at.0 % self.chunk_bytes as u64) as usize;
            let part = (self.chunk_bytes - start).min(len - done);
            f(at.0 / self.chunk_bytes as u64, start, done..done + part)?;
            done += part;
        }
        Ok(())
    }

    fn shard(&self, chunk: u64) -> &RwLock<HashMap<u64, Box<[u8]>>> {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }

    /// Reads; `miss(offset, part)` fills a part whose chunk is absent.
    fn read(
        &self,
        offset: ByteOffset,
        buf: &mut [u8],
        miss: impl Fn(ByteOffset, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.each(offset, buf.len(), |chunk, start, range| {
            let at = offset + range.start as u64;
            let part = &mut buf[range];
            if let Some(bytes) = self.shard(chunk).read().get(&chunk) {
                part.copy_from_slice(&bytes[start..start + part.len()]);
                return Ok(());
            }
            miss(at, part)
        })
    }

    /// Writes; `fill(offset, chunk)` fills a new chunk of which only a part is written.
    fn write(
        &self,
        offset: ByteOffset,
        buf: &[u8],
        fill: impl Fn(ByteOffset, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.each(offset, buf.len(), |chunk, start, range| {
            let part = &buf[range];
            let mut map = self.shard(chunk).write();
            if let Some(bytes) = map.get_mut(&chunk) {
                bytes[start..start + part.len()].copy_from_slice(part);
                return Ok(());
            }
            if part.len() == self.chunk_bytes {
                map.insert(chunk, part.into());
                return Ok(());
            }
            let mut bytes = vec![0; self.chunk_bytes].into_boxed_slice();
            fill(ByteOffset(chunk * self.chunk_bytes as u64), &mut bytes)?;
            bytes[start..start + part.len()].copy_from_slice(part);
            map.insert(chunk, bytes);
            Ok(())
        })
    }

    /// Copies all chunks as they are at one moment.
    fn copy_to(&self, all: &mut [u8]) {
        let shards: Vec<_> = self.shards.iter().map(RwLock::read).collect();
        for (chunk, bytes) in shards.iter().flat_map(|shard| shard.iter()) {
            let part = &mut all[*chunk as usize * self.chunk_bytes..];
            let len = part.len().min(bytes.len());
            part[..len].copy_from_slice(&bytes[..len]);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.read().len() as u64).sum::<u64>() * self.chunk_bytes as u64
    }
}

/// A sparse device in memory. Only chunks that were written take memory.
pub struct MemDevice {
    size_bytes: u64,
    chunks: Chunks,
}

impl MemDevice {
    /// Creates a device of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, chunks: Chunks::new(65536) }
    }

    /// Creates a device with a copy of `image`.
    pub fn from_bytes(image: &[u8]) -> Self {
        let dev = Self::new(image.len() as u64);
        let zeros = vec![0; dev.chunks.chunk_bytes];
        let chunks = image.chunks(dev.chunks.chunk_bytes).enumerate();
        // Most of an image is zeros, which take no memory.
        for (nth, bytes) in chunks.filter(|(_, bytes)| **bytes != zeros[..bytes.len()]) {
            let offset = ByteOffset((nth * dev.chunks.chunk_bytes) as u64);
            dev.chunks.write(offset, bytes, |_, _| Ok(())).expect("memory does not fail");
        }
        dev
    }

    /// Returns a copy of all bytes of the device as they are at one moment. While other threads write, it is
    /// what a crash could leave.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.size_bytes as usize];
        self.chunks.copy_to(&mut all);
        all
    }
}

impl Device for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        check_range(self, "read", offset, buf.len() as u64)?;
        self.chunks.read(offset, buf, |_, part| {
            part.fill(0);
            Ok(())
        })
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        check_range(self, "write", offset, buf.len() as u64)?;
        self.chunks.write(offset, buf, |_, _| Ok(()))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        check_range(self, "discard", offset, len)?;
        let size = self.chunks.chunk_bytes as u64;
        for chunk in offset.0.div_ceil(size)..(offset + len).0 / size {
            self.chunks.shard(chunk).write().remove(&chunk);
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

/// Copy on write in memory over a base device, which is not written unless `write_to_base` is called.
///
/// A read-only mount of a filesystem that needs recovery replays the journal into an overlay.
pub struct OverlayDevice {
    base: Arc<dyn Device>,
    chunks: Chunks,
}

impl OverlayDevice {
    /// Creates an overlay without changes.
    pub fn new(base: Arc<dyn Device>) -> Self {
        Self { base, chunks: Chunks::new(4096) }
    }

    /// The base device.
    pub fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// Writes the changes to the base device, in ascending order, and flushes it. They stay in the overlay
    /// too.
    pub fn write_to_base(&self) -> Result<()> {
        let size = self.chunks.chunk_bytes as u64;
        let mut changed: Vec<u64> = Vec::new();
        for shard in &self.chunks.shards {
            changed.extend(shard.read().keys());
        }
        changed.sort_unstable();
        for chunk in changed {
            let at = ByteOffset(chunk * size);
            let len = size.min(self.base.size_bytes().saturating_sub(at.0)) as usize;
            if let Some(bytes) = self.chunks.shard(chunk).read().get(&chunk) {
                self.base.write_at(at, &bytes[..len])?;
            }
        }
        self.base.flush()
    }

    /// The memory that the changes take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.chunks.memory_bytes()
    }

    fn fill(&self, offset: ByteOffset, chunk: &mut [u8]) -> Result<()> {
        let inside = self.base.size_bytes().saturating_sub(offset.0).min(chunk.len() as u64) as usize;
        self.base.read_at(offset, &mut chunk[..inside])
    }
}

impl Device for OverlayDevice {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> Result<()> {
        check_range(self, "read", offset, buf.len() as u64)?;
        self.chunks.read(offset, buf, |at, part| self.base.read_at(at, part))
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> Result<()> {
        check_range(self, "write", offset, buf.len() as u64)?;
        self.chunks.write(offset, buf, |at, chunk| self.fill(at, chunk))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> Result<()> {
        check_range(self, "discard", offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("{} (changes in memory)", self.base.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_does_not_change_its_base() {
        let base = Arc::new(MemDevice::from_bytes(&vec![1; 10_000]));
        let over = OverlayDevice::new(base.clone());
        over.write_at(ByteOffset(4090), &[2; 10]).unwrap();
        over.write_at(ByteOffset(9990), &[3; 10]).unwrap();
        let mut all = vec![0; 10_000];
        over.read_at(ByteOffset(0), &mut all).unwrap();
        assert_eq!(&all[4089..4101], &[1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        assert_eq!(&all[9989..], &[1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert!(base.to_bytes().iter().all(|&b| b == 1));
        assert!(over.write_at(ByteOffset(9991), &[3; 10]).is_err());
        over.write_to_base().unwrap();
        assert_eq!(base.to_bytes(), all);
    }

    #[test]
    fn a_copy_has_no_write_without_those_before_it() {
        let device = MemDevice::new(8 << 20);
        let (first, last) = (ByteOffset(0), ByteOffset((8 << 20) - 4));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..20_000u32 {
                    device.write_at(first, &number.to_le_bytes()).unwrap();
                    device.write_at(last, &number.to_le_bytes()).unwrap();
                }
            });
            for _ in 0..50 {
                let copy = device.to_bytes();
                let [before, after] = [&copy[..4], &copy[copy.len() - 4..]]
                    .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
                assert!(before == after || before == after + 1, "{before}, then {after}");
            }
        });
    }

    #[test]
    fn a_memory_device_is_sparse() {
        let dev = MemDevice::new(1 << 40);
        dev.write_at(ByteOffset((1 << 40) - 3), &[5; 3]).unwrap();
        let mut buf = [0; 6];
        dev.read_at(ByteOffset((1 << 40) - 6), &mut buf).unwrap();
        assert_eq!(buf, [0, 0, 0, 5, 5, 5]);
        assert_eq!(dev.chunks.memory_bytes(), 65536);
    }
}
