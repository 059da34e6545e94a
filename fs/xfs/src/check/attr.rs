//! Extended attributes in all forms, and parent pointers.

use super::fork::{Mapped, Which, place_in};
use super::hashtree::{HashWalk, Leaf};
use super::state::{Checker, Slot};
use crate::attr::is_access_list;
use crate::da::hash_name;
use crate::layout::attribute::{
    LEAF_MAGICS, VALUE_MAX, attr_entries_start, flags, is_acl_name, remote_header_bytes,
};
use crate::layout::bytes::{number, read};
use crate::layout::checksum::{REMOTE, REMOTE_VALUE_MAGIC};
use crate::layout::dinode::format;
use crate::layout::directory::da_header_bytes;
use crate::layout::raw::{RawAttrLeafEntry, RawRemoteHeader};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;
use std::mem::size_of;

const ENTRY_BYTES: usize = size_of::<RawAttrLeafEntry>();

/// An attribute as it is stored.
struct Attribute<'a> {
    flags: u8,
    name: &'a [u8],
    /// The value, if it is beside the name.
    value: Option<&'a [u8]>,
}

impl Checker {
    pub(super) fn check_attributes(&mut self, slot: &Slot) -> Result<()> {
        match slot.format(Which::Attributes) {
            format::LOCAL => self.check_short_attributes(slot),
            format::EXTENTS if slot.extents(Which::Attributes) == 0 => {}
            _ => {
                let mapped = self.mapped(slot, Which::Attributes)?;
                let name = "the attributes";
                let mut walk = HashWalk::new(&mapped, 1, LEAF_MAGICS, name);
                let mut remote = Remote { values: Vec::new(), last: 0 };
                walk.walk(self, 0, &mut |checker, leaf| {
                    checker.check_attribute_leaf(&mapped, leaf, &mut remote)
                })?;
                let seen = std::mem::take(&mut walk.seen);
                self.check_remote_values(&mapped, seen, remote.values)?;
            }
        }
        Ok(())
    }

    fn check_short_attributes(&mut self, slot: &Slot) {
        let (space, place) = (slot.space(Which::Attributes), slot.place());
        let total = number(space, 0, 2).unwrap_or(0) as usize;
        let count = space.get(2).copied().unwrap_or(0);
        let bytes = space.get(..total).unwrap_or_default();
        let mut at = 4;
        let mut names = BTreeSet::new();
        for _ in 0..count {
            let head = bytes.get(at..at + 3).unwrap_or(&[255, 255, 0]);
            let (name_len, value_len, set) = (usize::from(head[0]), usize::from(head[1]), head[2]);
            let value_at = at + 3 + name_len;
            let (Some(name), Some(value)) =
                (bytes.get(at + 3..value_at), bytes.get(value_at..value_at + value_len))
            else {
                let what = "the attributes end past the inode";
                return self.bad("xattr-invalid", place, what);
            };
            if set & flags::LOCAL != 0 {
                self.bad("xattr-invalid", place.clone(), "an attribute in the inode is marked as in a block");
            }
            if !names.insert((
                set & !flags::INCOMPLETE,
                name,
                value.len() * usize::from(set & flags::PARENT != 0),
            )) && set & flags::PARENT == 0
            {
                self.bad("xattr-twice", place.clone(), "an attribute is there twice");
            }
            self.check_attribute(slot.ino, &place, &Attribute { flags: set, name, value: Some(value) });
            at = value_at + value_len;
        }
        if at != total {
            let what = format!("the attributes take {at} bytes, their header says {total}");
            self.bad("xattr-invalid", place, what);
        }
    }

    /// Checks name, flags and value of an attribute.
    fn check_attribute(&mut self, ino: u64, place: &Place, attribute: &Attribute<'_>) {
        let Attribute { flags: set, name, value } = *attribute;
        let namespace = set & flags::NAMESPACES;
        let known = flags::LOCAL | flags::ROOT | flags::SECURE | flags::INCOMPLETE;
        let known = known | if self.has_parents() { flags::PARENT } else { 0 };
        if set & !known != 0 || namespace.count_ones() > 1 {
            self.bad("xattr-invalid", place.clone(), format!("an attribute has the flags {set:#04x}"));
            return;
        }
        if namespace == flags::PARENT {
            let is_right = value.is_some_and(|value| {
                set & flags::INCOMPLETE != 0 || self.count_parent_pointer(ino, name, value)
            });
            if !is_right {
                self.bad("parent-pointer-wrong", place.clone(), "a parent pointer is impossible");
            }
            return;
        }
        if set & flags::INCOMPLETE != 0 {
            let what = "an interrupted change left an attribute that nobody can see";
            self.bad("xattr-incomplete", place.clone(), what);
        }
        if name.is_empty() || name.contains(&0) {
            self.bad("xattr-invalid", place.clone(), "an attribute has an invalid name");
        }
        if is_acl_name(namespace, name) && value.is_some_and(|value| !is_access_list(value)) {
            self.bad("access-list-invalid", place.clone(), "an access control list is invalid");
        }
    }

    /// Checks a block of attributes; returns its largest hash.
    fn check_attribute_leaf(
        &mut self,
        mapped: &Mapped,
        leaf: &Leaf<'_>,
        remote: &mut Remote,
    ) -> Result<Option<u32>> {
        let (bytes, place) = (leaf.bytes, place_in(mapped.ino, leaf.block));
        let (counts, entries) = (da_header_bytes(&self.sb), attr_entries_start(&self.sb));
        let field = |at, len| number(bytes, at, len).unwrap_or(0);
        let count = field(counts, 2) as usize;
        let (used, first_used) = (field(counts + 2, 2) as usize, field(counts + 4, 2) as usize);
        let first_used = if first_used == 0 { bytes.len() } else { first_used };
        let end = entries + count * ENTRY_BYTES;
        if end > bytes.len() {
            self.bad("xattr-block-invalid", place, format!("a block of attributes has {count} entries"));
            return Ok(None);
        }
        let (mut spans, mut hash, mut names) = (Vec::with_capacity(count), 0, BTreeSet::new());
        for index in 0..count {
            let Some(entry) = read::<RawAttrLeafEntry>(bytes, entries + index * ENTRY_BYTES) else { break };
            let at = usize::from(entry.nameidx.get());
            let (set, stored) = (entry.flags, entry.hashval.get());
            if stored < hash || stored < remote.last {
                self.bad("hash-order-wrong", place.clone(), "hashes of attributes are out of order");
            }
            hash = stored;
            let is_local = set & flags::LOCAL != 0;
            let (name_len, name_at, value_len) = match is_local {
                true => (field(at + 2, 1) as usize, at + 3, field(at, 2) as usize),
                false => (field(at + 8, 1) as usize, at + 9, 0),
            };
            let size = match is_local {
                true => (3 + name_len + value_len).next_multiple_of(4),
                // The structure was padded once: the name counts two bytes more.
                false => (11 + name_len).next_multiple_of(4),
            };
            let (Some(name), true) =
                (bytes.get(name_at..name_at + name_len), at >= end && at.is_multiple_of(4))
            else {
                self.bad(
                    "xattr-block-invalid",
                    place.clone(),
                    format!("the attribute {index} of a block is nowhere"),
                );
                continue;
            };
            spans.push((at, size));
            let value_at = name_at + name_len;
            let value = if is_local { bytes.get(value_at..value_at + value_len) } else { None };
            if is_local && value.is_none() {
                self.bad("xattr-block-invalid", place.clone(), "an attribute ends past its block");
                continue;
            }
            if set & flags::PARENT == 0
                && !names.insert((set & (flags::ROOT | flags::SECURE | flags::INCOMPLETE), name))
            {
                self.bad("xattr-twice", place.clone(), "an attribute is there twice");
            }
            if stored != self.attribute_hash(set, name, value) {
                let what = "an attribute is stored with another hash than that of its name";
                self.bad("xattr-hash-wrong", place.clone(), what);
            }
            if !is_local {
                let (block, len) = (field(at, 4), field(at + 4, 4));
                let complete = set & flags::INCOMPLETE == 0;
                if len > VALUE_MAX.into() || (complete && (block == 0 || len == 0)) {
                    self.bad(
                        "xattr-invalid",
                        place.clone(),
                        format!("a value has {len} bytes at block {block}"),
                    );
                } else if complete {
                    let list = is_acl_name(set & flags::NAMESPACES, name);
                    remote.values.push((block as u32, len as u32, list));
                    self.charge(remote.values.capacity() * size_of::<(u32, u32, bool)>())?;
                }
            }
            self.check_attribute(mapped.ino, &place, &Attribute { flags: set, name, value });
        }
        remote.last = hash;
        spans.sort_unstable();
        let overlap = spans.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        let past = spans.last().is_some_and(|(at, size)| at + size > bytes.len());
        let total: usize = spans.iter().map(|(_, size)| size).sum();
        let first = spans.first().map_or(bytes.len(), |(at, _)| *at);
        // Without the mark Linux expects all free space before the first name.
        let has_gaps = first + total < bytes.len() && field(counts + 6, 1) == 0;
        if overlap || past || total != used || first < first_used || has_gaps {
            let what = "names and values of a block of attributes overlap, or are not where its header says";
            self.bad("xattr-block-invalid", place.clone(), what);
        }
        for nth in 0..3 {
            let (base, size) =
                (field(counts + 8 + nth * 4, 2) as usize, field(counts + 10 + nth * 4, 2) as usize);
            let in_use = spans.iter().any(|(at, len)| base < at + len && *at < base + size);
            let is_range = base + size <= bytes.len() && (base | size).is_multiple_of(4);
            if !is_range || (size > 0 && (base < end || in_use)) {
                let what = "the free space of a block of attributes is recorded wrongly";
                self.bad("xattr-block-invalid", place.clone(), what);
            }
        }
        Ok((count > 0).then_some(hash))
    }

    fn attribute_hash(&self, set: u8, name: &[u8], value: Option<&[u8]>) -> u32 {
        let parent = value.and_then(|value| number(value, 0, 8));
        match parent.filter(|_| set & flags::PARENT != 0) {
            // Equal names in several directories have different hashes.
            Some(parent) => self.hash_of(name) ^ (parent >> 32) as u32 ^ parent as u32,
            None => hash_name(name),
        }
    }

    /// Checks values that have blocks of their own.
    fn check_remote_values(
        &mut self,
        mapped: &Mapped,
        mut seen: BTreeSet<u64>,
        values: Vec<(u32, u32, bool)>,
    ) -> Result<()> {
        let header = remote_header_bytes(&self.sb);
        let each = self.sb.block_size as usize - header;
        for (first, len, is_list) in values {
            let (len, mut value) = (len as usize, Vec::new());
            let count = len.div_ceil(each) as u64;
            let Some(blocks) = mapped.blocks(self, first.into(), count) else {
                if mapped.sound {
                    let what = format!("a value of {len} bytes at file block {first} has no blocks");
                    self.bad("xattr-value-invalid", Place::inode(mapped.ino), what);
                }
                continue;
            };
            if (u64::from(first)..u64::from(first) + count).any(|at| !seen.insert(at)) {
                let what = "the blocks of a value have another use";
                self.bad("xattr-values-overlap", Place::inode(mapped.ino), what);
                continue;
            }
            for block in blocks {
                let bytes = self.blocks(&[block])?;
                let part = each.min(len - value.len());
                let place = place_in(mapped.ino, block);
                if header > 0 {
                    let fits = read::<RawRemoteHeader>(&bytes, 0).is_some_and(|head| {
                        head.rm_magic.get().to_be_bytes() == *REMOTE_VALUE_MAGIC
                            && head.rm_offset.get() as usize == value.len()
                            && head.rm_bytes.get() as usize == part
                    });
                    if !fits {
                        let what = "a block of a value has a wrong magic, offset or length";
                        self.bad("xattr-value-invalid", place.clone(), what);
                    }
                    self.check_identity(&bytes, &REMOTE, "a block of a value", &place, mapped.ino);
                }
                value.extend_from_slice(&bytes[header..header + part]);
            }
            if is_list && !is_access_list(&value) {
                let what = "an access control list is invalid";
                self.bad("access-list-invalid", Place::inode(mapped.ino), what);
            }
        }
        Ok(())
    }
}

/// Values that have blocks of their own: file block, length, and whether each is an access control list.
struct Remote {
    values: Vec<(u32, u32, bool)>,
    /// The last hash of the leaf before.
    last: u32,
}
