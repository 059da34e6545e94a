//! Feature flags with the names that e2fsprogs uses.

#![allow(missing_docs)] // the names are the format's

use bitflags::bitflags;

bitflags! {
    /// Features that a driver may ignore.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Compat: u32 {
        const DIR_PREALLOC = 0x1;
        const IMAGIC_INODES = 0x2;
        const HAS_JOURNAL = 0x4;
        const EXT_ATTR = 0x8;
        const RESIZE_INODE = 0x10;
        const DIR_INDEX = 0x20;
        const LAZY_BG = 0x40;
        const EXCLUDE_INODE = 0x80;
        const EXCLUDE_BITMAP = 0x100;
        const SPARSE_SUPER2 = 0x200;
        const FAST_COMMIT = 0x400;
        const STABLE_INODES = 0x800;
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that a driver must support to read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u32 {
        const COMPRESSION = 0x1;
        const FILETYPE = 0x2;
        const RECOVER = 0x4;
        const JOURNAL_DEV = 0x8;
        const META_BG = 0x10;
        const EXTENTS = 0x40;
        const BIT64 = 0x80;
        const MMP = 0x100;
        const FLEX_BG = 0x200;
        const EA_INODE = 0x400;
        const DIRDATA = 0x1000;
        const CSUM_SEED = 0x2000;
        const LARGEDIR = 0x4000;
        const INLINE_DATA = 0x8000;
        const ENCRYPT = 0x1_0000;
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }

    /// Features that a driver must support to write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        const SPARSE_SUPER = 0x1;
        const LARGE_FILE = 0x2;
        const BTREE_DIR = 0x4;
        const HUGE_FILE = 0x8;
        const GDT_CSUM = 0x10;
        const DIR_NLINK = 0x20;
        const EXTRA_ISIZE = 0x40;
        const HAS_SNAPSHOT = 0x80;
        const QUOTA = 0x100;
        const BIGALLOC = 0x200;
        const METADATA_CSUM = 0x400;
        const REPLICA = 0x800;
        const READONLY = 0x1000;
        const PROJECT = 0x2000;
        const SHARED_BLOCKS = 0x4000;
        const VERITY = 0x8000;
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

impl Incompat {
    /// Features that this driver reads and writes.
    pub const KNOWN: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::BIT64)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA);
    /// Features that this driver reads: MMP requires updates only while writing.
    pub const READABLE: Self = Self::KNOWN.union(Self::MMP);
    /// Features of a filesystem that the checker reads.
    pub const CHECKABLE: Self = Self::READABLE.union(Self::ENCRYPT).union(Self::CASEFOLD);
}

impl RoCompat {
    /// Features that this driver writes; with any other it mounts read-only.
    pub const KNOWN: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::HUGE_FILE)
        .union(Self::GDT_CSUM)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::METADATA_CSUM)
        .union(Self::PROJECT)
        .union(Self::ORPHAN_PRESENT);
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "exclude_inode"),
    (0x100, "exclude_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

fn names(bits: u32, table: &[(u32, &str)], class: char) -> Vec<String> {
    (0..32)
        .map(|bit| (bit, 1u32 << bit))
        .filter(|(_, mask)| bits & mask != 0)
        .map(|(bit, mask)| match table.iter().find(|(known, _)| *known == mask) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("FEATURE_{class}{bit}"),
        })
        .collect()
}

impl Compat {
    /// Names of the set flags; unknown ones as `FEATURE_Cn`.
    pub fn feature_names(self) -> Vec<String> {
        names(self.bits(), COMPAT_NAMES, 'C')
    }
}

impl Incompat {
    /// Names of the set flags; unknown ones as `FEATURE_In`.
    pub fn feature_names(self) -> Vec<String> {
        names(self.bits(), INCOMPAT_NAMES, 'I')
    }
}

impl RoCompat {
    /// Names of the set flags; unknown ones as `FEATURE_Rn`.
    pub fn feature_names(self) -> Vec<String> {
        names(self.bits(), RO_COMPAT_NAMES, 'R')
    }
}
