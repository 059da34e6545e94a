//! Extended attributes: a header with entries, and their names and values behind them.

use super::bytes::{put_u16, put_u32, put_u64, u8_at, u16_at, u32_at, u64_at};
use super::name_hash;
use ivers_vfs::acl;

/// The offset of the header in a block of attributes.
pub const BLOCK_HEADER_AT: usize = 0x30;
/// The offset of the list of extents in a block that is the root of a tree.
pub const TREE_LIST_AT: usize = 0x40;
/// Bytes of a bucket, which is a leaf of a tree.
pub const BUCKET_BYTES: usize = 4096;
/// The offset of the checksum in a bucket.
pub const BUCKET_CHECK_AT: usize = 8;
/// The offset of the list of extents in the root of a value.
pub const VALUE_LIST_AT: usize = 16;
/// Most bytes of a value. Linux allows no more.
pub const VALUE_MAX: u64 = 65_536;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const LOCAL: u8 = 0x80;
/// What stored names begin with, by type.
const PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (ACL_ACCESS, acl::ACCESS),
    (ACL_DEFAULT, acl::DEFAULT),
    (4, b"trusted."),
    (5, b"security."),
];
const ACL_ACCESS: u8 = 2;
const ACL_DEFAULT: u8 = 3;

/// Whether a block of attributes is the root of a tree.
pub fn is_tree(block: &[u8]) -> bool {
    u16_at(block, 0x20) & 1 != 0
}

/// The number of buckets of an extent, which its first one has.
pub fn buckets(bucket: &[u8]) -> u16 {
    u16_at(bucket, 6)
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// With its name.
    Here(&'a [u8]),
    /// In clusters: the bytes from the root of its tree on, and its length.
    Outside(&'a [u8], u64),
}

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The full name.
    pub name: Vec<u8>,
    /// The value.
    pub value: Value<'a>,
    kind: u8,
}

impl Entry<'_> {
    /// Whether it is an access control list, which is stored in another form.
    pub fn is_acl(&self) -> bool {
        matches!(self.kind, ACL_ACCESS | ACL_DEFAULT)
    }
}

/// Returns the attributes of an area that begins with a header. Those of an unknown type are left out.
pub fn entries(area: &[u8]) -> Result<Vec<Entry<'_>>, &'static str> {
    let count = usize::from(u16_at(area, 0));
    if count > area.len().saturating_sub(HEADER_BYTES) / ENTRY_BYTES {
        return Err("there are more extended attributes than fit");
    }
    let mut found = Vec::with_capacity(count);
    for entry in area[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count) {
        let (at, len) = (usize::from(u16_at(entry, 4)), usize::from(u8_at(entry, 6)));
        let (kind, size) = (u8_at(entry, 7), u64_at(entry, 8));
        let name = area.get(at..at + len).ok_or("the name of an extended attribute is outside its area")?;
        let rest = area.get(at + len.next_multiple_of(4)..).unwrap_or_default();
        let value = if kind & LOCAL != 0 {
            let value = usize::try_from(size).ok().and_then(|size| rest.get(..size));
            Value::Here(value.ok_or("the value of an extended attribute is outside its area")?)
        } else {
            if size > VALUE_MAX {
                return Err("the value of an extended attribute is too large");
            }
            Value::Outside(rest, size)
        };
        let kind = kind & !LOCAL;
        let Some((_, prefix)) = PREFIXES.iter().find(|(number, _)| *number == kind) else { continue };
        let is_acl = matches!(kind, ACL_ACCESS | ACL_DEFAULT);
        if name.contains(&0) || (name.is_empty() && !is_acl) {
            return Err("the name of an extended attribute is empty, or contains a zero byte");
        }
        found.push(Entry { name: [*prefix, name].concat(), value, kind });
    }
    Ok(found)
}

/// Most bytes of a value that is stored with its name.
pub const LOCAL_MAX: usize = 80;
/// Bytes of the root of a value with one extent.
pub const ROOT_BYTES: usize = 48;

/// An attribute to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    kind: u8,
    name: Vec<u8>,
    /// The value, or the root of its tree.
    pub bytes: Vec<u8>,
    /// The length of a value in clusters.
    pub outside: Option<u64>,
}

impl Stored {
    /// An attribute without its value. `None`: it has no type.
    pub fn new(full_name: &[u8]) -> Option<Self> {
        let (kind, prefix) = PREFIXES.iter().find(|(_, prefix)| full_name.starts_with(prefix))?;
        let name = full_name[prefix.len()..].to_vec();
        let is_acl = matches!(*kind, ACL_ACCESS | ACL_DEFAULT);
        (name.is_empty() == is_acl && name.len() <= 255).then_some(Self {
            kind: *kind,
            name,
            bytes: Vec::new(),
            outside: None,
        })
    }

    /// Whether it is an access control list, which is stored in another form.
    pub fn is_acl(&self) -> bool {
        matches!(self.kind, ACL_ACCESS | ACL_DEFAULT)
    }

    /// Whether two attributes have the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        ENTRY_BYTES + self.name.len().next_multiple_of(4) + self.bytes.len().next_multiple_of(4)
    }
}

/// Returns all attributes of an area as they are stored, also those of unknown types.
pub fn stored(area: &[u8]) -> Result<Vec<Stored>, &'static str> {
    entries(area)?;
    let count = usize::from(u16_at(area, 0));
    let outside = "the value of an extended attribute is outside its area";
    let stored = area[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count).map(|entry| {
        let (at, len) = (usize::from(u16_at(entry, 4)), usize::from(u8_at(entry, 6)));
        let (kind, size) = (u8_at(entry, 7), u64_at(entry, 8));
        let rest = area.get(at + len.next_multiple_of(4)..).ok_or(outside)?;
        let is_local = kind & LOCAL != 0;
        let bytes = match is_local {
            true => usize::try_from(size).ok().and_then(|size| rest.get(..size)),
            false => rest.get(..VALUE_LIST_AT + 16 + 16 * usize::from(u16_at(rest, VALUE_LIST_AT + 2))),
        };
        Ok(Stored {
            kind: kind & !LOCAL,
            name: area.get(at..at + len).ok_or(outside)?.to_vec(),
            bytes: bytes.ok_or(outside)?.to_vec(),
            outside: (!is_local).then_some(size),
        })
    });
    stored.collect()
}

/// Writes the attributes to an area. The caller made sure that they fit: [`Stored::size`], and a header.
pub fn put(area: &mut [u8], attributes: &[Stored], hash_seed: u32) {
    area.fill(0);
    put_u16(area, 0, attributes.len() as u16);
    let mut end = area.len();
    for (nth, attribute) in attributes.iter().enumerate() {
        let at = HEADER_BYTES + nth * ENTRY_BYTES;
        let name_bytes = attribute.name.len().next_multiple_of(4);
        end = (end & !3) - name_bytes - attribute.bytes.len().next_multiple_of(4);
        put_u32(area, at, name_hash::of_attribute(&attribute.name, hash_seed));
        put_u16(area, at + 4, end as u16);
        let local = if attribute.outside.is_some() { 0 } else { LOCAL };
        (area[at + 6], area[at + 7]) = (attribute.name.len() as u8, attribute.kind | local);
        put_u64(area, at + 8, attribute.outside.unwrap_or(attribute.bytes.len() as u64));
        area[end..end + attribute.name.len()].copy_from_slice(&attribute.name);
        let value = end + name_bytes;
        area[value..value + attribute.bytes.len()].copy_from_slice(&attribute.bytes);
    }
    put_u16(area, 2, end as u16);
    put_u16(area, 4, (area.len() - end) as u16);
}

/// Bytes of an area that attributes can take.
pub fn room(area_bytes: usize) -> usize {
    area_bytes.saturating_sub(HEADER_BYTES)
}

/// Returns the root of a value in one extent.
pub fn value_root(start: u64, clusters: u32) -> Vec<u8> {
    let mut root = vec![0; ROOT_BYTES];
    put_u32(&mut root, 0, clusters);
    put_u16(&mut root, VALUE_LIST_AT + 2, 1);
    put_u16(&mut root, VALUE_LIST_AT + 4, 1);
    put_u32(&mut root, VALUE_LIST_AT + 20, clusters);
    put_u64(&mut root, VALUE_LIST_AT + 24, start);
    root
}

/// Converts an access control list in the encoding of Linux to the stored form. `None`: it is invalid.
pub fn acl_to_disk(value: &[u8]) -> Option<Vec<u8>> {
    let list = acl::Acl::parse(value).ok()??;
    let mut stored = vec![0; list.entries().len() * 8];
    for (entry, to) in list.entries().iter().zip(stored.chunks_exact_mut(8)) {
        put_u16(to, 0, entry.tag);
        put_u16(to, 2, entry.perm);
        put_u32(to, 4, entry.id);
    }
    Some(stored)
}

/// Converts a stored access control list to the encoding of Linux. `None`: it is damaged.
pub fn acl_from_disk(stored: &[u8]) -> Option<Vec<u8>> {
    let entries = stored.chunks(8).map(|entry| {
        let fields = acl::Entry { tag: u16_at(entry, 0), perm: u16_at(entry, 2), id: u32_at(entry, 4) };
        (entry.len() == 8).then_some(fields)
    });
    Some(acl::Acl::new(entries.collect::<Option<_>>()?).ok()?.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An area with one attribute, of which the name is at byte 64.
    fn area(kind: u8, name: &[u8], size: u64, value: &[u8]) -> Vec<u8> {
        let mut area = vec![0; 256];
        area[0] = 1;
        area[20..24].copy_from_slice(&[64, 0, name.len() as u8, kind]);
        area[24..32].copy_from_slice(&size.to_le_bytes());
        area[64..64 + name.len()].copy_from_slice(name);
        let at = 64 + name.len().next_multiple_of(4);
        area[at..at + value.len()].copy_from_slice(value);
        area
    }

    #[test]
    fn attributes_are_decoded() {
        let bytes = area(0x81, b"color", 4, b"blue");
        let found = entries(&bytes).unwrap();
        assert_eq!((&*found[0].name, found[0].value), (&b"user.color"[..], Value::Here(b"blue")));
        let bytes = area(0x05, b"x", 5000, b"");
        let outside = entries(&bytes).unwrap();
        assert!(matches!(outside[0].value, Value::Outside(_, 5000)) && outside[0].name == b"security.x");
        let bytes = area(0x82, b"", 0, b"");
        assert!(entries(&bytes).unwrap()[0].is_acl());
        assert!(entries(&area(0x89, b"x", 1, b"y")).unwrap().is_empty());
    }

    #[test]
    fn damaged_attributes_are_errors() {
        for (bytes, word) in [
            (area(0x81, b"x", 200, b""), "outside its area"),
            (area(0x81, b"x", u64::MAX, b""), "outside its area"),
            (area(0x01, b"x", 65_537, b""), "too large"),
            (area(0x81, b"", 1, b""), "empty"),
            (area(0x81, b"a\0", 1, b""), "zero byte"),
            (vec![255; 256], "more extended attributes than fit"),
        ] {
            let error = entries(&bytes).unwrap_err();
            assert!(error.contains(word), "{error}: {word}");
        }
        let entry = |tag: u8, perm: u8| [tag, 0, perm, 0, 255, 255, 255, 255];
        let stored = [entry(1, 6), entry(4, 4), entry(0x20, 0)].concat();
        assert_eq!(acl::Acl::parse(&acl_from_disk(&stored).unwrap()).unwrap().unwrap().mode(), 0o640);
        assert_eq!((acl_from_disk(&stored[..12]), acl_from_disk(&stored[..8])), (None, None));
    }
}
