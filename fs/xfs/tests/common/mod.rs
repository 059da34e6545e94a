//! Helpers of the tests on images: making them, and trees as text.

#![allow(dead_code)]

pub mod fill;
pub mod parents;
pub mod small;
pub mod storm;
pub mod trees;

use ivers_block::{Device, FileDevice, MemDevice, OpenMode};
use ivers_oracle::{LoopMount, have_programs};
use ivers_vfs::*;
use ivers_xfs::{OpenOptions, Xfs};
use std::path::Path;
use std::sync::Arc;
pub use trees::*;

/// The smallest image that mkfs.xfs makes without a flag for testers, with some room.
pub const IMAGE_BYTES: u64 = 320 << 20;

/// What mkfs.xfs is asked for: a name and arguments.
pub type Kind = (&'static str, &'static [&'static str]);

/// Images of version 5, which the kernel of the machine can mount.
pub const V5: &[Kind] = &[
    ("default", &[]),
    ("all features of 6.1", &["-m", "rmapbt=1", "-i", "nrext64=1"]),
    ("rmapbt", &["-m", "rmapbt=1"]),
    ("nrext64", &["-i", "nrext64=1"]),
    ("crc alone", &["-m", "finobt=0,reflink=0,inobtcount=0,bigtime=0", "-i", "sparse=0"]),
    ("no finobt", &["-m", "finobt=0,inobtcount=0"]),
    ("no reflink", &["-m", "reflink=0"]),
    ("no bigtime", &["-m", "bigtime=0"]),
    ("no sparse inodes", &["-i", "sparse=0"]),
    ("blocks of 1 KiB", &["-b", "size=1024"]),
    ("blocks of 2 KiB", &["-b", "size=2048"]),
    ("blocks of 64 KiB", &["-b", "size=65536"]),
    ("sectors of 4096", &["-s", "size=4096"]),
    ("directory blocks of 64 KiB", &["-n", "size=65536"]),
    ("1 KiB and directory blocks of 8 KiB", &["-b", "size=1024", "-n", "size=8192"]),
    ("inodes of 2 KiB", &["-i", "size=2048"]),
    ("inodes of 1 KiB", &["-i", "size=1024"]),
    ("two groups", &["-d", "agcount=2"]),
    ("three groups", &["-d", "agcount=3"]),
    ("log records of 256 KiB", &["-l", "su=256k"]),
    ("a label", &["-L", "a label"]),
];

/// Images of version 4.
pub const V4: &[Kind] = &[
    ("version 4", &["-m", "crc=0"]),
    ("version 4, no ftype", &["-m", "crc=0", "-n", "ftype=0"]),
    ("version 4, inodes of 256 bytes", &["-m", "crc=0", "-i", "size=256"]),
    ("version 4, blocks of 512", &["-m", "crc=0", "-b", "size=512", "-i", "size=256"]),
    ("version 4, ascii-ci", &["-m", "crc=0", "-n", "version=ci"]),
    ("version 4, log of version 1", &["-m", "crc=0", "-l", "version=1"]),
];

/// Returns whether tests on images can run.
pub fn have_xfsprogs() -> bool {
    have_programs(&["mkfs.xfs", "xfs_db", "xfs_repair"])
}

/// Makes an image; with a tree if `proto` names a file.
pub fn mkfs(path: &Path, args: &[&str], proto: Option<&Path>) {
    std::fs::File::create(path).unwrap().set_len(IMAGE_BYTES).unwrap();
    let mut all = vec!["-q".as_ref(), "-f".as_ref(), "-K".as_ref()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    if let Some(proto) = proto {
        all.extend(["-p".as_ref(), proto.as_os_str()]);
    }
    all.push(path.as_os_str());
    ivers_oracle::run("mkfs.xfs", all).unwrap();
}

pub fn reading() -> OpenOptions {
    let common = DriverOptions { read_only: true, ..DriverOptions::default() };
    OpenOptions { common, ..OpenOptions::default() }
}

pub fn device(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenMode::ReadOnly).unwrap())
}

pub fn mount_device(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
    Vfs::mount(Xfs::open(device, reading())?, options)
}

pub fn mount(path: &Path) -> Arc<Vfs> {
    mount_device(device(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemDevice::from_bytes(bytes))
}

/// Opens an image for writing and mounts it.
pub fn mount_writable(path: &Path) -> Arc<Vfs> {
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap());
    let fs = Xfs::open(device, OpenOptions::default()).unwrap_or_else(|error| panic!("open: {error}"));
    Vfs::mount(fs, MountOptions::default()).unwrap_or_else(|error| panic!("mount: {error}"))
}

pub fn copy_image(from: &Path, to: &Path) {
    ivers_oracle::run("cp", ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()]).unwrap();
}

/// xfs_repair reports nothing.
pub fn repair_finds_nothing(path: &Path, what: &str) {
    ivers_oracle::xfs::judge(path).unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// Our checker reports nothing.
pub fn assert_clean(path: &Path, what: &str) {
    let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
    let found =
        ivers_xfs::check::check(Arc::new(device), ivers_vfs::check::Memory::unlimited(), "image").unwrap();
    let lines: Vec<_> = found.kept().iter().take(20).map(|found| format!("{found:?}")).collect();
    assert!(found.is_clean(), "{what}: {}\n{:?}", lines.join("\n"), found.notes());
}

/// Extents of a file: runs of the block map that nothing interrupts.
pub fn extents(image: &Path, name: &str) -> usize {
    let mounted = LoopMount::new(image, "ro").unwrap();
    let path = mounted.path().join(name);
    let words = ["-r".as_ref(), "-c".as_ref(), "fiemap".as_ref(), path.as_os_str()];
    let output = ivers_oracle::run("xfs_io", words).unwrap();
    let lines =
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.contains("hole")).count();
    mounted.unmount().unwrap();
    lines - 1
}
