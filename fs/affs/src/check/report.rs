//! The result of a check: for users as findings, for tests as what may be left of a crash.

use ivers_vfs::check::{Findings, Place, Runs, run_is};
use std::collections::BTreeMap;

/// The result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// The defects.
    pub found: Findings,
    /// Blocks that are marked as used but not reachable.
    pub lost: Vec<usize>,
    /// Whether the volume marks its bitmap as valid.
    pub valid: bool,
    /// Directory cache blocks.
    pub caches: Vec<usize>,
    /// Paths of all entries with their type: `f` with the size, `d`, `l` and `h` with the target. Only
    /// [`report`](super::report) fills it.
    pub tree: BTreeMap<String, String>,
}

impl Report {
    /// Checks a volume that was closed: no errors and no lost blocks.
    pub fn closed(self) -> std::result::Result<Self, String> {
        let valid = self.valid;
        let report = self.crashed()?;
        match (valid, report.lost.is_empty()) {
            (true, true) => Ok(report),
            (false, _) => Err("the bitmap is marked as invalid".into()),
            (_, false) => Err(format!("lost blocks: {:?}", report.lost)),
        }
    }

    /// Checks a volume after a crash: no errors; lost blocks only if the bitmap is marked as invalid.
    pub fn crashed(self) -> std::result::Result<Self, String> {
        if !self.found.is_clean() {
            let all = self
                .found
                .kept()
                .iter()
                .map(|found| format!("block {}: {}", found.place.block.unwrap_or_default(), found.what));
            return Err(all.collect::<Vec<_>>().join("; "));
        }
        if self.valid && !self.lost.is_empty() {
            return Err(format!("lost blocks on a volume whose bitmap is marked as valid: {:?}", self.lost));
        }
        Ok(self)
    }

    /// Returns all defects as findings.
    pub(super) fn into_findings(self) -> Findings {
        let mut found = self.found;
        let mut add = |(first, last): (u64, u64)| {
            let what = format!("{} marked as used, but have no owner", run_is("block", first, last));
            found.add("block-lost", Place::block(first), what);
        };
        let mut runs = Runs::default();
        self.lost.into_iter().filter_map(|block| runs.push(block as u64)).for_each(&mut add);
        runs.finish().into_iter().for_each(add);
        if !self.valid {
            found.add(
                "bitmap-invalid",
                Place::filesystem(),
                "the bitmap is marked as invalid: not unmounted",
            );
        }
        found
    }
}
