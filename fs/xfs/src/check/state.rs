//! What a check knows: the device, the geometry, who owns each block, and a few bytes for each inode.

use super::mapping::Mapping;
use crate::layout::bytes::read;
use crate::layout::checksum::{Expected, SelfDescription};
use crate::layout::chunk::CHUNK_INODES;
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::raw::{RawAgf, RawAgi, RawDinode, RawSuperblock};
use crate::layout::superblock::Superblock;
use ivers_block::{BlockNo, ByteOffset, Device};
use ivers_vfs::check::{Bits, Findings, Memory, Place};
use ivers_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Groups of a filesystem that is checked; more would take too long.
const MAX_GROUPS: u32 = 1 << 20;
/// Taken by the usage of one id, with its share of a tree's node.
const USAGE_BYTES: usize = 40;
/// Conflicts between owners after which only the first block of a run is looked up, so that a check ends.
const MAX_CONFLICTS: u64 = 10_000;

/// Kinds of inodes: the types in directory entries, and flags.
pub(super) mod kind {
    pub(in crate::check) const REGULAR: u8 = 1;
    pub(in crate::check) const DIRECTORY: u8 = 2;
    pub(in crate::check) const CHAR: u8 = 3;
    pub(in crate::check) const SYMLINK: u8 = 7;
    /// In use, of no known type.
    pub(in crate::check) const UNKNOWN: u8 = 8;
    pub(in crate::check) const TYPE: u8 = 15;
    /// On a list of unlinked inodes.
    pub(in crate::check) const ORPHAN: u8 = 16;
    /// Of the realtime device or of quotas: it has no name.
    pub(in crate::check) const HIDDEN: u8 = 32;
    /// A list of unlinked inodes goes on after it.
    pub(in crate::check) const HAS_NEXT: u8 = 64;
    /// Its blocks are not its own, or not known: what is in them is not read.
    pub(in crate::check) const UNSOUND: u8 = 128;
}

/// A chunk of inodes.
pub(super) struct Chunk {
    /// Which inodes are free, as the inode B-tree says.
    pub(super) free: u64,
    /// Which inodes do not exist.
    pub(super) holes: u64,
    pub(super) kinds: [u8; 64],
    pub(super) links: [u32; 64],
    pub(super) names: [u32; 64],
    /// Sums of what names and parent pointers say: 0 if they agree. Only with parent pointers.
    pub(super) parents: Option<Box<[u64; 64]>>,
}

/// A directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dir {
    pub(super) ino: u64,
    /// The directory whose entry leads here; 0 if none was seen.
    pub(super) parent: u64,
    /// What its `..` says; 0 if there is none.
    pub(super) dotdot: u64,
}

/// What one owner uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) blocks: u64,
    pub(super) inodes: u64,
}

/// What is known of an allocation group.
#[derive(Default)]
pub(super) struct Group {
    pub(super) agf: Option<RawAgf>,
    pub(super) agi: Option<RawAgi>,
    /// The inode B-tree could be read, so that an inode that is not in it does not exist.
    pub(super) inodes_sound: bool,
    /// The B-tree of free space could be read.
    pub(super) space_sound: bool,
    /// Who owns what, with a reverse map.
    pub(super) owned: Vec<Mapping>,
    /// Extents of files that may share blocks: start and length.
    pub(super) shared: Vec<(u32, u32)>,
}

/// A place in the filesystem for an inode's bytes.
pub(super) struct Slot {
    pub(super) ino: u64,
    pub(super) raw: RawDinode,
    pub(super) bytes: Vec<u8>,
    /// The block that it is in.
    pub(super) block: u64,
}

/// The state of a check.
pub(super) struct Checker {
    pub(super) dev: Arc<dyn Device>,
    pub(super) sb: Arc<Superblock>,
    pub(super) raw: RawSuperblock,
    pub(super) found: Findings,
    pub(super) memory: Memory,
    /// The end of the log. No structure may be newer.
    pub(super) log_head: Option<u64>,
    /// Blocks that have an owner.
    pub(super) claimed: Bits,
    /// Of them, data of files that may share blocks.
    pub(super) sharable: Bits,
    /// Blocks that the B-tree of free space has.
    pub(super) free: Bits,
    /// Blocks of intents that are not finished: nothing can be said of them.
    pub(super) pending: Bits,
    /// Inodes with an intent of a parent pointer that is not finished.
    pub(super) pending_parents: BTreeSet<u64>,
    pub(super) groups: Vec<Group>,
    /// Chunks of inodes by their first inode.
    pub(super) chunks: BTreeMap<u64, Chunk>,
    pub(super) dirs: Vec<Dir>,
    /// Inodes without names: of the realtime device and of quotas.
    pub(super) hidden: BTreeSet<u64>,
    /// Not all maps could be read: blocks without an owner may have one.
    pub(super) maps_unsound: bool,
    /// Not all directories could be read: inodes without a name may have one.
    pub(super) names_unsound: bool,
    /// After a crash the counts of the superblock are stale.
    pub(super) stale_counts: bool,
    /// The usage by user, project and group, if quota files should have it.
    pub(super) usage: [BTreeMap<u32, Usage>; 3],
    pub(super) orphans: u64,
    /// Blocks for copy on write that no file has.
    pub(super) copies: u64,
    conflicts: u64,
    extent_bytes: usize,
}

impl Checker {
    pub(super) fn new(
        dev: Arc<dyn Device>,
        sb: Superblock,
        raw: RawSuperblock,
        found: Findings,
        memory: Memory,
    ) -> Result<Self> {
        if sb.ag_count > MAX_GROUPS {
            return Err(Error::Incompatible(format!("{} groups are too many to check", sb.ag_count)));
        }
        let mut memory = memory;
        memory.keep((sb.ag_count as usize * size_of::<Group>()) as u64)?;
        let mut groups = Vec::new();
        groups.resize_with(sb.ag_count as usize, Group::default);
        let bits = || Bits::new(sb.blocks);
        let named = |ino: &u64| !matches!(*ino, 0 | u64::MAX);
        Ok(Self {
            claimed: bits(),
            sharable: bits(),
            free: bits(),
            pending: bits(),
            pending_parents: BTreeSet::new(),
            hidden: sb.hidden_inos.iter().copied().filter(named).collect(),
            sb: Arc::new(sb),
            dev,
            raw,
            found,
            memory,
            log_head: None,
            groups,
            chunks: BTreeMap::new(),
            dirs: Vec::new(),
            maps_unsound: false,
            names_unsound: false,
            stale_counts: false,
            usage: Default::default(),
            orphans: 0,
            copies: 0,
            conflicts: 0,
            extent_bytes: 0,
        })
    }

    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        self.found.add(code, place, what);
    }

    /// Charges what the check keeps and `beside`, in bytes. Returns an error if that is too much.
    pub(super) fn charge(&mut self, beside: usize) -> Result<()> {
        let bits = [&self.claimed, &self.sharable, &self.free, &self.pending];
        let bits: usize = bits.iter().map(|bits| bits.bytes_kept()).sum();
        let parents = if self.has_parents() { 64 * size_of::<u64>() } else { 0 };
        // A chunk with its share of a tree's node.
        let chunks = self.chunks.len() * (size_of::<Chunk>() * 3 / 2 + parents);
        let groups = self.groups.len() * size_of::<Group>();
        let dirs = self.dirs.capacity() * size_of::<Dir>();
        let usage: usize = self.usage.iter().map(BTreeMap::len).sum();
        let usage = usage * USAGE_BYTES;
        self.memory.keep((usage + bits + chunks + groups + dirs + self.extent_bytes + beside) as u64)
    }

    pub(super) fn has_rmap(&self) -> bool {
        self.sb.ro_compat.contains(RoCompat::RMAPBT)
    }

    pub(super) fn has_parents(&self) -> bool {
        self.sb.incompat.contains(crate::layout::features::Incompat::PARENT)
    }

    /// Reads blocks that lie in the filesystem.
    pub(super) fn blocks(&self, blocks: &[u64]) -> Result<Vec<u8>> {
        let size = self.sb.block_size as usize;
        let mut bytes = vec![0; blocks.len() * size];
        for (block, part) in blocks.iter().zip(bytes.chunks_exact_mut(size)) {
            self.dev.read_at(ByteOffset(block * size as u64), part)?;
        }
        Ok(bytes)
    }

    /// The group of a block, and its number in the group.
    pub(super) fn in_group(&self, block: u64) -> (u32, u32) {
        let each = u64::from(self.sb.ag_blocks);
        ((block / each) as u32, (block % each) as u32)
    }

    /// Checks what a structure of version 5 says of itself: checksum, filesystem, place, owner, LSN.
    pub(super) fn check_identity(
        &mut self,
        bytes: &[u8],
        kind: &SelfDescription,
        what: &str,
        place: &Place,
        owner: u64,
    ) {
        if !self.sb.is_v5() {
            return;
        }
        if !kind.has_valid_crc(bytes) {
            self.bad("checksum-wrong", place.clone(), format!("the checksum of {what} is wrong"));
        }
        let block = BlockNo(place.block.unwrap_or_default());
        let expected = Expected { uuid: self.sb.meta_uuid, blkno: self.sb.sector_of(block), owner };
        if let Err(said) = kind.check_place(bytes, &expected) {
            self.bad("identity-wrong", place.clone(), format!("{what} {said}"));
        }
        self.check_lsn(kind.lsn(bytes).unwrap_or(0), what, place);
    }

    pub(super) fn check_lsn(&mut self, lsn: u64, what: &str, place: &Place) {
        // Neither number is of a log: the structure was never logged.
        if let Some(head) = self.log_head.filter(|head| lsn > *head && lsn != u64::MAX) {
            let pair = |lsn: u64| format!("{}:{}", lsn >> 32, lsn as u32);
            let said = format!("{what} has the LSN {}, the log ends at {}", pair(lsn), pair(head));
            self.bad("lsn-ahead-of-log", place.clone(), said);
        }
    }

    /// Notes the owner of a run of blocks, which must have no other one.
    pub(super) fn claim(&mut self, start: u64, len: u64, owner: Owner, place: &Place, what: &str) -> bool {
        let looked_up = if self.conflicts > MAX_CONFLICTS { 1 } else { len };
        let twice = self.claimed.find(start, looked_up, true);
        if let Some(at) = twice {
            return self.conflict(at, place, what);
        }
        self.claimed.set_run(start, len);
        self.note_owner(start, len, owner);
        true
    }

    /// Notes the owner of a run of blocks that files may share.
    pub(super) fn claim_sharable(&mut self, start: u64, len: u64, owner: Owner, place: &Place) -> bool {
        let looked_up = if self.conflicts > MAX_CONFLICTS { 1 } else { len };
        if let Some(at) = self.claimed.find_outside(&self.sharable, start, looked_up) {
            return self.conflict(at, place, "an extent");
        }
        self.claimed.set_run(start, len);
        self.sharable.set_run(start, len);
        self.note_owner(start, len, owner);
        let (group, first) = self.in_group(start);
        self.groups[group as usize].shared.push((first, len as u32));
        self.extent_bytes += size_of::<(u32, u32)>();
        true
    }

    fn conflict(&mut self, at: u64, place: &Place, what: &str) -> bool {
        self.conflicts += 1;
        let place = Place { block: Some(at), ..place.clone() };
        self.bad("block-claimed-twice", place, format!("{what} lies where something else does"));
        false
    }

    fn note_owner(&mut self, start: u64, len: u64, owner: Owner) {
        if !self.has_rmap() {
            return;
        }
        let (group, first) = self.in_group(start);
        let mapping = Mapping { start: first, len: len as u32, owner };
        self.extent_bytes += size_of::<Mapping>();
        self.groups[group as usize].owned.push(mapping);
    }

    /// The chunk of an inode, and the inode's number in it.
    pub(super) fn chunk(&self, ino: u64) -> Option<(&Chunk, usize)> {
        let (first, chunk) = self.chunks.range(..=ino).next_back()?;
        (ino - first < CHUNK_INODES).then_some((chunk, (ino - first) as usize))
    }

    pub(super) fn chunk_mut(&mut self, ino: u64) -> Option<(&mut Chunk, usize)> {
        let (first, chunk) = self.chunks.range_mut(..=ino).next_back()?;
        (ino - first < CHUNK_INODES).then_some((chunk, (ino - first) as usize))
    }

    /// The kind of an inode; 0 for one that is not in use.
    pub(super) fn kind(&self, ino: u64) -> u8 {
        self.chunk(ino).map_or(0, |(chunk, at)| chunk.kinds[at])
    }

    /// Whether an inode that was not found may exist all the same: its group's inode B-tree is damaged.
    pub(super) fn may_exist(&self, ino: u64) -> bool {
        let group = self.sb.agino(ino).and_then(|(ag, _)| self.groups.get(ag as usize));
        group.is_some_and(|group| !group.inodes_sound)
    }

    pub(super) fn add_flag(&mut self, ino: u64, flag: u8) {
        if let Some((chunk, at)) = self.chunk_mut(ino) {
            chunk.kinds[at] |= flag;
        }
    }

    /// Adds to the sum of an inode's names or parent pointers.
    pub(super) fn add_parent(&mut self, ino: u64, sum: u64) {
        if let Some((Chunk { parents: Some(parents), .. }, at)) = self.chunk_mut(ino) {
            parents[at] = parents[at].wrapping_add(sum);
        }
    }

    pub(super) fn dir_mut(&mut self, ino: u64) -> Option<&mut Dir> {
        let at = self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()?;
        self.dirs.get_mut(at)
    }

    /// Reads the place of an inode.
    pub(super) fn slot(&self, ino: u64) -> Result<Option<Slot>> {
        let Some((block, at)) = self.sb.inode_place(ino) else { return Ok(None) };
        let bytes = self.blocks(&[block.0])?;
        Ok(Slot::new(&self.sb, ino, &bytes[at..], block.0))
    }
}

impl Slot {
    /// An inode at the start of `bytes`.
    pub(super) fn new(sb: &Superblock, ino: u64, bytes: &[u8], block: u64) -> Option<Self> {
        let bytes = bytes.get(..sb.inode_size as usize)?.to_vec();
        Some(Self { ino, raw: read(&bytes, 0)?, bytes, block })
    }

    pub(super) fn place(&self) -> Place {
        Place::inode(self.ino)
    }
}
