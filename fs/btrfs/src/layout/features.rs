//! Feature flags, with the names that `mkfs.btrfs` and `/sys/fs/btrfs/features` use.

#![allow(missing_docs)] // the names are the format's

use bitflags::bitflags;

bitflags! {
    /// Features that a driver must support to read (`incompat_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u64 {
        const MIXED_BACKREF = 0x1;
        const DEFAULT_SUBVOL = 0x2;
        const MIXED_GROUPS = 0x4;
        const COMPRESS_LZO = 0x8;
        const COMPRESS_ZSTD = 0x10;
        const BIG_METADATA = 0x20;
        const EXTENDED_IREF = 0x40;
        const RAID56 = 0x80;
        const SKINNY_METADATA = 0x100;
        const NO_HOLES = 0x200;
        const METADATA_UUID = 0x400;
        const RAID1C34 = 0x800;
        const ZONED = 0x1000;
        const EXTENT_TREE_V2 = 0x2000;
        const RAID_STRIPE_TREE = 0x4000;
        const SIMPLE_QUOTA = 0x1_0000;
        const REMAP_TREE = 0x2_0000;
        const _ = !0;
    }

    /// Features that a driver must support to write (`compat_ro_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoCompat: u64 {
        const FREE_SPACE_TREE = 0x1;
        const FREE_SPACE_TREE_VALID = 0x2;
        const VERITY = 0x4;
        const BLOCK_GROUP_TREE = 0x8;
        const _ = !0;
    }

    /// States of the superblock (`flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SuperFlags: u64 {
        const WRITTEN = 0x1;
        const RELOC = 0x2;
        const ERROR = 0x4;
        const SEEDING = 1 << 32;
        const METADUMP = 1 << 33;
        const METADUMP_V2 = 1 << 34;
        const CHANGING_FSID = 1 << 35;
        const CHANGING_FSID_V2 = 1 << 36;
        const CHANGING_BG_TREE = 1 << 38;
        const CHANGING_DATA_CSUM = 1 << 39;
        const CHANGING_META_CSUM = 1 << 40;
        const _ = !0;
    }
}

impl Incompat {
    /// What this driver reads.
    pub const KNOWN: Self = Self::MIXED_BACKREF
        .union(Self::DEFAULT_SUBVOL)
        .union(Self::MIXED_GROUPS)
        .union(Self::COMPRESS_LZO)
        .union(Self::COMPRESS_ZSTD)
        .union(Self::BIG_METADATA)
        .union(Self::EXTENDED_IREF)
        .union(Self::SKINNY_METADATA)
        .union(Self::NO_HOLES)
        .union(Self::METADATA_UUID)
        .union(Self::RAID1C34)
        .union(Self::SIMPLE_QUOTA);
}

impl SuperFlags {
    /// States in which a filesystem is whole.
    pub const KNOWN: Self = Self::WRITTEN.union(Self::RELOC).union(Self::ERROR);
}

macro_rules! feature_names {
    ($($flags:ident)*) => {$(
        impl $flags {
            /// The names of all flags that are set.
            pub fn feature_names(self) -> Vec<String> {
                let name = |(name, _): (&str, Self)| name.to_lowercase().replace('_', "-");
                let known = self.iter_names().map(name);
                let rest = self.iter_names().fold(self.bits(), |bits, (_, flag)| bits & !flag.bits());
                known.chain((rest != 0).then(|| format!("unknown-{rest:#x}"))).collect()
            }
        }
    )*};
}

feature_names!(Incompat RoCompat SuperFlags);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_have_a_name() {
        let set = Incompat::NO_HOLES | Incompat::from_bits_retain(1 << 40);
        assert_eq!(set.feature_names(), ["no-holes", "unknown-0x10000000000"]);
        assert_eq!(Incompat::KNOWN.difference(Incompat::KNOWN).feature_names(), [""; 0]);
    }
}
