//! Data that programs wrote and that could not be stored, by file.
//!
//! The kernel's cache takes the data of a write(2). If it cannot be stored later, the kernel reports that at
//! fsync or close only, and many programs ignore it. So the log names each such file, and at the end of the
//! mount their number. Bytes that are written again, or cut off, are not missing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use ivers_vfs::{Error, FileType, Ino, Inode, Vfs};
use parking_lot::Mutex;

/// Files that are remembered. More are only logged.
const FILES_MAX: usize = 10_000;
/// Ranges that are remembered of a file. Beyond that, the last ones are joined.
const RANGES_MAX: usize = 256;
/// Files that are named when the mount ends.
const NAMED_MAX: usize = 20;

#[derive(Debug)]
struct Lost {
    generation: u32,
    /// The name under which the file was seen last; empty if it is not known.
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

/// The files of a mount that lack data that programs wrote.
#[derive(Debug, Default)]
pub(crate) struct LostData {
    files: Mutex<HashMap<Ino, Lost>>,
    /// There were some. Each write looks here.
    any: AtomicBool,
}

fn describe(ino: Ino, name: &str) -> String {
    if name.is_empty() { format!("inode {ino}") } else { format!("inode {ino} ({name})") }
}

impl LostData {
    /// Notes bytes of a file that could not be stored. The first loss of each file is logged.
    pub(crate) fn note(&self, inode: &Inode, bytes: Range<u64>, name: impl FnOnce() -> String, why: &Error) {
        let mut files = self.files.lock();
        self.any.store(true, Ordering::Release);
        if let Some(lost) = files.get_mut(&inode.ino) {
            lost.add(bytes);
            return;
        }
        let name = name();
        let (file, len) = (describe(inode.ino, &name), bytes.end.saturating_sub(bytes.start));
        log::warn!("{file}: {len} bytes that a program wrote are lost: {why}");
        if files.len() < FILES_MAX {
            let (generation, ranges) = (inode.generation, vec![bytes]);
            files.insert(inode.ino, Lost { generation, name, ranges });
        }
    }

    /// The bytes were stored by a later write, or cut off.
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

    /// Logs the files that still exist, and returns their number.
    pub(crate) fn report(&self, vfs: &Vfs) -> u64 {
        let files = std::mem::take(&mut *self.files.lock());
        let exists = |ino: Ino, generation: u32| {
            vfs.get_generation(ino, generation)
                .is_ok_and(|inode| inode.kind == FileType::Regular && inode.with_attr(|attr| attr.nlink > 0))
        };
        let mut left: Vec<_> =
            files.into_iter().filter(|(ino, lost)| exists(*ino, lost.generation)).collect();
        left.sort_by_key(|(ino, _)| *ino);
        for (ino, lost) in left.iter().take(NAMED_MAX) {
            let file = describe(*ino, &lost.name);
            log::warn!("{file}: {} bytes that programs wrote are not in the image", lost.bytes());
        }
        left.len() as u64
    }
}

#[cfg(test)]
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
