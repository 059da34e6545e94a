//! Writing into an image.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ivers_vfs::{
    CreateSpec, Cred, Error, FileType, InodeRef, NameError, SetAttr, TimeSet, Vfs, WriteFlags, XattrMode,
};

use super::super::stream::{Item, unpacked};
use super::{Target, Xattrs, acls_missing_in};
use crate::failure::usage;
use crate::image::last_name;
use crate::show;

/// Where something is to be in an image.
pub enum Spot {
    /// Under a name.
    Named(InodeRef, Vec<u8>),
    /// A directory that is there.
    Itself(InodeRef),
}

/// An open image, and a place in it.
pub struct Image {
    vfs: Arc<Vfs>,
    /// Reading the same image has this origin.
    origin: u32,
    dir: InodeRef,
    /// The one name in it that is written. `None`: whatever is copied keeps its name.
    name: Option<Vec<u8>>,
    /// That name was written as one of a directory, with a slash behind it.
    only_dir: bool,
    preserve: bool,
}

impl Image {
    /// Copy to this path of an image, which errors call `shown`; `many` things need a directory.
    pub fn new(
        vfs: Arc<Vfs>,
        origin: u32,
        path: &[u8],
        shown: &str,
        many: bool,
        preserve: bool,
    ) -> Result<Self> {
        let cred = Cred::root();
        let found = match vfs.resolve(&cred, path, true) {
            Err(Error::Name(NameError::NotFound)) => None,
            found => Some(found.with_context(|| shown.to_owned())?),
        };
        if let Some(dir) = found.filter(|inode| inode.kind == FileType::Directory) {
            return Ok(Self { vfs, origin, dir, name: None, only_dir: false, preserve });
        }
        if many {
            return Err(usage(format!("{shown}: not a directory")));
        }
        let name = last_name(path).ok_or_else(|| usage(format!("{shown}: not a name")))?;
        let cut = path.windows(name.len()).rposition(|part| part == name).unwrap_or(0);
        let dir = vfs.resolve(&cred, &path[..cut], true).with_context(|| shown.to_owned())?;
        let only_dir = path.ends_with(b"/");
        Ok(Self { name: Some(name.to_vec()), vfs, origin, dir, only_dir, preserve })
    }

    /// The directory that is written to, by number.
    pub fn number(&self) -> (u64, u64) {
        (0, self.dir.ino.0)
    }

    fn find(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        match self.vfs.lookup(&Cred::root(), dir, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, dir: &InodeRef, name: &[u8], item: &Item, kind: FileType) -> Result<InodeRef> {
        let perm = if kind == FileType::Symlink { 0o777 } else { item.perm() & 0o777 };
        let spec = CreateSpec { rdev: item.rdev, target: item.target.clone(), ..CreateSpec::of(kind, perm) };
        Ok(self.vfs.create(&Cred::root(), dir, name, &spec, false)?.0)
    }

    fn keep(&self, inode: &InodeRef, item: &Item, xattrs: &Xattrs) -> Result<()> {
        let cred = Cred::root();
        let owner = SetAttr { uid: Some(item.uid), gid: Some(item.gid), ..SetAttr::default() };
        self.vfs.set_attr(&cred, inode, &owner)?;
        let mut failed = None;
        for (name, value) in xattrs {
            match self.vfs.set_xattr(&cred, inode, name, value, XattrMode::Any) {
                // Another filesystem's own namespaces mean nothing here.
                Ok(()) | Err(Error::Name(NameError::NotSupported | NameError::NotPermitted)) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {}: {error}", show::name(name)))),
            }
        }
        for acl in acls_missing_in(xattrs) {
            match self.vfs.remove_xattr(&cred, inode, acl) {
                Ok(()) | Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {acl}: {error}"))),
            }
        }
        // Behind the owner, who takes set-id bits away, and behind the ACL, whose mask is in the mode.
        let rest = SetAttr {
            perm: (inode.kind != FileType::Symlink).then_some(item.perm()),
            atime: Some(TimeSet::At(unpacked(item.atime))),
            mtime: Some(TimeSet::At(unpacked(item.mtime))),
            ..SetAttr::default()
        };
        self.vfs.set_attr(&cred, inode, &rest)?;
        failed.map_or(Ok(()), Err)
    }
}

impl Target for Image {
    type Spot = Spot;
    type Made = InodeRef;

    fn place(&self, name: Option<&[u8]>) -> Result<Spot> {
        Ok(match self.name.as_deref().or(name) {
            Some(name) => Spot::Named(self.dir.clone(), name.to_vec()),
            None => Spot::Itself(self.dir.clone()),
        })
    }

    fn below(&self, dir: &InodeRef, name: &[u8]) -> Spot {
        Spot::Named(dir.clone(), name.to_vec())
    }

    fn make(&self, spot: Spot, item: &Item, origin: u32) -> Result<InodeRef> {
        let kind = item.kind()?;
        let (dir, name) = match spot {
            Spot::Itself(dir) if kind == FileType::Directory => return Ok(dir),
            Spot::Itself(_) => return Err(anyhow!("has no name to copy under")),
            Spot::Named(dir, name) => (dir, name),
        };
        let is_named = dir.ino == self.dir.ino && self.name.as_ref() == Some(&name);
        if is_named && self.only_dir && kind != FileType::Directory {
            return Err(Error::from(NameError::NotDirectory)).with_context(|| show::name(&name));
        }
        let cred = Cred::root();
        let Some(found) = self.find(&dir, &name)? else { return self.create(&dir, &name, item, kind) };
        if origin == self.origin && found.kind != FileType::Directory && (0, found.ino.0) == item.number {
            return Err(anyhow!("is the file to copy to"));
        }
        match (kind, found.kind) {
            (FileType::Directory, FileType::Directory) => Ok(found),
            (FileType::Directory, other) | (_, other @ FileType::Directory) => {
                Err(anyhow!("exists and is a {}", show::kind(other)))
            }
            (FileType::Regular, FileType::Regular) => {
                self.vfs.set_attr(&cred, &found, &SetAttr { size: Some(0), ..SetAttr::default() })?;
                Ok(found)
            }
            _ => {
                self.vfs.unlink(&cred, &dir, &name, false)?;
                self.create(&dir, &name, item, kind)
            }
        }
    }

    fn write(&self, inode: &InodeRef, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            done += self.vfs.write(&Cred::root(), inode, at, &bytes[done..], WriteFlags::empty())?;
        }
        Ok(())
    }

    fn finish(&self, inode: &InodeRef, item: &Item, size: u64, xattrs: &Xattrs) -> Result<()> {
        if inode.kind == FileType::Regular {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.vfs.set_attr(&Cred::root(), inode, &set)?;
        }
        if self.preserve { self.keep(inode, item, xattrs) } else { Ok(()) }
    }

    fn link(&self, spot: Spot, inode: &InodeRef) -> Result<()> {
        let Spot::Named(dir, name) = spot else { return Err(anyhow!("has no name to copy under")) };
        let cred = Cred::root();
        match self.find(&dir, &name)? {
            Some(found) if found.ino == inode.ino => return Ok(()),
            Some(found) if found.kind == FileType::Directory => {
                return Err(anyhow!("exists and is a directory"));
            }
            Some(_) => drop(self.vfs.unlink(&cred, &dir, &name, false)?),
            None => {}
        }
        self.vfs.link(&cred, inode, &dir, &name, false)?;
        Ok(())
    }

    fn remember(&self, inode: &InodeRef) -> InodeRef {
        inode.clone()
    }
}
