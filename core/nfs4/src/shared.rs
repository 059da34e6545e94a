//! Long data in messages, which is not copied.

use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::record;
use crate::xdr::{Decoder, Encoder, Result, Xdr};

/// Shorter data is copied: that costs less than to send one part more.
pub const SHARED_FROM: usize = 16 << 10;

/// `opaque x<>`, limited by the message: data of a file, which is long. Clones and parts share its bytes. If
/// it was decoded by [`Decoder::shared`], it shares those of the message.
#[derive(Clone, Default)]
pub struct SharedBytes {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Returns the bytes of this range. Bytes after the end do not count.
    pub fn part(&self, range: Range<usize>) -> Self {
        let at = |offset: usize| self.range.start + offset.min(self.len());
        Self { bytes: self.bytes.clone(), range: at(range.start)..at(range.end) }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: Arc::new(bytes), range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedBytes {}

impl Debug for SharedBytes {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        (**self).fmt(to)
    }
}

impl Xdr for SharedBytes {
    fn put(&self, to: &mut Encoder) {
        to.shared(self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let len = from.word()? as usize;
        let message = from.message();
        let bytes = from.fixed(len)?;
        Ok(match message {
            Some((message, start)) => Self { bytes: message.clone(), range: start..start + len },
            None => bytes.to_vec().into(),
        })
    }
}

/// A message to send: bytes, and long data between them that it shares with the encoded values.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// In order, with the place in `bytes` that each precedes.
    shared: Vec<(usize, SharedBytes)>,
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Vec::new())
    }
}

impl Message {
    pub(crate) fn new(bytes: Vec<u8>, shared: Vec<(usize, SharedBytes)>) -> Self {
        Self { bytes, shared }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared.iter().map(|(_, data)| data.len()).sum::<usize>()
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the mark of a record into the first four bytes, which are free for it.
    pub fn set_mark(&mut self) {
        let mark = record::mark(self.len().saturating_sub(4));
        if let Some(first) = self.bytes.first_chunk_mut() {
            *first = mark;
        }
    }

    /// Returns the parts, in order. None is empty.
    pub fn parts(&self) -> Vec<&[u8]> {
        let mut parts = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut from = 0;
        for (at, data) in &self.shared {
            parts.extend([&self.bytes[from..*at], data]);
            from = *at;
        }
        parts.push(&self.bytes[from..]);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::XdrError;

    #[test]
    fn data_is_not_copied_from_a_shared_message() {
        let message = Arc::new(b"\0\0\0\x07\0\0\0\x05abcde\0\0\0\0\0\0\x09".to_vec());
        let mut from = Decoder::shared(&message);
        assert_eq!(from.word(), Ok(7));
        let data = SharedBytes::take(&mut from).unwrap();
        assert_eq!((&*data, from.word()), (&b"abcde"[..], Ok(9)));
        assert_eq!(data.as_ptr(), message[8..].as_ptr());
        assert_eq!(from.finish(), Ok(()));
        let part = data.part(1..4);
        assert_eq!((&*part, part.part(1..100)), (&b"bcd"[..], b"cd".to_vec().into()));
        assert_eq!(part.as_ptr(), message[9..].as_ptr());
        let reversed = Range { start: 7, end: 3 };
        assert!(data.part(reversed).is_empty());
        assert_eq!(SharedBytes::from_bytes(&data.to_bytes()), Ok(data));
        for cut in 4..message.len() - 4 {
            let short = Arc::new(message[4..cut].to_vec());
            assert_eq!(SharedBytes::take(&mut Decoder::shared(&short)), Err(XdrError::Short));
        }
    }

    #[test]
    fn a_message_shares_long_data_and_has_the_same_bytes() {
        let long: SharedBytes = vec![7; SHARED_FROM + 1].into();
        let values = [long.clone(), b"short".to_vec().into(), long.part(0..SHARED_FROM), long.part(5..5)];
        let (mut copied, mut sharing) = (Encoder::default(), Encoder::sharing(64));
        for to in [&mut copied, &mut sharing] {
            to.word(0);
            values.iter().for_each(|value| value.put(to));
        }
        let mut message = sharing.into_message();
        message.set_mark();
        let mut copied = copied.into_bytes();
        let mark = record::mark(copied.len() - 4);
        copied[..4].copy_from_slice(&mark);
        assert_eq!((message.len(), message.parts().concat()), (copied.len(), copied));
        let is_shared = |part: &&[u8]| part.as_ptr() == long.as_ptr();
        assert_eq!(message.parts().into_iter().filter(is_shared).count(), 2);
    }
}
