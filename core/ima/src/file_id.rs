//! The identity of a file, and its encoding in the state files of `ivers changed` and the stores of
//! `ivers measure`.
//!
//! A number is LEB128. A byte string is its length and its bytes.

/// Identifies a file and, by its change attribute, its contents and attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// The inode number.
    pub ino: u64,
    /// Distinguishes successive files with one inode number.
    pub generation: u32,
    /// The change attribute, if there is one.
    pub change: Option<u64>,
}

impl Identity {
    /// Returns whether both are the same file, changed or not.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.ino, self.generation) == (other.ino, other.generation)
    }

    /// Appends the encoding: inode number, generation, has-change (0 or 1), change attribute or 0.
    pub fn put(&self, out: &mut Vec<u8>) {
        put(out, self.ino);
        put(out, u64::from(self.generation));
        out.push(u8::from(self.change.is_some()));
        put(out, self.change.unwrap_or(0));
    }

    /// Removes an identity from the front of `bytes`; `None` if they are too short or invalid.
    pub fn take(bytes: &mut &[u8]) -> Option<Self> {
        let ino = take(bytes)?;
        let generation = u32::try_from(take(bytes)?).ok()?;
        let has_change = take(bytes)? != 0;
        let change = take(bytes)?;
        Some(Self { ino, generation, change: has_change.then_some(change) })
    }
}

/// Appends a number.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Removes a number from the front of `bytes`; `None` if they end within it or it exceeds 64 bits.
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

/// Appends a byte string.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Removes a byte string from the front of `bytes`; `None` if they are too short.
pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take(bytes)?).ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}
