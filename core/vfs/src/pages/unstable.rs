//! Pages that a server may lose.
//!
//! A server may keep written bytes in its memory only ([`Written::Unstable`](crate::Written)). Such a page
//! stays, and counts as dirty, until a commit; if the server restarts before, the page is dirty again.

use super::{Memory, PAGE64, Pages, index};
use crate::sync::atomic::Ordering;

/// A write that is not committed. It lies beside the map of pages, because few pages have one.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnstableWrite {
    /// The position of its run among all unstable ones of the file.
    pub(super) run: u64,
    /// `Map::generation` at its end.
    pub(super) generation: u64,
}

impl Pages {
    /// How many unstable runs have ended: a commit that begins after this call covers these.
    pub(crate) fn unstable_runs(&self) -> u64 {
        if !self.has_unstable.load(Ordering::Acquire) {
            return 0;
        }
        self.map.lock().unstable_runs
    }

    /// Whether pages may be unstable.
    pub(crate) fn has_unstable(&self) -> bool {
        self.has_unstable.load(Ordering::Acquire)
    }

    /// How often unstable pages became dirty again.
    pub(crate) fn redirtied(&self) -> u64 {
        self.redirtied.load(Ordering::Acquire)
    }

    /// The first `runs` unstable runs are durable. Pages that became outdated meanwhile are dropped.
    pub(crate) fn committed(&self, runs: u64, memory: &Memory) {
        if !self.has_unstable.load(Ordering::Acquire) {
            return;
        }
        let mut map = self.map.lock();
        let map = &mut **map;
        let (mut cleaned, mut dropped) = (0, 0);
        map.unstable.retain(|at, write| {
            let Some(page) = map.pages.get_mut(at) else { return false };
            if write.run >= runs {
                return true;
            }
            page.unstable = false;
            if !page.must_stay() {
                cleaned += 1;
                if write.generation != map.generation {
                    map.pages.remove(at);
                    dropped += 1;
                }
            }
            false
        });
        self.has_unstable.store(!map.unstable.is_empty(), Ordering::Release);
        if map.pages.is_empty() {
            self.has_pages.store(false, Ordering::Relaxed);
        }
        memory.dirty_bytes.fetch_sub(cleaned * PAGE64, Ordering::Relaxed);
        memory.budget.uncharge(dropped * PAGE64);
    }

    /// Makes the unstable pages of `from..to` dirty again. Returns whether there were any.
    pub(crate) fn redirty(&self, from: u64, to: u64) -> bool {
        let mut map = self.map.lock();
        let map = &mut **map;
        let range = index(from)..to.div_ceil(PAGE64).max(index(from));
        let again: Vec<u64> = map.unstable.range(range).map(|(at, _)| *at).collect();
        for at in &again {
            map.unstable.remove(at);
            if let Some(page) = map.pages.get_mut(at) {
                (page.unstable, page.dirty) = (false, true);
                map.dirty.insert(*at);
            }
        }
        if !again.is_empty() {
            self.redirtied.fetch_add(1, Ordering::Release);
        }
        !again.is_empty()
    }
}
