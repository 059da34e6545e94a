//! Helpers for the tests on images.

#![allow(dead_code)]

pub mod recorder;
pub mod tree;

use ivers_block::{BlockError, FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{DriverOptions, MountOptions, Vfs};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The arguments of mkfs.ext4, one row for each variant.
pub const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &["-t", "ext4"]),
    ("1k", &["-t", "ext4", "-b", "1024"]),
    ("4k", &["-t", "ext4", "-b", "4096"]),
    ("4k, many groups", &["-t", "ext4", "-b", "4096", "-g", "1024", "-N", "4096"]),
    ("4k small inodes", &["-t", "ext4", "-b", "4096", "-I", "128"]),
    ("4k no journal", &["-t", "ext4", "-b", "4096", "-O", "^has_journal", "-g", "2048"]),
    ("4k ext2", &["-t", "ext2", "-b", "4096"]),
    ("4k meta_bg", &["-t", "ext4", "-b", "4096", "-O", "meta_bg,^resize_inode", "-g", "512", "-N", "8192"]),
    ("2k", &["-t", "ext4", "-b", "2048"]),
    ("small inodes", &["-t", "ext4", "-I", "128"]),
    ("no journal", &["-t", "ext4", "-O", "^has_journal"]),
    ("ext2", &["-t", "ext2"]),
    ("ext3", &["-t", "ext3"]),
    ("ext3 1k", &["-t", "ext3", "-b", "1024"]),
    ("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"]),
    ("sparse_super2", &["-t", "ext4", "-O", "sparse_super2"]),
    ("orphan file", &["-t", "ext4", "-O", "orphan_file"]),
    ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]),
    ("32bit", &["-t", "ext4", "-O", "^64bit"]),
    ("csum seed", &["-t", "ext4", "-O", "metadata_csum_seed"]),
    ("no flex_bg", &["-t", "ext4", "-O", "^flex_bg"]),
    ("inline", &["-t", "ext4", "-O", "inline_data"]),
];

/// Runs mkfs.
pub fn mkfs(path: &Path, args: &[&str], bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
    let out =
        Command::new("mkfs.ext4").arg("-qF").args(args).arg(path).output().expect("mkfs.ext4 (e2fsprogs)");
    assert!(out.status.success(), "mkfs.ext4 {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs e2fsck and fails unless the image is clean.
pub fn fsck(path: &Path, what: &str) {
    ivers_oracle::e2fsck(path).unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// Opens the image as a device.
pub fn device(path: &Path, mode: OpenMode) -> Arc<FileDevice> {
    // A child process that another test is starting may hold a copy of the locked descriptor until it
    // executes.
    let mut tries = 0;
    loop {
        match FileDevice::open(path, mode) {
            Err(BlockError::Busy { .. }) if tries < 200 => tries += 1,
            other => return Arc::new(other.unwrap()),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Opens the filesystem.
pub fn open(path: &Path, read_only: bool) -> Arc<Ext4> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let options = OpenOptions::from(DriverOptions {
        read_only,
        place: "test image".into(),
        ..DriverOptions::default()
    });
    Ext4::open(device(path, mode), options).unwrap()
}

/// Mounts without background threads.
pub fn mount(path: &Path) -> Arc<Vfs> {
    Vfs::mount(open(path, false), MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// The output of a debugfs command.
pub fn debugfs(path: &Path, command: &str) -> String {
    let out = Command::new("debugfs").arg("-R").arg(command).arg(path).output().expect("debugfs (e2fsprogs)");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn debugfs_write(path: &Path, command: &str) {
    let done = Command::new("debugfs").args(["-w", "-R", command]).arg(path).output().expect("debugfs");
    assert!(done.status.success(), "{command}");
}
