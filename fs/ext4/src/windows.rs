//! Room that growing files keep ahead of them, so that files which grow side by side stay in few pieces.
//!
//! A window is a reservation in memory behind a file's last block. Others allocate around it, the file grows into it, and a
//! crash costs nothing. Blocks in windows count as free everywhere: whoever finds no other room gives all windows back.
//!
//! The map's lock is a leaf: a window that goes is dropped (which takes its group's lock) only after it is released.

use crate::balloc::Reserved;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

/// So many files keep room at once; nobody tells when a file stops growing, so the one that grew longest ago loses it.
const MOST_WINDOWS: usize = 64;

#[derive(Debug, Default)]
struct Map {
    /// By inode number: when it grew last, and its room.
    of: HashMap<u32, (u64, Reserved)>,
    clock: u64,
}

/// The windows of a mount.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    map: Mutex<Map>,
    blocks: AtomicI64,
}

impl Windows {
    /// Blocks in windows.
    pub(crate) fn blocks(&self) -> i64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Up to `most` blocks from the window of an inode, if it begins at `goal`. A window that lies elsewhere is given back: the file goes
    /// on somewhere else.
    pub(crate) fn take(&self, ino: u32, goal: u64, most: u32) -> Option<Reserved> {
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

    /// Keep room for an inode.
    pub(crate) fn keep(&self, ino: u32, room: Reserved) {
        self.blocks.fetch_add(i64::from(room.len), Ordering::Relaxed);
        let gone = {
            let mut map = self.map.lock();
            map.clock += 1;
            let clock = map.clock;
            let before = map.of.insert(ino, (clock, room));
            let oldest = (map.of.len() > MOST_WINDOWS)
                .then(|| map.of.iter().min_by_key(|(_, (clock, _))| *clock).map(|(ino, _)| *ino))
                .flatten();
            [before, oldest.and_then(|ino| map.of.remove(&ino))]
        };
        self.give_back(gone.into_iter().flatten());
    }

    /// The inode shrinks, goes, or leaves the memory.
    pub(crate) fn forget(&self, ino: u32) {
        let gone = self.map.lock().of.remove(&ino);
        self.give_back(gone);
    }

    /// Give all back; false if there were none.
    pub(crate) fn clear(&self) -> bool {
        let gone = std::mem::take(&mut self.map.lock().of);
        let any = !gone.is_empty();
        self.give_back(gone.into_values());
        any
    }

    fn give_back(&self, gone: impl IntoIterator<Item = (u64, Reserved)>) {
        for (_, room) in gone {
            self.blocks.fetch_sub(i64::from(room.len), Ordering::Relaxed);
        }
    }
}
