//! The meaning of `--only`: a word selects the row of that name, or all rows whose names begin with it and an
//! underscore.

use anyhow::Result;

use crate::args::UsageError;

/// The words of the option, and the names of all rows.
pub(crate) struct RowFilter<'a> {
    words: &'a [String],
    names: Vec<&'static str>,
}

impl<'a> RowFilter<'a> {
    /// Returns an error if a word selects no row.
    pub(crate) fn new(words: &'a [String], names: Vec<&'static str>) -> Result<Self> {
        let filter = Self { words, names };
        for word in words {
            if !filter.names.iter().any(|name| filter.word_selects(word, name)) {
                return Err(UsageError(format!(
                    "--only {word}: no such row; there are {} (nfs_* and peers_* are measured by `cargo \
                        xtask bench DIR`)",
                    filter.names.join(", ")
                ))
                .into());
            }
        }
        Ok(filter)
    }

    pub(crate) fn words(&self) -> &'a [String] {
        self.words
    }

    /// Returns whether this word selects this row.
    pub(crate) fn word_selects(&self, word: &str, name: &str) -> bool {
        let rest = name.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && !self.names.contains(&word)))
    }

    /// Returns whether any word selects this row.
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.words.iter().any(|word| self.word_selects(word, name))
    }
}
