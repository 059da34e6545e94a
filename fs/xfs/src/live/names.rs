//! Names: each call is one change.

use super::change::Edited;
use super::vnode::{XfsInode, core_of};
use super::volume::Xfs;
use crate::dir::DirSource;
use crate::inode::Dinode;
use crate::layout::directory::{NAME_MAX, dir_unit};
use crate::layout::features::Incompat;
use crate::write::names::{Exchange, NewFile, Renaming};
use ivers_vfs::*;
use std::sync::Arc;

/// Blocks that a change of names may take, beside those of a new chunk of inodes and of the directory: blocks
/// of maps and of the B-trees of groups.
const NAME_BLOCKS: u64 = 48;
/// Blocks of attributes that a parent pointer may take, and another one that changes places with it.
const PARENT_BLOCKS: u64 = 16;
/// Blocks of a directory that a new name may take: data, hashes, index of free space, and levels of nodes.
const DIRECTORY_BLOCKS: u64 = 8;

impl Xfs {
    fn has_parents(&self) -> bool {
        self.sb.incompat.contains(Incompat::PARENT)
    }

    /// Checks a new name, and that there is space for it.
    fn expect_room(&self, name: &[u8], makes_inode: bool) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        let chunks = if makes_inode { 2 * u64::from(self.sb.chunk_blocks()) } else { 0 };
        let parents = if self.has_parents() { PARENT_BLOCKS } else { 0 };
        self.session()?.check_space(NAME_BLOCKS + DIRECTORY_BLOCKS * dir_unit(&self.sb) + chunks + parents)
    }

    fn expect_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        match self.find_name(&core_of(dir), name)? {
            Some(ino) if ino == inode.ino.0 => Ok(()),
            Some(_) => Err(NameError::Stale.into()),
            None => Err(NameError::NotFound.into()),
        }
    }

    /// The parts of a new inode for the VFS, and an object of it to publish.
    fn announce(&self, core: Dinode, new: &NewInode) -> Result<(LoadedInode, Inode)> {
        let mut attr = new.attr(core.nlink());
        attr.flags = core.attr(&self.sb).flags;
        let (ino, generation, counter) = (core.ino, core.generation(), core.change_count());
        let private = XfsInode::new(core, self.session()?.commits.loaded());
        let loaded = |private: &Arc<XfsInode>| LoadedInode {
            ino: Ino(ino),
            generation,
            attr: attr.clone(),
            counter: InitialCounter::Fresh(counter),
            private: Box::new(private.clone()),
        };
        Ok((loaded(&private), Inode::detached(loaded(&private))))
    }

    /// Makes an inode: with a name in `dir`, or on the list of unlinked inodes.
    pub(super) fn make(&self, dir: &Inode, name: Option<&[u8]>, new: &NewInode) -> Result<LoadedInode> {
        self.expect_room(name.unwrap_or_default(), true)?;
        let xattrs: Vec<_> = new.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let file = NewFile {
            kind: new.kind,
            perm: new.perm,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            target: &new.target,
            xattrs: &xattrs,
            now: new.now,
        };
        let mut change = self.change()?;
        let mut parent = Edited::new(dir).touched(Touch::Data);
        let mut core = match name {
            Some(name) => change.tx.create(&mut parent.core, name, &file)?,
            None => change.tx.create_unnamed(&parent.core, &file)?,
        };
        if new.kind == FileType::Regular {
            core.set_size(new.size);
        }
        let (mut loaded, inode) = self.announce(core, new)?;
        let mut edited = vec![Edited::new(&inode).logged()];
        edited.extend(name.is_some().then_some(parent));
        change.finish(edited)?;
        loaded.attr = inode.attr();
        Ok(loaded)
    }

    pub(super) fn link_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.expect_room(name, false)?;
        let mut change = self.change()?;
        let mut parent = Edited::new(dir).touched(Touch::Data);
        let mut child = Edited::new(inode).touched(Touch::Metadata);
        let now = child.time();
        change.tx.link(&mut parent.core, name, &mut child.core, now)?;
        change.finish(vec![parent, child])
    }

    pub(super) fn unlink_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let mut change = self.change()?;
        let mut parent = Edited::new(dir).touched(Touch::Data);
        let mut child = Edited::new(inode).touched(Touch::Metadata);
        let now = child.time();
        change.tx.unlink(&mut parent.core, name, &mut child.core, now)?;
        change.finish(vec![parent, child])
    }

    pub(super) fn rename_name(&self, rename: &Rename<'_>) -> Result<()> {
        let Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = *rename;
        self.expect_name(old_dir, old_name, inode)?;
        if let Some(target) = target {
            self.expect_name(new_dir, new_name, target)?;
        }
        // A parent pointer may grow even if no directory does.
        if target.is_none() || self.has_parents() {
            self.expect_room(new_name, false)?;
        }
        let mut change = self.change()?;
        let mut from = Edited::new(old_dir).touched(Touch::Data);
        let mut to = (old_dir.ino != new_dir.ino).then(|| Edited::new(new_dir).touched(Touch::Data));
        let mut child = Edited::new(inode).touched(Touch::Metadata);
        let mut other = target.map(|target| Edited::new(target).touched(Touch::Metadata));
        let now = child.time();
        match &mut other {
            Some(other) if exchange => change.tx.exchange(Exchange {
                dir: &mut from.core,
                name: old_name,
                inode: &mut child.core,
                other_dir: to.as_mut().map(|to| &mut to.core),
                other_name: new_name,
                other: &mut other.core,
                now,
            })?,
            other => change.tx.rename(Renaming {
                dir: &mut from.core,
                name: old_name,
                inode: &mut child.core,
                new_dir: to.as_mut().map(|to| &mut to.core),
                new_name,
                replaced: other.as_mut().map(|other| &mut other.core),
                now,
            })?,
        }
        change.finish([Some(from), to, Some(child), other].into_iter().flatten().collect())
    }
}
