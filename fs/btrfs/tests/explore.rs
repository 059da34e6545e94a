//! Every crash point of many workloads (see `ivers_crash`). The environment is that of
//! `fs/ext4/tests/explore.rs`: `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED`, `IVERS_CRASH_WORKLOAD`,
//! `IVERS_CRASH_KIND`, `IVERS_CRASH_CHECK_EVERY`.

mod common;

use ivers_block::{Device, MemDevice};
use ivers_btrfs::{Btrfs, CompressWith, OpenOptions};
use ivers_crash::{Promises, Repaired, Target, Workload, explore_kinds};
use ivers_oracle::LoopMount;
use ivers_oracle::btrfs::Loops;
use ivers_oracle::kernel::{self, may_loop_mount};
use ivers_vfs::{DriverOptions, FileSystem};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of image.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// The size of each device.
    mib: usize,
    devices: usize,
    mkfs: &'static [&'static str],
    /// Linux makes files and a snapshot of them first.
    has_snapshot: bool,
    /// How data is compressed.
    compress: &'static str,
}

const fn kind(name: &'static str, mib: usize, mkfs: &'static [&'static str]) -> Kind {
    Kind { name, mib, devices: 1, mkfs, has_snapshot: false, compress: "none" }
}

const SINGLE: &[&str] = &["-n", "4096", "-m", "single", "-d", "single"];

const KINDS: &[Kind] = &[
    kind("btrfs, mixed groups", 24, &["-M", "-n", "4096"]),
    kind("btrfs", 48, SINGLE),
    kind(
        "btrfs, old features",
        48,
        &["-m", "single", "-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"],
    ),
    Kind { has_snapshot: true, ..kind("btrfs with a snapshot", 48, SINGLE) },
    kind("btrfs, DUP, sha256", 112, &["-n", "4096", "-m", "dup", "-d", "single", "--csum", "sha256"]),
    kind("btrfs, nodes of 64 KiB", 48, &["-n", "65536", "-m", "single", "-d", "single"]),
    Kind { compress: "zstd", ..kind("btrfs, zstd", 48, SINGLE) },
    Kind { devices: 2, ..kind("btrfs, RAID1", 128, &["-n", "4096", "-m", "raid1", "-d", "raid1"]) },
];

/// Linux and `btrfs check` look at all devices with the UUIDs of an array, and states of one workload have
/// the same ones.
static ONE_ARRAY: Mutex<()> = Mutex::new(());

impl Kind {
    /// Runs something with loop devices for the devices, which lie one after the other in an image.
    fn with_array<T>(
        &self,
        image: &Path,
        run: impl FnOnce(&Loops) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _alone = ONE_ARRAY.lock().unwrap_or_else(PoisonError::into_inner);
        run(&Loops::attach_parts(image, self.devices as u64)?)
    }
}

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        if self.devices > 1 {
            std::fs::write(&image, vec![0xa6; (self.devices * self.mib) << 20])?;
            self.with_array(&image, |loops| {
                let args = ["-q", "-f", "-K"].into_iter().chain(self.mkfs.iter().copied()).map(str::to_owned);
                ivers_oracle::run("mkfs.btrfs", args.chain(loops.names())).map(drop)
            })?;
            return Ok(MemDevice::from_bytes(&ivers_oracle::read_image(&image)?));
        }
        // Blocks that mkfs does not write keep these bytes, and no workload writes such bytes.
        std::fs::write(&image, vec![0xa6; self.mib << 20])?;
        let path = image.to_str().expect("a path of this test");
        let args = ["-q", "-f", "-K"].into_iter().chain(self.mkfs.iter().copied()).chain([path]);
        ivers_oracle::run("mkfs.btrfs", args)?;
        if self.has_snapshot {
            let mounted = LoopMount::new(&image, "")?;
            for number in 0..400 {
                std::fs::write(mounted.path().join(format!("file-{number}")), vec![number as u8; 40])?;
            }
            common::fill::in_dir(mounted.path(), "btrfs -q subvolume snapshot . snapshot");
            mounted.unmount()?;
        }
        Ok(MemDevice::from_bytes(&ivers_oracle::read_image(&image)?))
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let common = DriverOptions { place: "test image".into(), ..DriverOptions::default() };
        let options = OpenOptions {
            common,
            trust_foreign: trusting,
            compress: CompressWith::parse(self.compress),
            ..OpenOptions::default()
        };
        Ok(Btrfs::open(common::parts(device, self.devices), options)?)
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

    /// The log tree has single files.
    fn syncs_alone(&self) -> bool {
        true
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        if self.devices > 1 {
            return self.with_array(image, Loops::judge);
        }
        // Without `--force` it checks what each loop device mounts, and fails if another test has just
        // detached one.
        let words = ["check", "--force", "--check-data-csum"].map(OsStr::new);
        ivers_oracle::run("btrfs", words.into_iter().chain([image.as_os_str()])).map(drop)
    }

    /// Every state is whole: a commit is there or not, and a log tree does not change it.
    fn raw_check(&self, image: &Path) -> anyhow::Result<()> {
        self.check(image)
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        match self.devices {
            1 => LoopMount::new(image, "")?.unmount()?,
            _ => self.with_array(image, |loops| loops.mounted("rw", |_| Ok(())))?,
        }
        self.check(image)?;
        Ok(Repaired::Whole)
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        if self.devices > 1 {
            return Some(self.with_array(image, |loops| loops.mounted("rw", |_| Ok(()))));
        }
        kernel::recovers(image, "")
    }

    fn kernel_shows(
        &self,
        image: &Path,
        look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        if self.devices > 1 {
            return Some(self.with_array(image, |loops| loops.mounted("ro", look)));
        }
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

#[test]
fn no_crash_point_breaks_snapshots() {
    explore(Workload::all_snapshots);
}

fn explore(workloads: impl Fn(u64) -> Vec<Workload>) {
    if common::can_fill() && may_loop_mount() {
        explore_kinds(KINDS, workloads);
    }
}
