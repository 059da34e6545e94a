//! What ivers wrote, read by sleuthkit.

use crate::common::storm::Storm;
use crate::common::*;
use crate::read::sleuthkit_names;
use ivers_block::MemDevice;
use ivers_oracle::have_programs;
use ivers_ufs::layout::superblock::Version;
use ivers_ufs::mkfs::{MkfsOptions, mkfs};
use ivers_vfs::Cred;
use std::sync::Arc;

/// The kinds that sleuthkit reads: UFS2 of makefs has its superblock where it does not look.
fn readable() -> impl Iterator<Item = &'static Kind<'static>> {
    KINDS.iter().filter(|(name, _)| name.starts_with("ufs1"))
}

/// Changes a small image at random.
pub fn changed(kind: &Kind<'static>) -> Vec<u8> {
    change(Arc::new(MemDevice::from_bytes(&small_image_of(kind))))
}

/// Makes a small filesystem, and changes it at random.
pub fn made(version: Version) -> Vec<u8> {
    let device = Arc::new(MemDevice::new(10 << 20));
    mkfs(&*device, &MkfsOptions { version, block_size: 8192, ..MkfsOptions::default() }).unwrap();
    change(device)
}

fn change(device: Arc<MemDevice>) -> Vec<u8> {
    let mut storm = Storm::of(mount_writable(device.clone()), 5);
    (0..600).for_each(|_| storm.step());
    storm.unmount();
    device.to_bytes()
}

#[test]
fn sleuthkit_finds_the_names_that_ivers_wrote() {
    if !have_makefs() || !have_programs(&["fls"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let of_makefs = readable().map(|kind| (kind.0, changed(kind)));
    let ours = [("UFS1 of ivers", made(Version::Ufs1)), ("UFS2 of ivers", made(Version::Ufs2))];
    for (name, image) in of_makefs.chain(ours) {
        std::fs::write(&path, &image).unwrap();
        let vfs = mount_device(memory(&image)).unwrap();
        let ino = |path: &str| vfs.resolve(&Cred::root(), path, false).unwrap().ino.0;
        let mut ours: Vec<_> =
            our_tree(&vfs, false).unwrap().into_keys().map(|path| (ino(&path), path)).collect();
        ours.sort();
        let mut theirs = sleuthkit_names(&path);
        // Sleuthkit also lists names that were removed, as those of inode 0.
        theirs.retain(|(ino, _)| *ino != 0);
        assert_eq!(ours, theirs, "{name}");
    }
}
