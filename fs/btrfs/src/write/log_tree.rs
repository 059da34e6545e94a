//! Writing the log tree: fsync of a file without a commit. `docs/btrfs.md` has the design.
//!
//! A log has copies of items of changed files. Its blocks are taken from the free space, and are in no other
//! tree. Only the superblock leads to them, until the next commit.

use super::change::Need;
use super::checksums::Items;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, file_of, vnode_of};
use crate::layout::bytes::read;
use crate::layout::edit::Place;
use crate::layout::items::{Stored, inode_flags, referred_extent, stored_of};
use crate::layout::key::{Key, kind, object};
use crate::layout::node::{HEADER_BYTES, ITEM_BYTES, Node, Pointer};
use crate::layout::raw::{RawFileExtent, RawRootItem, RawRootTail, RawSuperblock};
use crate::layout::superblock::{Superblock, TreeRoot};
use crate::live::groups::Use;
use crate::live::log::{LEAVES_MAX, LogTree};
use crate::numbers::FileId;
use ivers_vfs::{FileType, Inode, Result};
use std::mem::size_of;
use std::ops::ControlFlow;
use zerocopy::{FromZeros, IntoBytes};

/// Items of an inode that are searched for those to log. With more of them, a commit is cheaper.
const ITEMS_MAX: usize = 4096;
/// Bytes of a root item.
const ROOT_ITEM_BYTES: usize = 439;

/// Bytes of items in a leaf.
fn leaf_bytes(sb: &Superblock) -> usize {
    sb.node_size as usize - HEADER_BYTES
}

/// How an inode becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// It is durable already.
    Nothing,
    Log,
    Commit,
}

/// Items to log: those of an inode, and checksums of its new data.
#[derive(Default)]
struct Logged {
    own: Items,
    checksums: Items,
}

impl Btrfs {
    /// Makes an inode durable: with the log tree if that can express its changes, otherwise with a commit.
    pub(crate) fn sync_inode(&self, inode: &Inode) -> Result<()> {
        if self.live.read().is_none() {
            return Ok(());
        }
        self.with_tx(|tx| match tx.means(vnode_of(inode), inode.kind) {
            Means::Nothing => Ok(()),
            Means::Log if tx.log_file(vnode_of(inode))? => Ok(()),
            Means::Log | Means::Commit => tx.commit(),
        })
    }
}

impl Tx<'_> {
    /// Notes a change of an inode that a log can express.
    pub(super) fn touch(&mut self, file: FileId) {
        self.live.log.touched.insert(file);
    }

    /// Notes a change of an inode that only a commit makes durable.
    pub(super) fn needs_commit(&mut self, file: FileId) {
        self.live.log.commit_only.insert(file);
        self.touch(file);
    }

    fn means(&self, vnode: &Vnode, file_type: FileType) -> Means {
        let file = file_of(vnode);
        let log = &self.live.log;
        if !log.touched.contains(&file) {
            return Means::Nothing;
        }
        // A log can add the name of a new file only to a directory that the last commit has, and that lost no
        // name since.
        let dir = log.made.get(&file).map(|dir| (file.0, *dir));
        let is_dir_known =
            dir.is_none_or(|dir| !log.made.contains_key(&dir) && !log.commit_only.contains(&dir));
        // After a crash, the chunks are those of the last commit.
        let are_chunks_known = self.live.new_chunks.is_empty();
        let is_plain = file_type == FileType::Regular && !log.commit_only.contains(&file);
        if is_plain && is_dir_known && are_chunks_known { Means::Log } else { Means::Commit }
    }

    /// Logs a file, and makes the log durable. Returns false if a commit must do it.
    fn log_file(&mut self, vnode: &Vnode) -> Result<bool> {
        let file = file_of(vnode);
        let Some(logged) = self.items_to_log(vnode)? else { return Ok(false) };
        let capacity = leaf_bytes(self.sb());
        let log = &mut self.live.log;
        let tree = log.trees.entry(file.0).or_insert_with(|| LogTree::new(capacity));
        tree.replace(file.1, &logged.own, &mut log.stale);
        for (key, sums) in &logged.checksums {
            tree.put(*key, sums, &mut log.stale);
        }
        if !tree.fits() || !self.store_log()? {
            return Ok(false);
        }
        self.live.log.touched.remove(&file);
        Ok(true)
    }

    /// Finds what to log of a file: everything that is not in the last commit, and all of its attributes.
    /// `None`: that is too much, or a replay would lose a part of the file.
    fn items_to_log(&self, vnode: &Vnode) -> Result<Option<Logged>> {
        let (subvolume, objectid) = file_of(vnode);
        let end = vnode.size().next_multiple_of(self.sb().sector_size.into());
        // More does not fit the log, and need not be collected.
        let most = LEAVES_MAX * leaf_bytes(self.sb());
        let mut bytes = 0_usize;
        let is_made = self.live.log.made.contains_key(&(subvolume, objectid));
        let mut logged = Logged::default();
        let mut extents = Vec::new();
        let mut count = 0;
        let last = Key::new(objectid, kind::EXTENT_DATA, u64::MAX);
        let unfit =
            self.fs.forest.scan(&self.tree(subvolume)?, Key::new(objectid, 0, 0), last, |key, data| {
                count += 1;
                if count > ITEMS_MAX {
                    return Ok(ControlFlow::Break(()));
                }
                let is_new = match key.kind {
                    kind::INODE_REF | kind::INODE_EXTREF => is_made,
                    kind::EXTENT_DATA => read::<RawFileExtent>(data, 0)
                        .is_some_and(|extent| extent.generation.get() == self.live.transid),
                    _ => true,
                };
                // A replay drops what a file has after its end. Only a commit keeps preallocated space there.
                if key.kind == kind::EXTENT_DATA
                    && let Ok(Stored::Extent { bytes, .. }) = stored_of(key, data)
                    && key.offset.saturating_add(bytes) > end
                {
                    return Ok(ControlFlow::Break(()));
                }
                if is_new {
                    bytes += ITEM_BYTES + data.len();
                    if bytes > most {
                        return Ok(ControlFlow::Break(()));
                    }
                    logged.own.insert(key, data.to_vec());
                    if key.kind == kind::EXTENT_DATA {
                        let is_regular = matches!(stored_of(key, data), Ok(Stored::Extent { .. }));
                        let extent = referred_extent(key, data).map_err(|what| self.broken(what))?;
                        extents.extend(extent.filter(|_| is_regular));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
        if unfit.is_some() {
            return Ok(None);
        }
        let has_checksums = vnode.item.lock().flags() & inode_flags::NODATASUM == 0;
        for extent in extents.iter().filter(|_| has_checksums) {
            let sectors = extent.bytes / u64::from(self.sb().sector_size);
            let sum_bytes = sectors.saturating_mul(self.sb().checksum.size() as u64);
            bytes = bytes.saturating_add(sum_bytes as usize);
            if bytes > most {
                return Ok(None);
            }
            let Some(sums) = self.checksums_of(extent.bytenr, extent.bytes)? else { return Ok(None) };
            logged.checksums.extend(sums);
        }
        Ok(Some(logged))
    }

    /// Stores the changed parts of the log, and makes the superblock lead to it. Returns false if there is
    /// too little space.
    fn store_log(&mut self) -> Result<bool> {
        let roots = self.live.log.trees.len();
        let changed = self.live.log.trees.values().filter(|tree| tree.root.is_none());
        let blocks: usize =
            changed.map(|tree| 1 + tree.leaves().filter(|leaf| leaf.stored_at.is_none()).count()).sum();
        let fits = roots * (ROOT_ITEM_BYTES + ITEM_BYTES) <= leaf_bytes(self.sb());
        if !fits || !self.has_room(Need::Items, blocks as u64 + 1) {
            return Ok(false);
        }
        let mut trees = std::mem::take(&mut self.live.log.trees);
        let stored: Result<bool> =
            trees.values_mut().try_fold(true, |all, tree| Ok(all && self.store_log_of(tree)?));
        self.live.log.trees = trees;
        if !stored? {
            return Ok(false);
        }
        let Some(root) = self.store_log_roots()? else { return Ok(false) };
        // The data of the file, too.
        self.fs.forest.volume.flush()?;
        self.write_log_root(root)?;
        let size = u64::from(self.sb().node_size);
        for bytenr in std::mem::take(&mut self.live.log.stale) {
            self.live.groups.give_back(bytenr, size);
        }
        Ok(true)
    }

    fn new_log_block(&mut self, level: u8) -> Option<(u64, Node)> {
        let bytenr = self.live.groups.take_block(Use::Metadata, self.sb().node_size.into())?;
        let place = Place { bytenr, generation: self.live.transid, owner: object::TREE_LOG };
        Some((bytenr, Node::empty(self.sb(), self.live.chunk_uuid, place, level)))
    }

    fn write_log_block(&self, bytenr: u64, node: &Node) -> Result<()> {
        node.check_contents(self.sb())
            .map_err(|what| self.broken(format!("the log was made wrong: {what}")))?;
        self.fs.forest.volume.write(bytenr, &node.sealed(self.sb()))
    }

    /// Stores what changed of the log of a subvolume.
    fn store_log_of(&mut self, tree: &mut LogTree) -> Result<bool> {
        if tree.root.is_some() {
            return Ok(true);
        }
        let generation = self.live.transid;
        let mut pointers = Vec::new();
        for leaf in tree.leaves_mut() {
            if leaf.stored_at.is_none() {
                let Some((bytenr, mut node)) = self.new_log_block(0) else { return Ok(false) };
                for (index, (key, data)) in leaf.items.iter().enumerate() {
                    node.insert_item(index, *key, data);
                }
                leaf.stored_at = Some(bytenr);
                self.write_log_block(bytenr, &node)?;
            }
            let key = leaf.items.keys().next().copied().unwrap_or(Key::new(0, 0, 0));
            pointers.extend(leaf.stored_at.map(|bytenr| Pointer { key, bytenr, generation }));
        }
        self.live.log.stale.extend(tree.node_at.take());
        let mut root = TreeRoot { bytenr: pointers[0].bytenr, generation, level: 0 };
        if pointers.len() > 1 {
            let Some((bytenr, mut node)) = self.new_log_block(1) else { return Ok(false) };
            for (index, pointer) in pointers.into_iter().enumerate() {
                node.insert_pointer(index, pointer);
            }
            tree.node_at = Some(bytenr);
            self.write_log_block(bytenr, &node)?;
            root = TreeRoot { bytenr, generation, level: 1 };
        }
        tree.root = Some(root);
        Ok(true)
    }

    /// Stores the block that leads to the logs of all subvolumes.
    fn store_log_roots(&mut self) -> Result<Option<u64>> {
        let Some((bytenr, mut node)) = self.new_log_block(0) else { return Ok(None) };
        let roots = self.live.log.trees.iter().filter_map(|(subvolume, tree)| Some((*subvolume, tree.root?)));
        for (index, (subvolume, root)) in roots.enumerate() {
            let mut item = [0; ROOT_ITEM_BYTES];
            let mut raw = RawRootItem::new_zeroed();
            raw.generation = root.generation.into();
            raw.bytenr = root.bytenr.into();
            raw.level = root.level;
            item[..size_of::<RawRootItem>()].copy_from_slice(raw.as_bytes());
            let mut tail = RawRootTail::new_zeroed();
            tail.generation_v2 = root.generation.into();
            item[size_of::<RawRootItem>()..][..size_of::<RawRootTail>()].copy_from_slice(tail.as_bytes());
            node.insert_item(index, Key::new(object::TREE_LOG, kind::ROOT_ITEM, subvolume), &item);
        }
        let old = self.live.log.root_at.replace(bytenr);
        self.live.log.stale.extend(old);
        self.write_log_block(bytenr, &node)?;
        Ok(Some(bytenr))
    }

    /// Makes the first superblock of each device lead to the log. All of the log is durable.
    fn write_log_root(&mut self, root: u64) -> Result<()> {
        let features = self.live.features.bits();
        for (_, bytes) in &mut self.live.supers {
            let Some(mut raw) = read::<RawSuperblock>(bytes, 0) else { continue };
            (raw.log_root, raw.log_root_level) = (root.into(), 0);
            raw.incompat_flags = (raw.incompat_flags.get() | features).into();
            bytes[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
        }
        self.write_first_superblocks()
    }
}
