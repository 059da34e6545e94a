//! The structures as stored. Field names are those of "XFS Algorithms & Data Structures"; the end of the file
//! asserts all sizes and the offsets of the fields that are checked.
//!
//! Numbers are big-endian, but checksums are little-endian. The items in the log have the byte order of the
//! machine that wrote them; only little-endian logs are read.

#![allow(missing_docs)] // the names are the format's

use ivers_block::on_disk;
use std::mem::{offset_of, size_of};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::little_endian as le;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

on_disk! {
    /// The superblock at the start of each allocation group. The first one counts.
    RawSuperblock {
        sb_magicnum: U32,
        sb_blocksize: U32,
        sb_dblocks: U64,
        sb_rblocks: U64,
        sb_rextents: U64,
        sb_uuid: [u8; 16],
        sb_logstart: U64,
        sb_rootino: U64,
        sb_rbmino: U64,
        sb_rsumino: U64,
        sb_rextsize: U32,
        sb_agblocks: U32,
        sb_agcount: U32,
        sb_rbmblocks: U32,
        sb_logblocks: U32,
        sb_versionnum: U16,
        sb_sectsize: U16,
        sb_inodesize: U16,
        sb_inopblock: U16,
        sb_fname: [u8; 12],
        sb_blocklog: u8,
        sb_sectlog: u8,
        sb_inodelog: u8,
        sb_inopblog: u8,
        sb_agblklog: u8,
        sb_rextslog: u8,
        sb_inprogress: u8,
        sb_imax_pct: u8,
        sb_icount: U64,
        sb_ifree: U64,
        sb_fdblocks: U64,
        sb_frextents: U64,
        sb_uquotino: U64,
        sb_gquotino: U64,
        sb_qflags: U16,
        sb_flags: u8,
        sb_shared_vn: u8,
        sb_inoalignmt: U32,
        sb_unit: U32,
        sb_width: U32,
        sb_dirblklog: u8,
        sb_logsectlog: u8,
        sb_logsectsize: U16,
        sb_logsunit: U32,
        sb_features2: U32,
        sb_bad_features2: U32,
        sb_features_compat: U32,
        sb_features_ro_compat: U32,
        sb_features_incompat: U32,
        sb_features_log_incompat: U32,
        sb_crc: le::U32,
        sb_spino_align: U32,
        sb_pquotino: U64,
        sb_lsn: U64,
        sb_meta_uuid: [u8; 16],
    }

    /// The head of an allocation group's free space.
    RawAgf {
        agf_magicnum: U32,
        agf_versionnum: U32,
        agf_seqno: U32,
        agf_length: U32,
        agf_roots: [U32; 3],
        agf_levels: [U32; 3],
        agf_flfirst: U32,
        agf_fllast: U32,
        agf_flcount: U32,
        agf_freeblks: U32,
        agf_longest: U32,
        agf_btreeblks: U32,
        agf_uuid: [u8; 16],
        agf_rmap_blocks: U32,
        agf_refcount_blocks: U32,
        agf_refcount_root: U32,
        agf_refcount_level: U32,
        agf_spare64: [U64; 14],
        agf_lsn: U64,
        agf_crc: le::U32,
        agf_spare2: U32,
    }

    /// The head of an allocation group's inodes.
    RawAgi {
        agi_magicnum: U32,
        agi_versionnum: U32,
        agi_seqno: U32,
        agi_length: U32,
        agi_count: U32,
        agi_root: U32,
        agi_level: U32,
        agi_freecount: U32,
        agi_newino: U32,
        agi_dirino: U32,
        agi_unlinked: [U32; 64],
        agi_uuid: [u8; 16],
        agi_crc: le::U32,
        agi_pad32: U32,
        agi_lsn: U64,
        agi_free_root: U32,
        agi_free_level: U32,
        agi_iblocks: U32,
        agi_fblocks: U32,
    }

    /// The head of the free list of an allocation group, in version 5.
    RawAgfl {
        agfl_magicnum: U32,
        agfl_seqno: U32,
        agfl_uuid: [u8; 16],
        agfl_lsn: U64,
        agfl_crc: le::U32,
    }

    /// The head of a B-tree block with pointers of 32 bits. Version 4 ends after `bb_rightsib`.
    RawShortBlock {
        bb_magic: U32,
        bb_level: U16,
        bb_numrecs: U16,
        bb_leftsib: U32,
        bb_rightsib: U32,
        bb_blkno: U64,
        bb_lsn: U64,
        bb_uuid: [u8; 16],
        bb_owner: U32,
        bb_crc: le::U32,
    }

    /// The head of a B-tree block with pointers of 64 bits. Version 4 ends after `bb_rightsib`.
    RawLongBlock {
        bb_magic: U32,
        bb_level: U16,
        bb_numrecs: U16,
        bb_leftsib: U64,
        bb_rightsib: U64,
        bb_blkno: U64,
        bb_lsn: U64,
        bb_uuid: [u8; 16],
        bb_owner: U64,
        bb_crc: le::U32,
        bb_pad: U32,
    }

    /// An extent: flag, 54 bits of file block, 52 bits of filesystem block, 21 bits of length.
    RawBmbtRec {
        l0: U64,
        l1: U64,
    }

    /// The root of an extent B-tree in an inode.
    RawBmdrBlock {
        bb_level: U16,
        bb_numrecs: U16,
    }

    /// The core of an inode. Versions 1 and 2 end after `di_next_unlinked`. `di_pad` and `di_flushiter` are
    /// `di_big_nextents` with large extent counters, where `di_nextents` is `di_big_anextents`.
    RawDinode {
        di_magic: U16,
        di_mode: U16,
        di_version: u8,
        di_format: u8,
        di_onlink: U16,
        di_uid: U32,
        di_gid: U32,
        di_nlink: U32,
        di_projid: U16,
        di_projid_hi: U16,
        di_pad: [u8; 6],
        di_flushiter: U16,
        di_atime: U64,
        di_mtime: U64,
        di_ctime: U64,
        di_size: U64,
        di_nblocks: U64,
        di_extsize: U32,
        di_nextents: U32,
        di_anextents: U16,
        di_forkoff: u8,
        di_aformat: u8,
        di_dmevmask: U32,
        di_dmstate: U16,
        di_flags: U16,
        di_gen: U32,
        di_next_unlinked: U32,
        di_crc: le::U32,
        di_changecount: U64,
        di_lsn: U64,
        di_flags2: U64,
        di_cowextsize: U32,
        di_pad2: [u8; 12],
        di_crtime: U64,
        di_ino: U64,
        di_uuid: [u8; 16],
    }

    /// The head of a directory's data block, in version 5. Version 4 has the magic and `bestfree`.
    RawDirDataHeader {
        magic: U32,
        crc: le::U32,
        blkno: U64,
        lsn: U64,
        uuid: [u8; 16],
        owner: U64,
        bestfree: [[U16; 2]; 3],
        pad: U32,
    }

    /// The end of a directory that is one block.
    RawDirBlockTail {
        count: U32,
        stale: U32,
    }

    /// A hash of a name, and where its entry is: an offset in the directory's data, in units of 8 bytes.
    RawDirLeafEntry {
        hashval: U32,
        address: U32,
    }

    /// The head of the blocks that are found by hash, in version 5. Version 4 ends after `pad`.
    RawDaHeader {
        forw: U32,
        back: U32,
        magic: U16,
        pad: U16,
        crc: le::U32,
        blkno: U64,
        lsn: U64,
        uuid: [u8; 16],
        owner: U64,
    }

    /// An entry of a node of hashes: the largest hash below `before`.
    RawDaNodeEntry {
        hashval: U32,
        before: U32,
    }

    /// An entry of a block of attributes.
    RawAttrLeafEntry {
        hashval: U32,
        nameidx: U16,
        flags: u8,
        pad2: u8,
    }

    /// The head of each block of a remote attribute value, and of each extent of a remote link target.
    RawRemoteHeader {
        rm_magic: U32,
        rm_offset: U32,
        rm_bytes: U32,
        rm_crc: le::U32,
        rm_uuid: [u8; 16],
        rm_owner: U64,
        rm_blkno: U64,
        rm_lsn: U64,
    }

    /// The head of a log record.
    RawLogRecord {
        h_magicno: U32,
        h_cycle: U32,
        h_version: U32,
        h_len: U32,
        h_lsn: U64,
        h_tail_lsn: U64,
        h_crc: le::U32,
        h_prev_block: U32,
        h_num_logops: U32,
        h_cycle_data: [U32; 64],
        h_fmt: U32,
        h_fs_uuid: [u8; 16],
        h_size: U32,
        h_pad: U32,
    }

    /// An operation in a log record.
    RawLogOp {
        oh_tid: U32,
        oh_len: U32,
        oh_clientid: u8,
        oh_flags: u8,
        oh_res2: U16,
    }

    /// The log item of a buffer; `blf_map_size` words of a bitmap of chunks of 128 bytes follow.
    RawBufItem {
        blf_type: le::U16,
        blf_size: le::U16,
        blf_flags: le::U16,
        blf_len: le::U16,
        blf_blkno: le::U64,
        blf_map_size: le::U32,
    }

    /// The log item of an inode.
    RawInodeItem {
        ilf_type: le::U16,
        ilf_size: le::U16,
        ilf_fields: le::U32,
        ilf_asize: le::U16,
        ilf_dsize: le::U16,
        ilf_pad: le::U32,
        ilf_ino: le::U64,
        ilf_rdev: le::U32,
        ilf_unused: [u8; 12],
        ilf_blkno: le::U64,
        ilf_len: le::U32,
        ilf_boffset: le::U32,
    }

    /// The log item of new inodes.
    RawIcreateItem {
        icl_type: le::U16,
        icl_size: le::U16,
        icl_ag: U32,
        icl_agbno: U32,
        icl_count: U32,
        icl_isize: U32,
        icl_length: U32,
        icl_gen: U32,
    }

    /// The head of an intent, and of a record that it is done.
    RawIntentItem {
        kind: le::U16,
        size: le::U16,
        count: le::U32,
        id: le::U64,
    }
}

impl RawAgf {
    /// Free blocks of the group: those of the free list and of the B-trees of free space count as free.
    pub(crate) fn all_free(&self) -> u64 {
        let counts = [self.agf_freeblks, self.agf_flcount, self.agf_btreeblks];
        counts.iter().map(|count| u64::from(count.get())).sum()
    }
}

/// Offset of the parts that version 4 lacks.
pub const V2_INODE_BYTES: usize = offset_of!(RawDinode, di_crc);

macro_rules! sizes {
    ($($name:ident = $size:expr;)*) => { $(const _: () = assert!(size_of::<$name>() == $size);)* };
}

macro_rules! offsets {
    ($($name:ident.$field:ident = $offset:expr;)*) => {
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    };
}

sizes! {
    RawSuperblock = 264;
    RawAgf = 224;
    RawAgi = 344;
    RawAgfl = 36;
    RawShortBlock = 56;
    RawLongBlock = 72;
    RawBmbtRec = 16;
    RawBmdrBlock = 4;
    RawDinode = 176;
    RawDirDataHeader = 64;
    RawDirBlockTail = 8;
    RawDirLeafEntry = 8;
    RawDaHeader = 56;
    RawDaNodeEntry = 8;
    RawAttrLeafEntry = 8;
    RawRemoteHeader = 56;
    RawLogRecord = 328;
    RawLogOp = 12;
    RawBufItem = 20;
    RawInodeItem = 56;
    RawIcreateItem = 28;
    RawIntentItem = 16;
}

offsets! {
    RawSuperblock.sb_versionnum = 100;
    RawSuperblock.sb_icount = 128;
    RawSuperblock.sb_features2 = 200;
    RawSuperblock.sb_crc = 224;
    RawSuperblock.sb_lsn = 240;
    RawSuperblock.sb_meta_uuid = 248;
    RawAgf.agf_uuid = 64;
    RawAgf.agf_lsn = 208;
    RawAgf.agf_crc = 216;
    RawAgi.agi_unlinked = 40;
    RawAgi.agi_uuid = 296;
    RawAgi.agi_crc = 312;
    RawAgi.agi_lsn = 320;
    RawAgfl.agfl_crc = 32;
    RawShortBlock.bb_blkno = 16;
    RawShortBlock.bb_lsn = 24;
    RawShortBlock.bb_owner = 48;
    RawShortBlock.bb_crc = 52;
    RawLongBlock.bb_blkno = 24;
    RawLongBlock.bb_lsn = 32;
    RawLongBlock.bb_owner = 56;
    RawLongBlock.bb_crc = 64;
    RawDinode.di_atime = 32;
    RawDinode.di_size = 56;
    RawDinode.di_nextents = 76;
    RawDinode.di_forkoff = 82;
    RawDinode.di_gen = 92;
    RawDinode.di_next_unlinked = 96;
    RawDinode.di_crc = 100;
    RawDinode.di_changecount = 104;
    RawDinode.di_lsn = 112;
    RawDinode.di_flags2 = 120;
    RawDinode.di_crtime = 144;
    RawDinode.di_ino = 152;
    RawDinode.di_uuid = 160;
    RawDirDataHeader.owner = 40;
    RawDirDataHeader.bestfree = 48;
    RawDaHeader.crc = 12;
    RawDaHeader.owner = 48;
    RawRemoteHeader.rm_crc = 12;
    RawRemoteHeader.rm_owner = 32;
    RawRemoteHeader.rm_blkno = 40;
    RawRemoteHeader.rm_lsn = 48;
    RawLogRecord.h_crc = 32;
    RawLogRecord.h_cycle_data = 44;
    RawLogRecord.h_fmt = 300;
    RawLogRecord.h_size = 320;
    RawInodeItem.ilf_blkno = 40;
}
