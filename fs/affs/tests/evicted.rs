//! What has left memory since it was changed is still in a batch: that its next change may have to wait for the last one must not be forgotten with it.

mod common;

use common::*;
use ivers_affs::Affs;
use ivers_block::{Device, FaultDevice};
use ivers_crash::states::States;
use ivers_vfs::{CreateSpec, MountOptions, SetAttr, Vfs};
use std::sync::Arc;

/// Files that are looked at so that others leave a memory of `CACHE_BYTES`.
const OTHERS: usize = 200;
const CACHE_BYTES: u64 = 64 << 10;

fn truncate(vfs: &Arc<Vfs>, path: &str, size: u64) {
    let size = SetAttr { size: Some(size), ..SetAttr::default() };
    vfs.set_attr(&root(), &find(vfs, path), &size).unwrap();
}

/// Looks at so many other files that this one leaves memory.
fn evict(vfs: &Arc<Vfs>, path: &str) {
    let change = vfs.change(&find(vfs, path));
    for nth in (0..OTHERS).chain(0..OTHERS) {
        find(vfs, &format!("/others/{nth}"));
    }
    assert_ne!(vfs.change(&find(vfs, path)), change, "{path} is still in memory");
}

#[test]
fn what_was_cut_may_leave_memory() {
    for low in [0, 1, 5] {
        let base = fresh(low, 512, DD);
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
                    let whole = ivers_oracle::affs::check(&bytes, 512).crashed();
                    assert!(whole.is_ok(), "DOS\\{low}, {size}, {state:?}: {:?}", whole.err());
                })
                .unwrap();
            println!("DOS\\{low}, cut to {size}: {states} states");
        }
    }
}
