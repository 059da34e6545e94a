//! The checker: reads all copies of all trees, trusts none, repairs nothing.
//!
//! It shares with the driver the decoding of bytes (`layout`), chunks, and searches (`tree`). It computes
//! itself which extents are used and by what, where names lead, and which value each count must have.
//!
//! | pass | what it reads | what it leaves for later passes |
//! |---|---|---|
//! | 1 | extent tree | sectors in use, the references of the extent tree |
//! | 2 | root tree, chunk tree, device tree, block groups | all trees, names of subvolumes |
//! | 3 | free-space tree, checksum tree (and data) | sectors with checksums |
//! | 4 | each subvolume: its inodes, names, extents | names of subvolumes that were found |
//! | 5 | other trees, superblocks | - |
//! | 6 | all trees again, if references differ | - |
//!
//! Memory does not grow with the number of extents or names: the two sides of all references, and of all
//! names, are added up in a fixed number of buckets. A second pass collects the entries of a bucket only if
//! its sum is not zero (`ledger`).
//!
//! | module | contents |
//! |---|---|
//! | `ledger` | comparing two sides that must agree |
//! | `space`, `state` | the sectors of all chunks; the state of a check |
//! | `walk` | walks of trees, and all copies of their blocks |
//! | `start` | opening the devices |
//! | `references`, `extents`, `free_space` | extents, what uses them, block groups, free space |
//! | `checksums` | the checksum tree, and data |
//! | `chunks`, `superblock`, `roots` | chunks and devices, superblocks, the root tree |
//! | `subvolume`, `names`, `inode`, `files` | subvolumes |
//! | `paths` | paths of findings |
//! | `scrub` | reading and mending all copies |

mod checksums;
mod chunks;
mod extents;
mod files;
mod free_space;
mod inode;
mod ledger;
mod names;
mod paths;
mod references;
mod roots;
mod scrub;
mod space;
mod start;
mod state;
mod subvolume;
mod superblock;
mod walk;

pub use scrub::{Scrubbed, scrub};

use crate::layout::features::{Incompat, RoCompat};
use crate::layout::items::RootItem;
use crate::layout::key::{Key, is_subvolume, kind, object};
use crate::layout::node::Node;
use crate::tree::Tree;
use checksums::ChecksumTree;
use extents::ExtentTree;
use ivers_block::Device;
use ivers_vfs::Result;
use ivers_vfs::check::{Findings, Memory, Place};
use start::{open, root_of};
use state::{Checker, Root};
use std::sync::Arc;
use walk::{Nothing, Visit};

/// Options of [`check`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Read all data, and compare it with its checksums.
    pub data: bool,
    /// If devices are missing, check the copies on the others.
    pub degraded: bool,
}

/// Checks a filesystem on one or several devices; `place` names the image in errors. An error means that the
/// check could not be done: a device failed or is missing, or the format is not supported.
pub fn check(
    devices: Vec<Arc<dyn Device>>,
    options: &Options,
    memory: Memory,
    place: &str,
) -> Result<Findings> {
    let mut checker = match open(devices, options.degraded, memory, place)? {
        Ok(checker) => checker,
        Err(found) => return Ok(found),
    };
    if checker.forest.volume.sb.has_log() {
        let what = "there is a log tree, from an fsync before a crash: only its root block is checked, \
            and the last commit";
        checker.found.note(what);
    }
    checker.run(options)?;
    checker.add_paths()?;
    Ok(checker.found)
}

/// Checks a device that is not recognized as btrfs because its first superblock is destroyed. Returns `None`
/// if the device had no btrfs.
pub fn check_remains(device: &dyn Device) -> Result<Option<Findings>> {
    superblock::check_remains(device)
}

/// A walk of the tree of block groups.
struct GroupTree;

impl Visit for GroupTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            match key.kind {
                kind::BLOCK_GROUP_ITEM => checker.add_group(key, data),
                _ => {
                    let what = "no item of this type belongs here";
                    checker.bad_item("item-unexpected", object::BLOCK_GROUP_TREE, key, what);
                }
            }
        }
        Ok(())
    }
}

impl Checker {
    /// Finds the extent tree, which is needed before the root tree is walked.
    fn find_extent_tree(&mut self) -> Result<()> {
        let roots = Tree { id: object::ROOT_TREE, root: self.forest.volume.sb.root };
        let last = Key::new(object::EXTENT_TREE, kind::ROOT_ITEM, u64::MAX);
        let found = self.forest.last_at_most(&roots, last, |key, data| {
            let is_it = (key.objectid, key.kind) == (object::EXTENT_TREE, kind::ROOT_ITEM);
            Ok(RootItem::decode(data).ok().filter(|_| is_it).map(|item| (key, item.root)))
        });
        if let Some((key, root)) = walk::without_damage(found)?.flatten() {
            self.roots.insert(
                (key.objectid, key.offset),
                Root { item_offset: key.offset, ..root_of(object::EXTENT_TREE, root) },
            );
        }
        Ok(())
    }

    fn run(&mut self, options: &Options) -> Result<()> {
        let sb = &self.forest.volume.sb;
        let (ro_compat, incompat) = (sb.ro_compat, sb.incompat);
        let first = [root_of(object::ROOT_TREE, sb.root), root_of(object::CHUNK_TREE, sb.chunk_root)];
        self.find_extent_tree()?;
        let mut extents = ExtentTree::default();
        self.extents_sound = self.walk_by_id(object::EXTENT_TREE, &mut extents)?.unwrap_or(false);
        extents.finish(self);
        self.check_root_tree(&first[0])?;
        let devices = self.check_chunk_tree(&first[1])?;
        self.check_device_tree(&devices)?;
        if ro_compat.contains(RoCompat::BLOCK_GROUP_TREE)
            && self.walk_by_id(object::BLOCK_GROUP_TREE, &mut GroupTree)?.is_none()
        {
            self.bad("tree-missing", Place::filesystem(), "there is no block-group tree");
        }
        self.check_groups();
        self.check_free_space()?;
        let mut sums = ChecksumTree { with_data: options.data };
        self.sums_sound = self.walk_by_id(object::CSUM_TREE, &mut sums)?.unwrap_or(false);
        self.check_trees(incompat)?;
        self.check_subvolume_names();
        self.check_superblocks(&devices)?;
        self.check_log_root()?;
        self.compare_references(first)?;
        if self.orphans > 0 {
            self.found.note(format!("{} inodes without a name: the next mount removes them", self.orphans));
        }
        Ok(())
    }

    /// Walks the subvolumes, and all trees that no other pass has walked.
    fn check_trees(&mut self, incompat: Incompat) -> Result<()> {
        let mut walked = vec![object::EXTENT_TREE, object::DEV_TREE, object::CSUM_TREE];
        walked.extend([object::FREE_SPACE_TREE, object::BLOCK_GROUP_TREE]);
        let roots: Vec<Root> = self.roots.values().copied().collect();
        let mut blocks = std::collections::BTreeSet::new();
        for root in roots {
            let id = root.tree.id;
            let is_files = is_subvolume(id) || id == object::DATA_RELOCATION;
            if id == object::RELOCATION || walked.contains(&id) {
                continue;
            }
            if is_files && !blocks.insert(root.tree.root.bytenr) {
                let what = format!("subvolume {id} and another one have the same root block");
                self.bad("root-item-wrong", Place::filesystem(), what);
                continue;
            }
            if is_files && root.refs > 0 {
                self.check_subvolume(&root)?;
            } else if is_files || [object::QUOTA_TREE, object::UUID_TREE].contains(&id) {
                self.add_root(&root.tree);
                self.trees_sound &= self.walk(&root, &mut Nothing, false)?;
            } else {
                self.bad("tree-unknown", Place::filesystem(), format!("there is a tree {id}"));
            }
        }
        if self.root(object::QUOTA_TREE).is_some() || incompat.contains(Incompat::SIMPLE_QUOTA) {
            self.found.note("the figures of quotas are not compared");
        }
        Ok(())
    }

    /// Compares the references that trees have with those of the extent tree.
    fn compare_references(&mut self, first: [Root; 2]) -> Result<()> {
        if self.skip_references.is_some() || self.references.agrees() {
            return Ok(());
        }
        self.references.keep_entries();
        self.quiet = true;
        let collected = self.collect_references(first);
        self.quiet = false;
        collected?;
        self.report_references();
        Ok(())
    }
}
