//! All names of a directory that this client has made: a name that is not among them does not exist.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ivers_nfs4::types::ChangeInfo;

/// The most names of a directory that are remembered.
const NAMES_MAX: usize = 16_384;
/// The most names of all directories that are remembered.
const ALL_MAX: usize = 262_144;

/// A change of a directory by this client.
#[derive(Debug, Clone, Copy)]
pub enum Edit<'a> {
    /// It has this name now.
    Added(&'a [u8]),
    /// It no longer has this name.
    Removed(&'a [u8]),
}

/// All names of a directory.
#[derive(Debug)]
pub struct AllNames {
    /// The change attribute that the directory has with these names.
    change: u64,
    names: HashSet<Box<[u8]>>,
    /// The number of names of all directories.
    kept: Arc<AtomicUsize>,
}

impl Drop for AllNames {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.names.len(), Relaxed);
    }
}

impl AllNames {
    /// A directory that was just made, with its change attribute. `kept` counts the names of all directories.
    pub fn of_new(change: u64, kept: Arc<AtomicUsize>) -> Self {
        Self { change, names: HashSet::new(), kept }
    }

    /// Returns whether a directory with this change attribute certainly lacks a name.
    pub fn lack(&self, name: &[u8], change: u64) -> bool {
        self.change == change && !self.names.contains(name)
    }

    /// Changes the names. `info` is from the reply, and `after` the change attribute in the same reply, if it
    /// has one. `None`: another client may have changed the directory too, or there are too many names.
    pub fn edited(mut self, info: &ChangeInfo, after: Option<u64>, edits: &[Edit<'_>]) -> Option<Self> {
        let is_alone = info.atomic && info.before == self.change && after.is_none_or(|it| it == info.after);
        for edit in edits {
            match edit {
                Edit::Added(name) if self.names.insert((*name).into()) => {
                    self.kept.fetch_add(1, Relaxed);
                }
                Edit::Removed(name) if self.names.remove(*name) => {
                    self.kept.fetch_sub(1, Relaxed);
                }
                Edit::Added(_) | Edit::Removed(_) => {}
            }
        }
        self.change = info.after;
        let has_room = self.names.len() <= NAMES_MAX && self.kept.load(Relaxed) <= ALL_MAX;
        (is_alone && has_room).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(before: u64, after: u64) -> ChangeInfo {
        ChangeInfo { atomic: true, before, after }
    }

    #[test]
    fn names_are_known_while_nobody_else_changes_the_directory() {
        let kept = Arc::new(AtomicUsize::new(0));
        let all = AllNames::of_new(5, kept.clone());
        assert!(all.lack(b"a", 5) && !all.lack(b"a", 6), "another value: another client may have made it");
        let all = all.edited(&info(5, 7), Some(7), &[Edit::Added(b"a")]).unwrap();
        assert!(!all.lack(b"a", 7) && all.lack(b"b", 7));
        let edits = [Edit::Removed(b"a"), Edit::Added(b"b")];
        let all = all.edited(&info(7, 8), None, &edits).unwrap();
        assert!(all.lack(b"a", 8) && !all.lack(b"b", 8));
        for (info, after) in [
            (info(9, 10), Some(10)),
            (info(8, 10), Some(11)),
            (ChangeInfo { atomic: false, before: 8, after: 9 }, Some(9)),
        ] {
            kept.fetch_add(all.names.len(), Relaxed);
            let all = AllNames { change: all.change, names: all.names.clone(), kept: kept.clone() };
            assert!(all.edited(&info, after, &[Edit::Added(b"c")]).is_none(), "{info:?}");
        }
        assert_eq!(kept.load(Relaxed), 1);
        drop(all);
        assert_eq!(kept.load(Relaxed), 0);
    }

    #[test]
    fn the_names_of_all_directories_are_bounded() {
        let kept = Arc::new(AtomicUsize::new(ALL_MAX - 1));
        let edit = |all: AllNames, name: &[u8]| all.edited(&info(5, 5), None, &[Edit::Added(name)]);
        let all = edit(AllNames::of_new(5, kept.clone()), b"a").unwrap();
        assert!(edit(AllNames::of_new(5, kept.clone()), b"b").is_none());
        let all = edit(all, b"a").unwrap();
        assert!(edit(all, b"c").is_none());
        assert_eq!(kept.load(Relaxed), ALL_MAX - 1, "none is left");
    }
}
