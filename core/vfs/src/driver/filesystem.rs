//! A filesystem as a whole: what never changes, what may change, and which optional interfaces there are.

use super::directory::DirectoryOps;
use super::file::FileOps;
use super::inode::InodeOps;
use super::locks::LockOps;
use super::optional::*;
use super::server::{CacheHandle, ServerOps};
use crate::error::{Error, Result};
use crate::types::*;

/// What never changes while a filesystem is mounted.
#[derive(Debug, Clone)]
pub struct FsInfo {
    /// The format: `ext4`, `mem`.
    pub fs_type: &'static str,
    /// The label when the filesystem was opened; bytes that are not UTF-8 are replaced.
    pub label: String,
    /// The UUID; all zero where the format has none.
    pub uuid: [u8; 16],
    /// Block size in bytes.
    pub block_size: u32,
    /// The root directory.
    pub root: Ino,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Largest file size in bytes.
    pub max_file_size: u64,
    /// Largest link count of a non-directory.
    pub max_links: u32,
    /// Granularity of stored times in nanoseconds.
    pub time_granularity_ns: u32,
    /// The promises of the change attribute.
    pub semantics: ChangeSemantics,
    /// How long change attributes are valid if they are not persistent.
    pub valid_until: ValidUntil,
    /// Whether the format stores project ids.
    pub projects: bool,
    /// Whether (ino, generation) identifies an inode across remounts. For the root it always does.
    pub persistent_inos: bool,
    /// Whether several spellings may be one name (case is ignored, or short names stand beside long ones).
    /// If so, the VFS trusts a cached name only while its directory has not changed.
    pub names_alias: bool,
    /// Granularity of [`FileOps::reserve`] in bytes. A format whose blocks are smaller than a page either
    /// reserves whole pages, or gives its block size here: then a page that is already dirty may need more.
    pub reserve_granularity: u64,
    /// The unit of [`FileOps::read`] and [`FileOps::write_back`] in bytes: a power of two from 4096, the page
    /// size, to 1 MiB. A format with larger blocks gives its block size, and never has to read the rest of a
    /// block before it writes one. All others give 4096.
    pub io_unit: u32,
    /// Who may use the reserved blocks; `None`: no blocks are reserved.
    pub reserved: Option<ReservedBlocks>,
}

impl FsInfo {
    /// The usual values for a format with this name and this block size: nothing optional, and no promise
    /// that outlives the mount. Set what differs.
    pub fn usual(fs_type: &'static str, block_size: u32) -> Self {
        let unit = block_size.max(4096);
        Self {
            fs_type,
            label: String::new(),
            uuid: [0; 16],
            block_size,
            root: Ino(1),
            name_max: 255,
            max_file_size: i64::MAX as u64,
            max_links: 65_000,
            time_granularity_ns: 1_000_000_000,
            semantics: ChangeSemantics::WITHIN_A_MOUNT,
            valid_until: ValidUntil::Unmount(None),
            projects: false,
            persistent_inos: false,
            names_alias: false,
            reserve_granularity: unit.into(),
            io_unit: unit,
            reserved: None,
        }
    }

    /// Returns the `instance` of the change attributes. Only values of one instance can be compared. `mount`
    /// must differ for each mount, and have only letters and digits.
    pub fn instance(&self, mount: &str) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let uuid = hex(&self.uuid);
        match self.valid_until {
            _ if self.semantics.persistent => uuid,
            ValidUntil::Write(mark) => format!("{uuid}~{}", hex(&mark)),
            ValidUntil::Unmount(_) => format!("{uuid}-{mount}"),
        }
    }
}

/// Who may use the reserved blocks, besides root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedBlocks {
    /// This user.
    pub uid: u32,
    /// The members of this group.
    pub gid: Option<u32>,
}

/// Which free blocks a request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockPool {
    /// All but the reserved blocks.
    Unreserved,
    /// All free blocks.
    All,
}

/// What a filesystem can do at this moment. It can get worse after the mount, and never better.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Why nothing can be changed, if so.
    pub read_only: Option<String>,
    /// Why no change attribute is served, if so.
    pub no_change_attribute: Option<String>,
}

/// A mounted filesystem of one format or protocol.
pub trait FileSystem: InodeOps + DirectoryOps + FileOps + Send + Sync + 'static {
    /// What never changes. Called once, at mount.
    fn info(&self) -> FsInfo;
    /// What it can do now.
    fn health(&self) -> Health {
        Health::default()
    }
    /// Whether the change attribute may be served now: [`Health::no_change_attribute`] is `None`, and what
    /// the value relies on is durable. Called before every query, so it must be cheap. Inode locks may be
    /// held, and no handle is open.
    fn serves_change_attribute(&self) -> bool {
        true
    }
    /// Free space and inodes.
    fn stat_fs(&self) -> Result<StatFs>;
    /// Format-specific facts for `ivers info`, as (name, value).
    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Make everything that was logged durable.
    fn sync(&self) -> Result<()>;
    /// Makes free blocks available that are still held back, for example until a commit. Returns whether
    /// there may be more than before. Called after `NoSpace`, with inode locks held and no handle open.
    fn reclaim_space(&self) -> Result<bool> {
        Ok(false)
    }
    /// Evicts about this many bytes of cached blocks that are clean and unused: the memory budget is over.
    /// May be called with inode locks held.
    fn evict_blocks(&self, _bytes: u64) {}
    /// A change met damage or a failing device and may be half done: nothing of it may become durable, and
    /// nothing may be written from now on. Later calls that change something must fail. May be called more
    /// than once.
    fn abort(&self, _why: &Error) {}
    /// Everything is written back: makes it durable and marks the filesystem clean. Not called after damage,
    /// nor if something stays unwritten; with [`ServerOps`] it is called in any case, to leave the server.
    fn unmount(&self) -> Result<()>;

    /// The user gives the server up. Calls that wait for it fail soon with
    /// [`ServerError::Timeout`](crate::ServerError::Timeout), and so do later ones: an unmount ends. Called
    /// from any thread, beside any other call.
    fn stop_waiting(&self) {}

    /// Extended attributes.
    fn xattrs(&self) -> Option<&dyn XattrOps> {
        None
    }
    /// Subvolumes and snapshots.
    fn subvolumes(&self) -> Option<&dyn SubvolumeOps> {
        None
    }
    /// Files without a name (O_TMPFILE).
    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        None
    }
    /// The block map of files, for SEEK_HOLE. Without it all of a file counts as data.
    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        None
    }
    /// `fallocate`.
    fn allocation(&self) -> Option<&dyn AllocateOps> {
        None
    }
    /// Shared extents, and copies that the driver makes.
    fn clones(&self) -> Option<&dyn CloneOps> {
        None
    }
    /// Format-specific ioctls.
    fn ioctls(&self) -> Option<&dyn IoctlOps> {
        None
    }
    /// The epoch, for formats that store the change counter.
    fn epochs(&self) -> Option<&dyn EpochOps> {
        None
    }
    /// What a network filesystem has beyond a local one.
    fn server(&self) -> Option<&dyn ServerOps> {
        None
    }
    /// Name and value of counters that only this driver has. The names are stable: users see them.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Byte-range locks, where others than the programs of this mount have them too. Otherwise the front end
    /// keeps them.
    fn locks(&self) -> Option<&dyn LockOps> {
        None
    }
    /// Called once, when the mount is complete: a driver whose files change behind the cache keeps the
    /// handle.
    fn mounted(&self, _cache: CacheHandle) {}

    /// Growing while the filesystem is in use.
    fn growing(&self) -> Option<&dyn GrowOps> {
        None
    }

    /// Setting the label.
    fn labels(&self) -> Option<&dyn LabelOps> {
        None
    }
    /// Figures of the journal.
    fn journal(&self) -> Option<&dyn JournalOps> {
        None
    }
}
