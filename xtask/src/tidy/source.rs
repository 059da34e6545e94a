//! Splits source files into code, comments and string literals.

/// The kind of a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Source outside comments and literals.
    Code,
    /// A comment, or prose of a document.
    Comment,
    /// The content of a string literal.
    Literal,
    /// The content of a byte string, which is not text.
    Data,
}

/// A part of a file. Lines of comments that follow each other are one part, so that a phrase can continue on
/// the next line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub kind: Kind,
    /// The text of each line, with the line's number.
    pub lines: Vec<(usize, String)>,
}

impl Part {
    /// Returns the lines joined by spaces, and the offset at which each line starts.
    pub fn joined(&self) -> (String, Vec<(usize, usize)>) {
        let (mut text, mut starts) = (String::new(), Vec::new());
        for (number, line) in &self.lines {
            starts.push((text.len(), *number));
            text += line.trim();
            text.push(' ');
        }
        (text, starts)
    }
}

/// The syntax of a language, as far as comments and literals need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    C,
    /// Python, TOML and units of systemd.
    Hash,
}

impl Language {
    fn line_comment(self) -> &'static str {
        if self == Language::Hash { "#" } else { "//" }
    }

    /// Returns the length of the literal at the start of `rest`, and the number of characters that open and
    /// close it. `None`: no literal starts here.
    fn literal(self, rest: &str, after_identifier: bool) -> Option<(usize, usize, usize)> {
        let to_end = |from: usize, close: &str| {
            let mut escaped = false;
            for (at, c) in rest[from..].char_indices() {
                if escaped {
                    escaped = false;
                } else if c == '\\' {
                    escaped = true;
                } else if rest[from + at..].starts_with(close) {
                    return from + at + close.len();
                }
            }
            rest.len()
        };
        if self == Language::Rust && rest.starts_with('r') && !after_identifier {
            let hashes = rest[1..].chars().take_while(|&c| c == '#').count();
            if rest[1 + hashes..].starts_with('"') {
                let (open, close) = (2 + hashes, "\"".to_owned() + &"#".repeat(hashes));
                let end = rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len());
                return Some((end, open, close.len()));
            }
        }
        if self == Language::Hash && rest.starts_with("\"\"\"") {
            return Some((to_end(3, "\"\"\""), 3, 3));
        }
        if rest.starts_with('"') {
            return Some((to_end(1, "\""), 1, 1));
        }
        if !rest.starts_with('\'') {
            return None;
        }
        // Python has strings in single quotes. In Rust and C they are characters, in Rust also lifetimes.
        let is_character = || rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'');
        (self == Language::Hash || is_character()).then(|| (to_end(1, "'"), 1, 1))
    }
}

/// Returns the parts of a source file in order.
pub(super) fn parts(text: &str, language: Language) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let (mut at, mut number) = (0, 1);
    let mut add = |kind: Kind, text: &str, number: &mut usize| {
        for (nth, line) in text.split('\n').enumerate() {
            *number += usize::from(nth > 0);
            let line = (*number, line.to_owned());
            match parts.last_mut() {
                Some(last) if last.kind == kind && kind != Kind::Literal => match last.lines.last_mut() {
                    Some(end) if kind == Kind::Code && end.0 == line.0 => end.1 += &line.1,
                    _ => last.lines.push(line),
                },
                Some(last) if nth > 0 => last.lines.push(line),
                _ => parts.push(Part { kind, lines: vec![line] }),
            }
        }
    };
    while at < text.len() {
        let rest = &text[at..];
        let before = text[..at].chars().next_back();
        let after_identifier = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if rest.starts_with(language.line_comment()) {
            let end = rest.find('\n').unwrap_or(rest.len());
            add(Kind::Comment, rest[..end].trim_start_matches(['/', '!', '#']), &mut number);
            at += end;
            // Blank space before another comment belongs to neither part.
            let blank = text[at..].len() - text[at..].trim_start().len();
            if text[at + blank..].starts_with(language.line_comment()) {
                number += text[at..at + blank].matches('\n').count();
                at += blank;
            }
        } else if language != Language::Hash && rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            let bare: Vec<&str> =
                rest[..end].lines().map(|line| line.trim().trim_matches(['/', '*'])).collect();
            add(Kind::Comment, &bare.join("\n"), &mut number);
            at += end;
        } else if let Some((length, open, close)) = language.literal(rest, after_identifier) {
            let content = rest.get(open..length.saturating_sub(close)).unwrap_or_default();
            let is_data = language == Language::Rust && before == Some('b');
            // A line that ends with a backslash continues on the next one.
            let content = content.replace("\\\n", "\n").replace("\\n", " ");
            add(if is_data { Kind::Data } else { Kind::Literal }, &content, &mut number);
            at += length;
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            let end = rest[length..].find(['/', '#', '"', '\'', 'r']).map_or(rest.len(), |end| length + end);
            add(Kind::Code, &rest[..end], &mut number);
            at += end;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, language: Language, kind: Kind) -> Vec<String> {
        let parts = parts(text, language);
        let texts = parts.iter().filter(|part| part.kind == kind).map(|part| part.joined().0);
        let texts = texts.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        texts.filter(|text| !text.is_empty()).collect()
    }

    #[test]
    fn comments_on_successive_lines_are_one_part() {
        let source = "/// one\n/// two\nfn f() {} // three\n\nfn g() {}\n";
        assert_eq!(texts(source, Language::Rust, Kind::Comment), ["one two", "three"]);
        assert_eq!(texts("/* one\n * two */ int x;", Language::C, Kind::Comment), ["one two"]);
        assert_eq!(texts("# one\nx = 1 # two\n", Language::Hash, Kind::Comment), ["one", "two"]);
    }

    #[test]
    fn literals_are_found() {
        let source = "f(\"one // \\\" two\", b\"data\", r#\"three \"4\" \"#, '\"', \"five \\\n  six\");\n";
        assert_eq!(
            texts(source, Language::Rust, Kind::Literal),
            ["one // \\\" two", "three \"4\"", "\"", "five six"]
        );
        assert_eq!(texts("fn f<'a>(x: &'a str, y: &'a u8) {}", Language::Rust, Kind::Literal), [""; 0]);
        assert_eq!(
            texts("x = 'one'\n\"\"\"two\nthree\"\"\"", Language::Hash, Kind::Literal),
            ["one", "two three"]
        );
    }

    #[test]
    fn parts_know_their_lines() {
        let found = parts("fn f() {}\n\n// one\n// two\nlet x = \"three\n\nfour\";\n", Language::Rust);
        let of = |kind| found.iter().find(|part| part.kind == kind).unwrap();
        assert_eq!(of(Kind::Comment).joined().1, [(0, 3), (4, 4)]);
        assert_eq!(of(Kind::Literal).lines[2], (7, "four".to_owned()));
        assert_eq!(of(Kind::Code).lines[0], (1, "fn f() {}".to_owned()));
    }
}
