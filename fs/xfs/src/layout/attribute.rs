//! Values of the fields of extended attributes.

use super::directory::da_header_bytes;
use super::raw::RawRemoteHeader;
use super::superblock::Superblock;
use std::mem::size_of;

/// Bits of an attribute's flags.
pub(crate) mod flags {
    /// The value is beside the name.
    pub(crate) const LOCAL: u8 = 0x01;
    pub(crate) const ROOT: u8 = 0x02;
    pub(crate) const SECURE: u8 = 0x04;
    /// A parent pointer: which directory has which name for the inode.
    pub(crate) const PARENT: u8 = 0x08;
    /// A change was interrupted.
    pub(crate) const INCOMPLETE: u8 = 0x80;
    /// Where the name belongs: none of these bits is the users' namespace.
    pub(crate) const NAMESPACES: u8 = ROOT | SECURE | PARENT;
}

/// Magics of a block of attributes, in version 5 and 4.
pub(crate) const LEAF_MAGICS: [u16; 2] = [0x3bee, 0xfbee];
/// The longest value in bytes.
pub(crate) const VALUE_MAX: u32 = 65536;

/// The stored names of access control lists, in the namespace `ROOT`.
pub(crate) const ACL_NAMES: [&[u8]; 2] = [b"SGI_ACL_FILE", b"SGI_ACL_DEFAULT"];

/// Whether an attribute is an access control list.
pub(crate) fn is_acl_name(namespace: u8, name: &[u8]) -> bool {
    namespace == flags::ROOT && ACL_NAMES.contains(&name)
}

/// The offset of the entries of a block of attributes: counts, free space, and padding in version 5 follow
/// the shared header.
pub(crate) fn attr_entries_start(sb: &Superblock) -> usize {
    da_header_bytes(sb) + if sb.is_v5() { 24 } else { 20 }
}

/// Bytes of the header of a block of a value.
pub(crate) fn remote_header_bytes(sb: &Superblock) -> usize {
    if sb.is_v5() { size_of::<RawRemoteHeader>() } else { 0 }
}
