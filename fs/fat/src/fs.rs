//! The opened filesystem, and the data that the driver keeps with every inode.
//!
//! # Locks
//!
//! A thread takes them in this order; debug builds assert it (`ivers_vfs::sync`):
//!
//! | rank | lock |
//! |---|---|
//! | `Handle` | a [`Change`], or a wait for a batch of changes |
//! | `Driver<0>` | [`FatInode::state`], of one inode at a time |
//! | `Driver<10>` | [`Fat::indexed`] |
//! | `Driver<15>` | the free clusters of [`AllocationTable`] |
//! | `Leaf` | [`Fat::ino_map`] |
//!
//! The cluster chain of a file changes only under the VFS's write-back lock of that file. So the end of the
//! chain stays the same while a writer releases the state and takes it again.

use crate::chain::Chain;
use crate::cluster::Cluster;
use crate::dir::Index;
use crate::fat::AllocationTable;
use crate::ino_map::{self, EntryPos, InoMap, ROOT};
use crate::layout::{Geometry, RawEntry, SLOT_BYTES, attr};
use crate::open::OpenOptions;
use crate::time;
use ivers_block::{BufferCache, ByteOffset};
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::*;
use ivers_write_ordering::{Change, Ordered, OrderedError, Stage, Ticket};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The approximate number of directory entries that are kept in memory. A hostile image may have more.
const MAX_INDEXED: usize = 1 << 20;

/// An open FAT filesystem.
pub struct Fat {
    pub(crate) geometry: Geometry,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) table: Arc<AllocationTable>,
    /// `None` if the filesystem is read-only.
    pub(crate) ordered: Option<Ordered>,
    pub(crate) options: OpenOptions,
    /// Why the filesystem is read-only, if it is.
    pub(crate) read_only: Option<String>,
    pub(crate) label: String,
    pub(crate) ino_map: RankedMutex<rank::Leaf, InoMap>,
    pub(crate) indexed: RankedMutex<rank::Driver<10>, IndexList>,
}

/// The directories whose entries are in memory.
#[derive(Default)]
pub(crate) struct IndexList {
    /// Each directory with the number of its entries, the oldest first.
    queue: VecDeque<(Weak<FatInode>, usize)>,
    /// The sum of these numbers.
    total: usize,
}

/// The driver's data of an inode: [`Inode::private`].
pub(crate) struct FatInode {
    pub state: RankedMutex<rank::Driver<0>, InodeState>,
}

pub(crate) struct InodeState {
    /// The position of the short entry. `None` for the root, and for an inode whose name was removed.
    pub entry_pos: Option<EntryPos>,
    /// Whether this is the root directory of FAT12 or FAT16, which is not a cluster chain.
    pub fixed_root: bool,
    pub chain: Chain,
    /// The size in the entry on disk.
    pub disk_size: u64,
    /// The length of the data that was written. Clusters of the file past this hold stale data of other
    /// files, which must never be read.
    pub valid_size: u64,
    /// Clusters reserved for dirty pages, beyond those of the chain.
    pub reserved: u64,
    /// The change that last made the chain shorter. It must be durable before the chain grows.
    pub truncate_ticket: Ticket,
    /// The last rename that added the new name and removed the old one by one write. It must be durable
    /// before the next rename.
    pub rename_ticket: Ticket,
    /// The entries of a directory, if they are in memory.
    pub index: Option<Index>,
}

/// Returns the driver's data of an inode.
pub(crate) fn fat_inode(inode: &Inode) -> &Arc<FatInode> {
    inode.private::<Arc<FatInode>>()
}

/// Converts an error of the write ordering.
pub(crate) fn order_error(error: OrderedError) -> Error {
    match error {
        OrderedError::Block(error) => error.into(),
        other => Error::io(other),
    }
}

impl Fat {
    /// Starts a change, without a lock of the driver. Returns `ReadOnly` if the filesystem is read-only.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        let ordered = self.ordered.as_ref().ok_or(NameError::ReadOnly)?;
        ordered.change().map_err(order_error)
    }

    /// Makes a change durable, if it is not.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<()> {
        self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.settle(ticket).map_err(order_error))
    }

    /// Makes all changes durable.
    pub(crate) fn sync_changes(&self) -> Result<()> {
        self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.sync().map_err(order_error))
    }

    pub(crate) fn utc_offset_s(&self) -> i64 {
        i64::from(self.options.utc_offset_minutes) * 60
    }

    /// Describes an inode in an error. The driver does not know names of inodes.
    pub(crate) fn describe_inode(&self, state: &InodeState) -> String {
        match state.entry_pos {
            Some(pos) => format!("{}, entry at byte {}", self.options.common.place, pos * SLOT_BYTES),
            None => format!("{}, the root directory", self.options.common.place),
        }
    }

    fn new_state(&self, entry_pos: Option<EntryPos>, first: Cluster, size: u64) -> InodeState {
        InodeState {
            entry_pos,
            fixed_root: false,
            chain: Chain::new(first),
            disk_size: size,
            valid_size: size,
            reserved: 0,
            truncate_ticket: Ticket::default(),
            rename_ticket: Ticket::default(),
            index: None,
        }
    }

    /// Returns the state of the directory that starts at a cluster, for reading it once. `NONE` is the root.
    pub(crate) fn directory_at(&self, cluster: Cluster) -> InodeState {
        let is_root = cluster == Cluster::NONE;
        let mut state = self.new_state(None, if is_root { self.geometry.root_cluster } else { cluster }, 0);
        state.fixed_root = is_root && self.geometry.bits != 32;
        state
    }

    /// Records that the entries of a directory were read into memory. Drops those of the oldest directories
    /// if there are too many.
    pub(crate) fn index_created(&self, dir: &Arc<FatInode>, entries: usize) {
        let mut indexed = self.indexed.lock();
        let IndexList { queue, total } = &mut *indexed;
        queue.push_back((Arc::downgrade(dir), entries));
        *total += entries;
        while *total > MAX_INDEXED && queue.len() > 1 {
            let Some((oldest, entries)) = queue.pop_front() else { break };
            *total -= entries;
            let Some(oldest) = oldest.upgrade() else { continue };
            if let Some(mut state) = oldest.state.try_lock() {
                state.index = None;
            } else {
                queue.push_back((Arc::downgrade(&oldest), entries));
                *total += entries;
                break;
            }
        }
    }

    pub(crate) fn permissions(&self, entry_attr: u8) -> u32 {
        if entry_attr & attr::DIRECTORY != 0 {
            return 0o777 & !self.options.dmask;
        }
        let read_only = if entry_attr & attr::READ_ONLY != 0 { 0o222 } else { 0 };
        0o777 & !self.options.fmask & !read_only
    }

    fn loaded(&self, ino: Ino, generation: u32, attr: Attr, private: Arc<FatInode>) -> LoadedInode {
        LoadedInode { ino, generation, attr, counter: InitialCounter::NotStored, private: Box::new(private) }
    }

    fn directory_attr(&self, dir: &Arc<FatInode>, attr: Attr) -> Result<Attr> {
        let mut state = dir.state.lock();
        let size = u64::from(self.slots(&mut state)?) * SLOT_BYTES;
        let nlink = 2 + self.index(dir, &mut state)?.subdirs();
        Ok(Attr { nlink, size, blocks_512: size / 512, ..attr })
    }

    pub(crate) fn load_root(&self) -> Result<LoadedInode> {
        let private = Arc::new(FatInode { state: RankedMutex::new(self.directory_at(Cluster::NONE)) });
        let root = NewInode {
            perm: self.permissions(attr::DIRECTORY),
            uid: self.options.uid,
            gid: self.options.gid,
            ..NewInode::new(FileType::Directory, Timestamp::default())
        };
        let attr = self.directory_attr(&private, root.attr(2))?;
        Ok(self.loaded(ROOT, self.geometry.serial, attr, private))
    }

    /// Returns the generation of an inode, which distinguishes files at one position, also across mounts: it
    /// combines the time of creation with the number of removals in this mount. A renamed inode keeps it, as
    /// it keeps its number.
    fn inode_generation(ino: Ino, entry: &RawEntry) -> u32 {
        let created = u32::from(entry.dir_crt_date.get()) << 16 | u32::from(entry.dir_crt_time.get());
        let removals = ino_map::generation_in(ino);
        created.wrapping_mul(0x9E37_79B1).wrapping_add(u32::from(entry.dir_crt_time_tenth)) ^ removals
    }

    /// Loads the inode whose entry is at a position. Returns `Stale` if no file has its entry there.
    pub(crate) fn load_entry(&self, ino: Ino, pos: EntryPos) -> Result<LoadedInode> {
        let byte = pos.checked_mul(SLOT_BYTES).ok_or(NameError::Stale)?;
        let end = self.geometry.data_offset
            + u64::from(self.geometry.clusters) * u64::from(self.geometry.cluster_bytes);
        if !(self.geometry.root_offset..end).contains(&ByteOffset(byte)) {
            return Err(NameError::Stale.into());
        }
        let entry = self.entry(pos)?;
        if !entry.is_in_use() || entry.dir_name[0] == b'.' {
            return Err(NameError::Stale.into());
        }
        let first = entry.first_cluster(self.geometry.bits);
        let is_dir = entry.is_directory();
        let size = if is_dir { 0 } else { u64::from(entry.dir_file_size.get()) };
        if (first != Cluster::NONE || is_dir || size > 0) && !self.geometry.is_cluster(first) {
            return Err(Error::corrupt(
                format!("first cluster {first} is outside the volume of {} clusters", self.geometry.clusters),
                format!("{}, entry at byte {byte}", self.options.common.place),
            ));
        }
        let state = self.new_state(Some(pos), first, size);
        let private = Arc::new(FatInode { state: RankedMutex::new(state) });
        let mut attr = self.attr_of(&entry, size);
        if is_dir {
            attr = self.directory_attr(&private, attr)?;
        }
        Ok(self.loaded(ino, Self::inode_generation(ino, &entry), attr, private))
    }

    pub(crate) fn attr_of(&self, entry: &RawEntry, size: u64) -> Attr {
        let offset = self.utc_offset_s();
        let at = |date: u16, clock: u16, hundredths: u8| time::decode(date, clock, hundredths, offset);
        let mtime = at(entry.dir_wrt_date.get(), entry.dir_wrt_time.get(), 0);
        let clusters = self.geometry.clusters_for(size);
        Attr {
            kind: if entry.is_directory() { FileType::Directory } else { FileType::Regular },
            perm: self.permissions(entry.dir_attr),
            uid: self.options.uid,
            gid: self.options.gid,
            project: 0,
            nlink: 1,
            size,
            blocks_512: clusters * u64::from(self.geometry.cluster_bytes) / 512,
            rdev: 0,
            atime: at(entry.dir_lst_acc_date.get(), 0, 0),
            mtime,
            ctime: mtime,
            btime: Some(at(entry.dir_crt_date.get(), entry.dir_crt_time.get(), entry.dir_crt_time_tenth)),
            flags: InodeFlags::empty(),
        }
    }

    /// Stores the attributes of an inode in an entry, but not its name.
    pub(crate) fn fill_entry(&self, entry: &mut RawEntry, state: &InodeState, inode_attr: &Attr) {
        let offset = self.utc_offset_s();
        let (date, clock, _) = time::encode(inode_attr.mtime, offset);
        entry.dir_wrt_date.set(date);
        entry.dir_wrt_time.set(clock);
        entry.dir_lst_acc_date.set(time::encode(inode_attr.atime, offset).0);
        entry.set_first_cluster(state.chain.first(), self.geometry.bits);
        if inode_attr.kind == FileType::Regular {
            entry.dir_file_size.set(state.disk_size as u32);
            let writable = inode_attr.perm & 0o222 != 0 || self.permissions(0) & 0o222 == 0;
            entry.dir_attr = entry.dir_attr & !attr::READ_ONLY | if writable { 0 } else { attr::READ_ONLY };
        }
    }

    /// Logs an inode whose state is locked: updates its entry, if it has one.
    pub(crate) fn log_state(&self, change: &Change<'_>, inode: &Inode, state: &InodeState) -> Result<()> {
        let Some(pos) = state.entry_pos else { return Ok(()) };
        let mut entry = self.entry(pos)?;
        let before = entry;
        self.fill_entry(&mut entry, state, &inode.attr());
        if entry != before {
            self.put_entry(change, Stage::Attach, pos, zerocopy::IntoBytes::as_bytes(&entry))?;
        }
        Ok(())
    }

    /// Logs an inode within a change.
    pub(crate) fn log_in(&self, change: &Change<'_>, inode: &Inode) -> Result<()> {
        self.log_state(change, inode, &fat_inode(inode).state.lock())
    }

    /// Calls [`Inode::changed`], and logs the inode if the answer requires it. Call it after the change is
    /// visible.
    pub(crate) fn changed(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        touch: Touch,
        logged: Logged,
    ) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log_in(change, inode) } else { Ok(()) }
    }

    /// Updates a directory whose names changed. `subdirectories` is the number of subdirectories that it
    /// gained, negative if it lost some.
    pub(crate) fn names_changed(&self, change: &Change<'_>, dir: &Inode, subdirectories: i32) -> Result<()> {
        let slots = {
            let mut state = fat_inode(dir).state.lock();
            self.slots(&mut state)?
        };
        dir.with_attr(|attr| {
            attr.nlink = attr.nlink.saturating_add_signed(subdirectories);
            attr.size = u64::from(slots) * SLOT_BYTES;
            attr.blocks_512 = attr.size / 512;
        });
        self.changed(change, dir, Touch::Data, Logged::IfNeeded)
    }
}
