//! The operations on the filesystem and its inodes that the VFS calls.

use crate::fs::{Ext4, Handle, ROOT_INO, core_of, private_of};
use crate::layout::features::{Compat, RoCompat};
use crate::layout::inode::{FL_EXTENTS, FL_INLINE_DATA};
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{MAGIC, SUPERBLOCK_LEN, seal, stored_label};
use ivers_block::FileBlock;
use ivers_vfs::*;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

/// Upper bound of the size of any file, in blocks: a file block has 32 bits.
const ALL_BLOCKS: FileBlock = FileBlock(u32::MAX as u64);

impl Ext4 {
    /// Frees an unused inode and the attribute inodes that lose their last reference. Those may refer to
    /// others in turn, on a hostile image through all inodes: hence a list, not a recursion.
    pub(crate) fn delete_unused(&self, inode: &Inode) -> Result<()> {
        let mut dead = self.delete_one_inode(inode)?;
        while let Some(next) = dead.pop() {
            dead.extend(self.delete_one_inode(&next)?);
        }
        Ok(())
    }

    /// Frees an inode: its blocks in transactions of their own, the rest in one. Returns the attribute inodes
    /// that lost their last reference.
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
            self.remove_blocks(inode, FileBlock(0), ALL_BLOCKS)?;
        }
        let mut h: Handle = self.begin(32)?;
        let dead = self.xattr_delete_all(&mut h, inode)?;
        self.orphan_del(&mut h, inode)?;
        self.free_inode(&mut h, inode)?;
        Ok(dead)
    }

    /// Blocks that hold no file data: superblocks, descriptors, bitmaps, inode tables, the journal.
    fn overhead(&self) -> u64 {
        if self.sb.overhead_blocks() != 0 {
            return u64::from(self.sb.overhead_blocks());
        }
        let groups = self.sb.groups();
        let mut known = self.overhead.lock();
        if known.0 != groups {
            let all: u64 = (0..groups).map(|group| self.sb.own_blocks(group)).sum();
            *known = (groups, all + self.sb.first_data_block.0);
        }
        known.1
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
            fs_type: self.sb.fs_type(),
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid: self.sb.uuid,
            block_size: self.sb.block_size,
            root: Ino(u64::from(ROOT_INO)),
            name_max: 255,
            // Without this feature the upper half of the size has another meaning.
            max_file_size: if self.sb.ro_compat.contains(RoCompat::LARGE_FILE) {
                blocks << bits
            } else {
                (1 << 31) - 1
            },
            max_links: 65000,
            time_granularity_ns: if self.sb.want_extra_isize >= 16 { 1 } else { 1_000_000_000 },
            semantics: self.semantics(),
            valid_until: ValidUntil::Unmount(None),
            projects: self.sb.ro_compat.contains(RoCompat::PROJECT),
            persistent_inos: true,
            names_alias: false,
            // Space is reserved for whole pages.
            reserve_granularity: crate::map::data::PAGE_BYTES,
            io_unit: 4096,
            reserved: (self.sb.reserved_blocks() > 0).then_some(self.sb.reserve),
        }
    }

    fn health(&self) -> Health {
        let aborted = self.journal.aborted();
        Health {
            no_change_attribute: aborted.clone().or_else(|| self.epoch.missing()),
            read_only: self.read_only.clone().or(aborted),
        }
    }

    fn serves_change_attribute(&self) -> bool {
        // After an abort the state in memory may never become durable: the next mount raises the epoch.
        !self.journal.is_aborted() && !self.epoch.is_missing() && self.record_open().is_ok()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let groups = &self.groups;
        let free = (groups.free_blocks.load(Ordering::Relaxed)
            + groups.pending.load(Ordering::Relaxed)
            + self.reservation_windows.blocks() as i64
            - groups.delayed.load(Ordering::Relaxed))
        .max(0) as u64;
        Ok(StatFs {
            block_size: self.sb.block_size,
            blocks: self.sb.blocks_count().saturating_sub(self.overhead()),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.sb.reserved_blocks()),
            files: u64::from(self.sb.inodes_count()),
            files_free: groups.free_inodes.load(Ordering::Relaxed).max(0) as u64,
            name_max: 255,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut features = self.sb.compat.feature_names();
        features.extend(self.sb.incompat.feature_names());
        features.extend(self.sb.ro_compat.feature_names());
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("features", features.join(" ")),
            fact("state", self.closed_before.to_owned()),
            fact("blocks with metadata", self.sb.blocks_count().to_string()),
            fact("groups", self.sb.groups().to_string()),
            fact("inode size", format!("{} bytes", self.sb.inode_size)),
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
        ];
        facts.extend(self.epoch.describe());
        facts
    }

    fn sync(&self) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        self.journal.commit()
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        // Blocks that the running transaction freed are free after its commit.
        if self.groups.pending.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        self.journal.commit()?;
        Ok(true)
    }

    fn abort(&self, why: &Error) {
        if self.read_only.is_none() {
            self.journal.abort(why);
        }
    }

    fn unmount(&self) -> Result<()> {
        if self.read_only.is_some() || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.reservation_windows.clear();
        if !self.journal.is_atomic() {
            // Without transactions, CLOSED must follow all other changes.
            self.journal.commit()?;
        }
        let foreign = self.unmount_fields()?;
        self.close_epoch(foreign)?;
        self.journal.shutdown()?;
        self.mark_closed(foreign)
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn ioctls(&self) -> Option<&dyn IoctlOps> {
        Some(self)
    }

    fn epochs(&self) -> Option<&dyn EpochOps> {
        Some(self)
    }

    fn growing(&self) -> Option<&dyn GrowOps> {
        Some(self)
    }

    fn labels(&self) -> Option<&dyn LabelOps> {
        Some(self)
    }

    fn journal(&self) -> Option<&dyn JournalOps> {
        Some(self)
    }
}

impl InodeOps for Ext4 {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(u32::try_from(ino.0).map_err(|_| NameError::Stale)?, false)
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let mut h = self.begin(8)?;
        self.log(&mut h, inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.reservation_windows.remove(inode.ino);
        self.delete_unused(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        self.reservation_windows.remove(inode.ino);
    }

    fn fsync(&self, inode: &Inode, _data_only: bool) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        // fsync of a directory covers every change so far.
        let own = (inode.kind == FileType::Regular).then(|| &private_of(inode).last_change);
        self.journal.commit_changes(own)
    }

    fn commit_inode(&self, inode: &Inode) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        self.journal.commit_logged(&private_of(inode).last_change)
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.symlink_target(inode)
    }
}

impl LabelOps for Ext4 {
    fn set_label(&self, _root: &Inode, label: &str) -> Result<()> {
        let stored = stored_label(label.as_bytes())?;
        let mut h = self.begin(1)?;
        self.modify_super(&mut h, |raw| raw.s_volume_name = stored)?;
        for group in self.sb.copies() {
            h.ensure(1)?;
            let buffer = self.cache.get(self.sb.group_first_block(group))?;
            h.modify(&buffer, |bytes| {
                let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes[..SUPERBLOCK_LEN]) else { return };
                // A damaged copy stays as it is: e2fsck must not take it for a good one.
                if raw.s_magic.get() == MAGIC && raw.s_uuid == self.sb.uuid {
                    raw.s_volume_name = stored;
                    seal(raw);
                }
            })?;
        }
        Ok(())
    }
}

impl JournalOps for Ext4 {
    fn written(&self) -> (u64, u64) {
        self.journal.log_written()
    }
}
