//! What the driver keeps with an inode of the VFS.

use crate::delayed::Delayed;
use crate::inode::Dinode;
use crate::layout::superblock::Superblock;
use ivers_block::Unit;
use ivers_journal::{LastChange, LogObject};
use ivers_vfs::Inode;
use ivers_vfs::sync::{RankedMutex, RankedReadGuard, RankedRwLock, rank};
use std::sync::{Arc, OnceLock};

/// The rank of the lock of an inode in memory. It follows the lock of the groups.
pub(crate) type CoreRank = rank::Driver<8>;

/// The driver's data of an inode. [`Inode::private`] is an [`Arc`] of it: the copies of an inode share it.
pub(crate) struct XfsInode {
    /// The inode as it is stored, or will be. Its size is the size on the device: never beyond written data.
    /// Readers hold the lock while they read the blocks that it leads to.
    pub core: RankedRwLock<CoreRank, Dinode>,
    /// Blocks that wait for write-back.
    pub delayed: RankedMutex<rank::Leaf, Delayed>,
    /// Its newest change, for fsync.
    pub last_change: LastChange,
    /// See [`Superblock::inode_cluster`]; found when the inode is first logged.
    cluster: OnceLock<Option<(Unit, usize)>>,
}

impl XfsInode {
    pub(crate) fn new(core: Dinode, last_change: LastChange) -> Arc<Self> {
        let ino = core.ino;
        let core = RankedRwLock::with_key(core, ino);
        Arc::new(Self { core, delayed: RankedMutex::default(), last_change, cluster: OnceLock::new() })
    }

    /// The inode as it is in `core`, for the log. `None` if it cannot be encoded.
    pub(super) fn image(&self, core: &Dinode, sb: &Superblock) -> Option<Arc<dyn LogObject>> {
        let (unit, at) = self.cluster.get_or_init(|| sb.inode_cluster(core.ino)).as_ref()?;
        core.image_in(sb, unit.clone(), *at)
    }
}

/// The driver's data of an inode.
pub(crate) fn private_of(inode: &Inode) -> &Arc<XfsInode> {
    inode.private()
}

/// The inode as it is stored, for reading.
pub(crate) fn core_of(inode: &Inode) -> RankedReadGuard<'_, Dinode> {
    private_of(inode).core.read()
}
