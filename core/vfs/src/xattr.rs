//! Extended attributes: permissions of each namespace, access control lists in step with the mode, and
//! reserved names.

use crate::access::{READ, WRITE};
use crate::acl::{self, Acl};
use crate::driver::{XattrMode, XattrOps};
use crate::error::{NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::requests::*;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::sync::atomic::Ordering;

/// Names that ivers reserves for itself.
const OWN: &[u8] = b"trusted.ivers.";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    Acl,
    Property,
}

fn space(xattrs: &dyn XattrOps, name: &[u8]) -> Result<Space> {
    let rest = |prefix: &[u8]| name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
    if name.len() > 255 {
        return Err(NameError::Range.into());
    }
    if name.contains(&0) {
        return Err(NameError::Invalid.into());
    }
    if rest(b"user.") {
        Ok(Space::User)
    } else if rest(b"trusted.") {
        Ok(Space::Trusted)
    } else if rest(b"security.") {
        Ok(Space::Security)
    } else if name == acl::ACCESS || name == acl::DEFAULT {
        Ok(Space::Acl)
    } else if xattrs.properties().is_some_and(rest) {
        Ok(Space::Property)
    } else {
        Err(NameError::NotSupported.into())
    }
}

/// Whether an inode can have POSIX ACLs. A server has its own kind of ACL, and decides what they mean: the
/// mode that one of ours stands for would change only here.
fn has_acls(inode: &Inode) -> bool {
    inode.kind != FileType::Symlink && !inode.is_server_managed()
}

fn has_user_attributes(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory)
}

impl Vfs {
    /// The driver's extended attributes, if the format has any.
    pub(crate) fn xattrs(&self) -> Result<&dyn XattrOps> {
        self.alive()?;
        self.fs.xattrs().ok_or(NameError::NotSupported.into())
    }

    /// Longest value of an extended attribute in bytes; 0: the format has none.
    pub fn xattr_value_max(&self) -> u32 {
        self.fs.xattrs().map_or(0, XattrOps::value_max)
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, cred: &Cred, inode: &InodeRef, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let name = name.as_ref();
        let xattrs = self.xattrs()?;
        if name.starts_with(OWN) {
            return Err(NameError::NoAttribute.into());
        }
        match space(xattrs, name)? {
            Space::User if !has_user_attributes(inode.kind) => return Err(NameError::NoAttribute.into()),
            Space::User | Space::Property => self.access(cred, inode, READ)?,
            Space::Trusted if !cred.privileged() => return Err(NameError::NoAttribute.into()),
            Space::Acl if !has_acls(inode) => return Err(NameError::NotSupported.into()),
            _ => {}
        }
        let _lock = self.shared(inode)?;
        xattrs.get_xattr(cred, inode, name)
    }

    /// The names of the extended attributes that the caller may see.
    pub fn list_xattr(&self, cred: &Cred, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        let xattrs = self.xattrs()?;
        let _lock = self.shared(inode)?;
        let mut names = xattrs.list_xattr(cred, inode)?;
        names.retain(|name| {
            !name.starts_with(OWN)
                && match space(xattrs, name) {
                    Ok(Space::Trusted) => cred.privileged(),
                    Ok(Space::User) => has_user_attributes(inode.kind),
                    Ok(_) => true,
                    Err(_) => false,
                }
        });
        Ok(names)
    }

    fn check_set_xattr(&self, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<Space> {
        if name.starts_with(OWN) {
            return Err(NameError::NotPermitted.into());
        }
        let flags = inode.with_attr(|attr| attr.flags);
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(NameError::NotPermitted.into());
        }
        let space = space(self.xattrs()?, name)?;
        match space {
            Space::User => {
                if !has_user_attributes(inode.kind) {
                    return Err(NameError::NotPermitted.into());
                }
                let sticky =
                    inode.kind == FileType::Directory && inode.with_attr(|attr| attr.perm) & 0o1000 != 0;
                if sticky && !self.owns(cred, inode) {
                    return Err(NameError::NotPermitted.into());
                }
                self.access_locked(cred, inode, WRITE)?;
            }
            Space::Property => self.access_locked(cred, inode, WRITE)?,
            Space::Trusted | Space::Security if !cred.privileged() => {
                return Err(NameError::NotPermitted.into());
            }
            Space::Acl if !has_acls(inode) => return Err(NameError::NotSupported.into()),
            Space::Acl if !self.owns(cred, inode) => return Err(NameError::NotPermitted.into()),
            _ => {}
        }
        Ok(space)
    }

    /// Set an extended attribute.
    pub fn set_xattr(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        name: impl AsRef<[u8]>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change_xattr(cred, inode, name, Some((value, mode)), false).map(drop)
    }

    /// Remove an extended attribute.
    pub fn remove_xattr(&self, cred: &Cred, inode: &InodeRef, name: impl AsRef<[u8]>) -> Result<()> {
        self.change_xattr(cred, inode, name, None, false).map(drop)
    }

    /// Sets an extended attribute, or removes it if `given` is `None`. Returns the inode's change attribute
    /// before and after if asked.
    pub fn change_xattr(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        name: impl AsRef<[u8]>,
        given: Option<(&[u8], XattrMode)>,
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        let name = name.as_ref();
        let xattrs = self.xattrs()?;
        let info = {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            let space = self.check_set_xattr(cred, inode, name)?;
            if given.is_some_and(|(value, _)| value.len() > xattrs.value_max() as usize) {
                return Err(NameError::AttributeTooLarge.into());
            }
            let before = self.before(inode, want_info);
            match given {
                Some((value, mode)) if space == Space::Acl => self.set_acl(cred, inode, name, value, mode)?,
                Some((value, mode)) => {
                    if space == Space::Security {
                        inode.no_capability.store(false, Ordering::Relaxed);
                    }
                    self.store(cred, inode, name, value, mode)?;
                }
                None => {
                    self.with_space(|| xattrs.set_xattr(cred, inode, name, None, XattrMode::Replace))?;
                    inode.acl.forget();
                }
            }
            self.info_since(inode, before)
        };
        self.notify(inode, ChangeKind::Metadata);
        self.sync_if_required(inode, InodeFlags::SYNC)?;
        Ok(info)
    }

    fn set_acl(&self, cred: &Cred, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let acl = Acl::parse(value)?;
        if name == acl::DEFAULT {
            if inode.kind != FileType::Directory {
                return if acl.is_none() { Ok(()) } else { Err(NameError::Access.into()) };
            }
            return match acl {
                Some(acl) => self.store(cred, inode, name, &acl.encode(), mode),
                None => self.remove_stored(cred, inode, name),
            };
        }
        let Some(acl) = acl else {
            let removed = self.remove_stored(cred, inode, name);
            inode.acl.forget();
            return removed;
        };
        // Store first: if that fails, the mode must not have changed.
        if acl.is_minimal() {
            self.remove_stored(cred, inode, name)?;
        } else {
            self.store(cred, inode, name, &acl.encode(), mode)?;
        }
        inode.with_attr(|attr| {
            attr.perm = attr.perm & !0o777 | acl.mode();
            if !cred.may_set_gid(attr.gid) {
                attr.perm &= !0o2000;
            }
        });
        inode.acl.forget();
        self.changed(inode, Touch::Metadata, Logged::Anyway)
    }

    fn store(&self, cred: &Cred, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let xattrs = self.xattrs()?;
        self.with_space_of_dirty_data(|| xattrs.set_xattr(cred, inode, name, Some(value), mode))
    }

    fn remove_stored(&self, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<()> {
        let xattrs = self.xattrs()?;
        match self.with_space(|| xattrs.set_xattr(cred, inode, name, None, XattrMode::Any)) {
            Err(crate::error::Error::Name(NameError::NoAttribute)) => Ok(()),
            other => other,
        }
    }
}
