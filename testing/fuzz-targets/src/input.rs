//! The form of an input: what is read from it, in which order. Bytes that run out read as zero, so every input means something.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | which base image |
//! | 1 | flags: see [`Flags`] |
//! | 2 | number of patches, at most [`MAX_PATCHES`] |
//! | then, each patch | class, place (2 bytes), offset in it (2), length (1), the bytes |
//! | rest | calls, four bytes each: which, on what, argument (2) |
//!
//! Numbers are taken modulo what there is.

/// More patches than this make an image that is refused at the first look.
pub const MAX_PATCHES: usize = 24;
/// More calls than this make an input slow and teach nothing.
pub const MAX_CALLS: usize = 40;

/// Reads an input.
#[derive(Debug, Clone)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// From the start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    /// The next two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patches, with their number before them.
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

    /// What is left, as calls.
    pub fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        while !self.is_empty() && calls.len() < MAX_CALLS {
            calls.push(Call { what: self.byte(), on: self.byte(), arg: self.word() });
        }
        calls
    }
}

/// How the image is used.
#[derive(Debug, Clone, Copy)]
pub struct Flags(pub u8);

impl Flags {
    /// Mount for reading only.
    pub fn read_only(self) -> bool {
        self.0 & 1 != 0
    }

    /// Leave wrong checksums as they are.
    pub fn keep_checksums(self) -> bool {
        self.0 & 2 != 0
    }

    /// Do not replay the journal.
    pub fn no_replay(self) -> bool {
        self.0 & 4 != 0
    }

    /// Drop the mount as a crash would, and mount again.
    pub fn crash(self) -> bool {
        self.0 & 8 != 0
    }
}

/// Bytes that overwrite a structure.
#[derive(Debug, Clone)]
pub struct Patch<'a> {
    /// Which kind of structure.
    pub class: u8,
    /// Which of that kind.
    pub place: u16,
    /// Where in it.
    pub offset: u16,
    /// What to write.
    pub bytes: &'a [u8],
}

impl Patch<'_> {
    /// The form in an input: for those who make inputs.
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
    /// Which call.
    pub what: u8,
    /// On which of the inodes seen.
    pub on: u8,
    /// Its argument.
    pub arg: u16,
}
