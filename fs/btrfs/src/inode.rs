//! Inodes.

use crate::filesystem::Btrfs;
use crate::layout::items::{InodeItem, inode_flags};
use crate::layout::key::{Key, kind, object};
use crate::numbers::{Object, pack, unpack};
use crate::tree::Tree;
use ivers_vfs::{
    Attr, FileType, InitialCounter, Ino, Inode, InodeFlags, LoadedInode, NameError, Result, Timestamp,
};

/// The permission of a directory in place of a subvolume.
const PLACEHOLDER_PERM: u32 = 0o755;
const FLAGS: [(u64, InodeFlags); 6] = [
    (inode_flags::SYNC, InodeFlags::SYNC),
    (inode_flags::IMMUTABLE, InodeFlags::IMMUTABLE),
    (inode_flags::APPEND, InodeFlags::APPEND),
    (inode_flags::NODUMP, InodeFlags::NODUMP),
    (inode_flags::NOATIME, InodeFlags::NOATIME),
    (inode_flags::DIRSYNC, InodeFlags::DIRSYNC),
];

/// What the driver keeps with an inode.
pub(crate) struct Vnode {
    /// The tree of its subvolume.
    pub tree: Tree,
    /// Its number there.
    pub objectid: u64,
    /// The subvolume that it stands for, if it is only a placeholder.
    pub placeholder: Option<u64>,
    size: u64,
    flags: u64,
}

impl Vnode {
    pub(crate) fn is_placeholder(&self) -> bool {
        self.placeholder.is_some()
    }

    pub(crate) fn ino(&self) -> Result<Ino> {
        pack(self.tree.id, self.placeholder.map_or(Object::Inode(self.objectid), Object::Placeholder))
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether its data has checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        self.flags & inode_flags::NODATASUM == 0
    }
}

/// The private part of an inode of this driver.
pub(crate) fn vnode_of(inode: &Inode) -> &Vnode {
    inode.private::<Vnode>()
}

impl Btrfs {
    fn inode_item(&self, tree: &Tree, objectid: u64) -> Result<Option<InodeItem>> {
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
            Object::Placeholder(nested) => return Ok(placeholder(ino, tree, nested)),
        };
        // An inode without a name is no longer for users.
        let item = self.inode_item(&tree, objectid)?.filter(|item| item.nlink() > 0);
        let item = item.ok_or(NameError::Stale)?;
        let (uid, gid) = item.owner();
        let [atime, mtime, ctime, otime] = item.times();
        let sector = u64::from(self.forest.volume.sb.sector_size);
        let nbytes = item.nbytes().checked_next_multiple_of(sector).unwrap_or(item.nbytes());
        let set = FLAGS.iter().filter(|(flag, _)| item.flags() & flag != 0);
        let attr = Attr {
            kind: item.kind,
            perm: item.perm(),
            uid,
            gid,
            project: 0,
            nlink: item.nlink(),
            size: item.size(),
            blocks_512: nbytes / 512,
            rdev: if matches!(item.kind, FileType::BlockDevice | FileType::CharDevice) {
                item.rdev()
            } else {
                0
            },
            atime,
            mtime,
            ctime,
            btime: Some(otime),
            flags: set.fold(InodeFlags::empty(), |flags, (_, flag)| flags | *flag),
        };
        // Linux writes the data of such a file in place, before the counter: see docs/btrfs.md.
        let counter = if item.flags() & inode_flags::NODATACOW == 0 {
            InitialCounter::Stored(item.sequence())
        } else {
            InitialCounter::NotStored
        };
        let vnode = Vnode { tree, objectid, placeholder: None, size: item.size(), flags: item.flags() };
        Ok(LoadedInode { ino, generation: item.generation() as u32, attr, counter, private: Box::new(vnode) })
    }
}

/// An empty directory in place of a subvolume that a snapshot does not contain.
fn placeholder(ino: Ino, tree: Tree, nested: u64) -> LoadedInode {
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
    let vnode = Vnode { tree, objectid: object::FIRST_FREE, placeholder: Some(nested), size: 0, flags: 0 };
    LoadedInode { ino, generation: 0, attr, counter: InitialCounter::NotStored, private: Box::new(vnode) }
}
