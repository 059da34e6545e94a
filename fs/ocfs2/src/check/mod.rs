//! The checker of OCFS2: reads everything, believes nothing, repairs nothing.
//!
//! It shares the decoding of structures with the driver. It computes again which clusters, and which blocks
//! of allocators, have an owner, how many names an inode has, and all counts. Journals that hold changes are
//! replayed in memory first. `docs/check.md` says how much memory it takes.

mod chains;
mod directories;
mod inodes;
mod refcounts;
mod state;
mod xattrs;

use crate::layout::superblock::{self, backup_places};
use crate::open::{OpenOptions, read_super};
use crate::volume::Ocfs2;
use ivers_block::{Budget, ByteOffset, Device};
use ivers_vfs::check::{Findings, Memory, Place};
use ivers_vfs::{DriverOptions, Error, Result};
use state::Checker;
use std::sync::Arc;

/// Bytes of blocks that are kept in memory.
const CACHE_BYTES: u64 = 8 << 20;

/// Checks a filesystem; `image` names it in errors. An error means that the check could not be done.
pub fn check(device: Arc<dyn Device>, memory: Memory, image: &str) -> Result<Findings> {
    let damaged = |code: &'static str, what: String| {
        let mut found = Findings::of("ocfs2");
        found.add(code, Place::filesystem(), what);
        found
    };
    match read_super(&*device, image) {
        Err(Error::Corrupt { what, .. }) => {
            let mut found = damaged("superblock-invalid", what);
            note_copy(&*device, &mut found)?;
            return Ok(found);
        }
        other => other?,
    };
    let budget = Arc::new(Budget::new(CACHE_BYTES));
    let common =
        DriverOptions { read_only: true, budget, place: image.to_owned(), ..DriverOptions::default() };
    let options = OpenOptions { common, no_replay: false };
    let opened = match Ocfs2::open_with(device, &options, crate::open::wait_for_heartbeat) {
        Err(error @ Error::Corrupt { .. }) => return Ok(damaged("system-files-invalid", error.to_string())),
        opened => opened?,
    };
    let mut checker = Checker::new(opened, memory)?;
    checker.check_system_files()?;
    checker.check_refcounts()?;
    checker.check_directories()?;
    checker.check_links();
    checker.compare_maps();
    checker.find_paths()?;
    Ok(checker.found)
}

/// Checks a device without a superblock. Returns what is wrong if there is a copy of one.
pub fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    let mut found = Findings::of("ocfs2");
    found.add("superblock-invalid", Place::filesystem(), "there is no superblock where it must be");
    Ok(note_copy(device, &mut found)?.then_some(found))
}

/// Notes where the first copy of the superblock is.
fn note_copy(device: &dyn Device, found: &mut Findings) -> Result<bool> {
    for (nth, place) in backup_places().enumerate() {
        for size in (9..=12).map(|bits| 1u32 << bits) {
            let mut block = vec![0; size as usize];
            if place + u64::from(size) > device.size_bytes() {
                continue;
            }
            device.read_at(ByteOffset(place), &mut block)?;
            if superblock::is_copy(&block) {
                let nth = nth + 1;
                found.note(format!("a copy of the superblock is at byte {place}: run fsck.ocfs2 -r {nth}"));
                return Ok(true);
            }
        }
    }
    Ok(false)
}
