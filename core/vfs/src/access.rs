//! Permission checks by mode bits and POSIX ACLs.

use crate::acl::{self, Acl};
use crate::driver::BlockPool;
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::requests::Cred;
use crate::sync::{RankedMutex, rank};
use crate::types::*;
use crate::vfs::Vfs;
use std::sync::Arc;

/// Read permission in an access mask.
pub const READ: u32 = 4;
/// Write permission in an access mask.
pub const WRITE: u32 = 2;
/// Execute or search permission in an access mask.
pub const EXECUTE: u32 = 1;

/// The access ACL of an inode, once it was read.
#[derive(Debug, Default)]
pub(crate) struct AclCache(RankedMutex<rank::Leaf, Cached>);

#[derive(Debug, Default)]
struct Cached {
    known: Known,
    /// How often it was forgotten: what was read before is not kept after.
    forgotten: u64,
}

#[derive(Debug, Default, Clone)]
enum Known {
    #[default]
    Nothing,
    None,
    Some(Arc<Acl>),
}

/// The access masks that a caller is granted. More than three bits: with ACLs, two groups of the caller may
/// each grant one permission, and none both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// Whether the whole `mask` (R4 W2 X1) is granted.
    pub fn allow(self, mask: u32) -> bool {
        self.0 >> (mask & 7) & 1 == 1
    }
}

/// A caller, with owner, group and mode of the inode.
struct Asked<'a> {
    cred: &'a Cred,
    directory: bool,
    perm: u32,
    uid: u32,
    gid: u32,
    flags: InodeFlags,
}

impl<'a> Asked<'a> {
    fn of(cred: &'a Cred, inode: &Inode) -> Self {
        let directory = inode.kind == FileType::Directory;
        inode.with_attr(|attr| Self {
            cred,
            directory,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            flags: attr.flags,
        })
    }

    /// Whether an ACL would decide.
    fn by_list(&self) -> bool {
        self.cred.uid != 0 && self.cred.uid != self.uid
    }

    fn granted(&self, acl: Option<&Acl>, mask: u32) -> bool {
        let &Self { cred, directory, perm, uid, gid, .. } = self;
        if cred.uid == 0 {
            // Root reads and writes everything, and executes what anyone may execute.
            return mask & EXECUTE == 0 || directory || perm & 0o111 != 0;
        }
        // Without group bits the mask of an ACL grants nothing either, except to the owner.
        if cred.uid == uid {
            perm >> 6 & mask == mask
        } else if let Some(acl) = acl {
            acl.permits(cred, uid, gid, mask)
        } else if cred.in_group(gid) {
            perm >> 3 & mask == mask
        } else {
            perm & mask == mask
        }
    }
}

impl AclCache {
    pub(crate) fn forget(&self) {
        let mut cached = self.0.lock();
        *cached = Cached { known: Known::Nothing, forgotten: cached.forgotten + 1 };
    }
}

impl Vfs {
    /// The free blocks that a caller may use.
    pub fn block_pool(&self, cred: &Cred) -> BlockPool {
        match &self.info.reserved {
            Some(reserve)
                if cred.uid != 0
                    && cred.uid != reserve.uid
                    && !reserve.gid.is_some_and(|gid| cred.in_group(gid)) =>
            {
                BlockPool::Unreserved
            }
            _ => BlockPool::All,
        }
    }

    /// An ACL of the inode, stored under this name.
    pub(crate) fn stored_acl(&self, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<Option<Acl>> {
        let Some(xattrs) = self.fs.xattrs().filter(|_| inode.kind != FileType::Symlink) else {
            return Ok(None);
        };
        match xattrs.get_xattr(cred, inode, name) {
            Ok(value) => Acl::parse(&value).map_err(|_| {
                Error::corrupt("an access control list that breaks the rules", format!("inode {}", inode.ino))
            }),
            Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn access_acl(&self, inode: &Inode) -> Result<Option<Arc<Acl>>> {
        let cache = &inode.acl.0;
        let forgotten = {
            let cached = cache.lock();
            match &cached.known {
                Known::Some(acl) => return Ok(Some(acl.clone())),
                Known::None => return Ok(None),
                Known::Nothing => cached.forgotten,
            }
        };
        let stored = self.stored_acl(&Cred::system(), inode, acl::ACCESS)?.map(Arc::new);
        let mut cached = cache.lock();
        if cached.forgotten == forgotten {
            cached.known = stored.clone().map_or(Known::None, Known::Some);
        }
        Ok(stored)
    }

    /// Whether the caller is granted the whole `mask` (R4 W2 X1). Where a server decides, this is a round
    /// trip: call it without inode locks.
    pub fn access(&self, cred: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        self.access_locked(cred, inode, mask)?;
        match self.fs.server() {
            Some(server) if !cred.access_checked && mask != 0 => server.permission(cred, inode, mask),
            _ => Ok(()),
        }
    }

    /// [`Vfs::access`] without a round trip, for checks under inode locks: a server checks the request that
    /// follows.
    pub(crate) fn access_locked(&self, cred: &Cred, inode: &Inode, mask: u32) -> Result<()> {
        self.alive()?;
        if mask & WRITE != 0 {
            self.may_change(inode, inode.with_attr(|attr| attr.flags))?;
        }
        if cred.access_checked || mask == 0 || inode.is_server_managed() {
            return Ok(());
        }
        let asked = Asked::of(cred, inode);
        let acl = if asked.by_list() { self.access_acl(inode)? } else { None };
        if asked.granted(acl.as_deref(), mask) { Ok(()) } else { Err(NameError::Access.into()) }
    }

    /// Every mask that [`Vfs::access`] would grant, all at one moment.
    pub fn rights(&self, cred: &Cred, inode: &Inode) -> Result<Rights> {
        self.alive()?;
        if self.fs.server().is_some() && !cred.access_checked {
            let granted = |mask: &u32| self.access(cred, inode, *mask).is_ok();
            return Ok(Rights((0..8).filter(granted).fold(0, |all, mask| all | 1 << mask)));
        }
        let asked = Asked::of(cred, inode);
        let acl = if !cred.access_checked && asked.by_list() { self.access_acl(inode)? } else { None };
        let writable = self.may_change(inode, asked.flags).is_ok();
        let granted = |mask: &u32| {
            (mask & WRITE == 0 || writable)
                && (cred.access_checked || *mask == 0 || asked.granted(acl.as_deref(), *mask))
        };
        Ok(Rights((0..8).filter(granted).fold(0, |all, mask| all | 1 << mask)))
    }

    /// Whether anyone may write to an inode with these flags.
    fn may_change(&self, inode: &Inode, flags: InodeFlags) -> Result<()> {
        let content = matches!(inode.kind, FileType::Regular | FileType::Directory | FileType::Symlink);
        if self.policy.read_only && content {
            return Err(NameError::ReadOnly.into());
        }
        if flags.contains(InodeFlags::IMMUTABLE) { Err(NameError::NotPermitted.into()) } else { Ok(()) }
    }

    /// Whether the caller is the owner or has the owner's rights.
    pub(crate) fn owns(&self, cred: &Cred, inode: &Inode) -> bool {
        cred.privileged() || cred.uid == inode.with_attr(|attr| attr.uid)
    }

    /// Whether the caller may remove a name of `victim` from `dir`. The caller holds their locks.
    pub(crate) fn may_delete(&self, cred: &Cred, dir: &Inode, victim: &Inode) -> Result<()> {
        self.access_locked(cred, dir, WRITE | EXECUTE)?;
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
