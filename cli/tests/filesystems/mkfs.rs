//! `ivers mkfs`: other projects' tools accept what it makes, and equal calls make equal images.

use crate::common::*;
use std::fs;
use std::path::Path;
use std::process::Command;

const UUID: &str = "12345678-9abc-4def-8123-456789abcdef";

/// Each type, the size of its image, and the name in the report.
const TYPES: [(&str, &str, &str); 10] = [
    ("ext2", "24M", "ext2"),
    ("ext3", "24M", "ext3"),
    ("ext4", "24M", "ext4"),
    ("fat", "2M", "fat12"),
    ("fat12", "8M", "fat12"),
    ("fat16", "20M", "fat16"),
    ("fat32", "40M", "fat32"),
    ("affs", "880K", "ffs"),
    ("ofs", "880K", "ofs"),
    ("ffs", "20M", "ffs"),
];

/// Makes an image with fixed identity and time.
fn make(image: &Path, fs_type: &str, size: &str, more: &[&str]) {
    let identity: &[&str] = match fs_type {
        "ext2" | "ext3" | "ext4" => &["--uuid", UUID],
        "affs" | "ofs" | "ffs" => &[],
        _ => &["--volume-id", "1234-ABCD"],
    };
    let mut words = vec!["mkfs", image.to_str().unwrap(), "-t", fs_type, "--size", size, "-L", "PROOF"];
    words.extend(identity);
    words.extend(more);
    let output = ivers(&words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
}

/// Asserts that the checker of the format finds nothing.
fn check(image: &Path, fs_type: &str) {
    if fs_type.starts_with("ext") {
        ivers_oracle::e2fsck(image).unwrap();
    } else if fs_type.starts_with("fat") {
        let text = ivers_oracle::output("fsck.fat", ["-n".as_ref(), image.as_os_str()]).unwrap();
        let text = said(&text);
        // The exit status, its name and its summary.
        assert_eq!(text.lines().count(), 2, "{fs_type}: {text}");
    } else {
        ivers_affs::check::report(&fs::read(image).unwrap(), 512).closed().unwrap();
    }
}

#[test]
fn every_type_is_clean_reproducible_and_usable() {
    if !ivers_oracle::have_programs(&["e2fsck", "fsck.fat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    let file = dir.path().join("file");
    fs::write(&file, [b'x'; 5000]).unwrap();
    for (fs_type, size, _) in TYPES {
        for image in [&one, &two] {
            let _ = fs::remove_file(image);
            make(image, fs_type, size, &["--timestamp", "1700000000"]);
        }
        assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap(), "{fs_type}");
        check(&one, fs_type);
        let info = ivers(["info".as_ref(), one.as_os_str()]);
        assert!(said(&info).contains("PROOF"), "{fs_type}: {}", said(&info));
        let root = format!("{}:/", one.display());
        let copied = ivers(["cp", file.to_str().unwrap(), &root]);
        assert!(copied.status.success(), "{fs_type}: {}", said(&copied));
        check(&one, fs_type);
    }
}

/// The rest of another format would be found instead of the new filesystem.
#[test]
fn no_type_leaves_traces_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (old, _, _) in TYPES {
        for (new, _, found) in TYPES {
            let _ = fs::remove_file(&image);
            make(&image, old, "40M", if old == "fat12" { &["-b", "16384"] } else { &[] });
            make(&image, new, "40M", if new == "fat12" { &["-F", "-b", "16384"] } else { &["-F"] });
            let info = ivers(["info", "--json", image.to_str().unwrap()]);
            let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
            let name = info["fs"].as_str().unwrap().to_lowercase();
            let family = |name: &str| name.replace("vfat", "fat")[..3].to_owned();
            let found = if found.ends_with("fs") { "affs" } else { found };
            assert_eq!(family(&name), family(found), "{new} over {old}");
        }
    }
}

#[test]
fn the_environment_sets_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let image = |name: &str| dir.path().join(name);
    let call = |name: &str, seconds: &str| {
        let words = ["mkfs", "-q", "--size", "4M", "--uuid", UUID, "-L", "PROOF"];
        Command::new(IVERS).args(words).arg(image(name)).env("SOURCE_DATE_EPOCH", seconds).output().unwrap()
    };
    assert!(call("one", "1700000000").status.success());
    make(&image("two"), "ext4", "4M", &["--timestamp", "1700000000"]);
    assert!(fs::read(image("one")).unwrap() == fs::read(image("two")).unwrap());
    let output = call("three", "yesterday");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("SOURCE_DATE_EPOCH=yesterday") && !image("three").exists());
}

#[test]
fn a_filesystem_without_space_for_its_journal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    for fs_type in ["ext3", "ext4"] {
        let output = ivers(["mkfs", word, "--size", "100K", "-t", fs_type]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let text = said(&output);
        assert!(text.contains("too few for a journal") && text.contains("--no-journal"), "{text}");
        assert!(!image.exists());
    }
    for words in [&["-t", "ext4", "--no-journal"][..], &["-t", "ext2"]] {
        let output = ivers([&["mkfs", "-F", word, "--size", "100K"], words].concat());
        assert!(output.status.success() && said(&output).contains("no journal"), "{}", said(&output));
        ivers_oracle::e2fsck(&image).unwrap();
    }
}

#[test]
fn options_of_other_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    for (words, named) in [
        (&["-t", "fat", "--uuid", UUID][..], "--volume-id"),
        (&["-t", "fat", "--no-journal"], "--no-journal"),
        (&["-t", "fat", "--volume-id", "12345"], "--volume-id"),
        (&["-t", "fat", "-L", "a label that is too long"], "11 characters"),
        (&["-t", "fat32"], "65525"),
        (&["-t", "affs", "-m", "3"], "--reserved-percent"),
        (&["-t", "ffs", "-L", "a:b"], "label"),
        (&["-t", "ext4", "--volume-id", "1234-5678"], "--volume-id"),
    ] {
        let output = ivers([&["mkfs", word, "--size", "10M"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(named), "{words:?}: {}", said(&output));
        assert!(!image.exists(), "{words:?}");
    }
}

/// Features of ext are chosen as in mke2fs. The driver and e2fsck accept each set.
#[test]
fn features_of_ext_are_chosen() {
    if !ivers_oracle::have_programs(&["e2fsck", "dumpe2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![7; 300_000]).unwrap();
    for (fs_type, list, part) in [
        ("ext4", "^metadata_csum,^64bit", "extent"),
        ("ext4", "^extent,^dir_index,^resize_inode", "metadata_csum"),
        ("ext4", "inline_data,large_dir,project", "inline_data"),
        ("ext2", "extent,64bit,metadata_csum", "metadata_csum"),
        ("ext2", "has_journal", "has_journal"),
    ] {
        let made = ivers(["mkfs", "-q", "-F", "-t", fs_type, "-O", list, "--size", "64M", word]);
        assert!(made.status.success(), "{list}: {}", said(&made));
        for (from, to) in [("/etc/hosts", "/small"), (file.to_str().unwrap(), "/large")] {
            works(&["cp", from, &format!("{word}:{to}")]);
        }
        ivers_oracle::run("e2fsck", ["-fn", word]).unwrap();
        let shown = ivers_oracle::run("dumpe2fs", ["-h", word]).unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let features = shown.lines().find(|line| line.starts_with("Filesystem features:")).unwrap();
        assert!(features.contains(part), "{list}: {features}");
        for removed in list.split(',').filter_map(|name| name.strip_prefix('^')) {
            assert!(!features.split_whitespace().any(|name| name == removed), "{list}: {features}");
        }
        fs::remove_file(&image).unwrap();
    }
    for (words, why) in [
        (vec!["-O", "quota"], "no feature \"quota\""),
        (vec!["-O", "64bit,^64bit"], "both added and removed"),
        (vec!["-O", "has_journal", "--no-journal"], "says the opposite"),
        (vec!["-O", "64bit", "-t", "fat"], "no such property"),
        (vec!["-O", "64bit", "-t", "ext2"], "64bit needs extent"),
    ] {
        let output = ivers(["mkfs", "--size", "64M", word].iter().chain(&words));
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(why) && !image.exists(), "{words:?}: {}", said(&output));
    }
}

/// The kernel mounts what this makes, where it has a driver for it.
#[test]
fn the_kernel_mounts_every_type() {
    if !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (fs_type, size, name) in TYPES {
        let kernel = match name {
            "ofs" | "ffs" => "affs",
            name if name.starts_with("fat") => "vfat",
            name => name,
        };
        if !ivers_oracle::kernel::kernel_knows(kernel) {
            continue;
        }
        let image = dir.path().join(fs_type);
        make(&image, fs_type, size, &[]);
        let mount = ivers_oracle::LoopMount::new(&image, "").unwrap();
        fs::write(mount.path().join("file"), [b'y'; 3000]).unwrap();
        mount.unmount().unwrap();
        check(&image, fs_type);
    }
}
