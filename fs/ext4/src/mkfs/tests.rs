use super::*;
use ivers_block::{FileDevice, OpenMode};
use std::fs::File;

fn options() -> MkfsOptions {
    MkfsOptions {
        uuid: *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x81\x23\x45\x67\x89\xab\xcd\xef",
        hash_seed: Some([7; 16]),
        timestamp: 1_700_000_000,
        label: b"proof".to_vec(),
        zeroed: true,
        ..MkfsOptions::default()
    }
}

fn make(path: &std::path::Path, size: u64, options: &MkfsOptions) -> MkfsReport {
    File::create(path).unwrap().set_len(size).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap());
    mkfs(&device, options).unwrap()
}

#[test]
fn e2fsck_accepts_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mib = 1 << 20;
    for (size, block_size) in [
        (2 * mib, None),
        (8 * mib + 1024, None),
        (9 * mib, Some(4096)),
        (64 * mib, None),
        (64 * mib, Some(2048)),
        (130 * mib, Some(4096)),
        (513 * mib, None),
        (5000 * mib, None),
        (300 * 1024 * mib, None),
    ] {
        let report = make(&image, size, &MkfsOptions { block_size, ..options() });
        ivers_oracle::e2fsck(&image).unwrap();
        assert!(report.blocks * u64::from(report.block_size) <= size);
    }
}

/// The reserved inodes are in group 0, however few inodes each group has.
#[test]
fn e2fsck_accepts_few_inodes() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for fs_type in [ExtType::Ext2, ExtType::Ext4] {
        for (block_size, bytes) in
            [(1024, 300 << 20), (1024, 4_000_000), (2048, 4_000_000), (4096, 200 << 20)]
        {
            let options = MkfsOptions {
                fs_type,
                block_size: Some(block_size),
                bytes_per_inode: Some(bytes),
                ..options()
            };
            let report = make(&image, 300 << 20, &options);
            ivers_oracle::e2fsck(&image).unwrap();
            assert!(report.inodes >= report.groups * 16);
        }
    }
}

/// The features and descriptor size of an image, as dumpe2fs shows them.
fn features(image: &std::path::Path) -> Vec<String> {
    let output = ivers_oracle::run("dumpe2fs", ["-h".as_ref(), image.as_os_str()]).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let shown = ["Filesystem features:", "Inode size:", "Group descriptor size:"];
    text.lines().filter(|line| shown.iter().any(|name| line.starts_with(name))).map(Into::into).collect()
}

#[test]
fn ext2_and_ext3_are_those_of_mke2fs() {
    let dir = tempfile::tempdir().unwrap();
    let [image, theirs] = ["image", "theirs"].map(|name| dir.path().join(name));
    let mib = 1 << 20;
    for fs_type in [ExtType::Ext2, ExtType::Ext3] {
        for (size, block_size) in [
            (3 * mib, None),
            (64 * mib, None),
            (64 * mib, Some(4096)),
            (513 * mib, None),
            (12_000 * mib, Some(1024)),
        ] {
            make(&image, size, &MkfsOptions { fs_type, block_size, ..options() });
            ivers_oracle::e2fsck(&image).unwrap();
            File::create(&theirs).unwrap().set_len(size).unwrap();
            let words = ["-q".as_ref(), "-t".as_ref(), fs_type.name().as_ref(), theirs.as_os_str()];
            ivers_oracle::run("mke2fs", words).unwrap();
            assert_eq!(features(&image), features(&theirs), "{fs_type:?}, {size} bytes");
        }
    }
}

/// Each feature that can be chosen is removed from ext4 and added to ext2.
#[test]
fn chosen_features_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let names = ["has_journal", "ext_attr", "resize_inode", "dir_index", "extent", "64bit", "large_dir"];
    let more = ["inline_data", "huge_file", "dir_nlink", "metadata_csum", "project"];
    for name in names.into_iter().chain(more) {
        for (fs_type, sign) in [(ExtType::Ext4, "^"), (ExtType::Ext4, ""), (ExtType::Ext2, "")] {
            let needed = if name == "64bit" && fs_type == ExtType::Ext2 { ",extent" } else { "" };
            let list = format!("{sign}{name}{needed}");
            let changes = FeatureChanges::parse(&list).unwrap();
            make(&image, 64 << 20, &MkfsOptions { fs_type, features: changes, ..options() });
            ivers_oracle::e2fsck(&image).unwrap();
            let has = features(&image)[0].split_whitespace().any(|word| word == name);
            assert_eq!(has, sign.is_empty(), "{fs_type:?} -O {list}: {:?}", features(&image));
        }
    }
    for (list, why) in [("flex_bg", "no feature"), ("64bit,^64bit", "both"), ("^", "no feature")] {
        assert!(FeatureChanges::parse(list).unwrap_err().contains(why), "{list}");
    }
    assert_eq!(FeatureChanges::parse("^extents, huge_file").unwrap().asks("extent"), Some(false));
}

#[test]
fn old_contents_are_not_visible() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for fs_type in [ExtType::Ext2, ExtType::Ext3, ExtType::Ext4] {
        std::fs::write(&image, vec![0xA5; 24 << 20]).unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
        mkfs(&device, &MkfsOptions { fs_type, zeroed: false, ..options() }).unwrap();
        drop(device);
        ivers_oracle::e2fsck(&image).unwrap();
    }
}

/// Hashed directories do not need a seed of their own for an image to be reproducible.
#[test]
fn the_hash_seed_follows_from_the_uuid() {
    let size = 4 << 20;
    let made = |uuid: [u8; 16]| {
        let options = MkfsOptions { hash_seed: None, uuid, ..options() };
        Geometry::plan(size, &options).unwrap().superblock.s_hash_seed
    };
    assert_eq!(made([1; 16]), made([1; 16]));
    assert_ne!(made([1; 16]), made([2; 16]));
    assert!(made([0; 16]).iter().any(|word| word.get() != 0));
}

#[test]
fn equal_options_make_equal_images() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    make(&one, 40 << 20, &options());
    make(&two, 40 << 20, &options());
    assert!(std::fs::read(one).unwrap() == std::fs::read(two).unwrap());
}

#[test]
fn invalid_options_are_refused_before_the_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (size, options) in [
        (16 << 10, options()),
        // No journal fits.
        (100 << 10, options()),
        (1 << 20, MkfsOptions { fs_type: ExtType::Ext3, ..options() }),
        (8 << 20, MkfsOptions { block_size: Some(512), ..options() }),
        (8 << 20, MkfsOptions { inode_size: 128, ..options() }),
        (8 << 20, MkfsOptions { label: vec![b'x'; 17], ..options() }),
        (8 << 20, MkfsOptions { reserved_percent: 51, ..options() }),
    ] {
        File::create(&image).unwrap().set_len(size).unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
        mkfs(&device, &options).unwrap_err();
        drop(device);
        assert!(std::fs::read(&image).unwrap().iter().all(|&byte| byte == 0));
    }
}
