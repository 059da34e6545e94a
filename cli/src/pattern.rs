//! Patterns that file names are compared with: `*`, `?`, `[a-z]` and `[!a-z]`.
//!
//! Names are bytes. A byte that is not part of valid UTF-8 is a character of its own, in names and in
//! patterns: `?` matches it, and nothing but the same byte is equal to it.

/// A pattern.
#[derive(Debug, Clone)]
pub struct Pattern(Vec<Part>);

/// What a pattern is compared by.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Upper and lower case are different.
    pub case_sensitive: bool,
    /// The text is one name: only a dot matches a leading dot.
    pub literal_leading_dot: bool,
}

#[derive(Debug, Clone)]
enum Part {
    Char(u32),
    /// `?`
    Any,
    /// `*`
    AnyText,
    /// `[...]`: matches if a range contains the character; the other way round if `negated`.
    Class {
        negated: bool,
        ranges: Vec<(u32, u32)>,
    },
}

/// Above all characters: the first of the numbers that stand for bytes which are no part of valid UTF-8.
const FIRST_BYTE: u32 = 0x11_0000;

/// A text that patterns are compared with.
pub struct Text(Vec<u32>);

impl Text {
    /// Takes a name or a path.
    pub fn new(bytes: &[u8]) -> Self {
        Self(chars(bytes))
    }
}

/// Splits bytes into characters.
fn chars(bytes: &[u8]) -> Vec<u32> {
    let of_chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let invalid = chunk.invalid().iter().map(|byte| FIRST_BYTE + u32::from(*byte));
        chunk.valid().chars().map(u32::from).chain(invalid).collect::<Vec<_>>()
    };
    bytes.utf8_chunks().flat_map(of_chunk).collect()
}

/// Returns the spellings of a character that are equal to it: itself, in lower and in upper case.
fn spellings(number: u32) -> [u32; 3] {
    fn only(mut chars: impl Iterator<Item = char>, number: u32) -> u32 {
        // One that becomes several characters, such as ß, has no other spelling.
        chars.next().filter(|_| chars.next().is_none()).map_or(number, u32::from)
    }
    let Some(c) = char::from_u32(number) else { return [number; 3] };
    [number, only(c.to_lowercase(), number), only(c.to_uppercase(), number)]
}

fn is(number: u32, c: char) -> bool {
    number == u32::from(c)
}

impl Pattern {
    /// Parses a pattern, or says what is wrong with it.
    pub fn new(pattern: &[u8]) -> Result<Self, &'static str> {
        let text = chars(pattern);
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(&number) = text.get(at) {
            at += 1;
            let part = match number {
                star if is(star, '*') => Part::AnyText,
                mark if is(mark, '?') => Part::Any,
                bracket if is(bracket, '[') => {
                    let (class, end) = class(&text, at).ok_or("a [ without its ]")?;
                    at = end;
                    class
                }
                number => Part::Char(number),
            };
            parts.push(part);
        }
        Ok(Self(parts))
    }

    /// Returns whether a text matches as a whole.
    pub fn matches(&self, Text(text): &Text, rules: Rules) -> bool {
        if rules.literal_leading_dot
            && text.first().is_some_and(|first| is(*first, '.'))
            && !matches!(self.0.first(), Some(Part::Char(first)) if is(*first, '.'))
        {
            return false;
        }
        // Where to go on if the text after the last `*` does not match: it takes one more character.
        let (mut part, mut at) = (0, 0);
        let mut retry = None;
        while at < text.len() || part < self.0.len() {
            match self.0.get(part) {
                Some(Part::AnyText) => {
                    retry = Some((part, at + 1));
                    part += 1;
                    continue;
                }
                Some(one) if at < text.len() && one.matches(text[at], rules) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            match retry {
                Some(from) if from.1 <= text.len() => (part, at) = from,
                _ => return false,
            }
        }
        true
    }
}

/// Parses what follows a `[`. Returns the index after its `]`.
fn class(text: &[u32], mut at: usize) -> Option<(Part, usize)> {
    let negated = text.get(at).is_some_and(|number| is(*number, '!'));
    at += usize::from(negated);
    let mut ranges = Vec::new();
    let first = at;
    loop {
        let from = *text.get(at)?;
        // A bracket in the first place is a character.
        if is(from, ']') && at > first {
            return Some((Part::Class { negated, ranges }, at + 1));
        }
        let to = text.get(at + 1..at + 3).filter(|next| is(next[0], '-') && !is(next[1], ']'));
        ranges.push((from, to.map_or(from, |next| next[1])));
        at += if to.is_some() { 3 } else { 1 };
    }
}

impl Part {
    fn matches(&self, number: u32, rules: Rules) -> bool {
        let spellings = spellings(number);
        let spellings = if rules.case_sensitive { &spellings[..1] } else { &spellings[..] };
        let within = |&(from, to): &(u32, u32)| spellings.iter().any(|one| (from..=to).contains(one));
        match self {
            Part::Char(c) => within(&(*c, *c)),
            Part::Any | Part::AnyText => true,
            Part::Class { negated, ranges } => ranges.iter().any(within) != *negated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: Rules = Rules { case_sensitive: true, literal_leading_dot: true };

    fn matches(pattern: &[u8], text: &[u8], rules: Rules) -> bool {
        Pattern::new(pattern).unwrap().matches(&Text::new(text), rules)
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a"),
            ("a*b*c", "abbbxc"),
            ("*ab", "aab"),
            ("**", "x"),
            ("a?c", "aäc"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[!]]", "a"),
            ("[a-]", "-"),
            ("[*?[]", "["),
            (".*", ".x"),
            ("a/*", "a/b/c"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), EXACT), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("a*b", "abc"),
            ("*a*a*a*a*b", &"a".repeat(200)),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("?", "ab"),
            ("*", ".x"),
            ("?x", ".x"),
            ("[.]x", ".x"),
            ("*.x", ".x"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), EXACT), "{pattern} {text}");
        }
        assert!(matches(b"*x", b".x", Rules { literal_leading_dot: false, ..EXACT }));
        for pattern in ["[", "[a", "[]", "[!]", "a[b-"] {
            assert!(Pattern::new(pattern.as_bytes()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn each_byte_that_is_not_utf8_is_a_character() {
        for (pattern, text) in [
            (&b"?"[..], &b"\xff"[..]),
            (b"??", b"\xff\xfe"),
            (b"??", b"\xc3\xff"),
            (b"a*\xff", b"ab\xff"),
            (b"[\xf0-\xff]", b"\xfe"),
            (b"[!a]", b"\xff"),
            ("?ä".as_bytes(), b"\xff\xc3\xa4"),
        ] {
            assert!(matches(pattern, text, EXACT), "{} {}", pattern.escape_ascii(), text.escape_ascii());
        }
        for (pattern, text) in [
            (&b"\xff"[..], &b"\xfe"[..]),
            ("\u{fffd}".as_bytes(), b"\xff"),
            (b"\xff", "\u{fffd}".as_bytes()),
            (b"\xff", "ÿ".as_bytes()),
            (b"?", b"\xff\xfe"),
            (b"[\xf0-\xfd]", b"\xfe"),
        ] {
            assert!(!matches(pattern, text, EXACT), "{} {}", pattern.escape_ascii(), text.escape_ascii());
        }
    }

    #[test]
    fn case_is_ignored_where_the_format_ignores_it() {
        let rules = Rules { case_sensitive: false, ..EXACT };
        for (pattern, text) in [("a*.TXT", "ABC.txt"), ("[a-c]", "B"), ("[A-C]", "b"), ("ä", "Ä")] {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), rules), "{pattern} {text}");
        }
        assert!(!matches(b"[!a-c]", b"B", rules) && matches(b"\xe4", b"\xe4", rules));
        assert!(!matches(b"\xe4", b"\xc4", rules));
    }
}
