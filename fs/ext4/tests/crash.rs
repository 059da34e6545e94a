//! The medium stops at some write: recovered by us, every image is whole, and nothing that was synced is lost.

mod common;

use common::{fsck, mkfs};
use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::path::Path;
use std::sync::Arc;

fn mount(device: Arc<dyn Device>) -> Result<Arc<Vfs>> {
    let fs = Ext4::open(device, OpenOptions { place: "test image".into(), ..OpenOptions::default() })?;
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() })
}

fn dump(device: &dyn Device, path: &Path) {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

/// What was acknowledged after so many recorded operations: name, contents, value handed out.
struct Synced {
    at: usize,
    name: String,
    content: Vec<u8>,
    change: u64,
}

fn work(vfs: &Arc<Vfs>, device: &FaultDevice, synced: &mut Vec<Synced>) {
    let cred = Cred::root();
    let root = vfs.root().unwrap();
    let mut state = 42;
    let (dir, _) = vfs.create(&cred, &root, b"d", &CreateSpec::directory(0o755), false).unwrap();
    for round in 0..120u64 {
        let name = format!("f{round}");
        let (file, _) = vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        let content = vec![round as u8 + 1; (random(&mut state) % 60_000) as usize];
        vfs.write(&cred, &file, 0, &content, WriteFlags::empty()).unwrap();
        match random(&mut state) % 6 {
            0 => {
                vfs.fsync(&file, false).unwrap();
                let change = vfs.change(&file).unwrap();
                synced.push(Synced { at: device.len(), name, content, change });
            }
            1 if round > 4 => {
                let other = format!("g{}", random(&mut state) % 20);
                let old = format!("f{}", round);
                vfs.rename(&cred, &dir, old.as_bytes(), &root, other.as_bytes(), RenameFlags::empty(), false)
                    .unwrap();
            }
            2 => {
                vfs.sync().unwrap();
                vfs.unlink(&cred, &dir, name.as_bytes(), false).unwrap();
            }
            3 => {
                vfs.set_attr(&cred, &file, &SetAttr { size: Some(1000), ..SetAttr::default() }).unwrap();
            }
            4 => {
                let (sub, _) = vfs
                    .create(&cred, &dir, format!("s{round}").as_bytes(), &CreateSpec::directory(0o755), false)
                    .unwrap();
                vfs.set_xattr(&cred, &sub, b"user.x", &[7; 300], XattrMode::Any).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn every_crash_leaves_a_whole_filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
    ] {
        mkfs(&path, args, 32 << 20);
        let base = Arc::new(MemDevice::from_bytes(&std::fs::read(&path).unwrap()));
        let device = Arc::new(FaultDevice::new(base));
        let mut synced = Vec::new();
        let vfs = mount(device.clone()).unwrap();
        work(&vfs, &device, &mut synced);
        vfs.unmount().unwrap();
        let end = device.len();
        drop(vfs);
        let mut state = 7;
        for round in 0..25 {
            let prefix = if round == 0 { end } else { random(&mut state) as usize % end };
            let salt = random(&mut state);
            // Writes since the last flush reach the medium or not, as it likes.
            let image = if round % 2 == 0 {
                device.image(prefix).unwrap()
            } else {
                device.image_where(prefix, |nth| (nth as u64).wrapping_mul(salt | 1) & 4 == 0).unwrap()
            };
            let what = format!("{args:?}, operation {prefix} of {end}, salt {salt}");
            let image: Arc<dyn Device> = Arc::new(image);
            let again = mount(image.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
            for file in synced.iter().filter(|file| file.at <= prefix) {
                let found = again
                    .resolve(&Cred::root(), format!("/d/{}", file.name).as_bytes(), true)
                    .unwrap_or_else(|error| panic!("{what}: {}: {error}", file.name));
                let mut out = vec![0; file.content.len() + 1];
                let got = again.read(&found, 0, &mut out).unwrap();
                assert!(out[..got] == file.content, "{what}: {}", file.name);
                let change = again.change(&found).unwrap();
                if round == 0 {
                    assert_eq!(change, file.change, "{what}: {}", file.name);
                } else {
                    assert!(change >= file.change, "{what}: {}", file.name);
                }
            }
            again.unmount().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(again);
            dump(&*image, &path);
            fsck(&path, &what);
        }
    }
}
