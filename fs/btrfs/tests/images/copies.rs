//! Bad copies: another one is read where there is one, and an error names the place where there is none.

use crate::common::damage::{seal, tree_blocks};
use crate::common::fill::fill;
use crate::common::*;
use ivers_block::{ByteOffset, Device, OverlayDevice};
use ivers_btrfs::OpenOptions;
use ivers_oracle::btrfs_fields::BtrfsImage;
use ivers_vfs::*;
use std::sync::Arc;

const SECTOR: usize = 4096;

fn filled(dir: &std::path::Path, name: &str) -> Images {
    let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
    let images = Images::make(dir, kind);
    images.with_kernel(kind.mount, fill);
    images
}

fn devices(images: &[Vec<u8>]) -> Vec<Arc<dyn Device>> {
    images.iter().map(|bytes| memory(bytes)).collect()
}

fn bad_copies(vfs: &Arc<Vfs>) -> u64 {
    fact(vfs, "bad copies").split(' ').next().unwrap().parse().unwrap()
}

/// Where some bytes of a file are in an image.
fn places_of(image: &[u8], wanted: &[u8]) -> Vec<usize> {
    (0..image.len()).step_by(4096).filter(|at| image[*at..].starts_with(wanted)).collect()
}

#[test]
fn another_copy_is_read_of_dup_and_raid1() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["all DUP, a label", "RAID1", "RAID10"] {
        let images = filled(dir.path(), name).bytes();
        let whole = our_tree(&open(devices(&images), reading()).unwrap(), true).unwrap();
        // A bit in each block of a tree, of one copy: the first one of each address.
        let mut damaged = images.clone();
        let mut seen = std::collections::BTreeSet::new();
        let mut flipped = 0;
        for bytes in &mut damaged {
            for at in tree_blocks(bytes) {
                if seen.insert(damage::number64(bytes, at + 0x30)) {
                    bytes[at + 100 + flipped % 4000] ^= 1 << (flipped % 8);
                    flipped += 1;
                }
            }
        }
        let vfs = open(devices(&damaged), reading()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(&our_tree(&vfs, true).unwrap(), &whole, name);
        assert!(bad_copies(&vfs) > 20, "{name}: {} of {flipped}", bad_copies(&vfs));
        // A bit in every fourth sector of a file.
        let vfs = open(devices(&images), reading()).unwrap();
        let big = vfs.resolve(&Cred::root(), "/big", false).unwrap();
        let content = read_all(&vfs, &big).unwrap();
        let mut damaged = images.clone();
        for sector in content.chunks_exact(4096).step_by(4) {
            let found = damaged.iter_mut().find_map(|bytes| {
                let at = *places_of_limited(bytes, sector).first()?;
                Some(&mut bytes[at])
            });
            *found.unwrap() ^= 0x10;
        }
        let vfs = open(devices(&damaged), reading()).unwrap();
        let big = vfs.resolve(&Cred::root(), "/big", false).unwrap();
        assert!(read_all(&vfs, &big).unwrap() == content, "{name}");
        assert!(bad_copies(&vfs) > 0, "{name}");
    }
}

/// As `places_of`, but only compares the first bytes.
fn places_of_limited(image: &[u8], sector: &[u8]) -> Vec<usize> {
    places_of(image, &sector[..64])
}

#[test]
fn without_another_copy_an_error_names_the_block() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all single").bytes().remove(0);
    let cred = Cred::root();
    let vfs = open(vec![memory(&good)], reading()).unwrap();
    let big = vfs.resolve(&cred, "/big", false).unwrap();
    let content = read_all(&vfs, &big).unwrap();
    let mut damaged = good.clone();
    let at = places_of(&good, &content[8192..8192 + 4096])[0];
    damaged[at + 7] ^= 1;
    let vfs = open(vec![memory(&damaged)], reading()).unwrap();
    let big = vfs.resolve(&cred, "/big", false).unwrap();
    let error = read_all(&vfs, &big).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::FileData(_)), "{error:?}");
    assert!(said.contains("bad checksum") && said.contains("address") && said.contains("inode"), "{said}");
    // What is not damaged is read. The VFS reads ahead, so it must be further on.
    let mut part = vec![0; 4096];
    assert_eq!(vfs.read(&cred, &big, 2 << 20, &mut part).unwrap(), 4096);
    assert!(part == content[2 << 20..(2 << 20) + 4096]);
    // Every block of a tree: what cannot be read is an error, and nothing else differs.
    let whole = our_tree(&vfs_of(&good), true).unwrap();
    let mut refused = 0;
    let base = memory(&good);
    for at in tree_blocks(&good) {
        let damaged: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.clone()));
        damaged.write_at(ByteOffset(at as u64 + 200), &[good[at + 200] ^ 4]).unwrap();
        let tree = open(vec![damaged], reading()).and_then(|vfs| our_tree(&vfs, true));
        match tree {
            Ok(tree) => assert_same(&tree, &whole, "a block that is not read"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("bad checksum") && said.contains("block "), "{said}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

/// Reads each sector of each file from a good and a bad image: equal bytes, or an error that names the place.
/// Returns the number of errors and of equal sectors.
fn compare_sectors(good: &Arc<Vfs>, bad: &Arc<Vfs>) -> (usize, usize) {
    let cred = Cred::root();
    let (mut errors, mut equal) = (0, 0);
    for path in our_tree(good, false).unwrap().into_keys() {
        let file = good.resolve(&cred, &path, false).unwrap();
        let other = bad.resolve(&cred, &path, false).unwrap();
        let content =
            if file.kind == FileType::Regular { read_all(good, &file).unwrap() } else { Vec::new() };
        for (number, right) in content.chunks(SECTOR).enumerate() {
            let mut bytes = vec![0; right.len()];
            match bad.read(&cred, &other, (number * SECTOR) as u64, &mut bytes) {
                Ok(count) => {
                    assert!(count == right.len() && bytes == right, "{path}, sector {number}: wrong bytes");
                    equal += 1;
                }
                Err(error) => {
                    let said = error.to_string();
                    let is_named =
                        ["bad checksum", "address", "inode"].iter().all(|word| said.contains(word));
                    assert!(matches!(error, Error::FileData(_)) && is_named, "{path}: {error:?}: {said}");
                    errors += 1;
                }
            }
        }
    }
    (errors, equal)
}

#[test]
fn with_one_copy_bad_sectors_are_errors_and_never_wrong_bytes() {
    const BAD: usize = 1000;
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all single").bytes().remove(0);
    let image = BtrfsImage::parse(good.clone());
    let sums = image.items.iter().filter(|item| item.tree == 7 && item.key.1 == 128);
    let sectors: Vec<u64> = sums
        .flat_map(|item| (0..item.data.len() as u64 / 4).map(|number| item.key.2 + number * SECTOR as u64))
        .collect();
    // Two of three, so that good sectors lie between them.
    let bad: Vec<u64> = sectors.chunks(3).flat_map(|three| &three[..three.len().min(2)]).copied().collect();
    assert!(bad.len() >= BAD, "{} of {} sectors", bad.len(), sectors.len());
    let mut damaged = good.clone();
    for (number, address) in bad.iter().take(BAD).enumerate() {
        damaged[image.places(*address)[0] + number * 37 % SECTOR] ^= 1 << (number % 8);
    }
    let (errors, equal) = compare_sectors(&vfs_of(&good), &vfs_of(&damaged));
    // Some extents are in several files, and parts of some in none.
    assert!(errors >= BAD / 2 && equal >= BAD / 2, "{errors} errors, {equal} equal sectors");
}

fn vfs_of(bytes: &[u8]) -> Arc<Vfs> {
    open(vec![memory(bytes)], reading()).unwrap()
}

#[test]
fn an_old_block_with_a_right_checksum_is_not_read() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all DUP, a label").bytes().remove(0);
    let whole = our_tree(&vfs_of(&good), true).unwrap();
    // Every first copy says that it is of an older transaction.
    let mut damaged = good.clone();
    let mut seen = std::collections::BTreeSet::new();
    let size = damage::node_size(&good);
    for at in tree_blocks(&good) {
        if seen.insert(damage::number64(&good, at + 0x30)) {
            let generation = damage::number64(&good, at + 0x50) - 1;
            damaged[at + 0x50..at + 0x58].copy_from_slice(&generation.to_le_bytes());
            seal(&mut damaged[at..at + size]);
        }
    }
    let vfs = vfs_of(&damaged);
    assert_same(&our_tree(&vfs, true).unwrap(), &whole, "old copies");
    assert!(bad_copies(&vfs) > 20);
}

#[test]
fn a_missing_device_is_named_and_may_be_left_out() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let degraded = OpenOptions { degraded: true, ..reading() };
    for (name, readable) in [("RAID1", true), ("RAID10", true), ("RAID1C3", true), ("RAID0", false)] {
        let images = filled(dir.path(), name);
        let whole = our_tree(&mount(&images), true).unwrap();
        for gone in [0, images.paths.len() - 1] {
            let mut left = images.devices();
            left.remove(gone);
            let error = open(left.clone(), reading()).err().unwrap_or_else(|| panic!("{name}: it opens"));
            let said = error.to_string();
            assert!(said.contains("1 of ") && said.contains("degraded"), "{said}");
            let tree = open(left, degraded.clone()).and_then(|vfs| our_tree(&vfs, true));
            match tree {
                Ok(tree) if readable => assert_same(&tree, &whole, name),
                Err(error) if !readable => assert!(error.to_string().contains("is missing"), "{error}"),
                other => panic!("{name}: {:?}", other.map(|tree| tree.len())),
            }
        }
        // The order does not matter, and each device is given once.
        let mut reversed = images.devices();
        reversed.reverse();
        assert_same(&our_tree(&open(reversed, reading()).unwrap(), true).unwrap(), &whole, name);
        let mut twice = images.devices();
        twice[0] = twice[1].clone();
        assert!(open(twice, reading()).err().unwrap().to_string().contains("given twice"));
    }
}

#[test]
fn a_device_of_an_older_transaction_is_not_used() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = filled(dir.path(), "RAID1");
    let old = images.bytes();
    images.with_kernel("", |root| std::fs::write(root.join("tiny"), "newer").unwrap());
    let new = images.bytes();
    let mixed = vec![memory(&old[0]), memory(&new[1])];
    assert!(open(mixed.clone(), reading()).err().unwrap().to_string().contains("older than the others"));
    let vfs = open(mixed, OpenOptions { degraded: true, ..reading() }).unwrap();
    let tiny = vfs.resolve(&Cred::root(), "/tiny", false).unwrap();
    assert_eq!(read_all(&vfs, &tiny).unwrap(), b"newer");
    assert!(fact(&vfs, "note").contains("older than the others"));
}

#[test]
fn the_newest_superblock_counts() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "default").bytes().remove(0);
    let whole = our_tree(&vfs_of(&good), true).unwrap();
    let mut damaged = good.clone();
    damaged[damage::SUPER + 0x48] ^= 1;
    let vfs = vfs_of(&damaged);
    assert_same(&our_tree(&vfs, true).unwrap(), &whole, "the first superblock is damaged");
    assert!(fact(&vfs, "note").contains("first superblock is damaged"));
    // A copy that another filesystem left there does not count.
    let mut foreign = good.clone();
    let copy = &mut foreign[64 << 20..(64 << 20) + damage::SUPER_BYTES];
    copy[0x20] ^= 1;
    copy[0x48..0x50].fill(0x7F);
    seal(copy);
    assert_same(&our_tree(&vfs_of(&foreign), true).unwrap(), &whole, "a foreign copy");
    let device = memory(&good);
    assert!(device.write_at(ByteOffset(0), &[1; 4096]).is_ok(), "the first 64 KiB are not read");
    assert!(open(vec![device], reading()).is_ok());
}
