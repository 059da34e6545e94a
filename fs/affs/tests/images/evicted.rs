//! Eviction of changed inodes: an evicted inode may still be in a batch, and its next change must wait for
//! that batch if it depends on it.

use crate::common::*;
use ivers_affs::Affs;
use ivers_block::{Device, FaultDevice};
use ivers_crash::states::States;
use ivers_vfs::{CreateSpec, MountOptions, SetAttr, Vfs};
use std::sync::Arc;

/// Number of files whose lookups evict the others from a cache of `CACHE_BYTES`.
const OTHERS: usize = 200;
const CACHE_BYTES: u64 = 64 << 10;

fn truncate(vfs: &Arc<Vfs>, path: &str, size: u64) {
    let size = SetAttr { size: Some(size), ..SetAttr::default() };
    vfs.set_attr(&root(), &find(vfs, path), &size).unwrap();
}

/// Evicts a file by looking up many others.
fn evict(vfs: &Arc<Vfs>, path: &str) {
    let change = vfs.change(&find(vfs, path));
    for nth in (0..OTHERS).chain(0..OTHERS) {
        find(vfs, &format!("/others/{nth}"));
    }
    assert_ne!(vfs.change(&find(vfs, path)), change, "{path} is still in memory");
}

#[test]
fn evicted_inode_grows_only_after_its_truncation_is_durable() {
    for low_byte in [0, 1, 5] {
        let base = fresh(low_byte, 512, DD);
        let vfs = mount(&base);
        put(&vfs, "/a", &pattern(1, 60_000));
        make(&vfs, "/others", &CreateSpec::directory(0o755));
        for nth in 0..OTHERS {
            make(&vfs, &format!("/others/{nth}"), &CreateSpec::file(0o644));
        }
        vfs.unmount().unwrap();
        for size in [100, 1000, 40_000] {
            let device = Arc::new(FaultDevice::new(base.clone()));
            let fs = Affs::open(device.clone() as Arc<dyn Device>, writable()).unwrap();
            let options =
                MountOptions { background: false, cache_bytes: CACHE_BYTES, ..MountOptions::default() };
            let vfs = Vfs::mount(fs, options).unwrap();
            truncate(&vfs, "/a", size);
            evict(&vfs, "/a");
            write(&vfs, &find(&vfs, "/a"), size, &pattern(2, 5000));
            vfs.unmount().unwrap();
            drop(vfs);
            let states = States::new(base.clone(), &device.record(), 1)
                .each_content(|state, bytes| {
                    let whole = ivers_affs::check::report(&bytes, 512).crashed();
                    assert!(whole.is_ok(), "DOS\\{low_byte}, {size}, {state:?}: {:?}", whole.err());
                })
                .unwrap();
            println!("DOS\\{low_byte}, truncated to {size}: {states} states");
        }
    }
}
