//! The interface to the VFS.

use crate::layout::directory::NAME_MAX;
use crate::layout::superblock::{Stack, incompat};
use crate::layout::xattr::VALUE_MAX;
use crate::volume::{Ocfs2, dinode_of, private_of};
use ivers_vfs::sync::atomic::Ordering;
use ivers_vfs::*;
use std::ops::ControlFlow;

/// `OCFS2_LINK_MAX`.
const LINKS_MAX: u32 = 32_000;
/// `OCFS2_DX_LINK_MAX`: with indexed directories.
const LINKS_MAX_INDEXED: u32 = (1 << 31) - 1;
/// The feature of extended attributes.
const XATTR: u32 = 0x200;

fn read_only<T>() -> Result<T> {
    Err(NameError::ReadOnly.into())
}

impl FileSystem for Ocfs2 {
    fn info(&self) -> FsInfo {
        let is_indexed = self.sb.has(incompat::INDEXED_DIRS);
        FsInfo {
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid: self.sb.uuid,
            root: Ino(self.sb.root),
            name_max: NAME_MAX as u32,
            max_file_size: self.sb.file_size_max(),
            max_links: if is_indexed { LINKS_MAX_INDEXED } else { LINKS_MAX },
            time_granularity_ns: 1,
            persistent_inos: true,
            ..FsInfo::usual("ocfs2", self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        Health { read_only: Some(self.read_only.clone()), no_change_attribute: None }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let bitmap = self.dinode(self.global_bitmap)?.0;
        let total = u64::from(self.sb.clusters);
        // `i_used` is in the lower half.
        let free = total.saturating_sub(bitmap.id1 & u64::from(u32::MAX));
        let per_cluster = u64::from(self.sb.blocks_per_cluster);
        Ok(StatFs {
            block_size: self.sb.block_size,
            blocks: total * per_cluster,
            blocks_free: free * per_cluster,
            blocks_available: free * per_cluster,
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
        Ok(())
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        self.sb.has(XATTR).then_some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }
}

impl InodeOps for Ocfs2 {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino.0)
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn delete_inode(&self, _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(dinode_of(inode))
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
        self.parent_of(dinode_of(dir))
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(dinode_of(dir), cursor, emit)
    }

    fn create(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _new: &NewInode) -> Result<LoadedInode> {
        read_only()
    }

    fn unlink(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn rename(&self, _rename: &Rename<'_>) -> Result<()> {
        read_only()
    }
}

impl FileOps for Ocfs2 {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(dinode_of(inode), offset, buf)
    }

    fn reserve(&self, _inode: &Inode, _offset: u64, _len: u64, _pool: BlockPool) -> Result<()> {
        read_only()
    }

    fn write_back(&self, _inode: &Inode, _offset: u64, _data: &[u8]) -> Result<Written> {
        read_only()
    }

    fn truncate(&self, _caller: &Cred, _inode: &Inode, _size: u64) -> Result<()> {
        read_only()
    }
}

impl BlockMapOps for Ocfs2 {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(dinode_of(inode), offset)
    }
}

impl XattrOps for Ocfs2 {
    fn value_max(&self) -> u32 {
        VALUE_MAX as u32
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.attribute(dinode_of(inode), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.attribute_names(dinode_of(inode))
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        _inode: &Inode,
        _name: &[u8],
        _value: Option<&[u8]>,
        _mode: XattrMode,
    ) -> Result<()> {
        read_only()
    }
}
