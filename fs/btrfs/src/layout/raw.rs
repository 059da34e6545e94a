//! The structures as stored. Field names are those of the page "On-disk Format"; the end of the file asserts
//! all sizes and the offsets of the fields that matter. All numbers are little-endian.

#![allow(missing_docs)] // the names are the format's

use ivers_block::on_disk;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

on_disk! {
    /// Where an item stands in its tree.
    RawKey {
        objectid: U64,
        kind: u8,
        offset: U64,
    }

    /// A device of the filesystem, in the superblock of that device and in the chunk tree.
    RawDevItem {
        devid: U64,
        total_bytes: U64,
        bytes_used: U64,
        io_align: U32,
        io_width: U32,
        sector_size: U32,
        kind: U64,
        generation: U64,
        start_offset: U64,
        dev_group: U32,
        seek_speed: u8,
        bandwidth: u8,
        uuid: [u8; 16],
        fsid: [u8; 16],
    }

    /// The superblock, without the array of system chunks at its end.
    RawSuperblock {
        csum: [u8; 32],
        fsid: [u8; 16],
        bytenr: U64,
        flags: U64,
        magic: [u8; 8],
        generation: U64,
        root: U64,
        chunk_root: U64,
        log_root: U64,
        log_root_transid: U64,
        total_bytes: U64,
        bytes_used: U64,
        root_dir_objectid: U64,
        num_devices: U64,
        sectorsize: U32,
        nodesize: U32,
        leafsize: U32,
        stripesize: U32,
        sys_chunk_array_size: U32,
        chunk_root_generation: U64,
        compat_flags: U64,
        compat_ro_flags: U64,
        incompat_flags: U64,
        csum_type: U16,
        root_level: u8,
        chunk_root_level: u8,
        log_root_level: u8,
        dev_item: RawDevItem,
        label: [u8; 256],
        cache_generation: U64,
        uuid_tree_generation: U64,
        metadata_uuid: [u8; 16],
        nr_global_roots: U64,
        reserved: [U64; 27],
    }

    /// The head of a block of a tree.
    RawHeader {
        csum: [u8; 32],
        fsid: [u8; 16],
        bytenr: U64,
        flags: U64,
        chunk_tree_uuid: [u8; 16],
        generation: U64,
        owner: U64,
        nritems: U32,
        level: u8,
    }

    /// A pointer of a node to a block one level below.
    RawKeyPtr {
        key: RawKey,
        blockptr: U64,
        generation: U64,
    }

    /// An item of a leaf: its data is `offset` bytes after the header.
    RawItem {
        key: RawKey,
        offset: U32,
        size: U32,
    }

    /// A range of logical addresses, without its stripes.
    RawChunk {
        length: U64,
        owner: U64,
        stripe_len: U64,
        kind: U64,
        io_align: U32,
        io_width: U32,
        sector_size: U32,
        num_stripes: U16,
        sub_stripes: U16,
    }

    /// Where a part of a chunk lies on a device.
    RawStripe {
        devid: U64,
        offset: U64,
        dev_uuid: [u8; 16],
    }

    RawTime {
        sec: U64,
        nsec: U32,
    }

    RawInodeItem {
        generation: U64,
        transid: U64,
        size: U64,
        nbytes: U64,
        block_group: U64,
        nlink: U32,
        uid: U32,
        gid: U32,
        mode: U32,
        rdev: U64,
        flags: U64,
        sequence: U64,
        reserved: [U64; 4],
        atime: RawTime,
        ctime: RawTime,
        mtime: RawTime,
        otime: RawTime,
    }

    /// The root of a tree, as far as every version of the format has it.
    RawRootItem {
        inode: RawInodeItem,
        generation: U64,
        root_dirid: U64,
        bytenr: U64,
        byte_limit: U64,
        bytes_used: U64,
        last_snapshot: U64,
        flags: U64,
        refs: U32,
        drop_progress: RawKey,
        drop_level: u8,
        level: u8,
    }

    /// The name of a subvolume in its parent. The name follows.
    RawRootRef {
        dirid: U64,
        sequence: U64,
        name_len: U16,
    }

    /// A name of an inode. The name follows.
    RawInodeRef {
        index: U64,
        name_len: U16,
    }

    /// A name of an inode that has too many for one item. The name follows.
    RawInodeExtref {
        parent_objectid: U64,
        index: U64,
        name_len: U16,
    }

    /// An entry of a directory, or an extended attribute. Name and value follow.
    RawDirItem {
        location: RawKey,
        transid: U64,
        data_len: U16,
        name_len: U16,
        kind: u8,
    }

    /// The head of a file extent. Inline data follows, or `RawFileExtentPlace`.
    RawFileExtent {
        generation: U64,
        ram_bytes: U64,
        compression: u8,
        encryption: u8,
        other_encoding: U16,
        kind: u8,
    }

    /// Where the data of a file extent is.
    RawFileExtentPlace {
        disk_bytenr: U64,
        disk_num_bytes: U64,
        offset: U64,
        num_bytes: U64,
    }
}

on_disk! {
    /// The end of a root item, which follows `RawRootItem`.
    RawRootTail {
        generation_v2: U64,
        uuid: [u8; 16],
        parent_uuid: [u8; 16],
        received_uuid: [u8; 16],
        ctransid: U64,
        otransid: U64,
        stransid: U64,
        rtransid: U64,
        ctime: RawTime,
        otime: RawTime,
        stime: RawTime,
        rtime: RawTime,
        reserved: [U64; 8],
    }

    /// An extent that is in use, or a block of a tree. References follow.
    RawExtentItem {
        refs: U64,
        generation: U64,
        flags: U64,
    }

    /// What the item of a block says of it, without the feature skinny-metadata.
    RawTreeBlockInfo {
        key: RawKey,
        level: u8,
    }

    /// A file of a tree that refers to an extent of data.
    RawExtentDataRef {
        root: U64,
        objectid: U64,
        offset: U64,
        count: U32,
    }

    /// A range of addresses from which extents are allocated.
    RawBlockGroupItem {
        used: U64,
        chunk_objectid: U64,
        flags: U64,
    }

    /// How the free space of a block group is stored.
    RawFreeSpaceInfo {
        extent_count: U32,
        flags: U32,
    }

    /// A part of a device that a chunk has.
    RawDevExtent {
        chunk_tree: U64,
        chunk_objectid: U64,
        chunk_offset: U64,
        length: U64,
        chunk_tree_uuid: [u8; 16],
    }
}

macro_rules! sizes {
    ($($name:ident = $size:expr;)*) => { $(const _: () = assert!(size_of::<$name>() == $size);)* };
}

macro_rules! offsets {
    ($($name:ident.$field:ident = $offset:expr;)*) => {
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    };
}

sizes! {
    RawKey = 17;
    RawDevItem = 98;
    RawSuperblock = 811;
    RawHeader = 101;
    RawKeyPtr = 33;
    RawItem = 25;
    RawChunk = 48;
    RawStripe = 32;
    RawTime = 12;
    RawInodeItem = 160;
    RawRootItem = 239;
    RawRootRef = 18;
    RawInodeRef = 10;
    RawInodeExtref = 18;
    RawDirItem = 30;
    RawFileExtent = 21;
    RawFileExtentPlace = 32;
    RawRootTail = 200;
    RawExtentItem = 24;
    RawTreeBlockInfo = 18;
    RawExtentDataRef = 28;
    RawBlockGroupItem = 24;
    RawFreeSpaceInfo = 8;
    RawDevExtent = 48;
}

offsets! {
    RawSuperblock.bytenr = 0x30;
    RawSuperblock.magic = 0x40;
    RawSuperblock.generation = 0x48;
    RawSuperblock.log_root = 0x60;
    RawSuperblock.sectorsize = 0x90;
    RawSuperblock.sys_chunk_array_size = 0xa0;
    RawSuperblock.incompat_flags = 0xbc;
    RawSuperblock.csum_type = 0xc4;
    RawSuperblock.dev_item = 0xc9;
    RawSuperblock.label = 0x12b;
    RawSuperblock.metadata_uuid = 0x23b;
    RawHeader.bytenr = 0x30;
    RawHeader.generation = 0x50;
    RawHeader.nritems = 0x60;
    RawHeader.level = 0x64;
    RawInodeItem.nlink = 40;
    RawInodeItem.mode = 52;
    RawInodeItem.sequence = 72;
    RawInodeItem.atime = 112;
    RawRootItem.bytenr = 176;
    RawRootItem.refs = 216;
    RawRootItem.level = 238;
    RawDirItem.kind = 29;
    RawFileExtent.kind = 20;
}
