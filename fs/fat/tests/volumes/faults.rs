//! Failing devices: data that cannot be stored is refused, not accepted and lost.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, have_programs};
use ivers_vfs::*;
use std::sync::Arc;

#[test]
fn a_volume_refuses_data_after_a_failed_metadata_write() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let image = FatImage::mkfs(4 << 20, &["-F", "12"]).unwrap();
    let base = Arc::new(MemDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
    let device = Arc::new(FaultDevice::new(base));
    let fat = Fat::open(device.clone() as Arc<dyn Device>, OpenOptions::default()).unwrap();
    let vfs = Vfs::mount(fat, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let cred = Cred::root();
    let spec = CreateSpec::file(0o644);
    let (file, _) = vfs.create(&cred, &vfs.root().unwrap(), b"f", &spec, false).unwrap();
    let append = || vfs.write(&cred, &file, 0, &[7; 5000], WriteFlags::APPEND);
    append().unwrap();
    vfs.fsync(&file, false).unwrap();

    // A new name has no data, so the failing write is one of metadata.
    vfs.create(&cred, &vfs.root().unwrap(), b"g", &spec, false).unwrap();
    device.fail_writes_from(Some(device.writes()));
    assert!(vfs.sync().is_err());
    device.fail_writes_from(None);
    for _ in 0..3 {
        assert!(matches!(append(), Err(Error::Io(_))), "data after writing stopped");
    }
}
