//! Read-only sessions: which change attributes they may serve. They cannot record the values that they serve,
//! and writers follow them.

use crate::common::{device, mkfs, mount, open};
use ivers_block::OpenMode;
use ivers_ext4::{Ext4, OpenOptions};
use ivers_oracle::e2fs::e2fsck_repair_all;
use ivers_vfs::{CreateSpec, Cred, DriverOptions, FileSystem, Vfs, WriteFlags};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes an image that a machine left by stopping within a session, after a session that ended cleanly.
/// Returns it with the last value served for its file.
fn stopped(options: &[&str]) -> (TempDir, PathBuf, u64) {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("image"), dir.path().join("copy"));
    mkfs(&path, options, 16 << 20);
    let cred = Cred::root();
    mount(&path).unmount().unwrap();
    let vfs = mount(&path);
    let (file, _) = vfs.create(&cred, &vfs.root().unwrap(), b"f", &CreateSpec::file(0o600), false).unwrap();
    let mut seen = 0;
    for content in [b"one", b"two"] {
        vfs.write(&cred, &file, 0, content, WriteFlags::empty()).unwrap();
        vfs.fsync(&file, false).unwrap();
        seen = vfs.change(&file).unwrap();
    }
    std::fs::copy(&path, &copy).unwrap();
    drop(file);
    vfs.unmount().unwrap();
    (dir, copy, seen)
}

fn tool(path: &Path, program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).arg(path).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn change(vfs: &Arc<Vfs>) -> Option<u64> {
    vfs.change(&vfs.resolve(&Cred::root(), "/f", false).unwrap())
}

/// Checks that the reader serves no value and says why. After e2fsck it serves values again, higher than all
/// before.
fn serves_nothing_until_repaired(path: &Path, options: OpenOptions, why: &str, seen: u64) {
    let fs = Ext4::open(device(path, OpenMode::ReadOnly), options).unwrap();
    let said = fs.health().no_change_attribute;
    assert!(said.as_ref().is_some_and(|said| said.contains(why)), "{why}: {said:?}");
    let vfs = Vfs::mount(fs, Default::default()).unwrap();
    assert_eq!(vfs.change(&vfs.root().unwrap()), None, "{why}");
    vfs.unmount().unwrap();
    drop(vfs);
    e2fsck_repair_all(path).unwrap();
    let vfs = mount(path);
    assert!(change(&vfs).unwrap() > seen, "{why}");
    vfs.unmount().unwrap();
}

fn reading() -> OpenOptions {
    OpenOptions::from(DriverOptions { read_only: true, ..DriverOptions::default() })
}

#[test]
fn an_unclean_image_without_a_journal_serves_no_change_attribute() {
    for options in [&["-t", "ext2"][..], &["-t", "ext4", "-O", "^has_journal"]] {
        let (_dir, path, seen) = stopped(options);
        serves_nothing_until_repaired(&path, reading(), "not unmounted cleanly", seen);
        // A writable mount of this image becomes read-only.
        let (_dir, path, seen) = stopped(options);
        serves_nothing_until_repaired(&path, OpenOptions::default(), "run e2fsck", seen);
    }
}

#[test]
fn a_reader_serves_no_change_attribute_after_errors_or_without_replay() {
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    serves_nothing_until_repaired(
        &path,
        OpenOptions { no_replay: true, ..reading() },
        "not replayed: mount without norecovery",
        seen,
    );
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    tool(&path, "debugfs", &["-w", "-R", "ssv state 3"]);
    serves_nothing_until_repaired(&path, reading(), "the superblock records errors", seen);
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    tool(&path, "debugfs", &["-w", "-R", "feature -needs_recovery"]);
    serves_nothing_until_repaired(&path, reading(), "does not announce", seen);
    let (_dir, path, seen) = stopped(&["-t", "ext4", "-b", "4096"]);
    let mut image = std::fs::read(&path).unwrap();
    // `h_magic` and `h_blocktype` of the journal's superblock; `s_errno` is -EIO. That journal has no
    // checksum.
    let header = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = image.chunks(4096).position(|block| block.starts_with(&header)).unwrap();
    let log = &mut image[block * 4096..][..1024];
    log[0x20..0x24].copy_from_slice(&(-5_i32).to_be_bytes());
    log[0xFC..0x100].fill(0);
    let sum = !crc32c::crc32c(log);
    log[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
    std::fs::write(&path, image).unwrap();
    serves_nothing_until_repaired(&path, reading(), "the journal records an error", seen);
}

/// The reader replays in memory and serves the next epoch. Then another program replays and writes: e2fsck
/// and the kernel change no field that would show.
#[test]
fn values_served_by_a_reader_do_not_match_later_writes() {
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    let reader = open(&path, true);
    let served = reader.epochs().unwrap().base();
    drop(reader);
    e2fsck_repair_all(&path).unwrap();
    tool(&path, "debugfs", &["-w", "-R", "sif /f mode 0100644"]);
    let vfs = mount(&path);
    assert!(vfs.fs().epochs().unwrap().base() > served && change(&vfs).unwrap() > seen);
    vfs.unmount().unwrap();
    drop(vfs);
    // The same for a program that changes a cleanly closed filesystem between a reader and a writer.
    for (set, mode) in ["ssv mnt_count 71", "ssv mnt_count 72"].into_iter().zip(["0100600", "0100640"]) {
        tool(&path, "debugfs", &["-w", "-R", set]);
        let reader = open(&path, true);
        let served = reader.epochs().unwrap().base();
        drop(reader);
        tool(&path, "debugfs", &["-w", "-R", &format!("sif /f mode {mode}")]);
        let vfs = mount(&path);
        assert!(vfs.fs().epochs().unwrap().base() > served);
        vfs.unmount().unwrap();
    }
}
