//! Who may do what: mode bits and POSIX ACLs.

use crate::acl::{self, Acl};
use crate::api::Cred;
use crate::driver::Room;
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::sync::Mutex;
use crate::types::*;
use crate::vfs::Vfs;
use std::sync::Arc;

/// Read permission in an access mask.
pub const READ: u32 = 4;
/// Write permission in an access mask.
pub const WRITE: u32 = 2;
/// Execute or search permission in an access mask.
pub const EXECUTE: u32 = 1;

/// The access ACL of an inode once it was asked for.
#[derive(Debug, Default)]
pub(crate) struct AclCache(Mutex<Known>);

#[derive(Debug, Default, Clone)]
enum Known {
    #[default]
    Nothing,
    None,
    Some(Arc<Acl>),
}

impl AclCache {
    pub(crate) fn forget(&self) {
        *self.0.lock() = Known::Nothing;
    }
}

impl Vfs {
    /// Which free blocks a caller may take.
    pub fn room(&self, cred: &Cred) -> Room {
        match &self.info.reserve {
            Some(reserve)
                if cred.uid != 0
                    && cred.uid != reserve.uid
                    && !reserve.gid.is_some_and(|gid| cred.in_group(gid)) =>
            {
                Room::Open
            }
            _ => Room::Reserve,
        }
    }

    /// The ACL of a kind that an inode has, if it has one.
    pub(crate) fn stored_acl(&self, inode: &Inode, name: &[u8]) -> Result<Option<Acl>> {
        if self.info.xattr_value_max == 0 || inode.kind == FileType::Symlink {
            return Ok(None);
        }
        match self.fs.get_xattr(inode, name) {
            Ok(value) => Acl::parse(&value).map_err(|_| {
                Error::corrupt("an access control list that breaks the rules", format!("inode {}", inode.ino))
            }),
            Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn access_acl(&self, inode: &Inode) -> Result<Option<Arc<Acl>>> {
        let mut known = self.acl_cache(inode).0.lock();
        if let Known::Nothing = *known {
            *known = match self.stored_acl(inode, acl::ACCESS)? {
                Some(acl) => Known::Some(Arc::new(acl)),
                None => Known::None,
            };
        }
        Ok(match &*known {
            Known::Some(acl) => Some(acl.clone()),
            _ => None,
        })
    }

    /// Whether the caller may do all of `mask` (R4 W2 X1) to the inode.
    pub fn access(&self, cred: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        self.alive()?;
        if mask & WRITE != 0 {
            let attr_flags = inode.with_attr(|attr| attr.flags);
            let content = matches!(inode.kind, FileType::Regular | FileType::Directory | FileType::Symlink);
            if self.policy.read_only && content {
                return Err(NameError::ReadOnly.into());
            }
            if attr_flags.contains(InodeFlags::IMMUTABLE) {
                return Err(NameError::NotPermitted.into());
            }
        }
        if cred.checked || mask == 0 {
            return Ok(());
        }
        let (perm, uid, gid) = inode.with_attr(|attr| (attr.perm, attr.uid, attr.gid));
        if cred.uid == 0 {
            // The superuser reads and writes everything, and executes what anybody may execute.
            let executable = inode.kind == FileType::Directory || perm & 0o111 != 0;
            return if mask & EXECUTE == 0 || executable { Ok(()) } else { Err(NameError::Access.into()) };
        }
        // Without group bits a mask could not grant anything either, unless the caller is the owner.
        let granted = if cred.uid == uid {
            perm >> 6 & mask == mask
        } else if let Some(acl) = self.access_acl(inode)? {
            acl.permits(cred, uid, gid, mask)
        } else if cred.in_group(gid) {
            perm >> 3 & mask == mask
        } else {
            perm & mask == mask
        };
        if granted { Ok(()) } else { Err(NameError::Access.into()) }
    }

    /// Whether the caller owns the inode or may act as if.
    pub(crate) fn owns(&self, cred: &Cred, inode: &Inode) -> bool {
        cred.privileged() || cred.uid == inode.with_attr(|attr| attr.uid)
    }

    /// Whether the caller may take `victim`'s name out of `dir`.
    pub(crate) fn may_delete(&self, cred: &Cred, dir: &Inode, victim: &Inode) -> Result<()> {
        self.access(cred, dir, WRITE | EXECUTE)?;
        let dir_attr = dir.with_attr(|attr| (attr.perm, attr.uid, attr.flags));
        let victim_attr = victim.with_attr(|attr| (attr.uid, attr.flags));
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if dir_attr.2.contains(InodeFlags::APPEND) || victim_attr.1.intersects(fixed) {
            return Err(NameError::NotPermitted.into());
        }
        let sticky = dir_attr.0 & 0o1000 != 0;
        if sticky && !cred.privileged() && cred.uid != dir_attr.1 && cred.uid != victim_attr.0 {
            return Err(NameError::NotPermitted.into());
        }
        Ok(())
    }
}
