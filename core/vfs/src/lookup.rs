//! Looking up names, resolving paths, reading directories.

use crate::access::EXECUTE;
use crate::driver::{Child, InitialCounter};
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::requests::Cred;
use crate::sync::RankedReadGuard;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::ops::ControlFlow;

const MAX_SYMLINKS: u32 = 40;
/// Entries that are read under one hold of the directory's lock.
const READDIR_BATCH: usize = 512;
/// How often an inode may leave memory between its lookup and its use before this counts as corruption.
const MOST_NUMBERS: usize = 16;

struct Entry {
    ino: Ino,
    name: Vec<u8>,
    kind: Option<FileType>,
    next: u64,
}

impl From<&DirEntry<'_>> for Entry {
    fn from(entry: &DirEntry<'_>) -> Self {
        Self { ino: entry.ino, name: entry.name.to_vec(), kind: entry.kind, next: entry.next }
    }
}

/// A directory entry, with its inode.
#[derive(Debug)]
pub struct Listed {
    /// The inode number in the directory.
    pub ino: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The type in the directory, where the format stores it.
    pub kind: Option<FileType>,
    /// The cursor after this entry.
    pub next: u64,
    /// The inode that it refers to.
    pub inode: Result<InodeRef>,
}

impl Vfs {
    /// The inode number that a directory has for a name. The caller holds some lock of the directory.
    pub(crate) fn find(&self, cred: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        Ok(self.find_child(cred, dir, name)?.map(|(ino, _)| ino))
    }

    /// [`Vfs::find`], with the inode if the driver returned it.
    fn find_child(&self, cred: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<(Ino, Option<InodeRef>)>> {
        if let Some(known) = self.names.get(dir, name) {
            return Ok(known.map(|ino| (ino, None)));
        }
        // Before the lookup: a directory that changes meanwhile has another counter afterwards.
        let stamp = self.names.stamp(dir);
        let child = self.fs.lookup(cred, dir, name)?;
        self.names.put_stamped(dir, name, child.as_ref().map(Child::ino), stamp);
        Ok(match child {
            None => None,
            // A local inode may be changed and evicted between its lookup and here: load it by number.
            Some(Child::Inode(loaded)) if matches!(loaded.counter, InitialCounter::Server(_)) => {
                Some((loaded.ino, Some(self.insert_loaded(loaded)?)))
            }
            Some(child) => Some((child.ino(), None)),
        })
    }

    /// The inode that a name refers to now, if any.
    pub(crate) fn find_ref(&self, cred: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<InodeRef>> {
        let _names = self.names_lock(dir)?;
        match self.find_child(cred, dir, name)? {
            None => Ok(None),
            Some((_, Some(inode))) => Ok(Some(inode)),
            Some((ino, None)) => self.named(cred, dir, name, ino).map(Some),
        }
    }

    /// The shared lock under which names are read. There is none where a server keeps its names consistent:
    /// nobody waits for a round trip.
    pub(crate) fn names_lock<'a>(&self, dir: &'a Inode) -> Result<Option<RankedReadGuard<'a, ()>>> {
        match self.fs.server() {
            Some(_) => self.alive().map(|()| None),
            None => self.shared(dir).map(Some),
        }
    }

    /// The inode that a name refers to. The caller holds some lock of the directory, so the name cannot be
    /// removed, and its inode number cannot be reused.
    pub(crate) fn named(&self, cred: &Cred, dir: &Inode, name: &[u8], ino: Ino) -> Result<InodeRef> {
        let inode = self.numbered(dir, ino, || {
            self.names.invalidate(dir.ino, name);
            self.find_child(cred, dir, name)
        });
        inode.inspect(|inode| self.names.path_hints.note(inode.ino, dir.ino, name))
    }

    /// The parent of a locked directory.
    pub(crate) fn parent(&self, cred: &Cred, dir: &Inode) -> Result<InodeRef> {
        self.numbered(dir, self.fs.parent(cred, dir)?, || Ok(Some((self.fs.parent(cred, dir)?, None))))
    }

    /// The inode that `..` refers to in a locked directory.
    fn above(&self, cred: &Cred, dir: &InodeRef) -> Result<InodeRef> {
        if dir.ino == self.info.root { Ok(dir.clone()) } else { self.parent(cred, dir) }
    }

    /// The inode that a directory refers to by number. A number that exists only in memory may be gone. Then
    /// `again` returns the current number, or the inode itself, which cannot be evicted before it is used.
    fn numbered(
        &self,
        dir: &Inode,
        ino: Ino,
        again: impl Fn() -> Result<Option<(Ino, Option<InodeRef>)>>,
    ) -> Result<InodeRef> {
        let mut asked = ino;
        for _ in 0..MOST_NUMBERS {
            match self.get(asked) {
                Err(Error::Name(NameError::Stale)) => match again()? {
                    Some((_, Some(inode))) => return Ok(inode),
                    // Another thread may have cached a server's number again before it was evicted.
                    Some((other, None)) if other != asked || self.fs.server().is_some() => asked = other,
                    _ => break,
                },
                other => return other,
            }
        }
        Err(Error::corrupt(
            format!("a name refers to inode {asked}, which is not in use"),
            format!("directory inode {}", dir.ino),
        ))
    }

    pub(crate) fn check_name(&self, name: &[u8]) -> Result<()> {
        if name.len() > self.info.name_max as usize {
            return Err(NameError::NameTooLong.into());
        }
        if name.is_empty() {
            return Err(NameError::NotFound.into());
        }
        if name.contains(&b'/') || name.contains(&0) {
            return Err(NameError::Invalid.into());
        }
        Ok(())
    }

    /// The inode that a name in a directory refers to, including `.` and `..`.
    pub fn lookup(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.reclaim();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.check_name(name)?;
        self.access(cred, dir, EXECUTE)?;
        if name == b"." {
            return Ok(dir.clone());
        }
        self.revalidate(cred, dir)?;
        if name == b".." {
            let _names = self.names_lock(dir)?;
            return self.above(cred, dir);
        }
        self.find_ref(cred, dir, name)?.ok_or(NameError::NotFound.into())
    }

    /// Checks that a name still refers to the inode that the caller found under it ([`NameError::Changed`] if
    /// not). Returns the directory's change attribute at that moment, as before and after.
    pub fn revalidate_name(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        inode: &InodeRef,
    ) -> Result<Option<ChangeInfo>> {
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.access(cred, dir, EXECUTE)?;
        self.revalidate(cred, dir)?;
        let _names = self.names_lock(dir)?;
        if self.find(cred, dir, name)? != Some(inode.ino) {
            return Err(NameError::Changed.into());
        }
        Ok(self.change(dir).map(|value| ChangeInfo { before: value, after: value }))
    }

    /// The inode at a path, starting at the root. Symbolic links are followed inside the image, the last
    /// component only if `follow_last`.
    pub fn resolve(&self, cred: &Cred, path: impl AsRef<[u8]>, follow_last: bool) -> Result<InodeRef> {
        let mut at = self.root()?;
        // Remaining components, the next one last.
        let mut rest: Vec<Vec<u8>> = components(path.as_ref());
        let trailing_slash = path.as_ref().ends_with(b"/");
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let next = self.lookup(cred, &at, &name)?;
            let is_last = rest.is_empty();
            if next.kind == FileType::Symlink && (!is_last || follow_last || trailing_slash) {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(NameError::Loop.into());
                }
                let target = self.read_link(cred, &next)?;
                if target.is_empty() {
                    return Err(NameError::NotFound.into());
                }
                if target.first() == Some(&b'/') {
                    at = self.root()?;
                }
                rest.extend(components(&target));
                continue;
            }
            at = next;
        }
        if trailing_slash && at.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        Ok(at)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, cred: &Cred, inode: &InodeRef) -> Result<Vec<u8>> {
        if inode.kind != FileType::Symlink {
            return Err(NameError::Invalid.into());
        }
        let target = {
            let _lock = self.shared(inode)?;
            self.fs.read_link(cred, inode)?
        };
        self.accessed(inode);
        Ok(target)
    }

    /// Up to `most` entries of a directory from a cursor (0: the start), without `.` and `..`, each with its
    /// inode. They are resolved under the directory's lock, so that no entry gets an inode that reused its
    /// number. Empty at the end.
    pub fn list(&self, cred: &Cred, dir: &InodeRef, cursor: u64, most: usize) -> Result<Vec<Listed>> {
        let mut taken = 0;
        self.list_until(cred, dir, cursor, false, &mut |_| {
            taken += 1;
            taken >= most
        })
    }

    /// [`Vfs::list`] with `.` and `..` if `dots`. `enough` gets each name and returns whether it is the last.
    /// It runs under locks and must not call the VFS.
    pub fn list_until(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        cursor: u64,
        dots: bool,
        enough: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Vec<Listed>> {
        self.reclaim();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.accessed(dir);
        let mut entries = Vec::new();
        let _names = self.names_lock(dir)?;
        self.fs.readdir(cred, dir, cursor, &mut |entry| {
            if !dots && matches!(entry.name, b"." | b"..") {
                return ControlFlow::Continue(());
            }
            entries.push(Entry::from(entry));
            if enough(entry.name) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // After the driver has returned: it may hold its own locks while it emits.
        let resolved = |Entry { ino, name, kind, next }: Entry| {
            let inode = match &*name {
                b"." => Ok(dir.clone()),
                b".." => self.above(cred, dir),
                _ => self.named(cred, dir, &name, ino),
            };
            Listed { ino, name, kind, next, inode }
        };
        Ok(entries.into_iter().map(resolved).collect())
    }

    /// Emits the entries of a directory, including `.` and `..`, from a cursor (0: the start) until `emit`
    /// breaks. `emit` runs without locks and may call the VFS.
    pub fn readdir(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.reclaim();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        let mut cursor = cursor;
        self.accessed(dir);
        loop {
            let mut batch: Vec<Entry> = Vec::new();
            {
                let _names = self.names_lock(dir)?;
                self.fs.readdir(cred, dir, cursor, &mut |entry| {
                    batch.push(Entry::from(entry));
                    if batch.len() == READDIR_BATCH {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })?;
            }
            for entry in &batch {
                let shown =
                    DirEntry { ino: entry.ino, name: &entry.name, kind: entry.kind, next: entry.next };
                if emit(&shown).is_break() {
                    return Ok(());
                }
                cursor = entry.next;
            }
            if batch.len() < READDIR_BATCH {
                return Ok(());
            }
        }
    }
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> =
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    names.reverse();
    names
}
