//! The tree that directories form: which hang below the root, and the paths of findings.

use std::collections::HashMap;

/// Components of a path that is shown.
const MAX_DEPTH: usize = 256;

/// Finds the directories that the root does not lead to. `parents` has each directory and its parent, sorted
/// by directory; the root is its own parent. Returns each once that starts such a part of the tree, and
/// whether it is in a circle.
pub fn unreachable(parents: &[(u64, u64)], root: u64) -> Vec<(u64, bool)> {
    const LOST: usize = usize::MAX;
    const FOUND: usize = usize::MAX - 1;
    // The walk upwards that last came by, plus one.
    let mut marks = vec![0usize; parents.len()];
    let mut wrong = Vec::new();
    for start in 0..parents.len() {
        let (mut trail, mut at) = (Vec::new(), start);
        let end = loop {
            if marks[at] == start + 1 {
                wrong.push((parents[at].0, true));
                break LOST;
            }
            if matches!(marks[at], LOST | FOUND) {
                break marks[at];
            }
            trail.push(at);
            marks[at] = start + 1;
            let (ino, parent) = parents[at];
            if ino == root {
                break FOUND;
            }
            match parents.binary_search_by_key(&parent, |(ino, _)| *ino) {
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
    /// Looks for the paths of `inodes`. `parents` has each directory and its parent, sorted by directory.
    /// `None` if there are no inodes.
    pub fn new(inodes: impl IntoIterator<Item = u64>, parents: &[(u64, u64)], root: u64) -> Option<Self> {
        let names = inodes.into_iter().map(|ino| (ino, None)).collect();
        let mut finder = Self { root, names };
        let inodes: Vec<u64> = finder.names.keys().copied().collect();
        inodes.into_iter().for_each(|ino| finder.want(ino, parents));
        (!finder.names.is_empty()).then_some(finder)
    }

    /// Looks for the names of a directory and of those above it.
    fn want(&mut self, ino: u64, parents: &[(u64, u64)]) {
        let mut at = ino;
        for _ in 0..MAX_DEPTH {
            self.names.entry(at).or_default();
            match parents.binary_search_by_key(&at, |(ino, _)| *ino) {
                Ok(index) if at != self.root => at = parents[index].1,
                _ => break,
            }
        }
    }

    /// Call it when all entries were added once. If it returns true, add them once more: the names of the
    /// directories above files are missing.
    pub fn is_incomplete(&mut self, parents: &[(u64, u64)]) -> bool {
        let before = self.names.len();
        let dirs: Vec<u64> = self.names.values().flatten().map(|(dir, _)| *dir).collect();
        dirs.into_iter().for_each(|dir| self.want(dir, parents));
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
        let found = unreachable(&parents, 1);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found.contains(&(3, false)) && found.iter().any(|(ino, circle)| [5, 6].contains(ino) && *circle)
        );
        assert_eq!(unreachable(&[(1, 1), (2, 1)], 1), []);
    }

    #[test]
    fn inodes_have_paths() {
        let parents = [(1, 1), (2, 1), (5, 2), (6, 5)];
        assert!(PathFinder::new([], &parents, 1).is_none());
        let mut finder = PathFinder::new([1, 5, 7, 8], &parents, 1).unwrap();
        let entries =
            [(1, 2, &b"a"[..]), (1, 1, b"."), (2, 5, b"b"), (2, 5, b"c"), (6, 7, b"file"), (2, 8, b"d")];
        let scan = |finder: &mut PathFinder| {
            entries.iter().for_each(|(dir, child, name)| finder.add(*dir, *child, name));
        };
        scan(&mut finder);
        // The directory of 7 was not looked for.
        assert!(finder.is_incomplete(&parents));
        scan(&mut finder);
        assert!(!finder.is_incomplete(&parents));
        let paths = [1, 5, 7, 8].map(|ino| finder.path(ino));
        assert_eq!(
            paths.each_ref().map(Option::as_deref),
            [Some(&b"/"[..]), Some(b"/a/b"), Some(b".../file"), Some(b"/a/d")]
        );
    }
}
