//! The MODE of chmod and mkdir: octal, or symbolic as in POSIX, such as `u=rw,go-w` or `a+X`.

use serde::{Deserialize, Serialize};

/// A change of permission bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// These bits.
    Octal(u32),
    /// The changes of a symbolic mode, in order.
    Symbolic(Vec<Change>),
}

/// One operator of a symbolic mode, with what stands on both sides of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The bits of the classes that are named; 0 if none is.
    classes: u32,
    operator: Operator,
    bits: Bits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Bits {
    /// These bits. `search`: also `x`, if the file is a directory or has an `x` (`X`).
    Given { bits: u32, search: bool },
    /// The bits of a class; the number of places to shift it to the right.
    CopyOf(u32),
}

const ALL: u32 = 0o7777;
const EVERY_CLASS: u32 = 0o111;

impl Mode {
    /// Parses a MODE.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let octal = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= ALL);
            return octal
                .map(Mode::Octal)
                .ok_or_else(|| "an octal mode has digits from 0 to 7, at most 7777".into());
        }
        let mut changes = Vec::new();
        for clause in text.split(',') {
            let start =
                clause.find(['+', '-', '=']).ok_or("use octal digits or u, g, o, a with +, - or =")?;
            let (who, mut rest) = clause.split_at(start);
            let classes = who.chars().try_fold(0, |all, class| Some(all | class_bits(class)?));
            let classes = classes.ok_or("before +, - or = stand only u, g, o and a")?;
            while let Some(operator) = rest.chars().next() {
                let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |at| at + 1);
                let bits = Bits::parse(&rest[1..end])?;
                let operator = match operator {
                    '+' => Operator::Add,
                    '-' => Operator::Remove,
                    _ => Operator::Set,
                };
                changes.push(Change { classes, operator, bits });
                rest = &rest[end..];
            }
        }
        Ok(Mode::Symbolic(changes))
    }

    /// Returns what becomes of the permission bits `old`. `umask` holds back bits of clauses that name no
    /// class.
    pub fn apply(&self, old: u32, is_dir: bool, umask: u32) -> u32 {
        match self {
            Mode::Octal(mode) => *mode,
            Mode::Symbolic(changes) => {
                changes.iter().fold(old, |mode, change| change.apply(mode, is_dir, umask))
            }
        }
    }
}

/// Returns the bits that belong to a class, set-id bits included.
fn class_bits(class: char) -> Option<u32> {
    Some(match class {
        'u' => 0o4700,
        'g' => 0o2070,
        'o' => 0o0007,
        'a' => ALL,
        _ => return None,
    })
}

impl Bits {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "u" => return Ok(Bits::CopyOf(6)),
            "g" => return Ok(Bits::CopyOf(3)),
            "o" => return Ok(Bits::CopyOf(0)),
            _ => {}
        }
        let (mut bits, mut search) = (0, false);
        for c in text.chars() {
            match c {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                's' => bits |= 0o6000,
                't' => bits |= 0o1000,
                'X' => search = true,
                _ => return Err("after +, - or = stand only r, w, x, X, s and t, or one of u, g and o"),
            }
        }
        Ok(Bits::Given { bits, search })
    }
}

impl Change {
    fn apply(&self, old: u32, is_dir: bool, umask: u32) -> u32 {
        let bits = match self.bits {
            Bits::Given { bits, search } if search && (is_dir || old & EVERY_CLASS != 0) => {
                bits | EVERY_CLASS
            }
            Bits::Given { bits, .. } => bits,
            Bits::CopyOf(shift) => (old >> shift & 7) * EVERY_CLASS,
        };
        let affected = if self.classes == 0 { ALL & !umask } else { self.classes };
        match self.operator {
            Operator::Add => old | bits & affected,
            Operator::Remove => old & !(bits & affected),
            Operator::Set => {
                let cleared = if self.classes == 0 { ALL } else { self.classes };
                old & !cleared | bits & affected
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_applied_as_posix_says() {
        for (text, old, file, dir) in [
            ("640", 0o4755, 0o640, 0o640),
            ("02755", 0, 0o2755, 0o2755),
            ("u+s,g-w", 0o775, 0o4755, 0o4755),
            ("a+X", 0o644, 0o644, 0o755),
            ("a+X", 0o744, 0o755, 0o755),
            ("go=", 0o2777, 0o700, 0o700),
            ("g=u", 0o740, 0o770, 0o770),
            ("u=rw,go=r", 0o777, 0o644, 0o644),
            ("+w", 0o444, 0o644, 0o644),
            ("a+w", 0o444, 0o666, 0o666),
            ("=rx", 0o7777, 0o555, 0o555),
            ("+t", 0o755, 0o1755, 0o1755),
            ("u+x-w", 0o600, 0o500, 0o500),
            ("o+s", 0o755, 0o755, 0o755),
        ] {
            let mode = Mode::parse(text).unwrap();
            assert_eq!((mode.apply(old, false, 0o022), mode.apply(old, true, 0o022)), (file, dir), "{text}");
        }
        for bad in ["", "8", "77777", "u", "u+q", "z+x", "u+rw,", "-1x", "u+gx"] {
            assert!(Mode::parse(bad).is_err(), "{bad}");
        }
    }
}
