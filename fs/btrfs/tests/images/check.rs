//! The checker: clean images of all kinds give no finding, one planted defect gives its own, and damaged
//! images end in findings. Needs root and loop devices, as the other tests of images that Linux fills.

use crate::common::damage::{Damager, tree_blocks};
use crate::common::fill::{fill, in_dir};
use crate::common::*;
use ivers_block::{Budget, Device};
use ivers_btrfs::check::{Options, check};
use ivers_oracle::btrfs_fields::{BtrfsImage, Item};
use ivers_vfs::check::{Findings, Memory};
use ivers_vfs::{CreateSpec, Cred, Error, WriteFlags};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const DATA: Options = Options { data: true, degraded: false };

fn findings(devices: Vec<Arc<dyn Device>>) -> Findings {
    check(devices, &DATA, Memory::unlimited(), "image").unwrap_or_else(|error| panic!("check: {error}"))
}

fn codes(found: &Findings) -> BTreeSet<&'static str> {
    found.counts().keys().copied().collect()
}

fn assert_no_findings(images: &Images, what: &str) {
    let found = findings(images.devices());
    assert!(found.is_clean(), "{what}: {:#?}", found.kept().iter().take(20).collect::<Vec<_>>());
}

#[test]
fn clean_images_have_no_findings() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let images = Images::make(dir.path(), kind);
        assert_no_findings(&images, &format!("empty, {}", kind.name));
        images.with_kernel(kind.mount, fill);
        assert_no_findings(&images, kind.name);
        // This leaves old blocks, references of a deleted snapshot, and extents that were moved.
        images.with_kernel(kind.mount, |root| {
            let script = "btrfs -q subvolume delete snapshot; rm -r many; cp -r d d2; mv links moved; sync";
            in_dir(root, script);
            // On a full filesystem it stops, and leaves complete trees.
            in_dir(root, "btrfs -q balance start --full-balance . 2> /dev/null || true");
        });
        assert_no_findings(&images, &format!("balanced, {}", kind.name));
    }
}

#[test]
fn what_ivers_writes_has_no_findings() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS.iter().filter(|kind| !["quotas"].contains(&kind.name)) {
        let images = Images::make(dir.path(), kind);
        images.with_kernel(kind.mount, fill);
        let vfs = mount_writable(&images);
        let root = vfs.root().unwrap();
        let cred = Cred::root();
        for number in 0..200 {
            let name = format!("new-{number}");
            let spec = CreateSpec::file(0o644);
            let file = vfs.create(&cred, &root, name.as_bytes(), &spec, false).unwrap().0;
            vfs.write(&cred, &file, number * 3000, &vec![7; 9000], WriteFlags::default()).unwrap();
        }
        vfs.unlink(&cred, &root, b"big", false).unwrap();
        drop(root);
        vfs.unmount().unwrap();
        drop(vfs);
        assert_no_findings(&images, kind.name);
    }
}

fn small(dir: &Path, args: &'static [&'static str]) -> BtrfsImage {
    let kind = Kind { name: "small", mkfs: args, mount: "", devices: 1 };
    let images = Images::make(dir, &kind);
    images.with_kernel("", fill);
    BtrfsImage::parse(images.bytes().remove(0))
}

/// Finds an item that a test is looking for.
fn item(image: &BtrfsImage, tree: u64, kind: u8, wanted: impl Fn(&Item, &[u8]) -> bool) -> Item {
    let is_it = |item: &&Item| {
        item.tree == tree && item.key.1 == kind && wanted(item, &image.block(item.leaf)[item.data.clone()])
    };
    image.items.iter().find(is_it).unwrap_or_else(|| panic!("no item of type {kind} in tree {tree}")).clone()
}

/// Adds to a number in a block.
fn add_at(image: &mut BtrfsImage, block: u64, at: usize, len: usize, more: i64) {
    image.change(Some(block), |block| {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&block[at..at + len]);
        let number = u64::from_le_bytes(number).wrapping_add_signed(more).to_le_bytes();
        block[at..at + len].copy_from_slice(&number[..len]);
    });
}

/// Adds to a number in the data of an item.
fn add(image: &mut BtrfsImage, item: &Item, at: usize, len: usize, more: i64) {
    add_at(image, item.leaf, item.data.start + at, len, more);
}

fn super_field(image: &mut BtrfsImage, at: usize, value: u8) {
    image.change(None, |block| block[at] ^= value);
}

const FS: u64 = 5;
/// mkfs.btrfs leaves items about free space of block groups that it has removed, before this address.
const DATA_START: u64 = 13 << 20;
type Plant = fn(&mut BtrfsImage);

fn is_regular(_: &Item, data: &[u8]) -> bool {
    data[20] == 1 && data[21..29] != [0; 8]
}

fn is_file(_: &Item, data: &[u8]) -> bool {
    data[53] & 0xF0 == 0x80 && data[16..24] != [0; 8]
}

const PLANTED: &[(&str, &[&str], Plant)] = &[
    ("nothing", &[], |_| {}),
    ("the transaction of an entry, which mkfs.btrfs does not set", &[], |image| {
        let found = item(image, FS, 84, |_, _| true);
        add(image, &found, 17, 8, 1 << 49);
    }),
    ("bytes_used of the superblock", &["superblock-field-wrong"], |image| super_field(image, 0x78, 0x10)),
    ("more devices in the superblock", &["superblock-field-wrong"], |image| super_field(image, 0x88, 2)),
    ("a feature without its tree", &["tree-missing"], |image| super_field(image, 0xb4, 8)),
    ("a log tree that is not there", &["block-invalid"], |image| super_field(image, 0x61, 0x10)),
    ("a copy of the superblock", &["superblock-copy-wrong"], |image| image.bytes[(64 << 20) + 300] ^= 1),
    ("link count", &["link-count-wrong"], |image| {
        let found = item(image, FS, 1, is_file);
        add(image, &found, 40, 4, 1);
    }),
    ("nbytes", &["inode-bytes-wrong"], |image| {
        let found = item(image, FS, 1, is_file);
        add(image, &found, 24, 8, 4096);
    }),
    ("size of a directory", &["directory-size-wrong"], |image| {
        let found = item(image, FS, 1, |_, data| data[53] & 0xF0 == 0x40);
        add(image, &found, 16, 8, 1);
    }),
    (
        "type in an index",
        &[
            "directory-index-unmatched",
            "directory-entry-unmatched",
            "inode-name-unmatched",
            "directory-entry-missing",
        ],
        |image| {
            let found = item(image, FS, 96, |_, data| data[29] == 1);
            add(image, &found, 29, 1, 6);
        },
    ),
    ("type in an entry", &["directory-entry-unmatched", "directory-entry-missing"], |image| {
        let found = item(image, FS, 84, |_, data| data[29] == 1);
        add(image, &found, 29, 1, 6);
    }),
    ("index in an inode", &["inode-name-unmatched", "directory-index-unmatched"], |image| {
        let found = item(image, FS, 12, |item, _| item.key.0 > 256);
        add(image, &found, 0, 8, 1000);
    }),
    ("hash of an attribute", &["xattr-invalid"], |image| {
        let found = item(image, FS, 24, |_, _| true);
        add(image, &found, 30, 1, 1);
    }),
    ("references of an extent", &["extent-refs-wrong"], |image| {
        let found = item(image, 2, 168, |_, data| data[16] & 1 == 1);
        add(image, &found, 0, 8, 1);
    }),
    ("who refers to an extent", &["reference-without-user", "reference-missing"], |image| {
        let found = item(image, 2, 168, |_, data| data[24] == 178);
        add(image, &found, 33, 8, 1);
    }),
    (
        "who refers to a block",
        &["extent-item-wrong", "reference-without-user", "reference-missing"],
        |image| {
            let found = item(image, 2, 169, |_, data| data[24] == 176 && data[25] == 7);
            add(image, &found, 25, 8, -3);
        },
    ),
    ("used bytes of a block group", &["block-group-used-wrong"], |image| {
        let found = item(image, 2, 192, |_, data| data[0..8] != [0; 8]);
        add(image, &found, 0, 8, 4096);
    }),
    ("type of a block group", &["block-group-wrong"], |image| {
        let found = item(image, 2, 192, |_, _| true);
        add(image, &found, 16, 8, 0x20);
    }),
    ("free extents of a block group", &["free-space-wrong"], |image| {
        let found = item(image, 10, 198, |item, _| item.key.0 > DATA_START);
        add(image, &found, 0, 4, 1);
    }),
    ("free space", &["free-space-wrong"], |image| {
        let found = item(image, 10, 199, |item, _| item.key.0 > DATA_START && item.key.2 > 8192);
        image.change(Some(found.leaf), |block| block[found.entry + 9 + 1] ^= 0x10);
    }),
    ("an item of a group that mkfs.btrfs removed", &["free-space-wrong"], |image| {
        let found = item(image, 10, 198, |item, _| item.key.0 < DATA_START);
        image.change(Some(found.leaf), |block| block[found.entry + 8] = 0);
    }),
    ("a mode with unknown bits", &["inode-invalid"], |image| {
        let found = item(image, FS, 1, is_file);
        add(image, &found, 52, 4, 1 << 20);
    }),
    ("the type of a chunk", &["chunks-invalid"], |image| {
        let found = item(image, 3, 228, |_, _| true);
        add(image, &found, 24, 8, 1 << 36);
    }),
    ("a part of a device", &["device-extent-wrong", "device-extent-missing"], |image| {
        let found = item(image, 4, 204, |_, _| true);
        add(image, &found, 16, 8, 4096);
    }),
    ("used bytes of a device", &["device-used-wrong", "superblock-field-wrong"], |image| {
        let found = item(image, 3, 216, |_, _| true);
        add(image, &found, 16, 8, 65536);
    }),
    ("system chunk", &["system-chunks-wrong"], |image| super_field(image, 0x35c, 1)),
    ("a checksum", &["data-wrong"], |image| {
        let found = item(image, 7, 128, |_, _| true);
        add(image, &found, 0, 4, 1);
    }),
    ("a missing checksum", &["checksum-missing", "checksum-without-extent", "data-wrong"], |image| {
        let found = image.items.iter().rfind(|item| item.tree == 7).unwrap().clone();
        add_at(image, found.leaf, found.entry + 9, 8, 4096);
    }),
    ("an extent that is shorter", &["reference-without-user", "reference-missing"], |image| {
        let found = item(image, FS, 108, is_regular);
        add(image, &found, 29, 8, 4096);
    }),
    (
        "an overlapping extent",
        &["file-extents-overlap", "reference-missing", "reference-without-user"],
        |image| {
            // The second of two extents that touch.
            let all = &image.items;
            let end = |item: &Item| {
                let len = &image.block(item.leaf)[item.data.clone()][45..53];
                item.key.2 + u64::from_le_bytes(len.try_into().unwrap())
            };
            let is_pair = |pair: &&[Item]| {
                let both =
                    pair.iter().all(|item| item.tree == FS && item.key.1 == 108 && item.data.len() == 53);
                both && pair[0].key.0 == pair[1].key.0
                    && end(&pair[0]) == pair[1].key.2
                    && end(&pair[0]) > pair[0].key.2 + 4096
            };
            let found = all.windows(2).find(is_pair).unwrap()[1].clone();
            add_at(image, found.leaf, found.entry + 9, 8, -4096);
        },
    ),
    ("the root of a subvolume", &["root-item-wrong"], |image| {
        let found = item(image, 1, 132, |item, _| item.key.0 == 256);
        add(image, &found, 168, 8, 1);
    }),
    ("the name of a subvolume", &["subvolume-name-wrong"], |image| {
        let found = item(image, 1, 156, |_, _| true);
        add(image, &found, 18, 1, 1);
    }),
    ("generation of a block", &["block-generation-wrong"], |image| {
        let block = image.blocks.iter().find(|block| block.tree == 256 && block.level == 0).unwrap().address;
        image.change(Some(block), |block| block[0x50] -= 1);
    }),
    ("order of keys", &["block-keys-wrong"], |image| {
        let block = image.blocks.iter().find(|block| block.tree == 256 && block.level == 0).unwrap().address;
        image.change(Some(block), |block| block.swap(101 + 8, 101 + 8 + 25 * 3));
    }),
];

#[test]
fn one_planted_defect_is_found() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = small(dir.path(), &["-m", "dup", "-d", "single", "-n", "4096"]);
    let planted = PLANTED.iter().copied();
    ivers_oracle::each_defect_is_found(&whole, planted, |image| codes(&findings(vec![memory(&image.bytes)])));
}

#[test]
fn a_bad_copy_is_found() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = small(dir.path(), &["-m", "dup", "-d", "dup"]);
    let mut bad = whole.bytes.clone();
    let places: Vec<_> = whole.blocks.iter().map(|block| whole.places(block.address)[1]).collect();
    places.iter().for_each(|at| bad[at + 200] ^= 1);
    let found = findings(vec![memory(&bad)]);
    assert_eq!(codes(&found), BTreeSet::from(["block-copy-wrong"]));
    let distinct = places.iter().collect::<BTreeSet<_>>().len() as u64;
    assert_eq!(found.total(), distinct, "each copy is reported once");
    // Both copies of one sector of data, and one of another.
    let extent = item(&whole, FS, 108, is_regular);
    let data = &whole.block(extent.leaf)[extent.data.clone()];
    let address = u64::from_le_bytes(data[21..29].try_into().unwrap());
    let mut bad = whole.bytes.clone();
    whole.places(address).iter().for_each(|at| bad[at + 5] ^= 1);
    bad[whole.places(address)[0] + 8192] ^= 1;
    let found = findings(vec![memory(&bad)]);
    assert_eq!(codes(&found), BTreeSet::from(["data-copy-wrong", "data-wrong"]));
    let first = &found.kept()[0];
    assert_eq!(first.place.block, Some(address));
    assert!(first.place.path.is_some(), "{first:?}");
    let without = check(vec![memory(&bad)], &Options::default(), Memory::unlimited(), "image").unwrap();
    assert!(without.is_clean());
}

#[test]
fn a_destroyed_superblock_is_found_by_its_copy() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut image = small(dir.path(), &[]);
    image.bytes[damage::SUPER..damage::SUPER + damage::SUPER_BYTES].fill(0);
    let device = memory(&image.bytes);
    let found = ivers_btrfs::check::check_remains(&*device).unwrap().unwrap();
    assert_eq!(codes(&found), BTreeSet::from(["superblock-invalid"]));
    image.bytes[64 << 20..(64 << 20) + damage::SUPER_BYTES].fill(0);
    assert!(ivers_btrfs::check::check_remains(&*memory(&image.bytes)).unwrap().is_none());
}

#[test]
fn the_largest_generation_is_a_finding() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut image = small(dir.path(), &[]);
    image.change(None, |block| block[0x48..0x50].fill(0xFF));
    assert!(!findings(vec![memory(&image.bytes)]).is_clean());
}

#[test]
fn damaged_images_end_in_findings() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = small(dir.path(), &["-m", "single", "-d", "single", "-n", "4096"]);
    assert!(tree_blocks(&whole.bytes).len() > 50);
    let mut damager = Damager::new(&whole.bytes, 7);
    let (mut wrong, mut refused) = (0, 0);
    for _ in 0..300 {
        match check(vec![damager.damage()], &Options::default(), Memory::unlimited(), "image") {
            Ok(found) => wrong += u32::from(!found.is_clean()),
            Err(Error::Incompatible(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // Some damage is in unused blocks, or in values that are not checked, such as times.
    assert!(wrong > 150 && refused < 50, "{wrong} of 300, {refused} refused");
}

#[test]
fn memory_is_bounded() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = small(dir.path(), &[]);
    let check = |bytes: u64| {
        let memory_bound = Memory::new(Arc::new(Budget::new(bytes)), "allow more");
        check(vec![memory(&whole.bytes)], &DATA, memory_bound, "image")
    };
    let error = check(100 << 10).unwrap_err().to_string();
    assert!(error.contains("allow more"), "{error}");
    assert!(check(4 << 20).unwrap().is_clean());
}
