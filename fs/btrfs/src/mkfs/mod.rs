//! Making an empty filesystem on one or several devices.
//!
//! Features and sizes are those of mkfs.btrfs 6.2; `docs/btrfs.md` lists what differs. The same options make
//! the same filesystem, byte for byte.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the options of a new filesystem, and its description |
//! | `geometry` | devices and chunks |
//! | `trees`, `items` | blocks of trees; their items |

mod geometry;
mod items;
mod options;
mod trees;

pub use options::{Copies, MkfsOptions, MkfsReport};

use crate::layout::chunk::{METADATA, SYSTEM};
use crate::layout::features::{Incompat, RoCompat, SuperFlags};
use crate::layout::key::object;
use crate::layout::raw::{RawKey, RawSuperblock};
use crate::layout::superblock::{
    MAGIC, SECTOR, SUPERBLOCK_BYTES, SUPERBLOCK_PLACES, SYS_CHUNK_ARRAY, Superblock, at_place,
};
use geometry::{NewChunk, Plan};
use items::GENERATION;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};
use std::sync::Arc;
use trees::NewTree;
use zerocopy::{FromZeros, IntoBytes};

/// The bytes at the start of a device that become zero, except for the superblock.
const HEAD_BYTES: u64 = 1 << 20;

/// Checks that a filesystem with these options fits devices of these sizes; writes nothing.
pub fn plan(sizes: &[u64], options: &MkfsOptions) -> Result<()> {
    Plan::new(sizes, options).map(drop)
}

/// Makes a filesystem that fills the devices. Checks everything before the first write. Writes the
/// superblocks last, so an incomplete filesystem is not recognized. The filesystem is durable on return.
pub fn mkfs(devices: &[Arc<dyn Device>], options: &MkfsOptions) -> Result<MkfsReport> {
    let sizes: Vec<u64> = devices.iter().map(|device| device.size_bytes()).collect();
    let plan = Plan::new(&sizes, options)?;
    let trees = all_trees(&plan, options)?;
    let supers: Vec<_> =
        (0..devices.len()).map(|device| superblock(&plan, options, &trees, device)).collect();
    // A superblock that the driver cannot read must not be written.
    let first = at_place(&supers[0], SUPERBLOCK_PLACES[0], options.checksum);
    let sb = Superblock::parse(&first, SUPERBLOCK_PLACES[0]);
    let sb = sb.map_err(|why| why.into_error("a new superblock"))?;
    for device in devices {
        device.write_at(ByteOffset(0), &vec![0; HEAD_BYTES as usize])?;
    }
    erase_superblocks(devices)?;
    for tree in &trees {
        let contents = if tree.id == object::CHUNK_TREE { SYSTEM } else { METADATA };
        let chunk = plan.chunk(contents);
        for (address, bytes) in tree.encode(&sb, items::chunk_uuid(options)) {
            for part in &chunk.parts {
                devices[part.device].write_at(ByteOffset(part.offset + address - chunk.start), &bytes)?;
            }
        }
    }
    flush(devices)?;
    // The first superblocks come last: the copies alone are not recognized.
    for place in SUPERBLOCK_PLACES.into_iter().rev() {
        for (number, device) in devices.iter().enumerate() {
            if place + (SUPERBLOCK_BYTES as u64) < plan.devices[number] {
                device.write_at(ByteOffset(place), &at_place(&supers[number], place, options.checksum))?;
            }
        }
        flush(devices)?;
    }
    let metadata = options.metadata_on(devices.len());
    Ok(MkfsReport {
        bytes: plan.bytes(),
        node_size: options.node_size,
        devices: devices.len(),
        data: options.data.name(),
        metadata: metadata.name(),
        checksum: options.checksum.name(),
    })
}

fn flush(devices: &[Arc<dyn Device>]) -> Result<()> {
    devices.iter().try_for_each(|device| Ok(device.flush()?))
}

/// Erases the superblocks of an old filesystem, so that no tool takes them for those of a new one.
pub fn erase_superblocks(devices: &[Arc<dyn Device>]) -> Result<()> {
    for device in devices {
        for place in SUPERBLOCK_PLACES {
            if place + SUPERBLOCK_BYTES as u64 <= device.size_bytes() {
                device.write_at(ByteOffset(place), &[0; SUPERBLOCK_BYTES])?;
            }
        }
    }
    flush(devices)
}

/// Assigns addresses to the blocks of a tree, from `next` on.
fn place_tree(tree: &mut NewTree, next: &mut u64, node_size: u32) {
    let count = tree.block_count(node_size) as u64;
    tree.blocks = (0..count).map(|number| *next + number * u64::from(node_size)).collect();
    *next += count * u64::from(node_size);
}

fn groups(plan: &Plan, ends: &[(u64, u64)]) -> Vec<(u64, u64, u64, u64)> {
    let used = |chunk: &NewChunk| {
        let end = ends.iter().find(|(contents, _)| chunk.flags & contents != 0);
        end.map_or(0, |(_, end)| end - chunk.start)
    };
    plan.chunks.iter().map(|chunk| (chunk.start, chunk.length, chunk.flags, used(chunk))).collect()
}

/// Returns all trees with their addresses, the root tree first.
fn all_trees(plan: &Plan, options: &MkfsOptions) -> Result<Vec<NewTree>> {
    let node_size = options.node_size;
    let mut trees = vec![items::chunk_tree(plan, options)];
    let mut system_end = plan.chunk(SYSTEM).start;
    place_tree(&mut trees[0], &mut system_end, node_size);
    trees.extend([
        items::device_tree(plan, options),
        items::file_tree(object::FS_TREE, options),
        NewTree::new(object::CSUM_TREE, Vec::new()),
        items::uuid_tree(options),
        items::free_space_tree(&groups(plan, &[])),
        items::file_tree(object::DATA_RELOCATION, options),
    ]);
    // The sizes of trees do not depend on addresses. The size of the extent tree depends on the number of
    // blocks.
    let mut end = plan.chunk(METADATA).start;
    trees[1..].iter_mut().for_each(|tree| place_tree(tree, &mut end, node_size));
    let mut extents = NewTree::new(object::EXTENT_TREE, Vec::new());
    let mut all = trees.clone();
    all.push(extents.clone());
    let mut roots = items::root_tree(&all, options);
    place_tree(&mut roots, &mut end, node_size);
    let first = end;
    let groups = loop {
        end = first;
        place_tree(&mut extents, &mut end, node_size);
        let mut blocks: Vec<_> = Vec::new();
        for tree in trees.iter().chain([&roots, &extents]) {
            blocks
                .extend(tree.blocks.iter().enumerate().map(|(at, block)| (*block, tree.level(at), tree.id)));
        }
        let groups = groups(plan, &[(SYSTEM, system_end), (METADATA, end)]);
        let count = extents.blocks.len();
        let blocks_of_tree = std::mem::take(&mut extents.blocks);
        extents = items::extent_tree(&groups, &blocks);
        if extents.block_count(node_size) == count {
            extents.blocks = blocks_of_tree;
            break groups;
        }
    };
    if end > plan.chunk(METADATA).start + plan.chunk(METADATA).length {
        return Err(Error::Incompatible("the trees do not fit the first chunk".into()));
    }
    for tree in &mut trees {
        if tree.id == object::FREE_SPACE_TREE {
            tree.items = items::free_space_tree(&groups).items;
        }
    }
    trees.push(extents);
    roots.items = items::root_tree(&trees, options).items;
    trees.insert(0, roots);
    Ok(trees)
}

/// Returns the superblock of a device, without checksum and place.
fn superblock(plan: &Plan, options: &MkfsOptions, trees: &[NewTree], device: usize) -> Vec<u8> {
    let root_of = |id: u64| {
        let tree = trees.iter().find(|tree| tree.id == id).expect("all trees are made");
        tree.root(GENERATION)
    };
    let (root, chunk_root) = (root_of(object::ROOT_TREE), root_of(object::CHUNK_TREE));
    let used: usize = trees.iter().map(|tree| tree.blocks.len()).sum();
    let many_copies = [options.data, options.metadata_on(plan.devices.len())]
        .iter()
        .any(|copies| matches!(copies, Copies::Raid1c3 | Copies::Raid1c4));
    let mut incompat =
        Incompat::MIXED_BACKREF | Incompat::EXTENDED_IREF | Incompat::SKINNY_METADATA | Incompat::NO_HOLES;
    if many_copies {
        incompat |= Incompat::RAID1C34;
    }
    let ro_compat = RoCompat::FREE_SPACE_TREE | RoCompat::FREE_SPACE_TREE_VALID;
    let mut array = Vec::new();
    let system = plan.chunk(SYSTEM);
    array.extend(RawKey::from(items::chunk_key(system)).as_bytes());
    array.extend(items::chunk_item(system, options));
    let mut raw = RawSuperblock {
        fsid: options.uuid,
        flags: SuperFlags::WRITTEN.bits().into(),
        magic: *MAGIC,
        generation: GENERATION.into(),
        root: root.bytenr.into(),
        chunk_root: chunk_root.bytenr.into(),
        total_bytes: plan.bytes().into(),
        bytes_used: (used as u64 * u64::from(options.node_size)).into(),
        root_dir_objectid: object::ROOT_TREE_DIR.into(),
        num_devices: (plan.devices.len() as u64).into(),
        sectorsize: (SECTOR as u32).into(),
        nodesize: options.node_size.into(),
        leafsize: options.node_size.into(),
        stripesize: (SECTOR as u32).into(),
        sys_chunk_array_size: (array.len() as u32).into(),
        chunk_root_generation: GENERATION.into(),
        compat_ro_flags: ro_compat.bits().into(),
        incompat_flags: incompat.bits().into(),
        csum_type: options.checksum.to_disk().into(),
        root_level: root.level,
        chunk_root_level: chunk_root.level,
        dev_item: items::device_item(plan, options, device),
        ..RawSuperblock::new_zeroed()
    };
    raw.label[..options.label.len()].copy_from_slice(&options.label);
    let mut bytes = raw.as_bytes().to_vec();
    debug_assert!(bytes.len() == SYS_CHUNK_ARRAY);
    bytes.extend(array);
    bytes.resize(SUPERBLOCK_BYTES, 0);
    bytes
}
