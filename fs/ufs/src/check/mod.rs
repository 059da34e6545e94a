//! The checker of UFS1 and UFS2: reads everything, believes nothing, repairs nothing.
//!
//! It shares the decoding of structures with the driver. It computes itself which fragments and inodes have
//! an owner, how many names an inode has, and all counts.
//!
//! Memory: a bit for each fragment, 8 bytes for each inode of groups with inodes in use, 32 bytes for each
//! group (its counts in the summary area included), 12 bytes for each directory, and the names of one
//! directory.

mod directories;
mod groups;
mod inodes;
mod reader;
mod state;

use crate::head::{read_head, read_super};
use crate::layout::superblock::Superblock;
use ivers_block::Device;
use ivers_vfs::check::{Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use std::sync::Arc;

pub(crate) use state::{Checker, Directory};

/// Checks a filesystem; `image` names it in errors. An error means that the check could not be done.
pub fn check(device: Arc<dyn Device>, memory: Memory, image: &str) -> Result<Findings> {
    let sb = match read_super(&*device, image) {
        Ok(sb) => sb,
        Err(Error::Corrupt { what, .. }) => {
            let mut found = Findings::default();
            found.add("superblock-invalid", Place::filesystem(), what);
            note_copy(&*device, &mut found)?;
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    if sb.is_old {
        let what = "UFS1 of a system before 4.4BSD, or of Solaris, cannot be checked: its groups have \
                    another format";
        return Err(Error::Incompatible(format!("{image}: {what}; run fsck of that system")));
    }
    let mut checker = survey(device, &sb, memory)?;
    checker.find_paths()?;
    Ok(checker.found)
}

/// Reads everything, and returns what was seen.
pub(crate) fn survey(device: Arc<dyn Device>, sb: &Superblock, memory: Memory) -> Result<Checker> {
    let mut checker = Checker::new(device, sb.clone(), memory)?;
    checker.check_superblock()?;
    checker.check_inodes()?;
    checker.check_directories()?;
    checker.check_links()?;
    checker.check_groups()?;
    Ok(checker)
}

/// Checks a device without a superblock. Returns what is wrong if there is a copy of one near its start.
pub fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    let mut found = Findings::default();
    found.add("superblock-invalid", Place::filesystem(), "there is no superblock where it must be");
    Ok(note_copy(device, &mut found)?.then_some(found))
}

/// Notes where the first copy of the superblock is, if one is near the start of the device.
fn note_copy(device: &dyn Device, found: &mut Findings) -> Result<bool> {
    let head = read_head(device)?;
    let is_copy = |&at: &usize| Superblock::parse(&head[at..], at as u64, device.size_bytes(), "").is_ok();
    let copy = (0..head.len()).step_by(512).find(is_copy);
    if let Some(at) = copy {
        found.note(format!("a copy of the superblock is at byte {at}: see the option -b of fsck_ffs"));
    }
    Ok(copy.is_some())
}
