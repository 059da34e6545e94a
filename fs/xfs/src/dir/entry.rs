//! Entries of directories.

use crate::layout::directory::ftype;
use ivers_vfs::{DirEntry, FileType, Ino};
use std::ops::ControlFlow;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub ino: u64,
    pub name: &'a [u8],
    /// The stored type; 0 without that feature.
    pub ftype: u8,
    pub address: u64,
}

/// A consumer of entries.
pub(super) type Emit<'a> = dyn FnMut(&DirEntry<'_>) -> ControlFlow<()> + 'a;

impl Entry<'_> {
    pub(super) fn emit(&self, emit: &mut Emit<'_>) -> ControlFlow<()> {
        emit(&DirEntry {
            ino: Ino(self.ino),
            name: self.name,
            kind: file_type(self.ftype),
            next: self.address + 1,
        })
    }
}

/// The type that an entry has for its inode.
fn file_type(stored: u8) -> Option<FileType> {
    match stored {
        ftype::WHITEOUT => Some(FileType::CharDevice),
        _ => FileType::from_dirent_number(stored),
    }
}

/// A name must be usable as one.
pub(crate) fn check_name(name: &[u8]) -> std::result::Result<(), String> {
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("an entry has an invalid name".into());
    }
    Ok(())
}
