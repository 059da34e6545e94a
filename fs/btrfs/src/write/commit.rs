//! Commits: storing all delayed changes in the trees, and writing the trees.
//!
//! Storing a delayed reference changes trees, which adds delayed references. Each block is copied only once
//! in a transaction, so each round adds fewer references, and the rounds end.

use super::tree::NO_ITEM;
use super::tx::Tx;
use crate::layout::bytes::read;
use crate::layout::key::{is_subvolume, object};
use crate::layout::node::Expected;
use crate::layout::raw::*;
use crate::layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_PLACES, SYS_CHUNK_ARRAY, TreeRoot, at_place};
use crate::live::groups::Use;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};
use std::mem::{offset_of, size_of};
use zerocopy::IntoBytes;

/// Rounds of a commit. A few are usual.
const ROUNDS_MAX: usize = 100;
/// Where the tail of a root item is.
const ROOT_TAIL: usize = size_of::<RawRootItem>();

impl Tx<'_> {
    /// Makes everything durable that was changed.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.commit_with(|_| Ok(()))
    }

    /// Commits, and calls `before` before the blocks are written. `before` must leave nothing more to store.
    pub(super) fn commit_with(&mut self, before: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if !self.live.is_changed() {
            return Ok(());
        }
        // The superblock stores one generation for itself and for the root of the root tree. So each commit
        // needs a new root of this tree.
        self.cow_root(object::ROOT_TREE)?;
        self.settle()?;
        before(self)?;
        self.check_trees()?;
        self.write_blocks()?;
        self.fs.forest.volume.flush()?;
        self.write_superblocks()?;
        self.finish();
        Ok(())
    }

    /// Stores all delayed changes.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            // What is allocated in a chunk can be stored only after the items of the chunk.
            loop {
                self.store_chunks()?;
                self.run_refs()?;
                if self.live.new_chunks.is_empty() {
                    break;
                }
            }
            self.store_groups()?;
            self.store_free_space()?;
            self.store_roots()?;
            let live = &self.live;
            let groups = &live.groups;
            let waits = live.refs.len() > 0
                || !live.new_chunks.is_empty()
                || !live.changed_roots.is_empty()
                || live.more_blocks.keys().any(|tree| !NO_ITEM.contains(tree))
                || (live.has_free_space_tree && !(groups.added.is_empty() && groups.removed.is_empty()))
                || groups.by_start.values().any(|group| group.changed);
            if !waits {
                return Ok(());
            }
        }
        Err(self.broken("a commit does not end"))
    }

    /// Updates the root items of changed trees: the position of the root, and the size of the blocks.
    fn store_roots(&mut self) -> Result<()> {
        let live = &mut *self.live;
        live.more_blocks.retain(|tree, _| !NO_ITEM.contains(tree));
        live.changed_roots.extend(live.more_blocks.keys());
        while let Some(id) = self.live.changed_roots.pop_first() {
            let root = self.fs.root_of(id)?.ok_or_else(|| self.broken(format!("there is no tree {id}")))?;
            let key = root.key.ok_or_else(|| self.broken(format!("tree {id} has no root item")))?;
            let tree = self.tree(object::ROOT_TREE)?;
            let item = self.fs.forest.get(&tree, key, |data| Ok(data.to_vec()))?;
            let mut item = item.ok_or_else(|| self.broken(format!("tree {id} has no root item")))?;
            self.update_root_item(id, &mut item, root.root)?;
            self.put(object::ROOT_TREE, key, &item)?;
        }
        Ok(())
    }

    fn update_root_item(&mut self, id: u64, item: &mut [u8], root: TreeRoot) -> Result<()> {
        let short = || self.broken(format!("the root item of tree {id} is too short"));
        let mut raw: RawRootItem = read(item, 0).ok_or_else(short)?;
        raw.bytenr = root.bytenr.into();
        raw.level = root.level;
        raw.generation = self.live.transid.into();
        // Linux keeps free as much space as `bytes_used` of some trees says.
        let more = self.live.more_blocks.remove(&id).unwrap_or(0) * i64::from(self.sb().node_size);
        raw.bytes_used = raw.bytes_used.get().saturating_add_signed(more).into();
        item[..ROOT_TAIL].copy_from_slice(raw.as_bytes());
        if let Some(mut tail) = read::<RawRootTail>(item, ROOT_TAIL) {
            tail.generation_v2 = self.live.transid.into();
            if is_subvolume(id) {
                tail.ctransid = self.live.transid.into();
            }
            item[ROOT_TAIL..ROOT_TAIL + size_of::<RawRootTail>()].copy_from_slice(tail.as_bytes());
        }
        Ok(())
    }

    /// Checks what the transaction made of trees, so that a mistake of this driver ends the session before
    /// anything of it is written.
    pub(super) fn check_trees(&self) -> Result<()> {
        let roots: Vec<_> = self.fs.forest.roots.lock().iter().map(|(id, root)| (*id, root.root)).collect();
        for (tree, root) in roots {
            self.check_block(Expected::root_of(tree, root))?;
        }
        Ok(())
    }

    /// Checks a block that was made, and those below it.
    fn check_block(&self, expected: Expected) -> Result<()> {
        let Some(node) = self.fs.forest.dirty_node(expected.bytenr) else { return Ok(()) };
        node.check(&expected)
            .and_then(|()| node.check_contents(self.sb()))
            .map_err(|what| self.broken(format!("block {} was made wrong: {what}", expected.bytenr)))?;
        for index in (0..node.count()).filter(|_| node.level > 0) {
            self.check_block(node.expected_below(index, &expected))?;
        }
        Ok(())
    }

    fn write_blocks(&mut self) -> Result<()> {
        let forest = &self.fs.forest;
        for (bytenr, node) in forest.dirty.all() {
            forest.volume.write(bytenr, &node.sealed(self.sb()))?;
        }
        Ok(())
    }

    fn current_root(&self, id: u64) -> Result<TreeRoot> {
        Ok(self.tree(id)?.root)
    }

    /// Sets what the superblock of a device says of the device.
    pub(super) fn set_device_item(&mut self, devid: u64, item: &RawDevItem) {
        const AT: usize = offset_of!(RawSuperblock, dev_item);
        if let Some((_, bytes)) = self.live.supers.iter_mut().find(|(other, _)| *other == devid) {
            bytes[AT..AT + size_of::<RawDevItem>()].copy_from_slice(item.as_bytes());
        }
    }

    /// Writes the superblocks of all devices, then their copies. All they lead to is durable.
    ///
    /// Usually only the first 512 bytes change, so that a crash cannot tear the write. Therefore the older
    /// states that a superblock can name stay as they are.
    fn write_superblocks(&mut self) -> Result<()> {
        let (tree, chunk) = (self.current_root(object::ROOT_TREE)?, self.current_root(object::CHUNK_TREE)?);
        let (transid, used) = (self.live.transid, self.live.groups.used_bytes());
        let sys_chunks = self.live.sys_chunks.clone();
        let stored =
            |bytes: &[u8]| bytes[SYS_CHUNK_ARRAY..SYS_CHUNK_ARRAY + sys_chunks.len()] == sys_chunks[..];
        let can_tear = !self.live.supers.iter().all(|(_, bytes)| stored(bytes));
        if can_tear && self.live.log.root_at.is_some() {
            // If a crash tears the first superblock, a copy replaces it. So the copies must lead to the log.
            self.write_superblock_copies()?;
            self.fs.forest.volume.flush()?;
        }
        let features = self.live.features.bits();
        for (_, bytes) in &mut self.live.supers {
            let Some(mut raw) = read::<RawSuperblock>(bytes, 0) else { continue };
            raw.generation = transid.into();
            raw.root = tree.bytenr.into();
            raw.root_level = tree.level;
            raw.chunk_root = chunk.bytenr.into();
            raw.chunk_root_level = chunk.level;
            raw.chunk_root_generation = chunk.generation.into();
            (raw.log_root, raw.log_root_level) = (0.into(), 0);
            raw.incompat_flags = (raw.incompat_flags.get() | features).into();
            raw.bytes_used = used.into();
            raw.sys_chunk_array_size = (sys_chunks.len() as u32).into();
            bytes[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
            bytes[SYS_CHUNK_ARRAY..SYS_CHUNK_ARRAY + sys_chunks.len()].copy_from_slice(&sys_chunks);
        }
        self.write_first_superblocks()?;
        self.fs.forest.volume.flush()?;
        self.write_superblock_copies()?;
        self.fs.forest.volume.flush()
    }

    /// Writes the first superblock of each device, durably.
    pub(super) fn write_first_superblocks(&self) -> Result<()> {
        let place = SUPERBLOCK_PLACES[0];
        self.each_superblock(place, |device, bytes| device.write_fua(ByteOffset(place), bytes))
    }

    fn write_superblock_copies(&self) -> Result<()> {
        SUPERBLOCK_PLACES[1..].iter().try_for_each(|&place| {
            self.each_superblock(place, |device, bytes| device.write_at(ByteOffset(place), bytes))
        })
    }

    /// Gives `write` the superblock of each device that has this place.
    fn each_superblock<E: Into<Error>>(
        &self,
        place: u64,
        write: impl Fn(&dyn Device, &[u8]) -> std::result::Result<(), E>,
    ) -> Result<()> {
        for (devid, member) in self.fs.forest.volume.members() {
            let found = self.live.supers.iter().find(|(other, _)| *other == devid);
            let Some((_, bytes)) = found else { continue };
            if place + SUPERBLOCK_BYTES as u64 <= member.bytes {
                write(&*member.device, &at_place(bytes, place, self.sb().checksum)).map_err(Into::into)?;
            }
        }
        Ok(())
    }

    /// Starts the next transaction.
    fn finish(&mut self) {
        let forest = &self.fs.forest;
        for (bytenr, node) in forest.dirty.take() {
            forest.cache.insert(bytenr, node);
        }
        let live = &mut *self.live;
        live.groups.unpin();
        for bytenr in live.log.take_blocks() {
            live.groups.give_back(bytenr, forest.volume.sb.node_size.into());
        }
        live.fresh.clear();
        live.transid += 1;
    }

    /// Bytes of blocks that the transaction has in memory.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.live.fresh.len() as u64 * u64::from(self.sb().node_size)
    }

    /// Blocks of trees that a transaction can still make, without what a commit may need.
    pub(super) fn free_blocks(&self) -> u64 {
        self.live.groups.free_bytes(Use::Metadata) / u64::from(self.sb().node_size)
    }
}
