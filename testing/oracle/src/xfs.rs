//! Oracles of XFS: xfs_repair, and Linux.
//!
//! xfs_repair knows parent pointers since version 6.10. Without it Linux is the judge: it removes every file,
//! and a name without its parent pointer is an error that stops the filesystem.

use crate::{LoopMount, kernel::may_loop_mount};
use anyhow::{Context, Result};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Where the superblock has the incompatible features, and the bit of parent pointers in the third byte.
const FEATURES: u64 = 216;
const PARENT: u8 = 0x80;

/// Returns whether an image has parent pointers.
pub fn has_parent_pointers(image: &Path) -> Result<bool> {
    let mut file = std::fs::File::open(image)?;
    file.seek(SeekFrom::Start(FEATURES))?;
    let mut features = [0; 4];
    file.read_exact(&mut features)?;
    Ok(features[3] & PARENT != 0)
}

/// Returns whether the installed xfs_repair knows parent pointers.
fn repair_knows_parent_pointers() -> Result<bool> {
    let said = crate::said(&crate::run("xfs_repair", ["-V"])?);
    let version = said.split_whitespace().last().unwrap_or_default();
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    Ok(numbers >= vec![6, 10])
}

/// Lets xfs_repair or Linux judge an image; an error has the findings. The image stays as it is.
pub fn judge(image: &Path) -> Result<()> {
    if !has_parent_pointers(image)? || repair_knows_parent_pointers()? {
        crate::run("xfs_repair", ["-n".as_ref(), "-f".as_ref(), image.as_os_str()])?;
    } else if may_loop_mount() {
        std::fs::remove_file(emptied_by_linux(image)?)?;
    }
    Ok(())
}

/// Lets Linux remove every file of a copy of an image. Returns the path of the copy.
pub fn emptied_by_linux(image: &Path) -> Result<PathBuf> {
    let copy = image.with_extension("emptied");
    crate::run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copy.as_os_str()])?;
    let mounted = LoopMount::new(&copy, "nouuid")?;
    let words = [mounted.path().as_os_str(), "-mindepth".as_ref(), "1".as_ref(), "-delete".as_ref()];
    crate::run("find", words).context("Linux removes all files")?;
    mounted.unmount()?;
    Ok(copy)
}
