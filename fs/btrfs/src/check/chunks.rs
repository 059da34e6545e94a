//! The check of the chunk tree and the device tree: chunks, devices, and the parts of devices in chunks.

use super::state::{Checker, Root};
use super::walk::Visit;
use crate::layout::bytes::read;
use crate::layout::chunk::{Chunk, DATA, METADATA, SYSTEM};
use crate::layout::features::Incompat;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Node;
use crate::layout::raw::{RawChunk, RawDevExtent, RawDevItem, RawKey};
use crate::layout::superblock::Superblock;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::{BTreeMap, BTreeSet};

/// The `owner` of each chunk: the extent tree.
const CHUNK_OWNER: u64 = object::EXTENT_TREE;

/// A device, as its item says.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub total_bytes: u64,
    pub bytes_used: u64,
    pub io_align: u32,
    pub io_width: u32,
    pub sector_size: u32,
    pub kind: u64,
    pub uuid: [u8; 16],
}

/// A walk of the chunk tree.
#[derive(Default)]
pub(super) struct ChunkTree {
    pub devices: BTreeMap<u64, Device>,
    /// The items of chunks of the type SYSTEM.
    system: BTreeMap<u64, Vec<u8>>,
}

/// A part of a device: its start on the device, its length, and its chunk.
type Part = (u64, u64, u64);

impl Visit for ChunkTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            let bad = match (key.objectid, key.kind) {
                (object::DEV_ITEMS, kind::DEV_ITEM) => self.add_device(checker, key, data),
                (object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM) => self.add_chunk(checker, key, data),
                _ => Some("no item of this type belongs here".into()),
            };
            if let Some(what) = bad {
                checker.bad_item("chunk-item-wrong", object::CHUNK_TREE, key, what);
            }
        }
        Ok(())
    }
}

impl ChunkTree {
    fn add_device(&mut self, checker: &Checker, key: Key, data: &[u8]) -> Option<String> {
        let raw: RawDevItem = match read(data, 0) {
            Some(raw) if data.len() == size_of::<RawDevItem>() => raw,
            _ => return Some(format!("an item of a device has {} bytes", data.len())),
        };
        let sb = &checker.forest.volume.sb;
        let device = Device {
            total_bytes: raw.total_bytes.get(),
            bytes_used: raw.bytes_used.get(),
            io_align: raw.io_align.get(),
            io_width: raw.io_width.get(),
            sector_size: raw.sector_size.get(),
            kind: raw.kind.get(),
            uuid: raw.uuid,
        };
        let what = if raw.devid.get() != key.offset {
            Some(format!("it names device {}", raw.devid.get()))
        } else if raw.fsid != sb.metadata_uuid {
            Some("the device belongs to another filesystem".into())
        } else if device.bytes_used > device.total_bytes {
            Some(format!("{} of {} bytes are used", device.bytes_used, device.total_bytes))
        } else {
            None
        };
        self.devices.insert(key.offset, device);
        what
    }

    fn add_chunk(&mut self, checker: &Checker, key: Key, data: &[u8]) -> Option<String> {
        let sb = &checker.forest.volume.sb;
        // Chunks that cannot be decoded were refused when the filesystem was opened.
        let raw: RawChunk = read(data, 0)?;
        if raw.kind.get() & SYSTEM != 0 {
            self.system.insert(key.offset, data.to_vec());
        }
        odd_chunk(sb, &raw)
    }
}

fn odd_chunk(sb: &Superblock, raw: &RawChunk) -> Option<String> {
    let contents = raw.kind.get() & (DATA | METADATA | SYSTEM);
    let mixed = sb.incompat.contains(Incompat::MIXED_GROUPS);
    let is_known = match contents {
        DATA | METADATA => !mixed,
        SYSTEM => true,
        both if both == DATA | METADATA => mixed,
        _ => false,
    };
    if !is_known {
        return Some(format!("the type of its contents is {contents:#x}"));
    }
    if raw.owner.get() != CHUNK_OWNER {
        return Some(format!("its owner is {}", raw.owner.get()));
    }
    if raw.sector_size.get() != sb.sector_size {
        return Some(format!("its sector size is {}", raw.sector_size.get()));
    }
    // Linux has no other stripe length.
    (raw.stripe_len.get() != 64 << 10).then(|| format!("its stripes have {} bytes", raw.stripe_len.get()))
}

/// A walk of the device tree.
struct DeviceTree {
    /// Parts of devices in chunks that the device tree lacks so far.
    missing: BTreeSet<(u64, Part)>,
    /// The bytes of all parts of each device.
    used: BTreeMap<u64, u64>,
    /// The end of the previous part.
    last: Option<(u64, u64)>,
}

impl Visit for DeviceTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            let what = match key.kind {
                kind::DEV_EXTENT => self.add(key, data),
                kind::DEV_STATS | kind::TEMPORARY_ITEM | kind::DEV_REPLACE => None,
                _ => Some("no item of this type belongs here".into()),
            };
            if let Some(what) = what {
                checker.bad_item("device-extent-wrong", object::DEV_TREE, key, what);
            }
        }
        Ok(())
    }
}

impl DeviceTree {
    fn add(&mut self, key: Key, data: &[u8]) -> Option<String> {
        let raw: RawDevExtent = match read(data, 0) {
            Some(raw) if data.len() == size_of::<RawDevExtent>() => raw,
            _ => return Some(format!("it has {} bytes", data.len())),
        };
        let (start, len, chunk) = (key.offset, raw.length.get(), raw.chunk_offset.get());
        let used = self.used.entry(key.objectid).or_default();
        *used = used.saturating_add(len);
        let before = self.last.replace((key.objectid, start.saturating_add(len)));
        if before.is_some_and(|(devid, end)| devid == key.objectid && end > start) {
            return Some("it overlaps the one before it".into());
        }
        if !self.missing.remove(&(key.objectid, (start, len, chunk))) {
            return Some(format!("the chunk at {chunk} has no such part of {len} bytes"));
        }
        let owner = (raw.chunk_tree.get(), raw.chunk_objectid.get());
        (owner != (object::CHUNK_TREE, object::FIRST_CHUNK_TREE))
            .then(|| format!("it belongs to object {} of tree {}", owner.1, owner.0))
    }
}

impl Checker {
    /// Walks the chunk tree. Returns the devices.
    pub(super) fn check_chunk_tree(&mut self, root: &Root) -> Result<BTreeMap<u64, Device>> {
        let mut tree = ChunkTree::default();
        self.add_root(&root.tree);
        self.trees_sound &= self.walk(root, &mut tree, false)?;
        let sb = &self.forest.volume.sb;
        // The array in the superblock must have the same chunks. Keys and items alternate in it.
        let (mut array, mut odd) = (&sb.sys_chunks[..], Vec::new());
        let mut system = tree.system;
        while let Some(key) = read::<RawKey>(array, 0) {
            let key = Key::from(&key);
            let rest = &array[size_of::<RawKey>()..];
            let item = Chunk::item_bytes(rest).and_then(|len| rest.split_at_checked(len));
            let Some((item, rest)) = item else { break };
            let place = (key.objectid, key.kind) == (object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM);
            if !place || system.remove(&key.offset).as_deref() != Some(item) {
                odd.push(format!(
                    "the chunk at {} in the superblock is not that of the chunk tree",
                    key.offset
                ));
            }
            array = rest;
        }
        odd.extend(system.keys().map(|start| format!("the superblock lacks the system chunk at {start}")));
        for what in odd {
            self.bad("system-chunks-wrong", Place::filesystem(), what);
        }
        let mut wrong = Vec::new();
        for group in self.space.groups.values() {
            for stripe in &group.chunk.stripes {
                let start = group.chunk.start;
                match tree.devices.get(&stripe.devid) {
                    None => wrong.push(format!(
                        "the chunk at {start} is on device {}, which has no item",
                        stripe.devid
                    )),
                    Some(device) if device.uuid != stripe.device_uuid => {
                        wrong.push(format!(
                            "the chunk at {start} names another UUID of device {}",
                            stripe.devid
                        ));
                    }
                    Some(device) => {
                        let end = stripe.offset.saturating_add(group.chunk.bytes_per_device());
                        if end > device.total_bytes {
                            wrong.push(format!("the chunk at {start} ends past device {}", stripe.devid));
                        }
                    }
                }
            }
        }
        for what in wrong {
            self.bad("chunk-item-wrong", Place::filesystem(), what);
        }
        Ok(tree.devices)
    }

    /// Walks the device tree, and compares it with the chunks.
    pub(super) fn check_device_tree(&mut self, devices: &BTreeMap<u64, Device>) -> Result<()> {
        let mut missing = BTreeSet::new();
        for group in self.space.groups.values() {
            let (chunk, len) = (&group.chunk, group.chunk.bytes_per_device());
            missing.extend(chunk.stripes.iter().map(|it| (it.devid, (it.offset, len, chunk.start))));
        }
        let mut tree = DeviceTree { missing, used: BTreeMap::new(), last: None };
        let Some(sound) = self.walk_by_id(object::DEV_TREE, &mut tree)? else { return Ok(()) };
        if !sound {
            return Ok(());
        }
        for (devid, (start, len, chunk)) in tree.missing {
            let what = format!(
                "the device tree lacks {len} bytes at {start} of device {devid}, of the chunk at {chunk}"
            );
            self.bad("device-extent-missing", Place::filesystem(), what);
        }
        for (devid, device) in devices {
            let used = tree.used.get(devid).copied().unwrap_or(0);
            if used != device.bytes_used {
                let what = format!(
                    "device {devid} has {used} bytes in chunks, and its item says {}",
                    device.bytes_used
                );
                self.bad("device-used-wrong", Place::filesystem(), what);
            }
        }
        Ok(())
    }
}
