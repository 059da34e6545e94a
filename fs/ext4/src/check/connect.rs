//! Connections: every directory hangs below the root, link counts, `..`; and the paths of findings.

use super::state::{Checker, kind};
use crate::layout::inode::ROOT_INO;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::HashMap;

/// More links than this are stored as 1 in directories.
const LINK_MAX: u16 = 65_000;
/// Findings whose path is looked for.
const MAX_PATHS: usize = 1000;
/// Components of a path that is shown.
const MAX_DEPTH: usize = 256;

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

    /// Finds directories that the root does not lead to. Each is visited once: a walk upwards ends where an
    /// earlier one was.
    fn check_reachable(&mut self) {
        const UNKNOWN: u32 = 0;
        const LOST: u32 = 1;
        const FOUND: u32 = 2;
        let mut state = vec![UNKNOWN; self.dirs.len()];
        let mut wrong = Vec::new();
        for start in 0..self.dirs.len() {
            let mut trail = Vec::new();
            let mut at = start;
            // Marks of this walk are its number plus 3.
            let mark = (start as u32).wrapping_add(3).max(3);
            let end = loop {
                if state[at] == mark {
                    wrong.push((self.dirs[at].ino, true));
                    break LOST;
                }
                if state[at] == LOST || state[at] == FOUND {
                    break state[at];
                }
                trail.push(at);
                state[at] = mark;
                let dir = self.dirs[at];
                if dir.ino == ROOT_INO {
                    break FOUND;
                }
                match self.dir_position(dir.parent) {
                    Some(parent) => at = parent,
                    None => {
                        let special = self.inodes.kind(dir.ino) & (kind::ORPHAN | kind::SPECIAL) != 0;
                        if !special {
                            wrong.push((dir.ino, false));
                        }
                        break LOST;
                    }
                }
            };
            trail.into_iter().for_each(|at| state[at] = end);
        }
        for (ino, cycle) in wrong {
            if cycle {
                let what = "the directory is in a circle that the root does not lead to";
                self.bad("directory-cycle", Place::inode(ino), what);
            } else {
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

    /// Adds paths to findings of inodes: one more scan of the directories, if there are any.
    pub(super) fn add_paths(&mut self) -> Result<()> {
        let mut wanted: HashMap<u32, Option<(u32, Vec<u8>)>> = HashMap::new();
        for finding in self.found.kept().iter().take(MAX_PATHS) {
            if let Some(ino) = finding.place.inode {
                wanted.insert(ino as u32, None);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let first: Vec<u32> = wanted.keys().copied().collect();
        for ino in first {
            let mut at = ino;
            for _ in 0..MAX_DEPTH {
                match self.dir(at) {
                    Some(dir) if dir.parent != 0 && dir.ino != ROOT_INO => at = dir.parent,
                    _ => break,
                }
                wanted.entry(at).or_default();
            }
        }
        for nth in 0..self.dirs.len() {
            let dir = self.dirs[nth].ino;
            let Some(slot) = self.slot(dir)? else { continue };
            self.each_entry(&slot, &mut |ino, name| {
                if name != b"."
                    && name != b".."
                    && let Some(place) = wanted.get_mut(&ino)
                    && place.is_none()
                {
                    *place = Some((dir, name.to_vec()));
                }
            })?;
        }
        // Names of files are known now; the directories above them may not be.
        let mut paths: HashMap<u64, Vec<u8>> = HashMap::new();
        for &ino in wanted.keys() {
            let (mut at, mut parts, mut whole) = (ino, Vec::new(), ino == ROOT_INO);
            for _ in 0..MAX_DEPTH {
                let Some(Some((dir, name))) = wanted.get(&at) else { break };
                parts.push(name.clone());
                at = *dir;
                whole = at == ROOT_INO;
                if whole {
                    break;
                }
            }
            if parts.is_empty() && !whole {
                continue;
            }
            let mut path = if whole { Vec::new() } else { b"...".to_vec() };
            for part in parts.iter().rev() {
                path.push(b'/');
                path.extend_from_slice(part);
            }
            if path.is_empty() {
                path.push(b'/');
            }
            paths.insert(ino.into(), path);
        }
        for finding in self.found.kept_mut() {
            if let Some(ino) = finding.place.inode {
                finding.place.path = paths.get(&ino).cloned();
            }
        }
        Ok(())
    }
}
