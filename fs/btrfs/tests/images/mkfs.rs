//! Filesystems that ivers makes: btrfs check and our checker find nothing, Linux writes to them, and the
//! superblock has the values of that of mkfs.btrfs.

use crate::common::fill::fill;
use crate::common::*;
use ivers_block::{ByteOffset, Device, FileDevice, MemDevice, OpenMode};
use ivers_btrfs::check::{Options, check};
use ivers_btrfs::layout::checksum::ChecksumKind;
use ivers_btrfs::mkfs::{Copies, MkfsOptions, mkfs, plan};
use ivers_vfs::check::Memory;
use ivers_vfs::{CreateSpec, Cred, WriteFlags};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const UUID: [u8; 16] = [0x11, 0x22, 0x33, 0x44, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16];

fn options() -> MkfsOptions {
    MkfsOptions { uuid: UUID, timestamp: 1_700_000_000, label: b"a label".to_vec(), ..MkfsOptions::default() }
}

/// Kinds of new filesystems: a name, options, and how many devices.
fn kinds() -> Vec<(String, MkfsOptions, usize)> {
    let mut kinds = vec![("default".to_owned(), options(), 1)];
    for node_size in [4096, 8192, 32768, 65536] {
        kinds.push((format!("blocks of {node_size}"), MkfsOptions { node_size, ..options() }, 1));
    }
    for checksum in ChecksumKind::ALL {
        kinds.push((checksum.name().into(), MkfsOptions { checksum, ..options() }, 1));
    }
    let copies = |data, metadata| MkfsOptions { data, metadata: Some(metadata), ..options() };
    kinds.push(("single".into(), copies(Copies::Single, Copies::Single), 1));
    kinds.push(("all DUP".into(), copies(Copies::Dup, Copies::Dup), 1));
    kinds.push(("two devices".into(), options(), 2));
    kinds.push(("RAID1".into(), copies(Copies::Raid1, Copies::Raid1), 2));
    kinds.push(("RAID1C3".into(), copies(Copies::Raid1c3, Copies::Raid1c3), 3));
    kinds.push(("RAID1C4".into(), copies(Copies::Single, Copies::Raid1c4), 4));
    // Linux takes two filesystems with one UUID, of tests that run at the same time, for one.
    kinds.iter_mut().for_each(|(_, options, _)| options.uuid = rand::random());
    kinds
}

fn make(dir: &Path, options: &MkfsOptions, devices: usize) -> Images {
    let paths: Vec<_> = (0..devices).map(|number| dir.join(format!("image-{number}"))).collect();
    let open = |path: &std::path::PathBuf| {
        let _ = std::fs::remove_file(path);
        std::fs::File::create(path).unwrap().set_len(IMAGE_BYTES).unwrap();
        Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>
    };
    let devices: Vec<_> = paths.iter().map(open).collect();
    mkfs(&devices, options).unwrap();
    Images { paths }
}

fn assert_no_findings(images: &Images, what: &str) {
    let options = Options { data: true, degraded: false };
    let found = check(images.devices(), &options, Memory::unlimited(), "image").unwrap();
    assert!(found.is_clean(), "{what}: {:#?}", found.kept());
}

#[test]
fn new_filesystems_are_clean_and_linux_writes_to_them() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, options, devices) in kinds() {
        let images = make(dir.path(), &options, devices);
        assert_no_findings(&images, &name);
        assert_clean(&images, &name);
        images.with_kernel("", fill);
        assert_clean(&images, &name);
        assert_no_findings(&images, &format!("filled, {name}"));
    }
}

#[test]
fn ivers_writes_to_new_filesystems() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, options, devices) in kinds() {
        let images = make(dir.path(), &options, devices);
        let vfs = mount_writable(&images);
        let (root, cred) = (vfs.root().unwrap(), Cred::root());
        for number in 0..300 {
            let name = format!("file-{number}");
            let file = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap().0;
            vfs.write(&cred, &file, 0, &vec![number as u8; 20_000], WriteFlags::default()).unwrap();
        }
        drop(root);
        vfs.unmount().unwrap();
        drop(vfs);
        assert_clean(&images, &name);
        assert_no_findings(&images, &name);
    }
}

#[test]
fn equal_options_make_equal_images() {
    let make = |options: &MkfsOptions| {
        let device = Arc::new(MemDevice::new(200 << 20));
        mkfs(&[device.clone() as Arc<dyn Device>], options).unwrap();
        let mut bytes = vec![0; 200 << 20];
        device.read_at(ByteOffset(0), &mut bytes).unwrap();
        bytes
    };
    let first = make(&options());
    assert!(first == make(&options()));
    assert!(first != make(&MkfsOptions { timestamp: 1, ..options() }));
}

/// The fields of a superblock, as btrfs-progs prints them.
fn fields(image: &Path) -> BTreeMap<String, String> {
    let output =
        ivers_oracle::run("btrfs", ["inspect-internal".as_ref(), "dump-super".as_ref(), image.as_os_str()]);
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

#[test]
fn the_superblock_is_that_of_mkfs_btrfs() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let kind = Kind { name: "theirs", mkfs: &["-L", "a label"], mount: "", devices: 1 };
    let theirs = fields(&Images::make(dir.path(), &kind).paths[0]);
    let ours = fields(&make(dir.path(), &options(), 1).paths[0]);
    // Addresses and transactions differ. So do random values, and values that depend on addresses of chunks.
    let differs = [
        "superblock:",
        "fsid",
        "metadata_uuid",
        "dev_item.fsid",
        "csum",
        "generation",
        "root",
        "chunk_root",
        "chunk_root_generation",
        "dev_item.uuid",
        "dev_item.bytes_used",
        "log_root_transid",
    ];
    for (name, value) in &theirs {
        if !differs.contains(&name.as_str()) {
            assert_eq!(ours.get(name), Some(value), "{name}");
        }
    }
    assert!(theirs.len() > 30 && ours["csum"].contains("[match]"), "{ours:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let refuse = |sizes: &[u64], options: &MkfsOptions| plan(sizes, options).unwrap_err().to_string();
    assert!(refuse(&[64 << 20], &options()).contains("MiB"));
    assert!(refuse(&[1 << 30], &MkfsOptions { node_size: 5000, ..options() }).contains("5000"));
    assert!(refuse(&[1 << 30], &MkfsOptions { data: Copies::Raid1, ..options() }).contains("2 devices"));
    assert!(refuse(&[1 << 30], &MkfsOptions { label: vec![b'x'; 256], ..options() }).contains("label"));
}
