//! Images, and their trees.

#[path = "../../../ufs/tests/common/listing.rs"]
mod listing;
#[path = "../../../ufs/tests/common/numbers.rs"]
mod numbers;
#[path = "../../../ufs/tests/common/rounds.rs"]
pub mod rounds;
#[path = "../../../xfs/tests/common/storm.rs"]
pub mod storm;

use flate2::read::DeflateDecoder;
use ivers_block::{Device, MemDevice};
use ivers_ocfs2::layout::superblock::{self, Superblock};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_vfs::*;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
pub use {listing::*, numbers::*, rounds::*};

/// Images of the fuzz target, made by `testing/fuzz-targets/examples/ocfs2_bases.rs`: blocks of 1 KiB in
/// clusters of 4 KiB; blocks of 512 bytes with checksums; one that was not unmounted.
pub const PLAIN: &[u8] = include_bytes!("../../../../testing/fuzz-targets/bases/ocfs2.z");
pub const SUMS: &[u8] = include_bytes!("../../../../testing/fuzz-targets/bases/ocfs2_sums.z");
pub const DIRTY: &[u8] = include_bytes!("../../../../testing/fuzz-targets/bases/ocfs2_dirty.z");

pub fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut image).unwrap();
    image
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemDevice::from_bytes(bytes))
}

pub fn open(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Ocfs2>> {
    Ocfs2::open(device, OpenOptions::default())
}

pub fn mount_device(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
    Vfs::mount(open(device)?, options)
}

pub fn mount(image: &[u8]) -> Arc<Vfs> {
    mount_device(memory(image)).unwrap()
}

/// A kind of image for tests that write: a name, bytes of an image and of a small one, options of mkfs.ocfs2.
pub struct Kind {
    pub name: &'static str,
    pub bytes: u64,
    pub small: u64,
    options: &'static [&'static str],
}

pub const KINDS: &[Kind] = &[
    Kind {
        name: "4K",
        bytes: 96 << 20,
        small: 20 << 20,
        options: &["-b", "4K", "-C", "4K", "-J", "size=4M"],
    },
    Kind {
        name: "1K metaecc",
        bytes: 64 << 20,
        small: 12 << 20,
        options: &["-b", "1K", "-C", "4K", "-J", "size=4M", "--fs-features=metaecc"],
    },
    Kind {
        name: "32K metaecc",
        bytes: 192 << 20,
        small: 48 << 20,
        options: &["-b", "4K", "-C", "32K", "-J", "size=4M", "--fs-features=metaecc"],
    },
    Kind { name: "1M", bytes: 200 << 20, small: 100 << 20, options: &["-b", "4K", "-C", "1M"] },
    Kind {
        name: "2K old",
        bytes: 96 << 20,
        small: 20 << 20,
        options: &["-b", "2K", "-C", "8K", "-J", "size=4M", "-N", "3", "--fs-feature-level=max-compat"],
    },
];

impl Kind {
    /// Returns an empty filesystem.
    pub fn image(&self, bytes: u64) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let sparse = ["--fs-features=sparse,xattr,unwritten"];
        let mut options = self.options.to_vec();
        if self.name.ends_with("old") {
            options.extend(sparse);
        }
        ivers_oracle::mkfs_ocfs2(&path, bytes, &options).unwrap();
        std::fs::read(path).unwrap()
    }
}

/// Mounts a device for writing. Nothing is written in the background.
pub fn mount_writable(device: Arc<dyn Device>) -> Arc<Vfs> {
    let fs = open(device).unwrap();
    assert_eq!(fs.health().read_only, None);
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// Checks that the checker finds nothing, and fsck.ocfs2 nothing.
pub fn assert_clean(device: &Arc<MemDevice>, what: &str) {
    let found =
        ivers_ocfs2::check::check(device.clone(), ivers_vfs::check::Memory::unlimited(), what).unwrap();
    assert!(found.is_clean() && found.notes().is_empty(), "{what}: {found:#?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), device.to_bytes()).unwrap();
    let mut theirs = ivers_oracle::fsck_ocfs2(file.path()).unwrap();
    // Random changes remove it.
    theirs.remove("LOSTFOUND_MISSING");
    assert!(theirs.is_empty(), "{what}: {theirs:?}");
}

/// Checks that fsck.ocfs2 replays the journal of an image that a crash left, and finds nothing.
pub fn assert_replayed(image: &[u8], what: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image).unwrap();
    // The first run ends after the replay where there is no cluster service. The second one checks, and
    // deletes orphans.
    let run = || {
        let output = ivers_oracle::output("fsck.ocfs2", ["-fy".as_ref(), file.path().as_os_str()]).unwrap();
        ivers_oracle::said(&output)
    };
    let (first, second) = (run(), run());
    assert!(
        first.contains("journal replayed successfully") || first.contains("succeeded"),
        "{what}: {first}"
    );
    let is_problem = |line: &&str| {
        line.starts_with('[')
            && !(line.starts_with("[INODE_ORPHANED]") || line.starts_with("[LOSTFOUND_MISSING]"))
    };
    let problems: Vec<_> = first.lines().chain(second.lines()).filter(is_problem).collect();
    assert!(problems.is_empty() && second.contains("succeeded"), "{what}: {first}{second}");
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(file.path()).unwrap()));
    assert_clean(&device, what);
}

pub fn find(vfs: &Arc<Vfs>, path: &str) -> ivers_vfs::Result<InodeRef> {
    vfs.resolve(&Cred::root(), path, false)
}

pub fn read_all(vfs: &Arc<Vfs>, inode: &InodeRef) -> ivers_vfs::Result<Vec<u8>> {
    let mut data = vec![0; inode.size() as usize];
    let got = vfs.read(&Cred::root(), inode, 0, &mut data)?;
    assert_eq!(got, data.len());
    Ok(data)
}

/// The names of a directory, without dots.
pub fn names(vfs: &Arc<Vfs>, dir: &InodeRef) -> ivers_vfs::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    vfs.readdir(&Cred::root(), dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    Ok(names)
}

/// Reads everything that can be read. Errors are ignored.
pub fn walk_all(vfs: &Arc<Vfs>) {
    let Ok(root) = vfs.root() else { return };
    let (mut dirs, mut seen) = (vec![root], std::collections::BTreeSet::new());
    while let Some(dir) = dirs.pop() {
        for name in names(vfs, &dir).unwrap_or_default() {
            let Ok(inode) = vfs.lookup(&Cred::root(), &dir, &name) else { continue };
            let _ = vfs.list_xattr(&Cred::root(), &inode).map(|names| {
                names.iter().for_each(|name| drop(vfs.get_xattr(&Cred::root(), &inode, name)));
            });
            match inode.kind {
                FileType::Regular => {
                    let mut piece = vec![0; 300_000];
                    let _ = vfs.read(&Cred::root(), &inode, 0, &mut piece);
                    let _ = (vfs.seek_data(&inode, 0), vfs.seek_hole(&inode, 0));
                }
                FileType::Symlink => drop(vfs.read_link(&Cred::root(), &inode)),
                FileType::Directory if seen.insert(inode.ino) => dirs.push(inode),
                _ => {}
            }
        }
    }
}

pub fn superblock(image: &[u8]) -> Superblock {
    let size = superblock::find(image).unwrap() as usize;
    Superblock::parse(&image[2 * size..3 * size], image.len() as u64, "image").unwrap()
}

/// The byte of a block.
pub fn byte_of(image: &[u8], block: u64) -> usize {
    block as usize * superblock(image).block_size as usize
}

/// The byte at which the inode of a path is stored. `//NAME` is a system file.
pub fn slot(image: &[u8], path: &str) -> usize {
    let ino = match path.strip_prefix("//") {
        Some(name) => {
            let dir = byte_of(image, superblock(image).system_dir);
            get(image, entry_in(image, dir, name), 8)
        }
        None => find(&mount(image), path).unwrap().ino.0,
    };
    byte_of(image, ino)
}

/// The byte of the first extent of the inode at a byte.
pub fn first_extent(image: &[u8], inode: usize) -> usize {
    byte_of(image, get(image, inode + 0xC0 + 16 + 8, 8))
}

/// The byte of the first group of an allocator.
pub fn first_group(image: &[u8], name: &str) -> usize {
    byte_of(image, get(image, slot(image, name) + 0xC0 + 16 + 8, 8))
}

/// Inverts a bit of the first group of an allocator, and counts it.
pub fn flip(image: &mut [u8], name: &str, bit: u64, used: i64) {
    let (at, inode) = (first_group(image, name), slot(image, name));
    image[at + 0x40 + (bit / 8) as usize] ^= 1 << (bit % 8);
    add(image, at + 0x0C, 2, -used);
    add(image, inode + 0xC0 + 16, 4, -used);
    add(image, inode + 0xB8, 4, used);
}

/// The byte at which the entry of a name starts, in the directory whose inode is at a byte.
pub fn entry_in(image: &[u8], dir: usize, name: &str) -> usize {
    let is_inline = get(image, dir + 0x76, 2) & 1 != 0;
    let start = if is_inline { dir + 0xC8 } else { first_extent(image, dir) };
    let mut at = start;
    while &image[at + 12..at + 12 + usize::from(image[at + 10])] != name.as_bytes() || get(image, at, 8) == 0
    {
        at += get(image, at + 8, 2) as usize;
        assert!(at < start + 16_384, "{name} is in the directory");
    }
    at
}

pub fn entry(image: &[u8], dir: &str, name: &str) -> usize {
    entry_in(image, slot(image, dir), name)
}
