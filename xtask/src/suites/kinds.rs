//! pjdfstest, fsx, work on whole trees and full filesystems, on many kinds of image of one format.
//!
//! `IVERS_KIND` selects kinds by a part of their options, `IVERS_PART` one of `pjdfstest`, `trees`, `full`
//! and `fsx`.

use super::{
    CACHES, Exclusions, FSX_FEWER_OPERATIONS, FSX_OPERATIONS, Mount, Setup, Volume, fsx, full, pjdfstest,
    trees,
};
use anyhow::{Result, bail};
use ivers_oracle::LoopMount;
use ivers_oracle::tree::{TreeOptions, tree};
use std::path::Path;

/// The kinds of a format.
pub(super) struct Kinds<'a> {
    /// The value of `--type`.
    pub format: &'a str,
    /// The kinds, as options of the program that makes images.
    pub kinds: &'a [&'a str],
    /// The number of kinds on which fsx runs its full length: the first ones.
    pub full_length: usize,
    pub make: &'a dyn Fn(&str, &Path) -> bool,
    pub is_clean: &'a dyn Fn(&Path) -> bool,
    pub is_clean_full: &'a dyn Fn(&Path) -> bool,
    /// The tests of pjdfstest that cannot pass on a kind.
    pub excluded: &'a dyn Fn(&str) -> &'static Exclusions,
    /// The bytes of the largest value of an attribute on a kind.
    pub value_max: &'a dyn Fn(&str) -> usize,
}

impl Kinds<'_> {
    /// Runs each part on each kind that the environment selects.
    pub(super) fn run(&self, setup: &Setup) -> Option<bool> {
        let Setup { tools, ivers, scratch } = setup;
        let only = |name: &str| std::env::var(name).ok();
        let (kind_part, part) = (only("IVERS_KIND"), only("IVERS_PART"));
        let is_part = |name: &str| part.as_deref().is_none_or(|part| part == name);
        let each = |name: &str, run: &dyn Fn(&Volume<'_>) -> Option<bool>| {
            let meant = |kind: &&str| kind_part.as_deref().is_none_or(|part| kind.contains(part));
            !is_part(name)
                || self.kinds.iter().enumerate().filter(|(_, kind)| meant(kind)).all(|(index, kind)| {
                    let volume = Volume {
                        name: format!("{} {kind}", self.format),
                        kind: self.format,
                        make: &|image| (self.make)(kind, image),
                        is_clean: self.is_clean,
                        is_clean_full: self.is_clean_full,
                        has_holes: true,
                        excluded: (self.excluded)(kind),
                        operations: if index < self.full_length {
                            FSX_OPERATIONS
                        } else {
                            FSX_FEWER_OPERATIONS
                        },
                        value_max: (self.value_max)(kind),
                    };
                    run(&volume) == Some(true)
                })
        };
        let with_each_cache = |volume: &Volume<'_>| {
            Some(CACHES.iter().all(|cache| fsx(tools, ivers, scratch, volume, cache) == Some(true)))
        };
        Some(
            each("pjdfstest", &|volume| pjdfstest(tools, ivers, scratch, volume))
                && each("trees", &|volume| trees::run(ivers, scratch, volume))
                && each("full", &|volume| full::run(ivers, scratch, volume))
                && each("fsx", &with_each_cache),
        )
    }
}

/// Compares the tree that ivers reads with the one that Linux reads, mounted with `options`.
pub(super) fn linux_reads_the_same(ivers: &Path, format: &str, image: &Path, options: &str) -> Result<()> {
    let Some(ours) = Mount::new(ivers, format, image, image.with_extension("ours"), "ro") else {
        bail!("{}: ivers does not mount it", image.display());
    };
    let our_text = tree(&ours.dir, TreeOptions::default())?;
    if !ours.unmount() {
        bail!("{}: ivers does not unmount it", image.display());
    }
    let theirs = LoopMount::new(image, options)?;
    let their_text = tree(theirs.path(), TreeOptions::default())?;
    theirs.unmount()?;
    if let Some((ours, theirs)) = our_text.lines().zip(their_text.lines()).find(|(a, b)| a != b) {
        bail!("{}: ivers reads {ours}; Linux reads {theirs}", image.display());
    }
    if our_text.len() != their_text.len() {
        bail!("{}: the trees differ in their length", image.display());
    }
    Ok(())
}
