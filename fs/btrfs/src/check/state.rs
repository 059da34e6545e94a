//! What a check knows.

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
    /// The offset of the key of its item.
    pub item_offset: u64,
    pub refs: u32,
    /// A deletion that was interrupted has removed all keys below this one, in blocks from this level on.
    pub dropped: Option<(Key, u8)>,
    /// The tree could be read.
    pub sound: bool,
    /// It has an orphan item in the tree of roots.
    pub orphan: bool,
}

impl Root {
    /// Object and offset of the key of its item.
    pub(super) fn item_key(&self) -> (u64, u64) {
        (self.tree.id, self.item_offset)
    }
}

/// What is known of the name of a subvolume in its parent.
#[derive(Debug, Clone, Default)]
pub(super) struct Naming {
    /// Directory, sequence and hash of the name, as the parent and the child say.
    pub forward: Option<(u64, u64, u64)>,
    pub backward: Option<(u64, u64, u64)>,
    /// Names in the directory that say the same: entries and index entries.
    pub entries: u32,
    pub indexes: u32,
}

/// What a scrub has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mending {
    /// Write bad copies again. Otherwise they are only reported.
    pub writes: bool,
    /// Copies of blocks of trees that were read.
    pub blocks: u64,
    /// Bytes of data, in all copies, that were compared with their checksums.
    pub data_bytes: u64,
    /// Copies that were written again.
    pub mended: u64,
}

/// The state of a check.
pub(super) struct Checker {
    pub forest: Forest,
    pub found: Findings,
    pub memory: Memory,
    pub space: Space,
    pub references: Ledger<Reference>,
    /// By number and offset of the key. An old item of a tree can be there, too.
    pub roots: BTreeMap<(u64, u64), Root>,
    /// Names of subvolumes, by parent and child.
    pub namings: BTreeMap<(u64, u64), Naming>,
    /// The walk only collects differences: nothing else is reported.
    pub quiet: bool,
    /// The extent tree could be read.
    pub extents_sound: bool,
    /// All trees could be read.
    pub trees_sound: bool,
    /// The checksum tree could be read.
    pub sums_sound: bool,
    /// References are not compared, for this reason.
    pub skip_references: Option<&'static str>,
    /// Inodes without names that the next mount removes.
    pub orphans: u64,
    /// Memory of what is kept for one subvolume.
    pub beside: usize,
    /// Only of a scrub.
    pub mending: Option<Mending>,
}

impl Checker {
    pub(super) fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        if !self.quiet {
            self.found.add(code, place, what);
        }
    }

    /// Writes a bad copy again, if this is a scrub that writes. Returns whether that was done.
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

    /// Reports an item of a tree.
    pub(super) fn bad_item(&mut self, code: &'static str, tree: u64, key: Key, what: impl AsRef<str>) {
        self.bad(code, Place::filesystem(), format!("tree {tree}, item {key}: {}", what.as_ref()));
    }

    /// Charges what the check keeps. Returns an error if that is too much.
    pub(super) fn charge(&mut self) -> Result<()> {
        let roots = self.roots.len() * 2 * size_of::<Root>();
        let namings = self.namings.len() * 2 * size_of::<Naming>();
        let kept = self.space.bytes_kept() + self.references.bytes_kept() + roots + namings + self.beside;
        self.memory.keep(kept as u64)
    }

    /// The root item of a tree that is used: the one with the highest offset.
    pub(super) fn root(&self, id: u64) -> Option<&Root> {
        self.roots.range((id, 0)..=(id, u64::MAX)).next_back().map(|(_, root)| root)
    }

    /// Where an inode of a subvolume is: its number as a mount shows it.
    pub(super) fn inode_place(&self, tree: u64, objectid: u64) -> Place {
        match pack(tree, Object::Inode(objectid)) {
            Ok(ino) if tree != object::DATA_RELOCATION => Place::inode(ino.0),
            _ => Place::filesystem(),
        }
    }
}

/// A subvolume or a tree in the words of a finding.
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
        object::DATA_RELOCATION => "the tree of data relocation".into(),
        other => format!("subvolume {other}"),
    }
}
