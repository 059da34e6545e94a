//! Every crash point of many workloads (see `ivers_crash`): the journal makes each change take effect as a
//! whole. Afterwards the checker finds nothing in any state. fsck.ocfs2 checks some of the states, and finds
//! nothing either.
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of filesystem. `IVERS_CRASH_SEED` chooses
//! the sample. `IVERS_CRASH_WORKLOAD` runs the workload that a report names. `IVERS_CRASH_VIOLATIONS` is the
//! number of violations that ends a run. fsck.ocfs2 checks one in `IVERS_CRASH_CHECK_EVERY` states.

use crate::common::*;
use ivers_block::{Device, FileDevice, MemDevice, OpenMode};
use ivers_crash::{Promises, Repaired, Target, explore_alone};
use ivers_ocfs2::check::check;
use ivers_ocfs2::layout::group::Group;
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_oracle::{OCFS2_PROGRAMS, fsck_ocfs2, have_programs, mkfs_ocfs2};
use ivers_vfs::check::Memory;
use ivers_vfs::{Error, FileSystem};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of filesystem.
#[derive(Clone)]
struct Kind {
    name: &'static str,
    image: Arc<Vec<u8>>,
    /// The number of states that were checked.
    checked: Arc<AtomicU64>,
    /// fsck.ocfs2 checks one state in this many.
    fsck_every: u64,
}

/// Names, bytes of an image, options of mkfs.ocfs2. The last kind has no indexed directories and no inline
/// data.
const OPTIONS: [(&str, u64, &[&str]); 3] = [
    ("1K metaecc", 10 << 20, &["-b", "1K", "-C", "4K", "--fs-features=metaecc"]),
    ("4K", 24 << 20, &["-b", "4K", "-C", "4K"]),
    (
        "2K old",
        24 << 20,
        &["-b", "2K", "-C", "8K", "--fs-feature-level=max-compat", "--fs-features=sparse,xattr,unwritten"],
    ),
];

/// Fills free clusters with bytes that no workload writes, so that a file with old data is noticed.
fn fill_free_space(image: &mut [u8]) {
    let sb = superblock(image);
    let group_at = first_group(image, "//global_bitmap");
    let descriptor = image[group_at..group_at + sb.block_size as usize].to_vec();
    let group = Group::parse(&descriptor, &sb).unwrap();
    assert_eq!(u32::from(group.bits), sb.clusters, "all clusters are in one group");
    for cluster in (0..group.bits).filter(|&bit| group.are_all(bit..bit + 1, false)) {
        let at = usize::from(cluster) * sb.cluster_size() as usize;
        image[at..at + sb.cluster_size() as usize].fill(0xEE);
    }
}

fn empty(bytes: u64, options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs_ocfs2(&path, bytes, &[&["-N", "1", "-J", "size=4M"], options].concat()).unwrap();
    let mut image = std::fs::read(path).unwrap();
    fill_free_space(&mut image);
    image
}

impl Target for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        Ok(MemDevice::from_bytes(&self.image))
    }

    fn open(&self, device: Arc<dyn Device>, _: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let fs = Ocfs2::open(device, OpenOptions::default())?;
        match fs.health().read_only {
            None => Ok(fs),
            Some(why) => Err(Error::corrupt(why, "after recovery")),
        }
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: true,
            lasting_numbers: true,
            crash_safe_values: false,
            generations: true,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        let found =
            check(Arc::new(FileDevice::open(image, OpenMode::ReadOnly)?), Memory::unlimited(), "image")
                .map_err(anyhow::Error::msg)?;
        anyhow::ensure!(found.is_clean() && found.notes().is_empty(), "the checker: {found:?}");
        // A process for each state would take most of the time.
        if !self.checked.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.fsck_every) {
            return Ok(());
        }
        let mut theirs = fsck_ocfs2(image)?;
        // Random changes may remove lost+found.
        theirs.remove("LOSTFOUND_MISSING");
        anyhow::ensure!(theirs.is_empty(), "fsck.ocfs2: {theirs:?}");
        Ok(())
    }

    fn repair(&self, _image: &Path) -> anyhow::Result<Repaired> {
        anyhow::bail!("fsck.ocfs2 replays journals in another test")
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

#[test]
fn crashes_leave_whole_changes() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let kind = |(name, bytes, options): (_, _, &[&str])| Kind {
        name,
        image: Arc::new(empty(bytes, options)),
        checked: Arc::default(),
        fsck_every: ivers_crash::env("IVERS_CRASH_CHECK_EVERY").unwrap_or(16),
    };
    explore_alone(OPTIONS.map(kind), 400);
}
