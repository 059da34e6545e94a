//! Extended attributes of UFS2: records in up to two blocks of an inode.

use crate::layout::dinode::Dinode;
use crate::layout::superblock::flags;
use crate::layout::{ByteOrder, Fields};
use crate::volume::Ufs;
use ivers_vfs::acl::{self, Entry};
use ivers_vfs::{NameError, Result};

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
        found.push(Record { namespace, name, value });
        rest = next;
    }
    Some(found)
}

/// Converts a stored access control list to the encoding of Linux. `None`: it is damaged.
fn acl_from_disk(stored: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
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
    Some(acl::Acl::new(entries).ok()?.encode())
}

impl Ufs {
    /// Whether access control lists decide, which is a property of the filesystem.
    fn has_acls(&self) -> bool {
        self.sb.flags & flags::FS_ACLS != 0
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
                    let value = acl_from_disk(record.value, self.sb.order).ok_or_else(damaged)?;
                    each(shown.to_vec(), &value);
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
}
