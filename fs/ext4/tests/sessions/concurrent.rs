//! Concurrent work on one inode: write-back, which takes no lock of the data, and requests that do.

use crate::common::{fsck, mkfs, mount};
use ivers_block::MemDevice;
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::Path;
use std::sync::Arc;

/// Mounts an image in memory, for many fast rounds.
fn mounted(path: &Path, args: &[&str]) -> (Arc<MemDevice>, Arc<Ext4>, Arc<Vfs>) {
    mkfs(path, args, 64 << 20);
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(path).unwrap()));
    let ext4 = Ext4::open(device.clone(), OpenOptions::default()).unwrap();
    let options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(ext4.clone(), options).unwrap();
    (device, ext4, vfs)
}

/// Runs `f` and `g` concurrently, `rounds` times each.
fn together(rounds: u64, f: impl Fn(u64) + Sync, g: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| (0..rounds).for_each(&f));
        scope.spawn(|| (0..rounds).for_each(&g));
    });
}

/// Whatever logs last, the counter in the slot never decreases.
#[test]
fn the_stored_counter_never_decreases() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let (_, ext4, vfs) = mounted(&path, &["-t", "ext4"]);
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o600), false).unwrap();
    let ino = file.ino.0 as u32;
    let stored = || {
        let slot = ext4.raw_inode(ino).unwrap();
        u64::from(u32::from_le_bytes(slot[0x24..0x28].try_into().unwrap()))
    };
    together(
        8000,
        |i| {
            vfs.write(&cred, &file, i % 4096 * 4096, &[1], WriteFlags::empty()).unwrap();
            vfs.fsync(&file, true).unwrap();
        },
        |i| {
            vfs.change(&file).unwrap();
            let perm = Some(0o600 | (i & 7) as u32);
            vfs.set_attr(&cred, &file, &SetAttr { perm, ..SetAttr::default() }).unwrap();
            // The running transaction holds this value; only a higher one may follow.
            let logged = file.counter.peek();
            for _ in 0..20 {
                assert!(stored() >= logged, "{} after {logged}", stored());
            }
        },
    );
    drop((root, file));
    vfs.unmount().unwrap();
}

/// One field counts the blocks of data and of attributes.
#[test]
fn block_counts_stay_exact() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let (device, _, vfs) = mounted(&path, &["-t", "ext3", "-b", "4096", "-I", "128"]);
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    for round in 0..400u64 {
        let name = format!("f{round}");
        let (file, _) = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap();
        together(
            12,
            |i| {
                vfs.write(&cred, &file, i * 4096, &[1], WriteFlags::empty()).unwrap();
                vfs.fsync(&file, true).unwrap();
            },
            |_| {
                vfs.set_xattr(&cred, &file, b"user.a", &[1; 100], XattrMode::Any).unwrap();
                vfs.remove_xattr(&cred, &file, b"user.a").unwrap();
            },
        );
        assert_eq!(vfs.stat(&file).blocks_512, 12 * 8, "round {round}");
    }
    drop(root);
    vfs.unmount().unwrap();
    std::fs::write(&path, device.to_bytes()).unwrap();
    fsck(&path, "side by side");
}

#[test]
fn data_written_back_during_seek_hole_is_not_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, &["-t", "ext4"], 64 << 20);
    // A real file: write-back takes time.
    let vfs = mount(&image);
    let (root, cred) = (vfs.root().unwrap(), Cred::root());
    let data = vec![7; 4 << 20];
    for _ in 0..150 {
        let (file, _) = vfs.create(&cred, &root, b"f", &CreateSpec::file(0o644), false).unwrap();
        assert_eq!(vfs.write(&cred, &file, 0, &data, WriteFlags::empty()).unwrap(), data.len());
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| vfs.sync().unwrap());
            while !sync.is_finished() {
                assert_eq!(vfs.seek_hole(&file, 0).unwrap(), data.len() as u64);
            }
        });
        vfs.unlink(&cred, &root, b"f", false).unwrap();
    }
    vfs.unmount().unwrap();
}
