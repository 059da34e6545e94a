//! Writing files of an image.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ivers_vfs::{
    CreateSpec, Cred, Error, FileType, InodeRef, NameError, SetAttr, TimeSet, Vfs, WriteFlags, WriteOutcome,
    XattrMode,
};

use super::super::stream::{FileHeader, unpacked};
use super::{Target, Xattrs, acls_missing_in};
use crate::arguments::{join, last_name};
use crate::image::directory::owned_as;
use crate::image::formats::explain_lack;
use crate::image::inode_handle::InodeHandle;
use crate::output::failure::usage;
use crate::output::format;

/// The destination of a file in an image.
#[derive(Clone)]
pub enum Destination {
    /// A name in a directory.
    Named(InodeRef, Vec<u8>),
    /// An existing directory.
    Itself(InodeRef),
}

/// A file that was created or opened.
pub struct Created {
    inode: InodeRef,
    is_new: bool,
}

/// A directory of an open image, or a name in one.
pub struct Image {
    vfs: Arc<Vfs>,
    /// The origin of files that are read from the same image.
    origin: u32,
    dir: InodeRef,
    /// The destination as the user wrote it.
    operand: Vec<u8>,
    /// The name of the copy. `None`: each copy keeps its name.
    name: Option<Vec<u8>>,
    /// The name was given with a trailing slash, so only a directory may have it.
    only_dir: bool,
    preserve: bool,
}

impl Image {
    /// Copies to a path of an image, which the user wrote as `operand`. It must be a directory if `many`
    /// operands are copied.
    pub fn new(
        vfs: Arc<Vfs>,
        origin: u32,
        path: &[u8],
        operand: Vec<u8>,
        many: bool,
        preserve: bool,
    ) -> Result<Self> {
        let cred = Cred::root();
        let shown = || format::name(&operand);
        let found = match vfs.resolve(&cred, path, true) {
            Err(Error::Name(NameError::NotFound)) => None,
            found => Some(found.with_context(shown)?),
        };
        let exists = found.is_some();
        if let Some(dir) = found.filter(|inode| inode.kind == FileType::Directory) {
            return Ok(Self { vfs, origin, dir, operand, name: None, only_dir: false, preserve });
        }
        if many {
            let what = if exists { "not a directory" } else { "no such directory" };
            return Err(usage(format!("{}: {what}, and several files are copied there", shown())));
        }
        let name = last_name(path).ok_or_else(|| usage(format!("{}: not a name", shown())))?;
        let cut = path.windows(name.len()).rposition(|part| part == name).unwrap_or(0);
        let dir = vfs.resolve(&cred, &path[..cut], true).with_context(shown)?;
        let only_dir = path.ends_with(b"/");
        Ok(Self { name: Some(name.to_vec()), vfs, origin, dir, operand, only_dir, preserve })
    }

    /// Identifies the directory that is written to.
    pub fn dir_id(&self) -> (u64, u64) {
        (0, self.dir.ino.0)
    }

    fn find(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        match self.vfs.lookup(&Cred::root(), dir, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Name(NameError::NotFound)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create_at(
        &self,
        dir: &InodeRef,
        name: &[u8],
        header: &FileHeader,
        kind: FileType,
    ) -> Result<InodeRef> {
        let perm = if kind == FileType::Symlink { 0o777 } else { header.perm() & 0o777 };
        let spec =
            CreateSpec { rdev: header.rdev, target: header.target.clone(), ..CreateSpec::of(kind, perm) };
        let created = self.vfs.create(&Cred::root(), dir, name, &owned_as(dir, spec), false);
        Ok(explain_lack(&self.vfs, format::special_files(kind), created)?.0)
    }

    fn open_or_create(
        &self,
        (dir, name): (&InodeRef, &[u8]),
        header: &FileHeader,
        origin: u32,
        found: InodeRef,
    ) -> Result<Created> {
        let kind = header.kind()?;
        let cred = Cred::root();
        if origin == self.origin && found.kind != FileType::Directory && (0, found.ino.0) == header.id {
            return Err(anyhow!("is the file to copy to"));
        }
        match (kind, found.kind) {
            (FileType::Directory, FileType::Directory) => Ok(Created { inode: found, is_new: false }),
            (FileType::Directory, other) | (_, other @ FileType::Directory) => {
                Err(anyhow!("exists and is a {}", format::kind(other)))
            }
            (FileType::Regular, FileType::Regular) => {
                self.vfs.set_attr(&cred, &found, &SetAttr { size: Some(0), ..SetAttr::default() })?;
                Ok(Created { inode: found, is_new: false })
            }
            _ => {
                self.vfs.unlink(&cred, dir, name, false)?;
                Ok(Created { inode: self.create_at(dir, name, header, kind)?, is_new: true })
            }
        }
    }

    fn set_attributes(&self, inode: &InodeRef, header: &FileHeader, xattrs: &Xattrs) -> Result<()> {
        let cred = Cred::root();
        let owner = SetAttr { uid: Some(header.uid), gid: Some(header.gid), ..SetAttr::default() };
        explain_lack(&self.vfs, Some("owners"), self.vfs.set_attr(&cred, inode, &owner))?;
        let mut failed = None;
        for (name, value) in xattrs {
            match self.vfs.set_xattr(&cred, inode, name, value, XattrMode::Any) {
                // Attributes of namespaces that this filesystem lacks are omitted.
                Ok(()) | Err(Error::Name(NameError::NotSupported | NameError::NotPermitted)) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {}: {error}", format::name(name)))),
            }
        }
        for acl in acls_missing_in(xattrs) {
            match self.vfs.remove_xattr(&cred, inode, acl) {
                Ok(()) | Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => {}
                Err(error) => failed = failed.or(Some(anyhow!("attribute {acl}: {error}"))),
            }
        }
        // After the owner, which removes set-id bits, and after the ACL, whose mask is part of the mode.
        let rest = SetAttr {
            perm: (inode.kind != FileType::Symlink).then_some(header.perm()),
            atime: Some(TimeSet::At(unpacked(header.atime))),
            mtime: Some(TimeSet::At(unpacked(header.mtime))),
            ..SetAttr::default()
        };
        self.vfs.set_attr(&cred, inode, &rest)?;
        failed.map_or(Ok(()), Err)
    }
}

impl Target for Image {
    type Destination = Destination;
    type File = Created;
    type Linked = InodeHandle;
    const KEEPS_PARTIAL: bool = true;

    fn destination(&self, name: Option<&[u8]>) -> Result<Destination> {
        Ok(match self.name.as_deref().or(name) {
            Some(name) => Destination::Named(self.dir.clone(), name.to_vec()),
            None => Destination::Itself(self.dir.clone()),
        })
    }

    fn child_destination(&self, dir: &Created, name: &[u8]) -> Destination {
        Destination::Named(dir.inode.clone(), name.to_vec())
    }

    fn create(&self, destination: Destination, header: &FileHeader, origin: u32) -> Result<Created> {
        let kind = header.kind()?;
        let (dir, name) = match destination {
            Destination::Itself(dir) if kind == FileType::Directory => {
                return Ok(Created { inode: dir, is_new: false });
            }
            Destination::Itself(_) => {
                return Err(usage(format!(
                    "has no name to copy under; name the file: {}",
                    format::name(&join(&self.operand, b"NAME"))
                )));
            }
            Destination::Named(dir, name) => (dir, name),
        };
        let found = self.find(&dir, &name)?;
        let is_named = dir.ino == self.dir.ino && self.name.as_ref() == Some(&name);
        if is_named && self.only_dir && kind != FileType::Directory {
            let why = if found.is_some() { NameError::NotDirectory } else { NameError::NotFound };
            return Err(Error::from(why)).with_context(|| format::name(&self.operand));
        }
        match found {
            Some(found) => self.open_or_create((&dir, name.as_slice()), header, origin, found),
            None => Ok(Created { inode: self.create_at(&dir, &name, header, kind)?, is_new: true }),
        }
    }

    fn write(&self, Created { inode, .. }: &Created, offset: u64, bytes: &[u8]) -> Result<()> {
        // Nobody reads them again.
        let flags = WriteFlags::CACHED_BY_CALLER;
        let written = self.vfs.write_with_outcome(&Cred::root(), inode, offset, bytes, flags);
        match written.and_then(WriteOutcome::complete) {
            // The space of data that the host could not take is not free again. That error is the cause.
            Err(Error::Name(NameError::NoSpace)) if self.vfs.writeback_error_seq() > 0 => {
                self.vfs.fsync(inode, false)?;
                Err(Error::Name(NameError::NoSpace).into())
            }
            written => Ok(written.map(drop)?),
        }
    }

    fn finish(&self, created: &Created, header: &FileHeader, size: u64, xattrs: &Xattrs) -> Result<()> {
        let inode = &created.inode;
        if inode.kind == FileType::Regular {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.vfs.set_attr(&Cred::root(), inode, &set)?;
        }
        if self.preserve { self.set_attributes(inode, header, xattrs) } else { Ok(()) }
    }

    fn link(&self, destination: Destination, linked: &InodeHandle) -> Result<()> {
        let inode = linked.get(&self.vfs)?;
        let Destination::Named(dir, name) = destination else {
            return Err(anyhow!("has no name to copy under"));
        };
        let cred = Cred::root();
        match self.find(&dir, &name)? {
            Some(found) if found.ino == inode.ino => return Ok(()),
            Some(found) if found.kind == FileType::Directory => {
                return Err(anyhow!("exists and is a directory"));
            }
            Some(_) => drop(self.vfs.unlink(&cred, &dir, &name, false)?),
            None => {}
        }
        let linked = self.vfs.link(&cred, &inode, &dir, &name, false);
        explain_lack(&self.vfs, Some("hard links"), linked).map(drop)
    }

    fn existing(&self, name: Option<&[u8]>, below: &[Vec<u8>]) -> Option<FileType> {
        let mut inode = match self.destination(name).ok()? {
            Destination::Itself(dir) => dir,
            Destination::Named(dir, name) => self.find(&dir, &name).ok()??,
        };
        for name in below {
            if inode.kind != FileType::Directory {
                return None;
            }
            inode = self.find(&inode, name).ok()??;
        }
        Some(inode.kind)
    }

    fn destination_path(&self, name: Option<&[u8]>) -> Vec<u8> {
        match name.filter(|_| self.name.is_none()) {
            Some(name) => join(&self.operand, name),
            None => self.operand.clone(),
        }
    }

    fn abandon(&self, destination: &Destination, created: &Created) -> bool {
        let Destination::Named(dir, name) = destination else { return false };
        created.is_new && self.vfs.unlink(&Cred::root(), dir, name, false).is_ok()
    }

    fn remember(&self, Created { inode, .. }: &Created) -> InodeHandle {
        InodeHandle::new(&self.vfs, inode)
    }
}
