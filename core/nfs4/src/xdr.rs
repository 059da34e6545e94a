//! External Data Representation (RFC 4506): big-endian words of four bytes, with padding to whole words.

use std::sync::Arc;

use thiserror::Error;

use crate::shared::{Message, SHARED_FROM, SharedBytes};

/// The reason why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum XdrError {
    /// The message ends inside a value.
    #[error("message too short")]
    Short,
    /// A count exceeds what the type or the rest of the message can hold.
    #[error("count too large: {0}")]
    TooLong(u32),
    /// The value is not valid for the enumeration, boolean or union.
    #[error("invalid discriminant {0}")]
    BadValue(u32),
    /// Bytes are left after the value.
    #[error("trailing bytes")]
    Leftover,
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, XdrError>;

/// A type with an XDR encoding.
pub trait Xdr: Sized {
    /// Appends the encoding.
    fn put(&self, to: &mut Encoder);
    /// Decodes one value from the front.
    fn take(from: &mut Decoder<'_>) -> Result<Self>;

    /// Returns the encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        self.put(&mut encoder);
        encoder.into_bytes()
    }

    /// Decodes a value that must use all bytes.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes);
        let value = Self::take(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }
}

/// A buffer for encoded values.
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    bytes: Vec<u8>,
    /// Long data that is not copied, and its place in `bytes`. `None`: all data is copied.
    shared: Option<Vec<(usize, SharedBytes)>>,
}

impl Encoder {
    /// Creates a buffer with this capacity in bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), shared: None }
    }

    /// Creates a buffer with this capacity in bytes for a [`Message`], which shares long data with values.
    pub fn sharing(bytes: usize) -> Self {
        Self { shared: Some(Vec::new()), ..Self::with_capacity(bytes) }
    }

    /// Returns the message.
    pub fn into_message(self) -> Message {
        Message::new(self.bytes, self.shared.unwrap_or_default())
    }

    /// Returns the number of bytes, without those that it shares.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes. Not of a buffer that shares data.
    pub fn into_bytes(self) -> Vec<u8> {
        debug_assert!(self.shared.is_none(), "some data is not in the buffer");
        self.bytes
    }

    /// Borrows the bytes, without those that it shares.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Keeps only the first `len` bytes, for example to remove a result that is too large for the reply.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Appends an unsigned 32-bit integer.
    pub fn word(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Overwrites a word at byte `at`, for example with a count that is known only later.
    pub fn patch_word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Appends bytes of fixed length, padded (`opaque x[N]`).
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad(bytes.len());
    }

    /// Appends bytes of variable length, padded (`opaque x<>`).
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Appends bytes of variable length, padded, which may be shared instead of copied.
    pub(crate) fn shared(&mut self, data: &SharedBytes) {
        match &mut self.shared {
            Some(shared) if data.len() >= SHARED_FROM => {
                self.bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
                shared.push((self.bytes.len(), data.clone()));
                self.pad(data.len());
            }
            _ => self.opaque(data),
        }
    }

    /// Appends bytes of variable length that `fill` writes in place. `fill` gets a buffer of `max` bytes and
    /// returns the number written. On error nothing is appended.
    pub fn opaque_with<E>(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<usize, E>,
    ) -> std::result::Result<usize, E> {
        let start = self.bytes.len();
        self.bytes.resize(start + 4 + max, 0);
        match fill(&mut self.bytes[start + 4..]) {
            Ok(len) => {
                let len = len.min(max);
                self.bytes.truncate(start + 4 + len);
                self.patch_word(start, len as u32);
                self.pad(len);
                Ok(len)
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }

    fn pad(&mut self, len: usize) {
        self.bytes.extend_from_slice(&[0; 3][..len.wrapping_neg() % 4]);
    }
}

/// A reader of encoded values.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    /// The message that ends with `bytes`, if values may share it.
    message: Option<&'a Arc<Vec<u8>>>,
}

impl<'a> Decoder<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, message: None }
    }

    /// Reads this message. [`SharedBytes`] in it is not copied.
    pub fn shared(message: &'a Arc<Vec<u8>>) -> Self {
        Self { bytes: message, message: Some(message) }
    }

    /// Returns the number of bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Succeeds if no bytes are left.
    pub fn finish(self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(XdrError::Leftover) }
    }

    /// Returns the message that values may share, and the position of the next byte in it. `None`: values are
    /// copied.
    pub(crate) fn message(&self) -> Option<(&'a Arc<Vec<u8>>, usize)> {
        self.message.map(|message| (message, message.len() - self.remaining()))
    }

    /// Reads an unsigned 32-bit integer.
    pub fn word(&mut self) -> Result<u32> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(XdrError::Short)?;
        self.bytes = rest;
        Ok(u32::from_be_bytes(*word))
    }

    /// Reads bytes of fixed length. Nonzero padding is accepted, as in other implementations.
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.bytes.split_at_checked(len).ok_or(XdrError::Short)?;
        self.bytes = rest.get(len.wrapping_neg() % 4..).ok_or(XdrError::Short)?;
        Ok(bytes)
    }

    /// Reads bytes of variable length, at most `max`.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = self.word()?;
        if len as usize > max {
            return Err(XdrError::TooLong(len));
        }
        self.fixed(len as usize)
    }

    /// Reads the length of a list, whose elements have at least four bytes each.
    pub fn count(&mut self, max: usize) -> Result<usize> {
        let count = self.word()?;
        if count as usize > max || count as usize > self.bytes.len() / 4 {
            return Err(XdrError::TooLong(count));
        }
        Ok(count as usize)
    }
}

impl Xdr for u32 {
    fn put(&self, to: &mut Encoder) {
        to.word(*self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        from.word()
    }
}

impl Xdr for u64 {
    fn put(&self, to: &mut Encoder) {
        to.bytes.extend_from_slice(&self.to_be_bytes());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(u64::from(from.word()?) << 32 | u64::from(from.word()?))
    }
}

impl Xdr for i64 {
    fn put(&self, to: &mut Encoder) {
        self.cast_unsigned().put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(u64::take(from)?.cast_signed())
    }
}

impl Xdr for bool {
    fn put(&self, to: &mut Encoder) {
        to.word(u32::from(*self));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        match from.word()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(XdrError::BadValue(other)),
        }
    }
}

impl Xdr for () {
    fn put(&self, _: &mut Encoder) {}

    fn take(_: &mut Decoder<'_>) -> Result<Self> {
        Ok(())
    }
}

/// `opaque x<>`, limited by the message.
impl Xdr for Vec<u8> {
    fn put(&self, to: &mut Encoder) {
        to.opaque(self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(from.opaque(usize::MAX)?.to_vec())
    }
}

/// `opaque x[N]`.
impl<const N: usize> Xdr for [u8; N] {
    fn put(&self, to: &mut Encoder) {
        to.fixed(self);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(from.fixed(N)?);
        Ok(bytes)
    }
}

/// `type x<MAX>` (RFC 4506 section 4.13): a list. A separate type, because `Vec<u8>` is a byte string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List<T, const MAX: usize = { usize::MAX }>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Xdr, const MAX: usize> Xdr for List<T, MAX> {
    fn put(&self, to: &mut Encoder) {
        to.word(self.0.len() as u32);
        self.0.iter().for_each(|item| item.put(to));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let count = from.count(MAX)?;
        // An element needs more memory than its shortest encoding, so the list grows only as elements are
        // decoded.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::take(from)?);
        }
        Ok(Self(items))
    }
}

/// `type *x` (RFC 4506 section 4.19): optional data.
impl<T: Xdr> Xdr for Option<T> {
    fn put(&self, to: &mut Encoder) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

/// Defines a structure (RFC 4506 section 4.14): its fields in order.
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        impl $crate::xdr::Xdr for $name {
            fn put(&self, to: &mut $crate::xdr::Encoder) {
                $($crate::xdr::Xdr::put(&self.$field, to);)*
            }

            fn take(from: &mut $crate::xdr::Decoder<'_>) -> $crate::xdr::Result<Self> {
                Ok(Self { $($field: $crate::xdr::Xdr::take(from)?,)* })
            }
        }
    )*};
}

/// Defines an enumeration (RFC 4506 section 4.3).
macro_rules! xdr_enum {
    ($(
        $(#[$meta:meta])*
        enum $name:ident { $($(#[$about:meta])* $variant:ident = $value:literal,)* }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name { $($(#[$about])* $variant = $value,)* }

        impl $name {
            /// Returns the number on the wire.
            pub const fn number(self) -> u32 {
                self as u32
            }
        }

        impl $crate::xdr::Xdr for $name {
            fn put(&self, to: &mut $crate::xdr::Encoder) {
                to.word(self.number());
            }

            fn take(from: &mut $crate::xdr::Decoder<'_>) -> $crate::xdr::Result<Self> {
                match from.word()? {
                    $($value => Ok(Self::$variant),)*
                    other => Err($crate::xdr::XdrError::BadValue(other)),
                }
            }
        }
    )*};
}

/// Defines a discriminated union (RFC 4506 section 4.15).
macro_rules! xdr_union {
    ($($(#[$meta:meta])* union $name:ident {
        $($(#[$about:meta])* $number:literal => $variant:ident $(($type:ty))?,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$about])* $variant $(($type))?,)* }

        impl $crate::xdr::Xdr for $name {
            fn put(&self, to: &mut $crate::xdr::Encoder) {
                match self {
                    $(xdr_union!(@pattern $variant, value $(, $type)?) => {
                        to.word($number);
                        xdr_union!(@put to, value $(, $type)?);
                    })*
                }
            }

            fn take(from: &mut $crate::xdr::Decoder<'_>) -> $crate::xdr::Result<Self> {
                match from.word()? {
                    $($number => Ok(xdr_union!(@take from, $variant $(, $type)?)),)*
                    other => Err($crate::xdr::XdrError::BadValue(other)),
                }
            }
        }
    )*};
    (@pattern $variant:ident, $value:ident) => { Self::$variant };
    (@pattern $variant:ident, $value:ident, $type:ty) => { Self::$variant($value) };
    (@put $to:ident, $value:ident) => {};
    (@put $to:ident, $value:ident, $type:ty) => { <$type as $crate::xdr::Xdr>::put($value, $to) };
    (@take $from:ident, $variant:ident) => { Self::$variant };
    (@take $from:ident, $variant:ident, $type:ty) => {
        Self::$variant(<$type as $crate::xdr::Xdr>::take($from)?)
    };
}

pub(crate) use {xdr_enum, xdr_struct, xdr_union};

#[cfg(test)]
mod tests {
    use super::*;

    xdr_struct! {
        /// Fields.
        struct Pair {
            /// A number.
            one: u64,
            /// Bytes.
            two: Vec<u8>,
        }
    }

    xdr_union! {
        /// A choice.
        union Choice {
            /// Nothing.
            0 => Empty,
            /// Something.
            7 => Full(Pair),
        }
    }

    #[test]
    fn encodings_match_rfc_4506() {
        let pair = Pair { one: 0x0102_0304_0506_0708, two: b"abcde".to_vec() };
        let bytes = Choice::Full(pair.clone()).to_bytes();
        assert_eq!(bytes, b"\0\0\0\x07\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x05abcde\0\0\0");
        assert_eq!(Choice::from_bytes(&bytes), Ok(Choice::Full(pair)));
        assert_eq!(Choice::from_bytes(&[0; 4]), Ok(Choice::Empty));
        assert_eq!(List::<u64>(vec![1]).to_bytes(), b"\0\0\0\x01\0\0\0\0\0\0\0\x01");
        assert_eq!(Some(true).to_bytes(), b"\0\0\0\x01\0\0\0\x01");
        assert_eq!((-2i64).to_bytes(), [255, 255, 255, 255, 255, 255, 255, 254]);
    }

    #[test]
    fn oversized_counts_are_refused_before_allocation() {
        assert_eq!(Vec::<u8>::from_bytes(&[0xff; 4]), Err(XdrError::Short));
        assert_eq!(List::<u32>::from_bytes(&[0xff; 8]), Err(XdrError::TooLong(u32::MAX)));
        assert_eq!(
            List::<u32, 1>::from_bytes(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err(XdrError::TooLong(2))
        );
        assert_eq!(Choice::from_bytes(&[0, 0, 0, 9]), Err(XdrError::BadValue(9)));
        assert_eq!(bool::from_bytes(&[0, 0, 0, 2]), Err(XdrError::BadValue(2)));
        assert_eq!(u32::from_bytes(&[0; 5]), Err(XdrError::Leftover));
        assert_eq!(Vec::<u8>::from_bytes(b"\0\0\0\x01a\0\0\x01"), Ok(b"a".to_vec()));
        assert_eq!(Vec::<u8>::from_bytes(b"\0\0\0\x01a\0\0"), Err(XdrError::Short));
    }

    #[test]
    fn bytes_can_be_filled_in_place() {
        let mut encoder = Encoder::default();
        let filled = encoder.opaque_with::<()>(100, |space| {
            space[..5].copy_from_slice(b"abcde");
            Ok(5)
        });
        assert_eq!(filled, Ok(5));
        assert_eq!(encoder.opaque_with(100, |_| Err("no")), Err("no"));
        assert_eq!(encoder.as_bytes(), b"abcde".to_vec().to_bytes());
    }
}
