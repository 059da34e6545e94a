//! Inodes.

use crate::filesystem::Btrfs;
use crate::layout::items::{InodeItem, inode_flags};
use crate::layout::key::{Key, kind, object};
use crate::numbers::{FileId, Object, pack, unpack};
use crate::ranges::Ranges;
use crate::tree::Tree;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{
    Attr, FileType, InitialCounter, Ino, Inode, InodeFlags, LoadedInode, NameError, Result, Timestamp,
};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The permission of a directory in place of a subvolume.
const PLACEHOLDER_PERM: u32 = 0o755;
pub(crate) const FLAGS: [(u64, InodeFlags); 6] = [
    (inode_flags::SYNC, InodeFlags::SYNC),
    (inode_flags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (inode_flags::APPEND, InodeFlags::APPEND),
    (inode_flags::NODUMP, InodeFlags::NODUMP),
    (inode_flags::NOATIME, InodeFlags::NOATIME),
    (inode_flags::DIRSYNC, InodeFlags::DIRSYNC),
];

/// What the driver keeps with an inode.
pub(crate) struct Vnode {
    /// Its subvolume.
    pub subvolume: u64,
    /// Its number there.
    pub objectid: u64,
    /// The subvolume that it stands for, if it is only a placeholder.
    pub placeholder: Option<u64>,
    /// Its item, as the running transaction has it.
    pub item: RankedMutex<rank::Leaf, InodeItem>,
    /// Bytes for which space is reserved.
    pub reserved: RankedMutex<rank::Leaf, Ranges>,
    /// Of a directory: above every index that is or was used; 0: not known.
    pub next_index: AtomicU64,
    /// Of a file: the pieces in a row that compression did not shrink.
    pub not_shrunk: AtomicU32,
}

pub(crate) fn file_of(vnode: &Vnode) -> FileId {
    (vnode.subvolume, vnode.objectid)
}

impl Vnode {
    pub(crate) fn new(subvolume: u64, objectid: u64, item: InodeItem) -> Self {
        Self {
            subvolume,
            objectid,
            placeholder: None,
            item: RankedMutex::new(item),
            reserved: RankedMutex::default(),
            next_index: AtomicU64::new(0),
            not_shrunk: AtomicU32::new(0),
        }
    }

    /// The key of its item.
    pub(crate) fn item_key(&self) -> Key {
        Key::new(self.objectid, kind::INODE_ITEM, 0)
    }

    pub(crate) fn is_placeholder(&self) -> bool {
        self.placeholder.is_some()
    }

    pub(crate) fn ino(&self) -> Result<Ino> {
        pack(self.subvolume, self.placeholder.map_or(Object::Inode(self.objectid), Object::Placeholder))
    }

    /// The size on the device.
    pub(crate) fn size(&self) -> u64 {
        self.item.lock().size()
    }

    /// Whether its data has checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        self.item.lock().flags() & inode_flags::NODATASUM == 0
    }
}

/// The private part of an inode of this driver.
pub(crate) fn vnode_of(inode: &Inode) -> &Vnode {
    inode.private::<Vnode>()
}

impl Btrfs {
    /// The tree of an inode's subvolume, as it is now.
    pub(crate) fn tree_of(&self, vnode: &Vnode) -> Result<Tree> {
        Ok(self.subvolume(vnode.subvolume)?.ok_or(NameError::Stale)?)
    }

    pub(crate) fn inode_item(&self, tree: &Tree, objectid: u64) -> Result<Option<InodeItem>> {
        let is_inode = (object::FIRST_FREE..=object::LAST_FREE).contains(&objectid);
        if !is_inode {
            return Ok(None);
        }
        self.forest.get(tree, Key::new(objectid, kind::INODE_ITEM, 0), InodeItem::decode)
    }

    /// Whether an inode of a subvolume is a directory that is in use.
    pub(crate) fn is_directory(&self, tree: &Tree, objectid: u64) -> Result<bool> {
        Ok(self.inode_item(tree, objectid)?.is_some_and(|item| item.kind == FileType::Directory))
    }

    /// Loads an inode for the VFS.
    pub(crate) fn load(&self, ino: Ino) -> Result<LoadedInode> {
        let (subvolume, object) = unpack(ino);
        let tree = self.subvolume(subvolume)?.ok_or(NameError::Stale)?;
        let objectid = match object {
            Object::Inode(objectid) => objectid,
            Object::Placeholder(nested) => return Ok(placeholder(ino, subvolume, nested)),
        };
        // An inode without a name is no longer for users.
        let item = self.inode_item(&tree, objectid)?.filter(|item| item.nlink() > 0);
        Ok(self.loaded(ino, subvolume, objectid, item.ok_or(NameError::Stale)?))
    }

    /// An inode for the VFS, from its item.
    pub(crate) fn loaded(&self, ino: Ino, subvolume: u64, objectid: u64, item: InodeItem) -> LoadedInode {
        let attr = self.attributes(&item);
        // Linux writes the data of such a file in place, before the counter: see docs/btrfs.md.
        let counter = if item.flags() & inode_flags::NODATACOW == 0 {
            InitialCounter::Stored(item.sequence())
        } else {
            InitialCounter::Stored(self.session.new_value())
        };
        let generation = item.generation() as u32;
        let vnode = Vnode::new(subvolume, objectid, item);
        LoadedInode { ino, generation, attr, counter, private: Box::new(vnode) }
    }

    fn attributes(&self, item: &InodeItem) -> Attr {
        let (uid, gid) = item.owner();
        let [atime, mtime, ctime, otime] = item.times();
        let set = FLAGS.iter().filter(|(flag, _)| item.flags() & flag != 0);
        let is_device = matches!(item.kind, FileType::BlockDevice | FileType::CharDevice);
        Attr {
            kind: item.kind,
            perm: item.perm(),
            uid,
            gid,
            project: 0,
            nlink: item.nlink(),
            size: item.size(),
            blocks_512: self.blocks_of(item),
            rdev: if is_device { item.rdev() } else { 0 },
            atime,
            mtime,
            ctime,
            btime: Some(otime),
            flags: set.fold(InodeFlags::empty(), |flags, (_, flag)| flags | *flag),
        }
    }

    /// Units of 512 bytes that an inode uses.
    pub(crate) fn blocks_of(&self, item: &InodeItem) -> u64 {
        let sector = u64::from(self.forest.volume.sb.sector_size);
        item.nbytes().checked_next_multiple_of(sector).unwrap_or(item.nbytes()) / 512
    }
}

/// An empty directory in place of a subvolume that a snapshot does not contain.
fn placeholder(ino: Ino, subvolume: u64, nested: u64) -> LoadedInode {
    let zero = Timestamp::default();
    let attr = Attr {
        kind: FileType::Directory,
        perm: PLACEHOLDER_PERM,
        uid: 0,
        gid: 0,
        project: 0,
        nlink: 1,
        size: 0,
        blocks_512: 0,
        rdev: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: None,
        flags: InodeFlags::empty(),
    };
    let mut vnode = Vnode::new(subvolume, object::FIRST_FREE, InodeItem::empty(FileType::Directory));
    vnode.placeholder = Some(nested);
    LoadedInode { ino, generation: 0, attr, counter: InitialCounter::NotStored, private: Box::new(vnode) }
}
