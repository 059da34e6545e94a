//! Every crash point of many workloads (see `ivers_crash`): a crash costs at most lost blocks, and leaves a
//! valid volume whose `bm_flag` is clear.
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of volume. `IVERS_CRASH_SEED` chooses the
//! sample. `IVERS_CRASH_WORKLOAD` runs the workload that a report names. `IVERS_CRASH_VIOLATIONS` is the
//! number of violations that ends a run.

mod common;

use common::*;
use ivers_affs::Affs;
use ivers_block::{Device, FaultDevice, MemDevice, Recorded};
use ivers_crash::history::bytes_of;
use ivers_crash::states::States;
use ivers_crash::{Promises, Repaired, Target, explore_alone};
use ivers_vfs::{Error, FileSystem, Vfs};
use std::path::Path;
use std::sync::Arc;

/// A kind of volume. Its blocks are sectors, because the driver assumes that no block is torn.
#[derive(Clone, Copy)]
struct Amiga {
    name: &'static str,
    low_byte: u8,
}

const KINDS: &[Amiga] = &[
    Amiga { name: "OFS", low_byte: 0 },
    Amiga { name: "FFS, international", low_byte: 3 },
    Amiga { name: "FFS, directory caches", low_byte: 5 },
];
const BLOCK: usize = 512;

impl Target for Amiga {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        Ok(MemDevice::from_bytes(&fresh(self.low_byte, BLOCK as u32, 2 << 20).to_bytes()))
    }

    /// Checks the crash state first: the driver's recovery could repair more than a crash may damage.
    fn open(&self, device: Arc<dyn Device>, _: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let bytes = bytes_of(&*device).map_err(|what| Error::corrupt(what.to_string(), "reading"))?;
        ivers_affs::check::report(&bytes, BLOCK)
            .crashed()
            .map_err(|what| Error::corrupt(format!("the checker: {what}"), "before recovery"))?;
        let fs = Affs::open(device, writable())?;
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
            generations: false,
            only_values: false,
        }
    }

    fn check(&self, image: &Path) -> anyhow::Result<()> {
        let report = ivers_affs::check::report(&std::fs::read(image)?, BLOCK).closed();
        report.map(drop).map_err(anyhow::Error::msg)
    }

    fn repair(&self, _image: &Path) -> anyhow::Result<Repaired> {
        anyhow::bail!("no other tool repairs these volumes")
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

#[test]
fn crash_costs_at_most_lost_blocks() {
    explore_alone(KINDS.iter().copied(), 1000);
}

/// A file that was durable before a rename is found under its old or its new name at every crash point. The
/// new name is never missing if the rename replaces a file. The cases have a replaced file, a hard link,
/// another directory or none of these.
#[test]
fn rename_loses_no_file_at_any_crash_point() {
    let renames: &[(&str, &str)] = &[
        ("/a", "/b"),
        ("/a", "/c"),
        ("/a", "/d/x"),
        ("/l", "/c"),
        ("/d/in", "/a"),
        ("/d", "/e"),
        ("/c", "/d/in"),
    ];
    for low_byte in [0, 1, 5] {
        for &(old, new) in renames {
            let base = fresh(low_byte, 512, DD);
            let vfs = mount(&base);
            make(&vfs, "/d", &ivers_vfs::CreateSpec::directory(0o755));
            for (nth, path) in ["/a", "/c", "/d/in"].into_iter().enumerate() {
                put(&vfs, path, &pattern(nth + 1, 3000 * (nth + 1)));
            }
            link(&vfs, "/a", "/l");
            // Gives both directories hash chains of several entries.
            for nth in 0..200 {
                make(&vfs, &format!("/fill{nth}"), &ivers_vfs::CreateSpec::file(0o600));
                make(&vfs, &format!("/d/fill{nth}"), &ivers_vfs::CreateSpec::file(0o600));
            }
            vfs.unmount().unwrap();
            let device = Arc::new(FaultDevice::new(base.clone()));
            let fs = Affs::open(device.clone() as Arc<dyn Device>, writable()).unwrap();
            let vfs = mount_fs(fs);
            let wanted: Vec<Vec<u8>> = contents(&vfs);
            rename(&vfs, old, new).unwrap();
            let after: Vec<Vec<u8>> = contents(&vfs);
            vfs.sync().unwrap();
            vfs.unmount().unwrap();
            let record: Vec<Recorded> = device.record();
            let states = States::new(base, &record, 7)
                .each_content(|state, bytes| {
                    let image = Arc::new(MemDevice::from_bytes(&bytes));
                    let place = format!("DOS\\{low_byte}, {old} to {new}, {state:?}");
                    let vfs = mount(&image);
                    let found = contents(&vfs);
                    for content in wanted.iter().filter(|content| after.contains(content)) {
                        assert!(found.contains(content), "{place}: {} bytes are lost", content.len());
                    }
                    for path in [old, new].into_iter().filter(|path| ["/c", "/a"].contains(path)) {
                        let is_there = vfs.resolve(&root(), path, false).is_ok();
                        assert!(is_there || path == old, "{place}: {path} is missing");
                    }
                    let both = [old, new].map(|path| vfs.resolve(&root(), path, false).is_ok());
                    assert!(both[0] || both[1], "{place}: both names are missing");
                    vfs.unmount().unwrap();
                    check(&image, 512);
                })
                .unwrap();
            assert!(states > 10, "{states}");
        }
    }
}

/// Returns the distinct contents of all files that are not empty.
fn contents(vfs: &Arc<Vfs>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for path in tree(vfs).keys().filter(|path| !path.contains("fill")) {
        let inode = find(vfs, path);
        if inode.kind == ivers_vfs::FileType::Regular && inode.size() > 0 {
            all.push(get(vfs, &inode));
        }
    }
    all.sort();
    all.dedup();
    all
}
