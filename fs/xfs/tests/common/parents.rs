//! Images with parent pointers. ivers makes them, because mkfs.xfs can only since version 6.10.

use super::{assert_clean, repair_finds_nothing};
use ivers_block::{FileDevice, OpenMode};
use ivers_xfs::mkfs::{Features, MkfsOptions, mkfs};
use std::path::Path;

/// How an image is made.
pub struct Kind {
    pub name: &'static str,
    pub features: &'static str,
    pub block_size: u32,
    pub inode_size: u32,
}

pub const KINDS: &[Kind] = &[
    Kind {
        name: "parent pointers, as mkfs.xfs 7.2 makes it",
        features: "parent,exchange",
        block_size: 4096,
        inode_size: 512,
    },
    Kind {
        name: "parent pointers alone",
        features: "parent,^rmapbt,^reflink,^nrext64",
        block_size: 4096,
        inode_size: 512,
    },
    Kind {
        name: "parent pointers, blocks of 1 KiB",
        features: "parent,exchange",
        block_size: 1024,
        inode_size: 512,
    },
    Kind {
        name: "parent pointers, inodes of 2 KiB",
        features: "parent,exchange",
        block_size: 4096,
        inode_size: 2048,
    },
    Kind {
        name: "parent pointers, blocks of 64 KiB",
        features: "parent,exchange",
        block_size: 65536,
        inode_size: 512,
    },
];

impl Kind {
    /// Makes an image.
    pub fn make(&self, path: &Path) {
        // Large blocks need a large log.
        let bytes = if self.block_size > 4096 { 1 << 30 } else { super::IMAGE_BYTES };
        std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
        let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
        let options = MkfsOptions {
            block_size: self.block_size,
            inode_size: self.inode_size,
            features: Features::parse(self.features).unwrap(),
            uuid: [9; 16],
            zeroed: true,
            ..MkfsOptions::default()
        };
        mkfs(&device, &options).unwrap();
    }
}

/// Lets everything judge an image.
pub fn judge(image: &Path, what: &str) {
    assert_clean(image, what);
    repair_finds_nothing(image, what);
    let copy = ivers_oracle::xfs::emptied_by_linux(image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    assert_clean(&copy, &format!("{what}, emptied by Linux"));
    std::fs::remove_file(&copy).unwrap();
}
