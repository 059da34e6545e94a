//! The filesystem and its inodes, as the VFS calls them.

use crate::filesystem::Btrfs;
use crate::inode::vnode_of;
use crate::layout::chunk::DATA;
use crate::layout::items::NAME_MAX;
use crate::layout::raw::{RawDirItem, RawHeader, RawItem};
use crate::write::{LINKS_MAX, Need, PROPERTIES, Tx, prepare};
use ivers_vfs::*;
use std::ops::ControlFlow;

impl Btrfs {
    /// The profiles of the chunks with data, or of the others.
    fn profiles(&self, of_data: bool) -> String {
        let chunks = self.forest.volume.chunks();
        let of_kind = chunks.iter().filter(|chunk| (chunk.contents() & DATA != 0) == of_data);
        let mut names: Vec<_> = of_kind.map(|chunk| chunk.profile.name).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Copies that chunks of data have, the most of any.
    fn data_copies(&self) -> u64 {
        let chunks = self.forest.volume.chunks();
        let of_data = chunks.iter().filter(|chunk| chunk.contents() & DATA != 0);
        of_data.map(|chunk| chunk.profile.copies as u64).max().unwrap_or(1)
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
            semantics: ChangeSemantics {
                persistent: self.is_persistent,
                crash_safe: self.is_persistent,
                ..ChangeSemantics::WITHIN_A_MOUNT
            },
            valid_until: self.valid_until,
            reserve_granularity: sb.sector_size.into(),
            ..FsInfo::usual("btrfs", sb.sector_size)
        }
    }

    fn health(&self) -> Health {
        let failed = self.failure();
        Health {
            no_change_attribute: failed.clone().or_else(|| self.epoch.missing()),
            read_only: self.read_only.clone().or(failed),
        }
    }

    fn serves_change_attribute(&self) -> bool {
        !self.epoch.is_missing() && self.failure().is_none()
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let sb = &self.forest.volume.sb;
        let sector = u64::from(sb.sector_size);
        // What a byte of data takes, as Linux estimates it.
        let blocks = sb.total_bytes / self.data_copies() / sector;
        let free = match self.live.write().as_mut() {
            Some(live) => {
                let tx = Tx { fs: self, live };
                (tx.free_data() + tx.bytes_of_more_chunks()) / sector
            }
            None => blocks.saturating_sub(sb.bytes_used / sector),
        };
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
            fact("mended copies", format!("{} since the mount", volume.mended_copies())),
        ];
        if self.is_persistent {
            facts.extend(self.epoch.describe());
        }
        facts.extend(self.notes.iter().map(|note| fact("note", note.clone())));
        facts
    }

    fn sync(&self) -> Result<()> {
        self.commit()
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.reclaim()
    }

    fn abort(&self, why: &Error) {
        self.fail(why);
    }

    fn evict_blocks(&self, bytes: u64) {
        self.forest.cache.evict(bytes);
    }

    fn unmount(&self) -> Result<()> {
        self.stop_timer();
        self.close_epoch()
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        Some(self)
    }

    fn epochs(&self) -> Option<&dyn EpochOps> {
        self.is_persistent.then_some(self)
    }

    fn subvolumes(&self) -> Option<&dyn SubvolumeOps> {
        Some(self)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        Some(self)
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
        let _trees = self.live.read();
        self.load(ino)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        prepare(old, new)?;
        self.with_tx(|tx| tx.may_change(vnode_of(inode)))
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        // Only an access time gets here for an inode that must not change. It is not stored.
        if self.with_tx(|tx| tx.may_change(vnode_of(inode))).is_err() && self.failure().is_none() {
            return Ok(());
        }
        let vnode = vnode_of(inode);
        self.change(Need::Removal, |tx| {
            tx.unshare_for(Need::Removal, vnode, vnode.item_key())?;
            tx.write_inode(inode)
        })
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.remove_inode(vnode_of(inode))
    }

    fn evict_inode(&self, inode: &Inode) {
        self.release_range(inode, 0, u64::MAX);
    }

    fn fsync(&self, inode: &Inode, _data_only: bool) -> Result<()> {
        self.sync_inode(inode)
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        let _trees = self.live.read();
        self.link_target(vnode_of(inode))
    }
}

impl DirectoryOps for Btrfs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        let _trees = self.live.read();
        Ok(self.look_up(vnode_of(dir), name)?.map(Child::Number))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        let _trees = self.live.read();
        self.parent_of(vnode_of(dir))
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _trees = self.live.read();
        self.list(vnode_of(dir), cursor, emit)
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, Some(name), new)
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.link_name(dir, name, inode)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.unlink_name(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.rename_name(rename)
    }
}

impl UnnamedFileOps for Btrfs {
    fn create_unnamed(&self, _caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, None, new)
    }
}

impl FileOps for Btrfs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _trees = self.live.read();
        self.read_file(vnode_of(inode), offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        self.reserve_range(inode, offset, len)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.release_range(inode, offset, offset.saturating_add(len));
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.write_back_data(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.shown_blocks(inode)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.truncate_data(inode, size)
    }
}

impl BlockMapOps for Btrfs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let _trees = self.live.read();
        self.map_file(vnode_of(inode), offset)
    }
}

impl XattrOps for Btrfs {
    fn value_max(&self) -> u32 {
        // An attribute fits in a leaf.
        let beside = size_of::<RawHeader>() + size_of::<RawItem>() + size_of::<RawDirItem>();
        self.forest.volume.sb.node_size - beside as u32
    }

    fn properties(&self) -> Option<&'static [u8]> {
        Some(PROPERTIES)
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let _trees = self.live.read();
        self.xattr(vnode_of(inode), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let _trees = self.live.read();
        self.xattr_names(vnode_of(inode))
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.set_attribute(inode, name, value, mode)
    }
}
