//! Entries of directories.

use crate::layout::raw::RawDirDataHeader;
use crate::volume::Xfs;
use ivers_vfs::{DirEntry, FileType, Ino};
use std::mem::size_of;
use std::ops::ControlFlow;

/// Addresses are in units of this many bytes.
pub(super) const ADDRESS_UNIT: u64 = 8;

/// The header of a data block in version 4: magic and the largest free ranges.
const V4_HEADER_BYTES: usize = 4 + 12;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub ino: u64,
    pub name: &'a [u8],
    pub kind: Option<FileType>,
    pub address: u64,
}

/// A consumer of entries.
pub(super) type Emit<'a> = dyn FnMut(&DirEntry<'_>) -> ControlFlow<()> + 'a;

impl Entry<'_> {
    pub(super) fn emit(&self, emit: &mut Emit<'_>) -> ControlFlow<()> {
        emit(&DirEntry { ino: Ino(self.ino), name: self.name, kind: self.kind, next: self.address + 1 })
    }
}

/// The type that an entry has for its inode.
pub(super) fn file_type(stored: u8) -> Option<FileType> {
    Some(match stored {
        1 => FileType::Regular,
        2 => FileType::Directory,
        // A whiteout is a character device.
        3 | 8 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}

/// A name must be usable as one.
pub(super) fn check_name(name: &[u8]) -> std::result::Result<(), String> {
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("an entry has an invalid name".into());
    }
    Ok(())
}

impl Xfs {
    /// Offset of the first entry in a data block.
    pub(super) fn data_start(&self) -> usize {
        if self.sb.is_v5() { size_of::<RawDirDataHeader>() } else { V4_HEADER_BYTES }
    }

    pub(super) fn dir_unit(&self) -> u64 {
        u64::from(self.sb.dir_block_size / self.sb.block_size)
    }
}
