//! The state of a check.

use super::ledger::Ledger;
use super::space::Space;
use crate::layout::extent_item::Ref;
use crate::layout::key::{Key, object};
use crate::numbers::{Object, pack};
use crate::tree::{Forest, Tree};
use ivers_vfs::Result;
use ivers_vfs::check::{Findings, Memory, Place};
use std::collections::BTreeMap;

/// A reference to an extent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reference {
    pub bytenr: u64,
    pub bytes: u64,
    /// The level of a block of a tree.
    pub level: u8,
    pub by: Ref,
}

/// The root of a tree, from its item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    pub tree: Tree,
    /// The offset in the key of its item.
    pub item_offset: u64,
    pub refs: u32,
    /// An interrupted deletion has removed all keys below this one, in blocks of this level and above.
    pub dropped: Option<(Key, u8)>,
    /// The tree could be read.
    pub sound: bool,
    /// It has an orphan item in the tree of roots.
    pub orphan: bool,
}

impl Root {
    /// Returns the object and the offset in the key of its item.
    pub(super) fn item_key(&self) -> (u64, u64) {
        (self.tree.id, self.item_offset)
    }
}

/// What is known of the name of a subvolume in its parent.
#[derive(Debug, Clone, Default)]
pub(super) struct Naming {
    /// The directory, sequence and hash of the name: from the parent (`forward`) and the child (`backward`).
    pub forward: Option<(u64, u64, u64)>,
    pub backward: Option<(u64, u64, u64)>,
    /// How many names in the directory agree with that: entries by hash, and entries by index.
    pub entries: u32,
    pub indexes: u32,
}

/// What a scrub has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mending {
    /// Mend bad copies. Otherwise they are only reported.
    pub writes: bool,
    /// Copies of blocks of trees that were read.
    pub blocks: u64,
    /// Bytes of data, in all copies, that were compared with their checksums.
    pub data_bytes: u64,
    /// Copies that were mended.
    pub mended: u64,
}

/// The state of a check.
pub(super) struct Checker {
    pub forest: Forest,
    pub found: Findings,
    pub memory: Memory,
    pub space: Space,
    pub references: Ledger<Reference>,
    /// Roots by the number and offset in their keys. An old item of a tree can be there, too.
    pub roots: BTreeMap<(u64, u64), Root>,
    /// Names of subvolumes, by parent and child.
    pub namings: BTreeMap<(u64, u64), Naming>,
    /// Report nothing: the walk only collects differences.
    pub quiet: bool,
    /// The extent tree could be read.
    pub extents_sound: bool,
    /// All trees could be read.
    pub trees_sound: bool,
    /// The checksum tree could be read.
    pub sums_sound: bool,
    /// Why references are not compared. `None`: they are.
    pub skip_references: Option<&'static str>,
    /// Inodes without names that the next mount removes.
    pub orphans: u64,
    /// The bytes of memory that are kept for one subvolume.
    pub beside: usize,
    /// `None`: this is a check and not a scrub.
    pub mending: Option<Mending>,
}

impl Checker {
    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        if !self.quiet {
            self.found.add(code, place, what);
        }
    }

    /// Mends a bad copy, if this is a scrub that writes. Returns whether it did.
    pub(super) fn mend(&mut self, address: u64, copy: usize, right: &[u8]) -> bool {
        let Some(mending) = self.mending.as_mut().filter(|mending| mending.writes) else { return false };
        match self.forest.volume.write_copy(address, copy, right) {
            Ok(()) => mending.mended += 1,
            Err(why) => {
                let place = &self.forest.volume.place;
                log::warn!("{place}: copy {} at {address} cannot be written again: {why}", copy + 1);
                return false;
            }
        }
        true
    }

    /// Reports a defect of an item of a tree.
    pub(super) fn bad_item(&mut self, code: &'static str, tree: u64, key: Key, what: impl AsRef<str>) {
        self.bad(code, Place::filesystem(), format!("tree {tree}, item {key}: {}", what.as_ref()));
    }

    /// Charges the memory that the check keeps. Returns an error if it is more than the check may have.
    pub(super) fn charge(&mut self) -> Result<()> {
        let roots = self.roots.len() * 2 * size_of::<Root>();
        let namings = self.namings.len() * 2 * size_of::<Naming>();
        let kept = self.space.bytes_kept() + self.references.bytes_kept() + roots + namings + self.beside;
        self.memory.keep(kept as u64)
    }

    /// Returns the root item of a tree that is in use: the one with the highest offset.
    pub(super) fn root(&self, id: u64) -> Option<&Root> {
        self.roots.range((id, 0)..=(id, u64::MAX)).next_back().map(|(_, root)| root)
    }

    /// Returns the place of an inode of a subvolume, with the number that a mount shows.
    pub(super) fn inode_place(&self, tree: u64, objectid: u64) -> Place {
        match pack(tree, Object::Inode(objectid)) {
            Ok(ino) if tree != object::DATA_RELOCATION => Place::inode(ino.0),
            _ => Place::filesystem(),
        }
    }
}

/// Returns the name of a subvolume or a tree in the text of a finding.
pub(super) fn tree_name(tree: u64) -> String {
    match tree {
        object::ROOT_TREE => "the root tree".into(),
        object::EXTENT_TREE => "the extent tree".into(),
        object::CHUNK_TREE => "the chunk tree".into(),
        object::DEV_TREE => "the device tree".into(),
        object::CSUM_TREE => "the checksum tree".into(),
        object::QUOTA_TREE => "the quota tree".into(),
        object::UUID_TREE => "the UUID tree".into(),
        object::FREE_SPACE_TREE => "the free-space tree".into(),
        object::BLOCK_GROUP_TREE => "the block-group tree".into(),
        object::TREE_LOG => "the log tree".into(),
        object::DATA_RELOCATION => "the tree of data relocation".into(),
        other => format!("subvolume {other}"),
    }
}
