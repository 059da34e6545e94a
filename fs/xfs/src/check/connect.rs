//! Connections: every inode has the names that it counts, and every directory hangs below the root.

use super::state::{Checker, kind};
use ivers_vfs::Result;
use ivers_vfs::check::{PathFinder, Place, unreachable};

impl Checker {
    pub(super) fn check_connections(&mut self) {
        let root = self.sb.root;
        if self.kind(root) & kind::TYPE != kind::DIRECTORY {
            if self.may_exist(root) {
                return;
            }
            return self.bad("root-invalid", Place::inode(root), "the root is no directory");
        }
        let dotdot = self.dir_mut(root).map_or(0, |found| {
            found.parent = root;
            found.dotdot
        });
        if dotdot != 0 && dotdot != root {
            let what = format!("the root says that its parent is {dotdot}");
            self.bad("root-invalid", Place::inode(root), what);
        }
        for (ino, in_circle) in unreachable(&self.dirs, |dir| (dir.ino, dir.parent), root) {
            if self.kind(ino) & (kind::ORPHAN | kind::HIDDEN) != 0 || (self.names_unsound && !in_circle) {
                continue;
            }
            let what = match in_circle {
                true => "the directory is in a circle that the root does not lead to",
                false => "no name leads to this directory",
            };
            let code = if in_circle { "directory-cycle" } else { "directory-unconnected" };
            self.bad(code, Place::inode(ino), what);
        }
        let wrong =
            self.dirs.iter().filter(|dir| dir.parent != 0 && dir.dotdot != dir.parent && dir.dotdot != 0);
        for dir in wrong.copied().collect::<Vec<_>>() {
            let what = format!(".. refers to inode {}, the parent is {}", dir.dotdot, dir.parent);
            self.bad("dotdot-wrong", Place::inode(dir.ino), what);
        }
        self.check_links();
    }

    fn check_links(&mut self) {
        let (mut wrong, mut parents_wrong) = (Vec::new(), Vec::new());
        for (first, chunk) in &self.chunks {
            for at in 0..64 {
                let found = chunk.kinds[at];
                let skipped = found == 0
                    || found & (kind::HIDDEN | kind::ORPHAN) != 0
                    || found & kind::TYPE == kind::UNKNOWN;
                if !skipped && chunk.links[at] != chunk.names[at] {
                    wrong.push((first + at as u64, found, chunk.links[at], chunk.names[at]));
                }
                let skipped = skipped || self.pending_parents.contains(&(first + at as u64));
                if !skipped && chunk.parents.as_ref().is_some_and(|sums| sums[at] != 0) {
                    parents_wrong.push(first + at as u64);
                }
            }
        }
        for (ino, found, stored, names) in wrong {
            let is_dir = found & kind::TYPE == kind::DIRECTORY;
            let unnamed =
                if is_dir { self.dir_mut(ino).is_none_or(|dir| dir.parent == 0) } else { names == 0 };
            if self.names_unsound && stored > names {
                continue;
            }
            if unnamed {
                // A directory without a name is reported as unconnected.
                if !is_dir {
                    let what = format!("no name leads to this inode; it says {stored}");
                    self.bad("inode-unattached", Place::inode(ino), what);
                }
                continue;
            }
            let what = format!("di_nlink is {stored}, counted {names}");
            self.bad("link-count-wrong", Place::inode(ino), what);
        }
        if self.names_unsound {
            self.found.note("inodes without a name are not reported: not all directories can be read");
            return;
        }
        for ino in parents_wrong {
            let what = "the parent pointers differ from the names of the inode";
            self.bad("parent-pointer-wrong", Place::inode(ino), what);
        }
    }

    /// Adds paths to findings of inodes.
    pub(super) fn add_paths(&mut self) -> Result<()> {
        let parents: Vec<(u64, u64)> = self.dirs.iter().map(|dir| (dir.ino, dir.parent)).collect();
        let parent_of = |ino: u64| {
            let at = parents.binary_search_by_key(&ino, |(ino, _)| *ino).ok()?;
            Some(parents[at].1)
        };
        let (wanted, root) = (self.found.wanted_paths(), self.sb.root);
        let scan = |finder: &mut PathFinder| {
            parents.iter().try_for_each(|&(dir, _)| {
                self.each_entry(dir, &mut |child, name| finder.add(dir, child, name))
            })
        };
        let finder = PathFinder::find(&wanted, parent_of, root, scan)?;
        self.found.set_paths(&finder);
        Ok(())
    }
}
