//! Reservation windows of growing files, so that files that grow at the same time stay in few pieces.
//!
//! A window is a reservation in memory after a file's last block. Other files allocate around it, the file
//! grows into it, and a crash loses nothing. Blocks in windows count as free everywhere: an allocation that
//! finds no other space releases all windows. How other files keep out of a window is up to the driver.
//!
//! A window that is removed is dropped only after the map is unlocked: dropping it may take locks.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use std::collections::HashMap;

/// Limit of the files with a window. Nothing tells when a file stops growing, so the file that grew least
/// recently loses its window.
const MAX_WINDOWS: usize = 64;

/// The blocks of the smallest window.
const MIN_BLOCKS: u64 = 16;

/// Blocks that a file of `file_blocks` reserves ahead of its end: as many as it has, between 16 and `most`.
/// A new file reserves none: most files are written in one go.
pub fn window_blocks(file_blocks: u64, most: u64) -> u64 {
    if file_blocks == 0 { 0 } else { file_blocks.max(MIN_BLOCKS).min(most) }
}

/// The blocks that a file reserves, as a driver keeps them.
pub trait Window {
    /// Their number.
    fn blocks(&self) -> u64;
}

#[derive(Debug)]
struct Map<W> {
    /// To the time of the file's last growth, and its window.
    of: HashMap<Ino, (u64, W)>,
    clock: u64,
}

/// The windows of a mount.
#[derive(Debug)]
pub struct ReservationWindows<W> {
    map: RankedMutex<rank::Leaf, Map<W>>,
    blocks: AtomicU64,
}

impl<W> Default for ReservationWindows<W> {
    fn default() -> Self {
        let map = Map { of: HashMap::new(), clock: 0 };
        Self { map: RankedMutex::new(map), blocks: AtomicU64::new(0) }
    }
}

impl<W: Window> ReservationWindows<W> {
    /// Blocks in windows. Relaxed: the number is a hint.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Keeps a window for a file, in place of the one that it has.
    pub fn keep(&self, ino: Ino, window: W) {
        self.blocks.fetch_add(window.blocks(), Ordering::Relaxed);
        let gone = {
            let mut map = self.map.lock();
            map.clock += 1;
            let clock = map.clock;
            let before = map.of.insert(ino, (clock, window));
            let oldest = (map.of.len() > MAX_WINDOWS)
                .then(|| map.of.iter().min_by_key(|(_, (clock, _))| *clock).map(|(ino, _)| *ino))
                .flatten();
            [before, oldest.and_then(|ino| map.of.remove(&ino))]
        };
        gone.into_iter().flatten().for_each(|gone| self.release(&gone));
    }

    /// Removes and returns the window of a file that shrinks, is deleted, is evicted, or uses the window.
    pub fn remove(&self, ino: Ino) -> Option<W> {
        let gone = self.map.lock().of.remove(&ino)?;
        self.release(&gone);
        Some(gone.1)
    }

    /// Removes all windows; false if there were none.
    pub fn clear(&self) -> bool {
        let gone = std::mem::take(&mut self.map.lock().of);
        gone.values().for_each(|gone| self.release(gone));
        !gone.is_empty()
    }

    /// What `find` makes of the windows of all files but one.
    pub fn of_others<R>(&self, ino: Option<Ino>, find: impl Fn(&W) -> Option<R>) -> Vec<R> {
        let map = self.map.lock();
        let others = map.of.iter().filter(|(other, _)| Some(**other) != ino);
        others.filter_map(|(_, (_, window))| find(window)).collect()
    }

    fn release(&self, (_, window): &(u64, W)) {
        self.blocks.fetch_sub(window.blocks(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Blocks(u64);

    impl Window for Blocks {
        fn blocks(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn the_file_that_grew_least_recently_loses_its_window() {
        let windows = ReservationWindows::default();
        let count = MAX_WINDOWS as u64;
        (0..count).for_each(|ino| windows.keep(Ino(ino), Blocks(1)));
        windows.keep(Ino(0), Blocks(10));
        assert_eq!(windows.blocks(), count + 9);
        windows.keep(Ino(count), Blocks(1));
        let mut others = windows.of_others(Some(Ino(5)), |window| Some(window.0));
        others.sort_unstable();
        // That of file 1 is gone, and that of file 5 is left out.
        assert_eq!(others, [vec![1; MAX_WINDOWS - 2], vec![10]].concat());
        assert!(windows.remove(Ino(1)).is_none());
        assert_eq!(windows.remove(Ino(0)).map(|window| window.0), Some(10));
        assert_eq!(windows.blocks(), count - 1);
        assert!(windows.clear() && !windows.clear());
        assert_eq!(windows.blocks(), 0);
    }

    #[test]
    fn a_window_doubles_the_file_up_to_a_limit() {
        let blocks = |file| window_blocks(file, 2048);
        assert_eq!([0, 1, 16, 100, 5000].map(blocks), [0, 16, 16, 100, 2048]);
        assert_eq!(window_blocks(100, 3), 3);
    }
}
