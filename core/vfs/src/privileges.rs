//! Removal of the privileges that a file grants to those who execute it: set-id bits and
//! `security.capability`.
//!
//! Every front end follows the rules of Linux. Root means user 0; Linux tests `CAP_FSETID`.
//!
//! | change | capability | set-id bits |
//! |---|---|---|
//! | data of a file: write, truncate, fallocate, copy | removed | removed, unless the caller is root |
//! | owner or group, also to the same one; not of a directory | removed | removed |
//!
//! - Set-group-ID without execution by the group once meant mandatory locking. It stays if the caller is
//!   root or in the file's group.
//! - Privileges go before the data changes, and stay removed if the change then fails.
//! - A front end whose kernel checks permissions ([`Cred::access_checked`]) says for each write whether
//!   set-id bits go ([`WriteFlags::KILL_SET_ID`](crate::WriteFlags::KILL_SET_ID)): writes from that
//!   kernel's cache have no caller.
//! - An inode remembers that it has no capability (`no_capability`), so that a write pays for one relaxed
//!   load. That suffices because the flag changes only under the exclusive lock of the inode.
//!
//! Sources: chown(2), write(2) and capabilities(7); in the kernel `file_remove_privs`,
//! `setattr_should_drop_sgid`, `chown_common` and `cap_inode_killpriv`; `FUSE_HANDLE_KILLPRIV_V2` in
//! `include/uapi/linux/fuse.h`.

use crate::driver::XattrMode;
use crate::error::{Error, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::requests::Cred;
use crate::types::Attr;
use crate::vfs::Vfs;
use std::sync::atomic::Ordering;

const CAPABILITY: &[u8] = b"security.capability";

impl Vfs {
    /// Removes privileges before the data of a regular file changes: the capability, and set-id bits if
    /// `set_id`. The caller holds the exclusive lock.
    pub(crate) fn remove_privileges(&self, cred: &Cred, inode: &Inode, set_id: bool) -> Result<()> {
        let removes_set_id = |attr: &mut Attr| {
            let perm = without_set_id(attr.perm, cred.may_set_gid(attr.gid));
            std::mem::replace(&mut attr.perm, perm) != perm
        };
        if set_id && inode.with_attr(removes_set_id) {
            self.changed(inode, Touch::Metadata, Logged::Anyway)?;
        }
        self.remove_capability(cred, inode)
    }

    /// Removes `security.capability` because of a change by `cred`, who needs no right to it. The caller
    /// holds the exclusive lock.
    pub(crate) fn remove_capability(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        if !inode.may_have_capability() {
            return Ok(());
        }
        if let Some(xattrs) = self.fs.xattrs() {
            match xattrs.get_xattr(cred, inode, CAPABILITY) {
                Ok(_) => {
                    let remove = || xattrs.set_xattr(&Cred::root(), inode, CAPABILITY, None, XattrMode::Any);
                    self.with_space(remove)?;
                }
                Err(Error::Name(_)) => {}
                Err(error) => return Err(error),
            }
        }
        inode.no_capability.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Inode {
    /// Whether it may have `security.capability`, which a change of data would remove.
    #[inline]
    pub(crate) fn may_have_capability(&self) -> bool {
        !self.no_capability.load(Ordering::Relaxed)
    }
}

/// The permission bits without set-id bits that grant a privilege.
pub(crate) fn without_set_id(perm: u32, may_set_gid: bool) -> u32 {
    let group = if perm & 0o010 != 0 || !may_set_gid { 0o2000 } else { 0 };
    perm & !(0o4000 | group)
}
