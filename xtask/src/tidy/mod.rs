//! Rules for the tree as a whole: documents, layers, words, line lengths.

mod dependencies;
mod documents;
mod layers;
mod lines;
mod modules;
mod requirements;
mod source;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Returns the path from the root of the tree.
fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

/// Returns all files of the tree whose name has this ending.
fn all(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    assert!(!found.is_empty());
    found
}

/// Returns the lines of a Markdown document that are neither code nor in a table, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ") && !line.starts_with('|')
    })
}

#[test]
fn no_unfinished_code_and_no_ignored_test_without_a_reason() {
    for source in all(".rs").iter().filter(|path| !path.ends_with("xtask/src/tidy/mod.rs")) {
        for (number, line) in fs::read_to_string(source).unwrap().lines().enumerate() {
            let place = format!("{}:{}", source.display(), number + 1);
            assert!(!line.contains("todo!(") && !line.contains("unimplemented!("), "{place}: unfinished");
            assert!(!line.contains("#[ignore]"), "{place}: an ignored test without a reason");
        }
    }
}

#[test]
fn every_race_has_a_mutant() {
    let races = root().join("testing/races");
    let mut sources = Vec::new();
    files(&races.join("tests"), ".rs", &mut sources);
    let mut tests = 0;
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        for after in text.split("#[test]\nfn ").skip(1) {
            let name = after.split('(').next().unwrap_or_default();
            let mut patches = Vec::new();
            files(&races.join("mutants").join(name), ".patch", &mut patches);
            assert!(!patches.is_empty(), "{name} has never been seen to fail");
            tests += 1;
        }
    }
    assert!(tests > 0);
}
