//! `ivers mkfs --type xfs`: xfs_repair and the kernel accept what it makes, equal calls make equal images,
//! and wrong options are named. `fs/xfs/tests/images/mkfs.rs` compares the filesystems with those of
//! mkfs.xfs.

use crate::common::source_tree::*;
use crate::common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UUID: &str = "12345678-9abc-4def-8123-456789abcdef";

struct Place {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        Self { _dir: dir, image }
    }

    fn mkfs(&self, words: &[&str]) -> Output {
        ivers([&["mkfs", "-t", "xfs", self.image.to_str().unwrap()], words].concat())
    }

    fn made(&self, words: &[&str]) -> String {
        let output = self.mkfs(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn info(&self) -> serde_json::Value {
        let output = ivers(["info", "--json", self.image.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn repair_finds_nothing(image: &Path) {
    if ivers_oracle::have_programs(&["xfs_repair"]) {
        ivers_oracle::xfs::judge(image).unwrap();
    }
}

#[test]
fn equal_calls_make_equal_images_that_are_clean() {
    let (one, two) = (Place::new(), Place::new());
    let words = ["--size", "300M", "--uuid", UUID, "-L", "PROOF", "--timestamp", "1700000000", "-q"];
    assert_eq!(one.made(&words), "");
    let output = Command::new(IVERS)
        .args(["mkfs", "-t", "xfs", "-q", "--size", "300M", "--uuid", UUID, "-L", "PROOF"])
        .arg(&two.image)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read(&one.image).unwrap() == fs::read(&two.image).unwrap());
    repair_finds_nothing(&one.image);
    let info = one.info();
    assert_eq!(info["fs"], "xfs");
    assert_eq!((&info["label"], &info["uuid"]), (&"PROOF".into(), &UUID.into()));
}

#[test]
fn the_report_has_the_geometry() {
    let place = Place::new();
    let text = place.made(&["--size", "1G", "--uuid", UUID]);
    let sizes = "xfs, 262144 blocks of 4096 bytes, 4 groups, log of 16384 blocks, UUID";
    assert_eq!(text, format!("{}: {sizes} {UUID}\n", place.image.display()));
    let json = place.made(&[
        "-F",
        "--json",
        "-U",
        UUID,
        "-b",
        "1024",
        "--sector-size",
        "1024",
        "--agcount",
        "3",
        "--log-size",
        "80M",
        "-O",
        "^rmapbt,parent",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "path": place.image.to_str().unwrap(), "fs": "xfs", "uuid": UUID, "block_size": 1024,
        "blocks": 1_048_576, "groups": 3, "log_blocks": 81_920, "sector_size": 1024, "inode_size": 512,
        "features": ["crc", "finobt", "reflink", "inobtcnt", "ftype", "sparse", "bigtime", "nrext64",
            "parent"],
    });
    assert_eq!(json, expected);
}

/// `ivers info` explains the geometry: that of mkfs.xfs with a stripe, and ours.
#[test]
fn info_shows_the_geometry() {
    let place = Place::new();
    place.made(&["--size", "1G", "--agcount", "7"]);
    let details = |info: serde_json::Value| info["details"].clone();
    let ours = details(place.info());
    for (name, value) in [
        ("blocks", "262144 of 4096 bytes"),
        ("groups", "7 of 37450 blocks"),
        ("last group", "37444 blocks"),
        ("sector size", "512"),
        ("inode size", "512"),
        ("directory block size", "4096"),
        ("log place", "group 3, block 7"),
        ("space for inodes", "at most 25 % of the blocks"),
        ("inode chunks", "start at multiples of 8 blocks, parts of them at multiples of 4"),
    ] {
        assert_eq!(ours[name], value, "{name}");
    }
    assert_eq!(ours["stripe"], serde_json::Value::Null);
    if ivers_oracle::have_programs(&["mkfs.xfs"]) {
        let words = ["-q", "-f", "-d", "su=64k,sw=4", "-i", "sparse=0", place.image.to_str().unwrap()];
        ivers_oracle::run("mkfs.xfs", words).unwrap();
        let theirs = details(place.info());
        assert_eq!(theirs["stripe"], "unit of 16 blocks, width of 64 blocks");
        let chunks = theirs["inode chunks"].as_str().unwrap();
        assert!(chunks.starts_with("start at multiples of ") && !chunks.contains("parts"), "{chunks}");
    }
}

#[test]
fn small_filesystems_need_an_option() {
    let place = Place::new();
    let output = place.mkfs(&["--size", "64M"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("300 MiB") && said(&output).contains("--small"), "{}", said(&output));
    assert!(!place.image.exists());
    place.made(&["--size", "64M", "--small"]);
    repair_finds_nothing(&place.image);
    let output = Place::new().mkfs(&["--size", "10M", "--small"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("16 MiB") && !said(&output).contains("--small"), "{}", said(&output));
}

#[test]
fn equal_trees_fill_equal_images() {
    let dir = tempfile::tempdir().unwrap();
    let (source, archive) = (dir.path().join("tree"), dir.path().join("tree.tar"));
    tree_to_copy(&source, 600, 4_000_000);
    for features in ["", "parent,exchange"] {
        fill_with_features(&source, &archive, features);
    }
}

fn fill_with_features(source: &Path, archive: &Path, features: &str) {
    archive_tree(source, archive);
    let options = ["-q", "--small", "-O", features, "--uuid", UUID, "--timestamp", "1500000000", "--from"];
    let sized = [&["--size", "64M"], &options[..]].concat();
    let images = [source, source, archive].map(|from| {
        let place = Place::new();
        place.made(&[&sized[..], &[from.to_str().unwrap()]].concat());
        repair_finds_nothing(&place.image);
        place
    });
    let [one, other, packed] = images.each_ref().map(|place| fs::read(&place.image).unwrap());
    assert!(one == other, "equal calls make equal images");
    assert!(one == packed, "a directory and its archive make equal images");
    let plain = ivers_oracle::TreeOptions { no_times: true, no_trusted: true };
    let expected = ivers_oracle::tree(source, plain).unwrap();
    if ivers_oracle::kernel::may_loop_mount() {
        let linux = ivers_oracle::kernel::LoopMount::new(&images[0].image, "ro").unwrap();
        let found = ivers_oracle::tree(linux.path(), plain).unwrap();
        assert!(found == expected, "{found}\n---\n{expected}");
    }
    // Files that do not fit leave no image.
    fs::write(source.join("more"), vec![1; 60 << 20]).unwrap();
    let place = Place::new();
    let output = place.mkfs(&[&sized[..], &[source.to_str().unwrap()]].concat());
    assert!(!output.status.success() && said(&output).contains("--size"), "{}", said(&output));
    assert!(!place.image.exists());
    fs::remove_file(source.join("more")).unwrap();
    place.made(&[&["--size", "auto"], &options[..], &[source.to_str().unwrap()]].concat());
    repair_finds_nothing(&place.image);
    let len = fs::metadata(&place.image).unwrap().len();
    assert!((34 << 20..60 << 20).contains(&len), "{len} bytes");
}

#[test]
fn wrong_options_are_named() {
    let place = Place::new();
    for (words, named) in [
        (&["--bytes-per-inode", "8192"][..], "--bytes-per-inode"),
        (&["-m", "3"], "--reserved-percent"),
        (&["--no-journal"], "--no-journal"),
        (&["--hash-seed", UUID], "--hash-seed"),
        (&["--volume-id", "1234-5678"], "--volume-id"),
        (&["-L", "thirteen byte"], "at most 12 bytes"),
        (&["-b", "512"], "1024 to 65536"),
        (&["-I", "256"], "512 to 2048"),
        (&["--sector-size", "100"], "sector size 100"),
        (&["--agcount", "1"], "at least two"),
        (&["--agcount", "many"], "--agcount"),
        (&["--log-size", "huge"], "--log-size huge"),
        (&["--log-size", "1M"], "between"),
        (&["-O", "metadir"], "\"metadir\""),
        (&["-O", "^crc"], "crc"),
        (&["-O", "^bigtime", "--timestamp", "4000000000"], "2038"),
        (&["-U", "00000000-0000-0000-0000-000000000000"], "zeros"),
        (&["--root-owner=me"], "--root-owner"),
    ] {
        let output = place.mkfs(&[&["--size", "1G"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(named), "{words:?}: {}", said(&output));
        assert!(!place.image.exists(), "{words:?}");
    }
    for words in [&["-O", "parent"][..], &["--agcount", "4"], &["--log-size", "64M"], &["--small"]] {
        for fs_type in ["ext4", "fat", "ffs"] {
            let image = place.image.to_str().unwrap();
            let output = ivers([&["mkfs", "-t", fs_type, "--size", "10M", image], words].concat());
            assert_eq!(output.status.code(), Some(2), "{fs_type} {words:?}: {}", said(&output));
            // ext has features of its own.
            let why = if fs_type == "ext4" && words[0] == "-O" {
                "no feature \"parent\""
            } else {
                "no such property"
            };
            assert!(said(&output).contains(why), "{fs_type} {words:?}: {}", said(&output));
        }
    }
}

/// A checker searches the device for copies of a lost superblock.
#[test]
fn nothing_of_another_filesystem_is_left() {
    let place = Place::new();
    for old in ["ext4", "fat", "ffs", "xfs"] {
        let _ = fs::remove_file(&place.image);
        let image = place.image.to_str().unwrap();
        let output = ivers(["mkfs", "-q", "-t", old, "--size", "400M", image]);
        assert!(output.status.success(), "{}", said(&output));
        let refused = place.mkfs(&[]);
        assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
        place.made(&["-F", "--agcount", "3"]);
        assert_eq!(place.info()["fs"], "xfs", "{old}");
        repair_finds_nothing(&place.image);
        let bytes = fs::read(&place.image).unwrap();
        let superblocks = bytes.chunks(4096).filter(|block| block.starts_with(b"XFSB")).count();
        assert_eq!(superblocks, 3, "{old}");
    }
    for new in ["ext4", "fat", "ffs"] {
        place.made(&["-F"]);
        let output = ivers(["mkfs", "-q", "-F", "-t", new, place.image.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        assert_ne!(place.info()["fs"], "xfs", "{new}");
    }
}

/// Sectors of a block device are those of the device: the kernel mounts no others.
#[test]
fn a_device_with_large_sectors_is_mounted() {
    if !ivers_oracle::kernel::can_loop_mount() || !ivers_oracle::have_programs(&["losetup", "mkfs.xfs"]) {
        return;
    }
    if !ivers_oracle::kernel::kernel_knows("xfs") {
        return;
    }
    let place = Place::new();
    fs::File::create(&place.image).unwrap().set_len(320 << 20).unwrap();
    let words = ["--find", "--show", "-b", "4096", place.image.to_str().unwrap()];
    let Ok(device) = ivers_oracle::run("losetup", words) else {
        ivers_oracle::skipped("no loop device with sectors of 4096 bytes");
        return;
    };
    let device = String::from_utf8(device.stdout).unwrap().trim().to_owned();
    let made = ivers(["mkfs", "--json", "-t", "xfs", &device]);
    let mnt = place.image.with_file_name("mnt");
    fs::create_dir(&mnt).unwrap();
    let mounted = Command::new("mount").args(["-t", "xfs", &device]).arg(&mnt).output().unwrap();
    let written = fs::write(mnt.join("file"), "contents");
    let _ = Command::new("umount").arg(&mnt).output();
    ivers_oracle::run("losetup", ["-d", &device]).unwrap();
    assert!(made.status.success() && mounted.status.success(), "{} {}", said(&made), said(&mounted));
    written.unwrap();
    let json: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(json["sector_size"], 4096);
    repair_finds_nothing(&place.image);
    let output = ivers(["cat", &format!("{}:/file", place.image.display())]);
    assert_eq!(output.stdout, b"contents", "{}", said(&output));
}
