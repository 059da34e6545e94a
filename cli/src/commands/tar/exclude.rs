//! The patterns of `--exclude`, with the rules of GNU tar: a pattern may start at any name of a path, `*`
//! also matches slashes, and what is below an excluded directory is excluded.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;

use crate::output::failure::usage;
use crate::output::format;
use crate::pattern::{Pattern, Rules, Text};

/// The patterns of a command line.
#[derive(Debug, Default)]
pub struct Excludes(Vec<Pattern>);

const RULES: Rules = Rules { case_sensitive: true, literal_leading_dot: false };

impl Excludes {
    /// Parses the patterns.
    pub fn new<P: AsRef<OsStr>>(patterns: &[P]) -> Result<Self> {
        let parse = |text: &P| {
            let text = text.as_ref().as_bytes();
            let mut pattern = text;
            while let Some(rest) = pattern.strip_prefix(b"./") {
                pattern = rest;
            }
            while let Some(rest) = pattern.strip_suffix(b"/") {
                pattern = rest;
            }
            Pattern::new(pattern).map_err(|why| usage(format!("--exclude {}: {why}", format::name(text))))
        };
        Ok(Self(patterns.iter().map(parse).collect::<Result<_>>()?))
    }

    /// Returns whether the last name of a path is excluded. The path has no slash at its ends.
    pub fn excludes_last(&self, path: &[u8]) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        std::iter::once(0).chain(slashes.map(|(at, _)| at + 1)).any(|start| {
            let text = Text::new(&path[start..]);
            self.0.iter().any(|pattern| pattern.matches(&text, RULES))
        })
    }

    /// Returns whether a path, or a directory on the way to it, is excluded.
    pub fn excludes(&self, names: &[&[u8]]) -> bool {
        !self.0.is_empty() && (1..=names.len()).any(|end| self.excludes_last(&names[..end].join(&b'/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_gnu_tar() {
        let excluded = |pattern: &str, path: &str| {
            let names: Vec<_> = path.split('/').map(str::as_bytes).collect();
            Excludes::new(&[pattern]).unwrap().excludes(&names)
        };
        for (pattern, path) in [
            ("*.o", "a/b.o"),
            ("b", "a/b/c"),
            ("./a/b/", "a/b"),
            ("a*c", "a/b/c"),
            ("[ab].?", "x/a.1"),
            (".git", "x/.git/config"),
            ("**/x", "a/x"),
        ] {
            assert!(excluded(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("b", "a/bb"), ("a/c", "a/b/c"), ("*.o", "a.of")] {
            assert!(!excluded(pattern, path), "{pattern} {path}");
        }
        assert!(!Excludes::default().excludes(&[b"a"]) && Excludes::new(&["["]).is_err());
    }
}
