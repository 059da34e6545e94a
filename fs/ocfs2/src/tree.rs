//! Changing trees of extents.
//!
//! A replacement changes at most one record of a leaf: into up to three in a file, up to eight in an index.
//! Linux requires that all leaves but the last one are full. So if another leaf gets longer or shorter,
//! records move between it and the leaves after it (`shift_right`, `shift_left`), up to the last one. Only
//! the last leaf is split or removed: it stays full, and the new one gets what does not fit. Records of upper
//! levels cover all positions between each other, as Linux keeps them.

use crate::alloc::{Origin, Sub};
use crate::change::Change;
use crate::layout::bytes::{put_u16, put_u64, u16_at, u64_at};
use crate::layout::dinode::{Dinode, ID2_AT};
use crate::layout::extents::{BLOCK_LIST_AT, Extent, ExtentList, Keys};
use crate::layout::shape::{DINODE, DX_ROOT, EXTENT_BLOCK, Shape};
use crate::map::Owner;
use crate::volume::Ocfs2;
use ivers_vfs::{NameError, Result};
use std::cmp::Ordering;

/// New blocks that three replacements need at most: six each, one for each level and one for a new level.
pub(crate) const TREE_BLOCKS: u64 = 18;
/// Most blocks that one replacement changes: the new ones, their groups and allocator, and the nodes on the
/// way.
pub(crate) const TREE_CREDITS: u32 = 24;

/// The offset of `h_next_leaf_blk`.
const NEXT_LEAF_AT: usize = 0x28;

/// Credits for a leaf whose records move: it, and its part of the nodes above.
const LEAF_CREDITS: u32 = 2;

/// Which leaf covers the gap when the first record of a leaf moves up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// The leaf itself.
    Start,
    /// The leaf before it, once that is written.
    Nothing,
}

/// The position that finds the same leaf again, even after its records changed.
fn key_of(way: &[Node]) -> u32 {
    way.iter().rev().nth(1).map_or(0, |parent| parent.list.records[parent.at].cpos)
}

/// The root of a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub block: u64,
    shape: &'static Shape,
    /// The offset of the number of the last leaf.
    last_leaf_at: usize,
    /// Bytes after the list.
    tail: usize,
    pub owner: Owner,
}

impl Root {
    /// The root in an inode.
    pub fn of_inode(inode: &Dinode) -> Self {
        let owner = Owner { ino: inode.ino, keys: Keys::Clusters };
        let tail = inode.inline_xattr_bytes();
        Self { block: inode.ino, shape: &DINODE, last_leaf_at: 0x58, tail, owner }
    }

    /// The root in the index of a directory.
    pub fn of_index(block: u64, dir: u64) -> Self {
        let owner = Owner { ino: dir, keys: Keys::Hashes };
        Self { block, shape: &DX_ROOT, last_leaf_at: 0x20, tail: 0, owner }
    }
}

/// A node on the way to a leaf.
struct Node {
    block: u64,
    list: ExtentList,
    /// Records that fit.
    room: usize,
    /// The record that the way follows.
    at: usize,
    /// Block of the next leaf; 0 in the last leaf and in the root.
    next: u64,
}

impl Node {
    fn end(&self) -> u32 {
        self.list.records.last().map_or(0, |last| last.cpos.saturating_add(last.clusters))
    }

    fn first(&self) -> u32 {
        self.list.records.first().map_or(0, |first| first.cpos)
    }
}

impl Ocfs2 {
    fn way(&self, root: &Root, cpos: u32) -> Result<Vec<Node>> {
        let bytes = self.structure(root.block, root.shape)?;
        let list_bytes = &bytes[ID2_AT..(bytes.len() - root.tail).max(ID2_AT)];
        let list = self.parse_list(list_bytes, root.owner)?;
        let room = u16_at(list_bytes, 2).into();
        let mut way = vec![Node { block: root.block, list, room, at: 0, next: 0 }];
        drop(bytes);
        while let Some(node) = way.last_mut().filter(|node| node.list.depth > 0) {
            let after = node.list.records.partition_point(|record| record.cpos <= cpos);
            node.at = after.saturating_sub(1);
            let depth = node.list.depth - 1;
            let Some(block) = node.list.records.get(node.at).map(|record| record.start) else {
                return Err(self.corrupt_block(node.block, "a node of a tree has no records"));
            };
            way.push(self.node(root, block, depth)?);
        }
        Ok(way)
    }

    /// A node below the root.
    fn node(&self, root: &Root, block: u64, depth: u16) -> Result<Node> {
        let list = self.extent_block(block, depth, root.owner)?;
        let bytes = self.structure(block, &EXTENT_BLOCK)?;
        let room = u16_at(&bytes, BLOCK_LIST_AT + 2).into();
        Ok(Node { block, list, room, at: 0, next: u64_at(&bytes, NEXT_LEAF_AT) })
    }

    /// The leaf after a leaf that is not the last one.
    fn next_leaf(&self, root: &Root, leaf: &Node) -> Result<Node> {
        let next = self.node(root, leaf.next, 0)?;
        // So a walk along the leaves ends.
        if next.list.records.is_empty() || next.first() <= leaf.first() {
            return Err(self.corrupt_block(leaf.block, "the leaf after a leaf is not the next one"));
        }
        Ok(next)
    }

    /// Returns the credits that a change at a position takes beside [`TREE_CREDITS`]: for the leaves after
    /// it, in which records may move. Returns `NotSupported` if these leaves need more than half of the
    /// largest transaction.
    pub(crate) fn leaf_credits(&self, root: &Root, cpos: u32) -> Result<u32> {
        let most = self.writer()?.commits.journal().max_credits() / 2;
        let mut leaf = self.way(root, cpos)?.pop();
        let mut credits = 0;
        while let Some(node) = leaf.filter(|node| node.next != 0) {
            leaf = Some(self.next_leaf(root, &node)?);
            credits += LEAF_CREDITS;
            if credits > most {
                let what = "a change in the middle of so many extents does not fit the journal";
                log::warn!("{}, inode {}: {what}", self.place, root.owner.ino);
                return Err(NameError::NotSupported.into());
            }
        }
        Ok(credits)
    }

    /// Checks that a change at a position of a file fits a transaction, as
    /// [`leaf_credits`](Self::leaf_credits) does. Reads the leaves only if the file has so many clusters that
    /// it may not fit.
    pub(crate) fn check_leaf_credits(&self, inode: &Dinode, cpos: u32) -> Result<()> {
        let most = self.writer()?.commits.journal().max_credits() / 2;
        // All leaves but the last one are full.
        let leaves = inode.clusters / self.node_room() as u32 + 1;
        if leaves.saturating_mul(LEAF_CREDITS) <= most {
            return Ok(());
        }
        self.leaf_credits(&Root::of_inode(inode), cpos).map(drop)
    }

    /// Records that fit into a node below the root.
    fn node_room(&self) -> usize {
        (self.sb.block_size as usize - BLOCK_LIST_AT - 16) / 16
    }

    /// Returns the last extent of a tree that starts at or before a position.
    pub(crate) fn extent_before(&self, root: &Root, cpos: u32) -> Result<Option<Extent>> {
        let way = self.way(root, cpos)?;
        let leaf = way.last().map(|node| node.list.find(cpos).0.copied());
        Ok(leaf.flatten())
    }

    /// Whether `count` replacements surely fit the root of an inode.
    pub(crate) fn fits_root(&self, inode: &Dinode, count: usize) -> Result<bool> {
        let bytes = self.block_of(inode)?;
        let (depth, room) = (u16_at(&bytes, ID2_AT), u16_at(&bytes, ID2_AT + 2));
        let used = u16_at(&bytes, ID2_AT + 4);
        Ok(depth == 0 && usize::from(used) + 2 * count <= room.into())
    }
}

impl Change<'_> {
    /// Replaces the last extent that starts at or before `cpos` (`replaces`), or adds extents there. The
    /// caller made sure that there are [`TREE_BLOCKS`] blocks, and [`Ocfs2::leaf_credits`].
    pub fn replace(&mut self, root: &Root, cpos: u32, replaces: bool, new: &[Extent]) -> Result<()> {
        let mut way = self.fs.way(root, cpos)?;
        let Some(leaf) = way.last_mut() else { return Ok(()) };
        let records = &mut leaf.list.records;
        let after = records.partition_point(|record| record.cpos <= cpos);
        let start = after.saturating_sub(usize::from(replaces));
        if replaces && after == 0 {
            return Err(self.fs.corrupt(root.owner.ino, "an extent vanished while it was changed"));
        }
        records.splice(start..after, new.iter().copied());
        if root.owner.keys == Keys::Clusters {
            leaf.list.join(&self.fs.sb);
        }
        let (len, room, is_last) = (leaf.list.records.len(), leaf.room, leaf.next == 0);
        match len.cmp(&room) {
            _ if is_last => self.settle(root, way, Keep::Start),
            Ordering::Equal => self.settle(root, way, Keep::Start),
            Ordering::Greater => self.shift_right(root, way),
            Ordering::Less => self.shift_left(root, way),
        }
    }

    /// Replaces the records of the leaf at position `key`.
    fn put_leaf(&mut self, root: &Root, key: u32, records: Vec<Extent>, keep: Keep) -> Result<()> {
        let mut way = self.fs.way(root, key)?;
        if let Some(leaf) = way.last_mut() {
            leaf.list.records = records;
        }
        self.settle(root, way, keep)
    }

    /// Writes a leaf, not the last one, with too many records: those that do not fit go to the next leaf, and
    /// so on.
    fn shift_right(&mut self, root: &Root, mut way: Vec<Node>) -> Result<()> {
        let key = key_of(&way);
        let Some(mut leaf) = way.pop() else { return Ok(()) };
        let mut plan = Vec::new();
        let mut surplus = leaf.list.records.split_off(leaf.room);
        let own = std::mem::take(&mut leaf.list.records);
        leaf = self.fs.node(root, leaf.block, 0)?;
        while !surplus.is_empty() {
            leaf = self.fs.next_leaf(root, &leaf)?;
            let mut records = std::mem::take(&mut surplus);
            records.extend_from_slice(&leaf.list.records);
            if leaf.next != 0 && records.len() > leaf.room {
                surplus = records.split_off(leaf.room);
            }
            plan.push((leaf.first(), records));
        }
        // The last leaf first: the start of a leaf must change before the end of the leaf on its left.
        for (key, records) in plan.into_iter().rev() {
            self.put_leaf(root, key, records, Keep::Start)?;
        }
        self.put_leaf(root, key, own, Keep::Start)
    }

    /// Writes a leaf, not the last one, with too few records: it gets some of the next leaf, and so on.
    fn shift_left(&mut self, root: &Root, mut way: Vec<Node>) -> Result<()> {
        let mut key = key_of(&way);
        let Some(mut leaf) = way.pop() else { return Ok(()) };
        let mut records = std::mem::take(&mut leaf.list.records);
        leaf = self.fs.node(root, leaf.block, 0)?;
        while leaf.next != 0 && records.len() < leaf.room {
            let next = self.fs.next_leaf(root, &leaf)?;
            let mut rest = next.list.records.clone();
            let taken = rest.len().min(leaf.room - records.len());
            records.extend(rest.drain(..taken));
            // The next leaf gets its new start, or is removed, before this one gets its end.
            self.put_leaf(root, next.first(), rest.clone(), Keep::Nothing)?;
            self.put_leaf(root, key, records.clone(), Keep::Start)?;
            if let Some(first) = rest.first() {
                (key, records) = (first.cpos, rest);
                leaf = self.fs.node(root, next.block, 0)?;
            } else {
                leaf = self.fs.node(root, leaf.block, 0)?;
            }
        }
        Ok(())
    }

    /// Writes a changed leaf and what changes above it.
    fn settle(&mut self, root: &Root, mut way: Vec<Node>, keep: Keep) -> Result<()> {
        // A node that is not the last of its level keeps its end.
        let ends: Vec<Option<u32>> = (0..way.len())
            .map(|level| {
                let inner = (0..level).rev().find(|&up| way[up].at + 1 < way[up].list.records.len())?;
                Some(way[inner].list.records[way[inner].at + 1].cpos)
            })
            .collect();
        let (mut last_leaf, mut keep) = (None, keep);
        while let Some(mut node) = way.pop() {
            let level = way.len();
            let Some(parent) = way.last() else {
                return self.settle_root(root, node, last_leaf);
            };
            let (at, is_leaf) = (parent.at, node.list.depth == 0);
            let own = parent.list.records[at];
            let keeps = keep;
            if at > 0 {
                keep = Keep::Start;
            }
            if node.list.records.is_empty() {
                if is_leaf {
                    let before = self.leaf_before(root, &way)?;
                    if let Some(before) = before {
                        self.put_shape(before, &EXTENT_BLOCK, |b| put_u64(b, NEXT_LEAF_AT, node.next))?;
                    }
                    if node.next == 0 {
                        last_leaf = Some(before.unwrap_or(0));
                    }
                }
                self.free_node(node.block)?;
                let Some(parent) = way.last_mut() else { break };
                parent.list.records.remove(at);
                // The neighbour takes over the range of the freed node.
                match at.checked_sub(1) {
                    Some(before) if at < parent.list.records.len() => {
                        let before = &mut parent.list.records[before];
                        before.clusters = own.cpos.saturating_add(own.clusters).saturating_sub(before.cpos);
                    }
                    None if keeps == Keep::Start && !parent.list.records.is_empty() => {
                        let after = &mut parent.list.records[0];
                        after.clusters = after.cpos.saturating_add(after.clusters).saturating_sub(own.cpos);
                        after.cpos = own.cpos;
                    }
                    _ => {}
                }
                continue;
            }
            let cpos = match keeps {
                Keep::Start => own.cpos.min(node.first()),
                Keep::Nothing => node.first(),
            };
            let record = |start, cpos: u32, end: u32| Extent {
                cpos,
                clusters: end.saturating_sub(cpos),
                start,
                flags: 0,
            };
            let (whole_end, node_block) = (ends[level].unwrap_or(node.end()), node.block);
            let Some(parent) = way.last_mut() else { break };
            if node.list.records.len() <= node.room {
                parent.list.records[at] = record(node_block, cpos, whole_end);
                self.put_node(&node)?;
                continue;
            }
            let records = node.list.records.split_off(node.room);
            let right = Node {
                block: self.new_node()?,
                list: ExtentList { depth: node.list.depth, records },
                room: self.fs.node_room(),
                at: 0,
                next: node.next,
            };
            if is_leaf {
                if node.next == 0 {
                    last_leaf = Some(right.block);
                }
                node.next = right.block;
            }
            let Some(parent) = way.last_mut() else { break };
            parent.list.records[at] = record(node_block, cpos, right.first());
            parent.list.records.insert(at + 1, record(right.block, right.first(), whole_end));
            self.put_node(&node)?;
            self.put_node(&right)?;
        }
        Ok(())
    }

    fn settle_root(&mut self, root: &Root, mut node: Node, mut last_leaf: Option<u64>) -> Result<()> {
        if node.list.records.len() > node.room {
            let records = std::mem::take(&mut node.list.records);
            let list = ExtentList { depth: node.list.depth, records };
            let child = Node { block: self.new_node()?, list, room: self.fs.node_room(), at: 0, next: 0 };
            if child.list.records.len() > child.room {
                return Err(self.fs.corrupt(root.owner.ino, "a block has less room than the inode"));
            }
            if child.list.depth == 0 {
                last_leaf = Some(child.block);
            }
            let (cpos, end) = (child.first(), child.end());
            self.put_node(&child)?;
            let clusters = end.saturating_sub(cpos);
            node.list.records = vec![Extent { cpos, clusters, start: child.block, flags: 0 }];
            node.list.depth += 1;
        } else if node.list.records.is_empty() {
            node.list.depth = 0;
            last_leaf = Some(0);
        }
        let tail = root.tail;
        self.put_shape(root.block, root.shape, |bytes| {
            let end = bytes.len() - tail;
            node.list.encode(&mut bytes[ID2_AT..end]);
            if let Some(last_leaf) = last_leaf {
                put_u64(bytes, root.last_leaf_at, last_leaf);
            }
        })
    }

    /// Returns the leaf before the one that a way leads to.
    fn leaf_before(&self, root: &Root, way: &[Node]) -> Result<Option<u64>> {
        let Some(node) = way.iter().rev().find(|node| node.at > 0) else { return Ok(None) };
        let (mut block, mut depth) = (node.list.records[node.at - 1].start, node.list.depth - 1);
        while depth > 0 {
            let list = self.fs.extent_block(block, depth, root.owner)?;
            let last = list.records.last();
            block =
                last.ok_or_else(|| self.fs.corrupt_block(block, "a node of a tree has no records"))?.start;
            depth -= 1;
        }
        Ok(Some(block))
    }

    /// Takes a block for a node, and writes an empty node.
    fn new_node(&mut self) -> Result<u64> {
        let taken = self.block(Sub::Blocks)?;
        let generation = self.fs.sb.generation;
        self.put_new(taken.block, EXTENT_BLOCK.check_at, |bytes| {
            EXTENT_BLOCK.put(bytes, taken.block, generation);
            put_u16(bytes, 0x12, taken.bit);
            ExtentList::encode_empty(&mut bytes[BLOCK_LIST_AT..]);
        })?;
        Ok(taken.block)
    }

    fn put_node(&mut self, node: &Node) -> Result<()> {
        self.put_shape(node.block, &EXTENT_BLOCK, |bytes| {
            node.list.encode(&mut bytes[BLOCK_LIST_AT..]);
            put_u64(bytes, NEXT_LEAF_AT, node.next);
        })
    }

    /// Frees a node of a tree.
    pub fn free_node(&mut self, block: u64) -> Result<()> {
        let origin: Origin = {
            let bytes = self.fs.structure(block, &EXTENT_BLOCK)?;
            (u16_at(&bytes, 0x10), u16_at(&bytes, 0x12), u64_at(&bytes, 0x20))
        };
        self.free_block(Sub::Blocks, block, origin)
    }
}
