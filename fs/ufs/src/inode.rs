//! Inodes: making, linking, unlinking and deleting them.

use crate::layout::dinode::{Dinode, set_links};
use crate::layout::superblock::Version;
use crate::names::{NameGoes, NewName, check_name};
use crate::volume::{Private, State, Ufs, private_of};
use ivers_block::BlockNo;
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::{FileType, Inode, LoadedInode, Logged, NameError, NewInode, Result, Touch, XattrMode};
use ivers_write_ordering::{Change, Ordered, Stage};

/// The largest link count. The field has 16 bits, and older systems read it as a signed number.
pub(crate) const LINKS_MAX: u32 = 32_767;
/// Longest target of a symbolic link: that of the BSDs.
const LINK_TARGET_MAX: usize = 1023;

impl Ufs {
    pub(crate) fn ino_of(inode: &Inode) -> u32 {
        inode.ino.0 as u32
    }

    /// Raises the stored link count before something new refers to the inode.
    pub(crate) fn raise_links(&self, change: &Change<'_>, inode: &Inode) -> Result<()> {
        let links = inode.with_attr(|attr| attr.nlink).saturating_add(1).min(u16::MAX.into()) as u16;
        self.alloc()?.keep_links(Self::ino_of(inode));
        self.put_slot(change, Stage::Detach, Self::ino_of(inode), |bytes| set_links(bytes, &self.sb, links))
    }

    pub(crate) fn fs_create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        check_name(name)?;
        let is_dir = new.kind == FileType::Directory;
        if new.target.len() > LINK_TARGET_MAX {
            return Err(NameError::NameTooLong.into());
        }
        if is_dir && dir.with_attr(|attr| attr.nlink) >= LINKS_MAX {
            return Err(NameError::TooManyLinks.into());
        }
        self.prepare_add(dir, name)?;
        let ino = self.alloc()?.inode(&self.change()?, Self::ino_of(dir), is_dir)?;
        let created = self.new_inode(ino, new).and_then(|private| {
            let filled = self.fill_inode(dir, &private, new);
            match filled.and_then(|()| self.name_inode(dir, name, &private, is_dir)) {
                Ok(()) => Ok(private),
                Err(error) => {
                    let change = self.change()?;
                    self.free_blocks(&change, &mut private.state.write())?;
                    Err(error)
                }
            }
        });
        match created {
            Ok(private) => Ok(Self::loaded(private)),
            Err(error) => {
                self.alloc()?.cancel_inode(&self.change()?, ino, is_dir)?;
                Err(error)
            }
        }
    }

    /// Returns a new inode in the place of an old one.
    fn new_inode(&self, ino: u32, new: &NewInode) -> Result<Private> {
        let (fragment, at) = self.sb.inode_place(ino);
        let old = self.cache.get(BlockNo(fragment))?.read();
        if Dinode::is_used(&old[at..], &self.sb) {
            return Err(self.corrupt(ino, "the inode is in use, but marked as free; run ivers check"));
        }
        let generation = Dinode::generation_in(&old[at..], &self.sb).wrapping_add(1).max(1);
        let mut dinode = Dinode::free(ino, generation);
        let mut attr = new.attr(if new.kind == FileType::Directory { 2 } else { 1 });
        attr.btime = attr.btime.filter(|_| self.sb.version == Version::Ufs2);
        dinode.set_attr(&attr);
        match new.kind {
            FileType::CharDevice | FileType::BlockDevice => dinode.pointers[0] = new.rdev.into(),
            FileType::Symlink if (new.target.len() as u32) < self.sb.short_link_max => {
                dinode.size = new.target.len() as u64;
                dinode.short_link = Some(new.target.clone());
            }
            _ => {}
        }
        Ok(Private::new(dinode))
    }

    /// Gives a new inode its extended attributes and its contents.
    fn fill_inode(&self, dir: &Inode, private: &Private, new: &NewInode) -> Result<()> {
        if !new.xattrs.is_empty() {
            let change = self.change()?;
            let mut state = private.state.write();
            for (name, value) in &new.xattrs {
                self.change_area(&change, &mut state, name, Some(value), XattrMode::Any)?;
            }
        }
        let is_long = new.kind == FileType::Symlink && private.state.read().dinode.short_link.is_none();
        let (data, size) = match new.kind {
            FileType::Directory => {
                let change = self.change()?;
                return self.make_directory(&change, &mut private.state.write(), Self::ino_of(dir));
            }
            FileType::Symlink if is_long => (&new.target[..], new.target.len() as u64),
            FileType::Regular if new.size > 0 => (&[][..], new.size),
            _ => return Ok(()),
        };
        let plan = self.write_data(private, 0, data, size)?;
        let change = self.change()?;
        self.attach(&change, &mut private.state.write(), plan)
    }

    /// Writes a new inode, and gives it a name.
    fn name_inode(&self, dir: &Inode, name: &[u8], private: &Private, is_dir: bool) -> Result<()> {
        let dinode = private.state.read().dinode.clone();
        let kind = dinode.kind().ok_or(NameError::Invalid)?;
        let change = self.change()?;
        let new = NewName { name, ino: dinode.ino, kind };
        let grew = self.add_name(&change, &mut private_of(dir).state.write(), new)?;
        // After the marks of what it takes, and before its name.
        self.put_slot(&change, Stage::Detach, dinode.ino, |bytes| {
            bytes.fill(0);
            dinode.encode(bytes, &self.sb);
        })?;
        if is_dir {
            self.raise_links(&change, dir)?;
        }
        self.names_changed(&change, dir, is_dir.into(), grew)
    }

    pub(crate) fn fs_link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        check_name(name)?;
        if inode.with_attr(|attr| attr.nlink) >= LINKS_MAX {
            return Err(NameError::TooManyLinks.into());
        }
        self.settle(inode)?;
        self.prepare_add(dir, name)?;
        let change = self.change()?;
        let new = NewName { name, ino: Self::ino_of(inode), kind: inode.kind };
        let grew = self.add_name(&change, &mut private_of(dir).state.write(), new)?;
        self.raise_links(&change, inode)?;
        inode.with_attr(|attr| attr.nlink += 1);
        self.log_changed(&change, inode, Touch::Metadata, Logged::Anyway)?;
        // Another name may be removed because this one exists.
        private_of(inode).state.write().ticket = change.ticket();
        self.names_changed(&change, dir, 0, grew)
    }

    pub(crate) fn fs_unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.check_removable(inode)?;
        self.settle(inode)?;
        let change = self.change()?;
        let removed = (name, Self::ino_of(inode));
        let stays = self.remove_name(&change, &mut private_of(dir).state.write(), removed, Stage::Detach)?;
        self.forget_name(inode)?;
        match stays {
            true => self.log_with_links(&change, inode, NameGoes::BeforeCut)?,
            false => self.log_changed(&change, inode, Touch::Metadata, Logged::Anyway)?,
        }
        self.names_changed(&change, dir, if inode.kind == FileType::Directory { -1 } else { 0 }, false)
    }

    /// Lowers the link count of an inode that lost a name. The caller puts it into the batch.
    pub(crate) fn forget_name(&self, inode: &Inode) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        let links = inode.with_attr(|attr| {
            attr.nlink = if is_dir { 0 } else { attr.nlink.saturating_sub(1) };
            attr.nlink
        });
        if links == 0 {
            self.writer()?.orphans.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees the contents and the extended attributes of an inode.
    fn free_blocks(&self, change: &Change<'_>, state: &mut State) -> Result<()> {
        if state.dinode.has_blocks() {
            self.cut(change, state, 0)?;
        }
        self.put_area(change, state, &[])
    }

    pub(crate) fn fs_delete_inode(&self, inode: &Inode) -> Result<()> {
        self.drop_reservation(inode);
        let change = self.change()?;
        let mut state = private_of(inode).state.write();
        self.free_blocks(&change, &mut state)?;
        let dinode = &state.dinode;
        let (ino, generation) = (dinode.ino, dinode.generation);
        let empty = Dinode::free(ino, generation);
        self.put_dinode(&change, Stage::Cut, &empty)?;
        self.alloc()?.free_inode(&change, ino, inode.kind == FileType::Directory);
        self.writer()?.orphans.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn fs_log_inode(&self, inode: &Inode) -> Result<()> {
        self.settle(inode)?;
        let change = self.change()?;
        self.log_state(&change, inode, &mut private_of(inode).state.write())
    }

    /// Makes durable what later changes of an inode must follow, before it is forgotten.
    pub(crate) fn settle_before_eviction(&self, inode: &Inode) {
        self.names.forget(inode.ino);
        if self.writer.is_none() {
            return;
        }
        self.drop_reservation(inode);
        let ticket = {
            let state = private_of(inode).state.read();
            state.ticket.max(state.pending.ticket)
        };
        if inode.with_attr(|attr| attr.nlink) > 0 {
            // An error stops all writing, and later calls report it.
            let _ = self.wait_for_batch(|ordered| ordered.settle(ticket));
        }
    }

    /// Closes the filesystem: see [`Ordered::close`].
    pub(crate) fn close(&self) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        if writer.orphans.load(Ordering::Relaxed) > 0 {
            writer.alloc.keep_dirty_mark();
        }
        self.wait_for_batch(Ordered::close)
    }
}
