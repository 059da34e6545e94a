//! A tree of empty files on a mount.

use std::fs::{DirEntry, File};
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::interrupt;

const FILES_PER_DIRECTORY: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    /// Reads all directories and stats each file after a new mount.
    ColdWalk,
    /// The same walk again.
    WarmWalk,
    RandomStats,
    /// Reads all directories without stat.
    Readdir,
    /// Unlinks files in the order of their creation, then removes the directories.
    Remove,
}

/// A tree of empty files.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) files: u64,
    /// Random stats.
    pub(super) stats: u64,
}

impl Tree {
    fn directories(&self) -> u64 {
        self.files.div_ceil(FILES_PER_DIRECTORY)
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.root.join(format!("d{number}"))
    }

    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.directory(number / FILES_PER_DIRECTORY).join(format!("f{number}"))
    }

    fn each_directory(&self, mut work: impl FnMut(u64, std::ops::Range<u64>) -> Result<()>) -> Result<()> {
        (0..self.directories()).try_for_each(|number| {
            interrupt::check()?;
            let first = number * FILES_PER_DIRECTORY;
            work(number, first..self.files.min(first + FILES_PER_DIRECTORY))
        })
    }

    pub(super) fn create(&self) -> Result<()> {
        std::fs::create_dir(&self.root)?;
        self.each_directory(|directory, mut files| {
            std::fs::create_dir(self.directory(directory))?;
            files.try_for_each(|file| Ok(File::create_new(self.file(file)).map(drop)?))
        })
    }

    /// Reads all directories; `is_file` judges each entry in them.
    fn walk(&self, is_file: impl Fn(&DirEntry) -> std::io::Result<bool>) -> Result<()> {
        let mut found = 0;
        for directory in std::fs::read_dir(&self.root)? {
            interrupt::check()?;
            for entry in std::fs::read_dir(directory?.path())? {
                found += u64::from(is_file(&entry?)?);
            }
        }
        ensure!(found == self.files, "the walk found {found} of {} files", self.files);
        Ok(())
    }

    /// Stats files in the same random order for each contender.
    fn random_stats(&self) -> Result<()> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for number in 0..self.stats {
            if number % 1000 == 0 {
                interrupt::check()?;
            }
            // Marsaglia's xorshift64.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            std::fs::symlink_metadata(self.file(state % self.files))?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.each_directory(|directory, mut files| {
            files.try_for_each(|file| std::fs::remove_file(self.file(file)))?;
            Ok(std::fs::remove_dir(self.directory(directory))?)
        })?;
        Ok(std::fs::remove_dir(&self.root)?)
    }

    pub(super) fn run(&self, step: Step) -> Result<()> {
        match step {
            Step::Create => self.create(),
            Step::ColdWalk | Step::WarmWalk => self.walk(|entry| Ok(entry.metadata()?.is_file())),
            Step::RandomStats => self.random_stats(),
            Step::Readdir => self.walk(|entry| Ok(entry.file_type()?.is_file())),
            Step::Remove => self.remove(),
        }
    }

    pub(super) fn ops(&self, step: Step) -> u64 {
        if step == Step::RandomStats { self.stats } else { self.files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_created_walked_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let tree = Tree { root: place.path().join("many"), files: 2001, stats: 50 };
        tree.run(Step::Create).unwrap();
        assert_eq!(std::fs::read_dir(&tree.root).unwrap().count(), 3);
        assert_eq!(std::fs::read_dir(tree.directory(2)).unwrap().count(), 1);
        for step in [Step::ColdWalk, Step::WarmWalk, Step::RandomStats, Step::Readdir] {
            tree.run(step).unwrap();
        }
        std::fs::remove_file(tree.file(7)).unwrap();
        for step in [Step::ColdWalk, Step::Readdir] {
            assert!(tree.run(step).unwrap_err().to_string().contains("2000 of 2001"));
        }
        File::create_new(tree.file(7)).unwrap();
        tree.run(Step::Remove).unwrap();
        assert!(!tree.root.exists());
    }
}
