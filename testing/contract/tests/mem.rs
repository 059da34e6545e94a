//! The contract on `mem`.

use ivers_contract::{Plan, run, run_concurrent};
use ivers_mem::Mem;
use ivers_vfs::{ChangeMode, MountOptions, Vfs};
use std::sync::Arc;
use std::time::Duration;

fn plan(seed: u64) -> Plan<'static> {
    Plan { seed, operations: 6000, remount: None }
}

fn options(mode: ChangeMode, lazytime: bool, cache_bytes: u64) -> MountOptions {
    MountOptions {
        mode,
        lazytime,
        cache_bytes,
        writeback_interval: Duration::from_millis(2),
        dirty_expire: Duration::ZERO,
        ..MountOptions::default()
    }
}

#[test]
fn random_operations_keep_the_contract() {
    for seed in 1..=4 {
        for (mode, lazytime) in
            [(ChangeMode::Lazy, false), (ChangeMode::Lazy, true), (ChangeMode::Eager, false)]
        {
            for cache_bytes in [256 << 10, 64 << 20] {
                let vfs = Vfs::mount(Arc::new(Mem::default()), options(mode, lazytime, cache_bytes)).unwrap();
                let (vfs, report) = run(vfs, &plan(seed));
                assert!(report.differed > 300 && report.rested > 100, "{report:?}");
                vfs.unmount().unwrap();
            }
        }
    }
}

#[test]
fn observers_are_never_misled() {
    let vfs = Vfs::mount(Arc::new(Mem::default()), options(ChangeMode::Lazy, true, 1 << 20)).unwrap();
    for pages in [1, 5] {
        let (writes, observations) = run_concurrent(&vfs, 2, pages, Duration::from_millis(500));
        assert!(writes > 100 && observations > 100);
    }
}
