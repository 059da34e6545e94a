//! Every crash point of many workloads (see `ivers_crash`): the journal makes each change take effect as a
//! whole, and the checker and fsck.ocfs2 find nothing afterwards.
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of filesystem. `IVERS_CRASH_SEED` chooses
//! the sample. `IVERS_CRASH_WORKLOAD` runs the workload that a report names. `IVERS_CRASH_VIOLATIONS` is the
//! number of violations that ends a run.

use crate::common::*;
use ivers_block::{Device, MemDevice};
use ivers_crash::{Promises, Repaired, Target, explore_alone};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_oracle::{OCFS2_PROGRAMS, have_programs, mkfs_ocfs2};
use ivers_vfs::{Error, FileSystem};
use std::path::Path;
use std::sync::Arc;

/// A kind of filesystem.
#[derive(Clone)]
struct Kind {
    name: &'static str,
    image: Arc<Vec<u8>>,
}

/// Options of mkfs.ocfs2.
const OPTIONS: [(&str, &[&str]); 1] =
    [("1K", &["-b", "1K", "-C", "4K", "-J", "size=4M", "--fs-features=metaecc"])];

fn empty(options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs_ocfs2(&path, 14 << 20, options).unwrap();
    std::fs::read(path).unwrap()
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
        assert_clean(&Arc::new(MemDevice::from_bytes(&std::fs::read(image)?)), self.name);
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
    let kind = |(name, options)| Kind { name, image: Arc::new(empty(options)) };
    explore_alone(OPTIONS.map(kind), 30);
}
