//! Images by mkfs.ext4 in many shapes: opened, walked, closed, and checked by e2fsck.

use ivers_block::{FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::{FileSystem, FileType, Ino};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// One mkfs.ext4 command line a variant.
const VARIANTS: &[(&str, &[&str])] = &[
    ("default", &["-t", "ext4"]),
    ("1k", &["-t", "ext4", "-b", "1024"]),
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

fn mkfs(path: &Path, args: &[&str], bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
    let out =
        Command::new("mkfs.ext4").arg("-qF").args(args).arg(path).output().expect("mkfs.ext4 (e2fsprogs)");
    assert!(out.status.success(), "mkfs.ext4 {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn fsck(path: &Path, what: &str) {
    let out = Command::new("e2fsck").arg("-fn").arg(path).output().expect("e2fsck (e2fsprogs)");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !text.contains("wrong") && !text.contains("IGNORED"), "{what}: {text}");
}

fn open(path: &Path, read_only: bool) -> Arc<Ext4> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(path, mode).unwrap());
    let options = OpenOptions { read_only, place: "test image".into(), ..OpenOptions::default() };
    Ext4::open(device, options).unwrap()
}

#[test]
fn images_of_every_shape_open_and_close() {
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in VARIANTS {
        let path = dir.path().join("image");
        mkfs(&path, args, 64 << 20);
        for read_only in [true, false, false] {
            let fs = open(&path, read_only);
            let info = fs.info();
            assert_eq!(info.read_only.is_some(), read_only, "{name}: {:?}", info.read_only);
            let root = fs.load_inode(info.root).unwrap();
            assert_eq!(root.attr.kind, FileType::Directory, "{name}");
            assert_eq!(fs.load_inode(Ino(11)).unwrap().attr.kind, FileType::Directory, "{name}: lost+found");
            assert!(fs.load_inode(Ino(13)).is_err() && fs.load_inode(Ino(0)).is_err(), "{name}");
            let stat = fs.stat_fs().unwrap();
            assert!(stat.blocks_free > 0 && stat.blocks_free < stat.blocks, "{name}: {stat:?}");
            fs.unmount().unwrap();
            drop(fs);
            fsck(&path, name);
        }
    }
}
