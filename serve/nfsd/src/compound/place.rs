//! What a filehandle stands for.

use std::sync::Arc;

use ivers_nfs4::status::{NfsStat, Res};
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};

use super::service::Filesystem;
use crate::exports::handle::Target;
use crate::exports::policy::{Access, Refusal};
use crate::exports::table::Export;
use crate::state::File;

/// An object of an export.
#[derive(Debug, Clone)]
pub struct Object {
    /// Where it lies.
    pub export: Arc<Export<Filesystem>>,
    /// The object.
    pub inode: InodeRef,
    /// As whom it may be used. An object that may not be can still be the current one: SECINFO asks about it.
    pub access: Result<Access, Refusal>,
}

impl Object {
    /// Another object of the same export.
    pub fn beside(&self, inode: InodeRef) -> Self {
        Self { export: self.export.clone(), inode, access: self.access.clone() }
    }

    /// Its filesystem.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.export.filesystem.vfs
    }

    /// As whom it may be read.
    pub fn reader(&self) -> Res<&Cred> {
        match &self.access {
            Ok(access) => Ok(&access.cred),
            Err(Refusal::Address) => Err(NfsStat::Access),
            Err(Refusal::Security) => Err(NfsStat::Wrongsec),
        }
    }

    /// As whom it may be changed.
    pub fn writer(&self) -> Res<&Cred> {
        let cred = self.reader()?;
        if self.is_read_only() { Err(NfsStat::Rofs) } else { Ok(cred) }
    }

    /// Whether nothing of it may be changed.
    pub fn is_read_only(&self) -> bool {
        self.vfs().is_read_only() || self.access.as_ref().is_ok_and(|access| access.read_only)
    }

    /// Whether changes of names and attributes are answered before they are durable.
    pub fn is_deferred(&self) -> bool {
        self.access.as_ref().is_ok_and(|access| access.deferred)
    }

    /// By its number.
    pub fn file(&self) -> File {
        File { export: self.export.identity, inode: self.inode.ino.0, generation: self.inode.generation }
    }

    /// Whether it is the topmost directory of its export.
    pub fn is_root(&self) -> bool {
        self.inode.ino == self.vfs().info().root
    }

    /// A regular file, or why not (RFC 8881 section 18.22.3; RFC 7530 section 16.23.5 knows one error less).
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

/// What a filehandle stands for.
#[derive(Debug, Clone)]
pub enum Place {
    /// A directory above the exports, by its number.
    Pseudo(u64),
    /// An object of an export.
    Object(Object),
}

impl Place {
    /// As filehandles name it.
    pub fn target(&self) -> Target {
        match self {
            Self::Pseudo(number) => Target::Pseudo(*number),
            Self::Object(object) => {
                let File { export, inode, generation } = object.file();
                let generation = object.export.filesystem.in_handles(inode, generation);
                Target::Object { export, inode, generation }
            }
        }
    }

    /// The object, or what is said about a directory of the pseudo-root.
    pub fn object(&self, otherwise: NfsStat) -> Res<&Object> {
        match self {
            Self::Pseudo(_) => Err(otherwise),
            Self::Object(object) => Ok(object),
        }
    }
}
