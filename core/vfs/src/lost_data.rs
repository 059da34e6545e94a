//! Data that programs wrote and that could not be stored, by file.
//!
//! A cache takes the data of a write(2). If it cannot be stored later, the next write, fsync or close of each
//! descriptor reports that, and many programs ignore it. So the log names each such file, and unmount counts
//! them and names the first ones. Bytes that are written again, or cut off, are not missing. Files that are
//! removed do not count.

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::{FileType, Ino};
use crate::vfs::Vfs;
use crate::writeback_error::ErrorCursor;
use std::collections::HashMap;
use std::ops::Range;

/// Files that are remembered. More are only logged.
const FILES_MAX: usize = 10_000;
/// Ranges that are remembered of a file. Beyond that, the last ones are joined.
const RANGES_MAX: usize = 256;
/// Files that are named at unmount.
const NAMED_MAX: usize = 20;

#[derive(Debug)]
struct Lost {
    generation: u32,
    /// The name for messages; empty if it is not known.
    name: String,
    /// The missing bytes: sorted, without overlap.
    ranges: Vec<Range<u64>>,
}

impl Lost {
    fn add(&mut self, bytes: Range<u64>) {
        self.remove(bytes.clone());
        let at = self.ranges.partition_point(|range| range.start < bytes.start);
        self.ranges.insert(at, bytes);
        if self.ranges.len() > RANGES_MAX
            && let (Some(last), Some(before)) = (self.ranges.pop(), self.ranges.last_mut())
        {
            before.end = last.end;
        }
    }

    fn remove(&mut self, bytes: Range<u64>) {
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for range in self.ranges.drain(..) {
            let before = range.start..range.end.min(bytes.start);
            let after = range.start.max(bytes.end)..range.end;
            left.extend([before, after].into_iter().filter(|part| !part.is_empty()));
        }
        self.ranges = left;
    }

    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// The files of a filesystem that lack data that programs wrote.
#[derive(Debug, Default)]
pub(crate) struct LostData {
    files: RankedMutex<rank::Leaf, HashMap<Ino, Lost>>,
    /// Data was lost since the mount. Each write reads this, without the lock.
    any: AtomicBool,
    /// What unmount found.
    at_end: RankedMutex<rank::Leaf, LostFiles>,
}

/// Files that lack data that programs wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostFiles {
    /// How many there are.
    pub count: u64,
    /// The names of the first ones, as far as they are known.
    pub names: Vec<String>,
}

/// Called when write-back loses data of a file, under the write-back lock of the file: it must not block, and
/// must not read or write. Returns the name of the file for messages, or an empty text if it is not known.
pub type LossListener = Box<dyn Fn(&Inode, &Error) -> String + Send + Sync>;

fn describe(ino: Ino, name: &str) -> String {
    if name.is_empty() { format!("inode {ino}") } else { format!("inode {ino} ({name})") }
}

impl LostData {
    /// Notes bytes of a file that could not be stored. The first loss of each file is logged.
    fn note(&self, inode: &Inode, bytes: Range<u64>, name: impl FnOnce() -> String, why: &Error) {
        let is_same = |lost: &&mut Lost| lost.generation == inode.generation;
        if let Some(lost) = self.files.lock().get_mut(&inode.ino).filter(is_same) {
            lost.add(bytes);
            return;
        }
        let name = name();
        let (file, len) = (describe(inode.ino, &name), bytes.end.saturating_sub(bytes.start));
        log::error!("{file}: {len} bytes that a program wrote are lost: {why}");
        self.any.store(true, Ordering::Release);
        let mut files = self.files.lock();
        if files.len() < FILES_MAX {
            let (generation, ranges) = (inode.generation, vec![bytes]);
            files.insert(inode.ino, Lost { generation, name, ranges });
        }
    }

    /// Forgets lost bytes that a later write stored, or that were truncated.
    pub(crate) fn forget(&self, ino: Ino, bytes: Range<u64>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.files.lock();
        let Some(lost) = files.get_mut(&ino) else { return };
        lost.remove(bytes);
        if lost.ranges.is_empty() {
            files.remove(&ino);
        }
    }
}

impl Vfs {
    /// Sets the listener that is called when write-back loses data of a file. Later calls do nothing.
    pub fn on_data_loss(&self, listener: LossListener) {
        let _ = self.loss_listener.set(listener);
    }

    /// Notes bytes of a completed write(2) that the VFS has refused. A front end calls it if its caches took
    /// the write before. `name` is for messages; empty if it is not known.
    pub fn note_refused_data(
        &self,
        inode: &Inode,
        bytes: Range<u64>,
        name: impl FnOnce() -> String,
        why: &Error,
    ) {
        self.lost_data.note(inode, bytes, name, why);
    }

    /// Notes bytes (offset, length) that write-back has lost.
    pub(crate) fn note_lost_ranges(&self, inode: &Inode, ranges: &[(u64, u64)], why: &Error) {
        let name = self.loss_listener.get().map(|listener| listener(inode, why)).unwrap_or_default();
        for (offset, len) in ranges {
            // Whole pages are lost, but programs wrote no byte past the end.
            let end = offset.saturating_add(*len).min(inode.size());
            if *offset < end {
                self.lost_data.note(inode, *offset..end, || name.clone(), why);
            }
        }
    }

    /// Returns the write-back error of a file that a descriptor was not told of yet, and counts it as told. A
    /// write reports it before it accepts more data: a program that only writes would fill the cache again
    /// and again.
    pub fn take_writeback_error(&self, inode: &Inode, cursor: &ErrorCursor) -> Result<()> {
        inode.writeback_errors.take(Some(cursor)).map_or(Ok(()), Err)
    }

    /// Returns the files that lacked data when the filesystem was unmounted. Removed files do not count.
    pub fn lost_files(&self) -> LostFiles {
        self.lost_data.at_end.lock().clone()
    }

    /// Logs the files that lack data and still exist. Called by unmount, after the last write-back.
    pub(crate) fn report_lost_data(&self) {
        let files = std::mem::take(&mut *self.lost_data.files.lock());
        let mut left: Vec<_> =
            files.into_iter().filter(|(ino, lost)| self.still_exists(*ino, lost.generation)).collect();
        left.sort_by_key(|(ino, _)| *ino);
        let mut found = LostFiles { count: left.len() as u64, names: Vec::new() };
        for (ino, mut lost) in left.into_iter().take(NAMED_MAX) {
            if lost.name.is_empty() {
                let cached = self.names.name_of(ino).unwrap_or_default();
                lost.name = String::from_utf8_lossy(&cached).into_owned();
            }
            let file = describe(ino, &lost.name);
            log::warn!("{file}: {} bytes that programs wrote are not stored", lost.bytes());
            found.names.push(if lost.name.is_empty() { file } else { lost.name });
        }
        *self.lost_data.at_end.lock() = found;
    }

    /// Returns whether a file still exists. A server is not asked: it counts unless this client removed it.
    fn still_exists(&self, ino: Ino, generation: u32) -> bool {
        let is_linked = |inode: &Inode| {
            let is_it = inode.generation == generation && inode.kind == FileType::Regular;
            is_it && inode.with_attr(|attr| attr.nlink) > 0
        };
        match self.inodes.peek(ino) {
            Some(inode) => is_linked(&self.counted(inode)),
            None => self.fs.server().is_some() || self.get(ino).is_ok_and(|inode| is_linked(&inode)),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_are_those_not_written_again() {
        let mut lost = Lost { generation: 0, name: String::new(), ranges: Vec::new() };
        for range in [100..200, 0..50, 150..300] {
            lost.add(range);
        }
        assert_eq!((lost.bytes(), lost.ranges.len()), (250, 3));
        lost.remove(120..160);
        assert_eq!(lost.ranges, [0..50, 100..120, 160..300]);
        lost.remove(110..u64::MAX);
        assert_eq!(lost.ranges, [0..50, 100..110]);
        lost.remove(0..110);
        assert!(lost.ranges.is_empty());
        for at in 0..1000 {
            lost.add(at * 10..at * 10 + 1);
        }
        assert_eq!(lost.ranges.len(), RANGES_MAX);
        assert_eq!(lost.ranges.last().unwrap().end, 9991);
    }
}
