//! Feature flags, with the names that `xfs_info` and `mkfs.xfs` use.

#![allow(missing_docs)] // the names are the format's

use bitflags::bitflags;

bitflags! {
    /// Features that a driver must support to write (`sb_features_ro_compat`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        const FINOBT = 0x1;
        const RMAPBT = 0x2;
        const REFLINK = 0x4;
        const INOBTCNT = 0x8;
        const _ = !0;
    }

    /// Features that a driver must support to read (`sb_features_incompat`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u32 {
        const FTYPE = 0x1;
        const SPARSE = 0x2;
        const META_UUID = 0x4;
        const BIGTIME = 0x8;
        const NEEDSREPAIR = 0x10;
        const NREXT64 = 0x20;
        const EXCHANGE = 0x40;
        const PARENT = 0x80;
        const METADIR = 0x100;
        const ZONED = 0x200;
        const ZONE_GAPS = 0x400;
        const _ = !0;
    }

    /// The features of version 4 (`sb_versionnum`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Version: u16 {
        const ATTR = 0x10;
        const NLINK = 0x20;
        const QUOTA = 0x40;
        const ALIGN = 0x80;
        const DALIGN = 0x100;
        const SHARED = 0x200;
        const LOGV2 = 0x400;
        const SECTOR = 0x800;
        const EXTFLG = 0x1000;
        const DIRV2 = 0x2000;
        const ASCII_CI = 0x4000;
        const MOREBITS = 0x8000;
        const _ = !0;
    }

    /// More features of version 4 (`sb_features2`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features2: u32 {
        const LAZYSBCOUNT = 0x2;
        const ATTR2 = 0x8;
        const PARENT = 0x10;
        const PROJID32 = 0x80;
        const CRC = 0x100;
        const FTYPE = 0x200;
        const _ = !0;
    }
}

impl RoCompat {
    /// Features that this driver knows.
    pub const KNOWN: Self = Self::FINOBT.union(Self::RMAPBT).union(Self::REFLINK).union(Self::INOBTCNT);
}

impl Incompat {
    /// Features that this driver reads.
    pub const KNOWN: Self = Self::FTYPE
        .union(Self::SPARSE)
        .union(Self::META_UUID)
        .union(Self::BIGTIME)
        .union(Self::NREXT64)
        .union(Self::EXCHANGE)
        .union(Self::PARENT);
}

/// Defines the names of the flags of a set. A flag without a name is its number.
macro_rules! feature_names {
    ($($set:ident)*) => {$(
        impl $set {
            /// The names of the flags, in small letters.
            pub fn feature_names(self) -> Vec<String> {
                let mut flags = self.iter_names();
                let mut names: Vec<_> = flags.by_ref().map(|(name, _)| name.to_lowercase()).collect();
                let unnamed = flags.remaining().bits();
                let bits = (0..32).map(|bit| 1 << bit).filter(|bit| unnamed & bit != 0);
                names.extend(bits.map(|bit| format!("unknown-{bit:#x}")));
                names
            }
        }
    )*};
}

feature_names!(RoCompat Incompat);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_have_a_number() {
        let set = Incompat::FTYPE | Incompat::from_bits_retain(0x8000_0000);
        assert_eq!(set.feature_names(), ["ftype", "unknown-0x80000000"]);
        assert_eq!(RoCompat::KNOWN.feature_names(), ["finobt", "rmapbt", "reflink", "inobtcnt"]);
    }
}
