//! No line is longer than 110 columns.

use super::{all, prose, relative};
use std::fs;

const COLUMNS: usize = 110;

/// Folders and files that are not held to it yet. The list only shrinks.
pub(super) const NOT_YET: &[&str] = &[];

/// Returns whether a file is held to the rules of lines and words.
pub(super) fn is_held(file: &str) -> bool {
    !NOT_YET
        .iter()
        .any(|folder| file.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Returns the line without the targets of its links.
fn without_targets(line: &str) -> String {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once(')').map_or("", |(_, rest)| rest))
}

#[test]
fn no_line_is_too_long() {
    let mut long = Vec::new();
    let mut check = |file: &str, number: usize, line: &str| {
        if line.chars().count() > COLUMNS {
            long.push(format!("{file}:{number}: {} columns", line.chars().count()));
        }
    };
    for ending in [".rs", ".h", ".c", ".py", ".service", ".socket", ".ci/run", ".toml", ".md"] {
        let paths = if ending == ".ci/run" { vec![super::root().join(".ci/run")] } else { all(ending) };
        for path in paths {
            let file = relative(&path);
            if !is_held(&file) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            match ending {
                ".md" => prose(&text).for_each(|(number, line)| check(&file, number, &without_targets(line))),
                ".toml" => (1..)
                    .zip(text.lines())
                    .filter(|(_, line)| line.starts_with('#'))
                    .for_each(|(number, line)| check(&file, number, line)),
                _ => (1..).zip(text.lines()).for_each(|(number, line)| check(&file, number, line)),
            }
        }
    }
    assert!(long.is_empty(), "{} lines of more than {COLUMNS} columns\n{}", long.len(), long.join("\n"));
}

#[test]
fn not_yet_names_existing_paths() {
    for path in NOT_YET {
        assert!(super::root().join(path).exists(), "{path} in NOT_YET does not exist");
    }
}
