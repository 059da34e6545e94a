//! Keys: the order of items in a tree, and the numbers that they are made of.

use super::raw::RawKey;

/// Where an item stands in its tree. Keys are ordered by object, type and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub objectid: u64,
    pub kind: u8,
    pub offset: u64,
}

impl Key {
    pub(crate) const fn new(objectid: u64, kind: u8, offset: u64) -> Self {
        Self { objectid, kind, offset }
    }
}

/// The key of the item that marks an inode, or a tree in the root tree, as an orphan.
pub(crate) const fn orphan_key(objectid: u64) -> Key {
    Key::new(object::ORPHANS, kind::ORPHAN_ITEM, objectid)
}

impl From<&RawKey> for Key {
    fn from(raw: &RawKey) -> Self {
        Self::new(raw.objectid.get(), raw.kind, raw.offset.get())
    }
}

impl From<Key> for RawKey {
    fn from(key: Key) -> Self {
        Self { objectid: key.objectid.into(), kind: key.kind, offset: key.offset.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.kind, self.offset)
    }
}

/// Types of items.
pub(crate) mod kind {
    pub(crate) const INODE_ITEM: u8 = 1;
    pub(crate) const INODE_REF: u8 = 12;
    pub(crate) const INODE_EXTREF: u8 = 13;
    pub(crate) const XATTR_ITEM: u8 = 24;
    /// Descriptors and hashes of fs-verity.
    pub(crate) const VERITY_DESC: u8 = 36;
    pub(crate) const VERITY_MERKLE: u8 = 37;
    pub(crate) const ORPHAN_ITEM: u8 = 48;
    /// A range of indexes of a directory. The log tree has all names with these indexes.
    pub(crate) const DIR_LOG_INDEX: u8 = 72;
    pub(crate) const DIR_ITEM: u8 = 84;
    pub(crate) const DIR_INDEX: u8 = 96;
    pub(crate) const EXTENT_DATA: u8 = 108;
    pub(crate) const EXTENT_CSUM: u8 = 128;
    pub(crate) const ROOT_ITEM: u8 = 132;
    pub(crate) const ROOT_BACKREF: u8 = 144;
    pub(crate) const ROOT_REF: u8 = 156;
    pub(crate) const EXTENT_ITEM: u8 = 168;
    pub(crate) const METADATA_ITEM: u8 = 169;
    pub(crate) const TREE_BLOCK_REF: u8 = 176;
    pub(crate) const EXTENT_DATA_REF: u8 = 178;
    pub(crate) const SHARED_BLOCK_REF: u8 = 182;
    pub(crate) const SHARED_DATA_REF: u8 = 184;
    pub(crate) const BLOCK_GROUP_ITEM: u8 = 192;
    pub(crate) const FREE_SPACE_INFO: u8 = 198;
    pub(crate) const FREE_SPACE_EXTENT: u8 = 199;
    pub(crate) const FREE_SPACE_BITMAP: u8 = 200;
    pub(crate) const DEV_EXTENT: u8 = 204;
    pub(crate) const DEV_ITEM: u8 = 216;
    pub(crate) const CHUNK_ITEM: u8 = 228;
    /// Where a balance that was interrupted has its state.
    pub(crate) const TEMPORARY_ITEM: u8 = 248;
    /// Counts of errors of a device.
    pub(crate) const DEV_STATS: u8 = 249;
    pub(crate) const DEV_REPLACE: u8 = 250;
    /// The subvolume with a UUID.
    pub(crate) const UUID_KEY_SUBVOL: u8 = 251;
}

/// Numbers of trees and of objects in them.
pub(crate) mod object {
    pub(crate) const ROOT_TREE: u64 = 1;
    pub(crate) const EXTENT_TREE: u64 = 2;
    pub(crate) const CHUNK_TREE: u64 = 3;
    pub(crate) const DEV_TREE: u64 = 4;
    /// The top-level subvolume.
    pub(crate) const FS_TREE: u64 = 5;
    /// The directory in the root tree that names the default subvolume.
    pub(crate) const ROOT_TREE_DIR: u64 = 6;
    pub(crate) const CSUM_TREE: u64 = 7;
    pub(crate) const QUOTA_TREE: u64 = 8;
    pub(crate) const UUID_TREE: u64 = 9;
    pub(crate) const FREE_SPACE_TREE: u64 = 10;
    pub(crate) const BLOCK_GROUP_TREE: u64 = 11;
    /// Devices, in the chunk tree.
    pub(crate) const DEV_ITEMS: u64 = 1;
    /// Chunks, in the chunk tree.
    pub(crate) const FIRST_CHUNK_TREE: u64 = 256;
    /// The first subvolume beside the top-level one; in every subvolume, its root directory.
    pub(crate) const FIRST_FREE: u64 = 256;
    /// The last number of a subvolume or an inode.
    pub(crate) const LAST_FREE: u64 = -256i64 as u64;
    /// A balance, in the root tree.
    pub(crate) const BALANCE: u64 = -4i64 as u64;
    /// Inodes without a name, in their subvolume.
    pub(crate) const ORPHANS: u64 = -5i64 as u64;
    /// The log tree, the logs in it, and their items for roots.
    pub(crate) const TREE_LOG: u64 = -6i64 as u64;
    /// Trees of a relocation that runs.
    pub(crate) const RELOCATION: u64 = -8i64 as u64;
    /// Data that a balance moves.
    pub(crate) const DATA_RELOCATION: u64 = -9i64 as u64;
    /// Checksums of data, in their tree.
    pub(crate) const EXTENT_CSUM: u64 = -10i64 as u64;
}

/// Whether a tree is a subvolume.
pub(crate) fn is_subvolume(tree: u64) -> bool {
    tree == object::FS_TREE || (object::FIRST_FREE..=object::LAST_FREE).contains(&tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_by_object_type_and_offset() {
        let key = Key::new(256, kind::DIR_ITEM, 7);
        assert!(key < Key::new(256, kind::DIR_INDEX, 0) && key < Key::new(256, kind::DIR_ITEM, 8));
        assert!(Key::new(257, 0, 0) > key);
    }

    #[test]
    fn trees_of_the_format_are_no_subvolumes() {
        assert!([5, 256, 1 << 40, object::LAST_FREE].into_iter().all(is_subvolume));
        assert!(![1, 4, 6, 7, 255, u64::MAX - 8].into_iter().any(is_subvolume));
    }
}
