//! Every crash point of many workloads (see `ivers_crash`). The environment is that of
//! `fs/ext4/tests/explore.rs`: `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED`, `IVERS_CRASH_WORKLOAD`,
//! `IVERS_CRASH_KIND`, `IVERS_CRASH_CHECK_EVERY`.

mod common;

use ivers_block::{Device, MemDevice};
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_crash::{Promises, Repaired, Target, Workload, explore_kinds};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{self, may_loop_mount};
use ivers_vfs::{DriverOptions, FileSystem};
use std::path::Path;
use std::sync::Arc;

/// A kind of image.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    mib: usize,
    mkfs: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind { name: "btrfs, mixed groups", mib: 24, mkfs: &["-M", "-n", "4096"] },
    Kind { name: "btrfs", mib: 48, mkfs: &["-n", "4096", "-m", "single", "-d", "single"] },
    Kind {
        name: "btrfs, old features",
        mib: 48,
        mkfs: &["-m", "single", "-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"],
    },
];

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        // Blocks that mkfs does not write keep these bytes, and no workload writes such bytes.
        std::fs::write(&image, vec![0xa6; self.mib << 20])?;
        let path = image.to_str().expect("a path of this test");
        let args = ["-q", "-f", "-K"].into_iter().chain(self.mkfs.iter().copied()).chain([path]);
        ivers_oracle::run("mkfs.btrfs", args)?;
        Ok(MemDevice::from_bytes(&std::fs::read(&image)?))
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let common = DriverOptions { place: "test image".into(), ..DriverOptions::default() };
        let options =
            OpenOptions { common, writable: true, trust_foreign: trusting, ..OpenOptions::default() };
        Ok(Btrfs::open(vec![device], options)?)
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: true,
            lasting_numbers: true,
            crash_safe_values: true,
            generations: true,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        let args = ["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()];
        ivers_oracle::run("btrfs", args).map(drop)
    }

    /// Every state is whole: a commit is there or not.
    fn raw_check(&self, image: &Path) -> anyhow::Result<()> {
        self.check(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        LoopMount::new(image, "")?.unmount()?;
        self.check(image)?;
        Ok(Repaired::Whole)
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        kernel::recovers(image, "")
    }

    fn kernel_shows(
        &self,
        image: &Path,
        look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        kernel::shows(image, "ro", look)
    }
}

#[test]
fn no_crash_point_breaks_the_contract() {
    explore(|seed| Workload::mixed(seed, 1000));
}

#[test]
fn no_crash_point_breaks_files_that_share_blocks() {
    explore(Workload::all_sharing);
}

fn explore(workloads: impl Fn(u64) -> Vec<Workload>) {
    if !(!common::can_fill() || !may_loop_mount()) {
        explore_kinds(KINDS, workloads);
    }
}
