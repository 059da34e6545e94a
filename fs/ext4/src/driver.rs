//! The calls of the VFS.

use crate::bootloader::SWAP_BOOT;
use crate::ctx::{Ext4, Ext4Inode, Handle, ROOT_INO, core_of};
use crate::layout::features::{Compat, RoCompat};
use crate::layout::inode::{FL_EXTENTS, FL_INLINE_DATA};
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Where files end at the latest, in blocks: the numbers of file blocks have 32 bits.
const ALL_BLOCKS: u64 = u32::MAX as u64;

impl Ext4 {
    /// Free an inode that nobody uses any more, and the attribute inodes that nobody names then. They may name others in turn, on
    /// a hostile image as many as there are inodes: a list, not a recursion.
    pub(crate) fn fs_delete_inode(&self, inode: &Inode) -> Result<()> {
        let mut dead = self.delete_one_inode(inode)?;
        while let Some(next) = dead.pop() {
            dead.extend(self.delete_one_inode(&next)?);
        }
        Ok(())
    }

    /// Free an inode: its blocks in transactions of their own, then the rest in one. Gives the attribute inodes that nobody names
    /// any more.
    fn delete_one_inode(&self, inode: &Inode) -> Result<Vec<Inode>> {
        let (flags, size) = {
            let core = core_of(inode).read();
            (core.flags, core.disk_size)
        };
        let has_map = match inode.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => flags & FL_EXTENTS != 0 || size >= 60,
            _ => false,
        };
        if has_map && flags & FL_INLINE_DATA == 0 {
            self.remove_blocks(inode, 0, ALL_BLOCKS)?;
        }
        let mut h: Handle = self.begin(32)?;
        let dead = self.xattr_delete_all(&mut h, inode)?;
        self.orphan_del(&mut h, inode)?;
        self.free_inode(&mut h, inode)?;
        Ok(dead)
    }

    /// Blocks that hold no files: superblocks, descriptors, bitmaps, inode tables, the journal.
    fn overhead(&self) -> u64 {
        if self.sb.overhead_blocks != 0 {
            return u64::from(self.sb.overhead_blocks);
        }
        *self.overhead.get_or_init(|| {
            let own = 2 + u64::from(self.sb.inode_table_blocks);
            let groups = (0..self.sb.groups).map(|group| u64::from(self.sb.base_meta_blocks(group)) + own);
            groups.sum::<u64>() + self.sb.first_data_block
        })
    }

    /// A change that met damage or a failing device may be half in the transaction: it must not become durable, so the
    /// journal stops, and with it every further change.
    fn guard<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error @ (Error::Corrupt { .. } | Error::Io(_))) = &result
            && self.read_only.is_none()
        {
            self.journal.abort(error);
        }
        result
    }

    fn semantics(&self) -> ChangeSemantics {
        ChangeSemantics {
            data: true,
            metadata: true,
            monotonic: true,
            persistent: !self.sb.hurd,
            crash_safe: !self.sb.hurd,
        }
    }
}

impl FileSystem for Ext4 {
    fn info(&self) -> FsInfo {
        let bits = self.sb.block_bits;
        let extents = self.sb.incompat.contains(crate::layout::Incompat::EXTENTS);
        let per = 1u64 << (bits - 2);
        let by_map = (12 + per + per * per + per * per * per).min(u64::from(u32::MAX) - 1);
        let blocks = if extents { u64::from(u32::MAX) - 1 } else { by_map };
        FsInfo {
            fs_type: if extents {
                "ext4"
            } else if self.sb.compat.contains(Compat::HAS_JOURNAL) {
                "ext3"
            } else {
                "ext2"
            },
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid: self.sb.uuid,
            block_size: self.sb.block_size,
            root: Ino(u64::from(ROOT_INO)),
            name_max: 255,
            // The upper half of a size has another meaning in old images until this feature says otherwise.
            max_file_size: if self.sb.ro_compat.contains(RoCompat::LARGE_FILE) {
                blocks << bits
            } else {
                (1 << 31) - 1
            },
            max_links: 65000,
            time_granularity_ns: if self.sb.want_extra_isize >= 16 { 1 } else { 1_000_000_000 },
            semantics: self.semantics(),
            no_cookie: self.journal.aborted().or_else(|| self.epoch.missing()),
            read_only: self.read_only.clone().or_else(|| self.journal.aborted()),
            xattr_value_max: 65536,
            projects: self.sb.ro_compat.contains(RoCompat::PROJECT),
            numbers_last: true,
            reserve: (self.sb.reserved_blocks > 0).then_some(self.sb.reserve),
        }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let groups = &self.groups;
        let free = (groups.free_blocks.load(Ordering::Relaxed)
            + groups.pending.load(Ordering::Relaxed)
            + self.windows.blocks()
            - groups.delayed.load(Ordering::Relaxed))
        .max(0) as u64;
        Ok(StatFs {
            block_size: self.sb.block_size,
            blocks: self.sb.blocks_count.saturating_sub(self.overhead()),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.sb.reserved_blocks),
            files: u64::from(self.sb.inodes_count),
            files_free: groups.free_inodes.load(Ordering::Relaxed).max(0) as u64,
            name_max: 255,
        })
    }

    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(u32::try_from(ino.0).map_err(|_| NameError::Stale)?, false)
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let mut h = self.begin(8)?;
        self.guard(self.log(&mut h, inode))
    }

    fn forget_inode(&self, inode: &Inode) {
        self.windows.forget(inode.ino.0 as u32);
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.windows.forget(inode.ino.0 as u32);
        self.guard(self.fs_delete_inode(inode))
    }

    fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        self.fs_lookup(dir, name)
    }

    fn parent(&self, dir: &Inode) -> Result<Ino> {
        self.fs_parent(dir)
    }

    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs_readdir(dir, cursor, emit)
    }

    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.guard(self.with_room(|| self.fs_create(dir, name, new)))
    }

    fn create_unnamed(&self, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.guard(self.with_room(|| self.fs_create_unnamed(dir, new)))
    }

    fn link(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.guard(self.with_room(|| self.fs_link(dir, name, inode)))
    }

    fn unlink(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.guard(self.fs_unlink(dir, name, inode))
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.guard(self.with_room(|| self.fs_rename(rename)))
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.fs_read_link(inode)
    }

    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.fs_read(inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, room: Room) -> Result<()> {
        self.with_room(|| self.fs_reserve(inode, offset, len, room))
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        self.guard(self.with_room(|| self.fs_write_back(inode, offset, data)))
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.fs_blocks_512(inode)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.fs_unreserve(inode, offset, len);
    }

    fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        self.windows.forget(inode.ino.0 as u32);
        self.guard(self.with_room(|| self.fs_truncate(inode, size)))
    }

    fn fallocate(&self, inode: &Inode, mode: FallocateMode, offset: u64, len: u64, room: Room) -> Result<()> {
        self.guard(self.with_room(|| self.fs_fallocate(inode, mode, offset, len, room)))
    }

    fn has_call(&self, number: u32) -> bool {
        number == SWAP_BOOT
    }

    fn call(&self, inode: &Inode, number: u32) -> Result<()> {
        match number {
            SWAP_BOOT => self.guard(self.fs_swap_boot(inode)),
            _ => Err(NameError::NotSupported.into()),
        }
    }

    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.fs_map(inode, offset)
    }

    fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.fs_get_xattr(inode, name)
    }

    fn list_xattr(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.fs_list_xattr(inode)
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        self.guard(self.with_room(|| self.fs_set_xattr(inode, name, value, mode)))
    }

    fn fsync(&self, inode: &Inode, _data_only: bool) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        // fsync of a directory is for all that has happened below it.
        let own = (inode.kind == FileType::Regular).then(|| &inode.private::<Ext4Inode>().last_change);
        self.journal.commit_changes(own)
    }

    fn commit(&self, inode: &Inode) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        self.journal.commit_logged(&inode.private::<Ext4Inode>().last_change)
    }

    fn sync(&self) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        self.journal.commit()
    }

    fn unmount(&self) -> Result<()> {
        if self.read_only.is_some() || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.windows.clear();
        self.journal.commit()?;
        let foreign = self.leaving_fields()?;
        self.close_epoch(foreign)?;
        self.journal.shutdown()?;
        self.mark_closed(foreign)
    }

    fn serves_cookie(&self) -> bool {
        // What is in memory may never become durable: the next mount starts an epoch later, and until then nobody vouches.
        !self.journal.is_aborted()
    }

    fn version_base(&self) -> u64 {
        self.epoch.base()
    }

    fn raise_epoch(&self) -> Result<()> {
        self.fs_raise_epoch()
    }

    fn journal_stats(&self) -> (u64, u64) {
        self.journal.figures()
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut features = self.sb.compat.feature_names();
        features.extend(self.sb.incompat.feature_names());
        features.extend(self.sb.ro_compat.feature_names());
        let fact = |name: &str, value: String| (name.to_owned(), value);
        vec![
            fact("features", features.join(" ")),
            fact("blocks", self.sb.blocks_count.to_string()),
            fact("groups", self.sb.groups.to_string()),
            fact("inodes", self.sb.inodes_count.to_string()),
            fact("inode size", self.sb.inode_size.to_string()),
            fact(
                "journal",
                if self.sb.compat.contains(Compat::HAS_JOURNAL) { "inside" } else { "none" }.to_owned(),
            ),
            fact(
                "checksums",
                if self.has_csum() {
                    "crc32c"
                } else if self.sb.ro_compat.contains(RoCompat::GDT_CSUM) {
                    "groups"
                } else {
                    "none"
                }
                .to_owned(),
            ),
            fact("epoch", (self.epoch.base() >> epoch::EPOCH_SHIFT).to_string()),
        ]
    }
}
