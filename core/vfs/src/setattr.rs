//! Setting attributes, by the rules of POSIX for chmod, chown, utimensat and truncate.

use crate::access::{READ, WRITE};
use crate::acl;
use crate::driver::{ServerOps, XattrMode};
use crate::error::{Error, NameError, Result};
use crate::inode::{Inode, Logged, Touch};
use crate::privileges::without_set_id;
use crate::requests::*;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

impl Vfs {
    fn check_set_attr(&self, cred: &Cred, inode: &Inode, set: &SetAttr) -> Result<()> {
        let attr = inode.attr();
        let touches_append_only = !attr.flags.contains(InodeFlags::IMMUTABLE) && set.is_touch();
        if attr.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            && set.flags.is_none()
            && !set.already_accepted
            && !touches_append_only
        {
            return Err(NameError::NotPermitted.into());
        }
        if !self.info.projects && set.project.is_some_and(|project| project != attr.project) {
            return Err(NameError::NotSupported.into());
        }
        let owner = cred.privileged() || cred.uid == attr.uid;
        if set.size.is_some() {
            inode.require_regular()?;
            // Inode flags forbid it to an open file as well.
            let trusted = Cred::trusted();
            self.access_locked(if set.opened { &trusted } else { cred }, inode, WRITE)?;
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
            // Setting both times to now needs only write permission.
            if set.atime.is_none() || set.mtime.is_none() {
                return Err(NameError::NotPermitted.into());
            }
            self.access_locked(cred, inode, WRITE)?;
        }
        Ok(())
    }

    /// Sets attributes. Setting one to its present value is no change, except by chmod and chown.
    pub fn set_attr(&self, cred: &Cred, inode: &InodeRef, set: &SetAttr) -> Result<Attr> {
        self.reclaim();
        let server = self.fs.server().filter(|_| inode.is_server_managed());
        let attr = if let Some(server) = server {
            self.set_attr_on_server(server, cred, inode, set)?
        } else {
            let _lock = self.exclusive(inode)?;
            self.begin_change()?;
            self.check_set_attr(cred, inode, set)?;
            if set.size.is_some_and(|size| size > self.info.max_file_size) {
                return Err(NameError::TooLarge.into());
            }
            // One copy for all: a reader that moves the access time meanwhile must not look like a change.
            let mut old = inode.attr();
            if set.size.is_some() && !cred.keeps_set_id() {
                // What the change of the size leaves.
                old.perm = without_set_id(old.perm, cred.may_set_gid(old.gid));
            }
            // Refuse what the format cannot store before anything is done.
            let new = self.planned(cred, inode, &old, set)?;
            if let Some(size) = set.size {
                self.remove_privileges(cred, inode, !cred.keeps_set_id())?;
                self.set_size(cred, inode, size)?;
                self.lost_data.forget(inode.ino, size..u64::MAX);
            }
            self.set_plain(cred, inode, set, &old, new)?;
            inode.attr()
        };
        self.notify(inode, if set.size.is_some() { ChangeKind::Data } else { ChangeKind::Metadata });
        self.sync_if_required(inode, InodeFlags::SYNC)?;
        Ok(attr)
    }

    /// Sends attributes to the server, which decides. Only a change of the size needs the lock of the inode.
    fn set_attr_on_server(
        &self,
        server: &dyn ServerOps,
        cred: &Cred,
        inode: &Inode,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.begin_change()?;
        if set.size.is_none() && self.set_attr_in_cache(server, cred, inode, set) {
            return Ok(inode.attr());
        }
        let is_unsent = inode.pages.is_dirty() || inode.pages.has_unstable();
        if is_unsent && (set.atime.is_some() || set.mtime.is_some()) {
            // Bytes that arrive later would move the times again, also those that a server loses in a crash.
            self.write_back_durably(inode)?;
        }
        let Some(size) = set.size else {
            server.set_attr(cred, inode, set)?;
            return Ok(inode.attr());
        };
        let _lock = self.exclusive(inode)?;
        // No page is on its way to the server when it changes the size.
        let _writeback = inode.writeback_lock.lock();
        server.set_attr(cred, inode, set)?;
        inode.with_attr(|attr| attr.size = size);
        for (offset, len) in inode.pages.truncate(size, &self.memory) {
            self.fs.unreserve(inode, offset, len);
        }
        self.lost_data.forget(inode.ino, size..u64::MAX);
        Ok(inode.attr())
    }

    /// The attributes that `old` becomes, without the change time.
    fn planned(&self, cred: &Cred, inode: &Inode, old: &Attr, set: &SetAttr) -> Result<Attr> {
        let now = self.policy.now();
        let granularity = self.info.time_granularity_ns;
        let at = |time: TimeSet| match time {
            TimeSet::Now => now,
            TimeSet::At(time) => time.truncate(granularity),
        };
        let mut new = old.clone();
        new.uid = set.uid.unwrap_or(old.uid);
        new.gid = set.gid.unwrap_or(old.gid);
        if set.is_chown() && inode.kind != FileType::Directory {
            new.perm = without_set_id(new.perm, cred.may_set_gid(old.gid));
        }
        if let Some(perm) = set.perm {
            new.perm = perm & 0o7777 & !set.keep_perm | new.perm & set.keep_perm;
            let foreign_group = !cred.privileged() && !cred.in_group(new.gid);
            // A bit that is only kept was set by a caller who could.
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
        self.fs.prepare_setattr(cred, inode, old, &mut new)?;
        Ok(new)
    }

    /// Changes all but the size from `old` to `new`, as [`Vfs::planned`] returned it.
    fn set_plain(&self, cred: &Cred, inode: &Inode, set: &SetAttr, old: &Attr, mut new: Attr) -> Result<()> {
        if set.is_chown() && inode.kind != FileType::Directory {
            self.remove_capability(cred, inode)?;
        }
        // A change of the size has moved these.
        let (mtime, ctime) = inode.with_attr(|attr| (attr.mtime, attr.ctime));
        let moved = Attr { mtime, ctime, ..old.clone() };
        if set.mtime.is_none() && new.mtime == old.mtime {
            new.mtime = mtime;
        }
        new.ctime = set.ctime.map_or(ctime, |ctime| ctime.truncate(self.info.time_granularity_ns));
        if new == moved {
            // By POSIX, a chown or chmod that changes nothing still changes ctime; utimensat(UTIME_OMIT) and
            // repeated times do not.
            if set.is_chown() || set.perm.is_some() {
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
            // A reader may have moved it.
            let atime = if new.atime == old.atime { attr.atime } else { new.atime };
            *attr = Attr { size, blocks_512, nlink, atime, ..new };
        });
        // Keep a given ctime, also if it repeats the old one: the caller shows it from its own cache.
        let touch = if set.ctime.is_some() { Touch::Nothing } else { Touch::Metadata };
        let changed = self.changed(inode, touch, Logged::Anyway);
        if let Some(acl) = acl {
            let stored = self.guarded(|| {
                self.xattrs()?.set_xattr(cred, inode, acl::ACCESS, Some(&acl.encode()), XattrMode::Any)
            });
            // After the store: permission checks take no lock and could cache the old list again.
            inode.acl.forget();
            stored?;
        }
        changed
    }

    /// Changes the size, under the exclusive lock.
    fn set_size(&self, cred: &Cred, inode: &Inode, size: u64) -> Result<()> {
        let old = inode.size();
        let _writeback = inode.writeback_lock.lock();
        if size == old {
            // On Linux this releases blocks allocated past the end.
            self.free_behind(cred, inode)?;
            return self.changed(inode, Touch::Data, Logged::IfNeeded);
        }
        self.release_lost_reservations(inode);
        if size < old {
            let tail = size % crate::pages::PAGE as u64;
            if tail != 0 {
                // The cut page is the newest version of its block: load it before the size moves.
                self.load_page(cred, inode, size - tail, old)?;
            }
            inode.with_attr(|attr| attr.size = size);
            for (offset, len) in inode.pages.truncate(size, &self.memory) {
                self.fs.unreserve(inode, offset, len);
            }
        } else {
            inode.with_attr(|attr| attr.size = size);
        }
        let result = self.with_space(|| self.fs.truncate(cred, inode, size));
        if let Err(error @ Error::FileData(_)) = &result
            && size < old
        {
            // The file is cut. Only zeros past its end are missing on the device: a failed write-back.
            self.note_writeback_error(inode, error);
            return Ok(());
        }
        if result.is_err() {
            // The cut is visible and the old bytes are gone from memory. What the driver kept counts, and it
            // is a change.
            if size > old {
                inode.with_attr(|attr| attr.size = old);
            }
            let _ = self.changed(inode, Touch::Data, Logged::IfNeeded);
        }
        result
    }

    /// Whether the caller may read the inode. For front ends that open files.
    pub fn may_read(&self, cred: &Cred, inode: &Inode) -> Result<()> {
        self.access(cred, inode, READ)
    }
}
