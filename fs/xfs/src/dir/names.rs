//! Names: hashes and comparison, with or without regard to case.

use crate::da::hash_name;
use crate::layout::superblock::Superblock;

/// The small letter of a capital of ISO 8859-1. Only the feature ascii-ci uses it.
fn small(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | 0xC0..=0xD6 | 0xD8..=0xDE => byte + 0x20,
        other => other,
    }
}

/// Returns the hash under which a name is found.
pub(crate) fn hash(sb: &Superblock, name: &[u8]) -> u32 {
    if sb.ignores_case() {
        hash_name(&name.iter().map(|&byte| small(byte)).collect::<Vec<_>>())
    } else {
        hash_name(name)
    }
}

/// Returns whether a stored name is the one that is looked for.
pub(crate) fn matches(sb: &Superblock, stored: &[u8], wanted: &[u8]) -> bool {
    stored == wanted || (sb.ignores_case() && same_name(stored, wanted))
}

/// Returns whether two names differ at most in case.
pub(crate) fn same_name(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| small(a) == small(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capitals_have_small_letters() {
        assert!(same_name(b"ReadMe\xC4", b"README\xE4") && !same_name(b"a", b"ab") && !same_name(b"[", b"{"));
        assert!(!same_name(b"\xD7", b"\xF7"), "the signs of multiplication and division");
    }
}
