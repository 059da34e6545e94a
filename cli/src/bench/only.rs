//! What `--only` means: a word names a row, or all rows whose names begin with it and an underscore.

use anyhow::Result;

use crate::failure::usage;

/// The words, and all rows that there are.
pub(super) struct Only<'a> {
    words: &'a [String],
    names: Vec<&'static str>,
}

impl<'a> Only<'a> {
    /// Each word has to mean something.
    pub(super) fn new(words: &'a [String], names: Vec<&'static str>) -> Result<Self> {
        let only = Self { words, names };
        for word in words {
            if !only.names.iter().any(|name| only.is_meant_by(word, name)) {
                return Err(usage(format!(
                    "--only {word}: no such row; there are {} (nfs_* and peers_* are measured by `cargo xtask bench` alone)",
                    only.names.join(", ")
                )));
            }
        }
        Ok(only)
    }

    pub(super) fn words(&self) -> &'a [String] {
        self.words
    }

    /// Whether this word means this row.
    pub(super) fn is_meant_by(&self, word: &str, name: &str) -> bool {
        let rest = name.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && !self.names.contains(&word)))
    }

    /// Whether any word means it.
    pub(super) fn is_meant(&self, name: &str) -> bool {
        self.words.iter().any(|word| self.is_meant_by(word, name))
    }
}
