//! What a check knows: the device, the geometry, who owns each block, and a few bytes for each inode.
//!
//! Memory: 2 bits a block where blocks are in use, 5 bytes an inode in groups with inodes in use, 48 bytes a
//! group, 12 bytes a directory, and the hashes of the names of one directory, 8 bytes each.

use crate::layout::features::RoCompat;
use crate::layout::group::GroupDesc;
use crate::layout::inode::{BAD_BLOCKS_INO, GOOD_OLD_SIZE, inode_seed};
use crate::layout::raw::{RawInode, RawSuperblock};
use crate::layout::superblock::Superblock;
use ivers_block::{BlockNo, ByteOffset, Device};
use ivers_vfs::check::{Bits, Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// Kept for each inode of a group with inodes in use: kind, links, names.
const INODE_BYTES: usize = 5;
/// Taken by a block of attributes, with its share of a tree's node.
const SHARED_BYTES: usize = 64;
/// Taken by a reference to an attribute inode, with its share of a tree's node.
const REFERENCE_BYTES: usize = 32;
/// Taken by the usage of one id, with its share of a tree's node.
const USAGE_BYTES: usize = 40;
/// Groups of a filesystem that is checked; more would take too much memory.
const MAX_GROUPS: u32 = 1 << 23;

/// The device and the geometry.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) dev: Arc<dyn Device>,
    pub(super) sb: Arc<Superblock>,
}

impl Reader {
    /// Reads a block. Returns `None` for one outside the filesystem.
    pub(super) fn block(&self, block: u64) -> Result<Option<Vec<u8>>> {
        if block >= self.sb.blocks_count() {
            return Ok(None);
        }
        let mut bytes = vec![0; self.sb.block_size as usize];
        self.dev.read_at(ByteOffset(block * u64::from(self.sb.block_size)), &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The checksum seed of what an inode owns.
    pub(super) fn seed(&self, inode: &Slot) -> u32 {
        inode_seed(&self.sb, inode.ino, inode.raw.i_generation.get())
    }

    pub(super) fn is_valid(&self, block: u64) -> bool {
        self.sb.is_valid_block(BlockNo(block))
    }
}

/// An inode's slot, as stored.
pub(super) struct Slot {
    pub(super) ino: u32,
    pub(super) raw: RawInode,
    pub(super) bytes: Vec<u8>,
}

impl Slot {
    pub(super) fn new(ino: u32, bytes: Vec<u8>) -> Self {
        let mut raw = RawInode::new_zeroed();
        let len = bytes.len().min(size_of::<RawInode>());
        raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        Self { ino, raw, bytes }
    }

    pub(super) fn mode(&self) -> u16 {
        self.raw.i_mode.get()
    }

    pub(super) fn flags(&self) -> u32 {
        self.raw.i_flags.get()
    }

    pub(super) fn size(&self) -> u64 {
        u64::from(self.raw.i_size_lo.get()) | u64::from(self.raw.i_size_high.get()) << 32
    }

    /// Whether it says that it is a regular file.
    pub(super) fn is_regular(&self) -> bool {
        self.mode() & 0o170000 == 0o100000
    }

    /// The bytes after the fields, which hold attributes.
    pub(super) fn body(&self) -> &[u8] {
        let start = GOOD_OLD_SIZE + usize::from(self.raw.i_extra_isize.get());
        self.bytes.get(start..).unwrap_or_default()
    }

    /// Whether nothing was ever stored here but zeros.
    pub(super) fn is_zero(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == 0)
    }
}

/// Kinds of inodes: the values of the file type in directory entries, and flags.
pub(super) mod kind {
    pub(in crate::check) const REGULAR: u8 = 1;
    pub(in crate::check) const DIRECTORY: u8 = 2;
    pub(in crate::check) const SYMLINK: u8 = 7;
    /// In use, of no known type.
    pub(in crate::check) const UNKNOWN: u8 = 8;
    pub(in crate::check) const TYPE: u8 = 15;
    /// On the list or in the file of orphans.
    pub(in crate::check) const ORPHAN: u8 = 16;
    /// Holds the value of an attribute.
    pub(in crate::check) const EA_INODE: u8 = 32;
    /// Not to be checked for names: reserved.
    pub(in crate::check) const SPECIAL: u8 = 64;
    /// Has encrypted contents.
    pub(in crate::check) const ENCRYPTED: u8 = 128;
}

/// The inodes of one group.
struct GroupInodes {
    kinds: Box<[u8]>,
    links: Box<[u16]>,
    names: Box<[u16]>,
}

/// What is known of the inodes.
pub(super) struct Inodes {
    per_group: u32,
    groups: BTreeMap<u32, GroupInodes>,
}

impl Inodes {
    fn find(&self, ino: u32) -> Option<(&GroupInodes, usize)> {
        let rel = ino.checked_sub(1)?;
        Some((self.groups.get(&(rel / self.per_group))?, (rel % self.per_group) as usize))
    }

    /// The kind of an inode; 0 for one that is not in use.
    pub(super) fn kind(&self, ino: u32) -> u8 {
        self.find(ino).map_or(0, |(group, at)| group.kinds[at])
    }

    /// Stored links and counted names.
    pub(super) fn links(&self, ino: u32) -> (u16, u16) {
        self.find(ino).map_or((0, 0), |(group, at)| (group.links[at], group.names[at]))
    }

    fn entry(&mut self, ino: u32) -> (&mut GroupInodes, usize) {
        let rel = ino - 1;
        let len = self.per_group as usize;
        let group = self.groups.entry(rel / self.per_group).or_insert_with(|| GroupInodes {
            kinds: vec![0; len].into_boxed_slice(),
            links: vec![0; len].into_boxed_slice(),
            names: vec![0; len].into_boxed_slice(),
        });
        (group, (rel % self.per_group) as usize)
    }

    pub(super) fn add(&mut self, ino: u32, kind: u8, links: u16) {
        let (group, at) = self.entry(ino);
        group.kinds[at] |= kind;
        group.links[at] = links;
    }

    pub(super) fn add_flag(&mut self, ino: u32, flag: u8) {
        let (group, at) = self.entry(ino);
        group.kinds[at] |= flag;
    }

    /// Counts a name; a count at its limit stays there.
    pub(super) fn count_name(&mut self, ino: u32) {
        let (group, at) = self.entry(ino);
        group.names[at] = group.names[at].saturating_add(1);
    }

    /// The inodes in use in a group, as a bitmap of the group; and the directories among them.
    pub(super) fn used_in(&self, group: u32) -> (Vec<u8>, u32, u32) {
        let mut bits = vec![0u8; (self.per_group as usize).div_ceil(8)];
        let (mut used, mut dirs) = (0, 0);
        if let Some(found) = self.groups.get(&group) {
            for (at, &kind) in found.kinds.iter().enumerate().filter(|(_, kind)| **kind & !kind::ORPHAN != 0)
            {
                bits[at / 8] |= 1 << (at % 8);
                used += 1;
                dirs += u32::from(kind & kind::TYPE == kind::DIRECTORY);
            }
        }
        (bits, used, dirs)
    }

    /// All inodes in use, in order.
    pub(super) fn used(&self) -> impl Iterator<Item = (u32, u8)> + '_ {
        let per_group = self.per_group;
        self.groups.iter().flat_map(move |(group, found)| {
            let first = group * per_group + 1;
            let kinds = found.kinds.iter().enumerate();
            kinds
                .filter(|(_, kind)| **kind & !kind::ORPHAN != 0)
                .map(move |(at, kind)| (first + at as u32, *kind))
        })
    }
}

/// A directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dir {
    pub(super) ino: u32,
    /// The directory whose entry leads here; 0 if none was seen.
    pub(super) parent: u32,
    /// What its `..` says; 0 if there is none.
    pub(super) dotdot: u32,
}

/// An attribute block: the count it stores, and the inodes that use it.
pub(super) struct SharedBlock {
    pub(super) stored: u32,
    pub(super) users: u32,
    pub(super) first_user: u32,
    /// Blocks of 512 bytes of attribute inodes that count for each user.
    pub(super) value_blocks: u64,
}

/// What one owner uses.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) inodes: u64,
    pub(super) bytes: u64,
}

/// The state of a check.
pub(super) struct Checker {
    pub(super) reader: Reader,
    pub(super) raw: RawSuperblock,
    pub(super) found: Findings,
    pub(super) memory: Memory,
    pub(super) descs: Vec<GroupDesc>,
    /// Groups whose descriptor has a right checksum.
    pub(super) desc_sound: Vec<bool>,
    /// Clusters that have an owner.
    pub(super) claimed: Bits,
    /// Clusters of the filesystem's own structures.
    pub(super) meta: Bits,
    pub(super) inodes: Inodes,
    pub(super) dirs: Vec<Dir>,
    pub(super) shared: BTreeMap<u64, SharedBlock>,
    /// References to attribute inodes.
    pub(super) ea_refs: BTreeMap<u32, u64>,
    /// Attribute inodes in the old form, which have an owner instead of a reference count and a hash.
    pub(super) owned_values: BTreeSet<u32>,
    /// The usage by user, group and project.
    pub(super) usage: [BTreeMap<u32, Usage>; 3],
    /// Whether the counts of the superblock may be stale: after a crash they are.
    pub(super) stale_counts: bool,
    /// log2 of the blocks in a cluster.
    pub(super) cluster_bits: u32,
}

impl Checker {
    pub(super) fn new(
        dev: Arc<dyn Device>,
        sb: Superblock,
        raw: RawSuperblock,
        found: Findings,
        memory: Memory,
    ) -> Result<Self> {
        if sb.groups() > MAX_GROUPS {
            return Err(Error::Incompatible(format!("{} groups are too many to check", sb.groups())));
        }
        let bigalloc = sb.ro_compat.contains(RoCompat::BIGALLOC);
        let cluster_bits = if bigalloc {
            raw.s_log_cluster_size.get().saturating_sub(raw.s_log_block_size.get()).min(20)
        } else {
            0
        };
        let clusters = sb.blocks_count().div_ceil(1 << cluster_bits);
        Ok(Self {
            claimed: Bits::new(clusters),
            meta: Bits::new(clusters),
            inodes: Inodes { per_group: sb.inodes_per_group, groups: BTreeMap::new() },
            reader: Reader { dev, sb: Arc::new(sb) },
            raw,
            found,
            memory,
            descs: Vec::new(),
            desc_sound: Vec::new(),
            dirs: Vec::new(),
            shared: BTreeMap::new(),
            ea_refs: BTreeMap::new(),
            owned_values: BTreeSet::new(),
            usage: Default::default(),
            stale_counts: false,
            cluster_bits,
        })
    }

    /// Charges what the check keeps and `beside`, in bytes. Returns an error if that is too much.
    pub(super) fn charge(&mut self, beside: usize) -> Result<()> {
        let bytes = self.claimed.bytes_kept()
            + self.meta.bytes_kept()
            + self.inodes.groups.len() * self.inodes.per_group as usize * INODE_BYTES
            + self.descs.len() * (size_of::<GroupDesc>() + 1)
            + self.dirs.len() * size_of::<Dir>()
            + self.shared.len() * SHARED_BYTES
            + (self.ea_refs.len() + self.owned_values.len()) * REFERENCE_BYTES
            + self.usage.iter().map(BTreeMap::len).sum::<usize>() * USAGE_BYTES
            + beside;
        self.memory.keep(bytes as u64)
    }

    pub(super) fn sb(&self) -> Arc<Superblock> {
        self.reader.sb.clone()
    }

    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        self.found.add(code, place, what);
    }

    /// Claims a run of blocks for a structure of the filesystem. Clusters may hold several.
    pub(super) fn claim_meta(&mut self, group: u32, what: &str, block: u64, len: u64) {
        let (start, end) = (block >> self.cluster_bits, (block + len - 1) >> self.cluster_bits);
        self.claimed.set_run(start, end - start + 1);
        let clash = self.meta.set_run(start, end - start + 1);
        if let (Some(at), 0) = (clash, self.cluster_bits) {
            let what = format!("{what} overlaps another structure of the filesystem");
            self.bad("metadata-overlap", Place::group(group).at(at), what);
        }
    }

    /// Claims a run of valid blocks for an inode. `skip_first`: the first cluster is claimed already, by the
    /// previous run of the same inode.
    pub(super) fn claim(&mut self, ino: u32, what: &str, block: u64, len: u64, skip_first: bool) {
        let mut start = block >> self.cluster_bits;
        let end = ((block + len - 1) >> self.cluster_bits) + 1;
        if skip_first {
            start += 1;
        }
        if start >= end {
            return;
        }
        let Some(at) = self.claimed.set_run(start, end - start) else { return };
        let place = Place::inode(ino).at(at << self.cluster_bits);
        let in_meta = (start..end).find(|&cluster| self.meta.get(cluster));
        match in_meta {
            // Bad blocks may be anywhere.
            Some(_) if ino == BAD_BLOCKS_INO => {}
            Some(at) => {
                let place = Place::inode(ino).at(at << self.cluster_bits);
                let what = format!("{what} lies in a structure of the filesystem");
                self.bad("block-in-metadata", place, what);
            }
            None if self.reader.sb.ro_compat.contains(RoCompat::SHARED_BLOCKS) => {}
            None => {
                self.bad("block-claimed-twice", place, format!("{what} is also claimed by another owner"))
            }
        }
    }

    /// The position of a directory in the list.
    pub(super) fn dir_position(&self, ino: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    /// Finds a directory.
    pub(super) fn dir_mut(&mut self, ino: u32) -> Option<&mut Dir> {
        self.dir_position(ino).map(|at| &mut self.dirs[at])
    }

    pub(super) fn dir(&self, ino: u32) -> Option<Dir> {
        self.dir_position(ino).map(|at| self.dirs[at])
    }

    /// Reads an inode's slot; `None` if its group's table is unusable.
    pub(super) fn slot(&self, ino: u32) -> Result<Option<Slot>> {
        let sb = &self.reader.sb;
        if ino == 0 || ino > sb.inodes_count() {
            return Ok(None);
        }
        let (group, index) = sb.group_of_inode(ino);
        let Some(desc) = self.descs.get(group as usize) else { return Ok(None) };
        let block = desc.inode_table.0.saturating_add(u64::from(index / sb.inodes_per_block));
        let byte = (index % sb.inodes_per_block * sb.inode_size) as usize;
        let Some(table) = self.reader.block(block)? else { return Ok(None) };
        Ok(Some(Slot::new(ino, table[byte..byte + sb.inode_size as usize].to_vec())))
    }
}
