//! Attributes in the inode.

use crate::attr::short::HEADER_BYTES;
use crate::attr::{Attribute, Value};
use crate::layout::attribute::flags;

/// Encodes attributes whose values are beside their names. `None` if one is too long, or if they are too
/// many.
pub(super) fn encode(all: &[Attribute]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    for attribute in all {
        let Value::Here(value) = &attribute.value else { return None };
        bytes.push(u8::try_from(attribute.name.len()).ok()?);
        bytes.push(u8::try_from(value.len()).ok()?);
        bytes.push(attribute.flags & !flags::LOCAL);
        bytes.extend(&attribute.name);
        bytes.extend(value);
    }
    let total = u16::try_from(bytes.len()).ok()?;
    bytes[..2].copy_from_slice(&total.to_be_bytes());
    bytes[2] = u8::try_from(all.len()).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::short::decode;

    #[test]
    fn attributes_decode_as_they_were_encoded() {
        let attribute = |flags, name: &[u8], value: &[u8]| Attribute {
            flags,
            name: name.to_vec(),
            value: Value::Here(value.to_vec()),
        };
        let all = [attribute(0, b"a", b""), attribute(flags::ROOT, b"name", &[7; 255])];
        assert_eq!(decode(&encode(&all).unwrap()).unwrap(), all);
        assert_eq!(encode(&[attribute(0, b"a", &[7; 256])]), None);
        assert_eq!(encode(&vec![attribute(0, b"a", b""); 256]), None);
        assert_eq!(encode(&[]).unwrap(), [0, 4, 0, 0]);
    }
}
