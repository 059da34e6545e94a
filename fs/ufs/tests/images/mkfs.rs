//! New filesystems are sound for the checker, for sleuthkit, and for ivers, which fills them.

use crate::common::*;
use ivers_block::{Device, MemDevice};
use ivers_oracle::have_programs;
use ivers_ufs::layout::superblock::Version;
use ivers_ufs::mkfs::{MkfsOptions, mkfs, plan};
use ivers_vfs::{CreateSpec, Cred, Error, WriteFlags};
use std::fs;
use std::sync::Arc;

pub fn made(bytes: u64, options: &MkfsOptions) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(bytes));
    mkfs(&*device, options).unwrap();
    device
}

pub fn of(version: Version, block_size: u32) -> MkfsOptions {
    MkfsOptions {
        version,
        block_size,
        timestamp: 1_700_000_000,
        label: b"new".into(),
        ..MkfsOptions::default()
    }
}

#[test]
fn new_filesystems_have_no_findings_and_are_filled() {
    for version in [Version::Ufs1, Version::Ufs2] {
        // The last sizes have a short last group, and one that is left out.
        for (block_size, bytes) in [
            (4096, 4 << 20),
            (8192, 16 << 20),
            (32768, 64 << 20),
            (65536, 100 << 20),
            (4096, 61 << 20),
            (4096, 77_777_777),
        ] {
            let what = format!("{version:?}, blocks of {block_size} bytes, {bytes} bytes");
            let device = made(bytes, &of(version, block_size));
            assert_clean(device.clone(), &what);
            let vfs = mount_writable(device.clone());
            let (cred, root) = (Cred::root(), vfs.root().unwrap());
            let free = vfs.stat_fs().unwrap().blocks_free;
            for number in 0..100 {
                let name = format!("file {number}");
                let file =
                    vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
                vfs.write(&cred, &file, 0, &vec![number; 9000], WriteFlags::default()).unwrap();
            }
            vfs.sync().unwrap();
            assert!(vfs.stat_fs().unwrap().blocks_free < free, "{what}");
            for number in 0..100 {
                vfs.unlink(&cred, &root, format!("file {number}").as_bytes(), false).unwrap();
            }
            drop(root);
            vfs.unmount().unwrap();
            drop(vfs);
            assert_clean(device, &what);
        }
    }
}

#[test]
fn equal_options_make_equal_filesystems() {
    for version in [Version::Ufs1, Version::Ufs2] {
        let options = MkfsOptions { zeroed: true, ..of(version, 16384) };
        let fresh = made(32 << 20, &options).to_bytes();
        // Also on a device that had something else.
        let old = Arc::new(MemDevice::from_bytes(&vec![0xA5; 32 << 20]));
        mkfs(&*old, &of(version, 16384)).unwrap();
        assert_clean(old.clone(), "on old bytes");
        assert!(fresh == made(32 << 20, &options).to_bytes());
        let start = |bytes: &[u8]| bytes[..128 << 10].to_vec();
        assert!(start(&fresh) == start(&old.to_bytes()), "{version:?}: the structures differ");
    }
}

#[test]
fn sleuthkit_knows_new_filesystems() {
    if !have_programs(&["fsstat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (version, name) in [(Version::Ufs1, "UFS 1"), (Version::Ufs2, "UFS 2")] {
        fs::write(&image, made(64 << 20, &of(version, 32768)).to_bytes()).unwrap();
        let said = ivers_oracle::run("fsstat", [&image]).unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |bytes, options: &MkfsOptions| match plan(bytes, options) {
        Err(Error::Incompatible(why)) => why,
        other => panic!("{other:?}"),
    };
    let usual = MkfsOptions::default();
    assert!(refused(200_000, &usual).contains("needs about"));
    assert!(refused(1 << 30, &MkfsOptions { block_size: 2048, ..usual.clone() }).contains("4096 to 65536"));
    assert!(refused(1 << 30, &MkfsOptions { label: vec![b'x'; 32], ..usual.clone() }).contains("31 bytes"));
    assert!(refused(1 << 30, &MkfsOptions { reserved_percent: 100, ..usual.clone() }).contains("99"));
    let many = MkfsOptions { bytes_per_inode: Some(512), ..usual };
    assert!(refused(1 << 42, &many).contains("too large"));
    // Every size that is accepted works.
    for bytes in (100_000..3_000_000).step_by(77_777) {
        let options = of(Version::Ufs2, 4096);
        if plan(bytes, &options).is_ok() {
            let device = made(bytes, &options);
            assert!(device.size_bytes() == bytes);
            assert_clean(device, &bytes.to_string());
        }
    }
}
