//! Snapshots of the top directory, which is a subvolume where there are subvolumes.
//!
//! A snapshot must not change its source: the model knows nothing of it, so each later look and query of the
//! source tests this. Here the copies are compared, and changed.

use crate::inprocess::{InProcess, TOP, refused};
use crate::subject::{Refused, Result};
use ivers_vfs::*;
use std::ops::ControlFlow;

const SNAPSHOT: &[u8] = b"snapshot";

fn differs(path: &str, what: impl std::fmt::Debug) -> Refused {
    Refused::Error(format!("{path} and its copy in a new snapshot differ: {what:?}"))
}

fn names(vfs: &Vfs, dir: &InodeRef) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    })
    .map_err(refused)?;
    names.sort();
    Ok(names)
}

fn contents(vfs: &Vfs, file: &InodeRef) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.size() as usize];
    vfs.read(&Cred::root(), file, 0, &mut bytes).map_err(refused)?;
    Ok(bytes)
}

/// Compares a file with its copy, and all below it. The copy is a file of its own, whose value starts where
/// that of the source stands. Nothing is queried.
fn compare(vfs: &Vfs, path: &str, source: &InodeRef, copy: &InodeRef) -> Result<()> {
    let of = |inode: &InodeRef| {
        let Attr { perm, nlink, uid, gid, mtime, ctime, size, .. } = inode.attr();
        (inode.kind, perm, nlink, uid, gid, mtime, ctime, size)
    };
    if of(source) != of(copy) || source.ino == copy.ino {
        return Err(differs(path, (of(source), of(copy))));
    }
    let values = (source.counter.peek(), copy.counter.peek());
    // A snapshot is a new root, whose directory changes with it.
    if values.0 != values.1 && path != TOP {
        return Err(differs(path, values));
    }
    match source.kind {
        FileType::Regular if contents(vfs, source)? != contents(vfs, copy)? => Err(differs(path, "contents")),
        FileType::Directory => {
            let found = names(vfs, source)?;
            if found != names(vfs, copy)? {
                return Err(differs(path, found));
            }
            found.iter().try_for_each(|name| {
                let find = |dir| vfs.lookup(&Cred::root(), dir, name).map_err(refused);
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                compare(vfs, &path, &find(source)?, &find(copy)?)
            })
        }
        _ => Ok(()),
    }
}

/// Changes all files of a snapshot, and removes the last name of each directory. Each change must show.
fn change(vfs: &Vfs, dir: &InodeRef) -> Result<()> {
    let cred = Cred::root();
    let found = names(vfs, dir)?;
    for name in &found {
        let file = vfs.lookup(&cred, dir, name).map_err(refused)?;
        let before = vfs.change(&file);
        match file.kind {
            FileType::Directory => change(vfs, &file)?,
            FileType::Regular => {
                vfs.write(&cred, &file, 5000, b"changed", WriteFlags::empty()).map_err(refused)?;
                if before.is_some() && vfs.change(&file) == before {
                    return Err(Refused::Error("a copy changed, but not its value".into()));
                }
            }
            _ => {}
        }
    }
    let Some(last) = found.last() else { return Ok(()) };
    let before = vfs.change(dir);
    let file = vfs.lookup(&cred, dir, last).map_err(refused)?;
    if file.kind == FileType::Directory {
        return Ok(());
    }
    drop(file);
    vfs.unlink(&cred, dir, last, false).map_err(refused)?;
    match before.is_some() && vfs.change(dir) == before {
        true => Err(Refused::Error("a directory of a snapshot changed, but not its value".into())),
        false => Ok(()),
    }
}

impl InProcess {
    /// Performs [`Op::Snapshot`](crate::Op::Snapshot).
    pub(crate) fn snapshot(&mut self, read_only: bool) -> Result<()> {
        let (vfs, cred) = (self.vfs(), Cred::root());
        if vfs.fs().subvolumes().is_none() {
            return Err(Refused::Unsupported);
        }
        let root = vfs.root().map_err(refused)?;
        if vfs.lookup(&cred, &root, SNAPSHOT).is_ok() {
            vfs.delete_subvolume(&cred, &root, SNAPSHOT).map_err(refused)?;
        }
        let source = vfs.lookup(&cred, &root, TOP.as_bytes()).map_err(refused)?;
        vfs.snapshot_subvolume(&cred, &source, &root, SNAPSHOT, read_only).map_err(refused)?;
        let copy = vfs.lookup(&cred, &root, SNAPSHOT).map_err(refused)?;
        compare(vfs, TOP, &source, &copy)?;
        match (read_only, vfs.create(&cred, &copy, b"new", &CreateSpec::file(0o600), false)) {
            (false, Ok(_)) => change(vfs, &copy),
            (true, Err(Error::Name(NameError::ReadOnly))) => Ok(()),
            (_, made) => Err(Refused::Error(format!("a new file in a snapshot: {:?}", made.err()))),
        }
    }
}
