//! The check of references to extents: those in blocks of trees, and those in the extent tree.

use super::ledger::mix;
use super::state::{Checker, Reference, tree_name};
use super::walk::{is_dropped, without_damage};
use crate::layout::extent_item::{ExtentItem, Ref, decode_keyed};
use crate::layout::items::referred_extent;
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::node::{Expected, Node};
use crate::tree::Tree;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::ops::ControlFlow;

/// Flags in the header of a block.
const WRITTEN: u64 = 1;
const RELOCATED: u64 = 2;
/// The revision of references that name a tree or a block. Only the oldest filesystems have another one.
const REVISION: u8 = 1;

fn hash_of(reference: &Reference) -> u64 {
    let Reference { bytenr, bytes, level, by } = *reference;
    let (kind, a, b, c) = match by {
        Ref::TreeBlock { root } => (1, root, 0, 0),
        Ref::SharedBlock { parent } => (2, parent, 0, 0),
        Ref::Data { root, objectid, offset } => (3, root, objectid, offset),
        Ref::SharedData { parent } => (4, parent, 0, 0),
    };
    mix(&[bytenr, bytes, level.into(), kind, a, b, c])
}

/// Returns a reference in words.
fn by_whom(by: &Ref) -> String {
    match by {
        Ref::TreeBlock { root } => format!("by {}", tree_name(*root)),
        Ref::SharedBlock { parent } | Ref::SharedData { parent } => format!("by the block {parent}"),
        Ref::Data { root, objectid, offset } => {
            format!("by inode {objectid} of {}, offset {}", tree_name(*root), *offset as i64)
        }
    }
}

impl Checker {
    /// Adds a reference of the extent tree (`count` is positive), or one of another tree (negative).
    pub(super) fn add_reference(&mut self, reference: Reference, count: i64) {
        self.references.add(reference.bytenr, hash_of(&reference), count, || reference);
    }

    /// Returns the item of a block in the extent tree, and whether the item has this reference.
    fn block_item(&self, bytenr: u64, level: u8, owner: u64) -> Result<Option<(ExtentItem, bool)>> {
        let Some(root) = self.root(object::EXTENT_TREE) else { return Ok(None) };
        let tree = root.tree;
        let size = u64::from(self.forest.volume.sb.node_size);
        let wanted = Ref::TreeBlock { root: owner };
        for (kind, offset) in [(kind::METADATA_ITEM, level.into()), (kind::EXTENT_ITEM, size)] {
            let key = Key::new(bytenr, kind, offset);
            let is_skinny = kind == kind::METADATA_ITEM;
            let item = self.forest.get(&tree, key, |data| ExtentItem::decode(data, is_skinny));
            let Some(item) = without_damage(item)? else { continue };
            let mut named = item.inline.iter().any(|(by, _)| *by == wanted);
            if !named {
                let key = Key::new(bytenr, kind::TREE_BLOCK_REF, owner);
                named = without_damage(self.forest.get(&tree, key, |_| Ok(())))?.is_some();
            }
            return Ok(Some((item, named)));
        }
        Ok(None)
    }

    /// Registers a block of a tree when it is read for the first time: adds the references that it contains.
    pub(super) fn add_block(
        &mut self,
        expected: &Expected,
        node: &Node,
        dropped: Option<(Key, u8)>,
    ) -> Result<()> {
        let (bytenr, owner) = (expected.bytenr, node.owner);
        let mut full = false;
        if self.skip_references.is_none()
            && let Some((item, named)) = self.block_item(bytenr, node.level, owner)?
        {
            full = item.is_full_backref();
            let what = match full || named {
                true if item.generation != node.generation => {
                    Some(format!("generation {}, and the block {}", item.generation, node.generation))
                }
                true => None,
                false => Some(format!("no reference by its owner, {}", tree_name(owner))),
            };
            if let Some(what) = what.filter(|_| self.extents_sound) {
                self.bad("extent-item-wrong", Place::block(bytenr), format!("its extent item has {what}"));
            }
        }
        // In blocks that a relocation makes, references to children always name the block.
        let (flags, revision) = node.flags();
        let is_odd = flags & !(WRITTEN | RELOCATED) != 0 || (flags & RELOCATED != 0 && !full);
        if revision != REVISION || (is_odd && self.skip_references.is_none() && self.extents_sound) {
            let what = format!("its flags are {flags:#x}, and its references have revision {revision}");
            self.bad("block-invalid", Place::block(bytenr), what);
        }
        let size = u64::from(self.forest.volume.sb.node_size);
        if node.level > 0 {
            let by = if full { Ref::SharedBlock { parent: bytenr } } else { Ref::TreeBlock { root: owner } };
            for index in (0..node.count()).filter(|index| !is_dropped(node, *index, dropped)) {
                let bytenr = node.pointer(index).bytenr;
                self.add_reference(Reference { bytenr, bytes: size, level: node.level - 1, by }, -1);
            }
            return Ok(());
        }
        if !is_subvolume(owner) && ![object::ROOT_TREE, object::DATA_RELOCATION].contains(&owner) {
            return Ok(());
        }
        for index in 0..node.count() {
            let key = node.key(index);
            if key.kind != kind::EXTENT_DATA {
                continue;
            }
            // Defects of the item are reported with its inode.
            let Ok(Some(extent)) = referred_extent(key, node.data(index)) else { continue };
            let by = match full {
                true => Ref::SharedData { parent: bytenr },
                false => Ref::Data { root: owner, objectid: extent.objectid, offset: extent.offset },
            };
            let reference = Reference { bytenr: extent.bytenr, bytes: extent.bytes, level: 0, by };
            self.add_reference(reference, -1);
        }
        Ok(())
    }

    /// Adds the references that lead to the roots of trees.
    pub(super) fn add_root(&mut self, tree: &Tree) {
        let bytes = u64::from(self.forest.volume.sb.node_size);
        let by = Ref::TreeBlock { root: tree.id };
        let root = tree.root;
        self.add_reference(Reference { bytenr: root.bytenr, bytes, level: root.level, by }, -1);
    }

    /// Reports references that only one side has.
    pub(super) fn report_references(&mut self) {
        for (count, reference) in self.references.take_differences() {
            let Reference { bytenr, bytes, by, .. } = reference;
            let times = match count.unsigned_abs() {
                1 => String::new(),
                times => format!(" {times} times"),
            };
            let place = Place::block(bytenr);
            let what = by_whom(&by);
            // If a tree could not be read, some references to extents are unknown.
            if count > 0 && self.trees_sound {
                let what =
                    format!("an extent of {bytes} bytes is recorded as used{times} {what}, which is not so");
                self.bad("reference-without-user", place, what);
            } else if count < 0 && self.extents_sound {
                let what = format!("an extent of {bytes} bytes is used{times} {what}, which is not recorded");
                self.bad("reference-missing", place, what);
            }
        }
    }

    /// Returns files that use an address of data, from the extent tree: at most a few.
    pub(super) fn users_of(&self, address: u64) -> Vec<(u64, u64)> {
        let Some(root) = self.root(object::EXTENT_TREE) else { return Vec::new() };
        let tree = root.tree;
        let last = Key::new(address, kind::EXTENT_ITEM, u64::MAX);
        let before = self.forest.last_at_most(&tree, last, |key, _| Ok(key.objectid));
        let Ok(Some(start)) = before else { return Vec::new() };
        let mut found = Vec::new();
        let (first, last) = (Key::new(start, 0, 0), Key::new(start, u8::MAX, u64::MAX));
        let scanned = self.forest.scan(&tree, first, last, |key, data| {
            let refs = match key.kind {
                kind::EXTENT_ITEM => ExtentItem::decode(data, false).map(|item| item.inline),
                kind::EXTENT_DATA_REF => decode_keyed(key, data).map(|one| vec![one]),
                _ => Ok(Vec::new()),
            };
            for (by, _) in refs.unwrap_or_default() {
                if let Ref::Data { root, objectid, .. } = by {
                    found.push((root, objectid));
                }
            }
            Ok(if found.len() > 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        if scanned.is_err() {
            found.clear();
        }
        found
    }
}
