//! The items of a new filesystem.

use super::geometry::{NewChunk, Plan};
use super::options::MkfsOptions;
use super::trees::NewTree;
use crate::layout::checksum::name_hash;
use crate::layout::extent_item::{ExtentItem, Ref};
use crate::layout::items::{InodeItem, encode_entry, encode_name};
use crate::layout::key::{Key, kind, object};
use crate::layout::raw::*;
use crate::layout::superblock::{SECTOR, STRIPE_LEN};
use ivers_vfs::FileType;
use sha2::{Digest, Sha256};
use zerocopy::{FromZeros, IntoBytes};

/// The generation of everything: there is one transaction.
pub(super) const GENERATION: u64 = 1;
const DIRECTORY_PERM: u32 = 0o755;
/// The type of an entry that leads to a directory.
const FT_DIR: u8 = 2;
const IO_BYTES: u32 = 4096;

/// Computes a UUID from the UUID of the filesystem and from its purpose.
pub(super) fn derived_uuid(options: &MkfsOptions, what: &str) -> [u8; 16] {
    let sum = Sha256::new().chain_update(options.uuid).chain_update(what).finalize();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&sum[..16]);
    // The version and variant of a random UUID (RFC 9562).
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

pub(super) fn device_uuid(options: &MkfsOptions, device: usize) -> [u8; 16] {
    derived_uuid(options, &format!("device {device}"))
}

pub(super) fn chunk_uuid(options: &MkfsOptions) -> [u8; 16] {
    derived_uuid(options, "chunks")
}

pub(super) fn device_item(plan: &Plan, options: &MkfsOptions, device: usize) -> RawDevItem {
    RawDevItem {
        devid: (device as u64 + 1).into(),
        total_bytes: plan.devices[device].into(),
        bytes_used: plan.used(device).into(),
        io_align: IO_BYTES.into(),
        io_width: IO_BYTES.into(),
        sector_size: (SECTOR as u32).into(),
        uuid: device_uuid(options, device),
        fsid: options.uuid,
        ..RawDevItem::new_zeroed()
    }
}

pub(super) fn chunk_key(chunk: &NewChunk) -> Key {
    Key::new(object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, chunk.start)
}

pub(super) fn chunk_item(chunk: &NewChunk, options: &MkfsOptions) -> Vec<u8> {
    let raw = RawChunk {
        length: chunk.length.into(),
        owner: object::EXTENT_TREE.into(),
        stripe_len: STRIPE_LEN.into(),
        kind: chunk.flags.into(),
        io_align: (STRIPE_LEN as u32).into(),
        io_width: (STRIPE_LEN as u32).into(),
        sector_size: (SECTOR as u32).into(),
        num_stripes: (chunk.parts.len() as u16).into(),
        sub_stripes: 1.into(),
    };
    let mut bytes = raw.as_bytes().to_vec();
    for part in &chunk.parts {
        let stripe = RawStripe {
            devid: (part.device as u64 + 1).into(),
            offset: part.offset.into(),
            dev_uuid: device_uuid(options, part.device),
        };
        bytes.extend(stripe.as_bytes());
    }
    bytes
}

pub(super) fn chunk_tree(plan: &Plan, options: &MkfsOptions) -> NewTree {
    let device = |device: usize| {
        let key = Key::new(object::DEV_ITEMS, kind::DEV_ITEM, device as u64 + 1);
        (key, device_item(plan, options, device).as_bytes().to_vec())
    };
    let devices = (0..plan.devices.len()).map(device);
    let chunks = plan.chunks.iter().map(|chunk| (chunk_key(chunk), chunk_item(chunk, options)));
    NewTree::new(object::CHUNK_TREE, devices.chain(chunks).collect())
}

pub(super) fn device_tree(plan: &Plan, options: &MkfsOptions) -> NewTree {
    let mut items = Vec::new();
    for chunk in &plan.chunks {
        let raw = RawDevExtent {
            chunk_tree: object::CHUNK_TREE.into(),
            chunk_objectid: object::FIRST_CHUNK_TREE.into(),
            chunk_offset: chunk.start.into(),
            length: chunk.length.into(),
            chunk_tree_uuid: chunk_uuid(options),
        };
        items.extend(chunk.parts.iter().map(|part| {
            let key = Key::new(part.device as u64 + 1, kind::DEV_EXTENT, part.offset);
            (key, raw.as_bytes().to_vec())
        }));
    }
    items.sort_by_key(|(key, _)| *key);
    NewTree::new(object::DEV_TREE, items)
}

fn time(options: &MkfsOptions) -> RawTime {
    RawTime { sec: u64::from(options.timestamp).into(), nsec: 0.into() }
}

/// Returns the inode of an empty directory.
fn directory(options: &MkfsOptions, owner: (u32, u32)) -> InodeItem {
    let mut item = InodeItem::empty(FileType::Directory);
    let raw = item.raw_mut();
    raw.generation = GENERATION.into();
    raw.transid = GENERATION.into();
    raw.mode = (FileType::Directory.mode_bits() | DIRECTORY_PERM).into();
    (raw.uid, raw.gid) = (owner.0.into(), owner.1.into());
    (raw.atime, raw.ctime, raw.mtime, raw.otime) =
        (time(options), time(options), time(options), time(options));
    item
}

/// Returns a tree of files with an empty root directory.
pub(super) fn file_tree(id: u64, options: &MkfsOptions) -> NewTree {
    let owner = if id == object::FS_TREE { options.root_owner } else { (0, 0) };
    let root = object::FIRST_FREE;
    let items = vec![
        (Key::new(root, kind::INODE_ITEM, 0), directory(options, owner).encode().to_vec()),
        (Key::new(root, kind::INODE_REF, root), encode_name(0, b"..")),
    ];
    NewTree::new(id, items)
}

/// Returns the UUID tree, which has the UUID of the top-level subvolume.
pub(super) fn uuid_tree(options: &MkfsOptions) -> NewTree {
    let uuid = u128::from_le_bytes(derived_uuid(options, "subvolume"));
    let key = Key::new(uuid as u64, kind::UUID_KEY_SUBVOL, (uuid >> 64) as u64);
    NewTree::new(object::UUID_TREE, vec![(key, object::FS_TREE.to_le_bytes().to_vec())])
}

/// Returns the extent tree. `blocks` are blocks of trees, with their level and tree.
pub(super) fn extent_tree(groups: &[(u64, u64, u64, u64)], blocks: &[(u64, u8, u64)]) -> NewTree {
    let mut items = Vec::new();
    for (start, length, flags, used) in groups {
        let raw = RawBlockGroupItem {
            used: (*used).into(),
            chunk_objectid: object::FIRST_CHUNK_TREE.into(),
            flags: (*flags).into(),
        };
        items.push((Key::new(*start, kind::BLOCK_GROUP_ITEM, *length), raw.as_bytes().to_vec()));
    }
    for (address, level, tree) in blocks {
        let mut item = ExtentItem::of_block(GENERATION, None);
        item.refs = 1;
        item.inline.push((Ref::TreeBlock { root: *tree }, 1));
        items.push((Key::new(*address, kind::METADATA_ITEM, (*level).into()), item.encode()));
    }
    items.sort_by_key(|(key, _)| *key);
    NewTree::new(object::EXTENT_TREE, items)
}

/// Returns the free-space tree. The free space of a group follows its used bytes.
pub(super) fn free_space_tree(groups: &[(u64, u64, u64, u64)]) -> NewTree {
    let mut items = Vec::new();
    for (start, length, _, used) in groups {
        let raw = RawFreeSpaceInfo { extent_count: 1.into(), flags: 0.into() };
        items.push((Key::new(*start, kind::FREE_SPACE_INFO, *length), raw.as_bytes().to_vec()));
        items.push((Key::new(start + used, kind::FREE_SPACE_EXTENT, length - used), Vec::new()));
    }
    NewTree::new(object::FREE_SPACE_TREE, items)
}

/// Returns the root item of a tree. Its size does not depend on the address of the tree.
pub(super) fn root_item(tree: &NewTree, options: &MkfsOptions) -> Vec<u8> {
    let mut raw = RawRootItem::new_zeroed();
    let mut tail = RawRootTail::new_zeroed();
    raw.inode.generation = GENERATION.into();
    raw.inode.size = 3.into();
    raw.inode.nlink = 1.into();
    raw.inode.nbytes = u64::from(options.node_size).into();
    raw.inode.mode = (FileType::Directory.mode_bits() | DIRECTORY_PERM).into();
    raw.generation = GENERATION.into();
    raw.refs = 1.into();
    raw.bytes_used = (tree.blocks.len() as u64 * u64::from(options.node_size)).into();
    if !tree.blocks.is_empty() {
        let root = tree.root(GENERATION);
        raw.bytenr = root.bytenr.into();
        raw.level = root.level;
    }
    tail.generation_v2 = GENERATION.into();
    if [object::FS_TREE, object::DATA_RELOCATION].contains(&tree.id) {
        raw.root_dirid = object::FIRST_FREE.into();
    }
    if tree.id == object::FS_TREE {
        tail.uuid = derived_uuid(options, "subvolume");
        (tail.ctime, tail.otime) = (time(options), time(options));
    }
    [raw.as_bytes(), tail.as_bytes()].concat()
}

/// Returns the root tree, with all other trees except the chunk tree, and the name of the default subvolume.
pub(super) fn root_tree(trees: &[NewTree], options: &MkfsOptions) -> NewTree {
    let dir = object::ROOT_TREE_DIR;
    let name = b"default";
    let mut items: Vec<_> = trees
        .iter()
        .filter(|tree| tree.id != object::CHUNK_TREE)
        .map(|tree| (Key::new(tree.id, kind::ROOT_ITEM, 0), root_item(tree, options)))
        .collect();
    let default = Key::new(object::FS_TREE, kind::ROOT_ITEM, u64::MAX);
    items.extend([
        (Key::new(object::FS_TREE, kind::INODE_REF, dir), encode_name(0, name)),
        (Key::new(dir, kind::INODE_ITEM, 0), directory(options, (0, 0)).encode().to_vec()),
        (Key::new(dir, kind::INODE_REF, dir), encode_name(0, b"..")),
        (Key::new(dir, kind::DIR_ITEM, name_hash(name)), encode_entry(default, 0, name, b"", FT_DIR)),
    ]);
    items.sort_by_key(|(key, _)| *key);
    NewTree::new(object::ROOT_TREE, items)
}
