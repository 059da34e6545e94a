//! Operations on a subject. An operation names files and never refers to results of earlier operations, so
//! that any part of a script is a script; shrinking requires this. The `Debug` form is Rust code for a test.

/// A path below the top directory with one or two components; the empty path is the top directory.
pub type Name = &'static str;

/// The number of files that a script can hold open at a time.
pub const SLOTS: u8 = 3;

/// The number of extended attributes that a file can have.
pub const XATTRS: u8 = 3;

/// The file that an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On<'a> {
    /// The file of this name; symbolic links are not followed.
    At(&'a str),
    /// The file open in this slot, with or without a name.
    Open(u8),
}

/// The type of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Through the caches.
    Plain,
    /// At the end of the file.
    Append,
    /// Direct I/O, where the caller supports it.
    Direct,
    /// Durable when it returns.
    Sync,
}

/// An operation on a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Allocates, and extends the file.
    Allocate,
    /// Allocates, and keeps the size.
    Keep,
    /// Punches a hole.
    Punch,
    /// Zeroes the range.
    Zero,
    /// Removes the range.
    Collapse,
    /// Inserts a hole.
    Insert,
}

/// How a rename treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Replaces it.
    Replace,
    /// Fails.
    Refuse,
    /// Exchanges the two names.
    Exchange,
}

/// One operation. `info` requests change info, where the subject supports it: the directory's values for a
/// namespace change, the file's values for a change of an extended attribute. A removal or rename then also
/// checks that the name still refers to the expected file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Create {
        path: Name,
        kind: Kind,
        info: bool,
    },
    /// Creates a file with permission bits and a size (a hole).
    Born {
        path: Name,
        perm: u32,
        size: u32,
        info: bool,
    },
    Remove {
        path: Name,
        info: bool,
    },
    Rename {
        from: Name,
        to: Name,
        over: Over,
        info: bool,
    },
    Link {
        from: Name,
        to: Name,
        info: bool,
    },
    /// Opens a file for reading and writing.
    Open {
        slot: u8,
        path: Name,
    },
    Close {
        slot: u8,
    },
    Write {
        on: On<'static>,
        at: u32,
        len: u32,
        byte: u8,
        how: How,
    },
    Truncate {
        on: On<'static>,
        size: u32,
    },
    Range {
        on: On<'static>,
        space: Space,
        at: u32,
        len: u32,
    },
    /// Maps a file, shared and writable; the mapping outlives its descriptor.
    Map {
        slot: u8,
        path: Name,
    },
    /// Stores a byte through a mapping.
    Store {
        slot: u8,
        at: u32,
        byte: u8,
    },
    Unmap {
        slot: u8,
    },
    Chmod {
        on: On<'static>,
        perm: u32,
    },
    Chown {
        on: On<'static>,
        uid: u32,
        gid: u32,
    },
    /// Sets access and modification time; `None`: to their current values.
    Times {
        on: On<'static>,
        sec: Option<i64>,
    },
    SetXattr {
        on: On<'static>,
        nth: u8,
        len: u32,
        byte: u8,
        info: bool,
    },
    RemoveXattr {
        on: On<'static>,
        nth: u8,
        info: bool,
    },
    /// Sets an access ACL with a named user and this mask.
    SetAcl {
        on: On<'static>,
        mask: u32,
    },
    RemoveAcl {
        on: On<'static>,
    },
    /// Reads everything and compares it with the model.
    Look {
        on: On<'static>,
    },
    /// Syncs a file (fsync) or the filesystem.
    Sync {
        on: Option<On<'static>>,
    },
    /// Drops everything that caches can drop.
    Evict,
    /// Unmounts cleanly and mounts again.
    Remount,
    /// Replaces the snapshot of the top directory by a new one, compares the two, and changes the snapshot if
    /// it is not read-only. The top directory does not change.
    Snapshot {
        read_only: bool,
    },
    /// Queries the change attribute.
    Query {
        on: On<'static>,
    },
}

impl Op {
    /// Returns the paths that the operation names.
    pub(crate) fn paths(&self) -> Vec<Name> {
        match *self {
            Op::Create { path, .. }
            | Op::Born { path, .. }
            | Op::Remove { path, .. }
            | Op::Open { path, .. }
            | Op::Map { path, .. } => vec![path],
            Op::Rename { from, to, .. } | Op::Link { from, to, .. } => vec![from, to],
            _ => match self.on() {
                Some(On::At(path)) => vec![path],
                _ => Vec::new(),
            },
        }
    }

    /// Returns the file of an operation that is not about names.
    pub(crate) fn on(&self) -> Option<On<'static>> {
        match *self {
            Op::Write { on, .. }
            | Op::Truncate { on, .. }
            | Op::Range { on, .. }
            | Op::Chmod { on, .. }
            | Op::Chown { on, .. }
            | Op::Times { on, .. }
            | Op::SetXattr { on, .. }
            | Op::RemoveXattr { on, .. }
            | Op::SetAcl { on, .. }
            | Op::RemoveAcl { on }
            | Op::Look { on }
            | Op::Query { on } => Some(on),
            Op::Sync { on } => on,
            Op::Create { .. }
            | Op::Born { .. }
            | Op::Remove { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Open { .. }
            | Op::Close { .. }
            | Op::Map { .. }
            | Op::Store { .. }
            | Op::Unmap { .. }
            | Op::Evict
            | Op::Remount
            | Op::Snapshot { .. } => None,
        }
    }

    /// Returns whether the operation needs attributes that formats like FAT do not store: permission bits,
    /// owners, links, extended attributes.
    pub fn needs_modes(&self) -> bool {
        matches!(
            self,
            Op::Born { .. }
                | Op::Create { kind: Kind::Symlink, .. }
                | Op::Link { .. }
                | Op::Chmod { .. }
                | Op::Chown { .. }
                | Op::SetXattr { .. }
                | Op::RemoveXattr { .. }
                | Op::SetAcl { .. }
                | Op::RemoveAcl { .. }
        )
    }
}

/// Returns the name of the `nth` extended attribute.
pub fn xattr_name(nth: u8) -> String {
    format!("user.x{nth}")
}

/// The user named by the ACLs of [`Op::SetAcl`].
pub const ACL_USER: u32 = 4321;

/// Returns the value of `system.posix_acl_access` for [`Op::SetAcl`] (acl(5), version 2): all rights for the
/// owner, read for the named user and the group, nothing for others, within the mask.
pub fn acl_value(mask: u32) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let entries = [(1u16, 7u16, u32::MAX), (2, 4, ACL_USER), (4, 4, u32::MAX), (16, mask as u16, u32::MAX)];
    for (tag, perm, id) in entries.into_iter().chain([(32, 0, u32::MAX)]) {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}
