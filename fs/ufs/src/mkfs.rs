//! Making an empty UFS1 or UFS2.
//!
//! Structures lie where newfs of FreeBSD places them: fsck_ffs compares the head of each descriptor with what
//! it would have written. The same options give the same filesystem, byte for byte.

use crate::layout::dinode::Dinode;
use crate::layout::directory::{DOT_BYTES, Entry, UNIT_BYTES, put_entry};
use crate::layout::group::{MAGIC as GROUP_MAGIC, at as cg};
use crate::layout::group_map::GroupMap;
use crate::layout::superblock::{
    Counts, GROUP_HEADER_BYTES, INODEFMT_44, MAGIC_UFS1, MAGIC_UFS2, PLACES, ROOT, SUMMARY_BYTES, Superblock,
    Version, at, check_label, flags,
};
use crate::layout::{ByteOrder, FieldsMut};
use ivers_block::{BlockNo, ByteOffset, Device, write_zeros};
use ivers_vfs::{Attr, Error, FileType, InodeFlags, Result, Timestamp};

/// Bytes between a superblock and what may follow it.
const SUPERBLOCK_ROOM: u32 = 8192;
/// Bytes of a superblock with fields.
const SUPERBLOCK_BYTES: u32 = 1376;
/// Fragments of a block.
const FRAGS: u32 = 8;
/// The lengths of clusters of free blocks that groups count.
const CLUSTER_LENGTHS: u32 = 16;
/// Blocks of inodes that a group of UFS2 has from the start.
const INODE_BLOCKS: u32 = 2;
/// Sectors, in which old fields count.
const SECTOR_BYTES: u32 = 512;

/// Options of [`mkfs`].
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The version.
    pub version: Version,
    /// Bytes of a block: a power of two from 4096 to 65536. A fragment is an eighth of it.
    pub block_size: u32,
    /// Makes an inode for this many bytes. `None`: for two fragments.
    pub bytes_per_inode: Option<u32>,
    /// Percentage of the space for root alone.
    pub reserved_percent: u32,
    /// The label: at most 31 bytes, none of them zero.
    pub label: Vec<u8>,
    /// Identifies the filesystem.
    pub id: [u32; 2],
    /// The time of creation, in seconds since 1970.
    pub timestamp: u32,
    /// User and group of the root directory.
    pub root_owner: (u32, u32),
    /// The device reads as zeros.
    pub zeroed: bool,
}

impl Default for MkfsOptions {
    /// UFS2 as newfs of FreeBSD makes it.
    fn default() -> Self {
        Self {
            version: Version::Ufs2,
            block_size: 32768,
            bytes_per_inode: None,
            reserved_percent: 8,
            label: Vec::new(),
            id: [0; 2],
            timestamp: 0,
            root_owner: (0, 0),
            zeroed: false,
        }
    }
}

/// What [`mkfs`] made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// Fragments of the filesystem.
    pub fragments: u64,
    /// Bytes of a fragment.
    pub fragment_size: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Cylinder groups.
    pub groups: u32,
    /// Inodes.
    pub inodes: u64,
}

/// Where the structures are.
struct Plan {
    /// The byte of the superblock.
    place: u64,
    fragment_size: u32,
    fragments: u64,
    groups: u32,
    frags_per_group: u32,
    inodes_per_group: u32,
    /// In each group: the copy of the superblock, the descriptor, inodes, data.
    offsets: [u32; 4],
    maps: Maps,
}

/// Offsets in a descriptor.
struct Maps {
    used: u32,
    free: u32,
    sums: u32,
    clusters: u32,
    end: u32,
}

impl Maps {
    fn new(version: Version, frags_per_group: u32, inodes_per_group: u32) -> Self {
        // UFS1 has tables of free blocks by cylinder and rotational position: one of each.
        let tables = if version == Version::Ufs1 { 4 + 2 } else { 0 };
        let used = GROUP_HEADER_BYTES as u32 + tables;
        let free = used + inodes_per_group.div_ceil(8);
        // The counts begin with length 1.
        let sums = (free + frags_per_group.div_ceil(8)).next_multiple_of(4) - 4;
        let clusters = sums + (CLUSTER_LENGTHS + 1) * 4;
        Self { used, free, sums, clusters, end: clusters + (frags_per_group / FRAGS).div_ceil(8) }
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::Incompatible(why.into())
}

impl Plan {
    fn new(bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let size = options.block_size;
        if !size.is_power_of_two() || !(4096..=65536).contains(&size) {
            return Err(refused(format!(
                "UFS has blocks of 4096 to 65536 bytes, a power of two, not {size}"
            )));
        }
        check_label(&options.label)?;
        if options.reserved_percent > 99 {
            return Err(refused("at most 99 percent can be reserved"));
        }
        let fragment_size = size / FRAGS;
        let place = if options.version == Version::Ufs1 { PLACES[1] } else { PLACES[0] };
        let fragments = bytes / u64::from(fragment_size);
        let frags = |bytes: u32| bytes.div_ceil(fragment_size).next_multiple_of(FRAGS);
        let copy = frags(place as u32 + SUPERBLOCK_ROOM);
        let descriptor = copy + frags(SUPERBLOCK_ROOM);
        let inodes = descriptor + FRAGS;
        let inodes_per_block = size / options.version.inode_size();
        let density = options.bytes_per_inode.unwrap_or(2 * fragment_size).max(fragment_size / 8);
        let inodes_of = |frags: u32| {
            let wanted = u64::from(frags) * u64::from(fragment_size) / u64::from(density);
            (wanted.max(1) as u32).next_multiple_of(inodes_per_block)
        };
        let data_of = |frags: u32| inodes + inodes_of(frags) / inodes_per_block * FRAGS;
        let fits = |frags: &u32| {
            Maps::new(options.version, *frags, inodes_of(*frags)).end <= size && data_of(*frags) < *frags
        };
        // As large as its descriptor allows, and no larger than the filesystem.
        let most = u64::from(size * 8).min(fragments.next_multiple_of(FRAGS.into())) as u32;
        let group = (1..=most / FRAGS).rev().map(|blocks| blocks * FRAGS).find(fits);
        let too_small = || {
            let least = u64::from(inodes + 4 * FRAGS) * u64::from(fragment_size);
            refused(format!("UFS with blocks of {size} bytes needs about {least} bytes, and this is {bytes}"))
        };
        let frags_per_group = group.ok_or_else(too_small)?;
        let inodes_per_group = inodes_of(frags_per_group);
        let data = data_of(frags_per_group);
        // A last group without space for data is left out.
        let rest = fragments % u64::from(frags_per_group);
        let fragments = if rest > u64::from(data) { fragments } else { fragments - rest };
        let groups = fragments.div_ceil(frags_per_group.into());
        let inodes_in_all = groups.checked_mul(inodes_per_group.into()).filter(|&n| n <= u32::MAX.into());
        let most = if options.version == Version::Ufs1 { i32::MAX as u64 } else { i64::MAX as u64 };
        if inodes_in_all.is_none() || fragments > most {
            return Err(refused(
                "the filesystem is too large for 32-bit numbers: choose larger blocks, or fewer inodes",
            ));
        }
        let offsets = [copy, descriptor, inodes, data];
        let maps = Maps::new(options.version, frags_per_group, inodes_per_group);
        let groups = groups as u32;
        let plan = Self {
            place,
            fragment_size,
            fragments,
            groups,
            frags_per_group,
            inodes_per_group,
            offsets,
            maps,
        };
        let first = u64::from(data) + plan.summary_frags() + 1;
        if first > fragments.min(frags_per_group.into()) {
            return Err(too_small());
        }
        Ok(plan)
    }

    fn summary_frags(&self) -> u64 {
        (u64::from(self.groups) * SUMMARY_BYTES).div_ceil(self.fragment_size.into())
    }

    /// The fragment of the root directory.
    fn root_fragment(&self) -> u64 {
        u64::from(self.offsets[3]) + self.summary_frags()
    }

    fn report(&self, options: &MkfsOptions) -> MkfsReport {
        MkfsReport {
            fragments: self.fragments,
            fragment_size: self.fragment_size,
            block_size: options.block_size,
            groups: self.groups,
            inodes: u64::from(self.groups) * u64::from(self.inodes_per_group),
        }
    }

    /// Returns the superblock without counts.
    fn superblock(&self, options: &MkfsOptions) -> Vec<u8> {
        let (size, fragment) = (options.block_size, self.fragment_size);
        let bytes_used = SUPERBLOCK_BYTES.next_multiple_of(fragment).min(SUPERBLOCK_ROOM);
        let mut bytes = vec![0; bytes_used as usize];
        let mut fields = FieldsMut::new(&mut bytes, ByteOrder::Little);
        let is_ufs1 = options.version == Version::Ufs1;
        let summary_bytes = (self.summary_frags() * u64::from(fragment)) as u32;
        let meta = u64::from(self.offsets[3] - self.offsets[0]) * u64::from(self.groups);
        let data = self.fragments - u64::from(self.offsets[0]) - meta - self.summary_frags();
        let sectors = self.frags_per_group * (fragment / SECTOR_BYTES);
        for (offset, value) in (at::FS_SBLKNO..).step_by(4).zip(self.offsets) {
            fields.u32(offset, value);
        }
        for (offset, value) in [
            (at::FS_NCG, self.groups),
            (at::FS_BSIZE, size),
            (at::FS_FSIZE, fragment),
            (at::FS_FRAG, FRAGS),
            (at::FS_MINFREE, options.reserved_percent),
            (at::FS_BMASK, !(size - 1)),
            (at::FS_FMASK, !(fragment - 1)),
            (at::FS_BSHIFT, size.trailing_zeros()),
            (at::FS_FSHIFT, fragment.trailing_zeros()),
            (at::FS_MAXCONTIG, CLUSTER_LENGTHS),
            (at::FS_MAXBPG, size / 8),
            (at::FS_FRAGSHIFT, FRAGS.trailing_zeros()),
            (at::FS_FSBTODB, (fragment / SECTOR_BYTES).trailing_zeros()),
            (at::FS_SBSIZE, bytes_used),
            (at::FS_NINDIR, size / options.version.pointer_size()),
            (at::FS_INOPB, size / options.version.inode_size()),
            (at::FS_ID, options.id[0]),
            (at::FS_ID + 4, options.id[1]),
            (at::FS_CSSIZE, summary_bytes),
            (at::FS_CGSIZE, self.maps.end.next_multiple_of(fragment)),
            (at::FS_IPG, self.inodes_per_group),
            (at::FS_FPG, self.frags_per_group),
            (at::FS_MAXBSIZE, size),
            (at::FS_AVGFILESIZE, 16384),
            (at::FS_AVGFPDIR, 64),
            (at::FS_CONTIGSUMSIZE, CLUSTER_LENGTHS),
            (at::FS_MAXSYMLINKLEN, if is_ufs1 { 60 } else { 120 }),
        ] {
            fields.u32(offset, value);
        }
        if is_ufs1 {
            for (offset, value) in [
                (at::FS_OLD_CGMASK, u32::MAX),
                (at::FS_OLD_SIZE, self.fragments as u32),
                (at::FS_OLD_DSIZE, data as u32),
                (at::FS_OLD_CSADDR, self.offsets[3]),
                (at::FS_OLD_RPS, 60),
                (at::FS_OLD_NSPF, fragment / SECTOR_BYTES),
                (at::FS_OLD_NPSECT, sectors),
                (at::FS_OLD_INODEFMT, INODEFMT_44),
                (at::FS_OLD_INTERLEAVE, 1),
                (at::FS_OLD_NSECT, sectors),
                (at::FS_OLD_SPC, sectors),
                (at::FS_OLD_NCYL, self.groups),
                (at::FS_OLD_CPG, 1),
                (at::FS_OLD_POSTBLFORMAT, 1),
                (at::FS_OLD_NRPOS, 1),
            ] {
                fields.u32(offset, value);
            }
        }
        for (offset, value) in [
            (at::FS_SBLOCKLOC, self.place),
            (at::FS_SIZE, self.fragments),
            (at::FS_DSIZE, data),
            (at::FS_CSADDR, self.offsets[3].into()),
            (at::FS_MTIME, options.timestamp.into()),
            (at::FS_QBMASK, u64::from(size - 1)),
            (at::FS_QFMASK, u64::from(fragment - 1)),
        ] {
            fields.u64(offset, value);
        }
        fields.u32(at::FS_MAGIC, if is_ufs1 { MAGIC_UFS1 } else { MAGIC_UFS2 });
        bytes[at::FS_OLD_FLAGS] = flags::FS_FLAGS_UPDATED as u8;
        bytes[at::FS_VOLNAME..at::FS_VOLNAME + options.label.len()].copy_from_slice(&options.label);
        bytes
    }

    /// Returns the descriptor of a group, without maps and counts.
    fn descriptor(&self, sb: &Superblock, group: u32, options: &MkfsOptions) -> Vec<u8> {
        let mut bytes = vec![0; options.block_size as usize];
        let frags = sb.group_frags(group);
        let maps = &self.maps;
        let mut fields = FieldsMut::new(&mut bytes, sb.order);
        for (offset, value) in [
            (cg::CG_MAGIC, GROUP_MAGIC),
            (cg::CG_CGX, group),
            (cg::CG_NDBLK, frags as u32),
            (cg::CG_IUSEDOFF, maps.used),
            (cg::CG_FREEOFF, maps.free),
            (cg::CG_NEXTFREEOFF, maps.end),
            (cg::CG_CLUSTERSUMOFF, maps.sums),
            (cg::CG_CLUSTEROFF, maps.clusters),
            (cg::CG_NCLUSTERBLKS, (frags / u64::from(FRAGS)) as u32),
        ] {
            fields.u32(offset, value);
        }
        match options.version {
            Version::Ufs1 => {
                fields.u32(cg::CG_OLD_TIME, options.timestamp);
                fields.u16(cg::CG_OLD_NCYL, 1);
                fields.u16(cg::CG_OLD_NIBLK, self.inodes_per_group as u16);
                fields.u32(cg::CG_OLD_BTOTOFF, GROUP_HEADER_BYTES as u32);
                fields.u32(cg::CG_OLD_BOFF, GROUP_HEADER_BYTES as u32 + 4);
            }
            Version::Ufs2 => {
                fields.u32(cg::CG_NIBLK, self.inodes_per_group);
                fields.u32(cg::CG_INITEDIBLK, self.written_inodes(options));
                fields.u64(cg::CG_TIME, options.timestamp.into());
            }
        }
        bytes
    }

    /// Inodes of a group that are written.
    fn written_inodes(&self, options: &MkfsOptions) -> u32 {
        match options.version {
            Version::Ufs1 => self.inodes_per_group,
            Version::Ufs2 => (INODE_BLOCKS * (options.block_size / options.version.inode_size()))
                .min(self.inodes_per_group),
        }
    }
}

/// Checks that a filesystem with these options fits a device of this size; writes nothing.
pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<MkfsReport> {
    Plan::new(size_bytes, options).map(|plan| plan.report(options))
}

/// Makes a filesystem that fills the device. All checks pass before the first write. The superblock is
/// written last: an incomplete filesystem is not recognized. It is durable on return.
pub fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<MkfsReport> {
    let plan = Plan::new(device.size_bytes(), options)?;
    let mut superblock = plan.superblock(options);
    let sb = Superblock::parse(&superblock, plan.place, device.size_bytes(), "the new filesystem")?;
    FieldsMut::new(&mut superblock, sb.order).u64(at::FS_MAXFILESIZE, sb.file_size_max());
    let write =
        |fragment: u64, bytes: &[u8]| device.write_at(BlockNo(fragment).offset(sb.fragment_size), bytes);
    if !options.zeroed {
        write_zeros(device, ByteOffset(0), sb.structure(0, 1) * u64::from(sb.fragment_size))?;
        device.flush()?;
    }
    let root = plan.root_fragment();
    let inode_bytes = u64::from(plan.written_inodes(options)) * u64::from(sb.inode_size());
    let mut counts = Vec::new();
    for group in 0..plan.groups {
        if !options.zeroed {
            write_zeros(device, BlockNo(sb.structure(group, 2)).offset(sb.fragment_size), inode_bytes)?;
        }
        let map = GroupMap::parse(plan.descriptor(&sb, group, options), &sb, group);
        let mut map = map.map_err(|what| refused(format!("group {group}: {what}")))?;
        let base = sb.group_base(group);
        let is_used = |nth: u32| match (group, nth) {
            (0, ROOT) => Some(true),
            (0, 0 | 1) => Some(false),
            _ => None,
        };
        map.rebuild(|nth| base + nth != root && !sb.is_structure(base + nth), is_used);
        counts.push(map.counts());
        write(sb.structure(group, 1), map.hashed_bytes())?;
    }
    let mut summary = vec![0; sb.summary_bytes as usize];
    Counts::put_all(&mut summary, sb.order, &counts);
    write(sb.summary_start, &summary)?;
    let (fragment, at) = sb.inode_place(ROOT);
    let mut inodes = vec![0; sb.fragment_size as usize];
    root_inode(&sb, options, root).encode(&mut inodes[at..at + sb.inode_size() as usize], &sb);
    write(fragment, &inodes)?;
    write(root, &root_directory(&sb))?;
    sb.put_counts(&mut superblock, &Counts::sum(&counts), Some(options.timestamp.into()));
    sb.put_mark(&mut superblock, false);
    for group in 0..plan.groups {
        write(sb.structure(group, 0), &superblock)?;
    }
    device.flush()?;
    device.write_at(ByteOffset(plan.place), &superblock)?;
    device.flush()?;
    Ok(plan.report(options))
}

fn root_inode(sb: &Superblock, options: &MkfsOptions, fragment: u64) -> Dinode {
    let time = Timestamp { sec: options.timestamp.into(), nsec: 0 };
    let mut root = Dinode::free(ROOT, 1);
    let (uid, gid) = options.root_owner;
    root.set_attr(&Attr {
        kind: FileType::Directory,
        perm: 0o755,
        uid,
        gid,
        project: 0,
        nlink: 2,
        size: 0,
        blocks_512: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: (options.version == Version::Ufs2).then_some(time),
        flags: InodeFlags::empty(),
    });
    root.size = UNIT_BYTES as u64;
    root.blocks_512 = u64::from(sb.fragment_size / SECTOR_BYTES);
    root.pointers[0] = fragment;
    root
}

fn root_directory(sb: &Superblock) -> Vec<u8> {
    let mut bytes = vec![0; sb.fragment_size as usize];
    let kind = (FileType::Directory.mode_bits() >> 12) as u8;
    let entry = |name| Entry { ino: ROOT, kind, name };
    put_entry(&mut bytes, entry(b"."), DOT_BYTES, sb.order);
    put_entry(&mut bytes[DOT_BYTES..], entry(b".."), UNIT_BYTES - DOT_BYTES, sb.order);
    bytes
}
