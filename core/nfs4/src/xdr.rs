//! External Data Representation (RFC 4506): big-endian words of four bytes, everything padded to them.

use thiserror::Error;

/// Why bytes are not what they were taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum XdrError {
    /// The message ends inside a value.
    #[error("the message is too short")]
    Short,
    /// A count exceeds what the type, or the rest of the message, can hold.
    #[error("a count of {0} is too large")]
    TooLong(u32),
    /// No such value of an enumeration, a boolean or a choice.
    #[error("{0} is no value of this type")]
    BadValue(u32),
    /// Bytes behind the end.
    #[error("there are bytes behind the end")]
    Leftover,
}

/// Result of decoding.
pub type Result<T> = std::result::Result<T, XdrError>;

/// Something with an encoding.
pub trait Xdr: Sized {
    /// Append the encoding.
    fn put(&self, to: &mut Encoder);
    /// Take one off the front.
    fn take(from: &mut Decoder<'_>) -> Result<Self>;

    /// The encoding alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        self.put(&mut encoder);
        encoder.into_bytes()
    }

    /// Decode all of some bytes.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut decoder = Decoder::new(bytes);
        let value = Self::take(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }
}

/// Collects encodings.
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// With room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was put in.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Everything.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Everything, to look at.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forget all behind the first `len` bytes: a result that turned out too large for the reply.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// A word.
    pub fn word(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Put a word over an earlier one, `at` bytes from the start: a count that is known only afterwards.
    pub fn patch_word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Bytes of a length that both sides know, padded.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad(bytes.len());
    }

    /// Bytes with their length before them, padded.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Bytes with their length before them that `fill` writes into place: at most `max`; it says how many. If it fails, nothing was put in.
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

/// Takes values off the front of bytes.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(XdrError::Leftover) }
    }

    /// A word.
    pub fn word(&mut self) -> Result<u32> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(XdrError::Short)?;
        self.bytes = rest;
        Ok(u32::from_be_bytes(*word))
    }

    /// Bytes of a known length. Their padding should be zero; as everybody does, nobody is turned away for it.
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.bytes.split_at_checked(len).ok_or(XdrError::Short)?;
        self.bytes = rest.get(len.wrapping_neg() % 4..).ok_or(XdrError::Short)?;
        Ok(bytes)
    }

    /// Bytes with their length before them, at most `max`.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = self.word()?;
        if len as usize > max {
            return Err(XdrError::TooLong(len));
        }
        self.fixed(len as usize)
    }

    /// The length of a list whose elements take at least a word each.
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

/// `opaque x<>`, bounded by the message that it comes in.
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

/// `type x<MAX>`: a list. A type of its own, since `Vec<u8>` is one string of bytes.
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
        // An element takes more memory than its shortest encoding: the list grows only as elements really come.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::take(from)?);
        }
        Ok(Self(items))
    }
}

/// `type *x`: there or not.
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

/// A structure: its fields one behind the other.
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

/// An enumeration: one word, and only its values.
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* enum $name:ident { $($(#[$about:meta])* $variant:ident = $value:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name { $($(#[$about])* $variant = $value,)* }

        impl $name {
            /// The number on the wire.
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

/// A choice (`union`): a word that says which, and what belongs to it.
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
    (@take $from:ident, $variant:ident, $type:ty) => { Self::$variant(<$type as $crate::xdr::Xdr>::take($from)?) };
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
    fn encodings_are_those_of_the_rfc() {
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
    fn what_does_not_fit_is_refused_before_it_is_allocated() {
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
