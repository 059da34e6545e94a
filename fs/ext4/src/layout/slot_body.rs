//! The bytes of an inode slot after its extra fields, which hold extended attributes.

use std::ops::{Deref, DerefMut};

/// The largest slot is a block.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The bytes of a slot after the extra fields. Most slots have no attributes: zeros take no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotBody {
    /// This many zeros.
    Zeros(u16),
    /// Other contents.
    Bytes(Box<[u8]>),
}

impl SlotBody {
    /// Copies the bytes of a slot.
    pub fn new(bytes: &[u8]) -> Self {
        match u16::try_from(bytes.len()) {
            Ok(len) if bytes.iter().all(|&byte| byte == 0) => Self::Zeros(len),
            _ => Self::Bytes(bytes.into()),
        }
    }

    /// Sets all bytes to zero.
    pub fn clear(&mut self) {
        *self = Self::new(&ZEROS[..self.len()]);
    }
}

impl Deref for SlotBody {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Zeros(len) => &ZEROS[..usize::from(*len)],
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl DerefMut for SlotBody {
    fn deref_mut(&mut self) -> &mut [u8] {
        if let Self::Zeros(len) = *self {
            *self = Self::Bytes(vec![0; usize::from(len)].into());
        }
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Zeros(_) => &mut [],
        }
    }
}

impl From<Vec<u8>> for SlotBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_take_no_memory_and_can_be_changed() {
        let mut body = SlotBody::new(&[0; 96]);
        assert_eq!((body.len(), &body), (96, &SlotBody::Zeros(96)));
        body[5] = 1;
        assert_eq!((body.len(), body[5], body[6]), (96, 1, 0));
        body.clear();
        assert_eq!(body, SlotBody::Zeros(96));
    }
}
