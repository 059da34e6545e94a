//! Inodes: their fields, and the clusters and blocks that they own.

use super::state::{Checker, Directory, Seen, Shared};
use crate::layout::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::layout::dinode::{Dinode, dyn_features, flags};
use crate::layout::directory::index_entries;
use crate::layout::extents::{BLOCK_LIST_AT, Extent, ExtentList, Keys, REFCOUNTED};
use crate::layout::name_hash;
use crate::layout::shape::{DX_LEAF, DX_ROOT, EXTENT_BLOCK};
use crate::map::Owner;
use ivers_vfs::check::Place;
use ivers_vfs::{FileType, Result};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The offset of the list of extents, or of entries, in the root of an index, and in a leaf.
const DX_ROOT_LIST_AT: usize = 0xC0;
const DX_LEAF_LIST_AT: usize = 0x28;
/// The flag of a root with entries.
const DX_INLINE: u8 = 0x1;
/// How often, in inodes, what is kept is charged.
const CHARGE_EVERY: usize = 1024;

/// A walk of a tree: what it has seen so far.
#[derive(Default)]
struct Walk {
    clusters: u64,
    /// The end of the last extent.
    end: u64,
    damaged: bool,
    /// The last leaf, if it is not full.
    short_leaf: Option<u64>,
    /// All extents, if they are wanted.
    extents: Option<Vec<Extent>>,
}

impl Checker {
    /// Checks an inode that its allocator marks as used: by the slot, and the bit in a group.
    pub(super) fn check_inode(&mut self, ino: u64, suballoc: (u16, u16)) -> Result<()> {
        let read = self.fs.any_dinode(ino);
        let Some((inode, block)) = self.caught("inode-invalid", Place::inode(ino), read)? else {
            let seen =
                Seen { links: 0, names: 0, kind: None, orphaned: false, in_orphans: false, damaged: true };
            self.inodes.insert(ino, seen);
            return Ok(());
        };
        if !inode.is_valid() {
            self.bad("inode-lost", Place::inode(ino), "the inode is free, but marked as used");
            return Ok(());
        }
        if inode.suballoc != suballoc {
            let what = format!("the inode has slot and bit {:?}, it is in {suballoc:?}", inode.suballoc);
            self.bad("inode-suballoc-wrong", Place::inode(ino), what);
        }
        if inode.dtime != 0 {
            self.bad(
                "inode-dtime-wrong",
                Place::inode(ino),
                "the inode is in use, and has a time of deletion",
            );
        }
        let mut seen = Seen {
            links: inode.links,
            names: 0,
            kind: inode.kind(),
            orphaned: inode.flags & flags::ORPHANED != 0,
            in_orphans: false,
            damaged: false,
        };
        seen.damaged = !self.check_contents(&inode)?;
        if inode.kind() == Some(FileType::Directory) {
            self.directories.push(Directory { ino, parent: 0, dotdot: 0 });
            if let Err(error) = self.fs.check_directory(&inode) {
                self.caught::<()>("directory-size-wrong", Place::inode(ino), Err(error))?;
                seen.damaged = true;
            }
        }
        if inode.dyn_features & dyn_features::HAS_REFCOUNT != 0 {
            *self.refcount_roots.entry(inode.refcount_loc).or_default() += 1;
        }
        self.check_attributes(&inode, &block)?;
        self.inodes.insert(ino, seen);
        if self.inodes.len().is_multiple_of(CHARGE_EVERY) {
            self.charge(0)?;
        }
        Ok(())
    }

    /// Claims what an inode has. Returns whether its contents can be read.
    fn check_contents(&mut self, inode: &Dinode) -> Result<bool> {
        let place = Place::inode(inode.ino);
        if !inode.has_extents() {
            let is_allocator = inode.flags & (flags::CHAIN | flags::LOCAL_ALLOC) != 0;
            if inode.clusters != 0 && !is_allocator {
                let what = format!("i_clusters is {}, the inode has none", inode.clusters);
                self.bad("inode-cluster-count-wrong", place, what);
            }
            return Ok(true);
        }
        let read = self.fs.extents(inode);
        let Some(root) = self.caught("extents-invalid", place.clone(), read)? else { return Ok(false) };
        let owner = Owner { ino: inode.ino, keys: Keys::Clusters };
        let walk = self.claim_tree(inode, owner, &root, Walk::default())?;
        if !walk.damaged && walk.clusters != u64::from(inode.clusters) {
            let what = format!("i_clusters is {}, the inode has {}", inode.clusters, walk.clusters);
            self.bad("inode-cluster-count-wrong", place, what);
        }
        Ok(!walk.damaged)
    }

    /// Claims the clusters of a tree. Returns their number and all extents, if the tree is not damaged.
    pub(super) fn claim_extents(
        &mut self,
        inode: &Dinode,
        keys: Keys,
        root: &ExtentList,
    ) -> Result<Option<(u64, Vec<Extent>)>> {
        let owner = Owner { ino: inode.ino, keys };
        let walk = Walk { extents: Some(Vec::new()), ..Walk::default() };
        let walk = self.claim_tree(inode, owner, root, walk)?;
        Ok(walk.extents.filter(|_| !walk.damaged).map(|extents| (walk.clusters, extents)))
    }

    /// Claims the clusters of a tree, and the blocks of its nodes.
    fn claim_tree(
        &mut self,
        inode: &Dinode,
        owner: Owner,
        list: &ExtentList,
        mut walk: Walk,
    ) -> Result<Walk> {
        for extent in &list.records {
            if list.depth > 0 {
                if !self.claim_block(inode.ino, extent.start) {
                    walk.damaged = true;
                    continue;
                }
                let place = Place::inode(inode.ino).at(extent.start);
                let read = self.fs.extent_block(extent.start, list.depth - 1, owner);
                match self.caught("extent-block-invalid", place, read)? {
                    Some(below) => {
                        if below.depth == 0 {
                            self.check_fullness(inode, extent.start, &mut walk)?;
                        }
                        walk = self.claim_tree(inode, owner, &below, walk)?;
                    }
                    None => walk.damaged = true,
                }
                continue;
            }
            if owner.keys == Keys::Clusters && u64::from(extent.cpos) < walk.end {
                let what = format!("the extents at {} and before overlap, or have no order", extent.cpos);
                self.bad("extents-invalid", Place::inode(inode.ino).at(extent.start), what);
                walk.damaged = true;
            }
            walk.end = u64::from(extent.cpos) + u64::from(extent.clusters);
            walk.clusters += u64::from(extent.clusters);
            walk.damaged |= !self.claim_extent(inode, extent);
            if let Some(extents) = &mut walk.extents {
                extents.push(*extent);
            }
        }
        Ok(walk)
    }

    /// All leaves but the last one must be full. An empty record at the start of a leaf counts.
    fn check_fullness(&mut self, inode: &Dinode, leaf: u64, walk: &mut Walk) -> Result<()> {
        if let Some(before) = walk.short_leaf.take() {
            let what = "a leaf of a tree of extents before the last one is not full";
            self.bad("leaf-not-full", Place::inode(inode.ino).at(before), what);
        }
        let bytes = self.fs.structure(leaf, &EXTENT_BLOCK)?;
        if u16_at(&bytes, BLOCK_LIST_AT + 4) < u16_at(&bytes, BLOCK_LIST_AT + 2) {
            walk.short_leaf = Some(leaf);
        }
        Ok(())
    }

    fn claim_extent(&mut self, inode: &Dinode, extent: &Extent) -> bool {
        let (cluster, clusters) = (self.fs.sb.cluster_of(extent.start), extent.clusters);
        if extent.flags & REFCOUNTED == 0 {
            return self.claim(inode.ino, cluster, clusters.into());
        }
        if inode.dyn_features & dyn_features::HAS_REFCOUNT == 0 {
            let what = "an extent is shared, and the inode has no reference counts";
            self.bad("refcount-flag-wrong", Place::inode(inode.ino).at(extent.start), what);
            return self.claim(inode.ino, cluster, clusters.into());
        }
        self.sharing.push(Shared { root: inode.refcount_loc, cluster, clusters });
        self.claim_shared(inode.ino, cluster, clusters.into())
    }

    /// Claims the index of a directory, and compares it with the entries: `names` has those of each block, if
    /// they can be read.
    pub(super) fn check_index(&mut self, inode: &Dinode, names: Option<&NamesByBlock>) -> Result<()> {
        let place = Place::inode(inode.ino).at(inode.dx_root);
        if inode.dx_root == 0 || !self.claim_block(inode.ino, inode.dx_root) {
            self.bad("index-invalid", place, "the directory has no index of its own");
            return Ok(());
        }
        let read = self.fs.structure(inode.dx_root, &DX_ROOT);
        let Some(root) = self.caught("index-invalid", place.clone(), read)? else { return Ok(()) };
        let mut indexed = NamesByBlock::new();
        if u64_at(&root, 0x30) != inode.ino {
            let what = format!("the index is of directory {}", u64_at(&root, 0x30));
            self.bad("index-invalid", place.clone(), what);
        }
        if u8_at(&root, 0x2C) & DX_INLINE != 0 {
            let added = add_entries(&root[DX_ROOT_LIST_AT..], &mut indexed);
            if let Err(what) = added {
                self.bad("index-invalid", place.clone(), what);
            }
        } else {
            let owner = Owner { ino: inode.ino, keys: Keys::Hashes };
            let read = self.fs.parse_list(&root[DX_ROOT_LIST_AT..], owner);
            let Some(list) = self.caught("index-invalid", place.clone(), read)? else { return Ok(()) };
            let claimed = self.claim_extents(inode, Keys::Hashes, &list)?;
            let Some((clusters, extents)) = claimed else { return Ok(()) };
            if clusters != u64::from(u32_at(&root, 0x28)) {
                let what = format!("dr_clusters is {}, the index has {clusters}", u32_at(&root, 0x28));
                self.bad("index-invalid", place.clone(), what);
            }
            for (nth, extent) in extents.iter().enumerate() {
                let end = extents.get(nth + 1).map_or(1 << 32, |next| next.cpos.into());
                self.check_index_leaves(extent, end, inode.ino, &mut indexed)?;
            }
        }
        let Some(names) = names else { return Ok(()) };
        let count = |names: &NamesByBlock| names.values().map(|(count, _)| count).sum::<u32>();
        let (counted, found, all) = (u32_at(&root, 0x38), count(&indexed), count(names));
        if indexed != *names || counted != found {
            let equal = if counted == found && found == all { "; hashes or blocks differ" } else { "" };
            let what = format!(
                "the index counts {counted} entries and has {found}; the directory has {all} names{equal}"
            );
            self.bad("index-wrong", place, what);
        }
        Ok(())
    }

    /// Checks the leaves in an extent of an index, which has the hashes up to `end`.
    fn check_index_leaves(
        &mut self,
        extent: &Extent,
        end: u64,
        ino: u64,
        indexed: &mut NamesByBlock,
    ) -> Result<()> {
        let blocks = u64::from(extent.clusters) * u64::from(self.fs.sb.blocks_per_cluster);
        for number in extent.start..extent.start + blocks {
            let place = Place::inode(ino).at(number);
            let read = self.fs.structure(number, &DX_LEAF);
            let Some(leaf) = self.caught("index-invalid", place.clone(), read)? else { continue };
            let list = &leaf[DX_LEAF_LIST_AT..];
            if let Err(what) = add_entries(list, indexed) {
                self.bad("index-invalid", place, what);
                continue;
            }
            let is_here = |hash: [u32; 2]| {
                (extent.cpos.into()..end).contains(&u64::from(hash[0]))
                    && self.fs.leaf_of(extent, hash) == number
            };
            if index_entries(list).is_ok_and(|mut entries| entries.any(|(hash, _)| !is_here(hash))) {
                self.bad("index-wrong", place, "a leaf of the index has a hash of another leaf");
            }
        }
        Ok(())
    }

    /// Compares link counts with names, and finds inodes that no name leads to.
    pub(super) fn check_links(&mut self) {
        let mut orphans = 0;
        let inodes = std::mem::take(&mut self.inodes);
        for (&ino, seen) in &inodes {
            // What was reported as invalid has no link count.
            let Some(kind) = seen.kind else { continue };
            if seen.orphaned != seen.in_orphans {
                let (is, of) = if seen.orphaned { ("is", "no") } else { ("is not", "a") };
                let what =
                    format!("the inode {is} marked as an orphan, and {of} directory of orphans has it");
                self.bad("orphan-wrong", Place::inode(ino), what);
            }
            orphans += u32::from(seen.in_orphans);
            let at = self.directories.binary_search_by_key(&ino, |dir| dir.ino);
            let has_name = kind != FileType::Directory || at.is_ok_and(|at| self.directories[at].parent != 0);
            match (seen.names, seen.in_orphans) {
                // Reported as unconnected.
                _ if !has_name => {}
                (0, false) => {
                    let what = format!("the inode has {} links and no name", seen.links);
                    self.bad("inode-unattached", Place::inode(ino), what);
                }
                (names, false) | (names, true) if seen.links != names => {
                    let what = format!("the link count is {}, the inode has {names} names", seen.links);
                    self.bad("link-count-wrong", Place::inode(ino), what);
                }
                _ => {}
            }
        }
        self.inodes = inodes;
        if orphans > 0 {
            let inodes = if orphans == 1 { "inode has" } else { "inodes have" };
            self.found.note(format!("{orphans} {inodes} no name: removed while still open"));
        }
    }

    /// Returns the names of each block of a directory.
    pub(super) fn names_by_block(&self, dir: &Dinode) -> Result<NamesByBlock> {
        let (size, seed) = (u64::from(self.fs.sb.block_size), self.fs.sb.dx_seed);
        let mut names = NamesByBlock::new();
        for block in 0..dir.size / size {
            let (number, _) = self.fs.directory_block(dir, block)?;
            self.fs.for_each_entry(dir, block * size..(block + 1) * size, |entry, _| {
                add_name(&mut names, number, name_hash::of_name(entry.name, seed));
                ControlFlow::Continue(())
            })?;
        }
        Ok(names)
    }
}

/// The names of each block of a directory: their number, and the sum of their hashes.
pub(super) type NamesByBlock = BTreeMap<u64, (u32, u64)>;

fn add_name(names: &mut NamesByBlock, block: u64, [major, minor]: [u32; 2]) {
    let (count, sum) = names.entry(block).or_default();
    *count = count.saturating_add(1);
    *sum = sum.wrapping_add(u64::from(major) << 32 | u64::from(minor));
}

fn add_entries(list: &[u8], indexed: &mut NamesByBlock) -> std::result::Result<(), String> {
    index_entries(list)?.for_each(|(hash, block)| add_name(indexed, block, hash));
    Ok(())
}
