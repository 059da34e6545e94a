//! The form of an input. Missing bytes read as zero, so every input is valid.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | number of the base image |
//! | 1 | flags: see [`Flags`] |
//! | 2 | number of patches, at most [`MAX_PATCHES`] |
//! | then, each patch | class, place (2 bytes), offset in it (2), length (1), the bytes |
//! | rest | calls of four bytes: call, inode, argument (2) |
//!
//! Numbers are taken modulo the number of choices.

/// With more patches the image is refused at once.
pub const MAX_PATCHES: usize = 24;
/// More calls make an input slow without covering more.
pub const MAX_CALLS: usize = 40;

/// A reader of an input.
#[derive(Debug, Clone)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Starts at the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    /// Reads two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Reads bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the number of patches and the patches.
    pub fn patches(&mut self) -> Vec<Patch<'a>> {
        let count = usize::from(self.byte()) % (MAX_PATCHES + 1);
        (0..count)
            .map(|_| {
                let (class, place, offset) = (self.byte(), self.word(), self.word());
                let len = usize::from(self.byte());
                Patch { class, place, offset, bytes: self.bytes(len) }
            })
            .collect()
    }

    /// Reads the rest as calls.
    pub fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        while !self.is_empty() && calls.len() < MAX_CALLS {
            calls.push(Call { what: self.byte(), on: self.byte(), arg: self.word() });
        }
        calls
    }
}

/// Flags: how the image is used.
#[derive(Debug, Clone, Copy)]
pub struct Flags(pub u8);

impl Flags {
    /// Returns whether to mount read-only.
    pub fn read_only(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether to keep wrong checksums.
    pub fn keep_checksums(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns whether to skip journal replay.
    pub fn no_replay(self) -> bool {
        self.0 & 4 != 0
    }

    /// Returns whether to drop the mount as in a crash and mount again.
    pub fn crash(self) -> bool {
        self.0 & 8 != 0
    }
}

/// Bytes that overwrite a structure.
#[derive(Debug, Clone)]
pub struct Patch<'a> {
    /// The kind of structure.
    pub class: u8,
    /// The number of the structure.
    pub place: u16,
    /// The offset in the structure.
    pub offset: u16,
    /// The bytes to write.
    pub bytes: &'a [u8],
}

impl Patch<'_> {
    /// Appends the patch to an input.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.class);
        out.extend_from_slice(&self.place.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.push(self.bytes.len().min(255) as u8);
        out.extend_from_slice(&self.bytes[..self.bytes.len().min(255)]);
    }
}

/// A call on the mounted image.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The kind of call.
    pub what: u8,
    /// The number of the inode among those seen.
    pub on: u8,
    /// The argument of the call.
    pub arg: u16,
}
