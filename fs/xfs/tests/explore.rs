//! Every crash point of many workloads (see `ivers_crash`). The environment is that of
//! `fs/ext4/tests/explore.rs`: `IVERS_CRASH_STATES`, `IVERS_CRASH_SEED`, `IVERS_CRASH_WORKLOAD`,
//! `IVERS_CRASH_KIND`, `IVERS_CRASH_CHECK_EVERY`.

mod common;

use anyhow::Context;
use ivers_block::{Device, FileDevice, MemDevice, OpenMode};
use ivers_crash::{Promises, Repaired, Target, Workload, explore_kinds};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{self, may_loop_mount};
use ivers_vfs::check::Memory;
use ivers_vfs::{DriverOptions, FileSystem};
use ivers_xfs::mkfs::{Features, MkfsOptions, mkfs};
use ivers_xfs::{OpenOptions, Xfs};
use std::path::Path;
use std::sync::Arc;

/// XFS with a geometry and features. All images have one UUID, so Linux mounts them with `nouuid`.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    block_size: u32,
    sector_size: u32,
    inode_size: u32,
    features: &'static str,
    /// See [`OpenOptions::commit_each_transaction`].
    commit_each_transaction: bool,
}

/// The size of an image in bytes.
const IMAGE_BYTES: u64 = 36 << 20;

const XFS: Kind = Kind {
    name: "xfs",
    block_size: 4096,
    sector_size: 512,
    inode_size: 512,
    features: "",
    commit_each_transaction: false,
};

const KINDS: &[Kind] = &[
    XFS,
    Kind { name: "xfs, a commit after each transaction", commit_each_transaction: true, ..XFS },
    Kind { name: "xfs, 1 KiB blocks", block_size: 1024, ..XFS },
    Kind { name: "xfs, as mkfs.xfs 6.1 makes it", features: "^rmapbt,^nrext64", ..XFS },
    Kind { name: "xfs, as mkfs.xfs 7.2 makes it", features: "parent,exchange", ..XFS },
    Kind { name: "xfs, parent pointers, 1 KiB blocks", block_size: 1024, features: "parent,exchange", ..XFS },
    Kind { name: "xfs, 4 KiB sectors", sector_size: 4096, ..XFS },
    Kind {
        name: "xfs, without options",
        features: "^finobt,^sparse,^reflink,^rmapbt,^nrext64,^bigtime",
        ..XFS
    },
    Kind { name: "xfs, 2 KiB inodes, parent pointers", inode_size: 2048, features: "parent,exchange", ..XFS },
];

/// Checks an image with our checker.
fn our_check(image: &Path) -> anyhow::Result<()> {
    let device = Arc::new(FileDevice::open(image, OpenMode::ReadOnly)?);
    let found = ivers_xfs::check::check(device, Memory::unlimited(), "test image")?;
    anyhow::ensure!(found.is_clean(), "ivers check: {:?}", found.kept());
    Ok(())
}

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        // Blocks that mkfs does not write keep these bytes, and no workload writes such bytes.
        let device = MemDevice::from_bytes(&vec![0xa6; IMAGE_BYTES as usize]);
        let features = match self.features {
            "" => Features::default(),
            list => Features::parse(list).map_err(anyhow::Error::msg)?,
        };
        let options = MkfsOptions {
            block_size: self.block_size,
            sector_size: self.sector_size,
            inode_size: self.inode_size,
            features,
            uuid: [7; 16],
            timestamp: 1_763_766_000,
            small: true,
            ..MkfsOptions::default()
        };
        mkfs(&device, &options)?;
        Ok(device)
    }

    fn open(&self, device: Arc<dyn Device>, trusting: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let common = DriverOptions { place: "test image".into(), ..DriverOptions::default() };
        let commit_each_transaction = self.commit_each_transaction;
        let options =
            OpenOptions { common, trust_foreign: trusting, commit_each_transaction, ..Default::default() };
        Ok(Xfs::open(device, options)?)
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
        ivers_oracle::xfs::judge(image).context("xfs_repair finds something")?;
        our_check(image)
    }

    /// xfs_repair replays no log: the kernel recovers, and xfs_repair looks at the result.
    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        // Our checker replays the log in memory, so it must find nothing either.
        our_check(image)?;
        LoopMount::new(image, "nouuid")?.unmount()?;
        self.check(image)?;
        Ok(Repaired::Whole)
    }

    fn kernel_recovers(&self, image: &Path) -> Option<anyhow::Result<()>> {
        kernel::recovers(image, "nouuid")
    }

    fn kernel_shows(
        &self,
        image: &Path,
        look: &mut dyn FnMut(&Path) -> anyhow::Result<()>,
    ) -> Option<anyhow::Result<()>> {
        kernel::shows(image, "ro,nouuid", look)
    }
}

#[test]
fn no_crash_point_breaks_the_contract() {
    explore(|seed| Workload::mixed(seed, 2000));
}

#[test]
fn no_crash_point_breaks_files_that_share_blocks() {
    explore(Workload::all_sharing);
}

fn explore(workloads: impl Fn(u64) -> Vec<Workload>) {
    if common::have_xfsprogs() && may_loop_mount() {
        explore_kinds(KINDS, workloads);
    }
}
