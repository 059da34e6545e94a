//! Namespace operations, each one transaction: names, link counts, times and counters of every inode
//! involved.

use super::linear::NAME_MAX;
use crate::fs::{Ext4, Ext4Inode, Handle, core_of};
use crate::layout::RoCompat;
use crate::layout::inode::FL_INLINE_DATA;
use ivers_vfs::{
    Child, Cred, DirEntry, DirectoryOps, Error, FileType, Ino, Inode, LoadedInode, Logged, NameError,
    NewInode, Rename, Result, Touch, UnnamedFileOps,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Maximum of the names of a file and of the subdirectories that a link count counts.
pub(crate) const LINK_MAX: u32 = 65_000;
/// Blocks that adding a name changes: two splits, a level, their bitmaps and descriptors, inodes and orphans.
const CREDITS_ADD: u32 = 40;
/// Blocks that removing a name changes.
const CREDITS_REMOVE: u32 = 16;

/// The fields of a directory's inode that must be logged with its names, whatever the counter requires.
#[derive(PartialEq, Eq)]
struct Layout {
    size: u64,
    blocks_512: u64,
    flags: u32,
    nlink: u32,
}

impl Layout {
    fn of(dir: &Inode) -> Self {
        let attr = dir.attr();
        let flags = core_of(dir).read().flags;
        Self { size: attr.size, blocks_512: attr.blocks_512, flags, nlink: attr.nlink }
    }

    /// How to log a change of names since `self`.
    fn logged(&self, dir: &Inode) -> Logged {
        let now = Self::of(dir);
        // Inline names are stored in the inode.
        if *self != now || now.flags & FL_INLINE_DATA != 0 { Logged::Anyway } else { Logged::IfNeeded }
    }
}

fn is_dir(inode: &Inode) -> bool {
    inode.kind == FileType::Directory
}

impl Ext4 {
    /// Counts one more subdirectory. A count beyond the limit becomes 1 and stays 1.
    fn raise_dir_links(&self, dir: &Inode) {
        dir.with_attr(|attr| {
            if attr.nlink > 1 {
                attr.nlink = if attr.nlink >= LINK_MAX { 1 } else { attr.nlink + 1 };
            }
        });
    }

    /// Counts one subdirectory less.
    fn lower_dir_links(&self, dir: &Inode) {
        dir.with_attr(|attr| {
            if attr.nlink > 2 {
                attr.nlink -= 1;
            }
        });
    }

    fn check_dir_links(&self, dir: &Inode) -> Result<()> {
        if dir.attr().nlink >= LINK_MAX && !self.sb.ro_compat.contains(RoCompat::DIR_NLINK) {
            return Err(NameError::TooManyLinks.into());
        }
        Ok(())
    }

    /// Adds a name; on error, logs the directory's growth.
    fn add_name(&self, h: &mut Handle, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let before = Layout::of(dir);
        let result = self.dir_add(h, dir, name, inode.ino, inode.kind);
        if result.is_err() && before != Layout::of(dir) {
            self.log(h, dir)?;
        }
        result
    }

    /// Records a change of the names in `dir`.
    fn names_changed(&self, h: &mut Handle, dir: &Inode, before: &Layout) -> Result<()> {
        // Required whether or not the inode itself is logged.
        h.belongs_to(dir);
        if dir.changed(Touch::Data, before.logged(dir)).must_log() { self.log(h, dir) } else { Ok(()) }
    }

    /// Removes one name from the link count (for a directory: its only name).
    fn drop_name(&self, h: &mut Handle, inode: &Inode) -> Result<()> {
        let left = inode.with_attr(|attr| {
            attr.nlink = if attr.kind == FileType::Directory { 0 } else { attr.nlink.saturating_sub(1) };
            attr.nlink
        });
        inode.changed(Touch::Metadata, Logged::Anyway);
        if left == 0 {
            self.orphan_add(h, inode)?;
        }
        self.log(h, inode)
    }

    /// Checks that a name refers to an inode.
    fn expect_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        match self.dir_lookup(dir, name)? {
            Some((ino, _)) if ino == inode.ino => Ok(()),
            Some(_) => Err(NameError::Stale.into()),
            None => Err(NameError::NotFound.into()),
        }
    }

    fn expect_empty(&self, inode: &Inode) -> Result<()> {
        if is_dir(inode) && !self.dir_is_empty(inode)? {
            return Err(NameError::NotEmpty.into());
        }
        Ok(())
    }

    /// Makes a second object for a new inode, to work on before the VFS has it: shares the driver's data.
    fn twin(&self, loaded: &LoadedInode) -> Result<Inode> {
        let private = loaded.private.downcast_ref::<Arc<Ext4Inode>>();
        let private = private
            .ok_or_else(|| Error::corrupt("a new inode is not from this driver", self.place.clone()))?;
        Ok(Inode::detached(LoadedInode {
            ino: loaded.ino,
            generation: loaded.generation,
            attr: loaded.attr.clone(),
            counter: loaded.counter,
            private: Box::new(Arc::clone(private)),
        }))
    }

    /// Makes an inode, initializes it with `fill`, and logs it. On error, frees the inode.
    fn make(
        &self,
        dir: &Inode,
        new: &NewInode,
        fill: impl FnOnce(&mut Handle, &Inode) -> Result<()>,
    ) -> Result<LoadedInode> {
        let mut h = self.begin(CREDITS_ADD * 2)?;
        let mut loaded = self.alloc_inode(&mut h, dir, new)?;
        let twin = self.twin(&loaded)?;
        let result = self.xattr_init(&mut h, &twin, &new.xattrs).and_then(|()| fill(&mut h, &twin));
        match result {
            Ok(()) => {
                self.log(&mut h, &twin)?;
                loaded.attr = twin.attr();
                Ok(loaded)
            }
            Err(error) => {
                twin.with_attr(|attr| attr.nlink = 0);
                let undone = self.orphan_add(&mut h, &twin).and_then(|()| self.log(&mut h, &twin));
                drop(h);
                if let Err(second) = undone.and_then(|()| self.delete_unused(&twin)) {
                    log::warn!("{}: inode {}: not freed: {second}; run e2fsck", self.place, twin.ino);
                    // Part of the change may be in the running transaction: report it to the VFS.
                    return Err(second);
                }
                Err(error)
            }
        }
    }
}

impl DirectoryOps for Ext4 {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.dir_lookup(dir, name)?.map(|(ino, _)| Child::Number(ino)))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.dir_parent(dir)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.dir_read(dir, cursor, emit)
    }

    /// Makes an inode with one name.
    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        if name.len() > NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        let directory = new.kind == FileType::Directory;
        if directory {
            self.check_dir_links(dir)?;
        }
        self.make(dir, new, |h, inode| {
            inode.with_attr(|attr| attr.nlink = if directory { 2 } else { 1 });
            match new.kind {
                FileType::Directory => self.dir_init(h, inode, dir.ino)?,
                FileType::Symlink => self.write_symlink(h, inode, &new.target)?,
                _ => {}
            }
            let before = Layout::of(dir);
            self.add_name(h, dir, name, inode)?;
            if directory {
                self.raise_dir_links(dir);
            }
            self.names_changed(h, dir, &before)
        })
    }

    /// Adds a name to an inode.
    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        if inode.attr().nlink >= LINK_MAX {
            return Err(NameError::TooManyLinks.into());
        }
        let mut h = self.begin(CREDITS_ADD)?;
        let before = Layout::of(dir);
        self.add_name(&mut h, dir, name, inode)?;
        let was_orphan = inode.with_attr(|attr| {
            attr.nlink += 1;
            attr.nlink == 1
        });
        if was_orphan {
            self.orphan_del(&mut h, inode)?;
        }
        inode.changed(Touch::Metadata, Logged::Anyway);
        self.log(&mut h, inode)?;
        self.names_changed(&mut h, dir, &before)
    }

    /// Removes a name.
    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.expect_name(dir, name, inode)?;
        self.expect_empty(inode)?;
        let mut h = self.begin(CREDITS_REMOVE)?;
        let before = Layout::of(dir);
        self.dir_remove(&mut h, dir, name)?;
        if is_dir(inode) {
            self.lower_dir_links(dir);
        }
        self.names_changed(&mut h, dir, &before)?;
        self.drop_name(&mut h, inode)
    }

    /// Renames, replaces or exchanges.
    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        let Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = *rename;
        let moves = old_dir.ino != new_dir.ino;
        self.expect_name(old_dir, old_name, inode)?;
        if let Some(target) = target {
            self.expect_name(new_dir, new_name, target)?;
            if !exchange {
                self.expect_empty(target)?;
            }
        }
        if is_dir(inode) && moves && !target.is_some_and(is_dir) {
            self.check_dir_links(new_dir)?;
        }
        let mut h = self.begin(CREDITS_ADD + CREDITS_REMOVE)?;
        let h = &mut h;
        let (old_before, new_before) = (Layout::of(old_dir), Layout::of(new_dir));
        match target {
            Some(target) if exchange => {
                if is_dir(target) && moves && !is_dir(inode) {
                    self.check_dir_links(old_dir)?;
                }
                self.dir_set(h, new_dir, new_name, inode.ino, inode.kind)?;
                self.dir_set(h, old_dir, old_name, target.ino, target.kind)?;
                if moves && is_dir(target) {
                    self.dir_set_parent(h, target, old_dir.ino)?;
                    self.lower_dir_links(new_dir);
                    self.raise_dir_links(old_dir);
                }
                target.changed(Touch::Metadata, Logged::Anyway);
                self.log(h, target)?;
            }
            Some(target) => {
                self.dir_set(h, new_dir, new_name, inode.ino, inode.kind)?;
                self.dir_remove(h, old_dir, old_name)?;
                if is_dir(target) {
                    self.lower_dir_links(new_dir);
                }
                self.drop_name(h, target)?;
            }
            None => {
                self.add_name(h, new_dir, new_name, inode)?;
                self.dir_remove(h, old_dir, old_name)?;
            }
        }
        if moves && is_dir(inode) {
            self.dir_set_parent(h, inode, new_dir.ino)?;
            self.lower_dir_links(old_dir);
            self.raise_dir_links(new_dir);
        }
        inode.changed(Touch::Metadata, Logged::Anyway);
        self.log(h, inode)?;
        self.names_changed(h, new_dir, &new_before)?;
        if moves { self.names_changed(h, old_dir, &old_before) } else { Ok(()) }
    }
}

impl UnnamedFileOps for Ext4 {
    /// Makes an unnamed file: an orphan until it is linked.
    fn create_unnamed(&self, _caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, new, |h, inode| {
            inode.with_attr(|attr| attr.nlink = 0);
            if new.kind == FileType::Symlink {
                self.write_symlink(h, inode, &new.target)?;
            }
            self.orphan_add(h, inode)
        })
    }
}
