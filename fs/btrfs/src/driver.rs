//! The filesystem and its inodes, as the VFS calls them. Every call that changes something is refused.

use crate::filesystem::Btrfs;
use crate::inode::vnode_of;
use crate::layout::chunk::DATA;
use crate::layout::items::NAME_MAX;
use crate::layout::raw::{RawDirItem, RawHeader, RawItem};
use ivers_vfs::*;
use std::ops::ControlFlow;

/// The most names of an inode.
const LINKS_MAX: u32 = 65_535;

const REFUSED: Error = Error::Name(NameError::ReadOnly);

impl Btrfs {
    /// The profiles of the chunks with data, or of the others.
    fn profiles(&self, of_data: bool) -> String {
        let chunks = self.forest.volume.chunks();
        let of_kind = chunks.filter(|chunk| (chunk.contents & DATA != 0) == of_data);
        let mut names: Vec<_> = of_kind.map(|chunk| chunk.profile.name).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Copies that chunks of data have, the most of any.
    fn data_copies(&self) -> u64 {
        let chunks = self.forest.volume.chunks().filter(|chunk| chunk.contents & DATA != 0);
        chunks.map(|chunk| chunk.profile.copies as u64).max().unwrap_or(1)
    }
}

impl FileSystem for Btrfs {
    fn info(&self) -> FsInfo {
        let sb = &self.forest.volume.sb;
        FsInfo {
            label: String::from_utf8_lossy(&sb.label).into_owned(),
            uuid: sb.fsid,
            root: self.root,
            name_max: NAME_MAX as u32,
            max_links: LINKS_MAX,
            time_granularity_ns: 1,
            persistent_inos: true,
            ..FsInfo::usual("btrfs", sb.sector_size)
        }
    }

    fn health(&self) -> Health {
        Health { read_only: Some(self.read_only.clone()), no_change_attribute: None }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let sb = &self.forest.volume.sb;
        let sector = u64::from(sb.sector_size);
        // What a byte of data takes, as Linux estimates it.
        let blocks = sb.total_bytes / self.data_copies() / sector;
        let free = blocks.saturating_sub(sb.bytes_used / sector);
        Ok(StatFs {
            block_size: sb.sector_size,
            blocks,
            blocks_free: free,
            blocks_available: free,
            files: 0,
            files_free: 0,
            name_max: NAME_MAX as u32,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let volume = &self.forest.volume;
        let sb = &volume.sb;
        let mut features = sb.incompat.feature_names();
        features.extend(sb.ro_compat.feature_names());
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("features", features.join(" ")),
            fact("checksums", sb.checksum.name().into()),
            fact("node size", format!("{} bytes", sb.node_size)),
            fact("devices", sb.num_devices.to_string()),
            fact("data", self.profiles(true)),
            fact("metadata", self.profiles(false)),
            fact("last transaction", sb.generation.to_string()),
            fact("subvolume", crate::numbers::unpack(self.root).0.to_string()),
            fact("bad copies", format!("{} found since the mount", volume.bad_copies())),
        ];
        facts.extend(self.notes.iter().map(|note| fact("note", note.clone())));
        facts
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn evict_blocks(&self, bytes: u64) {
        self.forest.cache.evict(bytes);
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }
}

impl InodeOps for Btrfs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino)
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        Err(REFUSED)
    }

    fn delete_inode(&self, _inode: &Inode) -> Result<()> {
        Err(REFUSED)
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(vnode_of(inode))
    }
}

impl DirectoryOps for Btrfs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.look_up(vnode_of(dir), name)?.map(Child::Number))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.parent_of(vnode_of(dir))
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(vnode_of(dir), cursor, emit)
    }

    fn create(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _new: &NewInode) -> Result<LoadedInode> {
        Err(REFUSED)
    }

    fn link(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _inode: &Inode) -> Result<()> {
        Err(REFUSED)
    }

    fn unlink(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _inode: &Inode) -> Result<()> {
        Err(REFUSED)
    }

    fn rename(&self, _rename: &Rename<'_>) -> Result<()> {
        Err(REFUSED)
    }
}

impl FileOps for Btrfs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(vnode_of(inode), offset, buf)
    }

    fn reserve(&self, _inode: &Inode, _offset: u64, _len: u64, _pool: BlockPool) -> Result<()> {
        Err(REFUSED)
    }

    fn write_back(&self, _inode: &Inode, _offset: u64, _data: &[u8]) -> Result<Written> {
        Err(REFUSED)
    }

    fn truncate(&self, _caller: &Cred, _inode: &Inode, _size: u64) -> Result<()> {
        Err(REFUSED)
    }
}

impl BlockMapOps for Btrfs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(vnode_of(inode), offset)
    }
}

impl XattrOps for Btrfs {
    fn value_max(&self) -> u32 {
        // An attribute fits in a leaf.
        let beside = size_of::<RawHeader>() + size_of::<RawItem>() + size_of::<RawDirItem>();
        self.forest.volume.sb.node_size - beside as u32
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr(vnode_of(inode), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.xattr_names(vnode_of(inode))
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        _inode: &Inode,
        _name: &[u8],
        _value: Option<&[u8]>,
        _mode: XattrMode,
    ) -> Result<()> {
        Err(REFUSED)
    }
}
