//! `ivers resize`: files grow and shrink with their filesystem, and refused files stay as they were.

use crate::common::*;
use std::fs;

#[test]
fn an_image_grows_and_keeps_its_files() {
    if !ivers_oracle::have_programs(&["e2fsck", "dumpe2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    for kind in ["ext2", "ext3", "ext4"] {
        works(&["mkfs", "-qF", "-t", kind, "--size", "20M", word]);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        works(&["cp", "-r", source, &format!("{word}:/")]);
        let before = works(&["tree", word]);
        let text = works(&["resize", word, "100M"]);
        assert!(text.contains("102400 blocks of 1024 bytes (before: 20480)"), "{text}");
        ivers_oracle::e2fsck(&image).unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), 100 << 20);
        assert_eq!(works(&["tree", word]), before);
        // The file is larger already.
        fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(150 << 20).unwrap();
        works(&["resize", "--grow-to-fill", word]);
        ivers_oracle::e2fsck(&image).unwrap();
        assert!(works(&["resize", word, "150M"]).contains("(before: 153600)"));
        assert_eq!(works(&["tree", word]), before);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn an_image_shrinks_and_keeps_its_files() {
    if !ivers_oracle::have_programs(&["e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    for kind in ["ext2", "ext3", "ext4"] {
        works(&["mkfs", "-qF", "-t", kind, "--size", "100M", word]);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        works(&["cp", "-r", source, &format!("{word}:/")]);
        let before = works(&["tree", word]);
        let text = works(&["resize", word, "40M"]);
        assert!(text.contains("40960 blocks of 1024 bytes (before: 102400)"), "{text}");
        assert_eq!(fs::metadata(&image).unwrap().len(), 40 << 20);
        ivers_oracle::e2fsck(&image).unwrap();
        assert_eq!(works(&["tree", word]), before);
        let told = works(&["--json", "resize", "--minimum", word]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let blocks = told["blocks"].as_u64().unwrap();
        assert!(blocks < 30_000, "{told}");
        assert_eq!(fs::metadata(&image).unwrap().len(), blocks * 1024);
        ivers_oracle::e2fsck(&image).unwrap();
        assert_eq!(works(&["tree", word]), before);
        // And back.
        works(&["resize", word, "100M"]);
        ivers_oracle::e2fsck(&image).unwrap();
        assert_eq!(works(&["tree", word]), before);
        let copied = dir.path().join("copied");
        works(&["cp", "-r", &format!("{word}:/src"), copied.to_str().unwrap()]);
        ivers_oracle::run("diff", ["-r", source, copied.to_str().unwrap()]).unwrap();
        fs::remove_dir_all(&copied).unwrap();
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_signed_size_is_a_change_of_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    works(&["mkfs", "-qF", "--size", "40M", word]);
    let len = || fs::metadata(&image).unwrap().len() >> 20;
    works(&["resize", word, "+10M"]);
    assert_eq!(len(), 50);
    works(&["resize", word, "-20M", "--json"]);
    assert_eq!(len(), 30);
    works(&["resize", "-q", word, "--", "-2M"]);
    assert_eq!(len(), 28);
    for (size, code) in [("-1G", 4), ("+x", 2), ("+-1M", 2), ("-+1M", 2), ("-", 2), ("--1M", 2)] {
        let output = ivers(["resize", word, size]);
        assert_eq!(output.status.code(), Some(code), "{size}: {}", said(&output));
    }
    let output = ivers(["resize", word]);
    let named = ["+SIZE", "--minimum", "--grow-to-fill"].iter().all(|way| said(&output).contains(way));
    assert!(named && output.status.code() == Some(2), "{}", said(&output));
    assert_eq!(len(), 28);
    let output = ivers(["mkfs", "-F", "--size", "+50M", word]);
    assert!(said(&output).contains("must be a size") && output.status.code() == Some(2), "{}", said(&output));
}

#[test]
fn refused_images_are_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    for (kind, size, code, named) in [
        ("ext4", "1M", 4, "the smallest size is"),
        ("ext4", "x", 2, "must be a size"),
        ("ext4", "9999T", 4, "cannot grow"),
        ("fat16", "40M", 4, "contains a FAT filesystem: only ext2"),
        ("affs", "40M", 4, "contains an AmigaDOS volume: only ext2"),
    ] {
        assert!(ivers(["mkfs", "-qF", "-t", kind, "--size", "20M", word]).status.success());
        let before = fs::read(&image).unwrap();
        let output = ivers(["resize", word, size]);
        assert_eq!(output.status.code(), Some(code), "{kind} {size}: {}", said(&output));
        assert!(said(&output).contains(named), "{kind} {size}: {}", said(&output));
        assert!(fs::read(&image).unwrap() == before, "{kind} {size}: written to");
        fs::remove_file(&image).unwrap();
    }
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let output = ivers(["resize", word, "2M"]);
    assert!(said(&output).contains("zeros at its start: only ext2"), "{}", said(&output));
    fs::remove_file(&image).unwrap();
    assert_eq!(ivers(["resize", word, "10M"]).status.code(), Some(3));
    assert_eq!(ivers(["resize", word]).status.code(), Some(2));
}
