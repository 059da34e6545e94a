//! Random changes through the VFS on images of many kinds. They are checked against a model in memory, also
//! after remounts; by `btrfs check`; and by Linux, which must see an equal tree and write on. `IVERS_SEED`
//! and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind, `IVERS_CHECK_EACH` checks the
//! image after each so many steps.

use crate::common::fill::{fill, in_dir};
use crate::common::storm::Storm;
use crate::common::*;
use ivers_crash::env;
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Kinds of images that are written.
const WRITABLE: &[&str] = &[
    "default",
    "nodes of 4 KiB",
    "nodes of 64 KiB",
    "xxhash64",
    "sha256",
    "blake2b",
    "mixed groups",
    "old features",
    "all single",
    "all DUP, a label",
    "zstd",
    "no checksums of data",
    "data in place",
    "RAID0",
    "RAID1",
    "RAID1C3",
    "RAID10",
];

fn each_kind(run: impl Fn(&Kind, &Images)) {
    let dir = tempfile::tempdir().unwrap();
    for kind in kinds_named(WRITABLE) {
        run(kind, &Images::make(dir.path(), kind));
    }
}

fn storm(kind: &Kind, images: &Images, mut storm: Storm, steps: u64) {
    let (name, check_each) = (kind.name, env("IVERS_CHECK_EACH").unwrap_or(0));
    for round in 0..3 {
        let what = format!("{name}, round {round}");
        for step in 0..steps {
            storm.step();
            if check_each > 0 && step % check_each == 0 {
                storm.vfs().sync().unwrap();
                assert_clean(images, &format!("{what}, step {step}"));
            }
        }
        storm.check(&what);
        let before = storm.values();
        storm.unmount();
        assert_clean(images, &what);
        storm.mount(mount_writable(images));
        assert!(kind.mount == "nodatacow" || storm.values() == before, "{what}: values after a remount");
        storm.check(&format!("{what}, mounted again"));
    }
    storm.unmount();
    assert_clean(images, name);
    let vfs = mount(images);
    let ours = our_tree(&vfs, true).unwrap();
    vfs.unmount().unwrap();
    drop(vfs);
    assert_same(&ours, &images.with_kernel("ro", kernel_tree), name);
}

#[test]
fn random_changes_of_all_kinds() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(400));
    each_kind(|kind, images| {
        println!("{}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        storm(kind, images, Storm::new(mount_writable(images), seed), steps);
        // Linux writes on, and finds its way.
        images.with_kernel(kind.mount, |root| {
            in_dir(root, "mkdir kernel; seq 1 90000 > kernel/f; rm -rf [0-4]*; sync")
        });
        assert_clean(images, kind.name);
    });
}

#[test]
fn files_that_share_extents() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(400));
    each_kind(|kind, images| {
        if !["default", "old features", "mixed groups"].contains(&kind.name) {
            return;
        }
        println!("{}: IVERS_SEED={seed} IVERS_STEPS={steps}", kind.name);
        let mut storm = Storm::new(mount_writable(images), seed);
        (0..60).for_each(|_| storm.step());
        for round in 0..3 {
            (0..steps).for_each(|_| storm.step_in_file());
            storm.check(kind.name);
            storm.unmount();
            assert_clean(images, &format!("{}, round {round}", kind.name));
            storm.mount(mount_writable(images));
        }
        storm.check(kind.name);
        storm.unmount();
        let ours = our_tree(&mount(images), true).unwrap();
        assert_same(&ours, &images.with_kernel("ro", kernel_tree), kind.name);
    });
}

/// Linux stores the free space of a group as bitmaps if it has many parts.
#[test]
fn free_space_in_bitmaps_is_kept() {
    if !can_fill() {
        return;
    }
    const FRAGMENTS: &str = "for i in $(seq 1 1200); do head -c 8192 /dev/zero > f$i; done; sync; \
                             rm $(seq -f f%g 1 2 1200); sync";
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS.iter().filter(|kind| ["default", "mixed groups"].contains(&kind.name)) {
        let images = Images::make(dir.path(), kind);
        images.with_kernel("", |root| in_dir(root, FRAGMENTS));
        let words = ["inspect-internal", "dump-tree", "-t", "10", images.paths[0].to_str().unwrap()];
        let dump = ivers_oracle::run("btrfs", words).unwrap();
        let bitmaps = String::from_utf8_lossy(&dump.stdout).matches("FREE_SPACE_BITMAP").count();
        assert!(bitmaps > 0, "{}: Linux made no bitmap", kind.name);
        let mut storm = Storm::of(mount_writable(&images), env("IVERS_SEED").unwrap_or(1));
        for round in 0..3 {
            (0..300).for_each(|_| storm.step());
            storm.vfs().sync().unwrap();
            assert_clean(&images, &format!("{}, round {round}", kind.name));
        }
        storm.check(kind.name);
        storm.unmount();
        assert_clean(&images, kind.name);
        images.with_kernel("", |root| in_dir(root, "rm -r f*; seq 1 300000 > g; sync"));
        assert_clean(&images, kind.name);
    }
}

#[test]
fn an_inode_has_many_names_in_a_directory() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let old = KINDS.iter().find(|kind| kind.name == "old features").unwrap();
    for (kind, most) in [(&DEFAULT, 3000), (old, 3000)] {
        let images = Images::make(dir.path(), kind);
        let vfs = mount_writable(&images);
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let (file, _) = vfs.create(&cred, &root, b"file", &CreateSpec::file(0o644), false).unwrap();
        let mut made = 0u32;
        while made < most {
            match vfs.link(&cred, &file, &root, format!("another-name-{made}").as_bytes(), false) {
                Ok(_) => made += 1,
                // Without extref, all names of a directory are in one item.
                Err(Error::Name(NameError::TooManyLinks)) if kind.name == old.name => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(made > 300 && (made == most || kind.name == old.name), "{}: {made}", kind.name);
        vfs.sync().unwrap();
        assert_clean(&images, kind.name);
        for number in (0..made).step_by(2) {
            vfs.unlink(&cred, &root, format!("another-name-{number}").as_bytes(), false).unwrap();
        }
        assert_eq!(vfs.stat(&file).nlink, 1 + made - made.div_ceil(2));
        drop((file, root));
        vfs.unmount().unwrap();
        assert_clean(&images, kind.name);
    }
}

/// All inodes below a directory that Linux lets users change, with their directory and their name.
fn all_below(vfs: &Arc<Vfs>) -> Vec<(InodeRef, Vec<u8>, InodeRef)> {
    let (cred, mut found) = (Cred::root(), Vec::new());
    let mut dirs = vec![vfs.root().unwrap()];
    while let Some(dir) = dirs.pop() {
        let mut names = Vec::new();
        vfs.readdir(&cred, &dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        for name in names.into_iter().filter(|name| !matches!(&name[..], b"." | b".." | b"fixed")) {
            let child = vfs.lookup(&cred, &dir, &name).unwrap();
            if child.kind == FileType::Directory {
                dirs.push(child.clone());
            }
            found.push((dir.clone(), name, child));
        }
    }
    found
}

fn change_all(vfs: &Arc<Vfs>) -> usize {
    let cred = Cred::root();
    let mut changed = 0;
    for (number, (dir, name, inode)) in all_below(vfs).into_iter().enumerate() {
        if inode.kind == FileType::Directory {
            // Not in a directory that stands for a subvolume.
            let spec = CreateSpec::of(FileType::Regular, 0o600);
            match vfs.create(&cred, &inode, b"made", &spec, false) {
                Ok((made, _)) => {
                    vfs.write(&cred, &made, 5000, b"new", WriteFlags::empty()).unwrap();
                }
                Err(Error::Name(NameError::NotPermitted)) => {}
                Err(error) => panic!("{error}"),
            }
            continue;
        }
        let size = vfs.stat(&inode).size;
        let is_file = inode.kind == FileType::Regular;
        let resize = |size| {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            vfs.set_attr(&cred, &inode, &set).unwrap();
        };
        changed += 1;
        match number % 9 {
            0 => {
                vfs.unlink(&cred, &dir, &name, false).unwrap();
            }
            1 if is_file => {
                vfs.write(&cred, &inode, size / 2, &[7; 3000], WriteFlags::empty()).unwrap();
            }
            2 if is_file => {
                vfs.write(&cred, &inode, size, &[8; 30_000], WriteFlags::empty()).unwrap();
            }
            3 if is_file => resize(size / 2),
            4 if is_file => resize(size + 10_000),
            5 if is_file => {
                vfs.set_xattr(&cred, &inode, b"user.more", &[9; 200], XattrMode::Any).unwrap();
            }
            6 => vfs
                .rename(&cred, &dir, &name, &dir, b"renamed", RenameFlags::empty(), false)
                .map(drop)
                .unwrap(),
            7 if is_file => {
                vfs.write(&cred, &inode, size + 100_000, &[8; 30], WriteFlags::empty()).unwrap();
                vfs.fsync(&inode, false).unwrap();
            }
            _ => changed -= 1,
        }
    }
    changed
}

/// What Linux does between two sessions of ivers.
const MORE: &str =
    "cp -r many more; rm -r links; btrfs -q subvolume snapshot sub third; echo x >> third/file; sync";

#[test]
fn what_linux_wrote_is_changed_and_removed() {
    if !can_fill() {
        return;
    }
    each_kind(|kind, images| {
        let name = kind.name;
        images.with_kernel(kind.mount, fill);
        let vfs = mount_writable(images);
        let changed = change_all(&vfs);
        assert!(changed > 500, "{name}: {changed}");
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(images, name);
        let ours = our_tree(&mount(images), true).unwrap();
        assert_same(&comparable(ours), &comparable(images.with_kernel("ro", kernel_tree)), name);
        // Linux goes on, and then everything goes.
        images.with_kernel(kind.mount, |root| in_dir(root, MORE));
        let vfs = mount_writable(images);
        let cred = Cred::root();
        for (dir, name, inode) in all_below(&vfs).into_iter().rev() {
            if inode.kind == FileType::Directory {
                // Subvolumes stay, and what has one.
                let _ = vfs.rmdir(&cred, &dir, &name, false);
            } else {
                let done = vfs.unlink(&cred, &dir, &name, false);
                assert!(
                    done.is_ok(),
                    "{name:?} in {:?}: {done:?}",
                    dir.ino,
                    name = name.escape_ascii().to_string()
                );
            }
        }
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(images, name);
        images.with_kernel(kind.mount, |root| {
            in_dir(root, "test -d sub; test ! -e many; seq 1 100000 > f; sync")
        });
        assert_clean(images, name);
    });
}
