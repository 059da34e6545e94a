//! What a session that writes nothing may vouch for: it cannot record what it handed out, and others come after it.

mod common;

use common::{device, mkfs, mount, open};
use ivers_block::OpenMode;
use ivers_ext4::{Ext4, OpenOptions};
use ivers_oracle::e2fs::e2fsck_repair_all;
use ivers_vfs::{CreateSpec, Cred, FileSystem, Vfs, WriteFlags};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// An image whose machine stopped in the midst of a session, after another that ended well, and the last value handed out for its file.
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

/// The reader says why it knows nothing; after e2fsck there are values again, above all others.
fn is_silent_until_mended(path: &Path, options: OpenOptions, why: &str, seen: u64) {
    let fs = Ext4::open(device(path, OpenMode::ReadOnly), options).unwrap();
    let said = fs.info().no_cookie;
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
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

#[test]
fn without_a_journal_nobody_vouches_for_what_was_not_closed() {
    for options in [&["-t", "ext2"][..], &["-t", "ext4", "-O", "^has_journal"]] {
        let (_dir, path, seen) = stopped(options);
        is_silent_until_mended(&path, reading(), "not closed in good order", seen);
        // A mount that wants to write is one that may only read.
        let (_dir, path, seen) = stopped(options);
        is_silent_until_mended(&path, OpenOptions::default(), "run e2fsck", seen);
    }
}

#[test]
fn recorded_errors_and_logs_that_are_not_replayed_silence_a_reader() {
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    is_silent_until_mended(
        &path,
        OpenOptions { no_replay: true, ..reading() },
        "not replayed: mount it without norecovery",
        seen,
    );
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    tool(&path, "debugfs", &["-w", "-R", "ssv state 3"]);
    is_silent_until_mended(&path, reading(), "errors were recorded", seen);
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    tool(&path, "debugfs", &["-w", "-R", "feature -needs_recovery"]);
    is_silent_until_mended(&path, reading(), "does not know of", seen);
    let (_dir, path, seen) = stopped(&["-t", "ext4", "-b", "4096"]);
    let mut image = std::fs::read(&path).unwrap();
    // `h_magic` and `h_blocktype` of the journal's superblock; `s_errno` is -EIO. The journal's checksum is not asked of it.
    let header = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let block = image.chunks(4096).position(|block| block.starts_with(&header)).unwrap();
    let log = &mut image[block * 4096..][..1024];
    log[0x20..0x24].copy_from_slice(&(-5_i32).to_be_bytes());
    log[0xFC..0x100].fill(0);
    let sum = !crc32c::crc32c(log);
    log[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
    std::fs::write(&path, image).unwrap();
    is_silent_until_mended(&path, reading(), "its journal recorded an error", seen);
}

/// The reader replayed in memory and served the next epoch. Somebody else replays, and writes on: e2fsck and the kernel count
/// nothing that would show.
#[test]
fn what_a_reader_served_vouches_for_nothing_that_others_make_of_it() {
    let (_dir, path, seen) = stopped(&["-t", "ext4"]);
    let reader = open(&path, true);
    let served = reader.version_base();
    drop(reader);
    e2fsck_repair_all(&path).unwrap();
    tool(&path, "debugfs", &["-w", "-R", "sif /f mode 0100644"]);
    let vfs = mount(&path);
    assert!(vfs.fs().version_base() > served && change(&vfs).unwrap() > seen);
    vfs.unmount().unwrap();
    drop(vfs);
    // As much for who changes a filesystem at rest between a reader and a writer.
    for (set, mode) in ["ssv mnt_count 71", "ssv mnt_count 72"].into_iter().zip(["0100600", "0100640"]) {
        tool(&path, "debugfs", &["-w", "-R", set]);
        let reader = open(&path, true);
        let served = reader.version_base();
        drop(reader);
        tool(&path, "debugfs", &["-w", "-R", &format!("sif /f mode {mode}")]);
        let vfs = mount(&path);
        assert!(vfs.fs().version_base() > served);
        vfs.unmount().unwrap();
    }
}
