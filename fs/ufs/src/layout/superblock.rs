//! The superblock: where it may be, its checks, and where structures are.

use super::bytes::{ByteOrder, Fields, FieldsMut};
use ivers_vfs::{Error, Result};
use std::fmt::{Display, Formatter};

/// Bytes of a device at which the superblock may be, in the order in which FreeBSD looks for it.
pub const PLACES: [u64; 4] = [64 << 10, 8 << 10, 0, 256 << 10];
/// Bytes of the largest superblock.
pub const SUPERBLOCK_MAX: u64 = 8192;
/// Bytes of a superblock up to its magic.
const SUPERBLOCK_BYTES: usize = 1376;
/// Bytes of the counts of a group in the summary area.
pub const SUMMARY_BYTES: u64 = 16;
/// Bytes of the descriptor of a group before its bitmaps.
pub const GROUP_HEADER_BYTES: usize = 168;
/// Longest label in bytes: a zero byte follows it.
pub const LABEL_MAX: usize = 31;
/// Direct pointers of an inode.
pub const DIRECT: u64 = 12;
/// The root directory.
pub const ROOT: u32 = 2;

pub(crate) const MAGIC_UFS1: u32 = 0x0001_1954;
pub(crate) const MAGIC_UFS2: u32 = 0x1954_0119;

/// Offsets of fields.
pub mod at {
    #![allow(missing_docs)] // the names are the format's
    pub const FS_SBLKNO: usize = 8;
    pub const FS_CBLKNO: usize = 12;
    pub const FS_IBLKNO: usize = 16;
    pub const FS_DBLKNO: usize = 20;
    pub const FS_OLD_CGOFFSET: usize = 24;
    pub const FS_OLD_CGMASK: usize = 28;
    pub const FS_OLD_TIME: usize = 32;
    pub const FS_OLD_SIZE: usize = 36;
    pub const FS_OLD_DSIZE: usize = 40;
    pub const FS_NCG: usize = 44;
    pub const FS_BSIZE: usize = 48;
    pub const FS_FSIZE: usize = 52;
    pub const FS_FRAG: usize = 56;
    pub const FS_MINFREE: usize = 60;
    pub const FS_OLD_RPS: usize = 68;
    pub const FS_BMASK: usize = 72;
    pub const FS_FMASK: usize = 76;
    pub const FS_BSHIFT: usize = 80;
    pub const FS_FSHIFT: usize = 84;
    pub const FS_MAXCONTIG: usize = 88;
    pub const FS_MAXBPG: usize = 92;
    pub const FS_FRAGSHIFT: usize = 96;
    pub const FS_FSBTODB: usize = 100;
    pub const FS_SBSIZE: usize = 104;
    pub const FS_NINDIR: usize = 116;
    pub const FS_INOPB: usize = 120;
    pub const FS_OLD_NSPF: usize = 124;
    pub const FS_OLD_NPSECT: usize = 132;
    pub const FS_OLD_INTERLEAVE: usize = 136;
    pub const FS_ID: usize = 144;
    pub const FS_OLD_CSADDR: usize = 152;
    pub const FS_CSSIZE: usize = 156;
    pub const FS_CGSIZE: usize = 160;
    pub const FS_OLD_NSECT: usize = 168;
    pub const FS_OLD_SPC: usize = 172;
    pub const FS_OLD_NCYL: usize = 176;
    pub const FS_OLD_CPG: usize = 180;
    pub const FS_IPG: usize = 184;
    pub const FS_FPG: usize = 188;
    pub const FS_OLD_CSTOTAL: usize = 192;
    pub const FS_CLEAN: usize = 209;
    pub const FS_OLD_FLAGS: usize = 211;
    pub const FS_FSMNT: usize = 212;
    pub const FS_VOLNAME: usize = 680;
    pub const FS_MAXBSIZE: usize = 860;
    pub const FS_SBLOCKLOC: usize = 1000;
    pub const FS_CSTOTAL: usize = 1008;
    pub const FS_TIME: usize = 1072;
    pub const FS_SIZE: usize = 1080;
    pub const FS_DSIZE: usize = 1088;
    pub const FS_CSADDR: usize = 1096;
    pub const FS_SNAPINUM: usize = 1116;
    pub const FS_AVGFILESIZE: usize = 1196;
    pub const FS_AVGFPDIR: usize = 1200;
    pub const FS_MTIME: usize = 1208;
    pub const FS_CKHASH: usize = 1304;
    pub const FS_METACKHASH: usize = 1308;
    pub const FS_FLAGS: usize = 1312;
    pub const FS_CONTIGSUMSIZE: usize = 1316;
    pub const FS_MAXSYMLINKLEN: usize = 1320;
    pub const FS_OLD_INODEFMT: usize = 1324;
    pub const FS_MAXFILESIZE: usize = 1328;
    pub const FS_QBMASK: usize = 1336;
    pub const FS_QFMASK: usize = 1344;
    pub const FS_OLD_POSTBLFORMAT: usize = 1356;
    pub const FS_OLD_NRPOS: usize = 1360;
    pub const FS_MAGIC: usize = 1372;
}

/// Bits of `fs_flags`.
pub mod flags {
    #![allow(missing_docs)] // the names are the format's
    pub const FS_UNCLEAN: u32 = 0x1;
    pub const FS_DOSOFTDEP: u32 = 0x2;
    pub const FS_NEEDSFSCK: u32 = 0x4;
    pub const FS_SUJ: u32 = 0x8;
    pub const FS_ACLS: u32 = 0x10;
    pub const FS_MULTILABEL: u32 = 0x20;
    pub const FS_GJOURNAL: u32 = 0x40;
    /// In `fs_old_flags`: `fs_flags` is in use.
    pub const FS_FLAGS_UPDATED: u32 = 0x80;
    pub const FS_NFS4ACLS: u32 = 0x100;
    pub const FS_METACKHASH: u32 = 0x200;
    pub const FS_TRIM: u32 = 0x400;
}

/// What `fs_fsmnt`, the directory on which the filesystem was mounted last, says while this driver writes.
pub const MOUNTED_HERE: &[u8] = b"ivers\0";

/// Bits of `fs_metackhash`: which structures have a check hash.
mod hashed {
    pub(super) const CK_SUPERBLOCK: u32 = 0x1;
    pub(super) const CK_CYLGRP: u32 = 0x2;
    pub(super) const CK_INODE: u32 = 0x4;
}

/// `fs_old_inodefmt` of 4.4BSD and all later systems.
pub(crate) const INODEFMT_44: u32 = 2;
/// `fs_old_postblformat` of groups without fields for their maps, in 4.2BSD.
const POSTBLFORMAT_42: u32 = u32::MAX;
/// Snapshots that a filesystem can have.
const SNAPSHOTS_MAX: usize = 20;

/// The version of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Of 4.4BSD: 32-bit addresses.
    Ufs1,
    /// Of FreeBSD 5 and NetBSD 2: 64-bit addresses.
    Ufs2,
}

impl Version {
    /// Bytes of an inode.
    pub fn inode_size(self) -> u32 {
        if self == Self::Ufs1 { 128 } else { 256 }
    }

    /// Bytes of a pointer.
    pub fn pointer_size(self) -> u32 {
        if self == Self::Ufs1 { 4 } else { 8 }
    }
}

/// Counts of a group or of all groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Directories.
    pub dirs: u64,
    /// Blocks of which all fragments are free.
    pub free_blocks: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Free fragments in other blocks.
    pub free_frags: u64,
}

/// The superblock.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// The version of the format.
    pub version: Version,
    /// UFS1 with inodes and directories of 4.2BSD, which Solaris still uses. Owners have 16 bits; Solaris can
    /// store 32 in another place. Times have no nanoseconds. Entries of directories have no type.
    pub is_old: bool,
    /// The byte order of all numbers.
    pub order: ByteOrder,
    /// The byte of the device at which it is.
    pub at: u64,
    /// Bytes of a block: a power of two from 4096 to 65536.
    pub block_size: u32,
    /// Bytes of a fragment: a power of two from 512 to `block_size`.
    pub fragment_size: u32,
    /// Fragments of a block: 1, 2, 4 or 8.
    pub frags_per_block: u32,
    /// Fragments of the filesystem.
    pub size: u64,
    /// Fragments that files can have.
    pub data_size: u64,
    /// Percentage of blocks for root alone.
    pub min_free: u32,
    /// Cylinder groups.
    pub groups: u32,
    /// Fragments of a group; the last one may have fewer.
    pub frags_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Offsets in a group, in fragments: the copy of the superblock, the descriptor, inodes, data.
    pub offsets: [u32; 4],
    /// UFS1: how much a group's structures are moved into it, and in which groups.
    cylinder_offset: (u32, u32),
    /// The first fragment of the summary area.
    pub summary_start: u64,
    /// Bytes of the summary area.
    pub summary_bytes: u64,
    /// Bytes of a group's descriptor that its check hash covers.
    pub group_bytes: u32,
    /// Bytes of the superblock.
    pub superblock_bytes: u32,
    /// Lengths of clusters of free blocks that groups count; 0: none.
    pub cluster_lengths: u32,
    /// Link targets shorter than this are in the inode.
    pub short_link_max: u32,
    /// The counts of all groups.
    pub total: Counts,
    /// Whether it was unmounted cleanly.
    pub clean: bool,
    /// Whether this driver wrote it last, or writes it.
    pub mounted_here: bool,
    /// [`flags`].
    pub flags: u32,
    /// Whether [`flags`](Self::flags) are those of newer systems, which also keep the 64-bit fields of UFS1.
    pub new_flags: bool,
    metackhash: u32,
    /// The label, without padding.
    pub label: Vec<u8>,
    /// Identifies the filesystem.
    pub id: [u32; 2],
    /// Inode numbers of snapshots.
    pub snapshots: Vec<u32>,
}

/// Checks that a label can be stored.
pub(crate) fn check_label(label: &[u8]) -> Result<()> {
    if label.len() > LABEL_MAX || label.contains(&0) {
        let why = format!("a label of UFS has at most {LABEL_MAX} bytes, none of them zero");
        return Err(Error::Incompatible(why));
    }
    Ok(())
}

/// Returns the version and byte order that the magic of a superblock says.
fn recognise(bytes: &[u8]) -> Option<(Version, ByteOrder)> {
    [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|order| {
        match Fields::new(bytes.get(..SUPERBLOCK_BYTES)?, order).u32(at::FS_MAGIC) {
            MAGIC_UFS1 => Some((Version::Ufs1, order)),
            MAGIC_UFS2 => Some((Version::Ufs2, order)),
            _ => None,
        }
    })
}

/// Returns the place of the superblock in the first bytes of a device. Does not mistake a copy for it: the
/// superblock of UFS2 stores its place, and that of UFS1 is never at 64 KiB.
pub fn find(head: &[u8]) -> Option<u64> {
    PLACES.into_iter().find(|&place| {
        let Some(bytes) = head.get(place as usize..) else { return false };
        match recognise(bytes) {
            Some((Version::Ufs1, _)) => place != PLACES[0],
            Some((Version::Ufs2, order)) => Fields::new(bytes, order).u64(at::FS_SBLOCKLOC) == place,
            None => false,
        }
    })
}

impl Superblock {
    /// Parses and checks the superblock in `bytes`, which are those of the device from `place` on. `image`
    /// names the image in errors.
    pub fn parse(bytes: &[u8], place: u64, device_bytes: u64, image: &str) -> Result<Self> {
        let where_ = || format!("{image}, superblock at byte {place}");
        let wrong = |what: String| Error::corrupt(what, where_());
        let (version, order) = recognise(bytes).ok_or_else(|| wrong("there is no magic of UFS".into()))?;
        let fields = Fields::new(bytes, order);
        let is_ufs1 = version == Version::Ufs1;
        let field = |at: usize| fields.u32(at);
        let in_range = |name: &str, value: u64, least: u64, most: u64| {
            let what = || wrong(format!("{name} is {value}, not from {least} to {most}"));
            if (least..=most).contains(&value) { Ok(value) } else { Err(what()) }
        };
        let power = |name: &str, at: usize, least: u32, most: u32| {
            let value = in_range(name, field(at).into(), least.into(), most.into())? as u32;
            let what = || wrong(format!("{name} is {value}, no power of two"));
            if value.is_power_of_two() { Ok(value) } else { Err(what()) }
        };
        let superblock_bytes = field(at::FS_SBSIZE);
        in_range("fs_sbsize", superblock_bytes.into(), SUPERBLOCK_BYTES as u64, SUPERBLOCK_MAX)?;
        let is_old = is_ufs1 && field(at::FS_OLD_INODEFMT) != INODEFMT_44;
        if is_ufs1 && !is_old && field(at::FS_OLD_POSTBLFORMAT) == POSTBLFORMAT_42 {
            let what = "UFS1 with inodes of 4.4BSD and groups of 4.2BSD is not supported";
            return Err(Error::Incompatible(format!("{}: {what} (fs_old_postblformat is -1)", where_())));
        }
        // UFS1 of 4.4BSD has its flags in a byte. In older systems the bits have other meanings.
        let old_flags = if is_old { 0 } else { u32::from(fields.u8(at::FS_OLD_FLAGS)) };
        let moved = !is_ufs1 || old_flags & flags::FS_FLAGS_UPDATED != 0;
        let flags = if moved { field(at::FS_FLAGS) } else { old_flags };
        let metackhash = if flags & flags::FS_METACKHASH != 0 { field(at::FS_METACKHASH) } else { 0 };
        if metackhash & hashed::CK_SUPERBLOCK != 0 {
            let covered = bytes.get(..superblock_bytes as usize);
            let covered = covered.ok_or_else(|| wrong("it is cut off by the end of the image".into()))?;
            if Fields::new(covered, order).check_hash(at::FS_CKHASH) != field(at::FS_CKHASH) {
                return Err(wrong("bad check hash; run fsck_ffs of FreeBSD".into()));
            }
        }
        let block_size = power("fs_bsize", at::FS_BSIZE, 4096, 65536)?;
        let fragment_size = power("fs_fsize", at::FS_FSIZE, (block_size / 8).max(512), block_size)?;
        let frags_per_block = block_size / fragment_size;
        in_range("fs_frag", field(at::FS_FRAG).into(), frags_per_block.into(), frags_per_block.into())?;
        let (size, data_size, summary_start) = match version {
            Version::Ufs1 => (
                field(at::FS_OLD_SIZE).into(),
                field(at::FS_OLD_DSIZE).into(),
                field(at::FS_OLD_CSADDR).into(),
            ),
            Version::Ufs2 => (fields.u64(at::FS_SIZE), fields.u64(at::FS_DSIZE), fields.u64(at::FS_CSADDR)),
        };
        let most = i64::MAX as u64 / u64::from(fragment_size);
        in_range("the number of fragments (fs_size)", size, 1, most)?;
        let end = size * u64::from(fragment_size);
        if end > device_bytes {
            return Err(wrong(format!(
                "the filesystem has {end} bytes, the image {device_bytes}: it is cut off; copy all of it"
            )));
        }
        in_range("fs_dsize", data_size, 0, size)?;
        let frags_per_group = field(at::FS_FPG);
        in_range("fs_fpg", frags_per_group.into(), 1, i32::MAX as u64)?;
        let groups = size.div_ceil(frags_per_group.into());
        in_range("fs_ncg", field(at::FS_NCG).into(), groups, groups)?;
        let inodes_per_block = block_size / version.inode_size();
        let inodes_per_group = field(at::FS_IPG);
        let most = u64::from(u32::MAX) / groups;
        in_range("fs_ipg", inodes_per_group.into(), inodes_per_block.into(), most)?;
        if !frags_per_group.is_multiple_of(frags_per_block)
            || !inodes_per_group.is_multiple_of(inodes_per_block)
        {
            return Err(wrong("fs_fpg or fs_ipg does not fill whole blocks".into()));
        }
        let offsets = [at::FS_SBLKNO, at::FS_CBLKNO, at::FS_IBLKNO, at::FS_DBLKNO].map(field);
        let inode_frags = u64::from(inodes_per_group / inodes_per_block) * u64::from(frags_per_block);
        let [copy, descriptor, inodes, data] = offsets.map(u64::from);
        let is_ordered = copy < descriptor
            && descriptor + u64::from(frags_per_block) <= inodes
            && inodes + inode_frags <= data
            && data <= frags_per_group.into();
        if !is_ordered || !inodes.is_multiple_of(frags_per_block.into()) {
            return Err(wrong(format!("the structures of a group overlap: they start at {offsets:?}")));
        }
        let group_bytes = field(at::FS_CGSIZE);
        in_range("fs_cgsize", group_bytes.into(), GROUP_HEADER_BYTES as u64, block_size.into())?;
        let summary_bytes = u64::from(field(at::FS_CSSIZE));
        let least = groups * SUMMARY_BYTES;
        in_range("fs_cssize", summary_bytes, least, least.next_multiple_of(block_size.into()))?;
        let summary_frags = summary_bytes.div_ceil(fragment_size.into());
        in_range("fs_csaddr", summary_start, 0, size.saturating_sub(summary_frags))?;
        // Older systems have other fields in these places.
        let short_link_max = if is_old { 0 } else { field(at::FS_MAXSYMLINKLEN) };
        in_range("fs_maxsymlinklen", short_link_max.into(), 0, if is_ufs1 { 60 } else { 120 })?;
        let cluster_lengths = if is_old { 0 } else { field(at::FS_CONTIGSUMSIZE) };
        in_range("fs_contigsumsize", cluster_lengths.into(), 0, 16)?;
        // The wider fields of UFS1 are in use if this one has a value. fsck_ffs sets only them.
        let is_wide = !is_ufs1 || !is_old && field(at::FS_MAXBSIZE) == block_size;
        let total = if is_wide {
            let [dirs, free_blocks, free_inodes, free_frags] =
                [0, 8, 16, 24].map(|offset| fields.u64(at::FS_CSTOTAL + offset));
            Counts { dirs, free_blocks, free_inodes, free_frags }
        } else {
            Counts::parse(&fields, at::FS_OLD_CSTOTAL)
        };
        let label = if is_old { &[] } else { &bytes[at::FS_VOLNAME..=at::FS_VOLNAME + LABEL_MAX] };
        let snapshots = (0..SNAPSHOTS_MAX).map(|nth| field(at::FS_SNAPINUM + nth * 4));
        Ok(Self {
            version,
            order,
            at: place,
            block_size,
            fragment_size,
            frags_per_block,
            size,
            data_size,
            min_free: field(at::FS_MINFREE).min(100),
            groups: groups as u32,
            frags_per_group,
            inodes_per_group,
            offsets,
            cylinder_offset: (field(at::FS_OLD_CGOFFSET), field(at::FS_OLD_CGMASK)),
            summary_start,
            summary_bytes,
            group_bytes,
            superblock_bytes,
            cluster_lengths,
            short_link_max,
            total,
            is_old,
            clean: fields.u8(at::FS_CLEAN) == 1 && flags & flags::FS_UNCLEAN == 0,
            mounted_here: bytes[at::FS_FSMNT..].starts_with(MOUNTED_HERE),
            flags,
            new_flags: moved,
            metackhash,
            label: label.split(|&byte| byte == 0).next().unwrap_or_default().to_vec(),
            id: [field(at::FS_ID), field(at::FS_ID + 4)],
            snapshots: if moved { snapshots.take_while(|&ino| ino != 0).collect() } else { Vec::new() },
        })
    }

    /// What never changes, and so is the same in all copies.
    pub fn geometry(&self) -> impl PartialEq + use<> {
        let sizes = (self.block_size, self.fragment_size, self.groups, self.frags_per_group);
        (self.version, self.order, sizes, self.size, self.inodes_per_group, self.offsets, self.summary_start)
    }

    /// Bytes of an inode.
    pub fn inode_size(&self) -> u32 {
        self.version.inode_size()
    }

    /// Bytes of a pointer.
    pub fn pointer_size(&self) -> u32 {
        self.version.pointer_size()
    }

    /// Pointers of an indirect block.
    pub fn pointers_per_block(&self) -> u64 {
        u64::from(self.block_size / self.pointer_size())
    }

    /// Blocks of the longest file that pointers can describe.
    pub fn file_blocks_max(&self) -> u64 {
        let per = self.pointers_per_block();
        DIRECT + per + per * per + per * per * per
    }

    /// Bytes of the longest file.
    pub fn file_size_max(&self) -> u64 {
        // As `fs_maxfilesize` of newfs.
        (self.file_blocks_max().saturating_mul(self.block_size.into()) - 1).min(i64::MAX as u64)
    }

    /// The number of inodes, with those that are never used.
    pub fn inodes(&self) -> u32 {
        self.groups * self.inodes_per_group
    }

    /// Whether some structures have check hashes.
    pub fn has_check_hashes(&self) -> bool {
        self.metackhash != 0
    }

    /// Whether the superblock has a check hash.
    pub fn hashes_superblock(&self) -> bool {
        self.metackhash & hashed::CK_SUPERBLOCK != 0
    }

    /// Whether groups have a check hash.
    pub fn hashes_groups(&self) -> bool {
        self.metackhash & hashed::CK_CYLGRP != 0
    }

    /// Whether inodes have a check hash.
    pub fn hashes_inodes(&self) -> bool {
        self.metackhash & hashed::CK_INODE != 0 && self.version == Version::Ufs2
    }

    /// The first fragment of a group.
    pub fn group_base(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.frags_per_group)
    }

    /// Fragments of a group.
    pub fn group_frags(&self, group: u32) -> u64 {
        (self.size - self.group_base(group)).min(self.frags_per_group.into())
    }

    /// The fragment from which the offsets of a group's structures count. In UFS1 they may lie elsewhere in
    /// each group, so that the copies of the superblock are not all on one platter.
    fn group_start(&self, group: u32) -> u64 {
        let (offset, mask) = self.cylinder_offset;
        let moved =
            if self.version == Version::Ufs1 { u64::from(offset) * u64::from(group & !mask) } else { 0 };
        self.group_base(group) + moved
    }

    /// The first fragment of the copy of the superblock (0), of the descriptor (1), the inodes (2) or the
    /// data (3) of a group.
    pub fn structure(&self, group: u32, nth: usize) -> u64 {
        self.group_start(group) + u64::from(self.offsets[nth])
    }

    /// The fragment of an inode, and its offset there.
    pub fn inode_place(&self, ino: u32) -> (u64, usize) {
        let byte = u64::from(ino % self.inodes_per_group) * u64::from(self.inode_size());
        let (group, fragment) = (ino / self.inodes_per_group, u64::from(self.fragment_size));
        (self.structure(group, 2) + byte / fragment, (byte % fragment) as usize)
    }

    /// Whether a fragment belongs to structures of the filesystem, and so to no file.
    pub fn is_structure(&self, fragment: u64) -> bool {
        let group = (fragment / u64::from(self.frags_per_group)) as u32;
        let start = if group == 0 { 0 } else { self.structure(group, 0) };
        let summary = self.summary_start..self.summary_start + self.summary_frags();
        (start..self.structure(group, 3)).contains(&fragment) || summary.contains(&fragment)
    }

    /// Writes the counts of all groups, and the time of the last change, into the bytes of a superblock.
    pub fn put_counts(&self, bytes: &mut [u8], total: &Counts, seconds: Option<i64>) {
        let mut fields = FieldsMut::new(bytes, self.order);
        let counts = [total.dirs, total.free_blocks, total.free_inodes, total.free_frags];
        for (nth, count) in counts.into_iter().enumerate() {
            fields.u64(at::FS_CSTOTAL + nth * 8, count);
            if self.version == Version::Ufs1 {
                fields.u32(at::FS_OLD_CSTOTAL + nth * 4, count.min(u32::MAX.into()) as u32);
            }
        }
        if let Some(seconds) = seconds {
            fields.u64(at::FS_TIME, seconds as u64);
            if self.version == Version::Ufs1 {
                fields.u32(at::FS_OLD_TIME, seconds as u32);
            }
        }
    }

    /// Marks the bytes of a superblock as those of a filesystem that is being written, or that was closed
    /// cleanly. Without the flag FS_NEEDSFSCK, fsck_ffs of FreeBSD would only replay a journal that knows
    /// nothing of our changes.
    pub fn put_mark(&self, bytes: &mut [u8], dirty: bool) {
        let journal = flags::FS_SUJ | flags::FS_GJOURNAL;
        let needs_fsck = if dirty && self.flags & journal != 0 { flags::FS_NEEDSFSCK } else { 0 };
        let flags = self.flags & !(flags::FS_UNCLEAN | flags::FS_NEEDSFSCK) | needs_fsck;
        bytes[at::FS_CLEAN] = u8::from(!dirty);
        bytes[at::FS_FSMNT..at::FS_FSMNT + MOUNTED_HERE.len()].copy_from_slice(MOUNTED_HERE);
        let mut fields = FieldsMut::new(bytes, self.order);
        if self.new_flags {
            fields.u32(at::FS_FLAGS, flags);
        }
        if self.hashes_superblock() {
            fields.set_check_hash(at::FS_CKHASH);
        }
    }

    /// The group of a fragment.
    pub fn group_of(&self, fragment: u64) -> u32 {
        (fragment / u64::from(self.frags_per_group)) as u32
    }

    /// Fragments of the summary area.
    pub fn summary_frags(&self) -> u64 {
        self.summary_bytes.div_ceil(self.fragment_size.into())
    }

    /// Fragments of a file block, for a file of a size. Only a file without indirect blocks ends in
    /// fragments.
    pub fn frags_of_block(&self, size: u64, block: u64) -> u64 {
        let (start, full) = (block.saturating_mul(self.block_size.into()), u64::from(self.frags_per_block));
        if block >= DIRECT {
            return full;
        }
        size.saturating_sub(start).div_ceil(self.fragment_size.into()).min(full)
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { dirs, free_blocks, free_inodes, free_frags } = self;
        write!(f, "{dirs} directories, {free_blocks} free blocks, ")?;
        write!(f, "{free_inodes} free inodes, {free_frags} free fragments")
    }
}

impl Counts {
    fn each(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            dirs: op(self.dirs, other.dirs),
            free_blocks: op(self.free_blocks, other.free_blocks),
            free_inodes: op(self.free_inodes, other.free_inodes),
            free_frags: op(self.free_frags, other.free_frags),
        }
    }

    /// The counts of several groups.
    pub fn sum<'a>(groups: impl IntoIterator<Item = &'a Self>) -> Self {
        groups.into_iter().fold(Self::default(), |sum, group| sum.plus(group))
    }

    /// Returns the sums with other counts.
    pub fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// Returns the differences to other counts.
    pub fn minus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    /// Writes the counts of all groups into the summary area.
    pub fn put_all(summary: &mut [u8], order: ByteOrder, groups: &[Self]) {
        let mut fields = FieldsMut::new(summary, order);
        for (group, counts) in groups.iter().enumerate() {
            let counts = [counts.dirs, counts.free_blocks, counts.free_inodes, counts.free_frags];
            (0..).zip(counts).for_each(|(nth, count)| fields.u32(group * 16 + nth * 4, count as u32));
        }
    }

    /// Decodes the counts of a group.
    pub fn parse(fields: &Fields<'_>, at: usize) -> Self {
        let [dirs, free_blocks, free_inodes, free_frags] =
            [0, 4, 8, 12].map(|offset| fields.u32(at + offset).into());
        Self { dirs, free_blocks, free_inodes, free_frags }
    }
}
