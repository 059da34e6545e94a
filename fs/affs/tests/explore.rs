//! Every crash point of many workloads (see `ivers_crash`): what a crash leaves is a sound volume with lost blocks at worst, and says that its bitmap does not hold.
//!
//! `IVERS_CRASH_STATES` bounds the number of states of each kind of volume, `IVERS_CRASH_SEED` decides what is sampled, and
//! `IVERS_CRASH_WORKLOAD` runs the one workload that a report names. `IVERS_CRASH_VIOLATIONS` says after how many violations to stop.

mod common;

use common::*;
use ivers_affs::Affs;
use ivers_block::{Device, FaultDevice, MemDevice, Recorded};
use ivers_crash::history::bytes_of;
use ivers_crash::states::States;
use ivers_crash::{Explorer, Promises, Repaired, Target, Workload, env};
use ivers_vfs::{Error, FileSystem, Vfs};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// A kind of volume, with blocks of a sector: what is larger can be torn, and has no checksum that could tell.
#[derive(Clone, Copy)]
struct Amiga {
    name: &'static str,
    low: u8,
}

const KINDS: &[Amiga] = &[
    Amiga { name: "OFS", low: 0 },
    Amiga { name: "FFS, international", low: 3 },
    Amiga { name: "FFS, directory caches", low: 5 },
];
const BLOCK: usize = 512;

impl Target for Amiga {
    fn name(&self) -> &str {
        self.name
    }

    fn format(&self) -> anyhow::Result<MemDevice> {
        Ok(MemDevice::from_bytes(&fresh(self.low, BLOCK as u32, 2 << 20).to_bytes()))
    }

    /// What there is to recover is looked at first: the driver's recovery could mend more than a crash may break.
    fn open(&self, device: Arc<dyn Device>, _: bool) -> ivers_vfs::Result<Arc<dyn FileSystem>> {
        let bytes = bytes_of(&*device).map_err(|what| Error::corrupt(what.to_string(), "reading"))?;
        ivers_oracle::affs::check(&bytes, BLOCK)
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
        let report = ivers_oracle::affs::check(&std::fs::read(image)?, BLOCK).closed();
        report.map(drop).map_err(anyhow::Error::msg)
    }

    fn repair(&self, _image: &Path) -> anyhow::Result<Repaired> {
        anyhow::bail!("there is no other tool that repairs")
    }

    fn kernel_recovers(&self, _image: &Path) -> Option<anyhow::Result<()>> {
        None
    }
}

fn workloads(seed: u64) -> Vec<Workload> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mixed: Vec<Workload> =
        (0..Workload::sequences(2)).map(|nth| Workload::sequence(2, nth)).collect();
    let threes = Workload::sequences(3);
    mixed.extend((0..2000).map(|_| Workload::sequence(3, rng.random_range(0..threes))));
    mixed.extend((0..300).map(|nth| Workload::long(rng.random_range(0..1 << 32), [1, 1, 3][nth % 3], 60)));
    mixed.shuffle(&mut rng);
    mixed.splice(0..0, (0..Workload::sequences(1)).map(|nth| Workload::sequence(1, nth)));
    mixed
}

#[test]
fn a_crash_loses_blocks_at_worst() {
    let states = env("IVERS_CRASH_STATES").unwrap_or(3000);
    let seed = env("IVERS_CRASH_SEED").unwrap_or(1);
    let only = std::env::var("IVERS_CRASH_WORKLOAD").ok();
    for kind in KINDS {
        let workloads = match &only {
            Some(name) => vec![Workload::by_name(name).expect("a workload's name, as a report gives it")],
            None => workloads(seed),
        };
        let explorer = Explorer {
            workloads,
            whole: 10,
            unmount_one_in: 4,
            most_states: states,
            fsck_first_every: 0,
            ..Explorer::new(*kind, seed)
        };
        let summary = explorer.run().expect("the explorer itself works");
        println!("{summary}");
        assert!(summary.violations.is_empty(), "promises were broken: see above");
        assert!(only.is_some() || summary.states >= states, "too few workloads for {states} states");
    }
}

/// Contents that were made durable under a name are found under it, or under the name that it was about to get: at no point of a rename, with or without
/// a file in its way, a second link or another directory, is the file lost, and at no point is the name that is replaced missing.
#[test]
fn a_rename_loses_nothing_at_any_point() {
    let renames: &[(&str, &str)] = &[
        ("/a", "/b"),
        ("/a", "/c"),
        ("/a", "/d/x"),
        ("/l", "/c"),
        ("/d/in", "/a"),
        ("/d", "/e"),
        ("/c", "/d/in"),
    ];
    for low in [0, 1, 5] {
        for &(old, new) in renames {
            let base = fresh(low, 512, DD);
            let vfs = mount(&base);
            make(&vfs, "/d", &ivers_vfs::CreateSpec::directory(0o755));
            for (nth, path) in ["/a", "/c", "/d/in"].into_iter().enumerate() {
                put(&vfs, path, &pattern(nth + 1, 3000 * (nth + 1)));
            }
            link(&vfs, "/a", "/l");
            // So that chains have more than one entry, on both sides.
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
                    let place = format!("DOS\\{low}, {old} to {new}, {state:?}");
                    let vfs = mount(&image);
                    let found = contents(&vfs);
                    for content in wanted.iter().filter(|content| after.contains(content)) {
                        assert!(found.contains(content), "{place}: {} bytes are lost", content.len());
                    }
                    for path in [old, new].into_iter().filter(|path| ["/c", "/a"].contains(path)) {
                        let is_there = vfs.resolve(&root(), path, false).is_ok();
                        assert!(is_there || path == old, "{place}: nothing is at {path}");
                    }
                    let both = [old, new].map(|path| vfs.resolve(&root(), path, false).is_ok());
                    assert!(both[0] || both[1], "{place}: neither name is there");
                    vfs.unmount().unwrap();
                    check(&image, 512);
                })
                .unwrap();
            assert!(states > 10, "{states}");
        }
    }
}

/// The contents of all files that have any, each once.
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
