use super::*;
use ivers_block::{FileDevice, OpenMode};
use std::fs::File;

fn options() -> MkfsOptions {
    MkfsOptions {
        uuid: *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x81\x23\x45\x67\x89\xab\xcd\xef",
        hash_seed: [7; 16],
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

#[test]
fn old_contents_are_not_visible() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0xA5; 24 << 20]).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap());
    mkfs(&device, &MkfsOptions { zeroed: false, ..options() }).unwrap();
    drop(device);
    ivers_oracle::e2fsck(&image).unwrap();
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
