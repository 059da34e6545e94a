//! The checker of ext2, ext3 and ext4: reads everything, believes nothing, repairs nothing.
//!
//! It shares with the driver what interprets bytes (`layout`, the nodes of extent trees, index blocks, name
//! hashes), and computes itself who owns each block, which names lead where, and what counts and bitmaps must
//! say.
//!
//! | module | contents |
//! |---|---|
//! | `state` | what a check knows |
//! | `map` | walks of block maps |
//! | `superblock`, `groups`, `journal`, `orphans`, `quota` | the filesystem's own structures |
//! | `xattr`, `inode` | the scan of all inodes: fields, maps, attributes |
//! | `htree`, `dir`, `connect` | directories, and the tree that they form |
//! | `bitmaps` | bitmaps and counts |

mod bitmaps;
mod connect;
mod dir;
mod groups;
mod htree;
mod inode;
mod journal;
mod map;
mod orphans;
mod quota;
mod state;
mod superblock;
mod xattr;

use crate::layout::features::{Compat, Incompat};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{STATE_VALID, SUPERBLOCK_LEN, SUPERBLOCK_OFFSET, Superblock};
use ivers_block::Device;
use ivers_vfs::check::{Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use journal::Journal;
use state::Checker;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Checks a filesystem; `place` names the image in errors. An error means that the check could not be done:
/// the device failed, or the format is not supported.
pub fn check(device: Arc<dyn Device>, memory: Memory, place: &str) -> Result<Findings> {
    let mut found = Findings::default();
    let Some((raw, sb)) = read_super(&*device, place, &mut found)? else {
        if let Some(copy) = superblock::find_copy(&*device)? {
            found.note(format!("there is {}", use_of_copy(copy)));
        }
        return Ok(found);
    };
    let mut checker = Checker::new(device, sb, raw, found, memory)?;
    checker.check_groups()?;
    let replayed = checker.check_journal()?;
    if let Journal::Replayed(device) = replayed {
        // Start afresh: the log may hold newer descriptors and a newer superblock.
        let notes: Vec<String> = checker.found.notes().to_vec();
        let damage = checker.found.kept().iter().filter(|found| found.code.starts_with("journal-"));
        let mut found = Findings::default();
        for finding in damage {
            found.add(finding.code, finding.place.clone(), finding.what.clone());
        }
        notes.into_iter().for_each(|note| found.note(note));
        let Some((raw, sb)) = read_super(&*device, place, &mut found)? else { return Ok(found) };
        checker = Checker::new(device, sb, raw, found, checker.memory)?;
        checker.stale_counts = true;
        checker.check_groups()?;
    }
    checker.stale_counts |=
        checker.raw.s_state.get() & STATE_VALID == 0 || checker.sb().incompat.contains(Incompat::RECOVER);
    if checker.raw.s_state.get() & STATE_VALID == 0 && !checker.sb().compat.contains(Compat::HAS_JOURNAL) {
        checker.found.note(
            "the superblock says that it was not unmounted cleanly: after a crash, or it is still mounted. \
             e2fsck clears this mark",
        );
    }
    checker.check_superblock();
    checker.check_backups()?;
    checker.check_orphans()?;
    checker.check_inodes()?;
    checker.check_xattr_references()?;
    checker.check_directories()?;
    checker.check_connections();
    checker.check_bitmaps()?;
    checker.check_quotas()?;
    checker.add_paths()?;
    Ok(checker.found)
}

/// Checks a device that is no ext2, ext3 or ext4 filesystem, because its first bytes are destroyed. Returns
/// `None` if there is no copy of a superblock either.
pub fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    let Some(copy) = superblock::find_copy(device)? else { return Ok(None) };
    let mut found = Findings::default();
    let what = format!("the superblock is missing; there is {}", use_of_copy(copy));
    found.add("superblock-invalid", Place::group(1u64).at(copy.1), what);
    Ok(Some(found))
}

/// Says how a copy of the superblock is used. `copy` is the result of [`superblock::find_copy`].
fn use_of_copy((block_bytes, block): (u64, u64)) -> String {
    format!("a copy of a superblock: try e2fsck -b {block} -B {block_bytes} on a copy of the image")
}

/// Reads the superblock; `None` if it is damaged, which is a finding.
fn read_super(
    device: &dyn Device,
    place: &str,
    found: &mut Findings,
) -> Result<Option<(RawSuperblock, Superblock)>> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    if device.size_bytes() < SUPERBLOCK_OFFSET.0 + SUPERBLOCK_LEN as u64 {
        return Err(Error::Incompatible(format!("{place} is too short for ext2, ext3 or ext4")));
    }
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    match Superblock::parse_accepting(&bytes, device.size_bytes(), place, Incompat::CHECKABLE) {
        Ok(sb) => match RawSuperblock::read_from_bytes(&bytes) {
            Ok(raw) => {
                found.set_fs_type(sb.fs_type());
                Ok(Some((raw, sb)))
            }
            Err(_) => Ok(None),
        },
        Err(Error::Corrupt { what, .. }) => {
            found.add("superblock-invalid", Place::filesystem(), what);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
