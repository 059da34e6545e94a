//! ivers reads volumes that mkfs.fat and mtools wrote, and they read what ivers writes.

use ivers_block::{FileDevice, OpenMode};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, fsck_fat, have_programs};
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Sizes and options of mkfs.fat: all widths of FAT entries, several sector and cluster sizes, one or more
/// FATs.
const VOLUMES: &[(u64, &[&str])] = &[
    (1_474_560, &[]),
    (2 << 20, &["-F", "12", "-s", "1"]),
    (8 << 20, &["-F", "12", "-f", "1", "-r", "512"]),
    (16 << 20, &[]),
    (32 << 20, &["-F", "16", "-s", "4", "-n", "LABEL"]),
    (64 << 20, &["-F", "16", "-S", "2048", "-R", "8"]),
    (40 << 20, &["-F", "32", "-s", "1"]),
    (64 << 20, &["-F", "32", "-f", "1", "-b", "12", "-R", "40"]),
    (300 << 20, &["-F", "32", "-S", "4096", "-f", "2"]),
    (600 << 20, &[]),
];

fn open(image: &Path, read_only: bool) -> Arc<Vfs> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(image, mode).unwrap());
    let options = OpenOptions::from(DriverOptions {
        read_only,
        place: image.display().to_string(),
        ..DriverOptions::default()
    });
    let fs = Fat::open(device, options).unwrap();
    Vfs::mount(fs, MountOptions { read_only, ..MountOptions::default() }).unwrap()
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(7) ^ seed).collect()
}

fn write(vfs: &Arc<Vfs>, dir: &InodeRef, name: &str, data: &[u8]) {
    let cred = Cred::root();
    let (file, _) = vfs.create(&cred, dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    assert_eq!(vfs.write(&cred, &file, 0, data, WriteFlags::empty()).unwrap(), data.len());
}

fn read(vfs: &Arc<Vfs>, path: &str) -> Vec<u8> {
    let file = vfs.resolve(&Cred::root(), path, true).unwrap();
    let mut data = vec![0; file.size() as usize];
    assert_eq!(vfs.read(&Cred::root(), &file, 0, &mut data).unwrap(), data.len());
    data
}

fn list(vfs: &Arc<Vfs>, path: &str) -> Vec<String> {
    let dir = vfs.resolve(&Cred::root(), path, true).unwrap();
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), &dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// Short and long names, of both cases and of other alphabets.
const NAMES: &[&str] = &["README.TXT", "readme.long", "Mixed Case Name.text", "übung 日本.txt", "a.b.c.d"];

#[test]
fn ivers_reads_what_mtools_writes() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    for (size, args) in VOLUMES {
        let image = FatImage::mkfs(*size, args).unwrap();
        let host = tempfile::tempdir().unwrap();
        image.mtools("mmd", &["::/Dir with a name"]).unwrap();
        for (nth, name) in NAMES.iter().enumerate() {
            let path = host.path().join(name);
            std::fs::write(&path, bytes(nth * 7001, nth as u8)).unwrap();
            image.mtools("mcopy", &["-m", &path.display().to_string(), "::/Dir with a name/"]).unwrap();
        }
        let vfs = open(&image.path(), true);
        let mut expected: Vec<_> = NAMES.iter().map(ToString::to_string).collect();
        expected.sort();
        assert_eq!(list(&vfs, "/Dir with a name"), expected, "{args:?}");
        for (nth, name) in NAMES.iter().enumerate() {
            let path = format!("/dir WITH a name/{}", name.to_uppercase());
            assert_eq!(read(&vfs, &path), bytes(nth * 7001, nth as u8), "{args:?} {name}");
        }
        assert_eq!(vfs.info().label, if args.contains(&"LABEL") { "LABEL" } else { "" });
        vfs.unmount().unwrap();
        drop(vfs);
        fsck_fat(&image.path()).unwrap();
    }
}

#[test]
fn mtools_and_fsck_read_what_ivers_writes() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    for (size, args) in VOLUMES {
        let image = FatImage::mkfs(*size, args).unwrap();
        let vfs = open(&image.path(), false);
        let root = vfs.root().unwrap();
        let (dir, _) = vfs.create(&cred, &root, b"Sub dir", &CreateSpec::directory(0o755), false).unwrap();
        for (nth, name) in NAMES.iter().enumerate() {
            write(&vfs, &dir, name, &bytes(nth * 9001, nth as u8));
            write(&vfs, &root, &format!("{nth} {name}"), &bytes(100, 1));
        }
        // Enough names to make the directory grow and to need numbers in short names.
        for nth in 0..150 {
            write(&vfs, &dir, &format!("number {nth} of many files.dat"), &bytes(nth, nth as u8));
        }
        for nth in (0..150).step_by(3) {
            vfs.unlink(&cred, &dir, format!("NUMBER {nth} of many files.dat").as_bytes(), false).unwrap();
        }
        let rename = |old: &InodeRef, from: &str, new: &InodeRef, to: &str| {
            vfs.rename(&cred, old, from.as_bytes(), new, to.as_bytes(), RenameFlags::empty(), false).unwrap();
        };
        rename(&root, "0 README.TXT", &dir, "moved here with quite a long name.txt");
        rename(&root, "1 readme.long", &root, "1 README.long");
        rename(&dir, "number 1 of many files.dat", &dir, "number 2 of many files.dat");
        let (inner, _) = vfs.create(&cred, &dir, b"inner", &CreateSpec::directory(0o755), false).unwrap();
        write(&vfs, &inner, "deep", b"down");
        rename(&dir, "inner", &root, "outer");
        // Grow past the end, truncate, grow again.
        let file = vfs.resolve(&cred, "/sub dir/readme.long", true).unwrap();
        for size in [50_000, 700, 3000] {
            vfs.set_attr(&cred, &file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        }
        vfs.unmount().unwrap();
        drop((vfs, file, inner, dir, root));
        let text = fsck_fat(&image.path()).unwrap();
        assert!(!text.contains("wrong") && !text.contains("differ"), "{args:?}: {text}");

        let get = |path: &str| image.mtools("mtype", &[path]).unwrap();
        for (nth, name) in NAMES.iter().enumerate().filter(|(nth, _)| *nth != 1) {
            assert_eq!(get(&format!("::/Sub dir/{name}")), bytes(nth * 9001, nth as u8), "{args:?} {name}");
        }
        let mut truncated = bytes(9001, 1);
        truncated.truncate(700);
        truncated.resize(3000, 0);
        assert_eq!(get("::/Sub dir/readme.long"), truncated);
        assert_eq!(get("::/Sub dir/number 2 of many files.dat"), bytes(1, 1));
        assert_eq!(get("::/Sub dir/moved here with quite a long name.txt"), bytes(100, 1));
        assert_eq!(get("::/outer/deep"), b"down");
        let listing = String::from_utf8_lossy(&image.mtools("mdir", &["-b", "::/"]).unwrap()).into_owned();
        assert!(listing.contains("::/1 README.long") && !listing.contains("0 README"), "{listing}");

        let vfs = open(&image.path(), true);
        assert_eq!(list(&vfs, "/Sub dir").len(), NAMES.len() + 100 - 1 + 1, "{args:?}");
        assert_eq!(read(&vfs, "/Sub dir/README.LONG"), truncated);
        vfs.unmount().unwrap();
    }
}

/// A page may span several clusters. A write to a page that is already dirty may need another cluster, and
/// fails if there is none.
#[test]
fn a_write_to_a_dirty_page_reserves_its_cluster_or_fails() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let cred = Cred::root();
    for cluster in ["1", "2", "4"] {
        let image = FatImage::mkfs(720 << 10, &["-F", "12", "-s", cluster, "-r", "2048"]).unwrap();
        let vfs = open(&image.path(), false);
        let root = vfs.root().unwrap();
        write(&vfs, &root, "keep", &bytes(100, 1));
        let keep = vfs.resolve(&cred, "/keep", true).unwrap();
        let (filler, _) = vfs.create(&cred, &root, b"filler", &CreateSpec::file(0o644), false).unwrap();
        let mut filled = 0;
        while vfs.write(&cred, &filler, filled, &[1; 512], WriteFlags::empty()).is_ok() {
            filled += 512;
        }
        let end = (1..40)
            .map(|nth| nth * 100)
            .find(|&at| vfs.write(&cred, &keep, at, &[2; 100], WriteFlags::empty()).is_err());
        let end = end.expect("the volume becomes full") as usize;
        vfs.fsync(&keep, false).unwrap();
        vfs.unmount().unwrap();
        drop((vfs, keep, filler, root));
        fsck_fat(&image.path()).unwrap();
        let vfs = open(&image.path(), true);
        let mut whole = bytes(100, 1);
        whole.resize(end, 2);
        assert_eq!(read(&vfs, "/keep"), whole);
        assert_eq!(read(&vfs, "/filler"), vec![1; filled as usize]);
        vfs.unmount().unwrap();
    }
}

/// A session that allocates nothing does not scan the table. The number of free clusters is right anyway.
#[test]
fn a_session_that_only_frees_leaves_the_right_number_of_free_clusters() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    for (size, options) in VOLUMES.iter().filter(|(size, _)| *size < 100 << 20) {
        let image = FatImage::mkfs(*size, options).unwrap();
        let vfs = open(&image.path(), false);
        let root = vfs.root().unwrap();
        write(&vfs, &root, "removed", &bytes(300_000, 1));
        write(&vfs, &root, "shorter", &bytes(300_000, 2));
        vfs.unmount().unwrap();
        drop((root, vfs));
        let vfs = open(&image.path(), false);
        let (root, cred) = (vfs.root().unwrap(), Cred::root());
        vfs.unlink(&cred, &root, b"removed", false).unwrap();
        let file = vfs.resolve(&cred, "/shorter", true).unwrap();
        vfs.set_attr(&cred, &file, &SetAttr { size: Some(10), ..SetAttr::default() }).unwrap();
        vfs.unmount().unwrap();
        drop((root, file, vfs));
        let said = fsck_fat(&image.path()).unwrap();
        assert!(!said.contains("summary wrong"), "{size} {options:?}: {said}");
    }
}
