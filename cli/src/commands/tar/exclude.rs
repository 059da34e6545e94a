//! The patterns of `--exclude`, with the rules of GNU tar: a pattern may start at any name of a path, `*`
//! also matches slashes, and what is below an excluded directory is excluded.

use anyhow::Result;
use glob::{MatchOptions, Pattern};

use crate::output::failure::usage;

/// The patterns of a command line.
#[derive(Debug, Default)]
pub struct Excludes(Vec<Pattern>);

const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

impl Excludes {
    /// Parses the patterns.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let parse = |text: &String| {
            let text = text.trim_start_matches("./").trim_end_matches('/');
            // The library gives `**` a meaning of its own, and refuses it in some places.
            let mut pattern = text.to_owned();
            while pattern.contains("**") {
                pattern = pattern.replace("**", "*");
            }
            Pattern::new(&pattern).map_err(|error| usage(format!("--exclude {text}: {}", error.msg)))
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
            let path = String::from_utf8_lossy(&path[start..]);
            self.0.iter().any(|pattern| pattern.matches_with(&path, OPTIONS))
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
            Excludes::new(&[pattern.to_owned()]).unwrap().excludes(&names)
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
        assert!(!Excludes::default().excludes(&[b"a"]) && Excludes::new(&["[".to_owned()]).is_err());
    }
}
