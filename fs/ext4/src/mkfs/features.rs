//! The features of a new filesystem: those of its type, and those that the caller adds or removes by name.

use super::{ExtType, MkfsOptions};
use crate::layout::{Compat, Incompat, RoCompat};
use ivers_vfs::FeatureList;

/// Features of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Features {
    pub compat: Compat,
    pub incompat: Incompat,
    pub ro_compat: RoCompat,
}

/// A feature that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    Compat(Compat),
    Incompat(Incompat),
    RoCompat(RoCompat),
}

use Feature::{Compat as C, Incompat as I, RoCompat as R};

/// The features that can be chosen, by the names of e2fsprogs.
const CHOICES: [(&str, Feature); 12] = [
    ("has_journal", C(Compat::HAS_JOURNAL)),
    ("ext_attr", C(Compat::EXT_ATTR)),
    ("resize_inode", C(Compat::RESIZE_INODE)),
    ("dir_index", C(Compat::DIR_INDEX)),
    ("extent", I(Incompat::EXTENTS)),
    ("64bit", I(Incompat::BIT64)),
    ("large_dir", I(Incompat::LARGEDIR)),
    ("inline_data", I(Incompat::INLINE_DATA)),
    ("huge_file", R(RoCompat::HUGE_FILE)),
    ("dir_nlink", R(RoCompat::DIR_NLINK)),
    ("metadata_csum", R(RoCompat::METADATA_CSUM)),
    ("project", R(RoCompat::PROJECT)),
];

/// Another name of a feature in e2fsprogs, and the one here.
const ALIASES: [(&str, &str); 1] = [("extents", "extent")];

/// Changes of the features of a type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureChanges(FeatureList);

impl FeatureChanges {
    /// Parses a list as `mke2fs -O` does: `name` adds a feature, `^name` removes it, and commas separate. On
    /// error returns why not.
    pub fn parse(list: &str) -> Result<Self, String> {
        let is_known = |name: &str, _| {
            if CHOICES.iter().any(|(known, _)| *known == name) {
                return Ok(());
            }
            let names = CHOICES.map(|(name, _)| name).join(", ");
            Err(format!("there is no feature {name:?} to choose; there are {names}"))
        };
        FeatureList::parse(list, &ALIASES, is_known).map(Self)
    }

    /// Returns whether a feature is added (true) or removed (false). `None`: it is not named.
    pub fn asks(&self, name: &str) -> Option<bool> {
        self.0.asks(name)
    }
}

impl Features {
    /// Returns the features of the type, with the changes. Without a journal if the options have none.
    pub fn new(options: &MkfsOptions) -> Self {
        let (fs_type, changes) = (options.fs_type, &options.features);
        let mut features = Self {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        features.compat.set(Compat::HAS_JOURNAL, fs_type != ExtType::Ext2);
        if fs_type == ExtType::Ext4 {
            features.incompat |= Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG;
            features.ro_compat |=
                RoCompat::HUGE_FILE | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE | RoCompat::METADATA_CSUM;
        }
        for (name, feature) in CHOICES {
            let Some(on) = changes.asks(name) else { continue };
            match feature {
                C(flag) => features.compat.set(flag, on),
                I(flag) => features.incompat.set(flag, on),
                R(flag) => features.ro_compat.set(flag, on),
            }
        }
        if !options.journal {
            features.compat.remove(Compat::HAS_JOURNAL);
        }
        if !features.incompat.contains(Incompat::EXTENTS) && changes.asks("64bit").is_none() {
            // By default it is there, and nobody asked for it: it needs extents.
            features.incompat.remove(Incompat::BIT64);
        }
        features
    }
}
