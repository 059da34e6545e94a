//! Reading and storing.
//!
//! A block is written before its entry, and neither is synced. A crash can leave any mixture of old and new
//! bytes. The checksum of an entry covers the entry, the block and the salt of the file, so a mixture is a
//! miss. Nothing that is read from the disk is trusted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::layout::{BLOCK_BYTES, ENTRY_BYTES, Entry, FileKey, Geometry, SET_BYTES};
use crate::place::{self, OpenError};

/// The number of locks that the sets share.
const LOCKS: usize = 64;
/// How long nothing is stored after a write failed.
const PAUSE: Duration = Duration::from_secs(60);

/// Counters of a cache, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that were found.
    pub hits: u64,
    /// Blocks that were not found.
    pub misses: u64,
    /// Blocks that were found damaged. They are misses, too.
    pub damaged: u64,
    /// Blocks that were stored.
    pub stored: u64,
    /// Blocks whose write failed.
    pub refused: u64,
}

/// How much of a range the cache has, from its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes that were found.
    pub bytes: usize,
    /// Whether the file ends after these bytes.
    pub ends: bool,
}

/// A persistent cache of the contents of files.
pub struct ContentCache {
    file: File,
    geometry: Geometry,
    /// Set S is read and written under lock S mod [`LOCKS`].
    locks: [Mutex<()>; LOCKS],
    /// The value of [`Entry::stored`] for the next block.
    next: AtomicU64,
    /// Nothing is stored before this time.
    pause_until: Mutex<Option<Instant>>,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    stored: AtomicU64,
    refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl ContentCache {
    /// Opens the cache in a directory, and locks it against other mounts. `bytes` bounds the file's size.
    pub fn open(dir: &Path, bytes: u64) -> Result<Self, OpenError> {
        let (file, geometry) = place::open(dir, bytes)?;
        // `next` only decides which block is replaced: after a clock went back, some are replaced too early.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            file,
            geometry,
            locks: [const { Mutex::new(()) }; LOCKS],
            next: AtomicU64::new(now.as_micros() as u64 | 1),
            pause_until: Mutex::new(None),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Reads bytes of a version of a file, up to the first block that the cache does not have.
    pub fn read(&self, file: &FileKey, version: u64, offset: u64, buf: &mut [u8]) -> Found {
        let mut found = Found::default();
        let mut block = vec![0; BLOCK_BYTES];
        while found.bytes < buf.len() && !found.ends {
            let at = offset + found.bytes as u64;
            let Some(len) = self.block(file, version, at / BLOCK_BYTES as u64, &mut block) else {
                count(&self.misses);
                break;
            };
            count(&self.hits);
            let left = &mut buf[found.bytes..];
            let have = block.get((at % BLOCK_BYTES as u64) as usize..len).unwrap_or_default();
            let taken = have.len().min(left.len());
            left[..taken].copy_from_slice(&have[..taken]);
            found.bytes += taken;
            // A read that ends within the block does not reach the end of the file.
            found.ends = len < BLOCK_BYTES && taken == have.len();
        }
        found
    }

    /// Stores the whole blocks in `bytes` of a version of a file. Also stores the incomplete last block if
    /// the file `ends` after `bytes`. Does nothing unless `offset` is a multiple of [`BLOCK_BYTES`].
    pub fn store(&self, file: &FileKey, version: u64, offset: u64, bytes: &[u8], ends: bool) {
        if !offset.is_multiple_of(BLOCK_BYTES as u64) || self.is_paused() {
            return;
        }
        let first = offset / BLOCK_BYTES as u64;
        let mut blocks = bytes.chunks_exact(BLOCK_BYTES);
        let whole = blocks.len() as u64;
        let kept = (first..).zip(&mut blocks).all(|(block, bytes)| self.put(file, version, block, bytes));
        // An empty block if the file ends with a whole block, so that a read at the end finds the end.
        if kept && ends {
            self.put(file, version, first + whole, blocks.remainder());
        }
    }

    /// Returns the counters since the cache was opened.
    pub fn counts(&self) -> Counts {
        Counts {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            damaged: self.damaged.load(Relaxed),
            stored: self.stored.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    fn entries(&self, set: u64) -> Option<Vec<Entry>> {
        let mut bytes = [0; SET_BYTES];
        self.file.read_exact_at(&mut bytes, self.geometry.entries_at(set)).ok()?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Some(entries.iter().map(Entry::decode).collect())
    }

    /// Reads a block into a buffer of [`BLOCK_BYTES`]. Returns its length. `None` if the cache does not have
    /// it.
    fn block(&self, file: &FileKey, version: u64, block: u64, buffer: &mut [u8]) -> Option<usize> {
        let set = self.geometry.set(file, block);
        let _set = self.locks[set as usize % LOCKS].lock();
        let is_it = |entry: &Entry| {
            entry.stored != 0 && (entry.file, entry.version, entry.block) == (*file, version, block)
        };
        let (way, entry) = self.entries(set)?.into_iter().enumerate().find(|(_, entry)| is_it(entry))?;
        let at = self.geometry.block_at(set, way);
        let len = buffer.get_mut(..entry.len as usize).and_then(|bytes| {
            let read = self.file.read_exact_at(bytes, at);
            let is_whole = read.is_ok() && entry.checksum_of(self.geometry.salt, bytes) == entry.checksum;
            is_whole.then_some(bytes.len())
        });
        if len.is_none() {
            count(&self.damaged);
            // Frees the slot. If that fails, the block is found damaged again.
            let _ = self.file.write_all_at(&[0; ENTRY_BYTES], self.entry_at(set, way));
        }
        len
    }

    fn entry_at(&self, set: u64, way: usize) -> u64 {
        self.geometry.entries_at(set) + (way * ENTRY_BYTES) as u64
    }

    /// Writes a block. Returns whether that succeeded.
    fn put(&self, file: &FileKey, version: u64, block: u64, bytes: &[u8]) -> bool {
        let set = self.geometry.set(file, block);
        let _set = self.locks[set as usize % LOCKS].lock();
        let Some(entries) = self.entries(set) else { return false };
        let same = |entry: &Entry| entry.stored != 0 && entry.file == *file && entry.block == block;
        let oldest = || (0..entries.len()).min_by_key(|way| entries[*way].stored);
        let Some(way) = entries.iter().position(same).or_else(oldest) else { return false };
        let stored = self.next.fetch_add(1, Relaxed);
        let entry = Entry { file: *file, version, block, stored, len: bytes.len() as u32, checksum: 0 };
        let entry = Entry { checksum: entry.checksum_of(self.geometry.salt, bytes), ..entry };
        let written = self
            .file
            .write_all_at(bytes, self.geometry.block_at(set, way))
            .and_then(|()| self.file.write_all_at(&entry.encode(), self.entry_at(set, way)));
        if written.is_err() {
            count(&self.refused);
            *self.pause_until.lock() = Instant::now().checked_add(PAUSE);
            return false;
        }
        count(&self.stored);
        true
    }

    fn is_paused(&self) -> bool {
        self.pause_until.lock().is_some_and(|until| Instant::now() < until)
    }
}
