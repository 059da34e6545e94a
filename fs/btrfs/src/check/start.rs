//! The start of a check: opens the devices, and finds the chunks.

use super::ledger::Ledger;
use super::space::Space;
use super::state::{Checker, Root};
use crate::chunks::open_chunks;
use crate::devices::Devices;
use crate::interrupted_commit::find_devices;
use crate::layout::key::{Key, kind, object};
use crate::layout::superblock::TreeRoot;
use crate::tree::{Forest, Tree};
use crate::volume::Volume;
use ivers_block::{Budget, Device};
use ivers_vfs::check::{Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The bytes of memory for blocks that may be read again.
const CACHE_BYTES: u64 = 16 << 20;
/// The most bytes of a chunk: more than any chunk that Linux makes. The sets of sectors grow by at most one
/// chunk before their memory is charged.
const CHUNK_BYTES_MAX: u64 = 256 << 30;
/// The most bytes of all chunks: with more, the sets of sectors would be too large.
const SPACE_MAX: u64 = 1 << 56;

/// Finds superblocks and chunks. Returns findings if damage hides everything else.
pub(super) fn open(
    devices: Vec<Arc<dyn Device>>,
    degraded: bool,
    memory: Memory,
    place: &str,
) -> Result<std::result::Result<Checker, Findings>> {
    let mut found = Findings::of("btrfs");
    let devices = match find_or_count(&devices, place, degraded) {
        Ok(devices) => devices,
        Err(Error::Corrupt { what, .. }) => {
            found.add("superblock-invalid", Place::filesystem(), what);
            return Ok(Err(found));
        }
        Err(error) => return Err(error),
    };
    devices.notes.iter().for_each(|note| found.note(note));
    if degraded {
        devices.missing_in_words().into_iter().for_each(|what| found.note(what));
    }
    let budget = Arc::new(Budget::new(CACHE_BYTES));
    match open_chunks(Volume::new(devices, place.into()), budget) {
        Ok(forest) => {
            let chunks = forest.volume.chunks();
            if let Some(long) = chunks.iter().find(|chunk| chunk.length > CHUNK_BYTES_MAX) {
                let what = format!("a chunk of {} bytes is too long to check", long.length);
                found.add("chunks-invalid", Place::filesystem(), what);
                return Ok(Err(found));
            }
            Checker::new(forest, found, memory).map(Ok)
        }
        Err(Error::Corrupt { what, place }) => {
            let what = format!("{place}: {what}; without all chunks, nothing else is checked");
            found.add("chunks-invalid", Place::filesystem(), what);
            Ok(Err(found))
        }
        Err(error) => Err(error),
    }
}

/// Finds the devices. If the superblock counts more than are given, but the chunk tree has items of the given
/// ones only, none is missing: the number in the superblock is wrong. A later pass reports that.
fn find_or_count(devices: &[Arc<dyn Device>], place: &str, degraded: bool) -> Result<Devices> {
    find_devices(devices, place, degraded).or_else(|error| match find_devices(devices, place, true) {
        Ok(found) if has_all_devices(&found, place).unwrap_or(false) => Ok(found),
        _ => Err(error),
    })
}

/// Returns whether the chunk tree has an item of each of these devices, and no other one.
fn has_all_devices(devices: &Devices, place: &str) -> Result<bool> {
    let volume = Volume::new(devices.clone(), place.into());
    let forest = open_chunks(volume, Arc::new(Budget::new(CACHE_BYTES)))?;
    let tree = Tree { id: object::CHUNK_TREE, root: devices.sb.chunk_root };
    let item = |devid| Key::new(object::DEV_ITEMS, kind::DEV_ITEM, devid);
    let mut given = 0;
    let other = forest.scan(&tree, item(0), item(u64::MAX), |key, _| {
        given += 1;
        let is_given = devices.members.contains_key(&key.offset);
        Ok(if is_given { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(other.is_none() && given == devices.members.len())
}

pub(super) fn root_of(id: u64, root: TreeRoot) -> Root {
    Root { tree: Tree { id, root }, item_offset: 0, refs: 1, dropped: None, sound: true, orphan: false }
}

impl Checker {
    fn new(forest: Forest, found: Findings, mut memory: Memory) -> Result<Self> {
        let volume = &forest.volume;
        let chunks = volume.chunks();
        let total = chunks.iter().fold(0u64, |sum, chunk| sum.saturating_add(chunk.length));
        if total > SPACE_MAX {
            return Err(Error::Incompatible(format!("{total} bytes in chunks are too many to check")));
        }
        // The sets of sectors have a pointer for each 32,768 of them.
        memory.keep(total / u64::from(volume.sb.sector_size) / 512)?;
        let space = Space::new(chunks, volume.sb.sector_size);
        Ok(Self {
            forest,
            found,
            memory,
            space,
            references: Ledger::new(),
            roots: BTreeMap::new(),
            namings: BTreeMap::new(),
            quiet: false,
            extents_sound: true,
            trees_sound: true,
            sums_sound: false,
            skip_references: None,
            orphans: 0,
            beside: 0,
            mending: None,
        })
    }
}
