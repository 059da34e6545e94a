//! What can be done to a subject. An operation names files, never results of earlier operations: any part of a script is a
//! script, which is what shrinking needs. The `Debug` form is Rust and can be pasted into a test.

/// A path below the top directory: one or two components; the empty one is the top directory itself.
pub type Name = &'static str;

/// Open files that a script may hold at a time.
pub const SLOTS: u8 = 3;

/// Extended attributes that a file may have.
pub const XATTRS: u8 = 3;

/// Which file is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On<'a> {
    /// The one of this name; symbolic links are not followed.
    At(&'a str),
    /// The one that this slot holds open, with or without a name.
    Open(u8),
}

/// What to make.
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
    /// At the end, wherever that is.
    Append,
    /// Past the page cache, where the caller can.
    Direct,
    /// Durable when it returns.
    Sync,
}

/// What to do with a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Allocate, growing the file.
    Allocate,
    /// Allocate, the size stays.
    Keep,
    /// Punch a hole.
    Punch,
    /// Make it zeros.
    Zero,
    /// Take it out.
    Collapse,
    /// Open a gap.
    Insert,
}

/// What a rename does with a name that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Replaces it.
    Replace,
    /// Fails.
    Refuse,
    /// Swaps the two.
    Exchange,
}

/// One operation. `info` asks a namespace change for the directory's values before and after, where the subject can; a change of an extended attribute for
/// those of its bearer. What is removed or renamed then has to be what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Create {
        path: Name,
        kind: Kind,
        info: bool,
    },
    /// Make a file that has its permission bits and its size (a hole) from the start.
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
    /// Hold a file open for reading and writing.
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
    /// Map a file, shared and writable; the mapping outlives its descriptor.
    Map {
        slot: u8,
        path: Name,
    },
    /// Store a byte through a mapping.
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
    /// Set access and modification time; none: to what they are.
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
    /// An access ACL with a named user and this mask.
    SetAcl {
        on: On<'static>,
        mask: u32,
    },
    RemoveAcl {
        on: On<'static>,
    },
    /// Read everything and compare with the model.
    Look {
        on: On<'static>,
    },
    /// fsync, or sync of the filesystem.
    Sync {
        on: Option<On<'static>>,
    },
    /// Drop what caches can drop.
    Evict,
    /// Unmount in good order and mount again.
    Remount,
    /// Ask for the change attribute.
    Query {
        on: On<'static>,
    },
}

impl Op {
    /// Whether it is about what formats like FAT keep of no file: permission bits, owners, links, attributes.
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

/// The name of the `nth` extended attribute.
pub fn xattr_name(nth: u8) -> String {
    format!("user.x{nth}")
}

/// The user whom ACLs of [`Op::SetAcl`] name.
pub const ACL_USER: u32 = 4321;

/// The value of `system.posix_acl_access` for [`Op::SetAcl`] (acl(5), version 2): the owner may all, the named user and the group
/// may read, the others nothing, within the mask.
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
