//! Connections: every directory hangs below the root, link counts, `..`; and the paths of findings.

use super::state::{Checker, kind};
use crate::layout::inode::ROOT_INO;
use ivers_vfs::Result;
use ivers_vfs::check::{PathFinder, Place, unreachable};

/// More links than this are stored as 1 in directories.
const LINK_MAX: u16 = 65_000;

impl Checker {
    pub(super) fn check_connections(&mut self) {
        if self.inodes.kind(ROOT_INO) & kind::TYPE != kind::DIRECTORY {
            self.bad("root-invalid", Place::inode(ROOT_INO), "the root is not a directory");
            return;
        }
        if let Some(root) = self.dir_mut(ROOT_INO) {
            root.parent = ROOT_INO;
        }
        self.check_reachable();
        for nth in 0..self.dirs.len() {
            let dir = self.dirs[nth];
            if dir.parent != 0 && dir.dotdot != 0 && dir.parent != dir.dotdot {
                let what = format!(".. refers to inode {}, the parent is {}", dir.dotdot, dir.parent);
                self.bad("dotdot-wrong", Place::inode(dir.ino), what);
            }
        }
        self.check_links();
    }

    fn check_reachable(&mut self) {
        for (ino, in_circle) in unreachable(&self.dirs, |dir| (dir.ino, dir.parent), ROOT_INO) {
            if in_circle {
                let what = "the directory is in a circle that the root does not lead to";
                self.bad("directory-cycle", Place::inode(ino), what);
            } else if self.inodes.kind(ino) & (kind::ORPHAN | kind::SPECIAL) == 0 {
                self.bad("directory-unconnected", Place::inode(ino), "no name leads to this directory");
            }
        }
    }

    fn check_links(&mut self) {
        let differing: Vec<_> = self
            .inodes
            .used()
            .filter(|(_, found)| found & (kind::SPECIAL | kind::ORPHAN | kind::EA_INODE) == 0)
            .map(|(ino, found)| (ino, found, self.inodes.links(ino)))
            .filter(|(_, _, (stored, names))| stored != names)
            .collect();
        for (ino, found, (stored, names)) in differing {
            let is_dir = found & kind::TYPE == kind::DIRECTORY;
            if names == 0 || is_dir && self.dir(ino).is_some_and(|dir| dir.parent == 0) {
                // A directory without a name was reported as unconnected.
                if !is_dir {
                    let what = format!("no name leads to this inode; it says {stored}");
                    self.bad("inode-unattached", Place::inode(ino), what);
                }
            } else if !(is_dir && stored == 1 && names > LINK_MAX) {
                let what = format!("i_links_count is {stored}, counted {names}");
                self.bad("link-count-wrong", Place::inode(ino), what);
            }
        }
    }

    /// Adds paths to findings of inodes.
    pub(super) fn add_paths(&mut self) -> Result<()> {
        let parent_of = |ino: u64| Some(self.dir(u32::try_from(ino).ok()?)?.parent.into());
        let scan = |finder: &mut PathFinder| {
            self.dirs.iter().try_for_each(|dir| {
                let Some(slot) = self.slot(dir.ino)? else { return Ok(()) };
                let add = &mut |ino: u32, name: &[u8]| finder.add(dir.ino.into(), ino.into(), name);
                self.each_entry(&slot, add)
            })
        };
        let finder = PathFinder::find(&self.found.wanted_paths(), parent_of, ROOT_INO.into(), scan)?;
        self.found.set_paths(&finder);
        Ok(())
    }
}
