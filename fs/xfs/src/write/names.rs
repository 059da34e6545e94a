//! Operations of a user on names. Each is one transaction; the caller has checked what the VFS checks: types,
//! permissions, and whether names exist.
//!
//! Inodes are clones of those that others see. All that are changed are logged here.

use super::dir::Target;
use super::inode::{NewDinode, inode_id};
use super::tx::Tx;
use crate::fork::Which;
use crate::inode::Dinode;
use crate::layout::bytes::read;
use crate::layout::dinode::{FILE_BLOCKS_END, LINKS_MAX, flags, flags2};
use crate::layout::directory::ftype;
use crate::layout::features::Incompat;
use crate::layout::raw::RawDinode;
use ivers_block::FileBlock;
use ivers_vfs::{FileType, NameError, Result, Timestamp, XattrMode};

/// Bits of `di_flags` that new inodes get from their directory.
const INHERITED: u16 = flags::SYNC | flags::NOATIME | flags::NODUMP;

/// What to create.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFile<'a> {
    pub(crate) kind: FileType,
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The number of a device.
    pub(crate) rdev: u32,
    /// The target of a symbolic link.
    pub(crate) target: &'a [u8],
    /// Full names and values of attributes that it has from the start.
    pub(crate) xattrs: &'a [(&'a [u8], &'a [u8])],
    pub(crate) now: Timestamp,
}

/// A name that moves.
pub(crate) struct Renaming<'a> {
    pub(crate) dir: &'a mut Dinode,
    pub(crate) name: &'a [u8],
    pub(crate) inode: &'a mut Dinode,
    /// The new directory, if it is another one.
    pub(crate) new_dir: Option<&'a mut Dinode>,
    pub(crate) new_name: &'a [u8],
    /// What has the new name now.
    pub(crate) replaced: Option<&'a mut Dinode>,
    pub(crate) now: Timestamp,
}

/// Two names that change places.
pub(crate) struct Exchange<'a> {
    pub(crate) dir: &'a mut Dinode,
    pub(crate) name: &'a [u8],
    pub(crate) inode: &'a mut Dinode,
    /// The directory of the other name, if it is another one.
    pub(crate) other_dir: Option<&'a mut Dinode>,
    pub(crate) other_name: &'a [u8],
    pub(crate) other: &'a mut Dinode,
    pub(crate) now: Timestamp,
}

impl Dinode {
    fn target(&self) -> Target {
        Target { ino: self.ino, ftype: self.kind().dirent_number() }
    }

    fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Inode and generation, for parent pointers.
    fn identity(&self) -> (u64, u32) {
        (self.ino, self.generation())
    }

    fn change_links(&mut self, difference: i32) -> Result<()> {
        let links = self.nlink().checked_add_signed(difference).filter(|links| *links <= LINKS_MAX);
        self.set_nlink(links.ok_or(NameError::TooManyLinks)?);
        Ok(())
    }
}

/// A name, and the directory that has it.
type Named<'a> = (&'a [u8], (u64, u32));

impl Tx<'_> {
    fn has_parents(&self) -> bool {
        self.space().sb.incompat.contains(Incompat::PARENT)
    }

    /// Allocates an inode near another one, without links.
    fn new_inode(&mut self, near: &Dinode, new: &NewFile<'_>) -> Result<Dinode> {
        let is_dir = new.kind == FileType::Directory;
        let ino = self.allocate_inode(near.ino, is_dir)?.ok_or(NameError::NoSpace)?;
        let (generation, change_count) = self.slot_counters(ino)?;
        let set = near.raw.di_flags.get();
        let mut inherited = set & INHERITED;
        let mut project = 0;
        if set & flags::PROJINHERIT != 0 {
            project = near.attr(&self.space().sb).project;
            inherited |= if is_dir { flags::PROJINHERIT } else { 0 };
        }
        let core = NewDinode {
            kind: new.kind,
            perm: new.perm,
            uid: new.uid,
            gid: new.gid,
            project,
            flags: inherited,
            rdev: new.rdev,
            now: new.now,
            generation: generation.wrapping_add(1),
            change_count: change_count.wrapping_add(1),
        };
        let mut inode = Dinode::new(&self.space().sb, ino, &core);
        match new.kind {
            FileType::Directory => self.init_directory(&mut inode, near.ino),
            FileType::Symlink => self.init_link(&mut inode, new.target)?,
            _ => {}
        }
        for (name, value) in new.xattrs {
            self.set_attribute(&mut inode, name, Some(value), XattrMode::Create)?;
        }
        Ok(inode)
    }

    /// Generation and change counter of the inode that had a number before.
    fn slot_counters(&self, ino: u64) -> Result<(u32, u64)> {
        let whose = crate::unit::Whose::Inode(ino);
        let (cluster, at) = (self.space().sb.inode_cluster(ino))
            .ok_or_else(|| self.space().corrupt("an inode outside its group is free", whose))?;
        let cluster = self.read_unit(&cluster, None, whose)?;
        let slot = cluster.get(at..at + self.space().sb.inode_size as usize);
        let mut slot = slot.unwrap_or_default().to_vec();
        // A version in the log may be newer than that in place.
        if let Some(patch) = self.space().journal.newest_patch(inode_id(ino)) {
            patch.apply_to_part(at, &mut slot);
        }
        let raw: RawDinode = read(&slot, 0)
            .ok_or_else(|| self.space().corrupt("an inode outside its cluster is free", whose))?;
        Ok((raw.di_gen.get(), raw.di_changecount.get()))
    }

    /// Creates a file of any type; returns its inode.
    pub(crate) fn create(&mut self, dir: &mut Dinode, name: &[u8], new: &NewFile<'_>) -> Result<Dinode> {
        let mut inode = self.new_inode(dir, new)?;
        inode.set_nlink(if inode.is_dir() { 2 } else { 1 });
        if inode.is_dir() {
            dir.change_links(1)?;
        }
        self.add_name(dir, name, &mut inode, new.now)?;
        inode.log(self)?;
        dir.log(self)?;
        Ok(inode)
    }

    /// Creates a file without a name. It goes when it is closed, unless it gets a name.
    pub(crate) fn create_unnamed(&mut self, dir: &Dinode, new: &NewFile<'_>) -> Result<Dinode> {
        let inode = self.new_inode(dir, new)?;
        self.add_unlinked(inode.ino)?;
        inode.log(self)?;
        Ok(inode)
    }

    /// Adds a name, and the parent pointer for it.
    fn add_name(&mut self, dir: &mut Dinode, name: &[u8], inode: &mut Dinode, now: Timestamp) -> Result<()> {
        self.add_entry(dir, name, inode.target())?;
        dir.set_mtime(now);
        if self.has_parents() {
            self.add_parent(inode, name, dir.identity())?;
        }
        Ok(())
    }

    fn remove_parent_of(&mut self, inode: &mut Dinode, name: &[u8], dir: &Dinode) -> Result<()> {
        if self.has_parents() { self.remove_parent(inode, name, dir.identity()) } else { Ok(()) }
    }

    /// Replaces the parent pointer of a name by that of another one.
    fn move_pointer(&mut self, inode: &mut Dinode, old: Named<'_>, new: Named<'_>) -> Result<()> {
        if self.has_parents() { self.replace_parent(inode, old, new) } else { Ok(()) }
    }

    /// Gives a file another name.
    pub(crate) fn link(
        &mut self,
        dir: &mut Dinode,
        name: &[u8],
        inode: &mut Dinode,
        now: Timestamp,
    ) -> Result<()> {
        if inode.nlink() == 0 {
            self.remove_unlinked(inode.ino)?;
        }
        inode.change_links(1)?;
        inode.set_ctime(now);
        self.add_name(dir, name, inode, now)?;
        inode.log(self)?;
        dir.log(self)
    }

    /// Takes a link away. Without links the inode joins the list of unlinked inodes.
    fn drop_link(&mut self, inode: &mut Dinode, now: Timestamp) -> Result<()> {
        // A directory has its own `.` too.
        inode.change_links(if inode.is_dir() { -2 } else { -1 })?;
        inode.set_ctime(now);
        if inode.nlink() == 0 {
            self.add_unlinked(inode.ino)?;
        }
        Ok(())
    }

    /// Removes a name; that of a directory only if it is empty.
    pub(crate) fn unlink(
        &mut self,
        dir: &mut Dinode,
        name: &[u8],
        inode: &mut Dinode,
        now: Timestamp,
    ) -> Result<()> {
        if inode.is_dir() {
            if !self.is_empty_directory(inode)? {
                return Err(NameError::NotEmpty.into());
            }
            dir.change_links(-1)?;
        }
        if self.remove_entry(dir, name)?.ino != inode.ino {
            return Err(NameError::Stale.into());
        }
        dir.set_mtime(now);
        self.remove_parent_of(inode, name, dir)?;
        self.drop_link(inode, now)?;
        inode.log(self)?;
        dir.log(self)
    }

    /// Moves a name. What had the new name loses a link.
    pub(crate) fn rename(&mut self, renaming: Renaming<'_>) -> Result<()> {
        let Renaming { dir, name, inode, mut new_dir, new_name, replaced, now } = renaming;
        let moves_dir = inode.is_dir() && new_dir.is_some();
        {
            let to = new_dir.as_deref_mut().unwrap_or(dir);
            match &replaced {
                Some(replaced) => {
                    if replaced.is_dir() && !self.is_empty_directory(replaced)? {
                        return Err(NameError::NotEmpty.into());
                    }
                    self.replace_entry(to, new_name, inode.target())?;
                }
                None => self.add_entry(to, new_name, inode.target())?,
            }
            if let Some(replaced) = replaced {
                if replaced.is_dir() {
                    to.change_links(-1)?;
                }
                self.remove_parent_of(replaced, new_name, to)?;
                self.drop_link(replaced, now)?;
                replaced.log(self)?;
            }
            if moves_dir {
                to.change_links(1)?;
                let parent = Target { ino: to.ino, ftype: ftype::DIRECTORY };
                self.replace_entry(inode, b"..", parent)?;
            }
            to.set_mtime(now);
        }
        if moves_dir {
            dir.change_links(-1)?;
        }
        self.remove_entry(dir, name)?;
        let there = new_dir.as_deref().unwrap_or(dir).identity();
        self.move_pointer(inode, (name, dir.identity()), (new_name, there))?;
        dir.set_mtime(now);
        inode.set_ctime(now);
        inode.log(self)?;
        if let Some(new_dir) = new_dir {
            new_dir.log(self)?;
        }
        dir.log(self)
    }

    /// Lets two names change places.
    pub(crate) fn exchange(&mut self, exchange: Exchange<'_>) -> Result<()> {
        let Exchange { dir, name, inode, mut other_dir, other_name, other, now } = exchange;
        self.replace_entry(dir, name, other.target())?;
        self.replace_entry(other_dir.as_deref_mut().unwrap_or(dir), other_name, inode.target())?;
        if let Some(other_dir) = other_dir.as_deref_mut() {
            self.move_parent(inode, dir, other_dir)?;
            self.move_parent(other, other_dir, dir)?;
        }
        let first = (name, dir.identity());
        let second = (other_name, other_dir.as_deref().unwrap_or(dir).identity());
        self.move_pointer(inode, first, second)?;
        self.move_pointer(other, second, first)?;
        dir.set_mtime(now);
        inode.set_ctime(now);
        other.set_ctime(now);
        if let Some(other_dir) = other_dir {
            other_dir.set_mtime(now);
            other_dir.log(self)?;
        }
        inode.log(self)?;
        other.log(self)?;
        dir.log(self)
    }

    /// Gives a directory another parent; nothing for other files.
    fn move_parent(&mut self, moved: &mut Dinode, from: &mut Dinode, to: &mut Dinode) -> Result<()> {
        if !moved.is_dir() {
            return Ok(());
        }
        from.change_links(-1)?;
        to.change_links(1)?;
        self.replace_entry(moved, b"..", Target { ino: to.ino, ftype: ftype::DIRECTORY })
    }

    /// Frees what an inode without links has, at most `limit` extents of each fork, and at last the inode.
    /// Returns whether it is free. Call it in new transactions until it is.
    pub(crate) fn release_inode(&mut self, inode: &mut Dinode, limit: usize) -> Result<bool> {
        let is_empty = self.empty_inode(inode, limit)?;
        if is_empty {
            self.free_inode(inode.ino)?;
        }
        Ok(is_empty)
    }

    /// As [`Tx::release_inode`], but leaves it to the caller to free the inode in the same transaction.
    pub(crate) fn empty_inode(&mut self, inode: &mut Dinode, limit: usize) -> Result<bool> {
        match inode.kind() {
            FileType::Regular => {
                let all = (FileBlock(0), FileBlock(FILE_BLOCKS_END));
                if !self.unmap_range(inode, Which::Data, all.0, all.1, limit)? {
                    inode.log(self)?;
                    return Ok(false);
                }
            }
            FileType::Symlink => self.free_target(inode)?,
            _ => {}
        }
        if !self.free_attributes(inode, limit)? {
            inode.log(self)?;
            return Ok(false);
        }
        self.remove_unlinked(inode.ino)?;
        inode.data = crate::fork::Fork::Extents(Vec::new());
        let raw = &mut inode.raw;
        raw.di_mode = 0.into();
        raw.di_flags = 0.into();
        raw.di_extsize = 0.into();
        raw.di_cowextsize = 0.into();
        raw.di_flags2 = (raw.di_flags2.get() & (flags2::BIGTIME | flags2::NREXT64)).into();
        raw.di_gen = raw.di_gen.get().wrapping_add(1).into();
        inode.log(self)?;
        Ok(true)
    }
}
