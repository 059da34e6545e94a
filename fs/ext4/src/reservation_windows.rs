//! Reservation windows of growing files, so that files that grow concurrently stay in few pieces.
//!
//! A window is a reservation in memory after a file's last block. Other files allocate around it, the file
//! grows into it, and a crash loses nothing. Blocks in windows count as free everywhere: an allocation that
//! finds no other space releases all windows.
//!
//! The map's lock is a leaf: a removed window is dropped, which takes its group's lock, only after the map is
//! unlocked.

use crate::balloc::Reserved;
use ivers_block::BlockNo;
use ivers_vfs::sync::{RankedMutex, rank};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

/// Limit of the files with a window. Nothing tells when a file stops growing, so the file that grew least
/// recently loses its window.
const MAX_WINDOWS: usize = 64;

#[derive(Debug, Default)]
struct Map {
    /// By inode number: the time of its last growth, and its window.
    of: HashMap<u32, (u64, Reserved)>,
    clock: u64,
}

/// The windows of a mount.
#[derive(Debug, Default)]
pub(crate) struct ReservationWindows {
    map: RankedMutex<rank::Driver<15>, Map>,
    blocks: AtomicI64,
}

impl ReservationWindows {
    /// Blocks in windows.
    pub(crate) fn blocks(&self) -> i64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Takes up to `most` blocks from an inode's window, if that starts at `goal`. Releases a window that
    /// starts elsewhere: the file continues at another position.
    pub(crate) fn take(&self, ino: u32, goal: BlockNo, most: u32) -> Option<Reserved> {
        let (_, mut window) = self.map.lock().of.remove(&ino)?;
        self.blocks.fetch_sub(i64::from(window.len), Ordering::Relaxed);
        if window.start != goal {
            return None;
        }
        if let Some(rest) = window.split_off(most) {
            self.keep(ino, rest);
        }
        Some(window)
    }

    /// Keeps a window for an inode.
    pub(crate) fn keep(&self, ino: u32, room: Reserved) {
        self.blocks.fetch_add(i64::from(room.len), Ordering::Relaxed);
        let gone = {
            let mut map = self.map.lock();
            map.clock += 1;
            let clock = map.clock;
            let before = map.of.insert(ino, (clock, room));
            let oldest = (map.of.len() > MAX_WINDOWS)
                .then(|| map.of.iter().min_by_key(|(_, (clock, _))| *clock).map(|(ino, _)| *ino))
                .flatten();
            [before, oldest.and_then(|ino| map.of.remove(&ino))]
        };
        self.release(gone.into_iter().flatten());
    }

    /// Releases the window of an inode that shrinks, is deleted, or is evicted.
    pub(crate) fn forget(&self, ino: u32) {
        let gone = self.map.lock().of.remove(&ino);
        self.release(gone);
    }

    /// Releases all windows; false if there were none.
    pub(crate) fn clear(&self) -> bool {
        let gone = std::mem::take(&mut self.map.lock().of);
        let any = !gone.is_empty();
        self.release(gone.into_values());
        any
    }

    fn release(&self, gone: impl IntoIterator<Item = (u64, Reserved)>) {
        for (_, room) in gone {
            self.blocks.fetch_sub(i64::from(room.len), Ordering::Relaxed);
        }
    }
}
