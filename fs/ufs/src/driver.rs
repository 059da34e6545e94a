//! The interface to the VFS.

use crate::head::{fs_type, state};
use crate::inode::LINKS_MAX;
use crate::layout::ByteOrder;
use crate::layout::dinode::STORED_FLAGS;
use crate::layout::directory::NAME_MAX;
use crate::layout::superblock::{ROOT, Version, flags};
use crate::volume::{Ufs, private_of};
use ivers_vfs::*;
use ivers_write_ordering::Ordered;
use std::ops::ControlFlow;

/// Limits a time to what UFS1 stores.
fn short_time(time: &mut Timestamp) {
    time.sec = time.sec.clamp(i32::MIN.into(), i32::MAX.into());
}

impl FileSystem for Ufs {
    fn info(&self) -> FsInfo {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(self.sb.id.map(u32::to_be_bytes).as_flattened());
        FsInfo {
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid,
            root: Ino(ROOT.into()),
            name_max: NAME_MAX as u32,
            max_file_size: self.sb.file_size_max(),
            max_links: LINKS_MAX,
            time_granularity_ns: 1,
            persistent_inos: true,
            reserved: (self.sb.min_free > 0).then_some(ReservedBlocks { uid: 0, gid: None }),
            ..FsInfo::usual(fs_type(&self.sb), self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        let stopped = self.writer.as_ref().and_then(|writer| writer.ordered.stopped());
        Health { read_only: self.read_only.clone().or_else(|| stopped.clone()), no_change_attribute: stopped }
    }

    fn serves_change_attribute(&self) -> bool {
        self.writer.as_ref().is_none_or(|writer| writer.ordered.stopped().is_none())
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let (sb, total) = (&self.sb, self.sb.total);
        let free_blocks = total.free_blocks.saturating_mul(sb.frags_per_block.into());
        let free = free_blocks.saturating_add(total.free_frags);
        let counts = self.writer.as_ref().map(|writer| writer.alloc.free_counts());
        let (free, available, free_inodes) = counts.unwrap_or((free, free, total.free_inodes));
        let free = free.min(sb.data_size);
        let reserved = sb.data_size / 100 * u64::from(sb.min_free);
        let files = u64::from(sb.inodes()).saturating_sub(ROOT.into());
        Ok(StatFs {
            block_size: sb.fragment_size,
            blocks: sb.data_size,
            blocks_free: free,
            blocks_available: available.min(free).saturating_sub(reserved),
            files,
            files_free: free_inodes.min(files),
            name_max: NAME_MAX as u32,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let sb = &self.sb;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let has = |flag: u32| sb.flags & flag != 0;
        let acls = match (has(flags::FS_ACLS), has(flags::FS_NFS4ACLS)) {
            (true, _) => "POSIX",
            (_, true) => "of NFSv4, which are not enforced",
            _ => "none",
        };
        let order = if sb.order == ByteOrder::Little { "little-endian" } else { "big-endian" };
        vec![
            fact("byte order", order.to_owned()),
            fact("superblock", format!("at byte {}", sb.at)),
            fact("block size", sb.block_size.to_string()),
            fact("fragment size", sb.fragment_size.to_string()),
            fact("fragments", sb.size.to_string()),
            fact("cylinder groups", format!("{} of {} fragments", sb.groups, sb.frags_per_group)),
            fact("inodes per group", sb.inodes_per_group.to_string()),
            fact("access control lists", acls.to_owned()),
            fact("snapshots", sb.snapshots.len().to_string()),
            fact("state", state(sb)),
        ]
    }

    fn sync(&self) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), |_| self.wait_for_batch(Ordered::sync))
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.writer.as_ref().map_or(Ok(false), |_| self.wait_for_batch(Ordered::release))
    }

    fn abort(&self, why: &Error) {
        if let Some(writer) = &self.writer {
            writer.alloc.keep_dirty_mark();
            writer.ordered.stop(why);
        }
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
        if self.cache.budget().over() {
            self.names.evict(bytes);
        }
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        (self.sb.version == Version::Ufs2).then_some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }
}

impl InodeOps for Ufs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino.0)
    }

    fn prepare_setattr(&self, _caller: &Cred, _inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        let changed = new.flags.symmetric_difference(old.flags);
        if !STORED_FLAGS.contains(changed) {
            return Err(NameError::NotSupported.into());
        }
        if self.sb.version == Version::Ufs1 {
            [&mut new.atime, &mut new.mtime, &mut new.ctime].into_iter().for_each(short_time);
        }
        Ok(())
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.fs_log_inode(inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.fs_delete_inode(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        self.settle_before_eviction(inode);
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        self.sync()
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(&private_of(inode).state.read().dinode)
    }
}

impl DirectoryOps for Ufs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        if name.len() > NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        Ok(self.find_name(private_of(dir), name)?.map(Child::Number))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.parent_of(&private_of(dir).state.read().dinode)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(&private_of(dir).state.read().dinode, cursor, emit)
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.fs_create(dir, name, new)
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.fs_link(dir, name, inode)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.fs_unlink(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.fs_rename(rename)
    }
}

impl FileOps for Ufs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        // The lock keeps the blocks where they are.
        self.read_file(&private_of(inode).state.read().dinode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()> {
        self.fs_reserve(inode, offset, len, pool)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.fs_unreserve(inode, offset, len);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.fs_write_back(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.fs_blocks_512(inode)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.fs_truncate(inode, size)
    }
}

impl BlockMapOps for Ufs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(&private_of(inode).state.read().dinode, offset)
    }
}

impl AllocateOps for Ufs {
    fn kinds(&self) -> FallocateMode {
        FallocateMode::empty()
    }

    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        self.fs_fallocate(inode, mode, offset, len, pool)
    }
}

impl XattrOps for Ufs {
    fn value_max(&self) -> u32 {
        2 * self.sb.block_size
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.attribute(&private_of(inode).state.read().dinode, name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.attribute_names(&private_of(inode).state.read().dinode)
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.settle(inode)?;
        let change = self.change()?;
        {
            let mut state = private_of(inode).state.write();
            self.change_area(&change, &mut state, name, value, mode)?;
            inode.with_attr(|attr| attr.blocks_512 = state.dinode.blocks_512);
        }
        self.log_changed(&change, inode, Touch::Metadata, Logged::Anyway)
    }
}
