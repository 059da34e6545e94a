//! The interface to the VFS.

use crate::change::journal_error;
use crate::layout::dinode::FLAGS_SHOWN;
use crate::layout::directory::NAME_MAX;
use crate::layout::superblock::{Stack, incompat};
use crate::layout::xattr::VALUE_MAX;
use crate::volume::{Ocfs2, private_of};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::*;
use std::ops::ControlFlow;

/// `OCFS2_LINK_MAX`.
const LINKS_MAX: u32 = 32_000;
/// `OCFS2_DX_LINK_MAX`: with indexed directories.
const LINKS_MAX_INDEXED: u32 = (1 << 31) - 1;
/// The feature of extended attributes.
const XATTR: u32 = 0x200;

impl Ocfs2 {
    /// The most links of an inode.
    pub(crate) fn links_max(&self) -> u32 {
        if self.sb.has(incompat::INDEXED_DIRS) { LINKS_MAX_INDEXED } else { LINKS_MAX }
    }

    fn aborted(&self) -> Option<String> {
        let cause = self.writer.as_ref()?.commits.journal().aborted()?;
        Some(format!("the journal was aborted: {cause}"))
    }
}

impl FileSystem for Ocfs2 {
    fn info(&self) -> FsInfo {
        FsInfo {
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid: self.sb.uuid,
            root: Ino(self.sb.root),
            name_max: NAME_MAX as u32,
            max_file_size: self.sb.file_size_max(),
            max_links: self.links_max(),
            time_granularity_ns: 1,
            persistent_inos: true,
            ..FsInfo::usual("ocfs2", self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        let aborted = self.aborted();
        Health { read_only: self.read_only.clone().or_else(|| aborted.clone()), no_change_attribute: aborted }
    }

    fn serves_change_attribute(&self) -> bool {
        self.writer.as_ref().is_none_or(|writer| !writer.commits.journal().is_aborted())
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let bitmap = self.dinode(self.global_bitmap)?.0;
        let total = u64::from(self.sb.clusters);
        // `i_used` is in the lower half.
        let free = total.saturating_sub(bitmap.id1 & u64::from(u32::MAX));
        let per_cluster = u64::from(self.sb.blocks_per_cluster);
        let available = match self.writer {
            // With clusters whose freeing is not durable yet: a caller that needs them waits for the commit.
            Some(_) => {
                let space = self.space()?;
                space.free.saturating_sub(space.reserved)
            }
            None => free,
        };
        Ok(StatFs {
            block_size: self.sb.block_size,
            blocks: total * per_cluster,
            blocks_free: free * per_cluster,
            blocks_available: available.min(free) * per_cluster,
            // Any free cluster can get inodes. Linux counts them like this, too.
            files: total,
            files_free: free,
            name_max: NAME_MAX as u32,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let sb = &self.sb;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let cluster = match &sb.stack {
            Stack::Local => "none: a local filesystem".to_owned(),
            Stack::O2cb => "o2cb".to_owned(),
            Stack::Elsewhere(name) => name.clone(),
        };
        let mut facts = vec![
            fact("block size", sb.block_size.to_string()),
            fact("cluster size", sb.cluster_size().to_string()),
            fact("clusters", sb.clusters.to_string()),
            fact("node slots", sb.max_slots.to_string()),
            fact("cluster stack", cluster),
            fact("features", sb.feature_names().join(" ")),
            fact("checksums", if sb.has(incompat::META_ECC) { "yes" } else { "no" }.to_owned()),
            fact("state", self.state.clone()),
        ];
        let corrected = self.corrected.load(Ordering::Relaxed);
        if corrected > 0 {
            facts.push(fact("bits corrected in memory", corrected.to_string()));
        }
        facts
    }

    fn sync(&self) -> Result<()> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.commits.commit().map_err(journal_error))
    }

    fn reclaim_space(&self) -> Result<bool> {
        // Clusters that the running transaction freed are free after its commit.
        if self.writer.is_none() || self.space()?.busy.count() == 0 {
            return Ok(false);
        }
        self.sync().map(|()| true)
    }

    fn abort(&self, why: &Error) {
        if let Some(writer) = &self.writer {
            writer.commits.journal().abort(why);
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
        self.sb.has(XATTR).then_some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        self.writer.as_ref().map(|_| self as &dyn UnnamedFileOps)
    }

    fn journal(&self) -> Option<&dyn JournalOps> {
        self.writer.as_ref().map(|_| self as &dyn JournalOps)
    }
}

impl UnnamedFileOps for Ocfs2 {
    fn create_unnamed(&self, _caller: &Cred, _dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.fs_create_unnamed(new)
    }
}

impl JournalOps for Ocfs2 {
    fn written(&self) -> (u64, u64) {
        let stats = self.writer.as_ref().map(|writer| writer.commits.journal().stats()).unwrap_or_default();
        (stats.journal_blocks, stats.journal_bytes)
    }
}

impl InodeOps for Ocfs2 {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino.0)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        if !FLAGS_SHOWN.contains(new.flags.symmetric_difference(old.flags)) {
            return Err(NameError::NotSupported.into());
        }
        if new.size != old.size { self.check_not_shared(&private_of(inode).state.read()) } else { Ok(()) }
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.change(2, |change| change.log(inode, &mut private_of(inode).state.write()))
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.fs_delete_inode(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        self.names.forget(inode.ino);
        if self.writer.is_some() {
            // It fails only after writing was stopped.
            let _ = self.release(private_of(inode), 0..u32::MAX);
        }
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(()) };
        writer.commits.commit_changes(None).map_err(journal_error)
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(&private_of(inode).state.read())
    }
}

impl DirectoryOps for Ocfs2 {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        if name.len() > NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        Ok(self.find_name(private_of(dir), name)?.map(Child::Number))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.parent_of(&private_of(dir).state.read())
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(&private_of(dir).state.read(), cursor, emit)
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

impl FileOps for Ocfs2 {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(&private_of(inode).state.read(), offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        self.fs_reserve(inode, offset, len)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        // It fails only after writing was stopped.
        let _ = self.fs_unreserve(inode, offset, len);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.fs_write_back(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        let clusters = private_of(inode).reserved.lock().clusters.len() as u64;
        inode.with_attr(|attr| attr.blocks_512) + clusters * u64::from(self.sb.cluster_size() / 512)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.fs_truncate(inode, size)
    }
}

impl AllocateOps for Ocfs2 {
    fn kinds(&self) -> FallocateMode {
        FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE
    }

    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        self.fs_fallocate(inode, mode, offset..end)
    }
}

impl BlockMapOps for Ocfs2 {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(&private_of(inode).state.read(), offset)
    }
}

impl XattrOps for Ocfs2 {
    fn value_max(&self) -> u32 {
        VALUE_MAX as u32
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.attribute(&private_of(inode).state.read(), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.attribute_names(&private_of(inode).state.read())
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.fs_set_xattr(inode, name, value, mode)
    }
}
