//! Attributes in the inode.

use super::attribute::{Attribute, Value, check_name};
use crate::layout::bytes::number;

/// `totsize`, `count` and a byte of padding.
pub(crate) const HEADER_BYTES: usize = 4;

/// Decodes all attributes.
pub(crate) fn decode(space: &[u8]) -> Result<Vec<Attribute>, String> {
    let cut = || "the attributes end past the inode".to_owned();
    let total = number(space, 0, 2).ok_or_else(cut)? as usize;
    let bytes = space.get(..total).ok_or_else(cut)?;
    let count = *bytes.get(2).ok_or_else(cut)?;
    let mut at = HEADER_BYTES;
    let mut all = Vec::with_capacity(count.into());
    for _ in 0..count {
        let &[name_len, value_len, flags] = bytes.get(at..at + 3).ok_or_else(cut)? else { return Err(cut()) };
        let value_at = at + 3 + usize::from(name_len);
        let end = value_at + usize::from(value_len);
        let name = bytes.get(at + 3..value_at).ok_or_else(cut)?.to_vec();
        let value = Value::Here(bytes.get(value_at..end).ok_or_else(cut)?.to_vec());
        check_name(&name, flags)?;
        all.push(Attribute { flags, name, value });
        at = end;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_document_decodes() {
        let mut bytes = vec![0, 24, 2, 0];
        bytes.extend(b"\x05\x00\x00empty\x05\x04\x02trustval1");
        let all = decode(&[&bytes[..], &[0xEE; 10]].concat()).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].full_name().as_deref(), Some(&b"trusted.trust"[..]));
        assert_eq!((&all[0].value, &all[1].value), (&Value::Here(vec![]), &Value::Here(b"val1".to_vec())));
        assert!((0..bytes.len()).all(|len| decode(&bytes[..len]).is_err()));
        bytes[2] = 3;
        assert!(decode(&bytes).is_err());
    }
}
