//! Helpers of the tests on volumes.

#![allow(dead_code)]

use ivers_affs::{Affs, OpenOptions};
use ivers_block::{Device, MemDevice};
use ivers_oracle::affs::Amitools;
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Size in bytes of a floppy of double density, and of high density.
pub const DD: u64 = 880 << 10;
pub const HD: u64 = 1760 << 10;

pub const NOW: Timestamp = Timestamp { sec: 1_763_766_000, nsec: 0 };

/// Makes an empty volume. Its free space is full of bytes that no test writes.
pub fn fresh(low_byte: u8, block_size: u32, bytes: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::from_bytes(&vec![0xa6; bytes as usize]));
    ivers_affs::mkfs::format(&*device, low_byte, block_size, "Test", NOW).unwrap();
    device
}

pub fn open(device: &Arc<MemDevice>, options: OpenOptions) -> ivers_vfs::Result<Arc<Affs>> {
    Affs::open(device.clone() as Arc<dyn Device>, options)
}

pub fn writable() -> OpenOptions {
    OpenOptions::default()
}

pub fn reading() -> OpenOptions {
    DriverOptions { read_only: true, ..DriverOptions::default() }.into()
}

pub fn mount_fs(fs: Arc<Affs>) -> Arc<Vfs> {
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

pub fn mount(device: &Arc<MemDevice>) -> Arc<Vfs> {
    let fs = open(device, writable()).unwrap();
    assert_eq!(fs.health().read_only, None);
    mount_fs(fs)
}

pub fn image(path: &Path) -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes(&std::fs::read(path).unwrap()))
}

/// Checks a closed volume with our own checker.
pub fn check(device: &MemDevice, block_size: u32) -> ivers_affs::check::Report {
    ivers_affs::check::report(&device.to_bytes(), block_size as usize).closed().unwrap()
}

pub fn amitools() -> Option<Amitools> {
    if !ivers_oracle::have_programs(&["python3"]) {
        return None;
    }
    match Amitools::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("../oracles/amitools")) {
        Ok(tools) => Some(tools),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "CI is set and amitools are missing: {error:#}");
            ivers_oracle::skipped(&format!("{error:#}"));
            None
        }
    }
}

pub fn root() -> Cred {
    Cred::root()
}

pub fn find(vfs: &Arc<Vfs>, path: &str) -> InodeRef {
    vfs.resolve(&root(), path, false).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the directory of a path, and its last name.
pub fn split<'p>(vfs: &Arc<Vfs>, path: &'p str) -> (InodeRef, &'p [u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap();
    (find(vfs, if dir.is_empty() { "/" } else { dir }), name.as_bytes())
}

pub fn make(vfs: &Arc<Vfs>, path: &str, spec: &CreateSpec) -> InodeRef {
    let (dir, name) = split(vfs, path);
    vfs.create(&root(), &dir, name, spec, false).unwrap_or_else(|error| panic!("{path}: {error}")).0
}

pub fn write(vfs: &Arc<Vfs>, inode: &InodeRef, offset: u64, data: &[u8]) {
    assert_eq!(vfs.write(&root(), inode, offset, data, WriteFlags::empty()).unwrap(), data.len());
}

pub fn put(vfs: &Arc<Vfs>, path: &str, data: &[u8]) -> InodeRef {
    let file = make(vfs, path, &CreateSpec::file(0o640));
    write(vfs, &file, 0, data);
    file
}

pub fn get(vfs: &Arc<Vfs>, inode: &InodeRef) -> Vec<u8> {
    let mut data = vec![0; inode.size() as usize];
    assert_eq!(vfs.read(&Cred::root(), inode, 0, &mut data).unwrap(), data.len());
    data
}

pub fn link(vfs: &Arc<Vfs>, old: &str, new: &str) {
    let (dir, name) = split(vfs, new);
    vfs.link(&root(), &find(vfs, old), &dir, name, false).unwrap();
}

pub fn unlink(vfs: &Arc<Vfs>, path: &str) {
    let (dir, name) = split(vfs, path);
    vfs.unlink(&root(), &dir, name, false).unwrap();
}

pub fn rename(vfs: &Arc<Vfs>, old: &str, new: &str) -> ivers_vfs::Result<()> {
    let ((old_dir, old_name), (new_dir, new_name)) = (split(vfs, old), split(vfs, new));
    vfs.rename(&root(), &old_dir, old_name, &new_dir, new_name, RenameFlags::empty(), false).map(drop)
}

pub fn names(vfs: &Arc<Vfs>, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    names.sort();
    names
}

/// Returns all paths, with kind, permissions, owner, contents and links.
pub fn tree(vfs: &Arc<Vfs>) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        let inode = find(vfs, if dir.is_empty() { "/" } else { &dir });
        for name in names(vfs, &inode) {
            let path = format!("{dir}/{name}");
            let inode = find(vfs, &path);
            let attr = inode.attr();
            let rest = match attr.kind {
                FileType::Directory => {
                    dirs.push(path.clone());
                    String::new()
                }
                FileType::Symlink => {
                    String::from_utf8(vfs.read_link(&Cred::root(), &inode).unwrap()).unwrap()
                }
                _ => {
                    let data = get(vfs, &inode);
                    let sum =
                        data.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                    format!("{} {sum:x} {}", data.len(), attr.nlink)
                }
            };
            tree.insert(path, format!("{:?} {:o} {}.{} {rest}", attr.kind, attr.perm, attr.uid, attr.gid));
        }
    }
    tree
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect()
}
