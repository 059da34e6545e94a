//! The optional features of a new filesystem, by name.

use crate::layout::features::{Incompat, RoCompat};
use ivers_vfs::FeatureList;

/// Another name of a feature: that of mkfs.xfs, and the name in this driver.
const ALIASES: [(&str, &str); 1] = [("inobtcount", "inobtcnt")];

/// The optional features of a new filesystem. Checksums (`crc`) and types in directory entries (`ftype`) are
/// always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    pub(crate) ro_compat: RoCompat,
    pub(crate) incompat: Incompat,
}

impl Default for Features {
    /// The defaults of mkfs.xfs 6.6 to 6.12. Linux writes them since 5.19. Those of later versions of
    /// mkfs.xfs, `exchange` and `parent`, need Linux 6.10, and tools that many systems do not have.
    fn default() -> Self {
        Self {
            ro_compat: RoCompat::KNOWN,
            incompat: Incompat::FTYPE | Incompat::SPARSE | Incompat::BIGTIME | Incompat::NREXT64,
        }
    }
}

impl Features {
    /// Those of `incompat` that can be chosen.
    const INCOMPAT: Incompat = Incompat::SPARSE
        .union(Incompat::BIGTIME)
        .union(Incompat::NREXT64)
        .union(Incompat::EXCHANGE)
        .union(Incompat::PARENT);

    /// Changes the default as a list says: `name` adds a feature, `^name` removes it, and commas separate.
    /// On error returns why not.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut features = Self::default();
        let asked = FeatureList::parse(list, &ALIASES, |name, on| features.set(name, on))?;
        if !features.ro_compat.contains(RoCompat::FINOBT) && features.ro_compat.contains(RoCompat::INOBTCNT) {
            if asked.asks("inobtcnt") == Some(true) {
                return Err("inobtcnt needs finobt".into());
            }
            // By default it is there, and nobody asked for it.
            features.ro_compat.remove(RoCompat::INOBTCNT);
        }
        Ok(features)
    }

    fn set(&mut self, name: &str, on: bool) -> Result<(), String> {
        let flag = name.to_uppercase();
        let is_lower = name.bytes().all(|byte| !byte.is_ascii_uppercase());
        if let Some(flag) =
            RoCompat::from_name(&flag).filter(|flag| RoCompat::KNOWN.contains(*flag) && is_lower)
        {
            self.ro_compat.set(flag, on);
        } else if let Some(flag) =
            Incompat::from_name(&flag).filter(|flag| Self::INCOMPAT.contains(*flag) && is_lower)
        {
            self.incompat.set(flag, on);
        } else if matches!(name, "crc" | "ftype") {
            return match on {
                true => Ok(()),
                false => Err(format!("every new filesystem has {name}")),
            };
        } else {
            let names = [RoCompat::KNOWN.feature_names(), Self::INCOMPAT.feature_names()].concat();
            return Err(format!("there is no feature {name:?} to choose; there are {}", names.join(", ")));
        }
        Ok(())
    }

    /// The names of all features, as `ivers info` shows them.
    pub fn names(self) -> Vec<String> {
        let all = [vec!["crc".to_owned()], self.ro_compat.feature_names(), self.incompat.feature_names()];
        all.concat()
    }

    pub(super) fn has(self, flag: RoCompat) -> bool {
        self.ro_compat.contains(flag)
    }

    pub(super) fn has_incompat(self, flag: Incompat) -> bool {
        self.incompat.contains(flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_change_the_default() {
        let names = |list| Features::parse(list).unwrap().names().join(" ");
        let default = "crc finobt rmapbt reflink inobtcnt ftype sparse bigtime nrext64";
        assert_eq!(names(""), default);
        assert_eq!(names("crc, ftype,bigtime"), default);
        assert_eq!(names("parent,exchange"), format!("{default} exchange parent"));
        assert_eq!(names("^rmapbt,^nrext64"), "crc finobt reflink inobtcnt ftype sparse bigtime");
        // Without its B-tree, nothing is counted.
        assert_eq!(names("^finobt"), "crc rmapbt reflink ftype sparse bigtime nrext64");
        assert_eq!(names("^inobtcount"), "crc finobt rmapbt reflink ftype sparse bigtime nrext64");
    }

    #[test]
    fn wrong_lists_are_refused_by_name() {
        for (list, named) in [
            ("metadir", "\"metadir\""),
            ("Parent", "\"Parent\""),
            ("meta_uuid", "\"meta_uuid\""),
            ("needsrepair", "sparse, bigtime, nrext64, exchange, parent"),
            ("^^parent", "\"^parent\""),
            ("^crc", "crc"),
            ("^ftype", "ftype"),
            ("parent,^parent", "both"),
            ("inobtcount,^inobtcnt", "both"),
            ("inobtcount,^finobt", "needs finobt"),
        ] {
            let why = Features::parse(list).unwrap_err();
            assert!(why.contains(named), "{list}: {why}");
        }
    }
}
