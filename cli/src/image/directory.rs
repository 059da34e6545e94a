//! Looking up and listing files of an open image, with the rights of root.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use ivers_vfs::{CreateSpec, Cred, InodeRef, Vfs, access};

use super::sorted_names::{SortedNames, Unsorted};
use crate::arguments::image_path;
use crate::output::format;

/// Looks up a path. `follow`: follows a symbolic link at its end.
pub fn resolve(vfs: &Vfs, image: &Path, path: &[u8], follow: bool) -> Result<InodeRef> {
    vfs.resolve(&Cred::root(), path, follow).with_context(|| image_path(image, path))
}

/// Reads the names in a directory, without `.` and `..`.
pub fn names(vfs: &Vfs, dir: &InodeRef) -> Result<SortedNames> {
    // As open(2) does: a server answers in one request what may be done and which names there are.
    if dir.is_server_managed() {
        vfs.access(&Cred::root(), dir, access::READ)?;
    }
    let mut names = Unsorted::default();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name);
        }
        ControlFlow::Continue(())
    })?;
    Ok(names.sort())
}

/// Looks up a name in a directory.
pub fn child(vfs: &Vfs, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
    vfs.lookup(&Cred::root(), dir, name).with_context(|| format::name(name))
}

/// Gives a new file the owner and the group of `dir`. In an image, commands work with the rights of root, but
/// a new file belongs to the owner of its directory. On a server, commands work with the rights of the
/// calling user, and the new file belongs to that user.
pub fn owned_as(dir: &InodeRef, spec: CreateSpec) -> CreateSpec {
    if dir.is_server_managed() {
        return spec;
    }
    let (uid, gid) = dir.with_attr(|attr| (attr.uid, attr.gid));
    CreateSpec { uid: Some(uid), gid: Some(gid), ..spec }
}

/// A name in a directory and its inode, or why that cannot be read.
pub type Entry = (Vec<u8>, Result<InodeRef>);

/// The entries of a directory that were not taken yet, sorted by name. Only the names are in memory.
pub struct Entries<'a> {
    vfs: &'a Vfs,
    dir: &'a InodeRef,
    names: SortedNames,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let name = self.names.remove_first()?;
        let inode = child(self.vfs, self.dir, &name);
        Some((name, inode))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.names.len(), Some(self.names.len()))
    }
}

impl ExactSizeIterator for Entries<'_> {}

/// Lists a directory, without `.` and `..`.
pub fn entries<'a>(vfs: &'a Vfs, dir: &'a InodeRef) -> Result<Entries<'a>> {
    Ok(Entries { vfs, dir, names: names(vfs, dir)? })
}
