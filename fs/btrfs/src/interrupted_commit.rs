//! A crash between the superblock writes of two devices: one device has the superblock of the last commit,
//! the other one that of the commit before it.
//!
//! A commit flushes its blocks on all devices before it writes a superblock. So the device that is behind has
//! its blocks of the last commit. A device that was absent during the last commit does not. This module tells
//! the two apart by these blocks: a device that is behind is used if it has at least one of them, and if all
//! that it must have are right.

use crate::chunks::open_chunks;
use crate::devices::Devices;
use crate::filesystem::Btrfs;
use crate::layout::bytes::read;
use crate::layout::items::RootItem;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::{Expected, Node};
use crate::layout::raw::{RawDevItem, RawSuperblock};
use crate::layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_PLACES, at_place};
use crate::tree::{Forest, Tree};
use crate::volume::Volume;
use ivers_block::{Budget, ByteOffset, Device};
use ivers_vfs::{Error, Result};
use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The most blocks of one commit that are read. With more, the device counts as older.
const BLOCKS_MAX: usize = 1 << 17;
/// The bytes of memory for blocks that are read again.
const CACHE_BYTES: u64 = 4 << 20;

/// Finds the devices of a filesystem. One that only lacks the superblock of the last commit is a member.
pub(crate) fn find_devices(devices: &[Arc<dyn Device>], place: &str, degraded: bool) -> Result<Devices> {
    let mut found = Devices::find(devices, place, degraded, true)?;
    if found.behind.is_empty() {
        return Ok(found);
    }
    let has_last_commit = LastCommit::new(found.clone(), place).and_then(LastCommit::check);
    if !has_last_commit.unwrap_or(false) {
        return Devices::find(devices, place, degraded, false);
    }
    for devid in &found.behind {
        let what = "has everything but the superblock of the last commit: a crash came between two devices";
        found.notes.push(format!("device {devid} {what}"));
    }
    Ok(found)
}

/// The blocks of the last commit.
struct LastCommit {
    forest: Forest,
    /// The devices that may lack them.
    behind: BTreeSet<u64>,
    /// Those that have some.
    proven: BTreeSet<u64>,
    /// The number of blocks that were read.
    blocks: usize,
    /// The trees that the tree of roots leads to.
    roots: Vec<Tree>,
}

impl LastCommit {
    fn new(devices: Devices, place: &str) -> Result<Self> {
        let behind = devices.behind.iter().copied().collect();
        let forest = open_chunks(Volume::new(devices, place.into()), Arc::new(Budget::new(CACHE_BYTES)))?;
        Ok(Self { forest, behind, proven: BTreeSet::new(), blocks: 0, roots: Vec::new() })
    }

    /// Returns whether each device that is behind has its blocks of the last commit.
    fn check(mut self) -> Result<bool> {
        let sb = &self.forest.volume.sb;
        let first = [(object::CHUNK_TREE, sb.chunk_root), (object::ROOT_TREE, sb.root)];
        self.roots.extend(first.map(|(id, root)| Tree { id, root }));
        while let Some(Tree { id, root }) = self.roots.pop() {
            if !self.has_block(&Expected::root_of(id, root))? {
                return Ok(false);
            }
        }
        Ok(self.proven == self.behind)
    }

    /// Returns whether a block and those below it have all their copies, as far as they are of the last
    /// commit.
    fn has_block(&mut self, expected: &Expected) -> Result<bool> {
        if expected.generation != self.forest.volume.sb.generation {
            return Ok(true);
        }
        self.blocks += 1;
        if self.blocks > BLOCKS_MAX {
            return Ok(false);
        }
        let Some(node) = self.right_copies(expected) else { return Ok(false) };
        for index in 0..node.count() {
            if node.level > 0 {
                if !self.has_block(&node.expected_below(index, expected))? {
                    return Ok(false);
                }
            } else if expected.tree == object::ROOT_TREE {
                self.add_root(node.key(index), node.data(index))?;
            }
        }
        Ok(true)
    }

    /// Returns a block, unless a copy on a device that is behind is wrong.
    fn right_copies(&mut self, expected: &Expected) -> Option<Node> {
        let volume = &self.forest.volume;
        let mut right = None;
        for copy in 0..volume.copies(expected.bytenr) {
            let mut bytes = vec![0; volume.sb.node_size as usize].into_boxed_slice();
            let devices = volume.devices_of(expected.bytenr, copy, bytes.len());
            let node = volume.read_copy(expected.bytenr, copy, &mut bytes).ok().and_then(|()| {
                let node = Node::parse(&volume.sb, expected.bytenr, bytes).ok()?;
                node.check(expected).is_ok().then_some(node)
            });
            let mut behind = devices.into_iter().filter(|devid| self.behind.contains(devid)).peekable();
            match node {
                Some(node) => {
                    self.proven.extend(behind);
                    right = Some(node);
                }
                None if behind.peek().is_some() => return None,
                None => {}
            }
        }
        right
    }

    fn add_root(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if key.kind == kind::ROOT_ITEM {
            let item = RootItem::decode(data).map_err(|what| self.corrupt(what))?;
            // A deleted subvolume may point to blocks that are free again.
            if item.refs > 0 {
                self.roots.push(Tree { id: key.objectid, root: item.root });
            }
        }
        Ok(())
    }

    fn corrupt(&self, what: String) -> Error {
        Error::corrupt(what, self.forest.volume.place.clone())
    }
}

impl Btrfs {
    /// Writes the superblock of the last commit to the devices that lack it. Without this, a crash during the
    /// next commit could leave one two commits behind.
    pub(crate) fn complete_last_commit(&self) -> Result<()> {
        let volume = &self.forest.volume;
        let behind = volume.behind();
        let newest = volume.members().find(|(devid, _)| !behind.contains(devid));
        let Some((_, newest)) = newest.filter(|_| !behind.is_empty()) else { return Ok(()) };
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        newest.device.read_at(ByteOffset(newest.superblock), &mut bytes)?;
        let tree = Tree { id: object::CHUNK_TREE, root: volume.sb.chunk_root };
        for (devid, member) in volume.members().filter(|(devid, _)| behind.contains(devid)) {
            let key = Key::new(object::DEV_ITEMS, kind::DEV_ITEM, devid);
            let item: Option<RawDevItem> =
                self.forest.get(&tree, key, |data| read(data, 0).ok_or_else(|| "it is too short".into()))?;
            let item = item.ok_or_else(|| self.forest.corrupt("it is missing", &tree, key))?;
            const AT: usize = offset_of!(RawSuperblock, dev_item);
            bytes[AT..AT + size_of::<RawDevItem>()].copy_from_slice(item.as_bytes());
            for place in SUPERBLOCK_PLACES {
                if place + SUPERBLOCK_BYTES as u64 <= member.bytes {
                    let own = at_place(&bytes, place, volume.sb.checksum);
                    member.device.write_fua(ByteOffset(place), &own)?;
                }
            }
        }
        Ok(())
    }
}
