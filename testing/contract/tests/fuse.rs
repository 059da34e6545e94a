//! The contract through FUSE, write-back cache on: `mem` and ext4, as programs see them. What is claimed is read from the mount.

mod common;

use common::*;
use ivers_block::{Device, MemDevice};
use ivers_contract::{Promise, Subject, Tallies, observe};
use ivers_mem::Mem;
use std::sync::Arc;
use std::time::Duration;

fn mem_mounted(how: How) -> Box<dyn Subject> {
    let name = format!("mem through FUSE, {}", how.label());
    fuse(&name, false, move || how.mount(Arc::new(Mem::default()), how.budget()))
}

fn ext4_mounted(name: &str, base: &Arc<Vec<u8>>, hows: &'static [How]) -> Box<dyn Subject> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(base));
    let mut mounts = hows.iter().cycle();
    let labels: Vec<_> = hows.iter().map(|how| how.label()).collect();
    fuse(&format!("{name} through FUSE, {}", labels.join(" then ")), true, move || {
        let how = *mounts.next().expect("a cycle");
        let budget = how.budget();
        how.mount(open_ext4(device.clone(), budget.clone()), budget)
    })
}

#[test]
fn mem_keeps_the_contract() {
    if !can_mount() {
        return;
    }
    println!("{}", Tallies::header());
    for how in [LAZY, EAGER, TIGHT] {
        let report = hold(&mut || mem_mounted(how), seed(), steps(1500));
        assert!(report.tallies.of(Promise::Data).checked > 60, "{report:?}");
        assert!(report.tallies.of(Promise::Rests).checked > 60, "{report:?}");
    }
}

#[test]
fn ext4_keeps_the_contract() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    for (name, kind, args) in KINDS {
        let base = Arc::new(image(kind, args));
        let report = hold(&mut || ext4_mounted(name, &base, &[LAZY, EAGER, LAZYTIME]), seed(), steps(1000));
        assert!(report.tallies.of(Promise::Data).checked > 40, "{report:?}");
    }
}

#[test]
fn off_serves_nothing_and_nothing_vouches_for_its_changes() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let report = hold(&mut || mem_mounted(OFF), seed(), steps(600));
    assert!(!report.claims.cookie && report.tallies.of(Promise::Cookie).checked > 20);
    let base = Arc::new(image("ext4", &[]));
    hold(&mut || ext4_mounted("ext4", &base, &[LAZY, OFF]), seed(), steps(1500));
}

#[test]
fn observers_are_never_misled() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.ext4"]) {
        return;
    }
    let base = Arc::new(image("ext4", &[]));
    for mut subject in [mem_mounted(LAZY), ext4_mounted("ext4", &base, &[LAZY])] {
        for pages in [1, 5, 300] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            let found = observe(&*file, 2, pages, Duration::from_millis(800));
            hold_threads(&format!("{}, {pages} pages", subject.name()), &found);
            assert!(found.of(Promise::Monotonic).checked > 5);
        }
    }
}
