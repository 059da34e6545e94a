//! A device that fails: what cannot be stored is refused, not accepted and lost.

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, have_programs};
use ivers_vfs::*;
use std::sync::Arc;

#[test]
fn a_volume_that_has_stopped_accepts_no_data() {
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

    // A name has no data: what fails is a write of the volume's own.
    vfs.create(&cred, &vfs.root().unwrap(), b"g", &spec, false).unwrap();
    device.fail_writes_from(Some(device.writes()));
    assert!(vfs.sync().is_err());
    device.fail_writes_from(None);
    for _ in 0..3 {
        assert!(matches!(append(), Err(Error::Io(_))), "it could only be lost");
    }
}
