//! Crashes between the writes of two devices: one has the superblock of the last commit, the other does not.

use crate::common::damage::{SUPER, number64};
use crate::common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, Recorded};
use ivers_btrfs::OpenOptions;
use ivers_btrfs::check::{Options, check};
use ivers_vfs::check::Memory;
use ivers_vfs::*;
use std::sync::Arc;

const DEVICES: usize = 2;

/// `cargo xtask mutants` looks for this text.
const BROKEN: &str = "the contract was broken";

/// Where the generation of the first superblock is.
const GENERATION: u64 = SUPER as u64 + 0x48;

fn generations(whole: &dyn Device) -> Vec<u64> {
    let len = whole.size_bytes() / DEVICES as u64;
    let read = |device| {
        let mut bytes = [0; 8];
        whole.read_at(ByteOffset(device * len + GENERATION), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    (0..DEVICES as u64).map(read).collect()
}

/// A session on RAID1: makes a file of each number and syncs after each.
fn record(images: &Images) -> Arc<FaultDevice> {
    let device = Arc::new(FaultDevice::new(memory(&images.bytes().concat())));
    let vfs = mount_devices(parts(device.clone(), DEVICES), OpenOptions::default());
    for number in 0..5 {
        let root = vfs.root().unwrap();
        let name = number.to_string();
        let made = vfs.create(&Cred::root(), &root, name.as_bytes(), &CreateSpec::file(0o600), false);
        let data = vec![number as u8; 20_000];
        vfs.write(&Cred::root(), &made.unwrap().0, 0, &data, WriteFlags::empty()).unwrap();
        vfs.sync().unwrap();
    }
    device
}

/// Returns the lengths of the record at which the devices have different superblocks.
fn between_devices(device: &FaultDevice) -> Vec<usize> {
    let half = device.size_bytes() / DEVICES as u64;
    let record = device.record();
    let is_superblock = |op: &Recorded| match op {
        Recorded::Write { offset, fua: true, .. } => offset.0 % half == SUPER as u64,
        _ => false,
    };
    let firsts: Vec<usize> = (0..record.len()).filter(|at| is_superblock(&record[*at])).collect();
    firsts.chunks(DEVICES).map(|pair| pair[0] + 1).collect()
}

fn clean_images(dir: &std::path::Path) -> Images {
    let kind = KINDS.iter().find(|kind| kind.name == "RAID1").unwrap();
    let images = Images::make(dir, kind);
    images.with_kernel("", |root| std::fs::write(root.join("old"), vec![7; 100_000]).unwrap());
    images
}

fn numbers(vfs: &Arc<Vfs>) -> usize {
    (0..5).filter(|number| vfs.resolve(&Cred::root(), format!("/{number}"), false).is_ok()).count()
}

#[test]
fn a_device_that_only_lacks_the_last_superblock_is_used_and_gets_it() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = clean_images(dir.path());
    let device = record(&images);
    let states = between_devices(&device);
    assert!(states.len() >= 6, "{states:?}");
    for at in states {
        let state: Arc<dyn Device> = Arc::new(device.image_where(at, |_| false).unwrap());
        let found = generations(&*state);
        let newest = *found.iter().max().unwrap();
        assert_eq!(found.iter().min(), Some(&(newest - 1)), "{found:?}");
        // A reader uses the device, and changes nothing.
        let vfs = open(parts(state.clone(), DEVICES), reading()).unwrap();
        assert!(fact(&vfs, "note").contains("everything but the superblock"), "{}", fact(&vfs, "note"));
        let before = numbers(&vfs);
        assert_eq!(generations(&*state), found);
        let checked =
            check(parts(state.clone(), DEVICES), &Options::default(), Memory::unlimited(), "images");
        let checked = checked.unwrap();
        assert_eq!(checked.total(), 0, "{checked:?}");
        // A writer first makes the superblocks equal.
        let next = Arc::new(FaultDevice::new(state));
        let vfs = mount_devices(parts(next.clone(), DEVICES), OpenOptions::default());
        assert_eq!(numbers(&vfs), before);
        let made = Arc::new(next.image(1).unwrap());
        assert_eq!(generations(&*made), [newest, newest], "{BROKEN}: after the first write");
        let opened = open(parts(made, DEVICES), reading()).map(drop);
        assert!(opened.is_ok(), "{BROKEN}: after the first write: {opened:?}");
        let root = vfs.root().unwrap();
        vfs.create(&Cred::root(), &root, b"more", &CreateSpec::file(0o600), false).unwrap();
        vfs.unmount().unwrap();
        drop(vfs);
        let after = generations(&*next);
        assert!(after[0] == after[1] && after[0] > newest, "{after:?}");
        let mut bytes = vec![0; next.size_bytes() as usize];
        next.read_at(ByteOffset(0), &mut bytes).unwrap();
        for (path, part) in images.paths.iter().zip(bytes.chunks(bytes.len() / DEVICES)) {
            std::fs::write(path, part).unwrap();
        }
        assert_clean(&images, &format!("a crash after {at} writes"));
        let linux = images.with_kernel("ro", |root| std::fs::read(root.join("old")).unwrap());
        assert!(linux == [7; 100_000]);
    }
}

#[test]
fn a_device_that_missed_the_last_commit_is_not_used() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = clean_images(dir.path());
    let device = record(&images);
    let half = device.size_bytes() / DEVICES as u64;
    let record = device.record();
    let states = between_devices(&device);
    for pair in states.windows(2) {
        // The second device lacks everything since the superblocks before. Whatever the order of the
        // devices was, one of them is complete.
        let (from, to) = (pair[0] + 1, pair[1] + 1);
        let state: Arc<dyn Device> = Arc::new(device.image(from).unwrap());
        for op in &record[from..to] {
            if let Recorded::Write { offset, data, .. } = op
                && offset.0 < half
            {
                state.write_at(*offset, data).unwrap();
            }
        }
        let found = generations(&*state);
        assert_eq!(found[0], found[1] + 1);
        let opened = open(parts(state.clone(), DEVICES), reading());
        assert!(opened.is_err(), "{BROKEN}: a device without the last commit is used");
        let refused = opened.err().unwrap().to_string();
        assert!(refused.contains("older than the others"), "{refused}");
        let degraded = OpenOptions { degraded: true, ..reading() };
        let vfs = open(parts(state, DEVICES), degraded).unwrap();
        let old = vfs.resolve(&Cred::root(), "/old", false).unwrap();
        assert!(read_all(&vfs, &old).unwrap() == [7; 100_000]);
        assert!(fact(&vfs, "note").contains("older than the others"));
    }
    // The images that the session began with are as they were.
    assert_eq!(
        number64(&images.bytes()[0], GENERATION as usize),
        generations(&*memory(&images.bytes().concat()))[0]
    );
}
