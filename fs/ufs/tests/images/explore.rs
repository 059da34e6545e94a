//! Every crash point of many workloads (see `ivers_crash`): a crash leaves only what `docs/ufs.md` lists, and
//! recovery makes a filesystem in which the checker finds nothing. If fsck_ffs of FreeBSD is there, it
//! recovers some states first, as at boot, and checks others after our recovery.
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of filesystem. `IVERS_CRASH_SEED` chooses
//! the sample. `IVERS_CRASH_WORKLOAD` runs the workload that a report names. `IVERS_CRASH_VIOLATIONS` is the
//! number of violations that ends a run.

use crate::common::*;
use ivers_block::{Device, MemDevice};
use ivers_crash::{Promises, Repaired, Target, explore_alone};
use ivers_oracle::ufs::{fsck_ffs, fsck_ffs_preen, have_fsck_ffs};
use ivers_ufs::check::check;
use ivers_ufs::layout;
use ivers_ufs::layout::group::Group;
use ivers_ufs::layout::superblock::flags::FS_DOSOFTDEP;
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::check::Memory;
use ivers_vfs::{Error, FileSystem};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of filesystem. Its fragments are sectors, because the driver assumes that no fragment is torn.
#[derive(Clone)]
struct Kind {
    name: &'static str,
    image: Arc<Vec<u8>>,
    has_fsck_ffs: bool,
    /// How many states were checked.
    checked: Arc<AtomicU64>,
}

/// fsck_ffs checks one in this many states.
const FSCK_FFS_EVERY: u64 = 16;

const OPTIONS: [(&str, &[&str]); 2] = [
    ("UFS1", &["-s", "4m", "-o", "version=1,bsize=4096,fsize=512", "-f", "500"]),
    ("UFS2", &["-s", "4m", "-o", "version=2,bsize=4096,fsize=512", "-f", "500"]),
];

/// Fills what is free with bytes that no workload writes, so that a leak shows.
fn fill_free_space(image: &mut [u8]) {
    let sb = superblock(image);
    let size = sb.fragment_size as usize;
    for group in 0..sb.groups {
        let at = sb.structure(group, 1) as usize * size;
        let descriptor = image[at..at + sb.block_size as usize].to_vec();
        let parsed = Group::parse(&descriptor, &sb, group).unwrap();
        for nth in (0..sb.group_frags(group)).filter(|&nth| parsed.is_frag_free(nth)) {
            let start = (sb.group_base(group) + nth) as usize * size;
            image[start..start + size].fill(0xEE);
        }
    }
}

fn empty(options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).unwrap();
    makefs(&image, options, &tree);
    let mut image = std::fs::read(image).unwrap();
    fill_free_space(&mut image);
    // Of filesystems with soft updates, fsck_ffs expects what a crash of ours leaves: directories without a
    // name and without links, among others.
    let flags_at = superblock(&image).at as usize + layout::superblock::at::FS_FLAGS;
    image[flags_at] |= FS_DOSOFTDEP as u8;
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
        let fs = Ufs::open(device, OpenOptions::default())?;
        match fs.health().read_only {
            None => Ok(fs),
            Some(why) => Err(Error::corrupt(why, "after recovery")),
        }
    }

    fn promises(&self) -> Promises {
        Promises {
            ordered_names: false,
            lasting_numbers: true,
            crash_safe_values: false,
            generations: true,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        let device = Arc::new(MemDevice::from_bytes(&std::fs::read(image)?));
        let found = check(device, Memory::unlimited(), "image").map_err(anyhow::Error::msg)?;
        anyhow::ensure!(found.is_clean() && found.notes().is_empty(), "the checker: {found:?}");
        // A process for each state would take most of the time.
        let turn = self.checked.fetch_add(1, Ordering::Relaxed);
        if self.has_fsck_ffs && turn.is_multiple_of(FSCK_FFS_EVERY) { fsck_ffs(image) } else { Ok(()) }
    }

    fn repairs(&self) -> bool {
        self.has_fsck_ffs
    }

    fn repair(&self, image: &Path) -> anyhow::Result<Repaired> {
        fsck_ffs_preen(image)?;
        // It clears a directory without a name, and can leave a file in it that has no other name.
        Ok(if fsck_ffs(image).is_ok() { Repaired::Whole } else { Repaired::Spoiled })
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

#[test]
fn crash_leaves_only_what_recovery_repairs() {
    if !have_makefs() {
        return;
    }
    let has_fsck_ffs = have_fsck_ffs();
    let kind = |(name, options)| Kind {
        name,
        image: Arc::new(empty(options)),
        has_fsck_ffs,
        checked: Arc::default(),
    };
    explore_alone(OPTIONS.map(kind), 400);
}
