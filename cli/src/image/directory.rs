//! Looking up and listing files of an open image, with the rights of root.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use ivers_vfs::{Cred, InodeRef, Vfs};

use crate::arguments::image_path;
use crate::output::format;

/// Looks up a path. `follow`: follows a symbolic link at its end.
pub fn resolve(vfs: &Vfs, image: &Path, path: &[u8], follow: bool) -> Result<InodeRef> {
    vfs.resolve(&Cred::root(), path, follow).with_context(|| image_path(image, path))
}

/// A name in a directory and its inode, or why that cannot be read.
pub type Entry = (Vec<u8>, Result<InodeRef>);

/// Lists a directory sorted by name, without `.` and `..`.
pub fn entries(vfs: &Vfs, dir: &InodeRef) -> Result<Vec<Entry>> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    names.sort();
    let cred = Cred::root();
    let lookup = |name: Vec<u8>| {
        let inode = vfs.lookup(&cred, dir, &name).with_context(|| format::name(&name));
        (name, inode)
    };
    Ok(names.into_iter().map(lookup).collect())
}
