//! The check of the root tree: all other trees, and the names of subvolumes.

use super::ledger::mix_name;
use super::state::{Checker, Root, tree_name};
use super::walk::{Nothing, Visit};
use crate::layout::bytes::read;
use crate::layout::items::{DirItem, InodeItem, RootItem, RootRef, decode_names};
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::node::Node;
use crate::layout::raw::{RawRootItem, RawRootRef, RawRootTail};
use crate::tree::Tree;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;

/// The bytes of a root item, and of one of the oldest filesystems.
const ITEM_BYTES: usize = size_of::<RawRootItem>() + size_of::<RawRootTail>();
const OLD_ITEM_BYTES: usize = size_of::<RawRootItem>();
/// Flags of a subvolume: read-only, and being deleted.
const FLAGS: u64 = 1 | 1 << 48;
/// Trees that every filesystem has.
const NEEDED: [u64; 4] = [object::EXTENT_TREE, object::DEV_TREE, object::FS_TREE, object::CSUM_TREE];

/// A walk of the root tree.
#[derive(Default)]
struct RootTree {
    orphans: BTreeSet<u64>,
}

impl Visit for RootTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            if let Err(what) = self.item(checker, key, data) {
                checker.bad_item("root-item-wrong", object::ROOT_TREE, key, what);
            }
        }
        checker.charge()
    }
}

impl RootTree {
    fn item(&mut self, checker: &mut Checker, key: Key, data: &[u8]) -> std::result::Result<(), String> {
        match key.kind {
            kind::ROOT_ITEM => {
                let (root, odd) = decode_root(checker, key, data)?;
                checker.roots.insert((key.objectid, key.offset), root);
                odd.map_or(Ok(()), Err)?;
            }
            kind::ROOT_REF | kind::ROOT_BACKREF => {
                let named = RootRef::decode(data)?;
                let raw: RawRootRef = read(data, 0).ok_or("it is too short")?;
                if data.len() != size_of::<RawRootRef>() + named.name.len() {
                    return Err(format!("it has {} bytes", data.len()));
                }
                let said = Some((named.dir, raw.sequence.get(), mix_name(&[], named.name)));
                if key.kind == kind::ROOT_REF {
                    checker.namings.entry((key.objectid, key.offset)).or_default().forward = said;
                } else {
                    checker.namings.entry((key.offset, key.objectid)).or_default().backward = said;
                }
            }
            kind::ORPHAN_ITEM if key.objectid == object::ORPHANS => {
                self.orphans.insert(key.offset);
            }
            kind::INODE_ITEM => {
                InodeItem::decode(data)?;
            }
            kind::INODE_REF => drop(decode_names(key, data)?),
            kind::DIR_ITEM => drop(DirItem::decode_all(data, false)?),
            // Items of the old cache of free space, and of the state of a balance.
            kind::EXTENT_DATA | kind::TEMPORARY_ITEM | 0 => {}
            _ => return Err("no item of this type belongs here".into()),
        }
        Ok(())
    }
}

/// Decodes a root item. Returns also its defect, if it has one and the tree can still be used.
fn decode_root(
    checker: &Checker,
    key: Key,
    data: &[u8],
) -> std::result::Result<(Root, Option<String>), String> {
    if ![ITEM_BYTES, OLD_ITEM_BYTES].contains(&data.len()) {
        return Err(format!("it has {} bytes", data.len()));
    }
    let item = RootItem::decode(data)?;
    let raw: RawRootItem = read(data, 0).ok_or("it is too short")?;
    let sb = &checker.forest.volume.sb;
    if !item.root.bytenr.is_multiple_of(sb.sector_size.into()) {
        return Err(format!("its block is at {}", item.root.bytenr));
    }
    let progress = Key::from(&raw.drop_progress);
    let dropped = (progress.objectid != 0 || progress.offset != 0).then_some((progress, raw.drop_level));
    let tree = Tree { id: key.objectid, root: item.root };
    let tail: Option<RawRootTail> = read(data, OLD_ITEM_BYTES);
    let is_subvolume = is_subvolume(key.objectid);
    let has_files = is_subvolume || key.objectid == object::DATA_RELOCATION;
    let odd = if item.root.generation > sb.generation || item.last_snapshot > sb.generation {
        Some("its generation is after the last one".to_owned())
    } else if tail.is_some_and(|tail| tail.generation_v2.get() > sb.generation) {
        Some("its generation_v2 is after the last one".into())
    } else if raw.flags.get() & !FLAGS != 0 {
        Some(format!("its flags are {:#x}", raw.flags.get()))
    } else if raw.drop_level > item.root.level {
        Some(format!("a deletion stopped at level {}", raw.drop_level))
    } else if is_subvolume && item.refs > 1 {
        Some(format!("it counts {} references", item.refs))
    } else if has_files && item.refs > 0 && raw.root_dirid.get() != object::FIRST_FREE {
        Some(format!("its root directory is {}", raw.root_dirid.get()))
    } else {
        None
    };
    let (item_offset, refs) = (key.offset, item.refs);
    Ok((Root { tree, item_offset, refs, dropped, sound: true, orphan: false }, odd))
}

impl Checker {
    /// Walks the root tree, and finds all trees.
    pub(super) fn check_root_tree(&mut self, root: &Root) -> Result<()> {
        let mut tree = RootTree::default();
        self.add_root(&root.tree);
        let sound = self.walk(root, &mut tree, false)?;
        self.trees_sound &= sound;
        for orphan in tree.orphans {
            if let Some(((..), root)) = self.roots.range_mut((orphan, 0)..=(orphan, u64::MAX)).next_back() {
                root.orphan = true;
            }
        }
        let missing: Vec<_> = NEEDED.into_iter().filter(|id| self.root(*id).is_none()).collect();
        for id in missing {
            self.bad("tree-missing", Place::filesystem(), format!("there is no item of {}", tree_name(id)));
        }
        let relocation = self.roots.range((object::RELOCATION, 0)..=(object::RELOCATION, u64::MAX)).next();
        if relocation.is_some() {
            let why =
                "an unfinished balance has blocks of its own, so references and free space are not compared";
            self.skip_references = Some(why);
            self.found.note(why);
        }
        Ok(())
    }

    /// Walks a tree that is not a subvolume. Returns whether it could be read; `None`: there is no such tree.
    pub(super) fn walk_by_id(&mut self, id: u64, visit: &mut dyn Visit) -> Result<Option<bool>> {
        let Some(root) = self.root(id).copied() else { return Ok(None) };
        self.add_root(&root.tree);
        let sound = self.walk(&root, visit, false)?;
        self.trees_sound &= sound;
        if let Some(stored) = self.roots.range_mut((id, 0)..=(id, u64::MAX)).next_back() {
            stored.1.sound = sound;
        }
        Ok(Some(sound))
    }

    /// Walks all trees again, to find which references differ.
    pub(super) fn collect_references(&mut self, first: [Root; 2]) -> Result<()> {
        self.space.visited = ivers_vfs::check::Bits::new(self.space.sectors_total());
        let others: Vec<Root> = self.roots.values().copied().collect();
        for root in first.into_iter().chain(others) {
            if root.tree.id == object::RELOCATION {
                continue;
            }
            self.add_root(&root.tree);
            if root.tree.id == object::EXTENT_TREE {
                let mut tree = super::extents::ExtentTree::default();
                self.walk(&root, &mut tree, false)?;
                tree.finish(self);
            } else {
                self.walk(&root, &mut Nothing, false)?;
            }
        }
        Ok(())
    }

    /// Checks that each subvolume has a name, and that both sides of each name agree.
    pub(super) fn check_subvolume_names(&mut self) {
        let mut wrong = Vec::new();
        let mut named = BTreeSet::new();
        for ((parent, child), naming) in &self.namings {
            let is_alive = |id: u64| self.root(id).is_some_and(|root| root.refs > 0);
            let what = match (naming.forward, naming.backward) {
                (Some(forward), Some(backward)) if forward != backward => {
                    named.insert(*child);
                    "its two references differ"
                }
                (Some(_), None) => "its item has no reference back to the parent",
                (None, _) => "the parent has no reference to it",
                (Some(_), Some(_)) => {
                    named.insert(*child);
                    let parent_sound = self.root(*parent).is_some_and(|root| root.sound && root.refs > 0);
                    match (naming.entries, naming.indexes) {
                        (1, 1) => continue,
                        _ if !parent_sound => continue,
                        (0, _) => "its directory has no entry for it",
                        (_, 0) => "its directory has no index entry for it",
                        _ => "its directory has several entries for it",
                    }
                }
            };
            if is_alive(*child) || naming.forward.is_some() {
                wrong.push((
                    "subvolume-name-wrong",
                    format!("subvolume {child} in subvolume {parent}: {what}"),
                ));
            }
        }
        for (id, _) in self.roots.keys() {
            let Some(root) = self.root(*id).filter(|_| is_subvolume(*id) && *id != object::FS_TREE) else {
                continue;
            };
            if root.refs > 0 && !named.contains(id) {
                wrong.push(("subvolume-unnamed", format!("subvolume {id} has no name")));
            }
            if root.refs == 0 && !root.orphan {
                wrong.push((
                    "orphan-item-missing",
                    format!("subvolume {id} is deleted, and has no orphan item"),
                ));
            }
        }
        for (code, what) in wrong {
            self.bad(code, Place::filesystem(), what);
        }
    }
}
