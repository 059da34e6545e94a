//! The tree that directories form: which hang below the root, and the paths of findings.

use std::collections::HashMap;

use crate::Result;

/// Components of a path that is shown.
const MAX_DEPTH: usize = 256;
/// Passes over all directories, to look for paths.
const MAX_SCANS: usize = 3;

/// Finds the directories that the root does not lead to. `dirs` is sorted by inode number. `ends` returns the
/// number of a directory and that of its parent; it is called several times for each directory. Returns one
/// directory of each part of the tree that is cut off, and whether it is in a circle.
pub fn unreachable<D, I: Copy + Ord>(dirs: &[D], ends: impl Fn(&D) -> (I, I), root: I) -> Vec<(I, bool)> {
    const LOST: usize = usize::MAX;
    const FOUND: usize = usize::MAX - 1;
    // The walk upwards that last came by, plus one.
    let mut marks = vec![0usize; dirs.len()];
    let mut wrong = Vec::new();
    for start in 0..dirs.len() {
        let (mut trail, mut at) = (Vec::new(), start);
        let end = loop {
            let (ino, parent) = ends(&dirs[at]);
            if marks[at] == start + 1 {
                wrong.push((ino, true));
                break LOST;
            }
            if matches!(marks[at], LOST | FOUND) {
                break marks[at];
            }
            trail.push(at);
            marks[at] = start + 1;
            if ino == root {
                break FOUND;
            }
            match dirs.binary_search_by_key(&parent, |dir| ends(dir).0) {
                Ok(parent) => at = parent,
                Err(_) => {
                    wrong.push((ino, false));
                    break LOST;
                }
            }
        };
        trail.into_iter().for_each(|at| marks[at] = end);
    }
    wrong
}

/// Looks for paths of inodes, for findings.
pub struct PathFinder {
    root: u64,
    /// For each inode a directory that has it, and its name there.
    names: HashMap<u64, Option<(u64, Vec<u8>)>>,
}

impl PathFinder {
    /// Looks for the paths of `inodes`. `parent_of` returns the parent of a directory. `scan` must
    /// [`add`](Self::add) the entries of all directories; it is not called if there are no inodes.
    pub fn find(
        inodes: &[u64],
        parent_of: impl Fn(u64) -> Option<u64>,
        root: u64,
        mut scan: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Self> {
        let mut finder = Self { root, names: HashMap::new() };
        inodes.iter().for_each(|&ino| finder.want(ino, &parent_of));
        if inodes.is_empty() {
            return Ok(finder);
        }
        // Once more for the directories above files. A damaged tree can always have more of them.
        for _ in 0..MAX_SCANS {
            scan(&mut finder)?;
            if !finder.want_more(&parent_of) {
                break;
            }
        }
        Ok(finder)
    }

    /// Looks for the names of a directory and of those above it.
    fn want(&mut self, ino: u64, parent_of: impl Fn(u64) -> Option<u64>) {
        let mut at = ino;
        for _ in 0..MAX_DEPTH {
            self.names.entry(at).or_default();
            match parent_of(at) {
                Some(parent) if at != self.root => at = parent,
                _ => break,
            }
        }
    }

    /// Looks also for the names of the directories that were found. Returns whether there are more of them.
    fn want_more(&mut self, parent_of: impl Fn(u64) -> Option<u64>) -> bool {
        let before = self.names.len();
        let dirs: Vec<u64> = self.names.values().flatten().map(|(dir, _)| *dir).collect();
        dirs.into_iter().for_each(|dir| self.want(dir, &parent_of));
        self.names.len() > before
    }

    /// Takes an entry of a directory.
    pub fn add(&mut self, dir: u64, child: u64, name: &[u8]) {
        if !matches!(name, b"." | b"..")
            && let Some(place) = self.names.get_mut(&child)
            && place.is_none()
        {
            *place = Some((dir, name.to_vec()));
        }
    }

    /// Returns the path of an inode; it starts with three dots if the root does not lead to it.
    pub fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let (mut at, mut parts) = (ino, Vec::new());
        while at != self.root && parts.len() < MAX_DEPTH {
            let Some(Some((dir, name))) = self.names.get(&at) else { break };
            parts.push(name.as_slice());
            at = *dir;
        }
        if at == self.root && parts.is_empty() {
            return Some(b"/".to_vec());
        }
        let start: &[u8] = if at == self.root { b"" } else { b"..." };
        let joined = parts.iter().rev().flat_map(|part| [b"/", *part].concat());
        (!parts.is_empty()).then(|| start.iter().copied().chain(joined).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_directories_and_circles_are_found() {
        // 1 is the root; 2 below it; 3 below nothing; 4 below 3; 5 and 6 below each other.
        let parents = [(1, 1), (2, 1), (3, 9), (4, 3), (5, 6), (6, 5)];
        let found = unreachable(&parents, |dir| *dir, 1);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found.contains(&(3, false)) && found.iter().any(|(ino, circle)| [5, 6].contains(ino) && *circle)
        );
        assert_eq!(unreachable(&[(1, 1), (2, 1)], |dir| *dir, 1), []);
    }

    #[test]
    fn inodes_have_paths() {
        let parents = HashMap::from([(1, 1), (2, 1), (5, 2), (6, 5)]);
        let parent_of = |ino: u64| parents.get(&ino).copied();
        PathFinder::find(&[], parent_of, 1, |_| panic!("nothing to look for")).unwrap();
        let entries =
            [(1, 2, &b"a"[..]), (1, 1, b"."), (2, 5, b"b"), (2, 5, b"c"), (6, 7, b"file"), (2, 8, b"d")];
        let mut scans = 0;
        let scan = |finder: &mut PathFinder| {
            scans += 1;
            entries.iter().for_each(|(dir, child, name)| finder.add(*dir, *child, name));
            Ok(())
        };
        let finder = PathFinder::find(&[1, 5, 7, 8], parent_of, 1, scan).unwrap();
        // In the first, nobody looked for the directory of 7.
        assert_eq!(scans, 2);
        let paths = [1, 5, 7, 8].map(|ino| finder.path(ino));
        assert_eq!(
            paths.each_ref().map(Option::as_deref),
            [Some(&b"/"[..]), Some(b"/a/b"), Some(b".../file"), Some(b"/a/d")]
        );
    }
}
