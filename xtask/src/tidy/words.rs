//! Words that docs/glossary.md retired are not used.

use super::source::{Kind, Language, Part, parts};
use super::{all, lines::is_held, prose, relative, root};
use std::fs;

/// A row of the glossary's section "Retired words".
struct Retired {
    word: String,
    instead: String,
    /// `text`: comments, string literals and documents. `code`: source outside them. `everywhere`: both.
    place: String,
    /// Folders and files in which a protocol or another library uses the word in code.
    except: Vec<String>,
}

impl Retired {
    fn applies(&self, file: &str, place: &str) -> bool {
        let is_exempt = |under: &String| place == "code" && file.starts_with(under.as_str());
        (self.place == place || self.place == "everywhere") && !self.except.iter().any(is_exempt)
    }
}

fn retired() -> Vec<Retired> {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let section = page.split("\n## Retired words\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (place, except) = cells[2].split_once(", not in ").unwrap_or((cells[2], ""));
        assert!(["text", "code", "everywhere"].contains(&place), "glossary: {row}");
        let except: Vec<String> =
            except.split('`').skip(1).step_by(2).map(|path| path.trim_matches('`').to_owned()).collect();
        for path in &except {
            assert!(root().join(path).exists(), "glossary: {row}: {path} does not exist");
        }
        Retired {
            word: cells[0].trim_matches('`').to_owned(),
            instead: cells[1].to_owned(),
            place: place.to_owned(),
            except,
        }
    })
    .collect()
}

/// Returns where the word or phrase stands in the text, in any case, but not as a part of a longer word.
fn find(text: &str, word: &str) -> Vec<usize> {
    let (text, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(&word)
        .map(|(at, _)| at)
        .filter(|&at| {
            !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
        })
        .collect()
}

/// Returns the words of an identifier in lower case: it is split at `_` and before capital letters.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && !before.is_uppercase()) {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("there is always one").extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns whether one of the identifiers contains the word, or successive words of a retired identifier.
fn is_in_code(code: &str, word: &str) -> bool {
    let word = words(word);
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|identifier| words(identifier).windows(word.len()).any(|part| part == word))
}

/// Returns the text with spaces in place of what is set in code.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    text.chars()
        .map(|c| {
            is_code ^= c == '`';
            if is_code || c == '`' { ' ' } else { c }
        })
        .collect()
}

/// Returns the paragraphs of a document, and each row of its tables.
fn document(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut last = 0;
    for (number, line) in prose(text).filter(|(_, line)| !line.trim().is_empty()) {
        let line = (number, line.to_owned());
        match parts.last_mut() {
            Some(part) if last + 1 == number => part.lines.push(line),
            _ => parts.push(Part { kind: Kind::Comment, lines: vec![line] }),
        }
        last = number;
    }
    let rows = (1..).zip(text.lines()).filter(|(_, line)| line.starts_with('|'));
    parts.extend(
        rows.map(|(number, line)| Part { kind: Kind::Comment, lines: vec![(number, line.to_owned())] }),
    );
    parts
}

/// Returns the findings in a file.
fn check(file: &str, parts: &[Part], retired: &[Retired]) -> Vec<String> {
    let mut found = Vec::new();
    let mut report = |number: usize, row: &Retired| {
        found.push(format!("{file}:{number}: {:?}; say {}", row.word, row.instead));
    };
    for part in parts {
        if part.kind == Kind::Data {
            continue;
        }
        if part.kind == Kind::Code {
            for (number, line) in &part.lines {
                let rows = retired.iter().filter(|row| row.applies(file, "code"));
                rows.filter(|row| is_in_code(line, &row.word)).for_each(|row| report(*number, row));
            }
            continue;
        }
        let (text, starts) = part.joined();
        let text = without_code(&text);
        for row in retired.iter().filter(|row| row.applies(file, "text")) {
            for at in find(&text, &row.word) {
                let line = starts.iter().rfind(|(start, _)| *start <= at);
                report(line.map_or(0, |(_, number)| *number), row);
            }
        }
    }
    found
}

#[test]
fn retired_words_are_not_used() {
    let retired = retired();
    assert!(retired.len() > 10);
    let mut found = Vec::new();
    for (ending, language) in [
        (".rs", Some(Language::Rust)),
        (".c", Some(Language::C)),
        (".h", Some(Language::C)),
        (".py", Some(Language::Hash)),
        (".toml", Some(Language::Hash)),
        (".service", Some(Language::Hash)),
        (".md", None),
    ] {
        for path in all(ending) {
            let file = relative(&path);
            if is_held(&file) && file != "docs/glossary.md" {
                let text = fs::read_to_string(&path).unwrap();
                let parts = language.map_or_else(|| document(&text), |language| parts(&text, language));
                found.extend(check(&file, &parts, &retired));
            }
        }
    }
    assert!(found.is_empty(), "{} retired words\n{}", found.len(), found.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(word: &str, place: &str, except: &[&str]) -> Retired {
        Retired {
            word: word.to_owned(),
            instead: "fruit".to_owned(),
            place: place.to_owned(),
            except: except.iter().map(|path| (*path).to_owned()).collect(),
        }
    }

    fn lines(source: &str, row: Retired) -> Vec<String> {
        let found = check("a/b.rs", &parts(source, Language::Rust), &[row]);
        found.iter().map(|finding| finding.split(':').nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn text_is_found_in_any_case_and_as_whole_words() {
        let source = "// Apple\n// (apple)\nf(\"an apple\", b\"apple\"); // apples, an_apple, `apple`\n\
                      let apple = 1;\n";
        assert_eq!(lines(source, row("apple", "text", &[])), ["1", "2", "3"]);
    }

    #[test]
    fn phrases_are_found_across_lines() {
        assert_eq!(lines("/// a red\n    /// apple\nfn f() {}\n", row("red apple", "text", &[])), ["1"]);
        let found =
            check("a.md", &document("a red\napple\n\nred\n\napple\n"), &[row("red apple", "text", &[])]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn code_is_found_as_a_word_of_an_identifier() {
        let source = "struct BigApple;\nfn eat_apple() {}\nlet pineapple = apples; // apple\nf(\"apple\");\n";
        assert_eq!(lines(source, row("apple", "code", &[])), ["1", "2"]);
        assert_eq!(
            lines("let is_red_apple = RedApple;\nlet red = apple;\n", row("RedApple", "code", &[])),
            ["1"; 1]
        );
    }

    #[test]
    fn an_exempt_folder_may_use_the_word_in_code_only() {
        let source = "let apple = 1; // apple\n";
        assert_eq!(lines(source, row("apple", "everywhere", &[])).len(), 2);
        assert_eq!(lines(source, row("apple", "everywhere", &["a/"])).len(), 1);
        assert_eq!(lines(source, row("apple", "code", &["a/b.rs"])).len(), 0);
    }
}
