//! Images by mkfs.ext4 in many shapes: opened, walked, closed, and checked by e2fsck.

mod common;

use common::{VARIANTS, fsck, mkfs, open};
use ivers_vfs::{FileSystem, FileType, Ino};

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
            assert_eq!(info.no_cookie, None, "{name}");
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
