//! Opening for writing: what forbids it, and the block groups with their free space.

use crate::filesystem::Btrfs;
use crate::layout::bytes::read;
use crate::layout::chunk::Chunk;
use crate::layout::features::{Incompat, RoCompat, SuperFlags};
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Expected;
use crate::layout::raw::{RawBlockGroupItem, RawRootItem};
use crate::layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_PLACES};
use crate::live::groups::{Group, Groups};
use crate::live::{Live, REF_TREES};
use crate::ranges::Ranges;
use ivers_block::ByteOffset;
use ivers_vfs::Result;
use std::ops::ControlFlow;

/// Features that do not change what this driver writes, or that it keeps right.
const WRITABLE: RoCompat = RoCompat::FREE_SPACE_TREE.union(RoCompat::FREE_SPACE_TREE_VALID);
/// No filesystem has so many transactions. Counting them must not overflow.
const GENERATION_MAX: u64 = u64::MAX / 2;
/// What a stripe has at the place of a superblock is never allocated.
const STRIPE_BYTES: u64 = 64 << 10;

impl Btrfs {
    /// Why nothing may be written, if so.
    pub(crate) fn why_not_writable(&self, missing_devices: bool, skips_log: bool) -> Result<Option<String>> {
        let volume = &self.forest.volume;
        if let Some(reason) = self.why_not_changed()? {
            return Ok(Some(reason));
        }
        let reason = if volume.sb.has_log() && skips_log {
            "the log tree was not replayed"
        } else if missing_devices {
            "devices are missing"
        } else if volume.members().any(|(_, member)| member.device.is_read_only()) {
            "a device is read-only"
        } else if self.root_of(object::QUOTA_TREE)?.is_some() {
            "quotas are not supported for writing; turn them off with \"btrfs quota disable\""
        } else {
            return Ok(None);
        };
        Ok(Some(reason.to_owned()))
    }

    /// Returns why trees may not be changed, even in memory. `None`: they may.
    pub(super) fn why_not_changed(&self) -> Result<Option<String>> {
        let sb = &self.forest.volume.sb;
        let unknown = sb.ro_compat.difference(WRITABLE).feature_names();
        if !unknown.is_empty() {
            return Ok(Some(format!("the feature {} is not supported for writing", unknown.join(", "))));
        }
        let reason = if sb.incompat.contains(Incompat::SIMPLE_QUOTA) {
            "the feature simple-quota is not supported for writing"
        } else if !sb.incompat.contains(Incompat::MIXED_BACKREF) {
            "a filesystem without the feature mixed-backref is not supported for writing"
        } else if sb.ro_compat.contains(RoCompat::FREE_SPACE_TREE)
            && !sb.ro_compat.contains(RoCompat::FREE_SPACE_TREE_VALID)
        {
            "the free-space tree is marked as invalid; mount it once with Linux"
        } else if sb.flags.contains(SuperFlags::ERROR) {
            "the superblock has the error flag; run \"btrfs check\""
        } else if sb.generation > GENERATION_MAX {
            "the generation is too large"
        } else if self.has_relocation()? {
            "a balance is not finished; let Linux finish it"
        } else {
            return Ok(None);
        };
        Ok(Some(reason.to_owned()))
    }

    fn has_relocation(&self) -> Result<bool> {
        let Some(tree) = self.tree(object::ROOT_TREE)? else { return Ok(false) };
        for (object, kind) in [(object::BALANCE, kind::TEMPORARY_ITEM), (object::RELOCATION, kind::ROOT_ITEM)]
        {
            let (first, last) = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
            if self.forest.scan(&tree, first, last, |_, _| Ok(ControlFlow::Break(())))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads everything that a writer needs.
    pub(super) fn load_live(&self) -> Result<Live> {
        let volume = &self.forest.volume;
        let sb = &volume.sb;
        let has_free_space_tree = sb.ro_compat.contains(RoCompat::FREE_SPACE_TREE);
        let mut groups = Groups::default();
        for chunk in volume.chunks() {
            let group = self.load_group(&chunk, has_free_space_tree)?;
            groups.by_start.insert(group.start, group);
        }
        let mut supers = Vec::new();
        for (devid, member) in volume.members() {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            // The newest one may be a copy; all have the same contents but for their place.
            member.device.read_at(ByteOffset(member.superblock), &mut bytes)?;
            supers.push((devid, bytes));
        }
        let root = sb.chunk_root;
        let chunk_root = self.forest.node(&Expected {
            bytenr: root.bytenr,
            generation: root.generation,
            level: root.level,
            tree: object::CHUNK_TREE,
            first: None,
            below: None,
        })?;
        Ok(Live {
            transid: sb.generation + 1,
            groups,
            refs: Default::default(),
            fresh: Default::default(),
            changed_roots: Default::default(),
            more_blocks: Default::default(),
            ref_tree_blocks: self.ref_tree_blocks()?,
            new_chunks: Vec::new(),
            supers,
            chunk_uuid: chunk_root.chunk_uuid(),
            sys_chunks: sb.sys_chunks.clone(),
            is_skinny: sb.incompat.contains(Incompat::SKINNY_METADATA),
            has_free_space_tree,
            group_tree: self.group_tree(),
            next_objectid: Default::default(),
            reserved: 0,
            features: Incompat::empty(),
            log: Default::default(),
        })
    }

    /// Returns how many blocks [`REF_TREES`] have, according to their root items.
    fn ref_tree_blocks(&self) -> Result<u64> {
        let Some(roots) = self.tree(object::ROOT_TREE)? else { return Ok(0) };
        let mut bytes = 0u64;
        for tree in REF_TREES {
            let Some(key) = self.root_of(tree)?.and_then(|root| root.key) else { continue };
            let used = |data: &[u8]| Ok(read::<RawRootItem>(data, 0).map_or(0, |item| item.bytes_used.get()));
            bytes = bytes.saturating_add(self.forest.get(&roots, key, used)?.unwrap_or(0));
        }
        Ok(bytes / u64::from(self.forest.volume.sb.node_size))
    }

    /// The tree that has the items of block groups.
    pub(super) fn group_tree(&self) -> u64 {
        match self.forest.volume.sb.ro_compat.contains(RoCompat::BLOCK_GROUP_TREE) {
            true => object::BLOCK_GROUP_TREE,
            false => object::EXTENT_TREE,
        }
    }

    fn load_group(&self, chunk: &Chunk, has_free_space_tree: bool) -> Result<Group> {
        let damaged = |what: &str| self.damaged_group(chunk.start, what);
        let tree =
            self.tree(self.group_tree())?.ok_or_else(|| damaged("the tree with its item is missing"))?;
        let key = Key::new(chunk.start, kind::BLOCK_GROUP_ITEM, chunk.length);
        let raw = self.forest.get(&tree, key, |data| {
            read::<RawBlockGroupItem>(data, 0).ok_or_else(|| "it is too short".into())
        })?;
        let raw = raw.ok_or_else(|| damaged("it has no item"))?;
        let mut group = Group::new(chunk.start, chunk.length, raw.flags.get());
        group.used = raw.used.get();
        let free = match has_free_space_tree {
            true => self.stored_free_space(&mut group)?,
            false => self.computed_free_space(&group)?,
        };
        if free.total().checked_add(group.used) != Some(group.len) {
            let what = format!("{} bytes are used and {} free, of {}", group.used, free.total(), group.len);
            return Err(damaged(&what));
        }
        group.free = free;
        for (start, end) in self.superblocks_in(chunk) {
            group.free.remove(start, end);
        }
        Ok(group)
    }

    /// The free space of a group by the extent tree: what no extent has.
    fn computed_free_space(&self, group: &Group) -> Result<Ranges> {
        let damaged = |what: String| self.damaged_group(group.start, &what);
        let tree =
            self.tree(object::EXTENT_TREE)?.ok_or_else(|| damaged("there is no extent tree".into()))?;
        let mut free = Ranges::default();
        let mut at = group.start;
        let last = Key::new(group.end() - 1, u8::MAX, u64::MAX);
        self.forest.scan(&tree, Key::new(group.start, 0, 0), last, |key, _| {
            let bytes = match key.kind {
                kind::EXTENT_ITEM => key.offset,
                kind::METADATA_ITEM => self.forest.volume.sb.node_size.into(),
                _ => return Ok(ControlFlow::Continue(())),
            };
            let end = key.objectid.checked_add(bytes).filter(|end| *end <= group.end());
            let Some(end) = end.filter(|_| key.objectid >= at) else {
                return Err(damaged(format!("the extent at {} overlaps another", key.objectid)));
            };
            free.add(at, key.objectid);
            at = end;
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        free.add(at, group.end());
        Ok(free)
    }

    /// The addresses that have copies of the superblock on a device.
    pub(super) fn superblocks_in(&self, chunk: &Chunk) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for place in SUPERBLOCK_PLACES {
            found.extend(chunk.addresses_of(place, STRIPE_BYTES));
        }
        found
    }
}
