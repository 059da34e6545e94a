//! The current filehandle.

use std::sync::Arc;

use ivers_nfs4::status::{NfsStat, Res};
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};

use super::filesystem::Filesystem;
use crate::exports::handle::Target;
use crate::exports::policy::{Access, Refusal};
use crate::exports::table::Export;
use crate::state::FileId;

/// An object of an export.
#[derive(Debug, Clone)]
pub struct Object {
    /// The export that the object belongs to.
    pub export: Arc<Export<Filesystem>>,
    /// The inode.
    pub inode: InodeRef,
    /// The access that the export grants to the request. An object without access can still be the current
    /// one: SECINFO asks about it.
    pub access: Result<Access, Refusal>,
}

impl Object {
    /// Another inode of the same export, with the same access.
    pub fn with_inode(&self, inode: InodeRef) -> Self {
        Self { export: self.export.clone(), inode, access: self.access.clone() }
    }

    /// The filesystem of the object.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.export.filesystem.vfs
    }

    /// The credentials for reading. Errors: NFS4ERR_ACCESS, NFS4ERR_WRONGSEC.
    pub fn read_cred(&self) -> Res<&Cred> {
        match &self.access {
            Ok(access) => Ok(&access.cred),
            Err(Refusal::Address) => Err(NfsStat::Access),
            Err(Refusal::Security) => Err(NfsStat::Wrongsec),
        }
    }

    /// The credentials for changing. Errors: those of [`Self::read_cred`], NFS4ERR_ROFS.
    pub fn write_cred(&self) -> Res<&Cred> {
        let cred = self.read_cred()?;
        if self.is_read_only() { Err(NfsStat::Rofs) } else { Ok(cred) }
    }

    /// Whether the filesystem or the export is read-only.
    pub fn is_read_only(&self) -> bool {
        self.vfs().is_read_only() || self.access.as_ref().is_ok_and(|access| access.read_only)
    }

    /// Whether changes of names and attributes are answered before they are durable.
    pub fn is_deferred(&self) -> bool {
        self.access.as_ref().is_ok_and(|access| access.deferred)
    }

    /// The identity of the file in clients' state.
    pub fn file(&self) -> FileId {
        FileId { export: self.export.identity, inode: self.inode.ino.0, generation: self.inode.generation }
    }

    /// Whether the object is the root directory of its export.
    pub fn is_root(&self) -> bool {
        self.inode.ino == self.vfs().info().root
    }

    /// The object if it is a regular file. The error otherwise depends on the minor version (RFC 8881 section
    /// 18.22.3, RFC 7530 section 16.23.5).
    pub fn regular(&self, minor: u32) -> Res<&Self> {
        match (self.inode.kind, minor) {
            (FileType::Regular, _) => Ok(self),
            (FileType::Directory, _) => Err(NfsStat::Isdir),
            (_, 0) => Err(NfsStat::Inval),
            // [RFC8881 18.22.3]
            (FileType::Symlink, _) => Err(NfsStat::Symlink),
            _ => Err(NfsStat::WrongType),
        }
    }
}

/// The file that a COMPOUND works on.
#[derive(Debug, Clone)]
pub enum CurrentFh {
    /// A directory of the pseudo-root, by its number.
    Pseudo(u64),
    /// An object of an export.
    Object(Object),
}

impl CurrentFh {
    /// The content of the filehandle.
    pub fn target(&self) -> Target {
        match self {
            Self::Pseudo(number) => Target::Pseudo(*number),
            Self::Object(object) => {
                let FileId { export, inode, generation } = object.file();
                let generation = object.export.filesystem.handle_generation(inode, generation);
                Target::Object { export, inode, generation }
            }
        }
    }

    /// The object, or `otherwise` for a directory of the pseudo-root.
    pub fn object(&self, otherwise: NfsStat) -> Res<&Object> {
        match self {
            Self::Pseudo(_) => Err(otherwise),
            Self::Object(object) => Ok(object),
        }
    }
}
