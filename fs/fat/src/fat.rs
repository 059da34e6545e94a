//! The filesystem and its inodes in memory.
//!
//! # Locks
//!
//! A change of the order of writes, then the state of a node (of one at a time), then the table's space and the places. The chain of a file is
//! changed only under the VFS's write-back lock of it, so that its end stays where it is between two holds of its state.

use crate::chain::Chain;
use crate::cluster::Cluster;
use crate::dir::Index;
use crate::layout::{Geometry, RawEntry, SLOT, attr};
use crate::open::OpenOptions;
use crate::places::{Place, Places, ROOT};
use crate::table::{Table, order_error};
use crate::time;
use ivers_block::{BufferCache, ByteOffset};
use ivers_vfs::sync::Mutex;
use ivers_vfs::*;
use ivers_write_ordering::{Change, Ordered, Stage, Ticket};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Entries of directories that are kept in memory, roughly: a hostile image has more.
const MOST_INDEXED: usize = 1 << 20;

/// A FAT filesystem, opened.
pub struct Fat {
    pub(crate) geometry: Geometry,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) table: Arc<Table>,
    /// None: read-only.
    pub(crate) ordered: Option<Ordered>,
    pub(crate) options: OpenOptions,
    pub(crate) read_only: Option<String>,
    pub(crate) label: String,
    pub(crate) places: Mutex<Places>,
    pub(crate) indexed: Mutex<Indexed>,
}

/// The directories whose entries are in memory, the oldest first, and how many entries these are.
#[derive(Default)]
pub(crate) struct Indexed {
    queue: VecDeque<(Weak<Node>, usize)>,
    total: usize,
}

/// What is kept beside an inode.
pub(crate) struct Node {
    pub state: Mutex<State>,
}

pub(crate) struct State {
    /// Where its entry is; none: it is the root, or has lost its name.
    pub place: Option<Place>,
    /// It is the root directory of FAT12 and FAT16, which has a place of its own.
    pub fixed_root: bool,
    pub chain: Chain,
    /// The size in its entry.
    pub disk_size: u64,
    /// The bytes behind this, though they have clusters, are somebody's old ones.
    pub valid: u64,
    /// Clusters promised to dirty pages, beyond those of the chain.
    pub promised: u64,
    /// The change that made the chain shorter.
    pub cut: Ticket,
    /// The change that gave it another name by the write that takes the old one away: until that is durable it gets no third one.
    pub renamed: Ticket,
    pub index: Option<Index>,
}

pub(crate) fn node(inode: &Inode) -> &Arc<Node> {
    inode.private::<Arc<Node>>()
}

impl Fat {
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        self.ordered.as_ref().ok_or(NameError::ReadOnly)?.change().map_err(order_error)
    }

    /// Makes a change durable, if it is not yet. Without a change, and under none of the locks.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<()> {
        self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.settle(ticket).map_err(order_error))
    }

    pub(crate) fn offset_s(&self) -> i64 {
        i64::from(self.options.utc_offset_minutes) * 60
    }

    /// What messages call a file whose name they do not know.
    pub(crate) fn name_of(&self, state: &State) -> String {
        match state.place {
            Some(place) => format!("{}, entry at byte {}", self.options.place, place * SLOT),
            None => format!("{}, the root directory", self.options.place),
        }
    }

    fn new_state(&self, place: Option<Place>, first: Cluster, size: u64) -> State {
        State {
            place,
            fixed_root: false,
            chain: Chain::new(first),
            disk_size: size,
            valid: size,
            promised: 0,
            cut: Ticket::default(),
            renamed: Ticket::default(),
            index: None,
        }
    }

    /// The directory that begins at a cluster, for one look at it; `NONE`: the root.
    pub(crate) fn directory_at(&self, cluster: Cluster) -> State {
        let is_root = cluster == Cluster::NONE;
        let mut state = self.new_state(None, if is_root { self.geometry.root_cluster } else { cluster }, 0);
        state.fixed_root = is_root && self.geometry.bits != 32;
        state
    }

    /// Note that a directory is in memory; the oldest leave it, if these are many.
    pub(crate) fn indexed(&self, node: &Arc<Node>, entries: usize) {
        let mut indexed = self.indexed.lock();
        let Indexed { queue, total } = &mut *indexed;
        queue.push_back((Arc::downgrade(node), entries));
        *total += entries;
        while *total > MOST_INDEXED && queue.len() > 1 {
            let Some((old, entries)) = queue.pop_front() else { break };
            *total -= entries;
            let Some(old) = old.upgrade() else { continue };
            if let Some(mut state) = old.state.try_lock() {
                state.index = None;
            } else {
                queue.push_back((Arc::downgrade(&old), entries));
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

    fn loaded(&self, ino: Ino, generation: u32, attr: Attr, node: Arc<Node>) -> LoadedInode {
        LoadedInode { ino, generation, attr, counter: InitialCounter::NotStored, private: Box::new(node) }
    }

    fn directory_attr(&self, node: &Arc<Node>, attr: Attr) -> Result<Attr> {
        let mut state = node.state.lock();
        let size = u64::from(self.slots(&mut state)?) * SLOT;
        let nlink = 2 + self.index(node, &mut state)?.subdirs();
        Ok(Attr { nlink, size, blocks_512: size / 512, ..attr })
    }

    pub(crate) fn load_root(&self) -> Result<LoadedInode> {
        let node = Arc::new(Node { state: Mutex::new(self.directory_at(Cluster::NONE)) });
        let root = NewInode {
            perm: self.permissions(attr::DIRECTORY),
            uid: self.options.uid,
            gid: self.options.gid,
            ..NewInode::new(FileType::Directory, Timestamp::default())
        };
        let attr = self.directory_attr(&node, root.attr(2))?;
        Ok(self.loaded(ROOT, self.geometry.serial, attr, node))
    }

    /// What tells files in one place apart, over mounts too: when it was made, and how often the place has changed hands in this mount.
    fn generation(&self, place: Place, entry: &RawEntry) -> u32 {
        let made = u32::from(entry.dir_crt_date.get()) << 16 | u32::from(entry.dir_crt_time.get());
        let life = self.places.lock().life(place) as u32;
        made.wrapping_mul(0x9E37_79B1).wrapping_add(u32::from(entry.dir_crt_time_tenth)) ^ life
    }

    pub(crate) fn load_place(&self, ino: Ino, place: Place) -> Result<LoadedInode> {
        let byte = place.checked_mul(SLOT).ok_or(NameError::Stale)?;
        let end =
            self.geometry.data_byte + u64::from(self.geometry.clusters) * u64::from(self.geometry.cluster);
        if !(self.geometry.root_byte..end).contains(&ByteOffset(byte)) {
            return Err(NameError::Stale.into());
        }
        let entry = self.entry(place)?;
        if !entry.is_in_use() || entry.dir_name[0] == b'.' {
            return Err(NameError::Stale.into());
        }
        let first = entry.first_cluster(self.geometry.bits);
        let is_dir = entry.is_directory();
        let size = if is_dir { 0 } else { u64::from(entry.dir_file_size.get()) };
        if (first != Cluster::NONE || is_dir || size > 0) && !self.geometry.is_cluster(first) {
            return Err(Error::corrupt(
                format!("it begins at cluster {first}, of {}", self.geometry.clusters),
                format!("{}, entry at byte {byte}", self.options.place),
            ));
        }
        let node = Arc::new(Node { state: Mutex::new(self.new_state(Some(place), first, size)) });
        let mut attr = self.attr_of(&entry, size);
        if is_dir {
            attr = self.directory_attr(&node, attr)?;
        }
        Ok(self.loaded(ino, self.generation(place, &entry), attr, node))
    }

    pub(crate) fn attr_of(&self, entry: &RawEntry, size: u64) -> Attr {
        let offset = self.offset_s();
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
            blocks_512: clusters * u64::from(self.geometry.cluster) / 512,
            rdev: 0,
            atime: at(entry.dir_lst_acc_date.get(), 0, 0),
            mtime,
            ctime: mtime,
            btime: Some(at(entry.dir_crt_date.get(), entry.dir_crt_time.get(), entry.dir_crt_time_tenth)),
            flags: InodeFlags::empty(),
        }
    }

    /// What an inode's entry says of it, but for its name.
    pub(crate) fn fill_entry(&self, entry: &mut RawEntry, state: &State, inode_attr: &Attr) {
        let offset = self.offset_s();
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

    /// Put an inode into its entry, if it has one.
    pub(crate) fn log_state(&self, change: &Change<'_>, inode: &Inode, state: &State) -> Result<()> {
        let Some(place) = state.place else { return Ok(()) };
        let mut entry = self.entry(place)?;
        let before = entry;
        self.fill_entry(&mut entry, state, &inode.attr());
        if entry != before {
            self.put_entry(change, Stage::Attach, place, zerocopy::IntoBytes::as_bytes(&entry))?;
        }
        Ok(())
    }

    pub(crate) fn log_in(&self, change: &Change<'_>, inode: &Inode) -> Result<()> {
        self.log_state(change, inode, &node(inode).state.lock())
    }

    /// After a change is visible.
    pub(crate) fn touched(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        touch: Touch,
        logged: Logged,
    ) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log_in(change, inode) } else { Ok(()) }
    }

    /// The names in a directory changed, and `subdirectories` of them came or went.
    pub(crate) fn renamed_in(&self, change: &Change<'_>, dir: &Inode, subdirectories: i32) -> Result<()> {
        let slots = {
            let mut state = node(dir).state.lock();
            self.slots(&mut state)?
        };
        dir.with_attr(|attr| {
            attr.nlink = attr.nlink.saturating_add_signed(subdirectories);
            attr.size = u64::from(slots) * SLOT;
            attr.blocks_512 = attr.size / 512;
        });
        self.touched(change, dir, Touch::Data, Logged::IfNeeded)
    }
}
