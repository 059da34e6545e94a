//! How files are told apart, and how that is stored: what the states of `ivers changed` and the stores of
//! `ivers measure` have in common.
//!
//! Numbers are LEB128, byte strings a length and their bytes.

/// What tells lives of a file apart, and whether it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// The inode number.
    pub ino: u64,
    /// Which life of that number.
    pub generation: u32,
    /// The change attribute, if there is one.
    pub change: Option<u64>,
}

impl Identity {
    /// The same file in the same life, changed or not.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.ino, self.generation) == (other.ino, other.generation)
    }

    /// Append it: number, generation, has-change (0 or 1), change.
    pub fn put(&self, out: &mut Vec<u8>) {
        put(out, self.ino);
        put(out, u64::from(self.generation));
        out.push(u8::from(self.change.is_some()));
        put(out, self.change.unwrap_or(0));
    }

    /// Take one off.
    pub fn take(bytes: &mut &[u8]) -> Option<Self> {
        let ino = take(bytes)?;
        let generation = u32::try_from(take(bytes)?).ok()?;
        let has_change = take(bytes)? != 0;
        let change = take(bytes)?;
        Some(Self { ino, generation, change: has_change.then_some(change) })
    }
}

/// Append a number.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Take a number off.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        value |= part.checked_shl(shift).filter(|v| v >> shift == part)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Append bytes behind their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Take bytes off, which follow their length.
pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}
