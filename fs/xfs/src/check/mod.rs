//! The checker of XFS: reads everything, believes nothing, repairs nothing.
//!
//! It shares with the driver what interprets bytes (`layout`, extents, name hashes), and the replay of the
//! log. It computes itself who owns each block, which names lead where, and what maps and counts must say.
//!
//! | pass | what it reads | what it leaves for later passes |
//! |---|---|---|
//! | 1 | superblock, log | the geometry, the end of the log |
//! | 2 | heads, free lists and B-trees of groups | free space, chunks of inodes, the blocks of B-trees |
//! | 3 | inodes, their forks, attributes and link targets | owners of blocks, types, stored links |
//! | 4 | lists of unlinked inodes, directories | counted links, parents |
//! | 5 | nothing | connections, links, space against owners, counts |
//! | 6 | reverse maps and reference counts again; quota records | - |
//!
//! Every block has exactly one owner, or is data of files that all say that they may share blocks, or is
//! free. So each block of a B-tree is read once, and a damaged pointer cannot lead a walk into a circle.
//!
//! | module | contents |
//! |---|---|
//! | `mapping`, `state` | who owns what; what a check knows |
//! | `tree`, `hashtree` | walks of B-trees and of hash trees of names |
//! | `superblock`, `group`, `chunks` | the filesystem's own structures |
//! | `owners` | reverse maps and reference counts |
//! | `fork`, `link`, `names`, `attr`, `inode` | inodes and what belongs to them |
//! | `listing`, `dir_data`, `dir` | directories |
//! | `unlinked`, `connect`, `counts`, `quota` | lists of unlinked inodes, connections, counts, quota files |

mod attr;
mod chunks;
mod connect;
mod counts;
mod dir;
mod dir_data;
mod fork;
mod group;
mod hashtree;
mod inode;
mod link;
mod listing;
mod mapping;
mod names;
mod owners;
mod quota;
mod state;
mod superblock;
mod tree;
mod unlinked;

use crate::layout::bytes::{number, read};
use crate::layout::features::Incompat;
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{FsBlock, Superblock};
use crate::log;
use crate::open::HEAD_BYTES;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::check::{Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use state::Checker;
use std::sync::Arc;

/// Checks a filesystem; `place` names the image in errors. An error means that the check could not be done:
/// the device failed, or the format is not supported.
pub fn check(device: Arc<dyn Device>, memory: Memory, place: &str) -> Result<Findings> {
    let mut found = Findings::default();
    let Some((raw, sb)) = read_super(&*device, place, &mut found)? else { return Ok(found) };
    let (device, state) = match log::recover(device.clone(), &sb, place) {
        Ok(recovered) => recovered,
        Err(Error::Corrupt { what, .. }) => {
            found.add("log-damaged", Place::filesystem(), what);
            (device, log::LogState::default())
        }
        Err(error) => return Err(error),
    };
    let replayed = state.transactions.is_some();
    let (raw, sb) = match replayed {
        // The log may have a newer superblock.
        true => match read_super(&*device, place, &mut found)? {
            Some(read) => read,
            None => return Ok(found),
        },
        false => (raw, sb),
    };
    let mut checker = Checker::new(device, sb, raw, found, memory)?;
    checker.stale_counts = replayed;
    checker.log_head = Some(state.end.head).filter(|head| *head > 0);
    if let Some(transactions) = state.transactions {
        checker.found.note(format!("{transactions} transactions of the log are replayed in memory"));
    }
    checker.note_pending(&state.intents);
    checker.check_superblock()?;
    checker.check_groups()?;
    checker.check_inodes()?;
    checker.check_hidden();
    checker.check_unlinked()?;
    checker.check_directories()?;
    checker.check_connections();
    checker.check_space();
    checker.check_counts();
    checker.check_owners()?;
    checker.check_quotas()?;
    checker.add_paths()?;
    Ok(checker.found)
}

/// Checks a device that is not recognised as XFS, because its first bytes are destroyed. Returns `None` if
/// no XFS filesystem was there.
pub fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    superblock::check_remains(device)
}

/// Reads the superblock; `None` if it is damaged, which is a finding.
fn read_super(
    device: &dyn Device,
    place: &str,
    found: &mut Findings,
) -> Result<Option<(RawSuperblock, Superblock)>> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    let what = match Superblock::parse_accepting(&head, device.size_bytes(), place, Incompat::NEEDSREPAIR) {
        Ok(sb) => match read::<RawSuperblock>(&head, 0) {
            Some(raw) => return Ok(Some((raw, sb))),
            None => return Ok(None),
        },
        Err(Error::Corrupt { what, .. }) => what,
        Err(Error::Incompatible(what)) if superblock::contradicts_copy(device, &head)? => {
            format!("{what}; the copy in the second group does not say that")
        }
        Err(error) => return Err(error),
    };
    found.add("superblock-invalid", Place::filesystem(), what);
    Ok(None)
}

impl Checker {
    /// Notes blocks and parent pointers of intents that are not finished. Linux finishes them when it mounts
    /// for writing.
    fn note_pending(&mut self, intents: &[log::FoundIntent]) {
        for intent in intents {
            if let Ok(Some(change)) = log::ParentIntent::decode(&intent.regions)
                && intent.kind == 0x1246
            {
                self.pending_parents.insert(change.ino);
            }
            let extents = intent.regions.first().and_then(|region| region.get(16..)).unwrap_or_default();
            // Where a record has its first block and its length.
            let (each, start_at, len_at) = match intent.kind {
                0x1236 => (16, 0, 8),
                0x1240 => (32, 8, 24),
                0x1242 => (16, 0, 8),
                _ => continue,
            };
            for extent in extents.chunks_exact(each) {
                let field = |at, len| number(extent, at, len).unwrap_or(0);
                let (start, len) =
                    (field(start_at, 8).swap_bytes(), u64::from((field(len_at, 4) as u32).swap_bytes()));
                if let Some(first) = self.sb.run(FsBlock(start), len) {
                    self.pending.set_run(first.0, len);
                }
            }
        }
        if !intents.is_empty() {
            let count = intents.len();
            let what = "intents of the log are not finished: their blocks and parent pointers are not judged";
            self.found.note(format!("{count} {what}"));
        }
    }
}
