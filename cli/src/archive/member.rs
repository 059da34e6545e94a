//! A file as an archive describes it.

use std::fmt;

use ivers_vfs::{FileType, Timestamp};
use serde::{Deserialize, Serialize};

use crate::output::format;

/// What a member of an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file of this type.
    File(FileType),
    /// Another name for an earlier member.
    HardLink,
    /// A type that only another program knows, by its byte.
    Unknown(u8),
}

/// A member of an archive, without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The path, as it is in the archive.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Access time, if the archive has it.
    pub atime: Option<Timestamp>,
    /// The numbers of a device node, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// The target of a symbolic link, or the path of the other member of a hard link.
    pub target: Vec<u8>,
    /// Extended attributes: names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What the archive says of the file and cannot be used.
    pub unusable: Option<String>,
    /// The size of a regular file in bytes, with its holes.
    pub size: u64,
}

impl Member {
    /// A member of this kind without permissions, at the start of 1970.
    pub fn new(path: impl Into<Vec<u8>>, kind: Kind) -> Self {
        Self {
            path: path.into(),
            kind,
            perm: 0,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            atime: None,
            rdev: 0,
            target: Vec::new(),
            xattrs: Vec::new(),
            unusable: None,
            size: 0,
        }
    }
}

/// Owners of all members. `None`: that of the member.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct NewOwners {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

impl NewOwners {
    /// Sets the owners of a member.
    pub fn apply(self, member: &mut Member) {
        member.uid = self.uid.unwrap_or(member.uid);
        member.gid = self.gid.unwrap_or(member.gid);
    }
}

/// An archive that cannot be read further.
#[derive(Debug)]
pub struct ArchiveError {
    /// What is wrong.
    pub what: String,
    /// The member that was being read; empty before the first and between two.
    pub member: Vec<u8>,
    /// The byte offset in the archive.
    pub offset: u64,
    /// The device failed, and the archive may be intact.
    pub cause: Option<std::io::Error>,
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "archive, byte {}", self.offset)?;
        if !self.member.is_empty() {
            write!(f, ", member {}", format::name(&self.member))?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for ArchiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}
