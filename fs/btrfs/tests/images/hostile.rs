//! Images that are damaged on purpose: no panic, no hang, bounded memory, and errors that say what is wrong.

use crate::common::damage::{Damager, SUPER, change_super};
use crate::common::fill::fill;
use crate::common::*;
use ivers_block::Budget;
use ivers_btrfs::OpenOptions;
use ivers_vfs::*;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// An image that the kernel filled.
fn filled(dir: &Path, name: &str) -> Vec<u8> {
    let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
    let images = Images::make(dir, kind);
    images.with_kernel(kind.mount, fill);
    images.bytes().remove(0)
}

/// A small image that mkfs.btrfs filled. Needs no root.
fn small(dir: &Path) -> Vec<u8> {
    let source = dir.join("source");
    std::fs::create_dir_all(source.join("d")).unwrap();
    for number in 0..300 {
        std::fs::write(source.join(format!("d/file-{number}")), vec![number as u8; number * 20]).unwrap();
    }
    std::os::unix::fs::symlink("d/file-7", source.join("link")).unwrap();
    let image = dir.join("small");
    std::fs::File::create(&image).unwrap().set_len(120 << 20).unwrap();
    let words = ["-q", "-f", "-r", source.to_str().unwrap(), image.to_str().unwrap()];
    ivers_oracle::run("mkfs.btrfs", words).unwrap();
    ivers_oracle::read_image(&image).unwrap()
}

fn have_mkfs() -> bool {
    ivers_oracle::have_programs(&["mkfs.btrfs"])
}

#[test]
fn what_mkfs_filled_is_read() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let vfs = open(vec![memory(&small(dir.path()))], reading()).unwrap();
    let cred = Cred::root();
    // mkfs.btrfs stores a zero after the target, unlike Linux.
    let link = vfs.resolve(&cred, "/link", false).unwrap();
    assert_eq!(vfs.read_link(&cred, &link).unwrap(), b"d/file-7");
    let file = vfs.resolve(&cred, "/link", true).unwrap();
    assert_eq!(read_all(&vfs, &file).unwrap(), [7; 140]);
}

#[test]
fn features_are_refused_by_name() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = small(dir.path());
    let refused = |at: usize, bits: u64, words: &[&str]| {
        let mut bytes = good.clone();
        change_super(&mut bytes, |block| {
            let value = damage::number64(block, at) | bits;
            block[at..at + 8].copy_from_slice(&value.to_le_bytes());
        });
        let error =
            open(vec![memory(&bytes)], reading()).err().unwrap_or_else(|| panic!("{words:?}: it opens"));
        assert!(matches!(error, Error::Incompatible(_)), "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}: {words:?}");
    };
    const INCOMPAT: usize = 0xbc;
    const FLAGS: usize = 0x38;
    refused(INCOMPAT, 0x80, &["raid56"]);
    refused(INCOMPAT, 0x1000, &["zoned"]);
    refused(INCOMPAT, 0x2000, &["extent-tree-v2"]);
    refused(INCOMPAT, 0x4000, &["raid-stripe-tree"]);
    refused(INCOMPAT, 1 << 50, &["unknown-0x4000000000000"]);
    refused(FLAGS, 1 << 32, &["seeding"]);
    refused(FLAGS, 1 << 34, &["metadump-v2"]);
    refused(FLAGS, 1 << 35, &["changing-fsid"]);
    refused(0xc4, 9, &["checksums of type 9"]);
    refused(0x88, 2, &["devices are missing"]);
    // What only concerns writers does not matter.
    let mut bytes = good.clone();
    change_super(&mut bytes, |block| block[0xb4 + 5] = 1);
    assert!(open(vec![memory(&bytes)], reading()).is_ok());
}

#[test]
fn a_log_tree_that_cannot_be_read_is_named() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = small(dir.path());
    change_super(&mut bytes, |block| block[0x60..0x68].copy_from_slice(&(1u64 << 20).to_le_bytes()));
    let said = open(vec![memory(&bytes)], reading()).err().expect("it opens").to_string();
    assert!(said.contains("log tree") && said.contains("norecovery"), "{said}");
    assert!(open(vec![memory(&bytes)], OpenOptions { no_replay: true, ..reading() }).is_ok());
    // A feature that forbids changes also forbids the replay.
    change_super(&mut bytes, |block| block[0xb4 + 5] = 1);
    let said = open(vec![memory(&bytes)], reading()).err().expect("it opens").to_string();
    assert!(said.contains("unknown-0x10000000000") && said.contains("norecovery"), "{said}");
}

#[test]
fn a_truncated_image_is_refused() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = small(dir.path());
    for len in [0, 1, 4096, SUPER, SUPER + 100, SUPER + 4096, 1 << 20, 30 << 20, (120 << 20) - 4096] {
        let error =
            open(vec![memory(&good[..len])], reading()).err().unwrap_or_else(|| panic!("{len}: it opens"));
        assert!(matches!(error, Error::Corrupt { .. }), "{len}: {error}");
    }
}

#[test]
fn every_change_of_a_read_only_mount_is_refused() {
    if !have_mkfs() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let good = small(place.path());
    // A feature that does not matter to readers.
    let mut unknown = good.clone();
    change_super(&mut unknown, |block| block[0xb4 + 5] = 1);
    let fs = ivers_btrfs::Btrfs::open(vec![memory(&unknown)], OpenOptions::default()).unwrap();
    let why = fs.health().read_only;
    let wanted = "the feature unknown-0x10000000000 is not supported for writing";
    assert_eq!(why.as_deref(), Some(wanted));
    let fs = ivers_btrfs::Btrfs::open(vec![memory(&good)], OpenOptions::default()).unwrap();
    assert_eq!(fs.health().read_only, None);
    let device = memory(&good);
    let fs = ivers_btrfs::Btrfs::open(vec![device.clone()], reading()).unwrap();
    assert_eq!(fs.health().read_only.as_deref(), Some("requested"));
    let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
    let cred = Cred::root();
    let file = vfs.resolve(&cred, "/d/file-100", false).unwrap();
    let refused = |result: ivers_vfs::Result<()>| match result {
        Err(Error::Name(NameError::ReadOnly)) => {}
        other => panic!("{other:?}"),
    };
    refused(vfs.write(&cred, &file, 0, b"x", WriteFlags::default()).map(drop));
    refused(vfs.set_xattr(&cred, &file, "user.x", b"x", XattrMode::Any));
    let dir = vfs.resolve(&cred, "/d", false).unwrap();
    refused(vfs.unlink(&cred, &dir, b"file-1", false).map(drop));
    let _ = vfs.read(&cred, &file, 0, &mut [0; 100]);
    vfs.unmount().unwrap();
    let mut after = vec![0; good.len()];
    ivers_block::Device::read_at(&device, ivers_block::ByteOffset(0), &mut after).unwrap();
    assert!(after == good);
}

fn open_with(
    devices: Vec<Arc<dyn ivers_block::Device>>,
    options: OpenOptions,
    writes: bool,
) -> ivers_vfs::Result<Arc<Vfs>> {
    let mount = MountOptions { background: false, read_only: !writes, ..MountOptions::default() };
    Vfs::mount(ivers_btrfs::Btrfs::open(devices, options)?, mount)
}

/// Changes whatever can be changed.
fn change_what_is_left(vfs: &Arc<Vfs>) {
    let cred = Cred::root();
    let Ok(root) = vfs.root() else { return };
    let spec = CreateSpec::of(FileType::Regular, 0o600);
    for path in ["/", "/d", "/many", "/sub", "/snapshot"] {
        let Ok(dir) = vfs.resolve(&cred, path, false) else { continue };
        for number in 0..20 {
            let Ok((file, _)) = vfs.create(&cred, &dir, format!("new{number}").as_bytes(), &spec, false)
            else {
                continue;
            };
            let _ = vfs.write(&cred, &file, number * 1000, &[7; 9000], WriteFlags::empty());
            let _ = vfs.set_xattr(&cred, &file, b"user.x", &[1; 100], XattrMode::Any);
        }
        let mut names = Vec::new();
        let _ = vfs.readdir(&cred, &dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            if names.len() < 200 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for (number, name) in names.iter().enumerate() {
            let Ok(file) = vfs.lookup(&cred, &dir, name) else { continue };
            let set = SetAttr { size: Some(number as u64 * 900), ..SetAttr::default() };
            let _ = match number % 4 {
                0 => vfs.unlink(&cred, &dir, name, false).map(drop),
                1 => vfs.write(&cred, &file, 3000, &[9; 5000], WriteFlags::empty()).map(drop),
                2 => vfs.rename(&cred, &dir, name, &root, name, RenameFlags::empty(), false).map(drop),
                _ => vfs.set_attr(&cred, &file, &set).map(drop),
            };
        }
        let _ = vfs.sync();
    }
}

/// Damages blocks at random and reads what is left, or changes it, with a small budget.
fn mutate(image: &[u8], seed: u64, writes: bool) {
    let count: u32 = std::env::var("IVERS_MUTATED_IMAGES").map_or(25, |text| text.parse().unwrap());
    let mut damager = Damager::new(image, seed);
    let mut opened = 0;
    for number in 0..count {
        // The last line that a hang leaves.
        eprintln!("seed {seed}: image {number}");
        let budget = Arc::new(Budget::new(1 << 20));
        let common = DriverOptions { budget: budget.clone(), read_only: !writes, ..reading().common };
        let degraded = !writes;
        let options = OpenOptions { common, no_replay: true, degraded, ..OpenOptions::default() };
        if let Ok(vfs) = open_with(vec![damager.damage()], options, writes) {
            opened += 1;
            if writes {
                change_what_is_left(&vfs);
            } else {
                walk_all(&vfs);
            }
            let _ = (vfs.fs().describe(), vfs.fs().stat_fs());
            let _ = vfs.unmount();
            drop(vfs);
        }
        assert_eq!(budget.used(), 0, "seed {seed}: image {number}: memory that is still charged");
    }
    // Opening for writing reads more.
    assert!(opened > count / if writes { 25 } else { 4 }, "seed {seed}: {opened} of {count} opened");
}

#[test]
fn quotas_that_mkfs_made_are_not_written() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    ivers_oracle::run("mkfs.btrfs", ["-q", "-R", "quota", image.to_str().unwrap()]).unwrap();
    let device = memory(&ivers_oracle::read_image(&image).unwrap());
    let fs = ivers_btrfs::Btrfs::open(vec![device], OpenOptions::default()).unwrap();
    let why = FileSystem::health(&*fs).read_only;
    assert!(why.as_ref().is_some_and(|why| why.contains("quotas")), "{why:?}");
}

#[test]
fn random_damage_never_panics() {
    if !have_mkfs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mutate = |image: &[u8], seed| [false, true].map(|writes| mutate(image, seed, writes));
    mutate(&small(dir.path()), 1);
    if can_fill() {
        for (seed, name) in
            ["default", "nodes of 4 KiB", "old features", "LZO", "zstd", "zlib"].iter().enumerate()
        {
            mutate(&filled(dir.path(), name), 2 + seed as u64);
        }
    }
}
