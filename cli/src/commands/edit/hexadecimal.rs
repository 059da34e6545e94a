//! The encoding of values as hexadecimal digits, for `#[serde(with = ...)]`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use super::bytes::{Bytes, from_hex};
use crate::output::format::hex;

pub fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&hex(&bytes.0))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let digits = String::deserialize(from)?;
    from_hex(digits.as_bytes()).map(Bytes).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
}
