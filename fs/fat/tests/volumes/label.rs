//! Setting the label: a crash at any write leaves the old label or the new one.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_fat::mkfs::{FatType, MkfsOptions, mkfs};
use ivers_fat::{Fat, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;

fn open(device: Arc<dyn Device>, read_only: bool) -> Arc<Vfs> {
    let common = DriverOptions { read_only, ..DriverOptions::default() };
    let fat = Fat::open(device, OpenOptions::from(common)).unwrap();
    Vfs::mount(fat, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

#[test]
fn a_crash_leaves_the_old_label_or_the_new_one() {
    for (fat_type, bytes) in
        [(FatType::Fat12, 1 << 20), (FatType::Fat16, 10 << 20), (FatType::Fat32, 34 << 20)]
    {
        for (old, new) in [("OLD", "NEW"), ("", "NEW"), ("OLD", "")] {
            let base = Arc::new(MemDevice::new(bytes));
            let options = MkfsOptions {
                fat_type: Some(fat_type),
                label: old.into(),
                zeroed: true,
                ..MkfsOptions::default()
            };
            mkfs(&*base, &options).unwrap();
            let device = Arc::new(FaultDevice::new(base));
            let vfs = open(device.clone(), false);
            // Names beside the label, before and after it.
            let spec = CreateSpec::file(0o644);
            let create = |name: &[u8]| {
                vfs.create(&Cred::root(), &vfs.root().unwrap(), name, &spec, false).map(drop).unwrap();
            };
            create(b"before");
            vfs.sync().unwrap();
            let start = device.len();
            vfs.set_label(new).unwrap();
            create(b"a long name after it");
            vfs.unmount().unwrap();
            for crash in start..=device.len() {
                let label = open(Arc::new(device.image(crash).unwrap()), true).info().label.clone();
                assert!(label == old || label == new, "{fat_type:?}, {old:?} to {new:?}, {crash}: {label:?}");
            }
            let vfs = open(device, true);
            assert_eq!(vfs.info().label, new);
            for name in [&b"before"[..], b"a long name after it"] {
                vfs.lookup(&Cred::root(), &vfs.root().unwrap(), name).unwrap();
            }
        }
    }
}
