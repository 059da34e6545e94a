//! Words that docs/glossary.md retired are not used.

use super::{all, lines::is_held, prose, relative, root};
use std::fs;

/// A row of the glossary's section "Retired words".
struct Retired {
    word: String,
    instead: String,
    /// `text`: comments and documents. `code`: Rust outside comments. `everywhere`: both.
    place: String,
}

fn retired() -> Vec<Retired> {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let section = page.split("\n## Retired words\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let place = cells[2].to_owned();
        assert!(["text", "code", "everywhere"].contains(&place.as_str()), "glossary: {row}");
        Retired { word: cells[0].trim_matches('`').to_owned(), instead: cells[1].to_owned(), place }
    })
    .collect()
}

/// Whether the word stands in the text, neither a part of a longer one nor with another case.
fn has(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}

/// Code and comment of a line of Rust.
fn split(line: &str) -> (&str, &str) {
    if line.trim_start().starts_with("//") {
        ("", line)
    } else {
        line.split_once(" // ").unwrap_or((line, ""))
    }
}

/// The line without what is set in code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn retired_words_are_not_used() {
    let retired = retired();
    assert!(retired.len() > 10);
    let mut found = Vec::new();
    let mut check = |file: &str, number: usize, text: &str, place: &str| {
        for row in retired.iter().filter(|row| row.place == place || row.place == "everywhere") {
            if has(text, &row.word) {
                found.push(format!("{file}:{number}: {:?}; say {}", row.word, row.instead));
            }
        }
    };
    for path in all(".rs") {
        let file = relative(&path);
        if is_held(&file) {
            for (number, line) in (1..).zip(fs::read_to_string(&path).unwrap().lines()) {
                let (code, comment) = split(line);
                check(&file, number, code, "code");
                check(&file, number, &without_code(comment), "text");
            }
        }
    }
    for path in all(".md") {
        let file = relative(&path);
        if is_held(&file) && file != "docs/glossary.md" {
            let text = fs::read_to_string(&path).unwrap();
            let tables = (1..).zip(text.lines()).filter(|(_, line)| line.starts_with('|'));
            prose(&text)
                .chain(tables)
                .for_each(|(number, line)| check(&file, number, &without_code(line), "text"));
        }
    }
    assert!(found.is_empty(), "{} retired words\n{}", found.len(), found.join("\n"));
}

#[test]
fn words_are_found_whole() {
    assert!(has("whoever asks", "whoever") && has("(whoever)", "whoever"));
    assert!(!has("whoevers", "whoever") && !has("a_whoever", "whoever"));
}
