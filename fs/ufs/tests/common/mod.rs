//! Images that makefs makes, and their trees.

pub mod listing;
pub mod numbers;
pub mod rounds;
#[path = "../../../xfs/tests/common/storm.rs"]
pub mod storm;
#[path = "../../../xfs/tests/common/trees.rs"]
pub mod trees;

use ivers_block::{Device, FileDevice, MemDevice, OpenMode};
use ivers_oracle::have_programs;
use ivers_ufs::layout::superblock::{self, Superblock};
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::*;
pub use listing::*;
pub use numbers::*;
pub use rounds::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
pub use trees::*;

/// A kind of image: a name and options of makefs.
pub type Kind<'a> = (&'static str, &'a [&'static str]);

pub const KINDS: &[Kind<'static>] = &[
    ("ufs1", &["-s", "16m", "-o", "version=1"]),
    ("ufs2", &["-s", "16m", "-o", "version=2"]),
    ("ufs1 big-endian", &["-s", "16m", "-B", "be", "-o", "version=1"]),
    ("ufs2 big-endian", &["-s", "16m", "-B", "be", "-o", "version=2"]),
    ("ufs2 8192/1024", &["-s", "16m", "-o", "version=2,bsize=8192,fsize=1024"]),
    ("ufs2 32768/4096", &["-s", "64m", "-o", "version=2,bsize=32768,fsize=4096"]),
    ("ufs1 4096/512", &["-s", "64m", "-o", "version=1,bsize=4096,fsize=512"]),
    ("ufs2 65536/8192", &["-s", "64m", "-o", "version=2,bsize=65536,fsize=8192"]),
    ("ufs1 16384/2048", &["-s", "16m", "-o", "version=1,bsize=16384,fsize=2048"]),
    ("ufs2 4096/4096", &["-s", "32m", "-o", "version=2,bsize=4096,fsize=4096"]),
];

/// The time at which the file `dated` was changed.
pub const DATED: u64 = 1_234_567_890;

/// Returns whether tests on images can run.
pub fn have_makefs() -> bool {
    have_programs(&["makefs"])
}

/// Makes a tree with everything that makefs copies.
pub fn fill(root: &Path) {
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::write(root.join("a"), "hello\n").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    // Sizes around fragments, blocks and the first indirect block of each kind.
    for size in [511, 512, 513, 4095, 4097, 8191, 12 * 4096, 12 * 8192, 12 * 8192 + 1, 12 * 65536 + 5] {
        let data: Vec<u8> = (0..size).map(|at: usize| (at / 3 + size) as u8).collect();
        fs::write(root.join(format!("size{size}")), data).unwrap();
    }
    // With blocks of 4 KiB it has two levels of indirect blocks.
    let large: Vec<u8> = (0..3_500_000u32).map(|at| (at / 7) as u8).collect();
    fs::write(root.join("large"), large).unwrap();
    for number in 0..400 {
        fs::write(root.join(format!("dir/file with a longer name {number}")), number.to_string()).unwrap();
    }
    fs::write(root.join(format!("dir/{}", "n".repeat(255))), "x").unwrap();
    fs::hard_link(root.join("a"), root.join("dir/sub/hard")).unwrap();
    for (target, name) in [("a", "short"), (&*"s".repeat(59), "59"), (&"s".repeat(60), "60")] {
        symlink(target, root.join(format!("link {name}"))).unwrap();
    }
    symlink("t".repeat(119), root.join("link 119")).unwrap();
    symlink("t".repeat(1000), root.join("link 1000")).unwrap();
    let dated = fs::File::create(root.join("dated")).unwrap();
    dated.set_modified(UNIX_EPOCH + Duration::from_secs(DATED)).unwrap();
    ivers_oracle::run("mkfifo", ["-m".as_ref(), "640".as_ref(), root.join("fifo").as_os_str()]).unwrap();
}

/// Makes an image of a directory.
pub fn makefs(image: &Path, options: &[&str], tree: &Path) {
    let mut words = vec!["-t".as_ref(), "ffs".as_ref()];
    words.extend(options.iter().map(std::ffi::OsStr::new));
    words.extend([image.as_os_str(), tree.as_os_str()]);
    ivers_oracle::run("makefs", words).unwrap();
}

/// Makes an image with the tree of [`fill`].
pub fn image_of(kind: &Kind<'_>) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    fill(&dir.path().join("tree"));
    makefs(&dir.path().join("image"), kind.1, &dir.path().join("tree"));
    fs::read(dir.path().join("image")).unwrap()
}

/// As [`image_of`], with 10 MiB.
pub fn small_image_of(kind: &Kind<'static>) -> Vec<u8> {
    let smaller = |word: &&'static str| if word.ends_with('m') { "10m" } else { *word };
    let options: Vec<_> = kind.1.iter().map(smaller).collect();
    image_of(&(kind.0, &options))
}

/// An image with a small tree, for tests that damage it.
pub fn small_image(options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir_all(tree.join("dir/sub")).unwrap();
    fs::write(tree.join("file"), "f".repeat(3000)).unwrap();
    fs::write(tree.join("large"), vec![7; 300_000]).unwrap();
    fs::hard_link(tree.join("file"), tree.join("dir/hard")).unwrap();
    symlink("file", tree.join("link")).unwrap();
    makefs(&image, options, &tree);
    fs::read(image).unwrap()
}

pub fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemDevice::from_bytes(bytes))
}

pub fn open(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Ufs>> {
    Ufs::open(device, OpenOptions::default())
}

pub fn mount_device(device: Arc<dyn Device>) -> ivers_vfs::Result<Arc<Vfs>> {
    let options = MountOptions { background: false, read_only: true, ..MountOptions::default() };
    Vfs::mount(open(device)?, options)
}

pub fn mount(path: &Path) -> Arc<Vfs> {
    let device = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
    mount_device(Arc::new(device)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn superblock(image: &[u8]) -> Superblock {
    let at = superblock::find(image).unwrap();
    Superblock::parse(&image[at as usize..], at, image.len() as u64, "image").unwrap()
}

/// Mounts a device for writing. Nothing is written in the background.
pub fn mount_writable(device: Arc<dyn Device>) -> Arc<Vfs> {
    let fs = open(device).unwrap();
    assert_eq!(fs.health().read_only, None);
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// Checks that our checker finds nothing.
pub fn assert_clean(device: Arc<dyn Device>, what: &str) {
    let found = ivers_ufs::check::check(device, ivers_vfs::check::Memory::unlimited(), what).unwrap();
    assert!(found.is_clean() && found.notes().is_empty(), "{what}: {found:#?}");
}

/// The byte of a little-endian UFS2 image at which the inode of a path is stored.
pub fn slot(image: &[u8], path: &str) -> usize {
    let vfs = mount_device(memory(image)).unwrap();
    let ino = vfs.resolve(&Cred::root(), path, false).unwrap().ino.0 as u32;
    let sb = superblock(image);
    let (fragment, at) = sb.inode_place(ino);
    fragment as usize * sb.fragment_size as usize + at
}

/// The byte at which the contents of a path start.
pub fn contents(image: &[u8], path: &str) -> usize {
    get(image, slot(image, path) + 112, 8) as usize * superblock(image).fragment_size as usize
}

/// The byte of the descriptor of the first group.
pub fn group(image: &[u8]) -> usize {
    let sb = superblock(image);
    sb.structure(0, 1) as usize * sb.fragment_size as usize
}

/// The byte at which the entry of a name in a directory starts.
pub fn entry(image: &[u8], dir: &str, name: &str) -> usize {
    let start = contents(image, dir);
    let mut at = start;
    while &image[at + 8..at + 8 + usize::from(image[at + 7])] != name.as_bytes() {
        at += get(image, at + 4, 2) as usize;
        assert!(at < start + 512, "{name} is in the first unit of {dir}");
    }
    at
}
