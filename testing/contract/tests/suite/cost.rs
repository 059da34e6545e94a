//! C5: every inode update has a counted cause, on `mem` and on ext4, with the system's clock.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_mem::Mem;
use ivers_vfs::{CreateSpec, Cred, FileSystem, InodeRef, StatsSnapshot, Vfs, WriteFlags};
use std::sync::Arc;
use std::time::Instant;

const WRITES: u64 = 1_000_000;

struct Mount {
    name: String,
    vfs: Arc<Vfs>,
    file: InodeRef,
}

fn mounts(how: How) -> Vec<Mount> {
    let mut found: Vec<(String, Arc<dyn FileSystem>, _)> =
        vec![("mem".into(), Arc::new(Mem::default()), how.budget())];
    if ivers_oracle::have_programs(&["mkfs.ext4"]) {
        for (name, kind, args) in [KINDS[0], KINDS[1], KINDS[3]] {
            let (device, budget) = (Arc::new(MemDevice::from_bytes(&image(kind, args))), how.budget());
            found.push((name.into(), open_ext4(device, budget.clone()), budget));
        }
    }
    let mount = |(name, fs, budget): (String, Arc<dyn FileSystem>, _)| {
        let options = ivers_vfs::MountOptions { background: false, ..how.options(&budget) };
        let vfs = Vfs::mount(fs, options).unwrap();
        let root = vfs.root().unwrap();
        let file = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap().0;
        vfs.write(&Cred::root(), &file, 0, b"x", WriteFlags::empty()).unwrap();
        vfs.sync().unwrap();
        Mount { name: format!("{name}, {}", how.label()), vfs, file }
    };
    found.into_iter().map(mount).collect()
}

impl Mount {
    /// Writes `writes` single bytes, with `each` before every one. Returns the cost and the number of clock
    /// ticks that passed.
    fn count(&self, writes: u64, flags: WriteFlags, each: impl Fn(u64)) -> (StatsSnapshot, u64) {
        let (cred, before, begun) = (Cred::root(), self.vfs.stats(), Instant::now());
        for nth in 0..writes {
            each(nth);
            self.vfs.write(&cred, &self.file, 0, &[nth as u8], flags).unwrap();
        }
        let tick = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse).tv_nsec as u128;
        // The ticks at the beginning and at the end.
        let ticks = (begun.elapsed().as_nanos() / tick) as u64 + 2;
        let after = self.vfs.stats();
        let cost = StatsSnapshot {
            changes: after.changes - before.changes,
            bumps: after.bumps - before.bumps,
            bumps_deferred: after.bumps_deferred - before.bumps_deferred,
            inode_updates: after.inode_updates - before.inode_updates,
            inode_updates_times: after.inode_updates_times - before.inode_updates_times,
            inode_updates_version: after.inode_updates_version - before.inode_updates_version,
            inode_updates_allocation: after.inode_updates_allocation - before.inode_updates_allocation,
            inode_updates_metadata: after.inode_updates_metadata - before.inode_updates_metadata,
            ..StatsSnapshot::default()
        };
        assert_eq!(cost.changes, writes);
        let causes = cost.inode_updates_times
            + cost.inode_updates_version
            + cost.inode_updates_allocation
            + cost.inode_updates_metadata;
        assert_eq!(cost.inode_updates, causes, "{}: an update without a cause", self.name);
        println!("{}: {writes} writes, {ticks} ticks, {} inode updates", self.name, cost.inode_updates);
        (cost, ticks)
    }
}

#[test]
fn a_million_unqueried_overwrites_cost_at_most_one_update_per_tick() {
    for mount in mounts(LAZY) {
        let (cost, ticks) = mount.count(WRITES, WriteFlags::empty(), |_| ());
        assert!(cost.inode_updates <= ticks, "{}: {cost:?} in {ticks} ticks", mount.name);
        assert_eq!(cost.inode_updates, cost.inode_updates_times, "{}: {cost:?}", mount.name);
    }
}

#[test]
fn lazytime_costs_no_update() {
    for mount in mounts(LAZYTIME) {
        let (cost, _) = mount.count(WRITES / 10, WriteFlags::empty(), |_| ());
        assert_eq!((cost.inode_updates, cost.bumps), (0, 0), "{}", mount.name);
    }
}

#[test]
fn eager_costs_one_update_per_write() {
    for mount in mounts(EAGER) {
        let (cost, _) = mount.count(WRITES, WriteFlags::empty(), |_| ());
        assert_eq!((cost.inode_updates, cost.bumps), (WRITES, WRITES), "{}", mount.name);
    }
}

/// An append logs no inode by itself: times once per tick, size and allocation with write-back.
#[test]
fn a_million_appends_cost_ticks_and_write_back() {
    for mount in mounts(LAZY) {
        let (cost, ticks) = mount.count(WRITES, WriteFlags::APPEND, |_| ());
        assert!(cost.inode_updates_times <= ticks, "{}: {cost:?} in {ticks} ticks", mount.name);
        assert_eq!((cost.inode_updates_version, cost.inode_updates_metadata), (0, 0), "{}", mount.name);
        let before = mount.vfs.stats().inode_updates;
        mount.vfs.sync().unwrap();
        let written = mount.vfs.stats().inode_updates - before + cost.inode_updates_allocation;
        // Write-back works in runs far longer than 4 KiB.
        assert!(
            written > 0 && written <= WRITES / (64 << 10) + 2,
            "{}: {written} updates by write-back",
            mount.name
        );
    }
}

/// One update for each query since the last update, however many writes and queries there are.
#[test]
fn a_query_costs_one_update() {
    for mount in mounts(LAZYTIME) {
        let looks = 1000;
        let each = |nth: u64| {
            if nth.is_multiple_of(100) {
                for _ in 0..3 {
                    mount.vfs.change(&mount.file).unwrap();
                }
            }
        };
        let (cost, _) = mount.count(100 * looks, WriteFlags::empty(), each);
        assert_eq!(
            (cost.inode_updates, cost.inode_updates_version),
            (looks, looks),
            "{}: {cost:?}",
            mount.name
        );
    }
}

/// With `lazyversion` one bump for each of those queries, and one update for all of them at write-back.
#[test]
fn queries_cost_one_update_at_write_back_under_lazyversion() {
    for lazytime in [false, true] {
        for mount in mounts(How { lazytime, lazyversion: true, ..LAZY }) {
            let looks = 1000;
            let each = |nth: u64| {
                if nth.is_multiple_of(100) {
                    mount.vfs.change(&mount.file).unwrap();
                }
            };
            let (cost, ticks) = mount.count(100 * looks, WriteFlags::empty(), each);
            let most = if lazytime { 0 } else { ticks };
            assert!(cost.inode_updates <= most, "{}: {cost:?} in {ticks} ticks", mount.name);
            assert_eq!(cost.inode_updates_version, 0, "{}: {cost:?}", mount.name);
            // Any log of the inode includes the bump.
            assert_eq!(cost.bumps, cost.bumps_deferred + cost.inode_updates, "{}: {cost:?}", mount.name);
            assert!(cost.bumps_deferred <= looks && cost.bumps >= looks, "{}: {cost:?}", mount.name);
            let before = mount.vfs.stats().inode_updates;
            mount.vfs.sync().unwrap();
            let written = mount.vfs.stats().inode_updates - before;
            assert!(written <= 1 && (written == 1 || !lazytime), "{}: {written} by sync", mount.name);
        }
    }
}

/// A loaded inode counts as queried: its first change bumps, the others do not.
#[test]
fn loading_an_inode_costs_one_update() {
    if !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let device = Arc::new(MemDevice::from_bytes(&image("ext4", &[])));
    for round in 0..2 {
        let budget = LAZYTIME.budget();
        let (vfs, _) = LAZYTIME.mount(open_ext4(device.clone(), budget.clone()), budget);
        let root = vfs.root().unwrap();
        if round == 0 {
            vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap();
        }
        let file = vfs.lookup(&Cred::root(), &root, b"f").unwrap();
        drop(root);
        let before = vfs.stats().inode_updates_version;
        vfs.write(&Cred::root(), &file, 0, b"x", WriteFlags::empty()).unwrap();
        vfs.fsync(&file, false).unwrap();
        assert_eq!(vfs.stats().inode_updates_version - before, round, "one update for the load");
        let mount = Mount { name: format!("ext4, mount {round}"), vfs: vfs.clone(), file };
        let (cost, _) = mount.count(1000, WriteFlags::empty(), |_| ());
        assert_eq!(cost.inode_updates_version, 0);
        drop(mount);
        vfs.unmount().unwrap();
    }
}
