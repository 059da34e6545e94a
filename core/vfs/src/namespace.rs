//! Names: link, unlink, rename.
//!
//! # Lock order
//!
//! A namespace call locks every inode that it changes exclusively, **in ascending order of inode number**:
//! the directories, the removed inode, the moved inode. It first looks the names up under shared locks, one
//! at a time, and releases them. Under the exclusive locks it looks again, and starts over if a name has
//! changed. So there is one order for all inode locks, whatever the shape of the tree, and waiters cannot
//! form a cycle. Neither parent-before-child order nor a tree at rest is needed.
//!
//! A thread that holds an inode lock may take leaf locks (write-back, driver's map, pages, attributes) and
//! wait for a busy slot of the inode cache. A thread that makes a slot busy takes no inode lock.
//!
//! # Moving directories
//!
//! A directory must not move below itself. The chain of parents of the new directory shows whether it would,
//! and that chain must not change until the move is done: two concurrent moves could form a loop that neither
//! sees. Parents change only when a directory moves to another directory, so exactly those moves hold
//! `Vfs::move_lock`, taken before any inode lock. Renames within a directory, and moves of other files, never
//! wait for it.

use crate::access::{EXECUTE, WRITE};
use crate::driver::Rename;
use crate::error::{NameError, Result};
use crate::inode::Inode;
use crate::requests::*;
use crate::sync::RankedWriteGuard;
use crate::sync::atomic::Ordering;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};

/// A longer chain of parents is a loop: no path of one-byte names is that long.
const MAX_DEPTH: usize = 1 << 20;

/// The directory entry to remove.
enum Victim<'a> {
    File,
    Directory,
    /// A name of this inode, whatever its type.
    This(&'a InodeRef),
}

/// The inodes that a rename expects under its names.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The inode to move.
    pub moved: &'a InodeRef,
    /// The inode to replace, if any.
    pub replaced: Option<&'a InodeRef>,
}

/// The arguments of a rename.
struct Asked<'a> {
    old: (&'a InodeRef, &'a [u8]),
    new: (&'a InodeRef, &'a [u8]),
    flags: RenameFlags,
    expected: Option<Expected<'a>>,
}

/// The project id that new children of a directory inherit, if they do.
pub(crate) fn inherited_project(dir: &Inode) -> Option<u32> {
    dir.with_attr(|attr| attr.flags.contains(InodeFlags::PROJINHERIT).then_some(attr.project))
}

/// A directory whose children inherit its project id takes no inode of another project: that would evade the
/// quota.
fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    match inherited_project(dir) {
        Some(project) if project != inode.with_attr(|attr| attr.project) => {
            Err(NameError::CrossDevice.into())
        }
        _ => Ok(()),
    }
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl Vfs {
    pub(crate) fn check_new_name(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.check_name(name)?;
        if is_dot(name) { Err(NameError::Exists.into()) } else { Ok(()) }
    }

    fn check_old_name(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        if dir.kind != FileType::Directory {
            return Err(NameError::NotDirectory.into());
        }
        self.check_name(name)
    }

    /// Exclusive locks on all of these inodes, in ascending order of inode number.
    pub(crate) fn lock_all<'a>(&self, inodes: &[&'a Inode]) -> Result<Vec<RankedWriteGuard<'a, ()>>> {
        let mut sorted = inodes.to_vec();
        sorted.sort_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        sorted.into_iter().map(|inode| self.exclusive(inode)).collect()
    }

    /// Invalidates cached names after a failure: it is unknown how far the driver got.
    pub(crate) fn trusting<T>(&self, names: &[(&InodeRef, &[u8])], result: Result<T>) -> Result<T> {
        if result.is_err() {
            for (dir, name) in names {
                self.names.invalidate(dir.ino, name);
            }
        }
        result
    }

    /// The change attribute before a change, under the lock of the inode. A server's inode has none here: two
    /// questions around a change would not show what others change in between. The driver reports both
    /// values.
    pub(crate) fn before(&self, inode: &Inode, want_info: bool) -> Option<u64> {
        if inode.is_server_managed() {
            inode.take_own_names();
            return None;
        }
        if want_info { self.change(inode) } else { None }
    }

    /// Vouches for a name that is about to change, for [`Vfs::put_changed`]. `None` where nobody else changes
    /// names.
    pub(crate) fn names_stamp(&self, dir: &Inode) -> Option<u64> {
        dir.is_server_managed().then(|| self.names.stamp(dir))
    }

    /// Caches a name that this call changed. If others changed the directory since the stamp, it does not
    /// count: the name may be what they made it.
    pub(crate) fn put_changed(&self, dir: &Inode, name: &[u8], ino: Option<Ino>, stamp: Option<u64>) {
        match stamp {
            Some(stamp) => self.names.put_stamped(dir, name, ino, stamp),
            None => self.names.put(dir, name, ino),
        }
    }

    pub(crate) fn info_since(&self, dir: &Inode, before: Option<u64>) -> Option<ChangeInfo> {
        if dir.is_server_managed() {
            return dir.take_own_names();
        }
        Some(ChangeInfo { before: before?, after: self.change(dir)? })
    }

    /// Makes name changes durable in directories that require it. Called without locks.
    pub(crate) fn sync_names_if_required(&self, dirs: &[&InodeRef]) -> Result<()> {
        dirs.iter().try_for_each(|dir| self.sync_if_required(dir, InodeFlags::SYNC | InodeFlags::DIRSYNC))
    }

    pub(crate) fn dir_is_alive(&self, dir: &Inode) -> Result<()> {
        if dir.with_attr(|attr| attr.nlink) == 0 { Err(NameError::NotFound.into()) } else { Ok(()) }
    }

    /// Checks that a name may be added to a directory whose exclusive lock is held. "Exists" comes before
    /// "read-only". A server checks both itself.
    pub(crate) fn may_add(&self, cred: &Cred, dir: &Inode, name: &[u8]) -> Result<()> {
        self.dir_is_alive(dir)?;
        self.access_locked(cred, dir, EXECUTE)?;
        if self.fs.server().is_none() && self.find(cred, dir, name)?.is_some() {
            return Err(NameError::Exists.into());
        }
        self.begin_change()?;
        self.access_locked(cred, dir, WRITE)
    }

    /// Adds another name for an inode.
    pub fn link(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        dir: &InodeRef,
        name: &[u8],
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        self.reclaim();
        self.check_new_name(dir, name)?;
        if inode.kind == FileType::Directory {
            return Err(NameError::NotPermitted.into());
        }
        let info = {
            let _locks = self.lock_all(&[dir, inode])?;
            self.may_add(cred, dir, name)?;
            check_project(dir, inode)?;
            let (flags, nlink) = inode.with_attr(|attr| (attr.flags, attr.nlink));
            if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
                return Err(NameError::NotPermitted.into());
            }
            if nlink == 0 && !inode.awaits_name.load(Ordering::Relaxed) {
                return Err(NameError::NotFound.into());
            }
            if nlink >= self.info.max_links {
                return Err(NameError::TooManyLinks.into());
            }
            let (before, stamp) = (self.before(dir, want_info), self.names_stamp(dir));
            let linked = self.with_space_of_dirty_data(|| self.fs.link(cred, dir, name, inode));
            self.trusting(&[(dir, name)], linked)?;
            inode.awaits_name.store(false, Ordering::Relaxed);
            self.put_changed(dir, name, Some(inode.ino), stamp);
            self.info_since(dir, before)
        };
        self.notify(dir, ChangeKind::Names);
        self.notify(inode, ChangeKind::Metadata);
        self.sync_names_if_required(&[dir])?;
        Ok(info)
    }

    /// Removes a name of a non-directory.
    pub fn unlink(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        if is_dot(name) {
            return Err(NameError::IsDirectory.into());
        }
        self.take_name(cred, dir, name, Victim::File, want_info)
    }

    /// Removes an empty directory.
    pub fn rmdir(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        match name {
            b"." => return Err(NameError::Invalid.into()),
            b".." => return Err(NameError::NotEmpty.into()),
            _ => {}
        }
        self.take_name(cred, dir, name, Victim::Directory, want_info)
    }

    /// Removes a name of the inode that the caller found under it, a file or an empty directory. Returns
    /// [`NameError::Changed`] and does nothing if the name refers to another inode or to none.
    pub fn remove(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        victim: &InodeRef,
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        if is_dot(name) {
            return Err(NameError::Invalid.into());
        }
        self.take_name(cred, dir, name, Victim::This(victim), want_info)
    }

    fn take_name(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        what: Victim<'_>,
        want_info: bool,
    ) -> Result<Option<ChangeInfo>> {
        self.reclaim();
        self.check_old_name(dir, name)?;
        self.access(cred, dir, EXECUTE)?;
        loop {
            let victim = match what {
                Victim::This(inode) => inode.clone(),
                Victim::File | Victim::Directory => {
                    self.find_ref(cred, dir, name)?.ok_or(NameError::NotFound)?
                }
            };
            let locks = self.lock_all(&[dir, &victim])?;
            // The reference keeps the inode number from being reused.
            if self.find(cred, dir, name)? != Some(victim.ino) {
                if let Victim::This(_) = what {
                    return Err(NameError::Changed.into());
                }
                continue;
            }
            self.begin_change()?;
            self.may_delete(cred, dir, &victim)?;
            match (&what, victim.kind == FileType::Directory) {
                (Victim::Directory, false) => return Err(NameError::NotDirectory.into()),
                (Victim::File, true) => return Err(NameError::IsDirectory.into()),
                _ => {}
            }
            if victim.ino == self.info.root {
                return Err(NameError::Busy.into());
            }
            let (before, stamp) = (self.before(dir, want_info), self.names_stamp(dir));
            self.trusting(&[(dir, name)], self.guarded(|| self.fs.unlink(cred, dir, name, &victim)))?;
            self.put_changed(dir, name, None, stamp);
            let info = self.info_since(dir, before);
            drop(locks);
            self.notify(dir, ChangeKind::Names);
            self.notify(&victim, ChangeKind::Metadata);
            self.sync_names_if_required(&[dir])?;
            return Ok(info);
        }
    }

    /// Whether `ancestor` is `dir` or one of its parents. Under the move lock.
    fn is_below(&self, cred: &Cred, dir: &InodeRef, ancestor: Ino) -> Result<bool> {
        let mut at = dir.clone();
        for _ in 0..MAX_DEPTH {
            if at.ino == ancestor {
                return Ok(true);
            }
            if at.ino == self.info.root {
                return Ok(false);
            }
            let parent = {
                let _names = self.names_lock(&at)?;
                self.parent(cred, &at)?
            };
            at = parent;
        }
        Err(crate::error::Error::corrupt(
            "the parents of a directory form a loop",
            format!("inode {}", dir.ino),
        ))
    }

    /// Renames. Replaces the inode that has the new name unless `NOREPLACE`, or swaps the names (`EXCHANGE`).
    #[allow(clippy::too_many_arguments)]
    pub fn rename(
        &self,
        cred: &Cred,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
        want_info: bool,
    ) -> Result<Option<(ChangeInfo, ChangeInfo)>> {
        let asked = Asked { old: (old_dir, old_name), new: (new_dir, new_name), flags, expected: None };
        self.move_name(cred, &asked, want_info)
    }

    /// Renames the inode that the caller found, replacing the one that it found under the new name. Returns
    /// [`NameError::Changed`] and does nothing if one of the names refers to another inode.
    pub fn rename_expected(
        &self,
        cred: &Cred,
        old: (&InodeRef, &[u8]),
        new: (&InodeRef, &[u8]),
        expected: Expected<'_>,
        want_info: bool,
    ) -> Result<Option<(ChangeInfo, ChangeInfo)>> {
        let asked = Asked { old, new, flags: RenameFlags::empty(), expected: Some(expected) };
        self.move_name(cred, &asked, want_info)
    }

    fn move_name(
        &self,
        cred: &Cred,
        asked: &Asked<'_>,
        want_info: bool,
    ) -> Result<Option<(ChangeInfo, ChangeInfo)>> {
        let &Asked { old: (old_dir, old_name), new: (new_dir, new_name), flags, expected } = asked;
        self.reclaim();
        self.check_old_name(old_dir, old_name)?;
        self.check_old_name(new_dir, new_name)?;
        if is_dot(old_name) || is_dot(new_name) {
            return Err(NameError::Busy.into());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.contains(RenameFlags::NOREPLACE) {
            return Err(NameError::Invalid.into());
        }
        self.access(cred, old_dir, EXECUTE)?;
        self.access(cred, new_dir, EXECUTE)?;
        let crosses = old_dir.ino != new_dir.ino;
        loop {
            let (inode, found) = match expected {
                Some(Expected { moved, replaced }) => (moved.clone(), replaced.cloned()),
                None => (
                    self.find_ref(cred, old_dir, old_name)?.ok_or(NameError::NotFound)?,
                    self.find_ref(cred, new_dir, new_name)?,
                ),
            };
            // Another spelling of its own name: there is nothing to replace.
            let respells = !crosses && old_name != new_name && self.fs.same_name(old_name, new_name);
            let target = found.clone().filter(|found| !(respells && found.ino == inode.ino));
            // A program that writes a new file and renames it over the old one expects one of the two after a
            // crash. So the name must not become durable before the data written so far. If this fails,
            // nothing is lost.
            let replaces = !exchange && target.as_ref().is_some_and(|target| target.ino != inode.ino);
            if replaces && inode.pages.is_dirty() {
                self.write_back_durably(&inode)?;
            }
            let target_moves =
                exchange && target.as_ref().is_some_and(|target| target.kind == FileType::Directory);
            let inode_moves = inode.kind == FileType::Directory;
            // A server refuses loops itself.
            let may_loop = crosses && (inode_moves || target_moves) && self.fs.server().is_none();
            let move_guard = may_loop.then(|| self.move_lock.lock());
            if move_guard.is_some() {
                if inode_moves && self.is_below(cred, new_dir, inode.ino)? {
                    return Err(NameError::Invalid.into());
                }
                if let Some(target) = &target
                    && target.kind == FileType::Directory
                    && self.is_below(cred, old_dir, target.ino)?
                {
                    return Err(if exchange { NameError::Invalid } else { NameError::NotEmpty }.into());
                }
            }
            let mut all: Vec<&Inode> = vec![old_dir, new_dir, &inode];
            all.extend(target.as_deref());
            let locks = self.lock_all(&all)?;
            let target_ino = target.as_ref().map(|target| target.ino);
            if self.find(cred, old_dir, old_name)? != Some(inode.ino)
                || self.find(cred, new_dir, new_name)? != found.as_ref().map(|found| found.ino)
            {
                if expected.is_some() {
                    return Err(NameError::Changed.into());
                }
                continue;
            }
            self.dir_is_alive(new_dir)?;
            if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
                return Err(NameError::Exists.into());
            }
            if exchange && target.is_none() {
                return Err(NameError::NotFound.into());
            }
            self.begin_change()?;
            self.check_rename(cred, old_dir, new_dir, &inode, target.as_deref(), exchange)?;
            if target_ino == Some(inode.ino) {
                // Two names of one file: by POSIX nothing happens.
                return Ok(self.unchanged_pair(old_dir, new_dir, want_info));
            }
            let before = (self.before(old_dir, want_info), self.before(new_dir, want_info));
            let stamps = (self.names_stamp(old_dir), self.names_stamp(new_dir));
            let rename = Rename {
                caller: cred,
                old_dir,
                old_name,
                new_dir,
                new_name,
                inode: &inode,
                target: target.as_deref(),
                exchange,
            };
            let result = self.with_space_of_dirty_data(|| self.fs.rename(&rename));
            self.trusting(&[(old_dir, old_name), (new_dir, new_name)], result)?;
            self.put_changed(old_dir, old_name, if exchange { target_ino } else { None }, stamps.0);
            self.put_changed(new_dir, new_name, Some(inode.ino), stamps.1);
            let old_info = self.info_since(old_dir, before.0);
            let new_info = if crosses { self.info_since(new_dir, before.1) } else { old_info };
            let info = old_info.zip(new_info);
            drop(locks);
            drop(move_guard);
            self.notify(old_dir, ChangeKind::Names);
            if crosses {
                self.notify(new_dir, ChangeKind::Names);
            }
            self.notify(&inode, ChangeKind::Metadata);
            if let Some(target) = &target {
                self.notify(target, ChangeKind::Metadata);
            }
            self.sync_names_if_required(&[old_dir, new_dir])?;
            return Ok(info);
        }
    }

    fn unchanged_pair(
        &self,
        old_dir: &Inode,
        new_dir: &Inode,
        want_info: bool,
    ) -> Option<(ChangeInfo, ChangeInfo)> {
        let same = |dir| {
            let value = self.before(dir, want_info)?;
            Some(ChangeInfo { before: value, after: value })
        };
        same(old_dir).zip(same(new_dir))
    }

    fn check_rename(
        &self,
        cred: &Cred,
        old_dir: &Inode,
        new_dir: &Inode,
        inode: &Inode,
        target: Option<&Inode>,
        exchange: bool,
    ) -> Result<()> {
        let is_dir = |inode: &Inode| inode.kind == FileType::Directory;
        self.may_delete(cred, old_dir, inode)?;
        match target {
            Some(target) => {
                self.may_delete(cred, new_dir, target)?;
                if !exchange && is_dir(inode) && !is_dir(target) {
                    return Err(NameError::NotDirectory.into());
                }
                if !exchange && !is_dir(inode) && is_dir(target) {
                    return Err(NameError::IsDirectory.into());
                }
            }
            None => self.access_locked(cred, new_dir, WRITE | EXECUTE)?,
        }
        check_project(new_dir, inode)?;
        if let Some(target) = target.filter(|_| exchange) {
            check_project(old_dir, target)?;
        }
        if old_dir.ino != new_dir.ino {
            // A directory that moves gets another `..`, which is a write to it.
            if is_dir(inode) {
                self.access_locked(cred, inode, WRITE)?;
            }
            if let Some(target) = target.filter(|target| exchange && is_dir(target)) {
                self.access_locked(cred, target, WRITE)?;
            }
        }
        Ok(())
    }
}
