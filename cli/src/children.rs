//! The files of a directory of a mount with their change attributes: one request for hundreds of files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ivers_fuse::{CHILDREN, CHILDREN_MAX, Child, all_mounts, parse_children};
use rustix::fs::{Mode, OFlags};

/// Most names in a directory.
const NAMES_MAX: usize = 50_000_000;

/// The directories that other mounts cover. A mount does not know which of its names are covered.
pub struct Covered(Option<HashSet<PathBuf>>);

impl Covered {
    /// Reads the table of mounts.
    pub fn now() -> Self {
        let mounts: HashSet<_> = all_mounts().into_iter().map(|mount| mount.dir).collect();
        Self((!mounts.is_empty()).then_some(mounts))
    }

    /// Returns whether something may be mounted on this path, which contains no symbolic link.
    fn may_contain(&self, path: &Path) -> bool {
        self.0.as_ref().is_none_or(|mounts| mounts.contains(path))
    }
}

/// Passes the files of a directory to `each`, in no order. `None` if the mount does not tell all of them, or
/// if another mount covers the directory or one of the names. `path` contains no symbolic link, and `device`
/// is the number of the mount.
pub fn of(path: &Path, device: u64, covered: &Covered, each: &mut dyn FnMut(Child)) -> Option<()> {
    // Not opened for reading, which would be a question of its own to a server.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    if rustix::fs::fstat(&dir).ok()?.st_dev != device {
        return None;
    }
    let open = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let (mut names, mut name) = (0, CHILDREN.to_owned());
    let mut value = vec![0; CHILDREN_MAX];
    let mut last = 0;
    loop {
        let len = rustix::fs::getxattr(&open, &name, &mut value).ok()?;
        let (children, next) = parse_children(value.get(..len)?)?;
        names += children.len();
        for child in children {
            if covered.may_contain(&path.join(OsStr::from_bytes(&child.name))) {
                return None;
            }
            each(child);
        }
        let Some(next) = next else { return Some(()) };
        // The reply can come from any filesystem, so it is not trusted.
        if next == last || names > NAMES_MAX {
            return None;
        }
        last = next;
        name = format!("{CHILDREN}.{next}");
    }
}
