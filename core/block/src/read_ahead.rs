//! When to read more blocks than one.
//!
//! Blocks of an inode table or of a directory are often used together, in any order. Random access uses one
//! here and one there, and must not read what it does not use. So the device is divided into windows, and
//! only a second miss in a window within a short time reads the rest of it.

use crate::BlockNo;
use parking_lot::Mutex;
use std::ops::Range;

/// Blocks of a window.
const WINDOW_BLOCKS: u64 = 32;
/// Windows whose misses are remembered.
const RECENT: usize = 64;

/// The windows of the last misses.
#[derive(Default)]
pub(crate) struct RecentMisses(Mutex<Ring>);

struct Ring {
    windows: [u64; RECENT],
    next: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Self { windows: [u64::MAX; RECENT], next: 0 }
    }
}

impl RecentMisses {
    /// Notes a miss. Returns the part of its window inside `range` if there was another miss in the window
    /// lately.
    pub(crate) fn window(&self, block: BlockNo, range: &Range<BlockNo>) -> Option<Range<BlockNo>> {
        let window = block.0 / WINDOW_BLOCKS;
        let mut ring = self.0.lock();
        if !ring.windows.contains(&window) {
            let next = ring.next;
            ring.windows[next] = window;
            ring.next = (next + 1) % RECENT;
            return None;
        }
        let start = range.start.max(BlockNo(window * WINDOW_BLOCKS));
        let end = range.end.min(BlockNo((window + 1) * WINDOW_BLOCKS));
        (start..end).contains(&block).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_miss_in_a_window_reads_ahead() {
        let (misses, range) = (RecentMisses::default(), BlockNo(10)..BlockNo(60));
        assert_eq!(misses.window(BlockNo(20), &range), None);
        assert_eq!(misses.window(BlockNo(12), &range), Some(BlockNo(10)..BlockNo(32)));
        assert_eq!(misses.window(BlockNo(40), &range), None);
        assert_eq!(misses.window(BlockNo(33), &range), Some(BlockNo(32)..BlockNo(60)));
        // Random access forgets.
        for window in 10..10 + RECENT as u64 {
            misses.window(BlockNo(window * WINDOW_BLOCKS), &range);
        }
        assert_eq!(misses.window(BlockNo(21), &range), None);
    }
}
