//! Bad copies: a scrub mends them, and a writable mount mends those that it reads.

use crate::common::fill::fill;
use crate::common::*;
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_btrfs::check::{Scrubbed, scrub};
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_oracle::btrfs_fields::BtrfsImage;
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of flipped bits.
const FLIPS: usize = 1000;

fn scrubbed(devices: &[Arc<dyn Device>], writes: bool) -> Scrubbed {
    scrub(devices.to_vec(), writes, false, Memory::unlimited(), "image").unwrap()
}

fn codes(done: &Scrubbed) -> BTreeSet<&'static str> {
    done.found.counts().keys().copied().collect()
}

fn filled(dir: &std::path::Path, name: &str) -> Vec<Vec<u8>> {
    let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
    let images = Images::make(dir, kind);
    images.with_kernel(kind.mount, fill);
    images.bytes()
}

fn devices(images: &[Vec<u8>]) -> Vec<Arc<dyn Device>> {
    images.iter().map(|bytes| memory(bytes)).collect()
}

fn bytes_of(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(ByteOffset(0), &mut bytes).unwrap();
    bytes
}

fn fact_number(vfs: &Arc<Vfs>, name: &str) -> u64 {
    fact(vfs, name).split(' ').next().unwrap().parse().unwrap()
}

/// Flips a bit in one copy of each of many sectors and blocks. Copies are found by their equal contents, in
/// two images or in two ranges of one image. Returns the number of flipped bits.
fn flip(images: &mut [Vec<u8>], places: &[(usize, usize)]) -> usize {
    let step = (places.len() / FLIPS).max(1);
    let mut flipped = 0;
    for (number, (image, at)) in places.iter().step_by(step).take(FLIPS).enumerate() {
        images[*image][at + 40 + number % 4000] ^= 1 << (number % 8);
        flipped += 1;
    }
    flipped
}

/// Returns the place of one copy of each block of a tree, and of each sector of data with a checksum: image
/// and byte. For DUP, the first and the second copy alternate.
fn places(images: &[Vec<u8>]) -> Vec<(usize, usize)> {
    let image = BtrfsImage::parse(images[0].clone());
    let mut found = Vec::new();
    let mut add = |address: u64| {
        let copies = image.places_on(address);
        found.push(copies[found.len() % copies.len()]);
    };
    let blocks: BTreeSet<_> = image.blocks.iter().map(|block| block.address).collect();
    blocks.into_iter().for_each(&mut add);
    for item in image.items.iter().filter(|item| item.tree == 7 && item.key.1 == 128) {
        (0..item.data.len() as u64 / 4).for_each(|sector| add(item.key.2 + sector * 4096));
    }
    found
}

#[test]
fn a_scrub_mends_a_thousand_copies() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["all DUP, a label", "RAID1"] {
        let good = filled(dir.path(), name);
        let mut bad = good.clone();
        let flipped = flip(&mut bad, &places(&good));
        assert_eq!(flipped, FLIPS, "{name}");
        let bad = devices(&bad);
        let looked = scrubbed(&bad, false);
        assert_eq!(codes(&looked), BTreeSet::from(["block-copy-wrong", "data-copy-wrong"]), "{name}");
        assert_eq!((looked.mended, looked.left), (0, looked.found.total()), "{name}");
        let done = scrubbed(&bad, true);
        assert_eq!(codes(&done), BTreeSet::from(["block-copy-mended", "data-copy-mended"]), "{name}");
        assert_eq!((done.mended, done.left), (flipped as u64, 0), "{name}");
        for (device, good) in bad.iter().zip(&good) {
            assert!(bytes_of(device) == *good, "{name}: the images are as before");
        }
        assert!(scrubbed(&bad, false).found.is_clean(), "{name}");
    }
}

#[test]
fn reads_of_a_writable_mount_mend_a_thousand_copies() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["all DUP, a label", "RAID1"] {
        let good = filled(dir.path(), name);
        let whole = our_tree(&open(devices(&good), reading()).unwrap(), false).unwrap();
        let mut bad = good.clone();
        let flipped = flip(&mut bad, &places(&good));
        let bad = devices(&bad);
        let fs = Btrfs::open(bad.clone(), OpenOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let vfs = Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap();
        assert_same(&our_tree(&vfs, false).unwrap(), &whole, name);
        let (found, mended) = (fact_number(&vfs, "bad copies"), fact_number(&vfs, "mended copies"));
        // What is read before the mount may write is not mended.
        let unmended = found - mended;
        assert!(unmended < 20, "{name}: {mended} of {found}");
        // About half of the bad copies come after a right one, and are not read. Neither are trees that no
        // walk needs.
        assert!(mended > flipped as u64 / 3, "{name}: {mended} of {flipped}");
        vfs.unmount().unwrap();
        drop(vfs);
        // A second mount finds no other bad copies in the places that the first one has read.
        let vfs = open(bad.clone(), reading()).unwrap();
        assert_same(&our_tree(&vfs, false).unwrap(), &whole, name);
        assert!(fact_number(&vfs, "bad copies") <= unmended, "{name}");
        drop(vfs);
        let done = scrubbed(&bad, true);
        assert_eq!(done.left, 0, "{name}");
    }
}

#[test]
fn a_read_only_mount_mends_nothing() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all DUP, a label");
    let mut bad = good.clone();
    flip(&mut bad, &places(&good));
    let device = memory(&bad[0]);
    let vfs = open(vec![device.clone()], reading()).unwrap();
    our_tree(&vfs, true).unwrap();
    assert!(fact_number(&vfs, "bad copies") > 10 && fact_number(&vfs, "mended copies") == 0);
    drop(vfs);
    assert!(bytes_of(&device) == bad[0]);
}

#[test]
fn each_defect_without_another_copy_is_named() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all single").remove(0);
    let image = BtrfsImage::parse(good.clone());
    // Bad sectors of data with checksums. A good one is before each, so each is a finding of its own.
    let mut addresses = Vec::new();
    for item in image.items.iter().filter(|item| item.tree == 7 && item.key.1 == 128) {
        addresses.extend((0..item.data.len() as u64 / 4).step_by(2).map(|at| item.key.2 + at * 4096));
    }
    addresses.truncate(FLIPS);
    let mut bad = good.clone();
    addresses.iter().for_each(|address| bad[image.places(*address)[0] + 9] ^= 2);
    let device = memory(&bad);
    let done = scrubbed(std::slice::from_ref(&device), true);
    assert_eq!(codes(&done), BTreeSet::from(["data-wrong"]));
    assert_eq!((done.mended, done.left), (0, addresses.len() as u64));
    let named: BTreeSet<_> = done.found.kept().iter().filter_map(|finding| finding.place.block).collect();
    assert_eq!(named, addresses.iter().copied().collect());
    let with_path = done.found.kept().iter().filter(|finding| finding.place.path.is_some()).count();
    assert!(with_path > addresses.len() / 2, "{with_path} of {}", addresses.len());
    assert!(bytes_of(&device) == bad, "nothing is written");
}

#[test]
fn superblocks_are_mended() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "default").remove(0);
    for place in [64 << 10, 64 << 20] {
        let mut bad = good.clone();
        bad[place + 500] ^= 1;
        let device = memory(&bad);
        let done = scrubbed(std::slice::from_ref(&device), true);
        assert_eq!(codes(&done), BTreeSet::from(["superblock-copy-mended"]));
        assert!(bytes_of(&device) == good);
    }
}

/// A device that refuses writes when it is told to.
struct Refusing(MemDevice, AtomicBool);

impl Device for Refusing {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        if !self.1.load(Ordering::Relaxed) {
            return self.0.write_at(offset, buf);
        }
        let error = std::io::Error::other("refused");
        Err(ivers_block::BlockError::io("write", "refusing", offset, buf.len() as u64, error))
    }

    fn flush(&self) -> ivers_block::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.0.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "refusing".into()
    }
}

#[test]
fn a_read_succeeds_if_the_copy_cannot_be_mended() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let good = filled(dir.path(), "all DUP, a label");
    let whole = our_tree(&open(devices(&good), reading()).unwrap(), false).unwrap();
    let mut bad = good.clone();
    flip(&mut bad, &places(&good));
    let device = Arc::new(Refusing(MemDevice::from_bytes(&bad[0]), AtomicBool::new(false)));
    let vfs = open(vec![device.clone() as Arc<dyn Device>], OpenOptions::default()).unwrap();
    device.1.store(true, Ordering::Relaxed);
    let mended = fact_number(&vfs, "mended copies");
    assert_same(&our_tree(&vfs, false).unwrap(), &whole, "refused");
    assert!(fact_number(&vfs, "bad copies") > mended + 10);
    assert_eq!(fact_number(&vfs, "mended copies"), mended);
}
