//! From names to inodes.

use crate::access::EXECUTE;
use crate::api::Cred;
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::ops::ControlFlow;

const MAX_SYMLINKS: u32 = 40;
/// Entries that one hold of the directory's lock collects.
const READDIR_BATCH: usize = 512;
/// How often an inode may leave memory between the finding of its number and its use.
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

/// An entry of a directory, with what it stands for.
#[derive(Debug)]
pub struct Listed {
    /// The inode number that the directory gives.
    pub ino: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// What the directory says that it is, where it says so.
    pub kind: Option<FileType>,
    /// Where to go on behind it.
    pub next: u64,
    /// What it stands for.
    pub inode: Result<InodeRef>,
}

impl Vfs {
    /// What a directory says about a name; some lock of the directory is held.
    pub(crate) fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        if let Some(known) = self.names.get(dir, name) {
            return Ok(known);
        }
        let found = self.fs.lookup(dir, name)?;
        self.names.put(dir, name, found);
        Ok(found)
    }

    /// The inode that a name in a directory stands for. Some lock of the directory is held: the name cannot go, and so its inode cannot be
    /// deleted or its number be used again.
    pub(crate) fn named(&self, dir: &Inode, name: &[u8], ino: Ino) -> Result<InodeRef> {
        let inode = self.numbered(dir, ino, || {
            self.names.doubt(dir.ino, name);
            self.find(dir, name)
        });
        inode.inspect(|inode| self.names.places.note(inode.ino, dir.ino, name))
    }

    /// The directory that a directory is in, which is locked.
    pub(crate) fn parent(&self, dir: &Inode) -> Result<InodeRef> {
        self.numbered(dir, self.fs.parent(dir)?, || self.fs.parent(dir).map(Some))
    }

    /// What `..` stands for in a directory, which is locked.
    fn above(&self, dir: &InodeRef) -> Result<InodeRef> {
        if dir.ino == self.info.root { Ok(dir.clone()) } else { self.parent(dir) }
    }

    /// An inode that a directory leads to. Where numbers are given in memory, one that was remembered may have left it: then `again` says by which it goes now.
    fn numbered(&self, dir: &Inode, ino: Ino, again: impl Fn() -> Result<Option<Ino>>) -> Result<InodeRef> {
        let mut asked = ino;
        for _ in 0..MOST_NUMBERS {
            match self.get(asked) {
                Err(Error::Name(NameError::Stale)) => match again()? {
                    Some(other) if other != asked => asked = other,
                    _ => break,
                },
                other => return other,
            }
        }
        Err(Error::corrupt(
            format!("a name leads to inode {asked}, which is no file in use"),
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

    /// The inode that a name in a directory stands for; `.` and `..` too.
    pub fn lookup(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.balance();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.check_name(name)?;
        self.access(cred, dir, EXECUTE)?;
        if name == b"." {
            return Ok(dir.clone());
        }
        let _names = self.shared(dir)?;
        if name == b".." {
            return self.above(dir);
        }
        match self.find(dir, name)? {
            Some(ino) => self.named(dir, name, ino),
            None => Err(NameError::NotFound.into()),
        }
    }

    /// Whether a name in a directory still stands for what the caller has found under it ([`NameError::Changed`] if not), and the directory's value at that
    /// moment, before and after alike: it vouches for the name.
    pub fn confirm(
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
        let _names = self.shared(dir)?;
        if self.find(dir, name)? != Some(inode.ino) {
            return Err(NameError::Changed.into());
        }
        Ok(self.change(dir).map(|value| ChangeInfo { before: value, after: value }))
    }

    /// The inode that a path names, starting at the root; symbolic links are followed inside the image. The last component is
    /// followed if `follow_last` says so.
    pub fn resolve(&self, cred: &Cred, path: impl AsRef<[u8]>, follow_last: bool) -> Result<InodeRef> {
        let mut at = self.root()?;
        // Components still to go, the next one last.
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
                let target = self.read_link(&next)?;
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
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        if inode.kind != FileType::Symlink {
            return Err(NameError::Invalid.into());
        }
        let target = {
            let _lock = self.shared(inode)?;
            self.fs.read_link(inode)?
        };
        self.accessed(inode);
        Ok(target)
    }

    /// Up to `most` entries of a directory from a cursor on (0: the start), `.` and `..` left out, each with what it stands for: resolved under the directory's
    /// lock, so that no stranger is among them who has taken over a number. Nothing: there are no more.
    pub fn list(&self, dir: &InodeRef, cursor: u64, most: usize) -> Result<Vec<Listed>> {
        let mut taken = 0;
        self.list_until(dir, cursor, false, &mut |_| {
            taken += 1;
            taken >= most
        })
    }

    /// As [`Vfs::list`], with `.` and `..` if `dots` are wanted: `enough` is told each name, and says whether it is the last. It runs under locks: it must not
    /// call the VFS.
    pub fn list_until(
        &self,
        dir: &InodeRef,
        cursor: u64,
        dots: bool,
        enough: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Vec<Listed>> {
        self.balance();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.accessed(dir);
        let mut entries = Vec::new();
        let _names = self.shared(dir)?;
        self.fs.readdir(dir, cursor, &mut |entry| {
            if !dots && matches!(entry.name, b"." | b"..") {
                return ControlFlow::Continue(());
            }
            entries.push(Entry::from(entry));
            if enough(entry.name) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // Behind the driver's back: it may hold locks of its own while it emits.
        let resolved = |Entry { ino, name, kind, next }: Entry| {
            let inode = match &*name {
                b"." => Ok(dir.clone()),
                b".." => self.above(dir),
                _ => self.named(dir, &name, ino),
            };
            Listed { ino, name, kind, next, inode }
        };
        Ok(entries.into_iter().map(resolved).collect())
    }

    /// Emit the entries of a directory, `.` and `..` included, from a cursor on (0: the start) until `emit` breaks. `emit` runs
    /// without locks: it may call the VFS.
    pub fn readdir(
        &self,
        dir: &InodeRef,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.balance();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        let mut cursor = cursor;
        self.accessed(dir);
        loop {
            let mut batch: Vec<Entry> = Vec::new();
            {
                let _names = self.shared(dir)?;
                self.fs.readdir(dir, cursor, &mut |entry| {
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
