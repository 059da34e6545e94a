//! The interface to the VFS.

use crate::layout::ByteOrder;
use crate::layout::directory::NAME_MAX;
use crate::layout::superblock::{ROOT, Version, flags};
use crate::open::{fs_type, state};
use crate::volume::{Ufs, dinode_of, private_of};
use ivers_vfs::*;
use std::ops::ControlFlow;

/// Link counts have 16 bits; FreeBSD keeps some in reserve.
const LINKS_MAX: u32 = 65_500;

fn read_only<T>() -> Result<T> {
    Err(NameError::ReadOnly.into())
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
            ..FsInfo::usual(fs_type(&self.sb), self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        Health { read_only: Some(self.read_only.clone()), no_change_attribute: None }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let (sb, total) = (&self.sb, self.sb.total);
        let free_blocks = total.free_blocks.saturating_mul(sb.frags_per_block.into());
        let free = free_blocks.saturating_add(total.free_frags).min(sb.data_size);
        let reserved = sb.data_size / 100 * u64::from(sb.min_free);
        let files = u64::from(sb.inodes()).saturating_sub(ROOT.into());
        Ok(StatFs {
            block_size: sb.fragment_size,
            blocks: sb.data_size,
            blocks_free: free,
            blocks_available: free.saturating_sub(reserved),
            files,
            files_free: total.free_inodes.min(files),
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
        Ok(())
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        (self.sb.version == Version::Ufs2).then_some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }
}

impl InodeOps for Ufs {
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

impl DirectoryOps for Ufs {
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

impl FileOps for Ufs {
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

impl BlockMapOps for Ufs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(dinode_of(inode), offset)
    }
}

impl XattrOps for Ufs {
    fn value_max(&self) -> u32 {
        2 * self.sb.block_size
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
