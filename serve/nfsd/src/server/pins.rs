//! Files that clients have open stay, whoever takes their names away: a client closes, reads and writes what he has open. A restart ends that, as the flag
//! of OPEN says that is not set (`OPEN4_RESULT_PRESERVE_UNLINKED`).
//!
//! Lock order: the pins, then `state`. An inode is let go under neither: what has no name any more is deleted then.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ivers_vfs::InodeRef;
use parking_lot::Mutex;

use super::core::Core;
use crate::state::File;

/// So many are looked at in one go.
const SLICE: usize = 256;

#[derive(Default)]
struct Table {
    files: BTreeMap<File, InodeRef>,
    /// Where the sweep stands.
    at: Option<File>,
}

/// Files that somebody has open, or had a moment ago.
#[derive(Default)]
pub(super) struct Pins(Mutex<Table>);

impl Pins {
    /// Nobody has anything open any more.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }
}

impl Core {
    /// An OPEN of this file was committed.
    pub fn pin(&self, file: File, inode: &InodeRef) {
        self.pins.0.lock().files.entry(file).or_insert_with(|| inode.clone());
    }

    /// Somebody has closed this file.
    pub fn unpin(&self, file: File) {
        let mut table = self.pins.0.lock();
        // Asked under the lock: who has opened it since has done so before, and finds his pin there, or pins it afterwards.
        let open = self.section(|state, _| state.is_open(file)).0;
        let pin = if open { None } else { table.files.remove(&file) };
        drop(table);
        drop(pin);
    }

    /// Let go what nobody has open, a slice at a time: opens end with their clients, too.
    pub fn sweep_pins(self: &Arc<Self>) {
        let mut table = self.pins.0.lock();
        let from = table.at.map_or(Bound::Unbounded, Bound::Excluded);
        let slice: Vec<File> =
            table.files.range((from, Bound::Unbounded)).map(|(file, _)| *file).take(SLICE).collect();
        table.at = if slice.len() == SLICE { slice.last().copied() } else { None };
        if slice.is_empty() {
            return;
        }
        let closed = |state: &mut crate::state::State, _| -> Vec<File> {
            slice.into_iter().filter(|file| !state.is_open(*file)).collect()
        };
        let closed = self.section(closed).0;
        let pins: Vec<InodeRef> = closed.iter().filter_map(|file| table.files.remove(file)).collect();
        drop(table);
        drop(pins);
    }
}
