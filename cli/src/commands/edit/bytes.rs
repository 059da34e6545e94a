//! Byte strings in messages: as text where they are UTF-8. JSON makes an array of bytes four times as long.
//! Hexadecimal digits are twice as long in any case.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde::{Deserialize, Serialize};

/// A path or a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct Bytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Encoded {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<OsString> for Bytes {
    fn from(word: OsString) -> Self {
        Self(word.into_vec())
    }
}

impl From<Encoded> for Bytes {
    fn from(encoded: Encoded) -> Self {
        Self(match encoded {
            Encoded::Text(text) => text.into_bytes(),
            Encoded::Bytes(bytes) => bytes,
        })
    }
}

impl From<Bytes> for Encoded {
    fn from(Bytes(bytes): Bytes) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Encoded::Bytes(error.into_bytes()), Encoded::Text)
    }
}

impl Bytes {
    /// Returns the length of the encoding in bytes, or more.
    pub fn encoded_len(&self) -> usize {
        // A control character in text becomes `\u0001`, a byte in an array at most `255,`.
        2 + match std::str::from_utf8(&self.0) {
            Ok(text) => text
                .chars()
                .map(|c| if c.is_control() || "\"\\".contains(c) { 6 } else { c.len_utf8() })
                .sum(),
            Err(_) => 4 * self.0.len(),
        }
    }
}

/// Decodes an even number of hexadecimal digits.
pub fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let all_digits = digits.iter().all(u8::is_ascii_hexdigit);
    (all_digits && digits.len().is_multiple_of(2)).then(|| digits.chunks(2).map(pair).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_in_the_length_that_is_announced() {
        for bytes in
            [b"/etc/x".to_vec(), b"\xff\x00a".to_vec(), b"\x01\"\\\n".to_vec(), "ä".into(), vec![255; 999]]
        {
            let bytes = Bytes(bytes);
            let text = serde_json::to_string(&bytes).unwrap();
            assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), bytes);
            assert!(text.len() <= bytes.encoded_len() + 1, "{text}");
        }
    }
}
