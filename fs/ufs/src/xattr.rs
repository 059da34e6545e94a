//! Extended attributes of UFS2: records in up to two blocks of an inode.

use crate::alloc::order_error;
use crate::layout::dinode::Dinode;
use crate::layout::superblock::flags;
use crate::layout::{ByteOrder, Fields, FieldsMut};
use crate::volume::{State, Ufs};
use ivers_block::BlockNo;
use ivers_vfs::acl::{self, Entry};
use ivers_vfs::{NameError, Result, XattrMode};
use ivers_write_ordering::{Change, Stage};
use std::ops::Range;

/// Bytes of a record before the name.
const HEADER_BYTES: usize = 7;
const NAMESPACE_USER: u8 = 1;
const NAMESPACE_SYSTEM: u8 = 2;
/// Stored names of access control lists, and the names that users see.
const ACLS: [(&[u8], &[u8]); 2] =
    [(b"posix1e.acl_access", acl::ACCESS), (b"posix1e.acl_default", acl::DEFAULT)];
/// The most entries of a stored access control list.
const ACL_ENTRIES_MAX: u32 = 32;
const ACL_ENTRY_BYTES: usize = 12;

/// A record: its namespace, name and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record<'a> {
    namespace: u8,
    name: &'a [u8],
    value: &'a [u8],
    /// All its bytes.
    bytes: &'a [u8],
}

/// Appends a record to an area.
fn put_record(area: &mut Vec<u8>, namespace: u8, name: &[u8], value: &[u8], order: ByteOrder) {
    let start = area.len();
    let padding = value.len().next_multiple_of(8) - value.len();
    area.extend([0, 0, 0, 0, namespace, padding as u8, name.len() as u8]);
    area.extend(name);
    area.resize(start + (HEADER_BYTES + name.len()).next_multiple_of(8), 0);
    area.extend(value);
    area.resize(area.len() + padding, 0);
    let len = area.len() - start;
    FieldsMut::new(&mut area[start..], order).u32(0, len as u32);
}

/// Splits the area of an inode into records. `None`: it is damaged.
fn records(area: &[u8], order: ByteOrder) -> Option<Vec<Record<'_>>> {
    let (mut rest, mut found) = (area, Vec::new());
    while !rest.is_empty() {
        let fields = Fields::new(rest, order);
        let (len, namespace) = (fields.u32(0) as usize, fields.u8(4));
        let (padding, name_len) = (usize::from(fields.u8(5)), usize::from(fields.u8(6)));
        let value_at = (HEADER_BYTES + name_len).next_multiple_of(8);
        if len < value_at || !len.is_multiple_of(8) {
            return None;
        }
        let (record, next) = rest.split_at_checked(len)?;
        let name = &record[HEADER_BYTES..HEADER_BYTES + name_len];
        let value = record.get(value_at..len.checked_sub(padding)?)?;
        if name.is_empty() || name.contains(&0) {
            return None;
        }
        found.push(Record { namespace, name, value, bytes: record });
        rest = next;
    }
    Some(found)
}

/// Decodes a stored access control list. `None`: it is damaged.
fn acl_from_disk(stored: &[u8], order: ByteOrder) -> Option<acl::Acl> {
    let fields = Fields::new(stored, order);
    let count = Some(fields.u32(0)).filter(|&count| count <= ACL_ENTRIES_MAX)? as usize;
    stored.get(..4 + count * ACL_ENTRY_BYTES)?;
    let entry = |nth: usize| {
        let at = 4 + nth * ACL_ENTRY_BYTES;
        // Tags and permissions are those of Linux.
        let tag = u16::try_from(fields.u32(at)).ok()?;
        Some(Entry { tag, perm: fields.u16(at + 8), id: fields.u32(at + 4) })
    };
    let mut entries: Vec<Entry> = (0..count).map(entry).collect::<Option<_>>()?;
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    acl::Acl::new(entries).ok()
}

/// Converts an access control list to what is stored, which always has the same length. `None`: it has too
/// many entries, or it is damaged.
fn acl_to_disk(value: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
    let list = acl::Acl::parse(value).ok()??;
    let entries = list.entries();
    if entries.len() > ACL_ENTRIES_MAX as usize {
        return None;
    }
    let mut stored = vec![0; 4 + ACL_ENTRIES_MAX as usize * ACL_ENTRY_BYTES];
    let mut fields = FieldsMut::new(&mut stored, order);
    fields.u32(0, entries.len() as u32);
    for (nth, entry) in entries.iter().enumerate() {
        let at = 4 + nth * ACL_ENTRY_BYTES;
        fields.u32(at, entry.tag.into());
        fields.u32(at + 4, entry.id);
        fields.u16(at + 8, entry.perm);
    }
    Some(stored)
}

impl Ufs {
    /// Whether access control lists decide, which is a property of the filesystem.
    fn has_acls(&self) -> bool {
        self.sb.flags & flags::FS_ACLS != 0
    }

    /// Fragments of one of the two blocks of attributes.
    pub(crate) fn attribute_frags(&self, inode: &Dinode, nth: u64) -> u64 {
        let (all, size) = (u64::from(inode.attributes_size), u64::from(self.sb.block_size));
        all.saturating_sub(nth * size).min(size).div_ceil(self.sb.fragment_size.into())
    }

    /// Reads the area of attributes.
    fn attribute_area(&self, inode: &Dinode) -> Result<Vec<u8>> {
        let (size, fragment_size) = (inode.attributes_size as usize, self.sb.fragment_size as usize);
        let mut area = Vec::with_capacity(size);
        for at in (0..size).step_by(fragment_size) {
            let block = inode.attributes[at / self.sb.block_size as usize];
            let in_block = (at % self.sb.block_size as usize / fragment_size) as u64;
            self.check_frags(inode.ino, block, 1)?;
            area.extend_from_slice(&self.fragment(inode.ino, block + in_block)?);
        }
        area.truncate(size);
        Ok(area)
    }

    /// Calls `each` with every attribute and its full name.
    fn for_each_attribute(&self, inode: &Dinode, mut each: impl FnMut(Vec<u8>, &[u8])) -> Result<()> {
        let area = self.attribute_area(inode)?;
        let damaged = || self.corrupt(inode.ino, "its extended attributes are damaged");
        for record in records(&area, self.sb.order).ok_or_else(damaged)? {
            let acl = ACLS.iter().find(|(stored, _)| *stored == record.name);
            match (record.namespace, acl.filter(|_| self.has_acls())) {
                (NAMESPACE_SYSTEM, Some((_, shown))) => {
                    let mut list = acl_from_disk(record.value, self.sb.order).ok_or_else(damaged)?;
                    if *shown == acl::ACCESS {
                        // A chmod of FreeBSD changes the mode alone, which decides about its entries.
                        list.set_mode(inode.mode.into());
                    }
                    each(shown.to_vec(), &list.encode());
                }
                (NAMESPACE_USER, _) => each([b"user.", record.name].concat(), record.value),
                // Only root sees the attributes of the system there, as those of `trusted` here.
                (NAMESPACE_SYSTEM, _) => each([b"trusted.", record.name].concat(), record.value),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn attribute_names(&self, inode: &Dinode) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.for_each_attribute(inode, |name, _| names.push(name))?;
        Ok(names)
    }

    pub(crate) fn attribute(&self, inode: &Dinode, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = None;
        self.for_each_attribute(inode, |found, bytes| {
            if found == name {
                value = Some(bytes.to_vec());
            }
        })?;
        Ok(value.ok_or(NameError::NoAttribute)?)
    }

    /// Returns the namespace and name under which an attribute is stored.
    fn stored_name<'n>(&self, name: &'n [u8]) -> Result<(u8, &'n [u8])> {
        let acl = ACLS.iter().find(|(_, shown)| *shown == name);
        let (namespace, stored) = match (acl, name.strip_prefix(b"user."), name.strip_prefix(b"trusted.")) {
            (Some((stored, _)), ..) if self.has_acls() => (NAMESPACE_SYSTEM, *stored),
            (None, Some(rest), _) => (NAMESPACE_USER, rest),
            (None, _, Some(rest)) => (NAMESPACE_SYSTEM, rest),
            _ => return Err(NameError::NotSupported.into()),
        };
        let is_list = acl.is_none() && namespace == NAMESPACE_SYSTEM && self.has_acls();
        if is_list && ACLS.iter().any(|(list, _)| *list == stored) {
            return Err(NameError::NotPermitted.into());
        }
        match stored.len() {
            0 => Err(NameError::Invalid.into()),
            1..=255 if !stored.contains(&0) => Ok((namespace, stored)),
            _ => Err(NameError::Range.into()),
        }
    }

    /// Sets or removes an attribute. The caller puts the inode into the batch.
    pub(crate) fn change_area(
        &self,
        change: &Change<'_>,
        state: &mut State,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (namespace, stored) = match self.stored_name(name) {
            Err(_) if value.is_none() => return Err(NameError::NoAttribute.into()),
            stored => stored?,
        };
        let area = self.attribute_area(&state.dinode)?;
        let damaged = || self.corrupt(state.dinode.ino, "its extended attributes are damaged");
        let records = records(&area, self.sb.order).ok_or_else(damaged)?;
        let is_it = |record: &Record<'_>| record.namespace == namespace && record.name == stored;
        mode.check(records.iter().any(is_it), value.is_none())?;
        let others = records.iter().filter(|record| !is_it(record));
        let mut new: Vec<u8> = others.flat_map(|record| record.bytes).copied().collect();
        if let Some(value) = value {
            let list = match name.starts_with(b"system.") {
                true => Some(acl_to_disk(value, self.sb.order).ok_or(NameError::Invalid)?),
                false => None,
            };
            put_record(&mut new, namespace, stored, list.as_deref().unwrap_or(value), self.sb.order);
        }
        if new.len() > 2 * self.sb.block_size as usize {
            return Err(NameError::NoSpace.into());
        }
        self.put_area(change, state, &new)
    }

    /// Writes an area to a new place, and frees the old one.
    pub(crate) fn put_area(&self, change: &Change<'_>, state: &mut State, area: &[u8]) -> Result<()> {
        let parts: Vec<&[u8]> = area.chunks(self.sb.block_size as usize).collect();
        let mut taken: Vec<Range<u64>> = Vec::new();
        for part in &parts {
            match self.take_frags(change, &state.dinode, part.len()) {
                Ok(place) => taken.push(place),
                Err(error) => {
                    self.alloc()?.cancel(change, &taken, 0)?;
                    return Err(error);
                }
            }
        }
        let size = self.sb.fragment_size as usize;
        for (place, part) in taken.iter().zip(parts) {
            for (fragment, bytes) in place.clone().zip(part.chunks(size)) {
                let buffer = change.fresh(BlockNo(fragment)).map_err(order_error)?;
                change.put(&buffer, Stage::Fresh, |to| to[..bytes.len()].copy_from_slice(bytes));
            }
        }
        let mut gone = 0;
        for (nth, start) in (0..).zip(state.dinode.attributes) {
            let frags = self.attribute_frags(&state.dinode, nth);
            gone += frags;
            self.check_frags(state.dinode.ino, start.max(1), frags)?;
            self.alloc()?.free(change, start..start + frags)?;
        }
        let dinode = &mut state.dinode;
        let (came, unit) =
            (taken.iter().map(|place| place.end - place.start).sum::<u64>(), size as u64 / 512);
        dinode.blocks_512 = dinode.blocks_512.saturating_sub(gone * unit).saturating_add(came * unit);
        dinode.attributes_size = area.len() as u32;
        dinode.attributes = [0, 1].map(|nth| taken.get(nth).map_or(0, |place| place.start));
        Ok(())
    }

    /// Takes fragments for so many bytes of attributes.
    fn take_frags(&self, change: &Change<'_>, inode: &Dinode, bytes: usize) -> Result<Range<u64>> {
        let frags = (bytes as u64).div_ceil(self.sb.fragment_size.into());
        let near = self.sb.structure(inode.ino / self.sb.inodes_per_group, 3);
        let start = match frags == u64::from(self.sb.frags_per_block) {
            true => self.alloc()?.blocks(change, near, 1, 0)?[0],
            false => self.alloc()?.frags(change, near, frags, 0)?,
        };
        Ok(start..start + frags)
    }
}
