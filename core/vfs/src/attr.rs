//! Setting attributes, by the rules of POSIX chmod, chown, utimensat and truncate.

use crate::access::{READ, WRITE};
use crate::acl;
use crate::api::*;
use crate::driver::XattrMode;
use crate::error::{Error, NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use std::sync::atomic::Ordering;

const CAPABILITY: &[u8] = b"security.capability";

impl Vfs {
    fn check_set_attr(&self, cred: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        let attr = inode.attr();
        let touches_append_only = !attr.flags.contains(InodeFlags::IMMUTABLE) && set.is_touch();
        if attr.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            && set.flags.is_none()
            && !set.handed_over
            && !touches_append_only
        {
            return Err(NameError::NotPermitted.into());
        }
        if !self.info.projects && set.project.is_some_and(|project| project != attr.project) {
            return Err(NameError::NotSupported.into());
        }
        let owner = cred.privileged() || cred.uid == attr.uid;
        if set.size.is_some() {
            match inode.kind {
                // Flags of the inode forbid it to him as well.
                FileType::Regular if set.opened => self.access(&Cred::trusted(), inode, WRITE)?,
                FileType::Regular => self.access(cred, inode, WRITE)?,
                FileType::Directory => return Err(NameError::IsDirectory.into()),
                _ => return Err(NameError::Invalid.into()),
            }
        }
        if cred.privileged() {
            return Ok(());
        }
        let wants_owner =
            set.perm.is_some() || set.flags.is_some() || set.project.is_some() || set.ctime.is_some();
        if wants_owner && !owner {
            return Err(NameError::NotPermitted.into());
        }
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if set.flags.is_some_and(|flags| (flags ^ attr.flags).intersects(fixed)) {
            return Err(NameError::NotPermitted.into());
        }
        if set.uid.is_some_and(|uid| uid != attr.uid || !owner) {
            return Err(NameError::NotPermitted.into());
        }
        if set.gid.is_some_and(|gid| !owner || (gid != attr.gid && !cred.in_group(gid))) {
            return Err(NameError::NotPermitted.into());
        }
        let given = |time: Option<TimeSet>| matches!(time, Some(TimeSet::At(_)));
        if (given(set.atime) || given(set.mtime)) && !owner {
            return Err(NameError::NotPermitted.into());
        }
        if (set.atime.is_some() || set.mtime.is_some()) && !owner {
            // "Now" for both is for everybody who may write.
            if set.atime.is_none() || set.mtime.is_none() {
                return Err(NameError::NotPermitted.into());
            }
            self.access(cred, inode, WRITE)?;
        }
        Ok(())
    }

    /// Set attributes. One that repeats what is stored is no change.
    pub fn set_attr(&self, cred: &Cred, inode: &InodeRef, set: &SetAttr) -> Result<Attr> {
        self.balance();
        let attr = {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            self.check_set_attr(cred, inode, set)?;
            if let Some(size) = set.size {
                // What the format cannot keep is refused before anything is done.
                self.planned(cred, inode, &inode.attr(), set)?;
                self.set_size(inode, size)?;
            }
            self.set_plain(cred, inode, set)?;
            inode.attr()
        };
        self.notify(inode, if set.size.is_some() { ChangeKind::Data } else { ChangeKind::Metadata });
        self.settle(inode, InodeFlags::SYNC)?;
        Ok(attr)
    }

    /// What the attributes will be, if these are the old ones, but for the change time.
    fn planned(&self, cred: &Cred, inode: &Inode, old: &Attr, set: &SetAttr) -> Result<Attr> {
        let now = self.policy.now();
        let granularity = self.info.time_granularity_ns;
        let at = |time: TimeSet| match time {
            TimeSet::Now => now,
            TimeSet::At(time) => time.truncate(granularity),
        };
        let mut new = old.clone();
        let kill = set.kills(cred);
        new.uid = set.uid.unwrap_or(old.uid);
        new.gid = set.gid.unwrap_or(old.gid);
        if kill && inode.kind != FileType::Directory {
            new.perm = without_set_id(new.perm, cred.may_set_gid(old.gid));
        }
        if let Some(perm) = set.perm {
            new.perm = perm & 0o7777 & !set.keep_perm | new.perm & set.keep_perm;
            let foreign_group = !cred.privileged() && !cred.in_group(new.gid);
            // What is only kept was given by somebody who could.
            if inode.kind != FileType::Directory && foreign_group && set.keep_perm & 0o2000 == 0 {
                new.perm &= !0o2000;
            }
        }
        if let Some(flags) = set.flags {
            new.flags = flags;
        }
        new.project = set.project.unwrap_or(old.project);
        new.atime = set.atime.map_or(old.atime, |time| self.fs.stored_atime(at(time)));
        new.mtime = set.mtime.map_or(old.mtime, at);
        self.fs.fit(inode, old, &mut new)?;
        Ok(new)
    }

    fn set_plain(&self, cred: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        // One copy for both: readers move the access time meanwhile, and that must not pass for a change.
        let old = inode.attr();
        let mut new = self.planned(cred, inode, &old, set)?;
        let chown = set.uid.is_some() || set.gid.is_some();
        if set.kills(cred) {
            self.remove_capability(inode)?;
        }
        new.ctime = set.ctime.map_or(old.ctime, |ctime| ctime.truncate(self.info.time_granularity_ns));
        if new == old {
            // A chown that changes nothing still counts in POSIX; utimensat(UTIME_OMIT) and repeated times do not.
            if chown || set.perm.is_some() {
                return self.changed(inode, Touch::Metadata, Logged::Anyway);
            }
            return Ok(());
        }
        let mut acl = match self.access_acl(inode)? {
            Some(acl) if new.perm & 0o777 != old.perm & 0o777 => Some((*acl).clone()),
            _ => None,
        };
        if let Some(acl) = &mut acl {
            acl.set_mode(new.perm);
        }
        inode.with_attr(|attr| {
            let (size, blocks_512, nlink) = (attr.size, attr.blocks_512, attr.nlink);
            // A reader may have moved it since.
            let atime = if new.atime == old.atime { attr.atime } else { new.atime };
            *attr = Attr { size, blocks_512, nlink, atime, ..new };
        });
        // A ctime that was given stays, also where it repeats the old one: its giver will show it from its own cache.
        let touch = if set.ctime.is_some() { Touch::Nothing } else { Touch::Metadata };
        let changed = self.changed(inode, touch, Logged::Anyway);
        if let Some(acl) = acl {
            let stored = self.fs.set_xattr(inode, acl::ACCESS, Some(&acl.encode()), XattrMode::Any);
            // Behind it: whoever checks permissions holds no lock, and would remember the old one.
            inode.acl.forget();
            stored?;
        }
        changed
    }

    /// Change the size, under the exclusive lock.
    fn set_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let old = inode.size();
        if size > self.info.max_file_size {
            return Err(NameError::TooLarge.into());
        }
        if size == old {
            // As everywhere under Linux, this is how one gives back what was allocated behind the end.
            self.free_behind(inode)?;
            return self.changed(inode, Touch::Data, Logged::IfNeeded);
        }
        let _writeback = inode.writeback_lock.lock();
        if size < old {
            let tail = size % crate::pages::PAGE as u64;
            if tail != 0 {
                // The page that is cut stays as its block's newest contents: have it here before the size moves.
                self.load_page(inode, size - tail, old)?;
            }
            inode.with_attr(|attr| attr.size = size);
            for (offset, len) in inode.pages.truncate(size, &self.memory) {
                self.fs.unreserve(inode, offset, len);
            }
        } else {
            inode.with_attr(|attr| attr.size = size);
        }
        let result = self.fs.truncate(inode, size);
        if result.is_err() {
            // The cut is visible and the old bytes are gone from memory: what the driver kept counts, and it is a change.
            if size > old {
                inode.with_attr(|attr| attr.size = old);
            }
            let _ = self.changed(inode, Touch::Data, Logged::IfNeeded);
        }
        result
    }

    /// Clear set-id bits and file capabilities before data changes, under the exclusive lock.
    pub(crate) fn kill_privileges(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        let killed = inode.with_attr(|attr| {
            let perm = without_set_id(attr.perm, cred.may_set_gid(attr.gid));
            std::mem::replace(&mut attr.perm, perm) != perm
        });
        if killed {
            self.changed(inode, Touch::Metadata, Logged::Anyway)?;
        }
        self.remove_capability(inode)
    }

    /// Take file capabilities away, after a change of data by whomever.
    pub fn drop_capability(&self, inode: &InodeRef) -> Result<()> {
        // Looked at under no lock: one that comes at this moment comes behind the change.
        let none = self.info.xattr_value_max == 0 || inode.no_capability.load(Ordering::Acquire);
        if inode.kind != FileType::Regular || none {
            return Ok(());
        }
        {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            self.remove_capability(inode)?;
        }
        self.settle(inode, InodeFlags::SYNC)
    }

    fn remove_capability(&self, inode: &Inode) -> Result<()> {
        if self.info.xattr_value_max == 0 || inode.no_capability.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.fs.get_xattr(inode, CAPABILITY) {
            Ok(_) => self.fs.set_xattr(inode, CAPABILITY, None, XattrMode::Any)?,
            Err(Error::Name(_)) => {}
            Err(error) => return Err(error),
        }
        inode.no_capability.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the caller may read the inode's contents: for front ends that open files.
    pub fn may_read(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        self.access(cred, inode, READ)
    }
}

/// Set-gid without group execution is no privilege (it once meant mandatory locking): it stays for who may set it.
fn without_set_id(perm: u32, may_set_gid: bool) -> u32 {
    let group = if perm & 0o010 != 0 || !may_set_gid { 0o2000 } else { 0 };
    perm & !(0o4000 | group)
}
