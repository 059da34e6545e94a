//! Creating inodes: all initial attributes are decided here, so that a driver writes them in one transaction
//! with the name.

use crate::access::{EXECUTE, WRITE};
use crate::acl;
use crate::driver::NewInode;
use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::namespace::inherited_project;
use crate::requests::*;
use crate::sync::atomic::Ordering;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

impl Vfs {
    /// Owner, group, mode and ACLs of a new child.
    pub(crate) fn new_inode(&self, cred: &Cred, dir: &Inode, spec: &CreateSpec) -> Result<NewInode> {
        let (dir_perm, dir_gid) = dir.with_attr(|attr| (attr.perm, attr.gid));
        let mut perm = spec.perm & 0o7777;
        let mut gid = cred.gid;
        if dir_perm & 0o2000 != 0 {
            gid = dir_gid;
            if spec.kind == FileType::Directory {
                perm |= 0o2000;
            } else if perm & 0o2010 == 0o2010 && !cred.privileged() && !cred.in_group(gid) {
                perm &= !0o2000;
            }
        }
        let mut xattrs = Vec::new();
        let default = match spec.kind {
            FileType::Symlink => None,
            _ => self.stored_acl(cred, dir, acl::DEFAULT)?,
        };
        match default {
            Some(default) => {
                let (access, bits) = default.inherit(perm);
                perm = perm & !0o777 | bits;
                if !access.is_minimal() {
                    xattrs.push((acl::ACCESS.to_vec(), access.encode()));
                }
                if spec.kind == FileType::Directory {
                    xattrs.push((acl::DEFAULT.to_vec(), default.encode()));
                }
            }
            None if spec.kind != FileType::Symlink => perm &= !(spec.umask & 0o777),
            None => perm = 0o777,
        }
        let target = if spec.kind == FileType::Symlink { spec.target.clone() } else { Vec::new() };
        let rdev = match spec.kind {
            FileType::CharDevice | FileType::BlockDevice => spec.rdev,
            _ => 0,
        };
        let uid = spec.uid.unwrap_or(cred.uid);
        let foreign_group = spec.gid.filter(|given| *given != gid && !cred.in_group(*given));
        if !cred.privileged() && (uid != cred.uid || foreign_group.is_some()) {
            return Err(NameError::NotPermitted.into());
        }
        let now = self.policy.now();
        let time = |given: Option<TimeSet>| match given {
            Some(TimeSet::At(time)) => time.truncate(self.info.time_granularity_ns),
            Some(TimeSet::Now) | None => now,
        };
        Ok(NewInode {
            perm,
            uid,
            gid: spec.gid.unwrap_or(gid),
            project: inherited_project(dir).unwrap_or(0),
            rdev,
            target,
            size: spec.size,
            atime: self.fs.stored_atime(time(spec.atime)),
            mtime: time(spec.mtime),
            xattrs,
            ..NewInode::new(spec.kind, now)
        })
    }

    fn check_spec(&self, cred: &Cred, spec: &CreateSpec) -> Result<()> {
        match spec.kind {
            FileType::CharDevice | FileType::BlockDevice if !cred.privileged() => {
                Err(NameError::NotPermitted.into())
            }
            kind if spec.size > 0 && kind != FileType::Regular => Err(NameError::Invalid.into()),
            _ if spec.size > self.info.max_file_size => Err(NameError::TooLarge.into()),
            FileType::Symlink if spec.target.is_empty() => Err(NameError::NotFound.into()),
            FileType::Symlink if spec.target.len() > 4095 => Err(NameError::NameTooLong.into()),
            FileType::Symlink if spec.target.contains(&0) => Err(NameError::Invalid.into()),
            _ => Ok(()),
        }
    }

    /// Creates a file, directory, symbolic link or special file with all its attributes at once: it is never
    /// visible without them, not even after a crash.
    pub fn create(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        spec: &CreateSpec,
        want_info: bool,
    ) -> Result<(InodeRef, Option<ChangeInfo>)> {
        self.create_with(cred, dir, name, spec, want_info, &mut |_| {})
    }

    /// [`Vfs::create`], with a call to `claim` before anyone can find the new inode. `claim` runs under the
    /// directory's lock: it may take locks under which the VFS is never called, and must not call the VFS.
    pub fn create_with(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        spec: &CreateSpec,
        want_info: bool,
        claim: &mut dyn FnMut(&InodeRef),
    ) -> Result<(InodeRef, Option<ChangeInfo>)> {
        self.reclaim();
        self.check_new_name(dir, name)?;
        self.check_spec(cred, spec)?;
        let made = {
            let _names = self.exclusive(dir)?;
            self.may_add(cred, dir, name)?;
            let new = self.new_inode(cred, dir, spec)?;
            let (before, stamp) = (self.before(dir, want_info), self.names_stamp(dir));
            let created = self.with_space_of_dirty_data(|| self.fs.create(cred, dir, name, &new));
            let loaded = self.trusting(&[(dir, name)], created)?;
            let ino = loaded.ino;
            self.put_changed(dir, name, Some(ino), stamp);
            let inode = self.insert_new(loaded)?;
            claim(&inode);
            (inode, self.info_since(dir, before))
        };
        self.notify(dir, ChangeKind::Names);
        self.sync_names_if_required(&[dir])?;
        Ok(made)
    }

    /// Creates a file without a name (O_TMPFILE). It is deleted with its last reference unless it is linked.
    pub fn create_unnamed(&self, cred: &Cred, dir: &InodeRef, spec: &CreateSpec) -> Result<InodeRef> {
        self.reclaim();
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        if spec.kind == FileType::Directory {
            return Err(NameError::Invalid.into());
        }
        self.check_spec(cred, spec)?;
        let unnamed = self.fs.unnamed_files().ok_or(NameError::NotSupported)?;
        self.begin_change()?;
        self.access(cred, dir, WRITE | EXECUTE)?;
        let _names = self.exclusive(dir)?;
        self.dir_is_alive(dir)?;
        let new = self.new_inode(cred, dir, spec)?;
        let loaded = self.with_space_of_dirty_data(|| unnamed.create_unnamed(cred, dir, &new))?;
        let inode = self.insert_new(loaded)?;
        inode.awaits_name.store(true, Ordering::Relaxed);
        Ok(inode)
    }
}
