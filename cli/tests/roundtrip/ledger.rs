//! Every change attribute that was served, with the state that it vouched for.

use crate::mounts::attribute;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The state of an inode at a query: its line of the tree without names, which belong to the directory.
type Seen = (u64, String);

#[derive(Default)]
pub struct Ledger {
    /// By inode number: a reused number must not repeat a value either.
    inodes: HashMap<u64, Vec<Seen>>,
    /// The latest value by path.
    latest: BTreeMap<String, u64>,
}

impl Ledger {
    /// Queries every path of a tree's text, and compares it with all earlier values.
    pub fn look(&mut self, kind: &str, root: &Path, text: &str) {
        self.latest.clear();
        for line in text.lines() {
            let (path, rest) = line.split_once(' ').expect("a path and what it is");
            // Names in these trees are plain, but the text escapes; escaped paths are skipped.
            if path.contains('\\') {
                continue;
            }
            let what = match rest.split_once(" as=") {
                Some((before, after)) => {
                    format!("{before} {}", after.split_once(' ').map_or("", |(_, after)| after))
                }
                None => rest.to_owned(),
            };
            let full = root.join(path);
            let ino = std::fs::symlink_metadata(&full).unwrap().ino();
            let value = attribute(&full, "system.ivers.change");
            let seen = self.inodes.entry(ino).or_default();
            for (earlier, then) in seen.iter() {
                assert!(value >= *earlier, "{kind}: {path}: went back from {earlier} to {value}");
                assert!(
                    value != *earlier || what == *then,
                    "{kind}: {path}: {value} vouched for\n{then}\nand vouches for\n{what}"
                );
            }
            if seen.last().is_none_or(|last| last.0 != value) {
                seen.push((value, what));
            }
            self.latest.insert(path.to_owned(), value);
        }
    }

    /// Asserts that after a clean remount every value is the same.
    pub fn rests(&self, kind: &str, root: &Path) {
        for (path, value) in &self.latest {
            assert_eq!(
                attribute(&root.join(path), "system.ivers.change"),
                *value,
                "{kind}: {path} did not rest"
            );
        }
    }

    pub fn paths(&self) -> Vec<String> {
        self.latest.keys().filter(|path| !path.is_empty()).cloned().collect()
    }
}
