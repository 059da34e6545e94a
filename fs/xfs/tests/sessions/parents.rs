//! Parent pointers: hidden from users, and right for files of many names in filesystems with a small log.

use crate::common::parents::{KINDS, judge};
use crate::common::*;
use ivers_block::{FileDevice, OpenMode};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::can_loop_mount;
use ivers_vfs::*;
use ivers_xfs::mkfs::{Features, MkfsOptions, mkfs};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

/// Names of each file.
const NAMES: usize = 1000;

fn create(vfs: &Arc<Vfs>, dir: &InodeRef, name: &str, kind: FileType) -> InodeRef {
    vfs.create(&Cred::root(), dir, name.as_bytes(), &CreateSpec::of(kind, 0o755), false).unwrap().0
}

#[test]
fn users_see_no_parent_pointers() {
    if !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    KINDS[0].make(&image);
    let vfs = mount_writable(&image);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let file = create(&vfs, &root, "name", FileType::Regular);
    let names = || vfs.list_xattr(&cred, &file).unwrap();
    let before = names();
    for prefix in ["user", "trusted", "security"] {
        let as_attribute = format!("{prefix}.name").into_bytes();
        let absent = vfs.get_xattr(&cred, &file, &as_attribute);
        assert!(matches!(absent, Err(Error::Name(NameError::NoAttribute))), "{prefix}: {absent:?}");
        assert!(vfs.remove_xattr(&cred, &file, &as_attribute).is_err(), "{prefix}");
        // An attribute of the same name is another one.
        vfs.set_xattr(&cred, &file, &as_attribute, b"value", XattrMode::Create).unwrap();
        assert_eq!(vfs.get_xattr(&cred, &file, &as_attribute).unwrap(), b"value");
    }
    // In blocks, and in the inode again.
    vfs.set_xattr(&cred, &file, b"user.long", &[7; 3000], XattrMode::Any).unwrap();
    for name in names().into_iter().filter(|name| !before.contains(name)) {
        vfs.remove_xattr(&cred, &file, &name).unwrap();
    }
    assert_eq!(names(), before);
    drop(file);
    // A file without a name has none until it gets a name.
    let unnamed = vfs.create_unnamed(&cred, &root, &CreateSpec::of(FileType::Regular, 0o600)).unwrap();
    vfs.link(&cred, &unnamed, &root, b"named later", false).unwrap();
    drop((unnamed, root));
    vfs.unmount().unwrap();
    drop(vfs);
    judge(&image, "all attributes of users are gone");
}

/// The smallest image: its log holds the least.
fn make_small(image: &Path, block_size: u32) {
    std::fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
    let device = FileDevice::open(image, OpenMode::ReadWrite).unwrap();
    let options = MkfsOptions {
        block_size,
        features: Features::parse("parent,exchange").unwrap(),
        uuid: [6; 16],
        small: true,
        zeroed: true,
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).unwrap();
}

#[test]
fn files_of_many_names_are_renamed_exchanged_and_removed() {
    if !can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for block_size in [1024, 4096] {
        make_small(&image, block_size);
        let mut random = StdRng::seed_from_u64(block_size.into());
        let vfs = mount_writable(&image);
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let dirs = ["one", "two"].map(|name| create(&vfs, &root, name, FileType::Directory));
        let fresh = |random: &mut StdRng, nth: usize| {
            format!("{nth:05}{}", "n".repeat(random.random_range(0..=250))).into_bytes()
        };
        // Each name, and its directory.
        let mut all: Vec<(Vec<u8>, usize)> = Vec::new();
        for name in ["first", "second"] {
            let file = create(&vfs, &root, name, FileType::Regular);
            for nth in 0..NAMES {
                let (name, dir) = (fresh(&mut random, all.len()), nth % 2);
                vfs.link(&cred, &file, &dirs[dir], &name, false).unwrap();
                all.push((name, dir));
            }
        }
        vfs.unlink(&cred, &root, b"first", false).unwrap();
        vfs.unlink(&cred, &root, b"second", false).unwrap();
        for nth in 0..600 {
            let at = random.random_range(0..all.len());
            let (old, from) = all[at].clone();
            if nth % 2 == 0 {
                let (new, to) = all.choose(&mut random).unwrap().clone();
                let (from, to) = (&dirs[from], &dirs[to]);
                vfs.rename(&cred, from, &old, to, &new, RenameFlags::EXCHANGE, false).unwrap();
            } else {
                let (new, to) = (fresh(&mut random, 2 * NAMES + nth), random.random_range(0..2));
                vfs.rename(&cred, &dirs[from], &old, &dirs[to], &new, RenameFlags::empty(), false).unwrap();
                all[at] = (new, to);
            }
        }
        vfs.sync().unwrap();
        let copy = dir.path().join("copy");
        copy_image(&image, &copy);
        assert_clean(&copy, "not unmounted");
        let what = format!("blocks of {block_size}");
        all.shuffle(&mut random);
        for (nth, (name, dir)) in all.iter().enumerate() {
            vfs.unlink(&cred, &dirs[*dir], name, false)
                .unwrap_or_else(|error| panic!("{what}, {nth}: {error}"));
        }
        drop((dirs, root));
        vfs.unmount().unwrap();
        drop(vfs);
        judge(&image, &what);
        LoopMount::new(&copy, "nouuid").unwrap().unmount().unwrap();
        judge(&copy, &format!("{what}, replayed by Linux"));
    }
}
